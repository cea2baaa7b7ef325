"""Loader: the batches of a part, each a pure function of seed, epoch and position.

Rows come from mapped shards or from Parquet; a shuffled epoch holds one pool of them at a time (see
`order`). One thread alone touches the data, never PyTorch's: a loader may run in the background
without a second team of compute threads.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from hotrows.batch import Batch
from hotrows.data.columns import MISSING_LABEL
from hotrows.data.gather import ends_of, lengths_of
from hotrows.data.order import Share
from hotrows.data.part import Part
from hotrows.data.shards import Rows
from hotrows.data.stream import Stream
from hotrows.schema import Schema, is_list


class Loader:
    """Batches of `batch_size` samples; the last of an epoch may be smaller.

    shuffle: every epoch in an order of its own, the same for the same seed.
    rank, num_ranks: of several processes, each reads its share of every batch; together they read
        what one would, in the same order. A rank's share of a small last batch may be empty.
    """

    def __init__(
        self,
        part: Part,
        batch_size: int,
        *,
        shuffle: bool,
        seed: int = 0,
        rank: int = 0,
        num_ranks: int = 1,
    ) -> None:
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, not {batch_size}")
        if not 0 <= rank < num_ranks:
            raise ValueError(
                f"rank must be from 0 to num_ranks - 1, not {rank} with num_ranks={num_ranks}"
            )
        self.part = part
        self.batch_size = batch_size
        self.shuffle = shuffle
        self.seed = seed
        self.rank = rank
        self.num_ranks = num_ranks
        part.check_start()

    def __len__(self) -> int:
        """Batches per epoch, the same on every rank."""
        return -(-self.part.rows // self.batch_size)

    def batches(self, epoch: int, first_batch: int = 0) -> Iterator[Batch]:
        """The batches of an epoch from number `first_batch` on; earlier ones are not read."""
        if first_batch >= len(self):
            return
        share = Share(self.part.rows, self.batch_size, self.rank, self.num_ranks)
        pieces = self._pieces(share, epoch, first_batch * self.batch_size)
        left = None
        for number in range(first_batch, len(self)):
            first, end = share.of_batch(number)
            batch = _Filling(self.part.schema, end - first, first)
            while batch.room:
                left = left or next(pieces)
                left = batch.take(left)
            yield batch.finished()

    def stream(
        self,
        epochs: int | None = None,
        position: dict[str, Any] | None = None,
        prefetch: int = 2,
        pin_memory: bool = False,
    ) -> Stream:
        """The batches of one epoch after the other, loaded ahead.

        epochs: stops before the epoch of this number; None: never. position: what `state_dict()` of
        a stream gave. prefetch: how many batches wait, loaded; 0: loads when asked, without a thread.
        """
        return Stream(self, epochs, position, prefetch, pin_memory)

    def _pieces(self, share: Share, epoch: int, at: int) -> Iterator[Rows]:
        if self.shuffle:
            return self.part.shuffled(share, at, self.seed, epoch)
        return self.part.in_order(share, at)


class _Filling:
    """A batch while it is filled.

    What is taken is copied before more is asked for: the memory of a pool is that of the next one.
    """

    def __init__(self, schema: Schema, size: int, first_sample: int) -> None:
        self._schema = schema
        self._first_sample = first_sample
        self._size, self._filled = size, 0
        num_labels, num_features = len(schema.labels), len(schema.id_features)
        self._dense = np.empty((size, len(schema.dense)), np.float32)
        self._labels = np.empty((size, num_labels) if num_labels > 1 else size, np.float32)
        self._weights = None if schema.weight is None else np.empty(size, np.float32)
        self._groups = None if schema.group is None else np.empty(size, np.int64)
        lists = any(map(is_list, schema.id_features))
        self._ids = None if lists else np.empty((num_features, size), np.int64)
        self._lengths = np.ones((num_features, size), np.int64) if lists else None
        self._values: list[list[np.ndarray]] = [[] for _ in range(num_features)]

    @property
    def room(self) -> int:
        return self._size - self._filled

    def take(self, rows: Rows) -> Rows | None:
        """Appends rows while there is room; returns those that are left."""
        size = min(len(rows), self.room)
        to, rows, left = slice(self._filled, self._filled + size), rows[:size], rows[size:]
        self._filled += size
        if self._ids is None:
            self._take_lists(rows, to)
        else:
            for into, column in zip(self._ids, rows.ids, strict=True):
                into[to] = column
        self._dense[to] = rows.dense
        self._labels[to] = rows.labels
        if len(self._schema.labels) > 1:
            self._labels[to][rows.labels == MISSING_LABEL] = np.nan
        for values, given in ((self._weights, rows.weights), (self._groups, rows.groups)):
            if values is not None:
                assert given is not None
                values[to] = given
        return left if len(left) else None

    def _take_lists(self, rows: Rows, to: slice) -> None:
        assert self._lengths is not None
        for f, of in enumerate(rows.offsets):
            if of is not None:
                self._lengths[f, to] = lengths_of(of, len(rows.ids[f]))
            self._values[f].append(rows.values(f) if self.room == 0 else rows.values(f).copy())

    def finished(self) -> Batch:
        ids, offsets = self._all_ids()
        return Batch(
            features=tuple(feature.name for feature in self._schema.id_features),
            ids=torch.from_numpy(ids),
            dense=torch.from_numpy(self._dense),
            labels=torch.from_numpy(self._labels),
            offsets=_tensor(offsets),
            first_sample=self._first_sample,
            sample_weights=_tensor(self._weights),
            groups=_tensor(self._groups),
        )

    def _all_ids(self) -> tuple[np.ndarray, np.ndarray | None]:
        """[N] and, where there are lists, [F * B + 1]."""
        if self._lengths is None:
            assert self._ids is not None
            return self._ids.reshape(-1), None
        offsets = ends_of(self._lengths.reshape(-1))
        ids = np.empty(offsets[-1], np.int64)
        if self._size:
            values = [piece for of in self._values for piece in of]
            np.concatenate(values, out=ids, casting="unsafe")
        return ids, offsets


def _tensor(array: np.ndarray | None) -> torch.Tensor | None:
    return None if array is None else torch.from_numpy(array)
