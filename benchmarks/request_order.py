"""What does it cost in quality to train on requests in random order, next to samples in random order?

    python -m benchmarks.request_order                       # twenty seeds
    python -m benchmarks.request_order --models din --seeds 3

Both arms have the same samples, first values and settings; a batch of 64 samples holds those of some 8
requests, or of as many as 64. A seed draws users of MovieLens-1M, first values and order. `rated`: a
request is 8 ratings of a user in a row, liked or not; `drawn`: one liked movie and 7 drawn ones. Models
normalise by the batch (`batch`: Dice, batch normalisation) or not (`none`: PReLU, none). Runs that are in
the result file already are not made again.
"""

from __future__ import annotations

import argparse
import math
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch import nn

from benchmarks.harness import add, conditions, stored
from benchmarks.order import RAW
from hotrows import Adagrad, Schema, Sequence, Sparse, Time, TrainConfig, Trainer, models
from hotrows.data import EncodedData, prepare
from hotrows.datasets import event_samples
from hotrows.datasets.movielens import LIKED
from hotrows.train.step_trainer import keep_freed_memory

NAME, QUESTION = "request_order", __doc__.splitlines()[0]
CANDIDATES, USERS = 8, {"rated": 320, "drawn": 320}
SETS, MODELS, NORMS, ARMS = (
    ("rated", "drawn"),
    ("din", "deepfm", "hstu", "dien"),
    ("batch", "none"),
    ("samples", "requests"),
)
FIGURES = ("auc", "gauc", "log_loss")
SIZES: dict[str, Any] = {"dim": 8, "hidden": (64, 32)}
CONFIG = TrainConfig(
    batch_size=64,
    epochs=1,
    row_optimizer=Adagrad(),
    linear_paths="plain",
    plan_depth=0,
    evaluate_every=1 << 30,
)
EXPANDED = Schema(
    features=(
        *map(Sparse, ("user", "gender", "age", "occupation", "movie")),
        Sequence("history", column="movie", vocabulary="movie", max_length=20),
    ),
    label="label",
    group="request",
    time=Time("at"),
    user="user",
    histories=("history",),
)
ONCE = replace(
    EXPANDED, group=None, request="request", shared=("user", "gender", "age", "occupation", "history")
)


def main() -> None:
    parser = argparse.ArgumentParser(description=QUESTION)
    parser.add_argument("--sets", nargs="+", default=SETS, choices=SETS)
    parser.add_argument("--models", nargs="+", default=MODELS, choices=MODELS)
    parser.add_argument("--norms", nargs="+", default=NORMS, choices=NORMS)
    parser.add_argument("--seeds", type=int, default=20)
    args = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()
    for seed, name in product(range(args.seeds), args.sets):
        runs = [[name, *key, str(seed)] for key in product(args.models, args.norms, ARMS)]
        runs = [run for run in runs if not _known(run)]
        with tempfile.TemporaryDirectory() as folder:
            data = made(name, seed, Path(folder)) if runs else {}
            for run in runs:
                figures = trained(data[run[3]], run[1], run[2], seed)
                add(NAME, ["runs", *run], figures, {"question": QUESTION, **conditions(1)})
                print(*run, figures, flush=True)
    print(*summary(), sep="\n")


def _known(run: list[str]) -> bool:
    place = stored(NAME).get("runs", {})
    for key in run:
        place = place.get(key, {})
    return bool(place)


def made(name: str, seed: int, folder: Path) -> dict[str, EncodedData]:
    """The samples of some users, by arm."""
    random = np.random.default_rng(seed)
    user, movie, rating, at = np.loadtxt(
        RAW / "movielens_1m_ratings.csv.gz", np.int64, delimiter=",", skiprows=1
    ).T
    chosen = np.isin(user, random.choice(user.max(), USERS[name], replace=False) + 1)
    order = np.flatnonzero(chosen)[np.lexsort((at[chosen], user[chosen]))]
    user, movie, rating, at = user[order], movie[order], rating[order], at[order]
    liked, at = rating >= LIKED, at + 10**9  # a place in time, as seconds
    events = pa.table({"user": user[liked], "movie": movie[liked], "at": at[liked]})
    make = {"rated": _rated, "drawn": _drawn}[name]
    parts = make(
        pa.table({"user": user, "movie": movie, "at": at, "label": liked.astype(np.int64)}),
        events,
        seed,
        folder,
    )
    parts = {part: _with_users(samples) for part, samples in parts.items()}
    train = parts.pop("train")
    return {
        arm: prepare(train, schema, folder / arm, **parts, events=events)
        for arm, schema in (("samples", EXPANDED), ("requests", ONCE))
    }


