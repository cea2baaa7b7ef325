"""The layout of raw lines: columns by the schema's `columns` or by the file's header line."""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from hotrows.runtime.suggestions import did_you_mean
from hotrows.schema import Schema, column_of

PROBLEMS = "none", "columns", "unclosed", "after_quote"  # of a line
WRONG_COLUMNS, UNCLOSED, AFTER_QUOTE = 1, 2, 3
_QUOTED = re.compile(rb'"((?:[^"]|"")*)"(?!")')

log = logging.getLogger("hotrows")


@dataclass(frozen=True)
class Layout:
    """The columns of one raw file.

    names: every column, in order; places: for each column that is read, its index among those read.
    quoted: whether fields may be in double quotes, which holds for every delimiter but tab.
    """

    names: tuple[str, ...]
    places: Mapping[str, int]
    delimiter: str
    has_header: bool

    @property
    def quoted(self) -> bool:
        return _is_quoted(self.delimiter)

    @property
    def used(self) -> tuple[int, ...]:
        """Index in a line of each column that is read, in the order of their places."""
        numbers = {name: number for number, name in reversed(list(enumerate(self.names)))}
        return tuple(numbers[column] for column in self.places)

    @property
    def wanted(self) -> np.ndarray:
        """[columns] int32, the index of each column among those read, or -1."""
        places = np.full(len(self.names), -1, np.int32)
        places[list(self.used)] = np.arange(len(self.used))
        return places


def layout_of(
    schema: Schema,
    name: str,
    first_line: bytes,
    for_training: bool = True,
    kept: tuple[str, ...] | None = (),
) -> Layout:
    """Finds the layout of the raw file `name`, which begins with `first_line`.

    for_training: whether every column of the schema is required, instead of one feature's at least.
    kept: columns that are read, too; None: all.
    """
    if len(schema.delimiter.encode()) != 1 or schema.delimiter in '"\r\n':
        raise ValueError(
            f"schema {schema.name!r}: the delimiter must be one character of one byte, "
            f"not {schema.delimiter!r}; convert the file first"
        )
    fields, problem = cut_line(first_line.rstrip(b"\n"), schema.delimiter)
    if schema.columns is not None:
        names = _declared(schema, len(fields))
    elif problem is None:
        names = _header(fields)
    else:
        raise ValueError(f"{name} line 1: a quoted column name does not end; correct the header")
    present = check_present(schema, f"{name} line 1: the header", names, for_training, kept)
    places = {column: place for place, column in enumerate(present)}
    return Layout(names, places, schema.delimiter, has_header=schema.columns is None)


def check_present(
    schema: Schema,
    where: str,
    names: tuple[str, ...],
    for_training: bool,
    kept: tuple[str, ...] | None = (),
) -> list[str]:
    """Returns the schema's columns that are among `names`, in the schema's order, and those to keep.

    Checks that required ones are there. where: name of the file or table, for messages. kept: columns to
    keep; None: all.
    """
    for name in kept or ():
        if name not in names:
            raise ValueError(
                f"{where} has no column {name!r} to keep; it has {_shortened(list(names))}"
                f"{did_you_mean(name, names)}"
            )
    columns = list(schema.raw_columns)
    features = {schema.column_of(feature) for feature in schema.features}
    absent = sorted((set(columns) if for_training else features) - set(names))
    if absent and for_training and schema.columns is not None:
        raise ValueError(
            f"{where.removesuffix(': the header')}: expected {len(schema.columns)} columns, found "
            f"{len(names)}: the column of the label, {absent[0]!r}, is missing"
        )
    if absent and (for_training or not features - set(absent)):
        others = [delimiter for delimiter in ",\t;|" if len(names) == 1 and delimiter in names[0]]
        write = f"Write delimiter={others[0]!r}" if others else "A file without a header needs `columns`"
        hint = f". Is the delimiter {schema.delimiter!r}? {write} in the schema"
        advice = did_you_mean(absent[0], names) or (hint if "header" in where else "; correct the schema")
        raise ValueError(
            f"{where} lacks the columns [{_shortened(absent)}] that schema {schema.name!r} asks for; "
            f"it has {_shortened(list(names))}{advice}"
        )
    if lost := sorted(features & set(absent)):
        log.warning(f"{where} lacks the columns [{_shortened(lost)}]: their values count as missing")
    columns = list(names if kept is None else dict.fromkeys([*columns, *kept]))
    counts = Counter(names)
    twice = sorted(name for name in columns if counts[name] > 1)
    if twice:
        raise ValueError(f"{where} names the columns [{_shortened(twice)}] twice; rename one")
    return [column for column in columns if column in counts]


def cut_line(line: bytes, delimiter: str) -> tuple[list[bytes], int | None]:
    """Cuts a line without its line break into fields; and the kind of error in the last."""
    separator = delimiter.encode()
    fields: list[bytes] = []
    remaining: bytes | None = line
    while remaining is not None:
        if _is_quoted(delimiter) and remaining.startswith(b'"'):
            quoted = _QUOTED.match(remaining)
            if quoted is None:
                return [*fields, b""], UNCLOSED
            field, remaining = quoted[1].replace(b'""', b'"'), remaining[quoted.end() :]
            if remaining not in (b"", b"\r") and not remaining.startswith(separator):
                return [*fields, b""], AFTER_QUOTE
            remaining = remaining[1:] if remaining.startswith(separator) else None
        else:
            field, cut, after = remaining.partition(separator)
            field = field if cut else field.removesuffix(b"\r")
            remaining = after if cut else None
        fields.append(field)
    return fields, None


def _is_quoted(delimiter: str) -> bool:
    """Whether fields may be in double quotes: with every delimiter but tab."""
    return delimiter != "\t"


def _declared(schema: Schema, num_fields: int) -> tuple[str, ...]:
    """The schema's columns, without the labels if the first line has that many fields less."""
    assert schema.columns is not None
    labels = {column_of(label) for label in schema.labels}
    without_labels = tuple(name for name in schema.columns if name not in labels)
    return without_labels if num_fields == len(without_labels) else schema.columns


def _header(fields: list[bytes]) -> tuple[str, ...]:
    first, *others = (name.decode("utf-8", "surrogateescape").strip() for name in fields)
    return (first.removeprefix("\ufeff"), *others)


def _shortened(names: list[str]) -> str:
    quoted = [repr(name) for name in names[:12]]  # several letters for one that is not printable
    shown = ", ".join(name if len(name) <= 42 else f"{name[:41]}..." for name in quoted)
    return shown + (f" and {len(names) - 12} more" if len(names) > 12 else "")
