"""Which column of a raw line is what: by the schema's `columns`, or by the file's header line."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hotrows.schema import Schema, column_of

WRONG_COLUMNS, UNCLOSED, AFTER_QUOTE = 1, 2, 3  # what can be wrong with a line
_QUOTED = re.compile(rb'"((?:[^"]|"")*)"(?!")')


@dataclass(frozen=True)
class Layout:
    """The columns of one raw file, and those in use.

    names: every column, in order; used: the places in `names` of the columns that are read.
    label, dense, sparse: places in `used`; label is None where the file has none.
    quoted: whether a field may stand in double quotes; so everywhere but between tabs.
    """

    path: Path
    names: tuple[str, ...]
    used: tuple[int, ...]
    label: int | None
    dense: tuple[int, ...]
    sparse: tuple[int, ...]
    delimiter: str
    has_header: bool

    @property
    def quoted(self) -> bool:
        return _is_quoted(self.delimiter)

    @property
    def wanted(self) -> np.ndarray:
        """[columns] int32, the place of each column in `used`, or -1."""
        places = np.full(len(self.names), -1, np.int32)
        places[list(self.used)] = np.arange(len(self.used))
        return places

    def name_of(self, place: int) -> str:
        """The name of the column that stands at a place in `used`."""
        return self.names[self.used[place]]


def layout_of(schema: Schema, path: Path, first_line: bytes, needs_label: bool) -> Layout:
    """The layout of a raw file that begins with `first_line`."""
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
        raise ValueError(f"{path} line 1: a quoted column name does not end; correct the header")
    asked = [*(column_of(f) for f in schema.dense), *(column_of(f) for f in schema.sparse)]
    has_label = schema.label in names
    if has_label or needs_label:
        asked = [schema.label, *asked]
    _check_present(schema, path, names, asked)
    columns = list(dict.fromkeys(asked))
    places = {column: place for place, column in enumerate(columns)}
    return Layout(
        path=path,
        names=names,
        used=tuple(names.index(column) for column in columns),
        label=places[schema.label] if has_label else None,
        dense=tuple(places[column_of(f)] for f in schema.dense),
        sparse=tuple(places[column_of(f)] for f in schema.sparse),
        delimiter=schema.delimiter,
        has_header=schema.columns is None,
    )


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
            field, rest = quoted[1].replace(b'""', b'"'), rest[quoted.end() :].removesuffix(b"\r")
            if rest and not rest.startswith(separator):
                return [*fields, b""], AFTER_QUOTE
            rest = rest[1:] if rest else None
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
    """The schema's columns; without the label where the first line has one field less."""
    assert schema.columns is not None
    without_label = tuple(name for name in schema.columns if name != schema.label)
    return without_label if num_fields == len(without_label) else schema.columns


def _header(fields: list[bytes]) -> tuple[str, ...]:
    first, *others = (name.decode("utf-8", "surrogateescape").strip() for name in fields)
    return (first.removeprefix("\ufeff"), *others)


def _check_present(schema: Schema, path: Path, names: tuple[str, ...], asked: list[str]) -> None:
    absent = sorted(set(asked) - set(names))
    if absent and schema.columns is not None:
        raise ValueError(
            f"{path} line 1: expected {len(schema.columns)} columns, found {len(names)}: "
            f"the column of the label, {schema.label!r}, is missing"
        )
    if absent:
        raise ValueError(
            f"{path} line 1: the header lacks the columns {absent} that schema {schema.name!r} "
            f"asks for; it has {_shortened(list(names))}. Is the delimiter {schema.delimiter!r}? "
            f"A file without a header needs `columns` in the schema"
        )
    twice = sorted({name for name in asked if names.count(name) > 1})
    if twice:
        raise ValueError(f"{path} line 1: the header names the columns {twice} twice; rename one")


def _shortened(names: list[str]) -> str:
    shown = ", ".join(repr(name[:40]) for name in names[:12])
    return shown + (f" and {len(names) - 12} more" if len(names) > 12 else "")
