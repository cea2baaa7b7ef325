"""How good is each model on MovieLens-1M? Several seeds, and what sequence models add to pooling.

    python -m benchmarks.models ENC                        # ENC: hotrows data movielens_1m --out ENC
    python -m benchmarks.models ENC --models din dien --seeds 3

Every model is trained by `hotrows.Trainer` with its defaults and those of the library, but for what
its entry says; the test part is each user's last tenth. Figures are added to those that are there, so
the table may be made in pieces. `dnn` sees the history as the mean of its vectors: what only pools.
"""

import argparse
import json
import math
import tempfile
import time
from pathlib import Path
from statistics import mean, stdev

import torch

from benchmarks.harness import conditions, stored, write
from hotrows.config import TrainConfig
from hotrows.data import EncodedData
from hotrows.optim import Adagrad
from hotrows.train import Trainer

NAME = "models-movielens"
# Linear weights step far: at the default rate, 0.02, one epoch leaves them at AUC 0.758.
SETTINGS: dict[str, dict] = {"lr": {"row_optimizer": Adagrad(lr=0.3), "epochs": 3}}
T95 = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 9: 2.262}  # Student's, two-sided

# name of the row -> model, options
MODELS: dict[str, tuple[str, dict]] = {
    "lr": ("lr", {}),
    "fm": ("fm", {}),
    "dnn": ("dnn", {}),
    "wide_deep": ("wide_deep", {}),
    "deepfm": ("deepfm", {}),
    "dcnv2": ("dcnv2", {}),
    "final": ("final", {}),
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--option", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--config", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--dry", action="store_true", help="write nothing")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    data = EncodedData.open(args.data)
    for name in args.models:
        model, options = MODELS[name]
        options = {**options, **_pairs(args.option)}
        settings = SETTINGS.get(name, {}) | _pairs(args.config)
        runs = [_run(data, model, options, seed, settings) for seed in range(args.seeds)]
        row = {"model": model, "options": options, **_summary(runs), "runs": runs}
        row["settings"] = {key: str(value) for key, value in settings.items()}
        row |= conditions(args.threads)
        print(f"{name:18} {_line(row)}", flush=True)
        if not args.dry:
            write(NAME, {"question": __doc__.split("\n")[0], "models": _earlier() | {name: row}})


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


def _summary(runs: list[dict]) -> dict:
    summary = {}
    for name in ("auc", "gauc", "log_loss"):
        values = [run[name] for run in runs]
        summary[name] = mean(values)
        if len(values) > 1:
            summary[f"{name}_interval"] = T95[len(values) - 1] * stdev(values) / math.sqrt(len(values))
    return summary


def _line(row: dict) -> str:
    within = f" +- {row['auc_interval']:.4f}" if "auc_interval" in row else ""
    seconds = mean(run["seconds"] for run in row["runs"])
    return (
        f"AUC {row['auc']:.4f}{within}  gAUC {row['gauc']:.4f}  log loss {row['log_loss']:.4f}  "
        f"validation {mean(run['validation_auc'] for run in row['runs']):.4f}  {seconds:.0f} s a run"
    )


def _pairs(texts: list[str]) -> dict:
    return {name: json.loads(value) for name, value in (text.split("=", 1) for text in texts)}


def _earlier() -> dict:
    return stored(NAME).get("models", {})


if __name__ == "__main__":
    main()
