"""KafkaSource: all partitions of a topic, an event per message: JSON, or a delimited line.

Offsets are in the checkpoints of the run, not in a consumer group: nothing is committed. Events of a
partition keep their order; those of several come as they arrive, in the order of partitions within a
read. Messages without a value (tombstones of compacted topics) are no events. At the end of a partition
the position is behind the markers of transactions and what these have aborted.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from hotrows.data.raw.reading import Reading
from hotrows.data.raw.text import Layout
from hotrows.data.streams.alarms import Outage
from hotrows.data.streams.events import RawEvents, declared_layout, is_json, message_events, reading_of
from hotrows.runtime.extras import needs
from hotrows.schema import Schema

_TIMEOUT = 10.0  # seconds for answers about topics and offsets
_LOOK = 60.0  # seconds between looks for new partitions
_BEGIN = ("earliest", "latest")
# Errors of a broker that is away: the consumer tries again by itself.
_PASSING = ("_TRANSPORT", "_ALL_BROKERS_DOWN", "_RESOLVE", "_TIMED_OUT")


class KafkaSource:
    """Reads a topic by `confluent-kafka`.

    servers: HOST:PORT, with commas between. start: where a new run begins, `earliest` or `latest`.
    options: of the consumer, as librdkafka names them, such as security.protocol.
    """

    def __init__(
        self,
        servers: str,
        topic: str,
        schema: Schema | Reading,
        start: str = "earliest",
        options: Mapping[str, str] | None = None,
    ) -> None:
        with needs("a Kafka stream", "confluent-kafka"):
            import confluent_kafka
        if start not in _BEGIN:
            raise ValueError(f"start of a Kafka stream is {' or '.join(_BEGIN)}, not {start!r}")
        self._kafka, self._topic, self._how = confluent_kafka, topic, reading_of(schema)
        self.name = f"kafka://{servers}/{topic}"
        fixed = {"enable.auto.commit": False, "auto.offset.reset": "error", "group.id": "hotrows"}
        fixed["enable.partition.eof"] = True  # a batch that is made again may end behind the last message
        self._outage = Outage(self.name)
        settings = {"bootstrap.servers": servers, "log_level": 2, **(options or {}), **fixed}
        self._consumer = confluent_kafka.Consumer({**settings, "error_cb": self._warn})
        self._offsets = {
            partition: self._bounds(partition)[_BEGIN.index(start)] for partition in self._partitions()
        }
        self._look_at = time.monotonic() + _LOOK
        self._layout: Layout | None = None
        self._is_known = False  # whether the layout is
        self._assigned: dict[int, int] = {}
        self._ended: set[int] = set()  # partitions that had no more messages when they were read

    @property
    def is_at_end(self) -> bool:
        """True if all messages that the topic had were read."""
        return self._ended.issuperset(self._offsets)

    @staticmethod
    def of_address(address: str, schema: Schema | Reading) -> KafkaSource:
        """kafka://HOST:PORT,HOST:PORT/TOPIC?start=latest&security.protocol=SSL"""
        parts = urlsplit(address)
        topic, options = parts.path.strip("/"), dict(parse_qsl(parts.query))
        if not parts.netloc or not topic or "/" in topic:
            raise ValueError(f"a Kafka stream is kafka://HOST:PORT/TOPIC, not {address!r}")
        return KafkaSource(parts.netloc, topic, schema, options.pop("start", "earliest"), options)

    @property
    def position(self) -> dict[str, Any]:
        offsets = sorted(self._offsets.items())
        return {"offsets": {str(partition): offset for partition, offset in offsets}}

    def seek(self, position: dict[str, Any]) -> None:
        for partition in self._offsets.keys() - {int(name) for name in position["offsets"]}:
            self._offsets[partition] = self._bounds(partition)[0]  # it is new
        for name, offset in position["offsets"].items():
            partition = self._partition(name)
            first, end = self._bounds(partition)
            if not first <= offset <= end:
                raise ValueError(
                    f"{self.name}, partition {partition}: the next event is number {offset:,}, and the "
                    f"topic has {first:,} to {end:,}: events are lost; keep them longer (retention.ms), "
                    f"and begin a new run from this one (--init-from)"
                )
            self._offsets[partition] = offset
        self._assigned = {}

    def read(self, limit: int, wait: float) -> RawEvents | None:
        if time.monotonic() > self._look_at:
            self._add_partitions()
        self._assign(self._offsets)
        messages = self._consumer.consume(limit, 0)
        if not messages and (first := self._consumer.poll(wait)) is not None:
            messages = [first, *(self._consumer.consume(limit - 1, 0) if limit > 1 else ())]
        return self._events(messages)

    def read_to(self, position: dict[str, Any], wait: float) -> RawEvents | None:
        ends = {int(name): offset for name, offset in position["offsets"].items()}
        partition = next(p for p in sorted(ends) if self._offsets[p] < ends[p])
        self._assign({partition: self._offsets[partition]})
        end = ends[partition]
        messages = self._consumer.consume(end - self._offsets[partition], wait)
        events = self._events([m for m in messages if m.error() or m.offset() < end])
        if any(m.offset() >= end for m in messages if not m.error() or self._is_end(m)):
            self._offsets[partition], self._assigned = end, {}  # those before it were compacted away
        return events

    def has_reached(self, position: dict[str, Any]) -> bool:
        offsets = position["offsets"].items()
        return all(self._offsets[self._partition(name)] >= offset for name, offset in offsets)

    def close(self) -> None:
        self._consumer.close()

    def _add_partitions(self) -> None:
        """Reads partitions that the topic has got from their first event on, where the broker answers."""
        self._look_at = time.monotonic() + _LOOK
        with suppress(ValueError):
            new = set(self._partitions()).difference(self._offsets)
            self._offsets |= {partition: self._bounds(partition)[0] for partition in new}

    def _partition(self, name: str) -> int:
        """The partition of a name in a position."""
        if int(name) not in self._offsets:
            raise ValueError(f"{self.name} has no partition {name} any more: it was made anew")
        return int(name)

    def _is_end(self, message: Any) -> bool:
        """True if a message carries no event and only says that its partition has no more of them."""
        error = message.error()
        return error is not None and error.code() == self._kafka.KafkaError._PARTITION_EOF

    def _partitions(self) -> list[int]:
        try:
            found_topic = self._consumer.list_topics(self._topic, _TIMEOUT).topics[self._topic]
        except self._kafka.KafkaException as error:
            raise ValueError(f"{self.name} does not answer: {error.args[0].str()}") from None
        if found_topic.error is not None or not found_topic.partitions:
            raise ValueError(f"{self.name} is no topic: {found_topic.error}; make it first")
        return sorted(found_topic.partitions)

    def _bounds(self, partition: int) -> tuple[int, int]:
        """The number of the first event that a partition has, and that of the next to come."""
        place = self._kafka.TopicPartition(self._topic, partition)
        try:
            return self._consumer.get_watermark_offsets(place, _TIMEOUT)
        except self._kafka.KafkaException as error:
            raise ValueError(f"{self.name} does not answer: {error.args[0].str()}") from None

    def _assign(self, offsets: Mapping[int, int]) -> None:
        """Reads these partitions on from these offsets, where that is not so already."""
        if dict(offsets) != self._assigned:
            places = [self._kafka.TopicPartition(self._topic, p, offset) for p, offset in offsets.items()]
            self._consumer.assign(places)
            self._assigned, self._ended = dict(offsets), set()

    def _warn(self, error: Any) -> None:
        self._outage.warn(error.str())

    def _events(self, messages: list[Any]) -> RawEvents:
        ends = {m.partition(): m.offset() for m in messages if self._is_end(m)}
        for message in messages:
            (self._ended.add if self._is_end(message) else self._ended.discard)(message.partition())
        messages = [message for message in messages if not self._is_end(message)]
        for error in (message.error() for message in messages if message.error()):
            if error.code() == self._kafka.KafkaError._AUTO_OFFSET_RESET:
                raise ValueError(
                    f"{self.name}: the next event was deleted ({error.str()}); events are lost"
                )
            if error.name() not in _PASSING:
                raise ValueError(f"{self.name} cannot be read: {error.str()}")
            self._warn(error)
        messages = sorted((m for m in messages if not m.error()), key=lambda message: message.partition())
        for message in messages:
            ends[message.partition()] = max(ends.get(message.partition(), 0), message.offset() + 1)
        self._offsets |= ends
        self._assigned |= ends
        messages = [message for message in messages if message.value() is not None]
        values = [message.value() for message in messages]
        places = [f"partition {message.partition()} offset {message.offset()}" for message in messages]
        if values and not self._is_known:
            self._is_known = True
            if not is_json(values[0]):
                self._layout = declared_layout(self._how, self.name, values[0])
        return message_events(values, self.name, self._layout, places)
