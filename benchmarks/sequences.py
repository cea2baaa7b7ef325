"""What arms with histories train on: a shop with four million items, and what users clicked before.

Lengths of histories are skewed, 40 on average and at most 100. Ids follow Zipf's law, each field's
in an order of its own; labels are random: losses say only whether an arm trains at all. numpy only.
"""

from __future__ import annotations

import os

import numpy as np

from benchmarks.samples import Features, Samples, batches, ends_of, random_lengths
from benchmarks.workload import DATA

FEATURES = Features(
    {"user": 1_000_000, "item": 4_000_000, "category": 1_000}, num_dense=4, target="item", max_length=100
)
BATCH_SIZE = 2048
MEAN_LENGTH = 40
ZIPF = 1.05

ATTENTION = (80, 40)
HIDDEN = (256, 128, 64)
CO_ACTION = (16, 8, 4)
ORDERS = 3
CAN_HIDDEN = (200, 80)
LAYERS = {"layers": 2, "heads": 2, "length": 100}  # of HSTU
ROW_LEARNING_RATE = 0.02  # Adagrad
DENSE_LEARNING_RATE = 1e-3  # Adam


def batches_of(num_batches: int = 16, batch_size: int = BATCH_SIZE) -> list[Samples]:
    """Made once, then read from a file."""
    num = num_batches * batch_size
    path = DATA / f"sequences-{num / BATCH_SIZE:g}.npz"
    if not path.exists():
        DATA.mkdir(exist_ok=True)
        aside = DATA / f"{path.stem}-{os.getpid()}.npz"
        np.savez(aside, **_samples(num)._asdict())
        aside.replace(path)
    with np.load(path) as file:
        return batches(Samples(**file), batch_size)


def _samples(num: int) -> Samples:
    rng = np.random.default_rng(0)
    offsets = ends_of(random_lengths(rng, num, MEAN_LENGTH, FEATURES.max_length))
    order = {name: rng.permutation(rows).astype(np.int32) for name, rows in FEATURES.rows.items()}
    ids = np.stack([_zipf(rng, order[name], num) for name in FEATURES.fields])
    history = _zipf(rng, order[FEATURES.target], offsets[-1])
    dense = rng.standard_normal((num, FEATURES.num_dense)).astype(np.float32)
    labels = (rng.random(num) < 0.25).astype(np.float32)
    return Samples(ids, dense, labels, history, offsets)


def _zipf(rng: np.random.Generator, order: np.ndarray, num: int) -> np.ndarray:
    """[num] ids of `order`, its first ones the most frequent."""
    cumulated = np.cumsum(np.arange(1.0, len(order) + 1) ** -ZIPF)
    places = np.searchsorted(cumulated, rng.random(num) * cumulated[-1])
    return order[np.minimum(places, len(order) - 1)]
