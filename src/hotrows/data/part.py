"""A part of the data: rows to train on, to validate with, or to test with; mapped from shards."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import accumulate, pairwise
from pathlib import Path

import numpy as np

from hotrows.data.gather import Room
from hotrows.data.order import Pool, Share, pools
from hotrows.data.shards import Rows, check_rows, gathered, open_shard
from hotrows.schema import Schema


@dataclass(frozen=True)
class Part:
    """Rows in shards.

    shards: (file, rows) in order.
    clicks, labelled: per label, how many rows have a 1, and how many have it at all.
    missing, unknown, values, empty: per feature, how many numbers or ids are missing, how many ids
        stand for values not in the vocabulary, how many there are, and how many lists are empty.
    """

    name: str
    folder: Path
    schema: Schema
    shards: tuple[tuple[str, int], ...] = ()
    clicks: tuple[int, ...] = ()
    labelled: tuple[int, ...] = ()
    missing: dict[str, int] = field(default_factory=dict)
    unknown: dict[str, int] = field(default_factory=dict)
    values: dict[str, int] = field(default_factory=dict)
    empty: dict[str, int] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        return sum(rows for _, rows in self.shards)

    @property
    def features(self) -> tuple[str, ...]:
        """The features that carry ids, in the order of a batch."""
        return tuple(feature.name for feature in self.schema.id_features)

    @property
    def num_dense(self) -> int:
        return len(self.schema.dense)

    def shard(self, index: int) -> Rows:
        """The rows of a shard, mapped; an error where the file was cut off or replaced."""
        name, expected = self.shards[index]
        status = (self.folder / name).stat() if (self.folder / name).exists() else None
        version = (status.st_ino, status.st_mtime_ns, status.st_size) if status else (0, 0, 0)
        rows = _opened(self.folder / name, version, self.schema)
        check_rows(self.folder / name, len(rows), expected)
        return rows

    def check_start(self) -> None:
        """Opens the first shard and looks at the size of all: a damaged file is noticed now, not in the
        middle of a run, and no order is drawn of rows that are not there."""
        if self.shards:
            self.shard(0)
        for name, rows in self.shards:
            path = self.folder / name
            if path.exists() and path.stat().st_size < rows:  # a row takes a byte at least
                raise ValueError(
                    f"{path} has {path.stat().st_size:,} bytes, data.json says {rows:,} rows; prepare "
                    f"the data again"
                )

    def mapped(self, first: int, end: int) -> Iterator[Rows]:
        """The rows first .. end - 1, in one piece per shard."""
        starts = self._starts()
        index = int(np.searchsorted(starts, first, side="right")) - 1
        while first < end:
            stop, start = min(end, starts[index + 1]), starts[index]
            yield self.shard(index)[first - start : stop - start]
            first, index = stop, index + 1

    def in_order(self, share: Share, at: int) -> Iterator[Rows]:
        """What a rank reads of an epoch that is not shuffled, from place `at` on."""
        for index, (start, end) in enumerate(pairwise(self._starts())):
            if end > at:
                yield shared(self.shard(index), share, start, max(at, start))

    def shuffled(self, share: Share, at: int, seed: int, epoch: int) -> Iterator[Rows]:
        """What a rank reads of a shuffled epoch, from place `at` on: a pool at a time, valid until
        the next one is asked for."""
        room = Room()
        for pool in pools(self.rows, seed, epoch, at):
            blocks = [piece for block in pool.blocks for piece in self.mapped(*block)]
            yield gathered(blocks, chosen(pool, share, at), room)

    def _starts(self) -> list[int]:
        return [0, *accumulate(rows for _, rows in self.shards)]


def shared(rows: Rows, share: Share, start: int, at: int) -> Rows:
    """What a rank reads from place `at` on of rows that stand at place `start` of an epoch."""
    places = share.among(at, start + len(rows))
    if isinstance(places, range):
        return rows[at - start :]
    return rows.take(places - start)


def chosen(pool: Pool, share: Share, at: int) -> np.ndarray:
    """Which rows of a pool a rank reads from place `at` on, in order."""
    places = share.among(max(at, pool.first), pool.first + pool.rows)
    order = pool.order()
    if isinstance(places, range):
        return order[places.start - pool.first :]
    return order[places - pool.first]


@lru_cache(maxsize=256)
def _opened(path: Path, version: tuple[int, int, int], schema: Schema) -> Rows:
    """A shard, mapped once while its file (inode, time and size) stays the same."""
    return open_shard(path, schema)
