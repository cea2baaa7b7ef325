"""Pairs of features that say more of a label together than apart, found before training.

Half of the samples gives each value, and each pair of values, the log odds of the label among its
samples. On the other half logistic regression is fitted on those of all features, and a score test tells
how much lower the log loss would be with those of a pair, too: half a nat in all where it says nothing.
"""

from __future__ import annotations

import itertools

import numpy as np
import torch

from hotrows.data import EncodedData, Loader

_SAMPLES, _FEATURES = 60_000, 28  # that are looked at, at most
_PAIRS, _LEAST = 4, 40.0  # that are chosen at most; nats that each one gains
_PRIOR = 10.0  # samples of the mean that each value has
_BATCH, _STEPS = 4096, 6  # of reading; of Newton's method


def chosen(data: EncodedData, label: str | None) -> list[list[str]]:
    """The names of the features of each pair, the best one first; none of labels that are not 0 and 1."""
    names = [feature.name for feature in data.schema.single]
    labels = [one.name for one in data.schema.labels]
    task = labels.index(label) if label in labels else 0  # another one is refused later, with advice
    if len(names) < 2 or not data.schema.labels[task].values.binary:
        return []
    ids, clicks = _samples(data, names, task)
    gains = _gains(ids, clicks)
    best = sorted((pair for pair in gains if gains[pair] > _LEAST), key=gains.__getitem__, reverse=True)
    return [[names[f], names[g]] for f, g in best[:_PAIRS]]


def _samples(data: EncodedData, names: list[str], task: int) -> tuple[np.ndarray, np.ndarray]:
    """Ids [F, M] and labels [M] of the first samples in random order."""
    ids, clicks = [], []
    loader = Loader(data.parts["train"], _BATCH, shuffle=True, seed=0)
    for batch in itertools.islice(loader.batches(0), _SAMPLES // _BATCH):
        batch = batch.expanded()
        assert batch.labels is not None
        begins = torch.arange(len(batch.ids)) if batch.offsets is None else batch.offsets[:-1]
        places = [batch.features.index(name) for name in names]
        ids.append(batch.ids[begins.view(len(batch.features), -1)[places]].numpy())
        clicks.append(batch.labels.view(batch.size, -1)[:, task].double().numpy())
    labels = np.concatenate(clicks)
    return np.concatenate(ids, 1)[:, ~np.isnan(labels)], labels[~np.isnan(labels)]


def _gains(ids: np.ndarray, clicks: np.ndarray) -> dict[tuple[int, int], float]:
    """The nats by which each pair of rows of ids would lower the log loss of the second half."""
    half, rate = len(clicks) // 2, clicks.mean()
    if not 0 < rate < 1 or half < 1:
        return {}

    def log_odds(values: np.ndarray) -> np.ndarray:
        """Those of each sample of the second half, less those of all."""
        _, keys = np.unique(values, return_inverse=True)
        num = np.bincount(keys[:half], minlength=keys.max() + 1) + _PRIOR
        ones = np.bincount(keys[:half], clicks[:half], minlength=len(num)) + _PRIOR * rate
        return np.log(ones / (num - ones) * (1 - rate) / rate)[keys[half:]]

    single = [log_odds(values) for values in ids]
    most = sorted(np.argsort([-odds.var() for odds in single])[:_FEATURES])
    inputs = np.stack([np.ones(len(clicks) - half), *(single[f] for f in most)], 1)
    weights = np.zeros(inputs.shape[1])
    for _ in range(_STEPS):
        p = 1 / (1 + np.exp(-inputs @ weights))
        spread = p * (1 - p)
        inverse = np.linalg.inv((inputs.T * spread) @ inputs + 1e-3 * np.eye(len(weights)))
        weights += inverse @ (inputs.T @ (clicks[half:] - p))
    gains = {}
    for f, g in itertools.combinations(most, 2):
        odds = log_odds(ids[f] * (ids[g].max() + 1) + ids[g])
        odds -= inputs @ (inverse @ (inputs.T @ (spread * odds)))
        gains[int(f), int(g)] = float((clicks[half:] - p) @ odds) ** 2 / (2 * (spread @ odds**2) + 1e-9)
    return gains
