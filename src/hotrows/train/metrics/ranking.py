"""Metrics of the order within groups, such as a user's samples: grouped AUC, NDCG, Hit and MRR."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hotrows.losses import NO_GROUP
from hotrows.train.metrics.sums import standard_error, sums_by, weighted_mean


def grouped_auc(scores: Tensor, labels: Tensor, groups: Tensor, weights: Tensor | None = None) -> float:
    """The mean of each group's AUC, by the weight of its samples; nan where no group has both labels.

    Samples of the group `losses.NO_GROUP` do not count.

    >>> groups = torch.tensor([0, 0, 1, 1, 1])
    >>> scores = torch.tensor([1.0, 2.0, 5.0, 6.0, 7.0])
    >>> grouped_auc(scores, torch.tensor([0, 1, 1, 0, 1]), groups)  # (2 * 1 + 3 * 0.5) / 5
    0.7
    """
    if scores.isnan().any():
        return math.nan
    aucs, size = group_aucs(scores, labels, groups, weights)
    both = size > 0
    return ((size * aucs)[both].sum() / size[both].sum()).item() if both.any() else math.nan


def group_aucs(
    scores: Tensor, labels: Tensor, groups: Tensor, weights: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The AUC of each group, nan where it lacks a label, and the weight of its samples, then 0; in the
    order of the groups' numbers."""
    scores, order = scores.double().sort(stable=True)
    groups, by_group = groups[order].sort(stable=True)
    order, scores = order[by_group], scores[by_group]
    clicks = labels.double()[order]
    weighted = torch.ones_like(clicks) if weights is None else weights.double()[order]
    first = torch.ones(len(scores), dtype=torch.bool)  # of a run of equal scores within a group
    first[1:] = (scores[1:] != scores[:-1]) | (groups[1:] != groups[:-1])
    run = first.cumsum(0) - 1
    numbers, group_of_row = groups.unique_consecutive(return_inverse=True)
    group_of_run = group_of_row[first]
    positives, others = clicks * weighted, (1 - clicks) * weighted
    in_run, others_in = sums_by(positives, run), sums_by(others, run)
    totals, others_of = sums_by(positives, group_of_row), sums_by(others, group_of_row)
    before = others_in.cumsum(0) - others_in
    before -= (others_of.cumsum(0) - others_of)[group_of_run]
    pairs = sums_by(in_run * (before + others_in / 2), group_of_run)
    both = (totals > 0) & (others_of > 0) & (numbers != NO_GROUP)
    return pairs / (totals * others_of), (totals + others_of) * both


def ranking_metrics(
    scores: Tensor, labels: Tensor, groups: Tensor, names: Sequence[str], weights: Tensor | None = None
) -> dict[str, tuple[float, float]]:
    """Means over groups, and their standard errors, of the metrics `names`: ndcg, ndcg@K, hit@K, mrr.

    scores, labels, groups: [M]; weights: [M], above 0. Over the groups with a label above 0, each by the
    mean weight of its samples; nan where there is none, and of NDCG where a label is negative.

    scores = [3., 2., 1.], labels = [0, 1, 0], groups = [5, 5, 5]  ->  mrr 1 / 2, ndcg 1 / log2(3)
    """
    results = {}
    for name, (values, by_group) in ranking_values(scores, labels, groups, names, weights).items():
        results[name] = math.nan, math.nan
        if len(values):
            results[name] = weighted_mean(values, by_group), standard_error(values, by_group)
    return results


def ranking_values(
    scores: Tensor, labels: Tensor, groups: Tensor, names: Sequence[str], weights: Tensor | None = None
) -> dict[str, tuple[Tensor, Tensor]]:
    """The values, and the weights, of the groups with a label above 0, in the order of their numbers.

    Samples without a group do not count."""
    if scores.isnan().any():  # which have no order
        return dict.fromkeys(names, (scores.new_empty(0), scores.new_empty(0)))
    labels = labels.double().where(groups != NO_GROUP, 0.0)
    weights = torch.ones(len(scores)) if weights is None else weights
    ranked = _Ranked.from_samples(scores.double(), labels, groups, weights.double())
    results = {}
    for name in names:
        kind, _, most = name.partition("@")
        k = int(most) if most else len(scores)
        if kind == "ndcg":
            values = ranked.ndcg(k)
        else:
            values = ranked.hit(k) if kind == "hit" else ranked.reciprocal_rank()
        results[name] = values, ranked.weights()[: len(values)]
    return results


