"""Trained side by side by one recipe: do models of this library and of the peers test alike?

    python -m benchmarks.accuracy                               # what is not there yet
    python -m benchmarks.accuracy --sets criteo --models lr dnn --again
    python -m benchmarks.accuracy --quick                       # few samples; nothing is written

Every arm trains on the same batches in the same order, with Adagrad on the rows and Adam on all else,
from first values drawn alike (`arms/accuracy_arm.py`). A difference of mean AUC counts as noise where
it is within two standard errors; with so many pairs, about one in twenty is beyond by chance.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from benchmarks import accuracy_data
from benchmarks.harness import ROOT, conditions, stored, write
from benchmarks.peers import python_of
from benchmarks.recipes import EPOCHS_OF, MODELS_OF, RECIPES, SEEDS_OF, Recipe

NAME, QUESTION = "accuracy", __doc__.splitlines()[0]
OURS = "hotrows"
QUICK_SAMPLES = 1024
TIMEOUT = 3600  # seconds for all seeds of an arm


def main() -> None:
    args = _arguments()
    for name in args.sets:
        accuracy_data.make(name, args.raw)
        for model in MODELS_OF[name]:
            if args.models and model not in args.models:
                continue
            comparison = {"arms": {}} if args.quick else _stored(name, model)
            seeds = 2 if args.quick else args.seeds or SEEDS_OF[name]
            for library in (OURS, *RECIPES[model].theirs):
                known = len(comparison["arms"].get(library, {}).get("auc", []))
                if known < seeds or args.again:
                    arm = comparison["arms"][library] = _trained(library, name, model, seeds, args)
                    print(f"  {name} {model} {library}: {_figures(arm)}", flush=True)
            comparison["setting"] = {"epochs": EPOCHS_OF[name], "batch_size": RECIPES[model].batch_size}
            compare(comparison, RECIPES[model])
            print("\n".join(lines(name, model, comparison)), flush=True)
            if not args.quick:
                _store(name, model, comparison)


def compare(comparison: dict[str, Any], recipe: Recipe) -> None:
    """Writes into `comparison` how the mean AUC of ours differs from each peer's."""
    ours = comparison["arms"][OURS]["auc"]
    comparison["remark"] = recipe.remark
    comparison["differences"] = {}
    for library in recipe.theirs:
        theirs = comparison["arms"][library]["auc"]
        error = (_variance(ours) / len(ours) + _variance(theirs) / len(theirs)) ** 0.5
        difference = mean(ours) - mean(theirs)
        comparison["differences"][library] = {
            "difference": difference,
            "standard_error": error,
            "within_noise": abs(difference) <= 2 * error,
        }


def lines(name: str, model: str, comparison: dict[str, Any]) -> list[str]:
    """The pairs of a model as lines of a table."""
    ours = comparison["arms"][OURS]["auc"]
    text = []
    for library, difference in comparison["differences"].items():
        theirs = comparison["arms"][library]["auc"]
        verdict = "within noise" if difference["within_noise"] else "BEYOND NOISE"
        text.append(
            f"{name:10} {model:12} {library:14} {mean(ours):.4f} +- {_deviation(ours):.4f}"
            f"  {mean(theirs):.4f} +- {_deviation(theirs):.4f}"
            f"  {difference['difference']:+.4f} (error {difference['standard_error']:.4f})  {verdict}"
            f"  {comparison['remark']}".rstrip()
        )
    return text


def _trained(library: str, name: str, model: str, seeds: int, args: argparse.Namespace) -> dict[str, Any]:
    python = sys.executable if library == OURS else str(python_of("ctr"))
    command = [python, "-W", "ignore", "-m", "benchmarks.arms.accuracy_arm"]
    command += ["--library", library, "--set", name, "--model", model]
    command += ["--seeds", str(seeds), "--threads", str(args.threads)]
    command += ["--samples", str(QUICK_SAMPLES)] if args.quick else []
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": str(args.threads)},
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
    )
    if done.returncode:
        sys.exit(f"{' '.join(command[4:])} failed:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1]) | {"conditions": conditions(args.threads)}


def _stored(name: str, model: str) -> dict[str, Any]:
    """What is known of a model on a data set."""
    return _all_stored().get(name, {}).get(model, {"arms": {}})


def _store(name: str, model: str, comparison: dict[str, Any]) -> None:
    """Adds it to what others may have stored meanwhile."""
    results = _all_stored()
    results.setdefault(name, {})[model] = comparison
    write(NAME, {"question": QUESTION, "sets": results})


def _all_stored() -> dict[str, Any]:
    return stored(NAME).get("sets", {})


def _figures(arm: dict[str, Any]) -> str:
    return f"{mean(arm['auc']):.4f} +- {_deviation(arm['auc']):.4f}, {arm['seconds']:.0f} s"


def _deviation(values: list[float]) -> float:
    return stdev(values) if len(values) > 1 else 0.0


def _variance(values: list[float]) -> float:
    return _deviation(values) ** 2


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=QUESTION)
    known = accuracy_data.SETS
    parser.add_argument("--sets", nargs="+", choices=known, default=list(known))
    parser.add_argument("--models", nargs="+", choices=RECIPES, help="default: all of each set")
    parser.add_argument("--seeds", type=int, help="default: more where there are few rows")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--raw", type=Path, default=accuracy_data.RAW, help="folder of raw files")
    parser.add_argument("--again", action="store_true", help="also what is there already")
    parser.add_argument("--quick", action="store_true", help="few samples; nothing is written")
    return parser.parse_args()


if __name__ == "__main__":
    main()
