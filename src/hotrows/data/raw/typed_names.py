"""Columns named NAME:TYPE, as RecBole's atomic files have them: user_id:token, rating:float."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from hotrows.data.raw.kinds import Column, column_of_kind
from hotrows.data.raw.sampled_rows import RawColumn

_TYPED = re.compile(r"(.+):(token|token_seq|float|float_seq)")
_SEPARATOR = " "  # of lists


def columns_of_types(columns: Sequence[RawColumn]) -> tuple[list[Column], dict[str, str]]:
    """The columns by their names without types, of the kinds that these say, and the names in the file by
    those names. Nothing is renamed unless every column has a type."""
    matches = [_TYPED.fullmatch(column.name) for column in columns]
    names = [match[1] for match in matches if match]
    if len(set(names)) < len(columns):
        return [column_of_kind(column) for column in columns], {}
    understood = [
        _of_type(replace(column, name=match[1]), match[2])
        for column, match in zip(columns, matches, strict=True)
        if match
    ]
    return understood, dict(zip(names, (column.name for column in columns), strict=True))


def _of_type(column: RawColumn, kind: str) -> Column:
    values = column.values
    if kind == "float":
        return replace(column_of_kind(column), is_typed=True)
    if kind == "float_seq":
        return Column(column.name, "other", [], Counter())
    if kind == "token":
        return Column(column.name, "text", values, Counter(x for x in values if x is not None))
    lists = [x if x is None else str(x).split(_SEPARATOR) for x in values]
    counts = Counter(x for cell in lists if cell for x in cell)
    return Column(column.name, "list", lists, counts, separator=_SEPARATOR, is_typed=True)
