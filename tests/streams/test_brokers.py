"""Kafka, by librdkafka's mock cluster, and Redis, by a server of the test's own: what is read, and where
a later process goes on."""

import json
import socket
import time
from itertools import chain
from types import SimpleNamespace

import pytest

from hotrows import Callback, TrainConfig, Trainer
from hotrows.data.columns.of_schema import SchemaColumns
from hotrows.data.raw.reading import Reading
from hotrows.data.streams import StreamConfig, kafka_source, open_source, redis_source
from hotrows.data.streams.line_log import read_lines
from hotrows.schema import Dense, Label, Schema, Sparse
from hotrows.serving import places
from tests.streams.kafka_cluster import Cluster

kafka = pytest.importorskip("confluent_kafka", reason="needs confluent-kafka")

SCHEMA = Schema((Dense("n"), Sparse("a")), label=Label("y"), delimiter=",", columns=("y", "n", "a"))


def numbers_of(events):
    return (
        [
            int(n)
            for n in SchemaColumns(SCHEMA)
            .read(events.columns(Reading(SCHEMA, threads=1)))
            .values["dense"][0]
        ]
        if len(events)
        else []
    )


def some(source, number, limit=1000):
    """So many events, as they come; an error where they do not within a minute."""
    numbers, until = [], time.monotonic() + 60
    while len(numbers) < number and time.monotonic() < until:
        numbers += numbers_of(source.read(min(limit, number - len(numbers)), 0.2))
    assert len(numbers) == number
    return numbers


def message(n):
    return json.dumps({"y": 1, "n": n, "a": f"x{n}"}).encode()


@pytest.fixture(scope="module")
def cluster():
    return Cluster(SCHEMA)


def test_all_partitions_of_a_topic_are_read_and_read_again(cluster):
    for partition in (0, 1, 2):
        cluster.write("clicks", partition, [message(100 * partition + n) for n in range(10)])
    source, reads = cluster.open("clicks"), []
    places = [source.position]
    while sum(map(len, reads)) < 30:
        reads.append(some(source, 5, limit=5))
        places.append(json.loads(json.dumps(source.position)))
    assert sorted(chain(*reads)) == [100 * p + n for p in range(3) for n in range(10)]
    source.close()

    for number in (0, 2, 5):  # from the middle on, events come once
        later = cluster.open("clicks")
        later.seek(places[number])
        assert sorted(some(later, 30 - 5 * number)) == sorted(chain(*reads[number:]))
        later.close()

    again = cluster.open("clicks")
    again.seek(places[2])
    repeated = []
    while not again.has_reached(places[4]):
        repeated += numbers_of(again.read_to(places[4], 0.2))
    assert sorted(repeated) == sorted(reads[2] + reads[3])
    again.close()


def test_lines_with_delimiters_are_messages_too_and_only_new_ones_where_asked(cluster):
    cluster.write("lines", 0, [b"1,5,x"])
    source = cluster.open("lines", start="latest")
    cluster.write("lines", 0, [b"1,6,x", b"1,7,x"])
    assert some(source, 2) == [6, 7]
    fresh = cluster.open("lines", start="latest")
    fresh.seek({"offsets": {"0": 3}})
    assert fresh.position["offsets"] == {"0": 3, **{str(p): 0 for p in (1, 2, 3)}}  # those were not known
    fresh.close()
    offsets = source.position["offsets"]
    assert offsets["0"] == 3 and len(source.read(1, 0.0)) == 0
    source.close()


def test_events_that_a_topic_has_lost_are_missed(cluster):
    cluster.write("short", 0, [message(n) for n in range(3)])
    source = cluster.open("short")
    with pytest.raises(
        ValueError, match=r"the next event is number 9, and the topic has 0 to 3: events are lost"
    ):
        source.seek({"offsets": {"0": 9}})
    with pytest.raises(ValueError, match="has no partition 99 any more"):
        source.seek({"offsets": {"99": 0}})
    source.close()
    for text, why in (
        (f"kafka://{cluster.address}/", "a Kafka stream is kafka://HOST:PORT/TOPIC"),
        (f"kafka://{cluster.address}/short?start=never", "start of a Kafka stream is earliest or latest"),
    ):
        with pytest.raises(ValueError, match=why):
            open_source(text, SCHEMA)


