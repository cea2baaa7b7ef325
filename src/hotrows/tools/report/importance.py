"""Permutation importance: how much worse predictions get where values of a feature change places.

Lists of equal lengths (the items and the categories of one history) change places together. Intervals are
those of the difference between the two predictions of the same rows (`quality`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch

from hotrows.tools.report.quality import MetricInterval, measure
from hotrows.train.loop.predictor import Predictor
from hotrows.train.telling.row_sample import RowSample, score

_TIMES = 40  # resamples
_PREDICTIONS = 600_000  # of all features together, at most
_LEAST_ROWS, _MOST_ROWS = 500, 15_000


@dataclass(frozen=True)
class Importance:
    """names: of features that were permuted together; losses: by label, how much worse its metric got."""

    names: tuple[str, ...]
    losses: dict[str, MetricInterval]

    @property
    def name(self) -> str:
        return " + ".join(self.names)


def importances(predictor: Predictor, sample: RowSample, seed: int = 0) -> tuple[list[Importance], int]:
    """Returns the features, the most important one first, and the number of rows that were permuted."""
    together, dense = list(permuted_together(sample)), predictor.schema.dense_places
    num_rows = _PREDICTIONS // max(1, len(together) + len(dense))
    sample = sample.drawn(min(max(num_rows, _LEAST_ROWS), _MOST_ROWS), seed)
    order = torch.randperm(len(sample), generator=torch.Generator().manual_seed(seed))
    before = {label: measure(s, times=_TIMES, seed=seed) for label, s in score(predictor, sample).items()}
    others = sample.taken(order)
    permute: dict[tuple[str, ...], Callable[[RowSample], RowSample]] = {
        **{(name,): partial(sample.with_numbers, place) for name, place in dense.items()},
        **{names: partial(sample.with_ids, names) for names in together},
    }
    features = []
    for names, permuted in permute.items():
        after = {
            label: measure(s, times=_TIMES, seed=seed)
            for label, s in score(predictor, permuted(others)).items()
        }
        losses = {
            label: quality.gain(after[label], quality.decisive)
            for label, quality in before.items()
            if quality.decisive in after[label].names
        }
        features.append(Importance(names, losses))
    features.sort(key=lambda one: -max((loss.value for loss in one.losses.values()), default=0.0))
    return features, len(sample)


def permuted_together(sample: RowSample) -> Iterator[tuple[str, ...]]:
    """Yields the names of features with ids, lists of equal lengths together."""
    groups: list[list[str]] = []
    for name, (_, lengths, _) in sample.ids.items():
        if not bool((lengths == 1).all()):
            for group in groups:
                if torch.equal(sample.ids[group[0]][1], lengths):
                    group.append(name)
                    break
            else:
                groups.append([name])
            continue
        groups.append([name])
    yield from map(tuple, groups)
