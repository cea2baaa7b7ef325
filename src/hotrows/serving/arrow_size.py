"""The size that an Arrow stream has in memory, before it takes that: what is compressed, and repeated.

A compressed stream says in its headers how large it becomes:

    message (flatbuffer)   Message.header -> RecordBatch, or DictionaryBatch.data -> RecordBatch
    RecordBatch            compression, and buffers: (offset, length) in the body of the message
    a compressed buffer    int64 of its size, -1 where it is as it stands; then the bytes

Arrow reserves the memory that a buffer says before it decompresses it, so that these are what a stream
can take. Formats: Message.fbs and Schema.fbs of Arrow, and the tables of FlatBuffers.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import numpy as np

from hotrows.runtime.arrow import pa

_KINDS = ("record batch", "dictionary")
_HEADER, _DATA, _BUFFERS, _COMPRESSION = 2, 1, 2, 3  # numbers of fields in their tables
_RAW = -1


def decompressed_size(stream: bytes) -> int:
    """Bytes of all buffers of the stream once they are decompressed; of those that are not, none.

    ArrowInvalid or struct.error where it is no stream.
    """
    messages = pa.ipc.MessageReader.open_stream(pa.py_buffer(stream))
    return sum(size for message in messages if message.type in _KINDS for size in _sizes(message))


def repeated_size(column: Any) -> int:
    """Bytes of the texts of a chunked column where each stands by itself.

    A word of a dictionary, or the text behind views, may be that of many rows. ValueError for types
    whose values overlap in other ways.
    """
    return sum(_repeated(chunk) for chunk in column.chunks)


def _repeated(array: Any) -> int:
    kind, types = array.type, pa.types
    if types.is_run_end_encoded(kind) or str(kind).startswith(("list_view", "large_list_view")):
        raise ValueError(f"a column of {kind} is not read: send plain values, or lists")
    if types.is_dictionary(kind):
        words = array.dictionary
        if (
            types.is_string(words.type)
            or types.is_large_string(words.type)
            or types.is_binary(words.type)
        ):
            lengths = pa.compute.binary_length(words).take(array.indices)
            return pa.compute.sum(lengths).as_py() or 0
        return _repeated(words) * len(array)
    if types.is_string_view(kind) or types.is_binary_view(kind):
        lengths = np.frombuffer(array.buffers()[1], "<i4")[::4]  # the first of the 16 bytes of a view
        return int(lengths[array.offset : array.offset + len(array)].astype(np.int64).sum())
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return _repeated(array.values)
    return 0


def _sizes(message: Any) -> Iterator[int]:
    """Bytes of each compressed buffer of a message."""
    header, body = message.metadata.to_pybytes(), message.body
    batch = _table(header, _field(header, _table(header, 0), _HEADER))
    if message.type == "dictionary":
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
    """Follows the offset at `place`: returns where it points to."""
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
