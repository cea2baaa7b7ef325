"""How good is each model on MovieLens-1M? Several seeds, and what sequence models add to pooling.

    python -m benchmarks.models movielens
    python -m benchmarks.models movielens --models hstu "din, code" --seeds 5

Every model is trained by `hotrows.Trainer` with its defaults and those of the library, but for what
its entry says. The test part is each user's last tenth. `dnn` sees the history as the mean of its
vectors: what only pools. Runs that are in the result file are not made again, unless with `--again`;
each has its commit.
"""

import argparse
import json
import math
import tempfile
import time
from itertools import product
from pathlib import Path
from statistics import mean, stdev

import torch

from benchmarks.defaults_data import RAW
from benchmarks.harness import add, conditions, measured
from benchmarks.workload import DATA
from hotrows.data import EncodedData, datasets
from hotrows.optim import Adagrad
from hotrows.train import Trainer
from hotrows.train.config import TrainConfig

# Linear weights step far: at the default rate, 0.02, one epoch leaves them at AUC 0.758.
SETTINGS: dict[str, dict] = {"lr": {"row_optimizer": Adagrad(lr=0.3), "epochs": 3}}
FIGURES = ("auc", "gauc", "log_loss")
T95 = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145),
    *(2.131, 2.120, 2.110, 2.101, 2.093),
)  # Student's, two-sided, by degrees of freedom

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


def _movielens() -> EncodedData:
    """The data, made where it is not there."""
    folder = DATA / "movielens_1m"
    if (folder / "data.json").exists():
        return EncodedData.open(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    return datasets.prepare(datasets.BY_NAME["movielens_1m"], RAW, folder)


SETS = {"movielens": _movielens}


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
    question, file = __doc__.split("\n")[0], file_of(args.set)
    for seed, name in product(range(args.seeds), args.models or MODELS):
        model, options = MODELS[name]
        options = options | _pairs(args.option)
        settings = SETTINGS.get(name, {}) | _pairs(args.config)
        row = {"model": model, "options": options, "settings": {k: str(v) for k, v in settings.items()}}
        runs = earlier(measured(file, ["models", name]), row)
        if seed in runs and not args.again:
            continue
        where = conditions(args.threads)
        run = _run(SETS[args.set](), model, options, seed, settings)
        runs[seed] = run | {"commit": where["commit"]}
        row |= {**summary(list(runs.values())), "runs": [runs[key] for key in sorted(runs)]}
        print(f"seed {seed} {name:18} {_line(run)}; {len(runs)} runs: {_line(row)}", flush=True)
        if not args.dry:
            add(file, ["models", name], row | where, {"question": question})


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
    return T95[len(values) - 2] * stdev(values) / math.sqrt(len(values))


def _line(row: dict) -> str:
    within = f" +- {row['auc_interval']:.4f}" if "auc_interval" in row else ""
    seconds = f" {row['seconds']:.0f} s" if "seconds" in row else ""
    return f"AUC {row['auc']:.4f}{within} gAUC {row['gauc']:.4f} log loss {row['log_loss']:.4f}{seconds}"


def _pairs(texts: list[str]) -> dict:
    return {name: json.loads(value) for name, value in (text.split("=", 1) for text in texts)}


if __name__ == "__main__":
    main()
