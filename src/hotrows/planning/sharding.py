"""Sharding: which rank holds which rows of a table."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Placement:
    """Where the rows of a table are. The first `hot` ids (ids stand by falling frequency) are held
    by every rank and their gradients all-reduced (hot == rows: the table is replicated). The other
    ids are dealt over `num_ranks` consecutive ranks from `first_rank`: id j = id - hot is on rank
    (first_rank + j % num_ranks) % P at local place j // num_ranks. num_ranks = 1: table-wise; = P:
    row-wise ("rows"). columns: every rank holds D / P columns of all rows.
    """

    hot: int = 0
    num_ranks: int = 1
    first_rank: int = 0
    columns: bool = False
