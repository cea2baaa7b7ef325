"""Inputs: files, tables in memory and datasets of Ray as chunks of cells.

An input is a file of text, JSON lines, Parquet, Arrow or ORC, recognized by its first bytes, a table in
memory, a table of Iceberg or Delta Lake, or a dataset of Ray. Every kind of input has

    name, size         for messages; bytes of a file, rows of a table: the unit of progress
    stamp              name, size and time, to recognize it in a later process; None if that is impossible
    chunks             of (bytes or rows read so far, cells); of the first `skip` the number of rows
    count_rows
    sample_rows        not of text: an Arrow table of at most `limit(columns)` rows, in blocks from all of
                       the input (of Ray: its first), and whether there are no others
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from hotrows.data.raw.chunks import LONGEST, blocks_of
from hotrows.data.raw.files import File, find_files
from hotrows.data.raw.tables import RayInput, TableInput, as_table, is_ray_dataset
from hotrows.data.raw.text import JsonInput, TextInput
from hotrows.data.raw.typed_files import SNAPSHOTS, SnapshotInput, TypedFileInput, open_snapshot
from hotrows.data.raw.values import UNIX
from hotrows.runtime.arrow import pa
from hotrows.schema import Time

Progress = Callable[[int, int], None]  # bytes (of tables: rows) read so far, and in all
KINDS = {b"PAR1": "Parquet", b"ARROW1": "Arrow IPC", b"\xff\xff\xff\xff": "Arrow stream", b"ORC": "ORC"}
_UNREAD = {
    b"FEA1": "Feather of version 1",
    b"Obj\x01": "Avro",
    b"SQLite format 3": "an SQLite database",
    b"\x89HDF": "HDF5",
    b"\x93NUMPY": "a NumPy array",
    b"7z\xbc\xaf": "a 7z archive",
}
_OBJECT, _ARRAY = re.compile(rb"\s*\{\s*[\"}]"), re.compile(rb"\s*\[\s*[\[{]")  # of JSON


def inputs_of(raw: Any) -> list[Input]:
    """Opens the inputs that paths, globs, folders, URLs, names of tables, tables, frames and datasets of
    Ray, or a list of them, name."""
    inputs: list[Input] = []
    for item in raw if isinstance(raw, list | tuple) else [raw]:
        if isinstance(item, str) and item.startswith(SNAPSHOTS):
            inputs.append(open_snapshot(item))
        elif isinstance(item, str | Path):
            for file in find_files(item):
                content = content_of(file)
                kinds: dict[str, Any] = {"text": TextInput, "JSON lines": JsonInput}
                kind = kinds.get(content, partial(TypedFileInput, kind=content))
                inputs.append(kind(**vars(file)))
        elif is_ray_dataset(item):
            inputs.append(RayInput(item))
        else:
            inputs.append(TableInput(as_table(item)))
    return inputs


def zones_of(inputs: Sequence[Input], time: Time) -> list[str]:
    """The zones that the types of a column of times name, in the order of the inputs; "" of timestamps,
    dates and text, which name none. Seconds since 1970 need none."""
    zones: dict[str, None] = {}
    is_counted = time.format in UNIX
    for source in inputs:
        if isinstance(source, TypedFileInput | SnapshotInput):
            schema = source.groups.schema
        elif isinstance(source, TableInput):
            schema = source.table.schema
        elif isinstance(source, RayInput):  # whose own types may be those of pandas
            schema = source.sample_rows(lambda num_columns: 1)[0].schema
        else:
            zones |= {} if is_counted else {"": None}
            continue
        for kind in (getattr(f.type, "value_type", f.type) for f in schema if f.name == time.column):
            if pa.types.is_temporal(kind) or not (is_counted or pa.types.is_null(kind)):
                zones[getattr(kind, "tz", None) or ""] = None
    return list(zones)


def content_of(file: File) -> str:
    """The content of a file, told by its first bytes: "text", "JSON lines", or one of KINDS."""
    with file.open() as raw:
        start = raw.read(LONGEST)
    if kind := kind_of(start):
        return kind
    content, _ = next(blocks_of(replace(file, encoding=""), 512), (b"", 0))
    if content[257:262] == b"ustar":
        raise ValueError(
            f"{file.name} holds a tar archive, which is not read; unpack it, and name its files"
        )
    if packed := kind_of(content):
        raise ValueError(f"{file.name} holds {packed} inside a compressed file; unpack it, and name that")
    if unread := next((what for magic, what in _UNREAD.items() if content.startswith(magic)), None):
        raise ValueError(f"{file.name} holds {unread}, which is not read; write it as Parquet or CSV")
    if _ARRAY.match(content):
        raise ValueError(
            f"{file.name} holds an array of JSON; write one object per line (jq -c '.[]' does it)"
        )
    return "JSON lines" if _OBJECT.match(content) else "text"


def kind_of(start: bytes) -> str | None:
    """The kind of a file by its first bytes, None if it is none of KINDS."""
    return next((kind for magic, kind in KINDS.items() if start.startswith(magic)), None)


TypedInput = JsonInput | TypedFileInput | TableInput | RayInput | SnapshotInput
Input = TextInput | TypedInput
