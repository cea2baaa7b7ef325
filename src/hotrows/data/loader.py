"""Loader: the batches of a part, each a pure function of seed, epoch and position.

Rows come from mapped shards; a shuffled epoch copies one pool of them at a time (see `order`). One
thread alone touches the data, never PyTorch's: a loader may run in the background without a second
team of compute threads.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from itertools import accumulate

import numpy as np
import torch

from hotrows import native
from hotrows.batch import Batch
from hotrows.data.encoded import Part
from hotrows.data.foreign import call
from hotrows.data.order import pools
from hotrows.data.shards import Rows


class Loader:
    """Batches of `batch_size` samples; the last of an epoch may be smaller.

    shuffle: every epoch in an order of its own, the same for the same seed.
    """

    def __init__(self, part: Part, batch_size: int, *, shuffle: bool, seed: int = 0) -> None:
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, not {batch_size}")
        self.part = part
        self.batch_size = batch_size
        self.shuffle = shuffle
        self.seed = seed
        self._starts = [0, *accumulate(rows for _, rows in part.shards)]
        for index in range(min(1, len(part.shards))):
            part.shard(index)  # a damaged file is noticed now, not in the middle of a run

    def __len__(self) -> int:
        """Batches per epoch."""
        return -(-self.part.rows // self.batch_size)

    def batches(self, epoch: int, first_batch: int = 0) -> Iterator[Batch]:
        """The batches of an epoch from number `first_batch` on; earlier ones are not read."""
        at = first_batch * self.batch_size
        batch = None
        for rows, order in self._pieces(epoch, at):
            done = 0
            while done < len(order):
                if batch is None:
                    batch = _Filling(self.part, min(self.batch_size, self.part.rows - at), at)
                taken = batch.take(rows, order[done : done + batch.room])
                done += taken
                at += taken
                if batch.room == 0:
                    yield batch.finished()
                    batch = None

    def _pieces(self, epoch: int, at: int) -> Iterator[tuple[Rows, np.ndarray | range]]:
        """The rows of an epoch from place `at` on: rows, and which of them in which order."""
        if at >= self.part.rows:
            return
        if not self.shuffle:
            yield from self._in_order(at)
            return
        for pool in pools(self.part.rows, self.seed, epoch, at):
            yield self._copied(pool.blocks), pool.order()[max(0, at - pool.first) :]

    def _in_order(self, at: int) -> Iterator[tuple[Rows, range]]:
        for index, (start, end) in enumerate(zip(self._starts, self._starts[1:], strict=False)):
            if end > at:
                yield self.part.shard(index), range(max(0, at - start), end - start)

    def _copied(self, blocks: tuple[tuple[int, int], ...]) -> Rows:
        """The rows of several blocks, one after the other, in memory."""
        pieces = [piece for first, end in blocks for piece in self._mapped(first, end)]
        ids = tuple(np.concatenate(of) for of in zip(*(p.ids for p in pieces), strict=True))
        dense = np.concatenate([piece.dense for piece in pieces])
        return Rows(ids, dense, np.concatenate([piece.labels for piece in pieces]))

    def _mapped(self, first: int, end: int) -> Iterator[Rows]:
        """The rows first .. end - 1 of the part, in one piece per shard."""
        index = int(np.searchsorted(self._starts, first, side="right")) - 1
        while first < end:
            stop = min(end, self._starts[index + 1])
            start = self._starts[index]
            yield self.part.shard(index)[first - start : stop - start]
            first, index = stop, index + 1


class _Filling:
    """A batch while it is filled."""

    def __init__(self, part: Part, size: int, first_sample: int) -> None:
        self._features = part.features
        self._ids = np.empty((len(part.features), size), np.int64)
        self._dense = np.empty((size, part.num_dense), np.float32)
        self._labels = np.empty(size, np.float32)
        self._filled = 0
        self._first_sample = first_sample

    @property
    def room(self) -> int:
        return len(self._labels) - self._filled

    def take(self, rows: Rows, chosen: np.ndarray | range) -> int:
        """Appends the chosen rows; returns how many."""
        to = slice(self._filled, self._filled + len(chosen))
        library = native.load()
        if isinstance(chosen, range):
            self._copy(rows, slice(chosen.start, chosen.stop), to)
        elif library is None:
            self._copy(rows, chosen, to)
        else:
            self._gather(library, rows, np.ascontiguousarray(chosen), to)
        self._filled += len(chosen)
        return len(chosen)

    def _copy(self, rows: Rows, chosen: slice | np.ndarray, to: slice) -> None:
        for into, column in zip(self._ids, rows.ids, strict=True):
            into[to] = column[chosen]
        self._dense[to] = rows.dense[chosen]
        self._labels[to] = rows.labels[chosen]

    def _gather(self, library: ctypes.CDLL, rows: Rows, order: np.ndarray, to: slice) -> None:
        """What `_copy` does, in the native core."""
        columns = np.array([column.ctypes.data for column in rows.ids], np.int64)
        widths = np.array([column.itemsize for column in rows.ids], np.int64)
        ids = self._ids.reshape(-1)[to.start :]
        stride = self._ids.shape[1]
        call(library, "gather_ids", columns, widths, len(columns), order, len(order), ids, stride)
        stored = (rows.dense, rows.dense.shape[1], rows.labels)
        dense, labels = self._dense[to], self._labels[to]
        call(library, "gather_dense", *stored, order, len(order), dense, labels)

    def finished(self) -> Batch:
        return Batch(
            features=self._features,
            ids=torch.from_numpy(self._ids.reshape(-1)),
            dense=torch.from_numpy(self._dense),
            labels=torch.from_numpy(self._labels),
            first_sample=self._first_sample,
        )