class Topic:
    """A stand-in for a topic: the offsets that each partition has, and its end; for messages that a mock
    cluster cannot have lost."""

    def __init__(self, partitions):
        self.partitions = partitions

    def open(self, monkeypatch):
        monkeypatch.setattr(kafka, "Consumer", lambda settings: TopicConsumer(self.partitions))
        return open_source("kafka://host:1/topic", SCHEMA)


class TopicConsumer:
    def __init__(self, partitions):
        self.partitions, self.at, self.has_said_end = partitions, {}, set()

    def list_topics(self, topic, timeout):
        return SimpleNamespace(topics={topic: SimpleNamespace(error=None, partitions=self.partitions)})

    def get_watermark_offsets(self, place, timeout):
        offsets, end = self.partitions[place.partition]
        return min(offsets, default=end), end

    def assign(self, places):
        self.at, self.has_said_end = {place.partition: place.offset for place in places}, set()

    def consume(self, number, timeout):
        messages = []
        for partition, at in self.at.items():
            offsets, end = self.partitions[partition]
            left = [offset for offset in offsets if offset >= at][: number - len(messages)]
            messages += [TopicMessage(partition, offset) for offset in left]
            self.at[partition] = left[-1] + 1 if left else at
            if len(messages) < number and partition not in self.has_said_end:
                messages.append(TopicMessage(partition, end, is_end=True))
                self.has_said_end.add(partition)
        return messages

    def poll(self, timeout):
        return next(iter(self.consume(1, timeout)), None)

    def close(self):
        pass


class TopicMessage:
    def __init__(self, partition, offset, is_end=False):
        self.partition, self.offset, self._is_end = (lambda: partition), (lambda: offset), is_end

    def error(self):
        return kafka.KafkaError(kafka.KafkaError._PARTITION_EOF) if self._is_end else None

    def value(self):
        return None if self._is_end else message(self.offset())


def read_to(source, offset):
    """The events up to an offset of partition 0, as a batch that is made again reads them."""
    position, numbers = {"offsets": {"0": offset}}, []
    for _ in range(20):
        if source.has_reached(position):
            return numbers
        numbers += numbers_of(source.read_to(position, 0))
    raise AssertionError(f"not reached: {source.position}")


@pytest.mark.parametrize(
    "offsets, end",
    [([5, 9, 10], 11), ([5], 12), ([], 12), ([5, 6, 7, 9, 10], 11)],
    ids=["a later message", "markers behind it", "none", "all"],
)
def test_a_batch_ends_though_its_last_messages_were_compacted_away(monkeypatch, offsets, end):
    """It was waited for them without an end; and the messages behind it, which had come, were dropped."""
    topic = Topic({0: (offsets, end)})
    source = topic.open(monkeypatch)
    source.seek({"offsets": {"0": 5 if offsets else 12}})
    assert read_to(source, 8) == [offset for offset in offsets if offset < 8]
    assert source.position == {"offsets": {"0": 8 if offsets else 12}}
    rest = [offset for offset in offsets if offset >= 8]
    assert some(source, len(rest)) == rest and len(source.read(9, 0)) == 0


def test_markers_of_transactions_are_no_lost_events(monkeypatch):
    """Behind the last event, when a topic deletes them all: a run could not go on. Events are lost."""
    topic = Topic({0: ([5], 12)})
    source = topic.open(monkeypatch)
    assert some(source, 1) == [5] and len(source.read(9, 0)) == 0
    topic.partitions[0] = ([], 12)
    topic.open(monkeypatch).seek(source.position)
    with pytest.raises(ValueError, match="the next event is number 6, and the topic has 12 to 12"):
        topic.open(monkeypatch).seek({"offsets": {"0": 6}})


