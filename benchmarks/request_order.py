"""What does it cost in quality to train on requests in random order, next to samples in random order?

    python -m benchmarks.request_order                               # twenty seeds
    python -m benchmarks.request_order --models din --arms samples whole --seeds 3

Orders have equal samples, first values and settings. A batch of 64 samples holds those of 8 `whole`
requests, of 32 `parts`, as the loader cuts them, or single `samples`. A seed draws users of
MovieLens-1M, first values and order. `rated`: a request is 8 ratings of a user in a row, liked or not;
`drawn`: a liked movie and 7 drawn ones. Models normalise by the batch (`batch`: Dice, batch
normalisation) or not (`none`: PReLU). Runs that are in the result file already are not made again.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from functools import reduce
from itertools import product
from pathlib import Path
from statistics import mean, stdev
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import torch
from torch import nn

from benchmarks.harness import add, conditions, stored
from benchmarks.order import RAW, t_95
from hotrows import Adagrad, Schema, Sequence, Sparse, Time, TrainConfig, Trainer, models
from hotrows.data import EncodedData, prepare
from hotrows.data.load import loader
from hotrows.data.stored.part import NAMES
from hotrows.datasets import event_samples
from hotrows.datasets.history import places
from hotrows.datasets.movielens import LIKED
from hotrows.nn import BatchNorm
from hotrows.train.step_trainer import keep_freed_memory

NAME, QUESTION = "request_order", __doc__.splitlines()[0]
CANDIDATES, USERS = 8, 320
SETS, MODELS, NORMS = ("rated", "drawn"), ("din", "deepfm", "hstu", "dien"), ("batch", "none")
# Data, and parts of requests that a batch mixes at least.
ARMS = {
    "samples": ("samples", 1),
    "whole": ("requests", 1),
    "parts": ("requests", loader.FEWEST_REQUESTS),
}
USER = ("user", "gender", "age", "occupation")
FIGURES = ("auc", "gauc", "log_loss")
SIZES: dict[str, Any] = {"dim": 8, "hidden": (64, 32)}
CONFIG = TrainConfig(
    batch_size=64, epochs=1, row_optimizer=Adagrad(), evaluate_every=1 << 30, plan_depth=0,
    linear_paths="plain",
)  # fmt: skip
EXPANDED = Schema(
    features=(
        *map(Sparse, (*USER, "movie")),
        Sequence("history", column="movie", vocabulary="movie", max_length=20),
    ),
    label="label",
    group="request",
    time=Time("at"),
    user="user",
    histories=("history",),
)
ONCE = replace(EXPANDED, group=None, request="request", shared=(*USER, "history"))


def main() -> None:
    parser = argparse.ArgumentParser(description=QUESTION)
    parser.add_argument("--sets", nargs="+", default=SETS, choices=SETS)
    parser.add_argument("--models", nargs="+", default=MODELS, choices=MODELS)
    parser.add_argument("--norms", nargs="+", default=NORMS, choices=NORMS)
    parser.add_argument("--arms", nargs="+", default=ARMS, choices=ARMS)
    parser.add_argument("--seeds", type=int, default=20)
    args = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()
    for seed, name in product(range(args.seeds), args.sets):
        runs = [["runs", name, *key, str(seed)] for key in product(args.models, args.norms, args.arms)]
        runs = [run for run in runs if not reduce(lambda at, key: at.get(key, {}), run, stored(NAME))]
        with tempfile.TemporaryDirectory() as folder:
            data = made(name, seed, Path(folder)) if runs else {}
            for run in runs:
                figures = trained(data, run[2], run[3], run[4], seed)
                add(NAME, run, figures, {"question": QUESTION, **conditions(1)})
                print(*run[1:], figures, flush=True)
    print(*summary(), sep="\n")


def made(name: str, seed: int, folder: Path) -> dict[str, EncodedData]:
    """The samples of some users, by arm."""
    random = np.random.default_rng(seed)
    file = RAW / "movielens_1m_ratings.csv.gz"
    user, movie, rating, at = np.loadtxt(file, np.int64, delimiter=",", skiprows=1).T
    chosen = np.isin(user, random.choice(user.max(), USERS, replace=False) + 1)
    sort = np.flatnonzero(chosen)[np.lexsort((at[chosen], user[chosen]))]
    columns = {"user": user, "movie": movie, "at": at + 10**9}  # a place in time, as seconds
    ratings = pa.table({**columns, "label": (rating >= LIKED).astype(np.int64)}).take(sort)
    events = ratings.filter(pa.array(rating[sort] >= LIKED)).drop_columns("label")
    parts = _rated(ratings) if name == "rated" else _drawn(events, seed, folder)
    parts = {part: _with_users(samples) for part, samples in parts.items()}
    train = parts.pop("train")
    return {
        arm: prepare(train, schema, folder / arm, **parts, events=events)
        for arm, schema in (("samples", EXPANDED), ("requests", ONCE))
    }


def _rated(ratings: pa.Table) -> dict[str, pa.Table]:
    """Requests of ratings in a row, at the time of the first; the last tenth of each user's tests."""
    user, at = ratings["user"].to_numpy(), ratings["at"].to_numpy()
    place, total = places(user, at)
    page, pages = place // CANDIDATES, -(-total // CANDIDATES)
    _, begin, request = np.unique(np.stack([user, page]), axis=1, return_index=True, return_inverse=True)
    samples = ratings.set_column(2, "at", pa.array(at[begin[request]]))
    samples = samples.append_column("request", pa.array(request))
    tenth = np.maximum(pages // 10, 1)
    part = np.select([page >= pages - tenth, page >= pages - 2 * tenth], [2, 1], 0)
    return {part_name: samples.filter(pa.array(part == k)) for k, part_name in enumerate(NAMES)}


def _drawn(events: pa.Table, seed: int, folder: Path) -> dict[str, pa.Table]:
    """A liked movie and drawn ones that the user never liked; every fourth such request trains."""
    columns = {"user": "user", "time": "at", "item": "movie"}
    paths = event_samples.samples_of(
        events, folder / "drawn", **columns, num_negatives=CANDIDATES - 1, last=3, seed=seed
    )
    parts = {name: pa.parquet.read_table(path) for name, path in paths.items()}
    fourth = pa.array(parts["train"]["request"].to_numpy() % 4 == 0)
    return parts | {"train": parts["train"].filter(fourth)}


def _with_users(samples: pa.Table) -> pa.Table:
    lines = (RAW / "movielens_1m_users.dat").read_text("latin-1").splitlines()
    about = np.array([line.split("::")[:4] for line in lines])
    rows = about[np.searchsorted(about[:, 0].astype(np.int64), samples["user"].to_numpy())]
    for k, name in enumerate(USER[1:], 1):
        samples = samples.append_column(name, pa.array(rows[:, k].tolist()))
    return samples


def trained(data: dict[str, EncodedData], model: str, norm: str, arm: str, seed: int) -> dict[str, float]:
    """Figures of the test part."""
    torch.manual_seed(seed)
    (kind, fewest), config = ARMS[arm], replace(CONFIG, seed=seed)
    made = built(model, norm, data[kind].schema)
    with tempfile.TemporaryDirectory() as folder, patch.object(loader, "FEWEST_REQUESTS", fewest):
        result = Trainer(data[kind], config, Path(folder) / "run", model=made).fit(verbose=False)
    assert result.test is not None
    return {name: round(getattr(result.test, name), 6) for name in FIGURES}


def built(model: str, norm: str, schema: Schema) -> models.Model:
    """The model, with statistics of batches or without any."""
    if model == "deepfm":
        return models.build(model, schema, **SIZES, batch_norm=norm == "batch")
    made = models.build(model, schema, **SIZES, activation="dice" if norm == "batch" else "prelu")
    for module in [*made.modules()] if norm == "none" else ():
        for name, layer in module.named_children():
            if isinstance(layer, BatchNorm):
                setattr(module, name, nn.Identity())
    return made


def summary() -> list[str]:
    """A line for each set, model, normalisation and order."""
    return [
        f"{' '.join(key):30} {len(gains['auc']):3} seeds, AUC {level:.4f}: "
        + ", ".join(f"{name} {mean(more):+.5f} ± {half(more):.5f}" for name, more in gains.items())
        for key, level, gains in differences()
    ]


def differences() -> Iterator[tuple[tuple[str, ...], float, dict[str, list[float]]]]:
    """Of each set, model, normalisation and order of requests: mean AUC in order of samples, and by seed
    what the order adds to each figure."""
    for name, model, norm, arm in product(SETS, MODELS, NORMS, [*ARMS][1:]):
        by_arm = stored(NAME)["runs"].get(name, {}).get(model, {}).get(norm, {})
        plain, other = by_arm.get("samples", {}), by_arm.get(arm, {})
        both = [seed for seed in other if seed in plain]
        if len(both) > 2:
            gains = {f: [other[seed][f] - plain[seed][f] for seed in both] for f in FIGURES}
            yield (name, model, norm, arm), mean([plain[seed]["auc"] for seed in both]), gains


def half(values: list[float]) -> float:
    """Half of the 95 % interval of the mean."""
    return t_95(len(values) - 1) * stdev(values) / len(values) ** 0.5


if __name__ == "__main__":
    main()
