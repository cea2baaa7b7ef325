"""Boosted trees of numbers and of effects of ids, fitted without each of K folds of samples, and on all.

K + 1 models grow side by side, each on its samples, from the sum of effects that it has. A level of a
tree compares one input with one threshold (`models.effects.Trees`), the one that lowers a quadratic of
the loss most. A leaf whose samples have the sums S of y - p and H of p (1 - p) gets the value

    0.2 S / (H + 3)

and trees are added while they lower the loss of samples that a model lacks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from hotrows.models.effects import DEPTH, FOLDS, Trees
from hotrows.train.start.additive import Additive, EffectColumn

_BINS = 256  # of an input
_INPUTS, _SAMPLES = 16, 20_000  # drawn for each tree, by which its levels are chosen
_RATE, _PRIOR = 0.2, 3.0
_MOST, _PATIENCE = 100, 15  # trees; trees without a lower loss


@dataclass(frozen=True)
class BoostedTrees:
    """Places of inputs and thresholds, [T, K + 1, DEPTH], and values of leaves, [T, K + 1, 2^DEPTH].

    losses: [N], of each sample by the model that lacks it. gain: the nats that trees gain.
    """

    places: np.ndarray
    thresholds: np.ndarray
    values: np.ndarray
    losses: np.ndarray
    gain: float

    def fill(self, trees: Trees) -> None:
        """Writes them into the layer; of places for more trees, the last ones stay empty."""
        for name in ("places", "thresholds", "values"):
            numbers = torch.from_numpy(getattr(self, name)).transpose(0, 1).flatten(1)
            buffer = getattr(trees, name)
            buffer[:, : numbers.shape[1]] = numbers.to(buffer)


def boosted(model: Additive, columns: Sequence[EffectColumn], most: int = _MOST) -> BoostedTrees:
    """Trees of all numbers and of the effects of these columns, at most so many."""
    rng, z = np.random.default_rng(0), model.of_columns(columns)
    inputs, edges = _inputs(model, columns)
    codes = np.stack([np.searchsorted(*pair, side="right") for pair in zip(edges, inputs, strict=True)])
    parts = [np.flatnonzero(of_model) for of_model in model.kept]
    trees: list[list[tuple[np.ndarray, np.ndarray, np.ndarray]]] = []
    begin = lowest = model.held_out_losses(z)
    best = 0
    while len(trees) < min(most, best + _PATIENCE):
        trees.append([])
        for part, of_model, s, h in zip(parts, z, *model.residuals(z), strict=True):
            rows = rng.choice(part, _SAMPLES, replace=False) if len(part) > _SAMPLES else part
            drawn = rng.permutation(len(codes))[:_INPUTS]
            places, bins = _levels(codes[np.ix_(drawn, rows)], s[rows], h[rows])
            leaf = np.zeros(len(s), np.int64)
            for place, last in zip(drawn[places], bins, strict=True):
                leaf = 2 * leaf + (codes[place] > last)
            values = _RATE * np.bincount(leaf, s, 1 << DEPTH)
            values /= np.bincount(leaf, h, 1 << DEPTH) + _PRIOR
            of_model += values[leaf]
            trees[-1].append((drawn[places], bins, values))
        losses = model.held_out_losses(z)
        if losses.sum() < lowest.sum():
            best, lowest = len(trees), losses
    sizes = (DEPTH, DEPTH, 1 << DEPTH)
    places, bins, values = (
        np.array([[tree[part] for tree in of_models] for of_models in trees[:best]]).reshape(
            best, FOLDS + 1, size
        )
        for part, size in enumerate(sizes)
    )
    places = places.astype(np.int64)
    thresholds = edges[places, bins.astype(np.int64)]
    return BoostedTrees(places, thresholds, values, lowest, float((begin - lowest).sum()))


def _inputs(model: Additive, columns: Sequence[EffectColumn]) -> tuple[np.ndarray, np.ndarray]:
    """Numbers and effects of samples, [F, N], and lowest values of all bins but the first, [F, BINS]."""
    numbers = list(model.samples.numbers.values())
    inputs = np.stack([*numbers, *map(model.held_out_effects, columns)]).astype(np.float32)
    edges = np.full((len(inputs), _BINS), np.inf, np.float32)
    for x, of_input in zip(inputs, edges, strict=True):
        values = np.unique(np.quantile(x, np.linspace(0, 1, _BINS), method="nearest"))
        between = np.unique((values[1:] + values[:-1]) / 2)
        of_input[: len(between)] = between
    return inputs, edges


def _levels(codes: np.ndarray, s: np.ndarray, h: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The input of each level and its last bin on the left; codes: [F, N]."""
    num = len(codes)
    s, h, leaf = np.tile(s, num), np.tile(h, num), np.zeros(codes.shape[1], np.int64)
    cells = codes + _BINS * np.arange(num)[:, None]
    levels = []
    for level in range(DEPTH):
        cell = (cells + num * _BINS * leaf).ravel()
        size = num * _BINS << level
        sums, weights = (np.bincount(cell, x, size).reshape(-1, num, _BINS).cumsum(2) for x in (s, h))
        others, weights_of_others = sums[:, :, -1:] - sums, weights[:, :, -1:] - weights
        gain = (sums**2 / (weights + _PRIOR) + others**2 / (weights_of_others + _PRIOR)).sum(0)
        levels.append(divmod(int(gain.argmax()), _BINS))
        place, last = levels[-1]
        leaf = 2 * leaf + (codes[place] > last)
    places, bins = np.array(levels).T
    return places, bins
