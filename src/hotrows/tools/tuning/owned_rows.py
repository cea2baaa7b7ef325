"""Owned rows: how many lookups can own a row, by the bytes of all rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hotrows.data import EncodedData
from hotrows.schema import Schema
from hotrows.table import Table
from hotrows.tools.tuning.rows_budget import (
    Vocabularies,
    capacities,
    fixed_bytes,
    ranked,
    reads,
    with_capacities,
)
from hotrows.train.config import TrainConfig
from hotrows.train.loop.recommender import model_and_tables

SHARES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5)  # of the bytes of all rows
_KEPT = 0.99  # of lookups


@dataclass(frozen=True)
class Owned:
    """The fraction of lookups that can own a row, by the bytes of all rows.

    enough: the fewest bytes that lose less than 1 % of lookups. min_count: the least count of a value
    that has a row then; None: dynamic features share the rows, as `rows_budget` divides them.
    """

    shares: dict[int, float]
    enough: int
    min_count: int | None


def owned_rows(
    tables: Sequence[Table], schema: Schema, keys: Vocabularies, static: Vocabularies
) -> Owned | None:
    """Looks at dynamic features or, if there are none, at values that `min_count` can leave out.

    tables, keys, static: as in `hotrows.tools.tuning.rows_budget.reads`. None: no value is counted.
    """
    divided = keys or {name: replace(one, least=1) for name, one in static.items()}
    if not any(one.counts.any() for one in divided.values()):
        return None
    least = sum(one.least * one.row_bytes for one in divided.values())
    # The curve, and the first point of it that loses little
    _, counts, taken = ranked(divided)
    first = sum(int(one.counts[: one.least].sum()) for one in divided.values())
    lookups = np.cumsum([first, *counts])
    sizes = fixed_bytes(tables, schema, divided) + least + np.append(0, taken)
    all_lookups = int(lookups[-1]) + sum(one.unknown for one in divided.values())
    points = [max(int(np.searchsorted(sizes, share * sizes[-1], "right")) - 1, 0) for share in SHARES]
    shares = {int(sizes[num]): float(lookups[num] / all_lookups) for num in points}
    num, min_count = int(np.searchsorted(lookups, _KEPT * lookups[-1])), None
    if not keys:  # values of one count are left out together
        min_count = int(counts[max(num - 1, 0)]) if len(counts) else 1
        num = int((counts >= min_count).sum())
    return Owned(shares, int(sizes[num]), min_count)


def with_rows(
    data: EncodedData, config: TrainConfig, rows_budget: int | None
) -> tuple[EncodedData, dict[str, Any]]:
    """The data with capacities where key tables declare none, and what a `Simulation` says of rows."""
    tables = model_and_tables(config, data.schema)[1]
    keys, static = reads(data, tables)
    owned = owned_rows(tables, data.schema, keys, static)
    if rows_budget is None and keys and owned is not None:
        rows_budget = owned.enough
    declared = capacities(data.schema, tables, keys, rows_budget) if rows_budget is not None else {}
    growing = {name for name, dynamic in data.schema.dynamic_vocabularies.items() if not dynamic.capacity}
    rows = {name: max(len(one.counts), one.least) for name, one in keys.items() if name in growing}
    sized = data.read_by(with_capacities(data.schema, rows, keys))
    return sized, {"owned": owned, "rows_budget": rows_budget, "capacities": declared}
