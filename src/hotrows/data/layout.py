"""Which column of a raw line is what: by the schema's `columns`, or by the file's header line."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from hotrows.schema import Schema, column_of

WRONG_COLUMNS, UNCLOSED, AFTER_QUOTE = 1, 2, 3  # what can be wrong with a line
_QUOTED = re.compile(rb'"((?:[^"]|"")*)"(?!")')

log = logging.getLogger("hotrows")


@dataclass(frozen=True)
class Layout:
    """The columns of one raw file, and those in use.

    names: every column, in order; places: for each column that is read, its place among those.
    quoted: whether a field may stand in double quotes; so everywhere but between tabs.
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
        """Where in a line the columns stand that are read, in the order of their places."""
        return tuple(self.names.index(column) for column in self.places)

    @property
    def wanted(self) -> np.ndarray:
        """[columns] int32, the place of each column among those read, or -1."""
        places = np.full(len(self.names), -1, np.int32)
        places[list(self.used)] = np.arange(len(self.used))
        return places


def layout_of(schema: Schema, name: str, first_line: bytes, for_training: bool = True) -> Layout:
    """The layout of the raw file `name`, which begins with `first_line`.

    for_training: every column that the schema reads must be there; else only some feature's.
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
    present = check_present(schema, f"{name} line 1: the header", names, for_training)
    places = {column: place for place, column in enumerate(present)}
    return Layout(names, places, schema.delimiter, has_header=schema.columns is None)


def check_present(
    schema: Schema, where: str, names: tuple[str, ...], for_training: bool
) -> list[str]:
    """The columns that the schema reads and `where` has, in the schema's order."""
    asked = list(schema.raw_columns)
    absent = sorted(set(asked) - set(names))
    features = {schema.column_of(feature) for feature in schema.features}
    if absent and for_training and schema.columns is not None:
        raise ValueError(
            f"{where.removesuffix(': the header')}: expected {len(schema.columns)} columns, found "
            f"{len(names)}: the column of the label, {absent[0]!r}, is missing"
        )
    if absent and (for_training or not features - set(absent)):
        hint = (
            f". Is the delimiter {schema.delimiter!r}? A file without a header needs `columns` in "
            f"the schema"
        )
        raise ValueError(
            f"{where} lacks the columns {absent} that schema {schema.name!r} asks for; it has "
            f"{_shortened(list(names))}{hint if 'header' in where else '; correct the schema'}"
        )
    if lost := sorted(features & set(absent)):
        log.warning(f"{where} lacks the columns {lost}: their values count as missing")
    twice = sorted({name for name in asked if names.count(name) > 1})
    if twice:
        raise ValueError(f"{where} names the columns {twice} twice; rename one")
    return [column for column in asked if column in names]


def cut_line(line: bytes, delimiter: str) -> tuple[list[bytes], int | None]:
    """The fields of a line without its line break; and what is wrong with the last one, if so."""
    separator = delimiter.encode()
    fields: list[bytes] = []
    rest: bytes | None = line
    while rest is not None:
        if _is_quoted(delimiter) and rest.startswith(b'"'):
            quoted = _QUOTED.match(rest)
            if quoted is None:
                return [*fields, b""], UNCLOSED
            field, rest = quoted[1].replace(b'""', b'"'), rest[quoted.end() :]
            if rest not in (b"", b"\r") and not rest.startswith(separator):
                return [*fields, b""], AFTER_QUOTE
            rest = rest[1:] if rest.startswith(separator) else None
        else:
            field, found, after = rest.partition(separator)
            field = field if found else field.removesuffix(b"\r")
            rest = after if found else None
        fields.append(field)
    return fields, None


def _is_quoted(delimiter: str) -> bool:
    """Whether fields may stand in double quotes: everywhere but between tabs."""
    return delimiter != "\t"


def _declared(schema: Schema, num_fields: int) -> tuple[str, ...]:
    """The schema's columns; without the labels where the first line has that many fields less."""
    assert schema.columns is not None
    labels = {column_of(label) for label in schema.labels}
    without_labels = tuple(name for name in schema.columns if name not in labels)
    return without_labels if num_fields == len(without_labels) else schema.columns


def _header(fields: list[bytes]) -> tuple[str, ...]:
    first, *others = (name.decode("utf-8", "surrogateescape").strip() for name in fields)
    return (first.removeprefix("\ufeff"), *others)


def _shortened(names: list[str]) -> str:
    shown = ", ".join(repr(name[:40]) for name in names[:12])
    return shown + (f" and {len(names) - 12} more" if len(names) > 12 else "")