def _rated(ratings: pa.Table, events: pa.Table, seed: int, folder: Path) -> dict[str, pa.Table]:
    """Requests of ratings in a row, at the time of the first; the last tenth of each user's tests."""
    user, at = ratings["user"].to_numpy(), ratings["at"].to_numpy()
    _, first, inverse, counts = np.unique(
        user, return_index=True, return_inverse=True, return_counts=True
    )
    page = (np.arange(len(user)) - first[inverse]) // CANDIDATES
    _, begin, request = np.unique(np.stack([user, page]), axis=1, return_index=True, return_inverse=True)
    pages = -(-counts // CANDIDATES)[inverse]
    tenth = np.maximum(pages // 10, 1)
    part = np.select([page >= pages - tenth, page >= pages - 2 * tenth], [2, 1], 0)
    samples = ratings.set_column(2, "at", pa.array(at[begin[request]])).append_column(
        "request", pa.array(request)
    )
    return {
        name: samples.filter(pa.array(part == k))
        for k, name in enumerate(("train", "validation", "test"))
    }


def _drawn(ratings: pa.Table, events: pa.Table, seed: int, folder: Path) -> dict[str, pa.Table]:
    """A liked movie and drawn ones that the user never liked; every fourth such request trains."""
    columns = {"user": "user", "time": "at", "item": "movie"}
    negatives = CANDIDATES - 1
    paths = event_samples.samples_of(
        events, folder / "drawn", **columns, num_negatives=negatives, last=3, seed=seed
    )
    parts = {name: pa.parquet.read_table(path) for name, path in paths.items()}
    return parts | {
        "train": parts["train"].filter(pa.array(parts["train"]["request"].to_numpy() % 4 == 0))
    }


def _with_users(samples: pa.Table) -> pa.Table:
    lines = (RAW / "movielens_1m_users.dat").read_text("latin-1").splitlines()
    about = np.array([line.split("::")[:4] for line in lines])
    rows = about[np.searchsorted(about[:, 0].astype(np.int64), samples["user"].to_numpy())]
    for k, name in enumerate(("gender", "age", "occupation"), 1):
        samples = samples.append_column(name, pa.array(rows[:, k].tolist()))
    return samples


def trained(data: EncodedData, model: str, norm: str, seed: int, **changes: Any) -> dict[str, float]:
    """Figures of the test part."""
    torch.manual_seed(seed)
    with tempfile.TemporaryDirectory() as folder:
        config = replace(CONFIG, seed=seed, **changes)
        result = Trainer(data, config, Path(folder) / "run", model=built(model, norm, data.schema)).fit(
            verbose=False
        )
    assert result.test is not None
    return {name: round(getattr(result.test, name), 6) for name in FIGURES}


def built(model: str, norm: str, schema: Schema) -> models.Model:
    if model == "deepfm":
        return models.build(model, schema, **SIZES, batch_norm=norm == "batch")
    made = models.build(model, schema, **SIZES, activation="dice" if norm == "batch" else "prelu")
    if norm == "none":
        made.norm = nn.Identity()
    return made


def summary() -> list[str]:
    """A line for each set, model, normalisation and figure."""
    return [
        f"{' '.join(key):22} {len(less):3} seeds  {figure:8} {level:.4f} "
        f"{mean(less):+.5f} ± {half(less):.5f}"
        for key, figure, level, less in differences()
    ]


def differences() -> Iterator[tuple[tuple[str, ...], str, float, list[float]]]:
    """Of each set, model and normalisation: a figure in order of samples, and by seed what requests add."""
    for (name, of_set), figure in product(stored(NAME)["runs"].items(), FIGURES):
        for model, norm in product(MODELS, NORMS):
            by_arm = of_set.get(model, {}).get(norm, {})
            plain, other = (by_arm.get(arm, {}) for arm in ARMS)
            less = [other[seed][figure] - plain[seed][figure] for seed in plain if seed in other]
            if len(less) > 2:
                yield (
                    (name, model, norm),
                    figure,
                    mean([plain[s][figure] for s in plain if s in other]),
                    less,
                )


def half(values: list[float]) -> float:
    """Half of the 95 % interval of the mean."""
    freedom = len(values) - 1
    return (1.96 + 2.37 / freedom + 2.8 / freedom**2) * stdev(values) / math.sqrt(len(values))


if __name__ == "__main__":
    main()
