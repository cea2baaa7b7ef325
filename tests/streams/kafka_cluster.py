"""A Kafka cluster in this process, by librdkafka's mock."""

from hotrows.data.streams import open_source


class Cluster:
    """A mock cluster, and a producer to it. schema: of the events that `open` reads."""

    def __init__(self, schema=None):
        from confluent_kafka import Producer

        self.schema = schema
        self.producer = Producer({"bootstrap.servers": "none:1", "test.mock.num.brokers": 1})
        (broker,) = self.producer.list_topics(timeout=10).brokers.values()
        self.address = f"{broker.host}:{broker.port}"

    def write(self, topic, partition, values):
        for value in values:
            self.producer.produce(topic, value, partition=partition)
        assert self.producer.flush(30) == 0

    def open(self, topic, **options):
        words = "&".join(f"{name}={value}" for name, value in options.items())
        return open_source(f"kafka://{self.address}/{topic}?{words}", self.schema)
