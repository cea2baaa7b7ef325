"""Owned rows: how many lookups can own a row, by the bytes of all rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from hotrows.dynamic import Dynamic
from hotrows.schema import Schema
from hotrows.table import Table
from hotrows.train.rows_budget import Reads, coverage, divide, fixed_bytes, ranked

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


def owned_rows(tables: Sequence[Table], schema: Schema, read: Mapping[str, Reads]) -> Owned | None:
    """Looks at dynamic features or, if there are none, at values that `min_count` can leave out.

    tables, read: as in `hotrows.train.rows_budget.reads`. None: no value is counted.
    """
    # 1. What can have fewer rows
    keys = {name: one for name, one in read.items() if one.dynamic is not None}
    divided = keys or {name: replace(one, dynamic=Dynamic()) for name, one in read.items()}
    if not any(len(one.counts) for one in divided.values()):
        return None
    fixed = fixed_bytes(tables, schema, divided)
    least = sum(one.least * one.row_bytes for one in divided.values())
    most = sum(len(one.counts) * one.row_bytes for one in divided.values())
    # 2. The curve, and the first point of it that loses little
    sizes = [max(int(share * (fixed + most)), fixed + least) for share in SHARES]
    shares = {size: coverage(divided, divide(divided, size - fixed)) for size in sizes}
    _, counts, taken = ranked(divided)
    first = sum(int(one.counts[: one.least].sum()) for one in divided.values())
    lookups, bytes_up_to = np.append(first, first + counts.cumsum()), np.append(0, taken)
    num = int(np.searchsorted(lookups, _KEPT * lookups[-1]))
    if keys:
        return Owned(shares, fixed + least + int(bytes_up_to[num]), None)
    min_count = int(counts[max(num - 1, 0)]) if len(counts) else 1
    num = int((counts >= min_count).sum())  # values of one count are left out together
    return Owned(shares, fixed + least + int(bytes_up_to[num]), min_count)
