"""Columns of Python objects that Arrow would change in silence, by what else the column has."""

from __future__ import annotations

from datetime import date, datetime
from typing import Any


def check_frame(frame: Any, table: Any) -> Any:
    """Checks the columns of a pandas or Polars frame; returns the table that Arrow made of it."""
    if hasattr(frame, "get_columns"):
        columns = [(column.name, column) for column in frame.get_columns()]
    else:
        columns = list(frame.items()) if hasattr(frame, "dtypes") and hasattr(frame, "items") else []
    for (name, column), array in zip(columns, table.columns, strict=False):
        try:
            check_objects(column, array)
        except ValueError as error:
            raise ValueError(f"column {name!r} {error}") from None
    return table


def check_objects(column: Any, array: Any) -> Any:
    """Refuses objects of Polars, whose addresses Arrow gets, and moments of several types or zones: Arrow
    cuts off their time, or moves them to the first zone. Returns the array."""
    kind = str(getattr(column, "dtype", "object"))
    if kind == "Object":
        raise ValueError("has Python objects, which are no values of Arrow; convert it to text")
    if kind == "object" and str(array.type).startswith(("date", "timestamp")):
        moments = (x for x in column if isinstance(x, date) and x == x)  # NaT is not equal to itself
        if len({(isinstance(x, datetime), str(getattr(x, "tzinfo", None))) for x in moments}) > 1:
            raise ValueError("mixes dates with times, or times of several zones; convert it to text")
    return array
