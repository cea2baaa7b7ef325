"""Loader: the batches of a part, each a pure function of seed, epoch and position.

Rows come from mapped shards or from Parquet; a shuffled epoch holds one pool of them at a time (see
`order`). A single thread reads the data, without PyTorch's compute threads, so that a loader may run
in the background without a second team of them.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
import torch

from hotrows.batch import Batch, RequestFeatures
from hotrows.data.columns.of_schema import batch_of
from hotrows.data.rows import Room, Rows, empty_rows
from hotrows.data.stored.order import FEWEST_REQUESTS, POOL_ROWS, Share, Shuffle, parse_order
from hotrows.data.stored.part import Part
from hotrows.data.stored.request_rows import Division, RequestRows, gathered_pieces, packed
from hotrows.engine.pipeline.prefetch import Prefetched, prefetch


class Loader:
    """Reads batches of `batch_size` samples; the last of an epoch may be smaller.

    shuffle: whether to permute every epoch, by `seed` and the number of the epoch (default: no). Up to
        batch_size / 32 samples of a request stay together.
    keep_groups: whether rows of a group of the schema follow one another in a shuffled epoch, those of
        a pool at a time (default: no).
    order: `shuffle`, or `reuse:N` to shuffle within N clusters of samples that read equal rows, one after
        the other: of 262,144 samples a batch then mixes 1 / N, and caches fetch fewer rows; `reuse`: 8.
        `shards:N` shuffles N shards at a time, so that data at a URL needs room for 2 N.
    rank, num_ranks: of several processes, each reads its share of every batch; together they read
        the batches of one process, in its order. A rank's share of a small last batch may be empty.
    shares: of the ranks in every batch, in whole numbers such as (1, 2) (default: all equal).

    A worker of a torch DataLoader yields its batches of an epoch alone, those of number worker, worker +
    num_workers, ..: the DataLoader (with `batch_size=None`) has all, in the order of one process.

    >>> [batch.size for batch in Loader(data.parts["train"], 32).batches(epoch=0)]
    [32, 32, 16]
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
        shares: tuple[int, ...] = (),
    ) -> None:
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, not {batch_size}")
        if not 0 <= rank < num_ranks:
            raise ValueError(
                f"rank must be from 0 to num_ranks - 1, not {rank} with num_ranks={num_ranks}"
            )
        if shares and len(shares) != num_ranks:
            raise ValueError(f"shares must be one for each of {num_ranks} ranks, not {shares}")
        self.part, self.shares = part, shares
        self.batch_size = batch_size
        self.shuffle = shuffle
        self.seed = seed
        self.rank = rank
        self.num_ranks = num_ranks
        self.keep_groups = keep_groups
        self.order = order
        clusters, window = parse_order(order)
        self._shuffle = Shuffle(seed, num_clusters=clusters, window=window)
        if order != "shuffle" and not shuffle:
            raise ValueError(f"order={order!r} shuffles: give shuffle=True, or leave the order out")
        if hasattr(part, "parts"):
            raise ValueError("a Loader reads one part of prepared data, such as data.parts['train']")
        part.check_start()
        if shuffle:
            part.check_window(self._shuffle.window)

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
            **({"window": self._shuffle.window} if self._shuffle.window else {}),
        }

    def batches(self, epoch: int, first_batch: int = 0) -> Iterator[Batch]:
        """The batches of an epoch from number `first_batch` on; earlier ones are not read."""
        if first_batch >= len(self):
            return
        share = Share(self.part.rows, self.batch_size, self.rank, self.num_ranks, self.shares)
        first_place = first_batch * self.batch_size
        if self.shuffle:
            most = POOL_ROWS if self.keep_groups else max(self.batch_size // FEWEST_REQUESTS, 1)
            shuffle = replace(
                self._shuffle, seed=self.seed, keep_groups=self.keep_groups, most_together=most
            )
            pieces = self.part.shuffled(share, first_place, shuffle, epoch)
        else:
            pieces = self.part.in_order(share, first_place)
        left, room = None, Room()
        worker, num_workers = _worker()
        for number in range(first_batch, len(self)):
            first, end = share.of_batch(number)
            batch = _BatchBuilder(self.part, end - first, first, room)
            while batch.room:
                left = batch.take(left or next(pieces))
            if number % num_workers == worker:
                yield batch.finished()

    def stream(
        self,
        epochs: int | None = None,
        position: dict[str, Any] | None = None,
        prefetch: int = 2,
        pin_memory: bool = False,
    ) -> Stream:
        """Returns the batches of one epoch after the other, loaded ahead.

        epochs: stop before the epoch of this number (default: never).
        position: `state_dict()` of a stream, to resume from.
        prefetch: number of batches to load ahead; 0: load without a thread.
        """
        return Stream(self, self.identity, epochs, position, prefetch, pin_memory)


class _BatchBuilder:
    """A batch while it is filled with pieces of rows.

    Rows are copied before more are requested: the next pool reuses the memory of this one.
    """

    def __init__(self, part: Part, size: int, first_sample: int, room: Room) -> None:
        self._part, self._first_sample, self._lists = part, first_sample, room
        self.room = size
        self._pieces: list[Rows | RequestRows] = []

    def take(self, rows: Rows | RequestRows) -> Rows | RequestRows | None:
        """Appends rows while there is room; returns those that are left."""
        size = min(len(rows), self.room)
        piece, left = rows[:size], rows[size:]
        self.room -= size
        self._pieces.append(piece.take(np.arange(size)) if self.room else piece)
        return left if len(left) else None

    def finished(self) -> Batch:
        rows, histories, columns = self._rows(), self._part.histories, self._part.columns
        if isinstance(rows, RequestRows):
            rows = rows if histories is None else histories.parts_of(rows, self._lists)
            # What samples of a request share is there once.
            shared = batch_of(columns, rows.shared.without("dense", "requests"))
            starts = torch.from_numpy(rows.starts.astype(np.int64))
            batch = batch_of(columns, rows.with_wide(), self._first_sample)
            return replace(batch, requests=RequestFeatures(shared, starts))
        rows = rows if histories is None else histories.rows_of(rows, self._lists)
        return batch_of(columns, rows, self._first_sample)

    def _rows(self) -> Rows | RequestRows:
        if len(self._pieces) == 1:
            return self._pieces[0]
        if self._pieces:
            order = np.arange(sum(map(len, self._pieces)))
            return gathered_pieces(self._pieces, order, (Room(), Room()))
        columns = self._part.stored_columns
        empty = empty_rows(columns.sections, 0)
        return packed(empty, Division(columns.sections)) if columns.schema.request else empty


class BatchSource(Protocol):
    """Batches by epoch and position, as `Loader` has them."""

    batch_size: int

    def __len__(self) -> int:
        """Batches per epoch."""
        ...

    def batches(self, epoch: int, first_batch: int = 0) -> Iterator[Batch]:
        """The batches of an epoch from number `first_batch` on."""
        ...


class Stream:
    """An iterator over batches with a position that can be saved; made by `Loader.stream`.

    Its state is the position behind the batches it has returned, whatever was loaded ahead; a stream
    that loads the state resumes with the next batch. The state does not depend on the number of ranks.

    identity: part, rows and settings that a position belongs to, JSON-able; see `Loader.identity`.
    """

    def __init__(
        self,
        source: BatchSource,
        identity: dict[str, Any],
        epochs: int | None,
        position: dict[str, Any] | None,
        prefetch: int,
        pin_memory: bool,
    ) -> None:
        if prefetch < 0:
            raise ValueError(f"prefetch must be 0 (no thread) or more, not {prefetch}")
        self._source = source
        self._identity = identity
        self._epochs = epochs
        self._prefetch = prefetch
        self._pin_memory = pin_memory
        self._epoch = self._batch = 0
        self._batches: Prefetched[Batch] | Generator[Batch] | None = None
        if position is not None:
            self.load_state_dict(position)

    def __iter__(self) -> Stream:
        return self

    def __next__(self) -> Batch:
        if self._batches is None:
            self._go_to(self._batch)
            batches = _batches(self._source, self._epoch, self._batch, self._epochs, self._pin_memory)
            self._batches = prefetch(batches, self._prefetch)
        batch = next(self._batches)
        self._go_to(self._batch + 1)
        return batch

    def _go_to(self, batch: int) -> None:
        """Moves to a batch of the epoch, or to the first one from there that this worker has."""
        worker, num_workers = _worker()
        self._batch = batch + (worker - batch) % num_workers
        if self._batch >= len(self._source):
            self._epoch, self._batch = self._epoch + 1, worker

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def state_dict(self) -> dict[str, Any]:
        """The identity of the data, and epoch and number of the next batch; JSON-able."""
        return {**self._identity, "epoch": self._epoch, "batch": self._batch}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resumes from a state; an error if it is of other data or another order."""
        expected = self._identity
        missing = sorted({*expected, "epoch", "batch"} - set(state))
        if missing:
            raise ValueError(
                f"a state of a stream has {[*expected, 'epoch', 'batch']}, {missing} are missing; "
                f"pass what state_dict() gave"
            )
        names = sorted(expected.keys() | state.keys() - {"epoch", "batch"})
        differing = [name for name in names if state.get(name) != expected.get(name)]
        if differing:
            saved = {name: state.get(name) for name in differing}
            current = {name: expected.get(name) for name in differing}
            raise ValueError(
                f"the state is of a stream with {saved}, this one has {current}; resume with the same "
                f"data and settings, or begin anew without a state"
            )
        if not (state["epoch"] >= 0 and 0 <= state["batch"] <= len(self._source)):
            raise ValueError(
                f"a state must name an epoch from 0 and a batch from 0 to {len(self._source):,}, "
                f"not {state['epoch']} and {state['batch']}; pass what state_dict() gave"
            )
        self.close()
        self._epoch, self._batch = state["epoch"], state["batch"]

    def close(self) -> None:
        """Stops loading ahead; the next batch starts it again at the current position."""
        if self._batches is not None:
            self._batches.close()
        self._batches = None


def _batches(
    source: BatchSource, epoch: int, first_batch: int, epochs: int | None, pin_memory: bool
) -> Iterator[Batch]:
    while len(source) > _worker()[0] and (epochs is None or epoch < epochs):
        for batch in source.batches(epoch, first_batch):
            yield batch.pin_memory() if pin_memory else batch
        epoch, first_batch = epoch + 1, 0


def _worker() -> tuple[int, int]:
    """The number of this worker of a torch DataLoader, and how many there are; (0, 1) in no worker."""
    worker = torch.utils.data.get_worker_info()
    return (0, 1) if worker is None else (worker.id, worker.num_workers)
