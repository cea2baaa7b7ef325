"""Whether samples of a group meet in a batch, as a loss of their order needs them to."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from hotrows.batch import Batch
from hotrows.batch import split as parts_of
from hotrows.losses import NO_GROUP
from hotrows.train.recommender import Recommender

log = logging.getLogger("hotrows")
_BATCHES = 16  # that are looked at


class Meetings:
    """Counts samples of the first batches with another label of their group beside them in the batch, and
    warns where few are. Nothing is looked at where no loss compares samples."""

    def __init__(self, recommender: Recommender) -> None:
        self._recommender, self._met, self._num_batches = recommender, 0, 0
        self._pieces: list[tuple[Tensor, Tensor]] = []
        orders = [task for task, loss in enumerate(recommender.losses) if loss.is_order]
        self.task = orders[0] if orders else None

    def add(self, batch: Batch, is_last: bool) -> None:
        """Looks at a batch that is trained on. is_last: no other one comes."""
        if self.task is None:
            return
        for part in parts_of(batch, self._recommender.embedding.planner.micro_batches):
            self._pieces.append(self._labelled(part, self.task))
            self._met += _num_comparable(self._pieces[-1:])
        self._num_batches += 1
        if is_last or self._num_batches == _BATCHES:
            self._warn(self._recommender.losses[self.task].name)
            self.task = None

    def _labelled(self, batch: Batch, task: int) -> tuple[Tensor, Tensor]:
        """The groups and labels of the samples of a batch that have both, and a weight above 0."""
        assert batch.groups is not None, "tasks of an order are checked to have groups"
        groups, targets = batch.groups.cpu(), self._recommender.targets(batch)
        columns = (targets.labels, torch.ones(1) if targets.weights is None else targets.weights)
        labels, weights = (c.cpu().view(len(c), -1)[:, task if c.dim() == 2 else 0] for c in columns)
        kept = (groups != NO_GROUP) & (weights > 0)
        return groups[kept], labels[kept]

    def _warn(self, loss: str) -> None:
        if 2 * self._met > _num_comparable(self._pieces):
            return
        samples = sum(len(groups) for groups, _ in self._pieces)
        log.warning(
            f"the loss {loss} compares samples of a group in a batch: {self._met:,} of the {samples:,} "
            f"in the first {self._num_batches} batches have another label of their group beside them, so "
            f"{'little' if self._met else 'nothing'} is learned; sort the rows by "
            f"{self._recommender.schema.grouping!r}, let training shuffle, which keeps groups together, "
            f"or take larger batches"
        )


def _num_comparable(pieces: Sequence[tuple[Tensor, Tensor]]) -> int:
    """The number of samples whose group has another label, too."""
    groups, labels = map(torch.cat, zip(*pieces, strict=True))
    _, place = groups.unique(return_inverse=True)
    low, high = (
        torch.full((len(labels),), bound).scatter_reduce(0, place, labels.float(), how)
        for bound, how in ((math.inf, "amin"), (-math.inf, "amax"))
    )
    return int((low < high)[place].sum())