def test_messages_without_a_value_are_no_events(cluster):
    """The first one told that the topic is not JSON."""
    cluster.write("compacted", 0, [None, None, message(1), None, message(2), None])
    source = cluster.open("compacted")
    assert some(source, 2, limit=1) == [1, 2]
    cluster.write("compacted", 0, [None] * 3)
    end = time.monotonic() + 30
    while source.position["offsets"]["0"] < 9 and time.monotonic() < end:
        assert len(source.read(1, 0.2)) == 0
    assert source.position["offsets"]["0"] == 9
    source.close()


def test_partitions_that_a_topic_gets_are_read_from_their_first_event_on(monkeypatch):
    """They were read from the next start of the process on."""
    monkeypatch.setattr(kafka_source, "_LOOK", -1)
    topic = Topic({0: ([3, 4], 5)})
    source = topic.open(monkeypatch)
    assert some(source, 2) == [3, 4]
    topic.partitions[1] = ([7, 8], 9)
    assert some(source, 2) == [7, 8]
    assert source.position == {"offsets": {"0": 5, "1": 9}}
    with pytest.raises(ValueError, match="has no partition 2 any more"):
        source.has_reached({"offsets": {"2": 1}})


def opened(server, stream, words=""):
    return open_source(f"redis://127.0.0.1:{server.port}/{stream}{words}", SCHEMA)


def test_entries_of_a_stream_are_read_in_order_and_read_again(redis_server):
    for n in range(10):
        redis_server.client.xadd("clicks", {"y": 1, "n": n, "a": f"x{n}"})
    source = opened(redis_server, "clicks")
    assert some(source, 4, limit=3) == [0, 1, 2, 3]
    place = json.loads(json.dumps(source.position))
    assert some(source, 6) == list(range(4, 10))
    assert len(source.read(5, 0.01)) == 0
    end = source.position
    later = opened(redis_server, "clicks")
    later.seek(place)
    assert numbers_of(later.read_to(end, 0)) == list(range(4, 10))
    assert later.position == end
    redis_server.client.xadd("clicks", {"event": message(10)})
    assert some(source, 1) == [10]
    newest = opened(redis_server, "clicks", "?start=latest")
    assert len(newest.read(5, 0.01)) == 0
    for one in (source, later, newest):
        one.close()


def test_entries_that_were_deleted_are_missed(redis_server):
    for n in range(10):
        redis_server.client.xadd("short", {"event": message(n)})
    source = opened(redis_server, "short")
    assert some(source, 2) == [0, 1]
    place = source.position
    redis_server.client.xtrim("short", maxlen=3, approximate=False)
    with pytest.raises(ValueError, match="5 entries after .* were trimmed: events are lost; keep more"):
        opened(redis_server, "short").seek(place)
    redis_server.client.delete("short")
    with pytest.raises(ValueError, match="ends before .*, which was read: it was made anew"):
        opened(redis_server, "short").seek(place)
    guarded = open_source(f"redis://default:secret@127.0.0.1:{redis_server.port}/clicks", SCHEMA)
    assert guarded.name == opened(redis_server, "clicks").name
    for text in ("redis://localhost/", "redis:///clicks"):
        with pytest.raises(ValueError, match="a Redis stream is redis://HOST:PORT/STREAM"):
            open_source(text, SCHEMA)


def test_entries_that_are_trimmed_while_a_reader_lags_are_missed(redis_server):
    """A stream with MAXLEN: what was trimmed before it was read was passed over."""
    client = redis_server.client

    def add(stream, numbers, most=None):
        for n in numbers:
            client.xadd(stream, {"event": message(n)}, maxlen=most, approximate=False)

    add("lags", range(10))
    source = opened(redis_server, "lags")
    assert some(source, 4, limit=2) == [0, 1, 2, 3]
    client.xtrim("lags", maxlen=6, approximate=False)  # what was read
    assert some(source, 6) == list(range(4, 10))
    add("lags", range(10, 30), most=5)
    with pytest.raises(ValueError, match="15 entries after .* were trimmed: events are lost; keep more"):
        source.read(9, 0.1)
    fresh = opened(redis_server, "lags")
    add("lags", range(30, 32), most=5)  # before its first event
    assert some(fresh, 5) == list(range(27, 32))
    add("lags", range(32, 34), most=1)
    with pytest.raises(ValueError, match="1 entries after .* were trimmed"):
        fresh.read(9, 0.1)
    client.delete("lags")
    add("lags", [1])
    with pytest.raises(ValueError, match="was made anew; begin a new run"):
        source.read(9, 0.1)