@dataclass(frozen=True)
class _Ranked:
    """Samples by group and falling score, cut into runs of equal scores.

    labels, weight, group, place, run: [M], of each sample; place: from 0 within its group. ideal: [M],
    the labels of each group from high to low. group_of_run, start, size: [R], start being the place of
    the run's first sample.
    """

    labels: Tensor
    weight: Tensor
    ideal: Tensor
    group: Tensor
    place: Tensor
    run: Tensor
    group_of_run: Tensor
    start: Tensor
    size: Tensor

    @staticmethod
    def from_samples(scores: Tensor, labels: Tensor, groups: Tensor, weights: Tensor) -> _Ranked:
        order = _by_group_and_falling(scores, groups)
        scores, sorted_groups = scores[order], groups[order]
        _, group, sizes = sorted_groups.unique_consecutive(return_inverse=True, return_counts=True)
        place = torch.arange(len(scores)) - (sizes.cumsum(0) - sizes)[group]
        first = place == 0
        first[1:] |= scores[1:] != scores[:-1]
        run = first.cumsum(0) - 1
        return _Ranked(
            labels=labels[order],
            weight=weights[order],
            ideal=labels[_by_group_and_falling(labels, groups)],
            group=group,
            place=place,
            run=run,
            group_of_run=group[first],
            start=place[first],
            size=run.bincount(),
        )

    def weights(self) -> Tensor:
        """The mean weight of the samples of each group that has a label above 0."""
        means = sums_by(self.weight, self.group) / self.group.bincount()
        return means[sums_by((self.labels > 0).double(), self.group) > 0]

    def ndcg(self, k: int) -> Tensor:
        """NDCG of the first k places of each group that has a label above 0."""
        if (self.labels < 0).any():
            return self.labels.new_empty(0)
        discounts = (self.place + 2).double().log2().reciprocal() * (self.place < k)
        gains = (sums_by(self.labels, self.run) / self.size)[self.run]  # the mean over orders of a run
        best = sums_by(self.ideal * discounts, self.group)
        return (sums_by(gains * discounts, self.group) / best)[best > 0]

    def hit(self, k: int) -> Tensor:
        """The chance that the first k places have a label above 0, of each group that has one."""
        start, size, relevant = self._first_relevant_runs()
        tried = (k - start).clamp(min=0).minimum(size)
        return 1 - _chance_of_none(size, relevant, tried)

    def reciprocal_rank(self) -> Tensor:
        """The mean of 1 / place of the first label above 0, of each group that has one."""
        start, size, relevant = self._first_relevant_runs()
        if not len(size):
            return start.double()
        places = size - relevant + 1  # of the run, where its first such label may be
        group = torch.arange(len(size)).repeat_interleave(places)
        before = torch.arange(len(group)) - (places.cumsum(0) - places)[group]
        none_before = _chance_of_none(size[group], relevant[group], before)
        chance = none_before - _chance_of_none(size[group], relevant[group], before + 1)
        return sums_by(chance / (start[group] + before + 1), group)

    def _first_relevant_runs(self) -> tuple[Tensor, Tensor, Tensor]:
        """The first run of each group that has a label above 0: start, size, number of such labels."""
        relevant = sums_by((self.labels > 0).long(), self.run)
        runs = (relevant > 0).nonzero()[:, 0]
        groups = self.group_of_run[runs]
        is_first = torch.ones(len(runs), dtype=torch.bool)
        is_first[1:] = groups[1:] != groups[:-1]
        runs = runs[is_first]
        return self.start[runs], self.size[runs], relevant[runs]


def _by_group_and_falling(scores: Tensor, groups: Tensor) -> Tensor:
    """The order of samples by group, and within one by falling score."""
    order = scores.sort(stable=True, descending=True)[1]
    return order[groups[order].sort(stable=True)[1]]


def _chance_of_none(size: Tensor, relevant: Tensor, tried: Tensor) -> Tensor:
    """The chance that the first `tried` of `size` samples in random order have none of the relevant."""
    possible = size - tried >= relevant
    left = torch.where(possible, size - tried, relevant)
    logarithm = _log_choose(left, relevant) - _log_choose(size, relevant)
    return torch.where(possible, logarithm.exp(), 0.0)


def _log_choose(n: Tensor, k: Tensor) -> Tensor:
    n, k = n.double(), k.double()
    return (n + 1).lgamma() - (k + 1).lgamma() - (n - k + 1).lgamma()
