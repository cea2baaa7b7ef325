"""Loader: the batches of a part, each a pure function of seed, epoch and position.

Rows come from mapped shards or from Parquet; a shuffled epoch holds one pool of them at a time (see
`order`). A single thread reads the data, without PyTorch's compute threads, so that a loader may run
in the background without a second team of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np
import torch

from hotrows.batch import Batch, RequestFeatures
from hotrows.data.encode.encoder import batch_of
from hotrows.data.load.stream import Stream
from hotrows.data.raw.cells import missing_labels
from hotrows.data.stored.order import Share, Shuffle, parse_order
from hotrows.data.stored.part import Part
from hotrows.data.stored.request_rows import RequestRows, gathered_requests, id_features
from hotrows.data.stored.rows import Room, Rows, ends_of, lengths_of
from hotrows.schema import Schema, is_list


class Loader:
    """Batches of `batch_size` samples; the last of an epoch may be smaller.

    shuffle: whether to permute every epoch, by `seed` and the number of the epoch (default: no).
    keep_groups: whether rows of a group of the schema follow one another in a shuffled epoch, those of
        a pool at a time (default: no).
    order: `shuffle`, or `reuse:N` to shuffle within N clusters of samples that read equal rows, one after
        the other: of 262,144 samples a batch then mixes 1 / N, and caches fetch fewer rows; `reuse`: 8.
    rank, num_ranks: of several processes, each reads its share of every batch; together they read
        the batches of one process, in its order. A rank's share of a small last batch may be empty.
    """

    def __init__(
        self,
        part: Part,
        batch_size: int,
        *,
        shuffle: bool = False,
        seed: int = 0,
        rank: int = 0,
        num_ranks: int = 1,
        keep_groups: bool = False,
        order: str = "shuffle",
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
        self.keep_groups = keep_groups
        self.order = order
        self._shuffle = Shuffle(seed, num_clusters=parse_order(order))
        if self.num_clusters > 1 and not shuffle:
            raise ValueError(f"order={order!r} shuffles: give shuffle=True, or leave the order out")
        if hasattr(part, "parts"):
            raise ValueError("a Loader reads one part of prepared data, such as data.parts['train']")
        part.check_start()

    def __len__(self) -> int:
        """Batches per epoch, equal on every rank."""
        return -(-self.part.rows // self.batch_size)

    def __repr__(self) -> str:
        order = f"shuffled by seed {self.seed}" if self.shuffle else "in order"
        order += f" in {self.num_clusters} clusters" if self.num_clusters > 1 else ""
        ranks = f", rank {self.rank} of {self.num_ranks}" if self.num_ranks > 1 else ""
        return f"Loader({self.part!r}: {len(self):,} batches of {self.batch_size:,}, {order}{ranks})"

    @property
    def num_clusters(self) -> int:
        """Clusters of a pool of a shuffled epoch; 1: the pool is permuted as it is."""
        return self._shuffle.num_clusters

    @property
    def identity(self) -> dict[str, Any]:
        """Part, rows and settings that determine the batches of an epoch; JSON-able."""
        return {
            "part": self.part.name,
            "rows": self.part.rows,
            "batch_size": self.batch_size,
            "shuffle": self.shuffle,
            "seed": self.seed,
            **({"keep_groups": True} if self.keep_groups else {}),
            **({"num_clusters": self.num_clusters} if self.num_clusters > 1 else {}),
        }

    def batches(self, epoch: int, first_batch: int = 0) -> Iterator[Batch]:
        """The batches of an epoch from number `first_batch` on; earlier ones are not read."""
        if first_batch >= len(self):
            return
        share = Share(self.part.rows, self.batch_size, self.rank, self.num_ranks)
        first_place = first_batch * self.batch_size
        if self.shuffle:
            shuffle = replace(self._shuffle, seed=self.seed, keep_groups=self.keep_groups)
            pieces = self.part.shuffled(share, first_place, shuffle, epoch)
        else:
            pieces = self.part.in_order(share, first_place)
        left = None
        for number in range(first_batch, len(self)):
            first, end = share.of_batch(number)
            builder = _BatchBuilder if self.part.schema.request is None else _RequestBatchBuilder
            batch: Any = builder(self.part.schema, end - first, first)
            while batch.room:
                left = batch.take(left or next(pieces))
            yield batch.finished()

    def stream(
        self,
        epochs: int | None = None,
        position: dict[str, Any] | None = None,
        prefetch: int = 2,
        pin_memory: bool = False,
    ) -> Stream:
        """Returns the batches of one epoch after the other, loaded ahead.

        epochs: stop before the epoch of this number (default: never). position: `state_dict()` of a
        stream, to resume from. prefetch: number of batches to load ahead; 0: load without a thread.
        """
        return Stream(self, self.identity, epochs, position, prefetch, pin_memory)


class _BatchBuilder:
    """A batch while it is filled.

    Rows are copied before more are requested: the next pool reuses the memory of this one.
    """

    def __init__(self, schema: Schema, size: int, first_sample: int) -> None:
        self._schema = schema
        self._first_sample = first_sample
        self._size, self._filled = size, 0
        num_labels, num_features = len(schema.labels), len(schema.id_features)
        self._dense = np.empty((size, len(schema.dense)), np.float32)
        self._labels = np.empty((size, num_labels) if num_labels > 1 else size, np.float32)
        self._weights = None if schema.weight is None else np.empty(size, np.float32)
        self._groups = None if schema.grouping is None else np.empty(size, np.int64)
        self._times = np.empty(size, np.int64) if schema.keeps_times else None
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
        place, rows, left = slice(self._filled, self._filled + size), rows[:size], rows[size:]
        self._filled += size
        if self._ids is None:
            self._take_lists(rows, place)
        else:
            for into, column in zip(self._ids, rows.ids, strict=True):
                into[place] = column
        self._dense[place] = rows.dense
        self._labels[place] = rows.labels
        if len(self._schema.labels) > 1:
            self._labels[place][missing_labels(rows.labels)] = np.nan
        optional = {"weights": self._weights, "groups": self._groups, "times": self._times}
        for name, values in optional.items():
            column_values = getattr(rows, name)
            if values is not None:
                assert column_values is not None
                values[place] = column_values
        return left if len(left) else None

    def _take_lists(self, rows: Rows, place: slice) -> None:
        assert self._lengths is not None
        for f, offsets in enumerate(rows.offsets):
            if offsets is not None:
                self._lengths[f, place] = lengths_of(offsets, len(rows.ids[f]))
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
            times=_tensor(self._times),
        )

    def _all_ids(self) -> tuple[np.ndarray, np.ndarray | None]:
        """Returns ids [N] and, if there are lists, offsets [F * B + 1]."""
        if self._lengths is None:
            assert self._ids is not None
            return self._ids.reshape(-1), None
        offsets = ends_of(self._lengths.reshape(-1))
        ids = np.empty(offsets[-1], np.int64)
        if self._size:
            np.concatenate(list(chain.from_iterable(self._values)), out=ids, casting="unsafe")
        return ids, offsets


class _RequestBatchBuilder:
    """A batch of requests while it is filled: what samples of a request share is in it once."""

    def __init__(self, schema: Schema, size: int, first_sample: int) -> None:
        self._schema, self._first_sample = schema, first_sample
        self.room = size
        self._pieces: list[RequestRows] = []

    def take(self, rows: RequestRows) -> RequestRows | None:
        """Appends rows while there is room; returns those that are left."""
        size = min(len(rows), self.room)
        piece, left = rows[:size], rows[size:]
        self.room -= size
        self._pieces.append(piece.take(np.arange(size)) if self.room else piece)
        return left if len(left) else None

    def finished(self) -> Batch:
        if len(self._pieces) == 1:
            rows = self._pieces[0]
        else:
            size = sum(map(len, self._pieces))
            rows = gathered_requests(self._pieces, np.arange(size), (Room(), Room()))
        shared = replace(batch_of(rows.shared, id_features(self._schema, True)), labels=None)
        starts = torch.from_numpy(rows.starts.astype(np.int64))
        rows_of_samples = replace(rows.samples, groups=rows.groups, dense=rows.all_dense())
        batch = batch_of(rows_of_samples, id_features(self._schema, False), self._first_sample)
        return replace(
            batch, requests=RequestFeatures(replace(shared, dense=shared.dense[:, :0]), starts)
        )


def _tensor(array: np.ndarray | None) -> torch.Tensor | None:
    return None if array is None else torch.from_numpy(array)
