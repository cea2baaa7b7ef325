"""Inputs: files and tables of raw rows, as chunks of cells.

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

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from hotrows.data.raw import snapshots
from hotrows.data.raw.files import content_of, find_files
from hotrows.data.raw.json_lines import JsonInput
from hotrows.data.raw.ray_dataset import RayInput, is_ray_dataset
from hotrows.data.raw.snapshots import SnapshotInput
from hotrows.data.raw.tables import TableInput, as_table
from hotrows.data.raw.text import TextInput
from hotrows.data.raw.typed_files import TypedFileInput

Progress = Callable[[int, int], None]  # bytes (of tables: rows) read so far, and in all
TypedInput = JsonInput | TypedFileInput | TableInput | RayInput | SnapshotInput
Input = TextInput | TypedInput


def inputs_of(raw: Any) -> list[Input]:
    """Opens the inputs that paths, globs, folders, URLs, names of tables, tables, frames and datasets of
    Ray, or a list of them, name."""
    inputs: list[Input] = []
    for item in raw if isinstance(raw, list | tuple) else [raw]:
        if isinstance(item, str) and item.startswith(snapshots.KINDS):
            inputs.append(snapshots.open_snapshot(item))
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


def zone_of(inputs: Sequence[Input], column: str) -> str | None:
    """The zone that the type of a column of timestamps names, in the first input that has one."""
    for source in inputs:
        if isinstance(source, TypedFileInput | SnapshotInput):
            schema = source.groups.schema
        elif isinstance(source, TableInput):
            schema = source.table.schema
        elif isinstance(source, RayInput):  # whose own types may be those of pandas
            schema = source.sample_rows(lambda num_columns: 1)[0].schema
        else:
            continue
        kinds = [field.type for field in schema if field.name == column]
        if zone := next((zone for kind in kinds if (zone := getattr(kind, "tz", None))), None):
            return zone
    return None
