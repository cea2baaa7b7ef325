"""Whether samples of a group meet in a batch, as a loss of their order needs them to."""

from __future__ import annotations

import logging
import math

import torch
from torch import Tensor

from hotrows.batch import Batch
from hotrows.batch import split as parts_of
from hotrows.losses import NO_GROUP
from hotrows.train.loop.recommender import Recommender

log = logging.getLogger("hotrows")
_BATCHES = 16  # that are looked at


class Meetings:
    """Counts samples of the first batches that have another label of their group beside them, and warns
    where most have it in another batch, or none."""

    def __init__(self, recommender: Recommender) -> None:
        self._recommender, self._num_batches, self._met = recommender, 0, 0
        self._groups, self._labels = torch.empty(0, dtype=torch.int64), torch.empty(0)
        self._orders = [task for task, loss in enumerate(recommender.losses) if loss.is_order]

    def add(self, batch: Batch, is_last: bool) -> None:
        """Looks at a batch that is trained on. is_last: no other one comes."""
        if not self._orders or self._num_batches == _BATCHES:
            return
        for part in parts_of(batch, self._recommender.embedding.planner.micro_batches):
            assert part.groups is not None, "tasks of an order are checked to have groups"
            targets, kept = self._recommender.targets(part), part.groups != NO_GROUP
            labels, weights = (
                kept if of_all is None else of_all.view(part.size, -1)[:, self._orders[0]]
                for of_all in (targets.labels, targets.weights)
            )
            kept = kept & (weights > 0)
            groups, labels = part.groups[kept].cpu(), labels[kept].cpu()
            self._met += _num_comparable(groups, labels)
            self._groups = torch.cat([self._groups, groups])
            self._labels = torch.cat([self._labels, labels])
        self._num_batches += 1
        is_last = is_last or self._num_batches == _BATCHES
        if is_last and 2 * self._met <= _num_comparable(self._groups, self._labels):
            log.warning(
                f"the loss {self._recommender.losses[self._orders[0]].name} compares samples of a group "
                f"in a batch: {self._met:,} of the {len(self._groups):,} in the first "
                f"{self._num_batches} batches have another label of their group beside them, so "
                f"{'little' if self._met else 'nothing'} is learned; sort the rows by "
                f"{self._recommender.schema.grouping!r}, let training shuffle, or take larger batches"
            )


def _num_comparable(groups: Tensor, labels: Tensor) -> int:
    """The number of samples whose group has another label, too."""
    _, place = groups.unique(return_inverse=True)
    low = torch.full((len(labels),), math.inf).scatter_reduce(0, place, labels, "amin")
    high = torch.full((len(labels),), -math.inf).scatter_reduce(0, place, labels, "amax")
    return int((low < high)[place].sum())