def test_a_batch_of_entries_that_were_trimmed_ends(redis_server):
    """It was waited for its last entry without an end."""
    for n in range(6):
        redis_server.client.xadd("cut", {"event": message(n)})
    source = opened(redis_server, "cut")
    assert some(source, 4) == [0, 1, 2, 3]
    end = source.position
    redis_server.client.xdel("cut", *[entry for entry, _ in redis_server.client.xrange("cut")[2:4]])
    again, numbers = opened(redis_server, "cut"), []
    for _ in range(5):
        if not again.has_reached(end):
            numbers += numbers_of(again.read_to(end, 0))
    assert again.has_reached(end) and numbers == [0, 1]
    assert some(again, 2) == [4, 5]


def test_a_server_that_is_away_is_waited_for(redis_server, caplog):
    source = opened(redis_server, "clicks")
    redis_server.stop()
    assert len(source.read(5, 0.01)) == len(source.read(5, 0.01)) == 0
    assert len([m for m in caplog.messages if "; it is tried again" in m]) == 1
    source.close()


class Kill(Callback):
    """Kills a run after two steps, behind its last checkpoint; or stops it when all events are
    trained."""

    def __init__(self, all_events=None):
        self.all_events = all_events

    def on_step_end(self, trainer, progress):
        if self.all_events is None and trainer.state.step == 2:
            raise RuntimeError("killed")
        if trainer.state.stream.events == self.all_events:
            trainer.stop()


def test_a_server_that_takes_connections_and_never_answers_is_given_up(monkeypatch):
    monkeypatch.setattr(redis_source, "_TIMEOUT", 0.1)
    monkeypatch.setattr(places, "_TIMEOUT", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address, begun = f"redis://127.0.0.1:{silent.getsockname()[1]}", time.monotonic()
        with pytest.raises(ValueError, match="cannot be read"):
            open_source(f"{address}/clicks", SCHEMA)
        with pytest.raises(OSError, match="Redis does not answer"):
            places.open_place(f"{address}/0?name=clicks").names()
    assert time.monotonic() - begun < 8  # a client's own limit is five seconds, times four, or none


@pytest.mark.parametrize("kind", ["kafka", "redis"])
def test_a_killed_run_trains_each_event_of_a_broker_once(kind, data, lines, tmp_path, request):
    names = lines[0].strip().split(",")
    events = [dict(zip(names, line.strip().split(","), strict=True)) for line in lines[1:201]]
    if kind == "kafka":
        cluster = request.getfixturevalue("cluster")
        for partition in (0, 1):
            cluster.write("run", partition, [json.dumps(event) for event in events[partition::2]])
        address = f"kafka://{cluster.address}/run"
    else:
        redis_server = request.getfixturevalue("redis_server")
        for event in events:
            redis_server.client.xadd("run", event)
        address = f"redis://127.0.0.1:{redis_server.port}/run"
    config = TrainConfig(
        model="fm", batch_size=32, checkpoint_every=1, linear_paths="plain", background_checkpoints=False
    )
    patient = StreamConfig(alarm_idle=60.0)  # what is lost makes no test endless
    with pytest.raises(RuntimeError, match="killed"):
        Trainer(data, config, tmp_path / "run").fit_stream(address, patient, callbacks=[Kill()])
    resumed = Trainer(data, config, tmp_path / "run", resume=True)
    assert resumed.state.step == 1
    resumed.fit_stream(address, patient, callbacks=[Kill(200)])
    assert sum(line["size"] for line in read_lines(tmp_path / "run" / "stream.jsonl")) == 200
    assert resumed.state.stream.events == resumed.state.stream.read == 200
