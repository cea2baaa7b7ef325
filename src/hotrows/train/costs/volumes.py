"""Volumes: rows, bytes and lookups that a placed table brings to each rank in a training step.

    volumes = volumes_of(load, Placement(num_ranks=8), num_ranks=8, step=StepWork(65_536, 1e8, 16e6))
    volumes.gathered_rows, volumes.sent  # [P] each

A step of B samples on P ranks. Each rank reads b = B / P samples; of a table with L lookups a sample it
reads u distinct rows, all ranks together U. All figures are means over batches of independent lookups.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from hotrows.engine.planning.sharding import Placement
from hotrows.runtime.sums import Summed
from hotrows.train.costs.frequencies import Frequencies

_ROW_NUMBER = 4  # bytes of a row's number on the wire


@dataclass(frozen=True)
class TableLoad:
    """Size of a table, and how batches read it.

    record_bytes: bytes of a row with its optimizer state; weight_bytes: bytes of one of its dim weights.
    lookups: mean number of ids of a sample; pooled: whether they are summed into one vector.
    ids: how often each id is read.
    """

    name: str
    rows: int
    dim: int
    record_bytes: int
    lookups: float
    ids: Frequencies
    weight_bytes: float = 4
    pooled: bool = True

    @property
    def bytes(self) -> float:
        """Bytes of all records of the table."""
        return float(self.rows) * self.record_bytes


@dataclass(frozen=True)
class StepWork:
    """Work of a training step beside its tables.

    batch_size: samples of all ranks together (B).
    flops_per_sample: floating-point operations of dense layers, forward and backward.
    dense_parameters: float32 numbers that are all-reduced and updated.
    bytes_per_sample: bytes that a sample takes on disk.
    wire_bytes: bytes between ranks of a number of a row or of its gradient: 4, or 2 for 16 bits.
    micro_batches: slices of a batch, whose exchanges overlap the work of other slices; 1: no overlap.
    send_sums: whether owners send sums of lists in place of rows, where that is less.
    """

    batch_size: int
    flops_per_sample: float
    dense_parameters: float
    bytes_per_sample: float = 0.0
    wire_bytes: int = 4
    micro_batches: int = 1
    send_sums: bool = True

    @property
    def dense_bytes(self) -> float:
        """Bytes of dense weights, their gradients and two moments."""
        return 16.0 * self.dense_parameters


@dataclass(frozen=True)
class Volumes(Summed):
    """The work of tables on each rank in a step: [P] each, unless a number.

    gathered_rows, gathered_bytes: rows and bytes read at random places.
    copied: bytes through memory before the wire and after it.
    updated_rows, updated_bytes: rows and bytes read and written at random places.
    sent, received: bytes of rows on the wire; as many bytes of gradients go the other way.
    numbers_sent, numbers_received: bytes of row numbers on the wire.
    looked_up: lookups and row numbers to plan.
    held: bytes of records stored on the rank.
    pooled: bytes through memory of pooling and of its backward pass, on every rank.
    reduced: bytes of gradients of hot rows, summed over all ranks.
    """

    gathered_rows: np.ndarray
    gathered_bytes: np.ndarray
    copied: np.ndarray
    updated_rows: np.ndarray
    updated_bytes: np.ndarray
    sent: np.ndarray
    received: np.ndarray
    numbers_sent: np.ndarray
    numbers_received: np.ndarray
    looked_up: np.ndarray
    held: np.ndarray
    pooled: float = 0.0
    reduced: float = 0.0

    @staticmethod
    def zero(num_ranks: int) -> Volumes:
        """The volumes of no table."""
        no = np.zeros(num_ranks)
        return Volumes(no, no, no, no, no, no, no, no, no, no, no)

    def from_rank(self, first: int) -> Volumes:
        """Moves what rank 0 has to rank `first`, what rank 1 has to the next one, and so on."""
        names = [field.name for field in dataclasses.fields(Volumes)]
        arrays = [name for name in names if isinstance(getattr(self, name), np.ndarray)]
        rolled: dict[str, Any] = {name: np.roll(getattr(self, name), first) for name in arrays}
        return dataclasses.replace(self, **rolled)


def volumes_of(load: TableLoad, place: Placement, num_ranks: int, step: StepWork) -> Volumes:
    """Computes what a table with this placement brings to each rank."""
    if place.hot > load.rows or place.num_ranks > num_ranks or place.first_rank >= num_ranks:
        raise ValueError(
            f"table {load.name!r} has {load.rows:,} rows and there are {num_ranks} ranks; it cannot "
            f"be placed as {place}"
        )
    return _volumes(
        dataclasses.replace(load, name=""), dataclasses.replace(place, first_rank=0), num_ranks, step
    ).from_rank(place.first_rank)


@functools.lru_cache(maxsize=1024)
def _volumes(load: TableLoad, place: Placement, num_ranks: int, step: StepWork) -> Volumes:
    """Computes the volumes of a table whose first rank is 0, once for all tables that are alike."""
    cold = load.ids.tail(place.hot)
    of_cold = _by_columns if place.columns else _by_rows
    volumes = _replicated(load, load.ids.head(place.hot), num_ranks, step)
    volumes = volumes + of_cold(load, cold, place, num_ranks, step)
    lookups = load.lookups * step.batch_size / num_ranks
    vectors = step.batch_size / num_ranks if load.pooled else lookups
    pooled = 2 * (lookups + vectors) * load.dim * load.weight_bytes
    return dataclasses.replace(volumes, pooled=pooled, looked_up=volumes.looked_up + lookups)


def _by_rows(
    load: TableLoad, cold: Frequencies, place: Placement, num_ranks: int, step: StepWork
) -> Volumes:
    """Ids dealt over owners from rank 0 on: id j on owner o = j % num_ranks of them.

    A rank with n = L b lookups requests u[o] rows of owner o, the sum of 1 - (1 - p)^n over its ids;
    all ranks U[o], the sum of 1 - (1 - p)^(n P). The owner reads U[o] rows, writes P u[o] of them for
    the wire, receives as many gradients, and updates U[o] rows.
    Where lookups are summed, it may send sums instead: b (1 - (1 - m[o])^L) vectors for each rank,
    m[o] being the share of lookups that are its own. Whichever is less goes.
    """
    n = load.lookups * step.batch_size / num_ranks
    owners = np.arange(place.num_ranks)
    requested = cold.sums_by_owner(cold.read(n), place.num_ranks)  # [owners]
    union = cold.sums_by_owner(cold.read(n * num_ranks), place.num_ranks)  # [owners]
    # Where sums of lookups are fewer than rows, sums are sent.
    share = np.minimum(cold.sums_by_owner(cold.chances, place.num_ranks), 1 - 1e-16)
    sums = -np.expm1(load.lookups * np.log1p(-share)) * step.batch_size / num_ranks
    as_sums = load.pooled and step.send_sums and sums.sum() < requested.sum()
    answers, numbers = (sums, n * share) if as_sums else (requested, requested)
    row = load.dim * load.weight_bytes
    wire = load.dim * step.wire_bytes
    others = num_ranks - 1
    copies = num_ranks * answers * (row + wire) * 2 if others else 0.0 * answers

    def on_owners(values: np.ndarray) -> np.ndarray:
        by_rank = np.zeros(num_ranks)
        by_rank[owners] = values
        return by_rank

    def with_others(values: np.ndarray) -> np.ndarray:
        """[P]: the amount that each rank exchanges with owners other than itself."""
        return values.sum() - on_owners(values) if others else np.zeros(num_ranks)

    held = cold.sums_by_owner(np.ones(len(cold.ids)), place.num_ranks) * load.record_bytes
    return Volumes(
        gathered_rows=on_owners(union),
        gathered_bytes=on_owners(union * row),
        copied=on_owners(copies),
        updated_rows=on_owners(union),
        updated_bytes=on_owners(union * 2 * load.record_bytes),
        sent=on_owners(others * answers * wire),
        received=with_others(answers) * wire,
        numbers_sent=with_others(numbers) * _ROW_NUMBER,
        numbers_received=on_owners(others * numbers * _ROW_NUMBER),
        looked_up=on_owners(num_ranks * numbers) if others else np.zeros(num_ranks),
        held=on_owners(held),
    )


def _by_columns(
    load: TableLoad, cold: Frequencies, place: Placement, num_ranks: int, step: StepWork
) -> Volumes:
    """Columns: every rank requests u rows of every rank, which answers with its w of D columns."""
    n = load.lookups * step.batch_size / num_ranks
    width = np.diff(load.dim * np.arange(num_ranks + 1) // num_ranks)  # [P], as `columns_of` deals
    has_columns = width > 0  # [P]
    requested, union = cold.distinct(n), cold.distinct(n * num_ranks)
    vectors = step.batch_size / num_ranks if load.pooled and step.send_sums else math.inf
    answers = min(requested, vectors)
    numbers = n if answers < requested else requested
    others = num_ranks - 1
    row, wire = width * load.weight_bytes, width * step.wire_bytes
    record = load.record_bytes * width / load.dim
    return Volumes(
        gathered_rows=union * has_columns,
        gathered_bytes=union * row,
        copied=num_ranks * answers * (row + wire) * 2.0 * (others > 0),
        updated_rows=union * has_columns,
        updated_bytes=union * 2 * record,
        sent=others * answers * wire * 1.0,
        received=answers * (load.dim * step.wire_bytes - wire) * 1.0,
        numbers_sent=numbers * _ROW_NUMBER * (has_columns.sum() - has_columns),
        numbers_received=others * numbers * _ROW_NUMBER * has_columns,
        looked_up=num_ranks * numbers * has_columns * (others > 0),
        held=cold.rows * record,
    )


def _replicated(load: TableLoad, hot: Frequencies, num_ranks: int, step: StepWork) -> Volumes:
    """Rows on every rank: read locally; gradients summed over the U that any rank has read.

    Every rank sends their numbers to all others, and dedups the numbers that it receives.
    """
    n = load.lookups * step.batch_size / num_ranks
    local, union = hot.distinct(n), hot.distinct(n * num_ranks)
    others = num_ranks - 1
    numbers = _ROW_NUMBER * local * others
    ones = np.ones(num_ranks)  # [P]
    return Volumes(
        gathered_rows=local * ones,
        gathered_bytes=local * load.dim * load.weight_bytes * ones,
        copied=2 * union * load.dim * step.wire_bytes * ones if others else 0 * ones,
        updated_rows=union * ones,
        updated_bytes=union * 2 * load.record_bytes * ones,
        sent=0 * ones,
        received=0 * ones,
        numbers_sent=numbers * ones,
        numbers_received=numbers * ones,
        looked_up=num_ranks * local * ones if others else 0 * ones,
        held=hot.rows * load.record_bytes * ones,
        reduced=union * load.dim * step.wire_bytes if others else 0.0,
    )
