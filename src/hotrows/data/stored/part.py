"""A part of the data: rows to train on, to validate with, or to test with; mapped from shards."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import accumulate, pairwise
from pathlib import Path

import numpy as np

from hotrows.data.columns.label import means_of_labels
from hotrows.data.columns.of_schema import SchemaColumns
from hotrows.data.rows import Room, Rows, gathered
from hotrows.data.stored.histories import StoredHistories
from hotrows.data.stored.order import (
    BLOCK_ROWS,
    Pool,
    Share,
    Shuffle,
    order_of,
    permutation,
    pools,
    pools_of,
    pools_of_window,
)
from hotrows.data.stored.request_rows import RequestRows, bounds_between, gathered_pieces
from hotrows.data.stored.sections import check_once
from hotrows.data.stored.shard_copies import ShardCopies
from hotrows.data.stored.shards import Shard, Written, check_rows, open_shard
from hotrows.runtime.remote import named
from hotrows.runtime.units import format_bytes
from hotrows.schema import Schema

NAMES = ("train", "validation", "test")


@dataclass(frozen=True, repr=False, kw_only=True)
class Part(Written):
    """A part of prepared data: rows in the shards of a folder. events: the file of histories, if any;
    copies: of data at a URL, what fetches the shards into the folder.

    The headers of shards are compared with their checksums when a part is opened.

    Whoever reads an epoch also compares all other bytes with their checksums, once in a process: of a
    shard before its rows where shards are read in order, and shard by shard, pool after pool, where they
    are shuffled; the first epoch has then compared all of them.

    >>> data.parts["train"].rows, data.parts["train"].labelled
    (80, (80,))
    """

    name: str
    folder: Path
    schema: Schema
    events: Shard | None = None
    copies: ShardCopies | None = field(default=None, compare=False, repr=False)

    def __repr__(self) -> str:
        return f"Part({self.name} of {self.folder}, {self.rows:,} samples)"

    @property
    def constant_labels(self) -> dict[str, int | None]:
        """The labels of 0 and 1 with one value in all rows that count, {label: value}; None for any label
        that no row has with a weight above 0."""
        counts = zip(self.clicks, self.labelled, strict=True) if self.rows else ()
        means: Sequence[float | None] = [ones / rows if rows else None for ones, rows in counts]
        if means and self.schema.weight is not None:
            means = self.label_means()
        return {
            label.name: None if mean is None else int(mean)
            for label, mean in zip(self.schema.labels, means, strict=False)
            if mean is None or (label.values.binary and mean in (0, 1))
        }

    def shard(self, index: int) -> Rows:
        """The rows of a shard, mapped, or copied if features are shared or in the events."""
        return self.expanded(self.stored(index))

    def stored(self, index: int) -> Rows | RequestRows:
        """Maps the rows of a shard; an error if the file was cut off or replaced."""
        shard = self.shards[index]
        path = self.folder / shard.file
        if self.copies is not None:
            rows = self.copies.rows(shard, self.stored_columns)
        else:
            rows = _opened(path, _version(path), self.stored_columns, shard.header)
        check_rows(path, len(rows), shard.rows)
        return rows

    def paths(self) -> Iterator[Path]:
        """The path of each shard, fetched where it is not there."""
        for shard in self.shards:
            yield self.folder / shard.file if self.copies is None else self.copies.bring(shard)

    @property
    def num_bytes(self) -> int:
        """The bytes of all shards."""
        if self.copies is not None:
            return sum(self.copies.sizes[shard.file] for shard in self.shards)
        return sum(path.stat().st_size for path in self.paths())

    @cached_property
    def columns(self) -> SchemaColumns:
        """The columns of rows that have all of their features."""
        return _columns(self.schema)

    @cached_property
    def stored_columns(self) -> SchemaColumns:
        """The columns of the rows in shards: with references in place of histories."""
        return _columns(self.schema, self.events)

    @property
    def histories(self) -> StoredHistories | None:
        """Maps the events of histories; None if the schema has none."""
        if self.events is None:
            return None
        path = self.folder / self.events.file
        return _opened_events(path, _version(path), self.schema, self.events.rows, self.events.header)

    def expanded(self, rows: Rows | RequestRows) -> Rows:
        """Rows as they are stored, each with all of its features: copied if these are elsewhere."""
        if (histories := self.histories) is not None:
            return histories.rows_of(rows)
        return rows.expanded() if isinstance(rows, RequestRows) else rows

    def check_start(self) -> None:
        """Opens the first shard and checks the sizes of all, to notice a damaged file before a run and
        draw no order of missing rows; of copies each is checked as it comes."""
        if self.shards and self.copies is None:
            self.expanded(self.stored(0)[:0])
        for shard in self.shards:
            path = self.folder / shard.file
            if path.exists() and path.stat().st_size < shard.rows:  # a row takes a byte at least
                raise ValueError(
                    f"{path} has {path.stat().st_size:,} bytes, data.json says {shard.rows:,} rows; "
                    f"prepare the data again"
                )

    def check_window(self, window: int) -> None:
        """Raises ValueError where a shuffled epoch reads more shards at a time than there is room for.
        window: how many it reads; 0: all."""
        if window and self.rows and not self.shards:
            raise ValueError(f"order=shards:{window} is for prepared data; Parquet files have no shards")
        most = None if self.copies is None else self.copies.most_shuffled(self.shards)
        if most is not None and not 0 < window <= most:
            raise ValueError(
                f"the {self.name} part of {named(self.folder)} has {format_bytes(self.num_bytes)}, more "
                f"than its data cache has room for: shuffle some shards at a time (--order "
                f"shards:{most}), or give it more (--data-cache)"
            )

    def mapped(self, first: int, end: int) -> Iterator[Rows]:
        """The rows first .. end - 1, in one piece per shard; copies where they share features."""
        return map(self.expanded, self._pieces(first, end, announced=True))

    def _ahead(self, shards: Iterable[int]) -> None:
        if self.copies is not None:
            self.copies.ahead(self.name, (self.shards[index] for index in shards))

    def _pieces(self, first: int, end: int, announced: bool = False) -> Iterator[Rows | RequestRows]:
        """The rows first .. end - 1 as they are stored, a piece per shard. announced: fetched ahead."""
        starts = self._starts()
        index = int(np.searchsorted(starts, first, side="right")) - 1
        behind = int(np.searchsorted(starts, end, side="left"))
        while first < end:
            stop, start = min(end, starts[index + 1]), starts[index]
            if announced:
                self._ahead(range(index, behind))
            yield self.stored(index)[first - start : stop - start]
            first, index = stop, index + 1

    def in_order(self, share: Share, first_place: int) -> Iterator[Rows | RequestRows]:
        """Yields the rows of a rank in an unshuffled epoch, from place `first_place` on."""
        for index, (start, end) in enumerate(pairwise(self._starts())):
            if end > first_place:
                self._ahead(range(index, len(self.shards)))
                yield shared(self._check(index), share, start, max(first_place, start))
        self._ahead(())

    def shuffled(
        self, share: Share, first_place: int, shuffle: Shuffle, epoch: int
    ) -> Iterator[Rows | RequestRows]:
        """Yields the rows of a rank in a shuffled epoch, from place `first_place` on, one pool at a
        time; a pool is valid until the next one is requested. Requests move whole."""
        rooms = Room(), Room()
        order = self._windows if shuffle.window else self._whole
        for pool in order(shuffle, epoch, first_place):
            blocks = [piece for block in pool.blocks for piece in self._pieces(*block)]
            rows = order_of(pool, blocks, self.columns, shuffle, self.expanded)
            yield gathered_pieces(blocks, chosen(rows, pool, share, first_place), rooms)

    def _whole(self, shuffle: Shuffle, epoch: int, first_place: int) -> Iterator[Pool]:
        """The pools of an epoch that is shuffled as a whole. Each share of the shards is checked before a
        pool; copies are fetched in the order in which they are read first."""
        all_pools = list(self._pools(shuffle.seed, epoch, first_place))
        if self.copies is not None:
            ends = [row for pool in all_pools for first, end in pool.blocks for row in (first, end - 1)]
            indexes = np.searchsorted(self._starts(), ends, side="right") - 1
            self._ahead(dict.fromkeys(indexes.tolist()))
        for pool in all_pools:
            if self.copies is None:
                self._check_share(pool.number, all_pools[-1].number + 1)
            yield pool

    def _windows(self, shuffle: Shuffle, epoch: int, first_place: int) -> Iterator[Pool]:
        """The pools of an epoch that shuffles some shards at a time, which are checked first."""
        order, first = permutation(len(self.shards), shuffle.seed, epoch).tolist(), 0
        for start in range(0, len(order), shuffle.window):
            window = order[start : start + shuffle.window]
            rows = sum(self.shards[index].rows for index in window)
            if first + rows > first_place:
                self._ahead(order[start:])
                bounds = [self._blocks(index, self._check(index)) for index in window]
                yield from pools_of_window(bounds, (shuffle.seed, epoch, start), first, first_place)
            first += rows

    def _blocks(self, index: int, rows: Rows | RequestRows) -> list[int]:
        """The first row of each block of a shard, and the end; blocks cut no request."""
        start = self._starts()[index]
        if isinstance(rows, RequestRows):
            return [start + bound for bound in bounds_between(iter([rows.starts]), BLOCK_ROWS)]
        return [*range(start, start + len(rows), BLOCK_ROWS), start + len(rows)]

    def _pools(self, seed: int, epoch: int, first_place: int) -> Iterator[Pool]:
        """The pools of an epoch; blocks cut no request."""
        if self.schema.request is None:
            return pools(self.rows, seed, epoch, first_place)
        self._ahead(range(len(self.shards)))
        shards = (self.stored(index) for index in range(len(self.shards)))
        starts = (rows.starts for rows in shards if isinstance(rows, RequestRows))
        return pools_of(bounds_between(starts, BLOCK_ROWS), seed, epoch, first_place)

    def sample(self, blocks: int, block_rows: int) -> Rows:
        """Copies a sample of rows: all of a small part, else blocks spread evenly over it."""
        if self.rows <= blocks * block_rows:
            pieces = list(self.mapped(0, self.rows))
        else:
            starts = np.linspace(0, self.rows - block_rows, blocks).astype(np.int64).tolist()
            pieces = [piece for first in starts for piece in self.mapped(first, first + block_rows)]
        return gathered(pieces, np.arange(sum(map(len, pieces))), Room())

    def label_means(self) -> tuple[float | None, ...]:
        """The mean of each label, of the rows that have it, each times its weight; None: no row has."""
        binary = all(label.values.binary for label in self.schema.labels)
        if self.schema.weight is None and self.labelled and binary:
            counts = zip(self.clicks, self.labelled, strict=True)
            return tuple(ones / rows if rows else None for ones, rows in counts)
        return means_of_labels(self._labels(), len(self.schema.labels))

    def _labels(self) -> Iterator[tuple[np.ndarray, np.ndarray | None]]:
        for piece in self._pieces(0, self.rows, announced=True):
            rows = piece.samples if isinstance(piece, RequestRows) else piece
            yield rows.arrays["labels"], rows.get("weights")

    def _check_share(self, number: int, count: int) -> None:
        """Checks the shards of one of `count` even shares of the part."""
        first, end = (place * len(self.shards) for place in (number, number + 1))
        for index in range(first // count, -(-end // count)):
            self._check(index)

    def _check(self, index: int) -> Rows | RequestRows:
        """Maps the rows of a shard and compares all of it with its checksums, once in a process."""
        rows = self.stored(index)
        if self.copies is None:
            check_once(self.folder / self.shards[index].file)
        if self.events is not None:
            check_once(self.folder / self.events.file)
        return rows

    def _starts(self) -> list[int]:
        return [0, *accumulate(shard.rows for shard in self.shards)]


def shared(rows: Rows | RequestRows, share: Share, start: int, first_place: int) -> Rows | RequestRows:
    """Selects the rows of a rank from place `first_place` on; `rows` begin at place `start` of the
    epoch."""
    places = share.among(first_place, start + len(rows))
    return rows[first_place - start :] if isinstance(places, range) else rows.take(places - start)


def chosen(order: np.ndarray, pool: Pool, share: Share, first_place: int) -> np.ndarray:
    """Returns the numbers of the pool's rows that a rank reads from place `first_place` on, of all of
    them in their order."""
    places = share.among(max(first_place, pool.first), pool.first + pool.rows)
    first = pool.first
    return order[places.start - first :] if isinstance(places, range) else order[places - first]


@lru_cache(maxsize=64)
def _columns(schema: Schema, events: Shard | None = None) -> SchemaColumns:
    """The columns of rows: one object for equal schemas, by which a shard is mapped once."""
    return SchemaColumns(schema, histories="lists" if events is None else "references", events=events)


@lru_cache(maxsize=256)
def _opened(
    path: Path, version: tuple[int, int, int], columns: SchemaColumns, header_crc32: int | None
) -> Rows | RequestRows:
    """Maps a shard once per version (inode, time and size) of its file."""
    return open_shard(path, columns, header_crc32)


@lru_cache(maxsize=64)
def _opened_events(
    path: Path, version: tuple[int, int, int], schema: Schema, rows: int, header_crc32: int | None
) -> StoredHistories:
    return StoredHistories.open(path, schema, rows, header_crc32)


def _version(path: Path) -> tuple[int, int, int]:
    status = path.stat() if path.exists() else None
    return (status.st_ino, status.st_mtime_ns, status.st_size) if status else (0, 0, 0)
