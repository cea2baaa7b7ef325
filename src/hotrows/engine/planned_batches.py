"""The batches of a rank as planning takes them: one after another, with plans made beside other ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from hotrows.batch import Batch, samples
from hotrows.engine.pipeline.prefetch import prefetch
from hotrows.engine.pipeline.runner import NoMore
from hotrows.engine.planning.routing import RankSignals
from hotrows.ops.plan import Plan

if TYPE_CHECKING:
    from hotrows.engine.embedding import Embedding

NumberedBatch = tuple[int, Batch]  # the number of the step that it will make, and the batch
Signals = Callable[[], int]  # RankSignals of this rank, when a batch is planned


class PlannedBatches:
    """The batches of this rank, planned together with those of all ranks.

    Where planning has several threads, the next batch is loaded while one is planned. one_thread: the
    calling thread loads it, when it is needed; so where ranks resolve keys together.
    """

    def __init__(
        self,
        embedding: Embedding,
        batches: Iterable[NumberedBatch],
        signals: Signals,
        one_thread: bool = False,
    ) -> None:
        self._embedding = embedding
        self._signals = signals
        self._alone = embedding.ranks.num_ranks == 1
        one_thread |= bool(embedding.dynamic.vocabularies) and not self._alone
        loads_ahead = embedding.threads.num > 1 and not one_thread
        self._batches = prefetch(batches, depth=int(loads_ahead))
        self._last: Batch | None = None

    def next(self) -> tuple[Batch, Plan]:
        """The next batch and its plan; NoMore once no rank has any."""
        step, batch = self._load()
        if batch is None and self._alone:
            raise NoMore
        signals = self._signals() | (RankSignals.NO_MORE if batch is None else 0)
        batch = self._empty() if batch is None else batch
        plan = self._embedding.plan_ahead(batch, step, signals)
        if plan.signals & RankSignals.NO_MORE:
            raise NoMore
        if self._last is None and not batch.size and signals & RankSignals.NO_MORE:
            raise ValueError(
                f"rank {self._embedding.ranks.rank} has not a single batch, while others have some: "
                f"give every rank one at least"
            )
        self._last = batch
        return batch, plan

    def rows(self) -> list[Tensor]:
        """The rows that the next batch reads, for each group of packs."""
        if self._embedding.planner.routes:
            return self._embedding.planner.rows_of(self.next()[1])
        return self._embedding.planner.rows(self.batch())

    def batch(self) -> Batch:
        """The next batch; NoMore once there is none."""
        _, batch = self._load()
        if batch is None:
            raise NoMore
        return batch

    def _load(self) -> tuple[int, Batch | None]:
        return next(self._batches, (0, None))

    def _empty(self) -> Batch:
        if self._last is not None:
            return samples(self._last, 0, 0)
        features = self._embedding.features
        return Batch(features, torch.empty(0, dtype=torch.int64), torch.empty(0, 0))
