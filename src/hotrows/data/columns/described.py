"""What raw rows have in each column, for people and programs that send them: kind, and an example."""

from __future__ import annotations

import datetime
from collections.abc import Collection, Mapping
from typing import Any

from hotrows.data.columns.number import Statistics
from hotrows.schema import (
    TIME_TRANSFORMS,
    Dense,
    Feature,
    Schema,
    Sequence,
    Sparse,
    Time,
    is_list,
    vocabulary_of,
)

_EXAMPLE_TIME = datetime.datetime(2026, 3, 2, 10, 30)
_UNITS = {"unix": 1, "unix_ms": 10**3, "unix_us": 10**6, "unix_ns": 10**9}


def described(
    schema: Schema,
    statistics: Mapping[str, Statistics],
    values: Mapping[str, Any],
    read: Collection[str],
    stored: Collection[str] = (),
) -> dict[str, dict[str, Any]]:
    """By name of a raw column, in the order of the features: its `kind` (number, numbers, id, ids, time,
    user), the `features` that read it, the length of its lists, and an `example` of training.

    values: by vocabulary; read: the columns that rows have; stored: histories, which rows may leave out.
    """
    columns = dict[str, dict[str, Any]]()
    for feature in schema.features:
        name = schema.column_of(feature)
        if name in stored:
            continue
        start = {
            "kind": _kind(feature),
            "features": [],
            "example": _example(schema, feature, statistics, values),
        }
        column = columns.setdefault(name, start)
        column["features"].append(feature.name)
        most = getattr(feature, "max_length", None) or getattr(feature, "width", None)
        if most is not None:
            column["width" if isinstance(feature, Dense) else "max_length"] = most
        if isinstance(feature, Sparse) and feature.weights is not None:
            weights = {"kind": "numbers", "features": [feature.name], "example": [1.0]}
            columns.setdefault(feature.weights, weights)
    for name in (name for name in read if name not in stored):  # what histories are found by
        is_time = schema.time is not None and name == schema.time.column
        example = _time(schema.time) if is_time else None
        others: dict[str, Any] = {
            "kind": "time" if is_time else "user",
            "features": [],
            "example": example,
        }
        columns.setdefault(name, others)
    return columns


def _kind(feature: Feature) -> str:
    if isinstance(feature, Dense):
        return "number" if feature.width is None else "numbers"
    if isinstance(feature, Sparse) and feature.transform in TIME_TRANSFORMS:
        return "time"
    is_number = isinstance(feature, Sparse) and feature.transform != "none"
    return ("number" if is_number else "id") + "s" * is_list(feature)


def _example(
    schema: Schema, feature: Feature, statistics: Mapping[str, Statistics], values: Mapping[str, Any]
) -> Any:
    """A value that training has seen: the mean, the most frequent one, or None where it is not known."""
    kind = _kind(feature)
    if isinstance(feature, Dense):
        mean = statistics[feature.name].mean if feature.name in statistics else 1.0
        return float(f"{mean:.4g}") if feature.width is None else [0.0] * feature.width
    if kind == "time":
        return _time(schema.time)
    if kind in ("number", "numbers"):
        return 1.0 if kind == "number" else [1.0]
    known = values.get(vocabulary_of(feature), ())
    if not len(known) or type(feature) not in (Sparse, Sequence):
        return None  # its values are not kept, or are not what rows have
    value = known.value(0).decode("utf-8", "replace")
    return value if kind == "id" else [value]


def _time(time: Time | None) -> Any:
    assert time is not None
    if time.format in _UNITS:
        return int(_EXAMPLE_TIME.replace(tzinfo=datetime.timezone.utc).timestamp()) * _UNITS[time.format]
    return _EXAMPLE_TIME.isoformat() if time.format == "iso" else _EXAMPLE_TIME.strftime(time.format)
