"""How good is each model on MovieLens-1M? Several seeds, and what sequence models add to pooling.

    python -m benchmarks.models movielens
    python -m benchmarks.models short_videos --models hstu "din, code" --seeds 5

Every model is trained by `hotrows.Trainer` with its defaults and those of the library, but for what
its entry says. The test part of MovieLens is each user's last tenth; a seed of `short_videos` also draws
the data. `dnn` sees the history as the mean of its vectors: what only pools. Runs that are in the result
file are not made again, unless with `--again`; each has its commit.
"""

import argparse
import json
import math
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch

from benchmarks import short_videos
from benchmarks.accuracy_data import RAW
from benchmarks.harness import add, conditions, measured
from benchmarks.workload import DATA
from hotrows import datasets
from hotrows.config import TrainConfig
from hotrows.data import EncodedData
from hotrows.optim import Adagrad
from hotrows.train import Trainer

# Linear weights step far: at the default rate, 0.02, one epoch leaves them at AUC 0.758.
SETTINGS: dict[str, dict] = {"lr": {"row_optimizer": Adagrad(lr=0.3), "epochs": 3}}
FIGURES = ("auc", "gauc", "log_loss")
T95 = {
    1: 12.706,
    2: 4.303,
    3: 3.182,
    4: 2.776,
    5: 2.571,
    6: 2.447,
    7: 2.365,
    8: 2.306,
    9: 2.262,
}  # Student's, two-sided

# name of the row -> model, options
MODELS: dict[str, tuple[str, dict]] = {
    "lr": ("lr", {}),
    "fm": ("fm", {}),
    "dnn": ("dnn", {}),
    "wide_deep": ("wide_deep", {}),
    "deepfm": ("deepfm", {}),
    "dcnv2": ("dcnv2", {}),
    "mmoe": ("mmoe", {}),
    "ple": ("ple", {}),
    "din, paper": ("din", {"form": "paper"}),
    "din, code": ("din", {"form": "code"}),
    "dien, paper": ("dien", {"form": "paper"}),
    "dien, code": ("dien", {"form": "code"}),
    "hstu": ("hstu", {}),
    "hstu, one layer": ("hstu", {"layers": 1}),
    "can": ("can", {}),
    "can on din": ("can", {"base": "din"}),
    "can on dien": ("can", {"base": "dien"}),
}
INTERESTS = ("din", "dien", "hstu", "can")


@dataclass(frozen=True)
class DataSet:
    """What models are trained on, and how.

    make: writes the data of a seed into a folder; name: of the folder in which it is kept.
    models: those that are trained where none is named. options: of every model.
    histories: what models read that compare a history with the candidate (default: what they choose).
    known: figures that the data of a seed itself has.
    """

    question: str
    make: Callable[[Path, int], EncodedData]
    name: str
    models: tuple[str, ...]
    options: dict[str, Any] = field(default_factory=dict)
    histories: list[list[str]] | None = None
    known: Callable[[int], dict] | None = None

    def load(self, seed: int) -> EncodedData:
        """The data of a seed, made where it is not there."""
        folder = DATA / self.name.format(seed=seed)
        if (folder / "data.json").exists():
            return EncodedData.open(folder)
        folder.parent.mkdir(parents=True, exist_ok=True)
        return self.make(folder, seed)

    def options_of(self, model: str) -> dict[str, Any]:
        compares = self.histories is not None and model in INTERESTS
        return {**self.options, **({"histories": self.histories} if compares else {})}


SETS = {
    "movielens": DataSet(
        __doc__.split("\n")[0],
        lambda folder, seed: datasets.prepare(datasets.BY_NAME["movielens_1m"], RAW, folder),
        "movielens_1m",
        tuple(MODELS),
    ),
    "short_videos": DataSet(
        "How good is each model on drawn short videos, where order and age of what was watched count?",
        short_videos.make,
        "short-videos-{seed}",
        ("hstu", "dnn", "din, code", "hstu, one layer", "dien, code"),
        {"dim": 8},
        short_videos.HISTORIES,
        short_videos.known,
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("set", choices=SETS)
    parser.add_argument("--models", nargs="+", choices=MODELS)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--option", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--config", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--again", action="store_true", help="make runs that are there, too")
    parser.add_argument("--dry", action="store_true", help="write nothing")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    data_set, file = SETS[args.set], file_of(args.set)
    for seed, name in product(range(args.seeds), args.models or data_set.models):
        model, options = MODELS[name]
        options = data_set.options_of(model) | options | _pairs(args.option)
        settings = SETTINGS.get(name, {}) | _pairs(args.config)
        row = {"model": model, "options": options, "settings": {k: str(v) for k, v in settings.items()}}
        runs = earlier(measured(file, ["models", name]), row)
        if seed in runs and not args.again:
            continue
        where = conditions(args.threads)
        run = _run(data_set.load(seed), model, options, seed, settings)
        runs[seed] = run | {"commit": where["commit"]}
        row |= {**summary(list(runs.values())), "runs": [runs[key] for key in sorted(runs)]}
        print(f"seed {seed} {name:18} {_line(run)}; {len(runs)} runs: {_line(row)}", flush=True)
        if not args.dry:
            add(file, ["models", name], row | where, {"question": data_set.question})
    for seed in range(args.seeds) if data_set.known and not args.dry else ():
        if measured(file, ["known", str(seed)]) is None:
            add(file, ["known", str(seed)], data_set.known(seed), {"question": data_set.question})


def earlier(stored: dict | None, row: dict) -> dict[int, dict]:
    """The runs of a stored row by seed, with their commits; none if its model had other settings."""
    if stored is None or any(stored[key] != value for key, value in row.items()):
        return {}
    return {run["seed"]: {"commit": stored["commit"], **run} for run in stored["runs"]}


def file_of(data_set: str) -> str:
    return f"models-{data_set.replace('_', '-')}"


def _run(data: EncodedData, model: str, options: dict, seed: int, changes: dict) -> dict:
    config = TrainConfig(model=model, model_options=options, seed=seed, **changes)
    with tempfile.TemporaryDirectory() as folder:
        begin = time.perf_counter()
        result = Trainer(data, config, Path(folder) / "run").fit()
    assert result.test is not None
    return {
        "seed": seed,
        "validation_auc": result.validation.auc if result.validation else None,
        "auc": result.test.auc,
        "gauc": result.test.gauc,
        "log_loss": result.test.log_loss,
        "steps": result.steps,
        "best_step": result.best_step,
        "seconds": round(time.perf_counter() - begin, 1),
        "samples_per_second": result.samples_per_second,
    }


def summary(runs: list[dict]) -> dict:
    """Means of figures, and half of their 95 % intervals where there are several runs."""
    figures = {}
    for name in FIGURES:
        values = [run[name] for run in runs]
        figures[name] = mean(values)
        if len(values) > 1:
            figures[f"{name}_interval"] = half(values)
    return figures


def half(values: list[float]) -> float:
    """Half of the 95 % interval of the mean."""
    return T95[len(values) - 1] * stdev(values) / math.sqrt(len(values))


def _line(row: dict) -> str:
    within = f" +- {row['auc_interval']:.4f}" if "auc_interval" in row else ""
    seconds = f" {row['seconds']:.0f} s" if "seconds" in row else ""
    return f"AUC {row['auc']:.4f}{within} gAUC {row['gauc']:.4f} log loss {row['log_loss']:.4f}{seconds}"


def _pairs(texts: list[str]) -> dict:
    return {name: json.loads(value) for name, value in (text.split("=", 1) for text in texts)}


if __name__ == "__main__":
    main()
