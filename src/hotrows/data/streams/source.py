"""Sources: where events come from, and the position up to which they were read.

    folder:PATH                     a folder that grows: Parquet, JSON lines, delimited text
    -                               standard input: JSON lines, or delimited text
    -:replay                        standard input that begins anew when a run is resumed
    kafka://HOST:PORT/TOPIC         all partitions of a topic
    redis://HOST:PORT/STREAM        a Redis stream

`open_source` opens what such a text names. A source of your own has the methods of `EventSource`, and
hands out `hotrows.data.streams.table_events(table)`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:  # help of commands reads KINDS, and imports nothing heavy
    from hotrows.data.raw.reading import Reading
    from hotrows.data.streams.events import RawEvents
    from hotrows.schema import Schema

KINDS = (
    "folder:PATH, kafka://HOST:PORT/TOPIC, redis://HOST:PORT/STREAM or - (standard input; -:replay where "
    "it begins again)"
)


class EventSource(Protocol):
    """Events in one order, and the position between two of them.

    name: what messages and dead letters call it; a run is resumed on the source of that name.

    >>> source = open_source(f"folder:{folder}", data.schema)
    >>> isinstance(source.name, str)
    True
    """

    name: str

    def read(self, limit: int, wait: float) -> RawEvents | None:
        """The next events, `limit` at most; none of them where none came within `wait` seconds.

        None: there are no more, and none will come. What was read earlier may be returned at once; a
        call waits for the first event alone.
        """
        ...

    @property
    def position(self) -> dict[str, Any]:
        """The place behind the last event that `read` has returned: JSON-able. Names that begin with `_`
        are for `seek` alone: the log of batches, which other runs read, does not have them."""
        ...

    def seek(self, position: dict[str, Any]) -> None:
        """Goes to a position of this source, noted in an earlier process.

        ValueError: what came after it is no longer there, so that events would be lost.
        """
        ...

    def read_to(self, position: dict[str, Any], wait: float) -> RawEvents | None:
        """The events up to a position ahead, or the first of them; in the order in which the `read` that
        ended at that position returned them."""
        ...

    def has_reached(self, position: dict[str, Any]) -> bool:
        """True if all events before a position were read."""
        ...

    def close(self) -> None: ...


def open_source(text: str, schema: Schema | Reading) -> EventSource:
    """Opens the source that a text names.
    schema: of the data, or how it is read; text files are read by it, without its histories.

    >>> open_source(f"folder:{folder}", data.schema).name.startswith("folder:")
    True
    """
    scheme, _, rest_of_text = text.partition(":")
    if text in ("-", "-:replay"):
        from hotrows.data.streams.standard_input import StandardInput

        return StandardInput(schema, replays=text != "-")
    if scheme == "folder" and rest_of_text:
        from hotrows.data.streams.folder import FolderSource

        return FolderSource(rest_of_text, schema)
    if scheme == "kafka":
        from hotrows.data.streams.kafka_source import KafkaSource

        return KafkaSource.of_address(text, schema)
    if scheme in ("redis", "rediss"):
        from hotrows.data.streams.redis_source import RedisSource

        return RedisSource.of_address(text)
    raise ValueError(f"a stream is {KINDS}, not {text!r}")
