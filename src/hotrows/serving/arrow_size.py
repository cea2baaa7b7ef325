"""The size of an Arrow stream once it is decompressed, read from its headers: nothing is decompressed.

    message (flatbuffer)   Message.header -> RecordBatch, or DictionaryBatch.data -> RecordBatch
    RecordBatch            compression, and buffers: (offset, length) in the body of the message
    a compressed buffer    int64 of its size, -1 where it is as it stands; then the bytes

Arrow reserves the memory that a buffer says before it decompresses it, so that these are what a stream
can take. Formats: Message.fbs and Schema.fbs of Arrow, and the tables of FlatBuffers.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from hotrows.data.raw.arrow import pyarrow

_KINDS = ("record batch", "dictionary")
_HEADER, _DATA, _BUFFERS, _COMPRESSION = 2, 1, 2, 3  # numbers of fields in their tables
_RAW = -1


def decompressed_size(stream: bytes) -> int:
    """Bytes of all buffers of the stream once they are decompressed; of those that are not, none.

    ArrowInvalid or struct.error where it is no stream.
    """
    pa = pyarrow()
    messages = pa.ipc.MessageReader.open_stream(pa.py_buffer(stream))
    return sum(size for message in messages if message.type in _KINDS for size in _sizes(message))


def _sizes(message: object) -> Iterator[int]:
    """Bytes of each compressed buffer of a message."""
    header, body = message.metadata.to_pybytes(), message.body  # type: ignore[attr-defined]
    batch = _table(header, _field(header, _table(header, 0), _HEADER))
    if message.type == "dictionary":  # type: ignore[attr-defined]
        batch = _table(header, _field(header, batch, _DATA))
    if not _field(header, batch, _COMPRESSION):
        return
    place = _field(header, batch, _BUFFERS)
    vector = _table(header, place)
    (count,) = struct.unpack_from("<I", header, vector)
    for number in range(count):
        offset, length = struct.unpack_from("<qq", header, vector + 4 + 16 * number)
        if length > 0:
            (size,) = struct.unpack_from("<q", body, offset)
            yield 0 if size == _RAW else max(size, 0)


def _table(header: bytes, place: int) -> int:
    """What the offset at `place` points to."""
    (offset,) = struct.unpack_from("<I", header, place)
    return place + offset


def _field(header: bytes, table: int, number: int) -> int:
    """Where a field of a table is; 0 where the table has none."""
    (back,) = struct.unpack_from("<i", header, table)
    entries = table - back
    (size,) = struct.unpack_from("<H", header, entries)
    if 4 + 2 * number + 2 > size:
        return 0
    (offset,) = struct.unpack_from("<H", header, entries + 4 + 2 * number)
    return table + offset if offset else 0
