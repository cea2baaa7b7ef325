"""What do models reach with every setting left open? Beside logistic regression on one-hot ids.

    python -m benchmarks.defaults                                # what is not there yet
    python -m benchmarks.defaults --sets criteo --models lr --again
    python -m benchmarks.defaults --sets adult --config precision=\\"bfloat16\\" --named bfloat16

Each model is trained by `hotrows.Trainer` with `TrainConfig(model=NAME, seed=SEED)` and nothing else; the
reference is fitted to convergence (`benchmarks.one_hot`). Figures are added to those that are there.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from statistics import mean
from typing import Any

import torch

from benchmarks import defaults_data, one_hot
from benchmarks.harness import add, conditions, stored
from hotrows.train import Trainer
from hotrows.train.config import TrainConfig
from hotrows.train.metrics import Metrics

NAME, QUESTION = "defaults", __doc__.splitlines()[0]
REFERENCE, SCIKIT_LEARN = "one-hot", "scikit-learn"
MODELS = ("lr", "fm", "dnn", "deepfm", "dcnv2")
SEQUENCE_MODELS = ("din", "dien")
WITH_HISTORY = ("movielens", "taobao")


def main() -> None:
    args = _arguments()
    torch.set_num_threads(args.threads)
    for name in args.sets:
        more = SEQUENCE_MODELS if name in WITH_HISTORY else ()
        for model in args.models or (REFERENCE, *MODELS, *more):
            is_one_fit = model in (REFERENCE, SCIKIT_LEARN) and name in defaults_data.GIVEN
            for seed in args.seeds[:1] if is_one_fit else args.seeds:
                key = f"{model}, {args.named}" if args.named else model
                if args.again or str(seed) not in _stored().get(name, {}).get(key, {}):
                    figures = _figures(name, model, seed, args)
                    if not args.dry:
                        facts = {"question": QUESTION, **conditions(torch.get_num_threads())}
                        add(NAME, ["sets", name, key, str(seed)], {**figures, "commit": _commit()}, facts)
                    shown = {n: f"{v:.4f}" if isinstance(v, float) else v for n, v in figures.items()}
                    print(f"{name} {key} {seed}: {shown}", flush=True)
    if not args.dry:
        sets = _stored()
        print(table(sets), strength_table(sets), named_table(sets, "bfloat16"), sep="\n\n")


def _figures(name: str, model: str, seed: int, args: argparse.Namespace) -> dict[str, Any]:
    data = defaults_data.load(name, seed, args.raw)
    begin = time.perf_counter()
    if model in (REFERENCE, SCIKIT_LEARN):
        fit = one_hot.fitted if model == REFERENCE else one_hot.fitted_by_scikit_learn
        metrics, strength, aucs = fit(data)
        chosen = {**_of(metrics), "strength": strength, "auc_by_strength": aucs}
        return {**chosen, "seconds": _since(begin)}
    changes = {key: json.loads(value) for key, value in (text.split("=", 1) for text in args.config)}
    settings = {"model": model, "seed": seed, "plan_depth": 0, **changes}  # 0 changes no bit
    config = TrainConfig.from_fields(settings)
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(data, config, Path(folder) / "run")
        result = trainer.fit()
        losses = trainer.recommender.losses
        with trainer.recommender.as_trained():
            as_trained = trainer.evaluate("test")
    assert result.test is not None
    assert trainer.config.batch_size is not None
    return {
        **_of(result.test),
        "log_loss_as_trained": as_trained.log_loss,
        "scale": losses[0].scale,
        "steps": result.steps,
        "best_step": result.best_step,
        "epochs": round(result.steps * trainer.config.batch_size / data.parts["train"].rows, 2),
        "seconds": _since(begin),
    }


def _commit() -> str:
    """The commit, with a + where the working tree has changed since."""
    made = conditions(torch.get_num_threads())
    return made["commit"][:7] + ("+" if made["uncommitted_changes"] else "")


def _of(metrics: Metrics) -> dict[str, Any]:
    return {"auc": metrics.auc, "log_loss": metrics.log_loss}


def _since(begin: float) -> float:
    return round(time.perf_counter() - begin, 1)


def table(sets: dict[str, Any]) -> str:
    """The figures as a Markdown table: the reference's mean AUC, and how far each model's is above it,
    mean (lowest to highest) over seeds, with a letter for each commit and the seeds trained there."""
    models = [model for model in (*MODELS, *SEQUENCE_MODELS) if any(model in s for s in sets.values())]
    lines = [f"| | {' | '.join((REFERENCE, *models))} |", "|---" * (2 + len(models)) + "|"]
    letters: dict[str, str] = {}
    for name, of_set in sets.items():
        reference = {seed: figures["auc"] for seed, figures in of_set.get(REFERENCE, {}).items()}
        if not reference:
            continue
        if name in defaults_data.GIVEN:  # fitted once, to the same data
            (auc,) = set(reference.values())
            reference = {seed: auc for seeds in of_set.values() for seed in seeds}
        cells = [f"{mean(reference.values()):.4f}"]
        for model in models:
            seeds = {seed: f for seed, f in sorted(of_set.get(model, {}).items()) if seed in reference}
            above = [figures["auc"] - reference[seed] for seed, figures in seeds.items()]
            spread = f" ({min(above):+.4f} to {max(above):+.4f})" if len(above) > 1 else ""
            trained: dict[str, str] = {}
            for seed, figures in seeds.items():
                letter = letters.setdefault(figures.get("commit", "?"), chr(ord("a") + len(letters)))
                trained[letter] = trained.get(letter, letter) + seed
            cells.append(f"{mean(above):+.4f}{spread} {' '.join(trained.values())}" if above else "")
        lines.append(f"| {name} | {' | '.join(cells)} |")
    commits = ", ".join(f"{letter}: {commit}" for commit, letter in letters.items())
    return "\n".join([*lines, "", f"Commits: {commits}."])


def strength_table(sets: dict[str, Any]) -> str:
    """The reference by its L2 term: the strengths that were chosen, and how far AUC with each strength is
    above that with the chosen one, mean over seeds."""
    lines = [f"| | chosen | {' | '.join(f'{s:g}' for s in one_hot.STRENGTHS)} |"]
    lines.append("|---" * (2 + len(one_hot.STRENGTHS)) + "|")
    for name, of_set in sets.items():
        fits = [fit for _, fit in sorted(of_set.get(REFERENCE, {}).items()) if "auc_by_strength" in fit]
        if fits:
            chosen = ", ".join(f"{fit['strength']:g}" for fit in fits)
            above = [
                f"{mean(fit['auc_by_strength'][str(s)] - fit['auc'] for fit in fits):+.4f}"
                for s in one_hot.STRENGTHS
            ]
            lines.append(f"| {name} | {chosen} | {' | '.join(above)} |")
    return "\n".join(lines)


def named_table(sets: dict[str, Any], name: str) -> str:
    """What settings stored by a name change in AUC, of each set and model: mean (lowest to highest)."""
    lines = [f"| | model | seeds | AUC | {name} |", "|---|---|---|---|---|"]
    for of, models in sets.items():
        for model in MODELS:
            plain, changed = models.get(model, {}), models.get(f"{model}, {name}", {})
            by_seed = [(plain[seed]["auc"], changed[seed]["auc"]) for seed in changed if seed in plain]
            if by_seed:
                above = [b - a for a, b in by_seed]
                spread = f" ({min(above):+.4f} to {max(above):+.4f})" if len(above) > 1 else ""
                cells = (of, model, len(above), f"{mean(a for a, _ in by_seed):.4f}")
                lines.append(f"| {' | '.join(map(str, cells))} | {mean(above):+.4f}{spread} |")
    return "\n".join(lines)


def _stored() -> dict[str, Any]:
    return stored(NAME).get("sets", {})


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=QUESTION)
    parser.add_argument("--sets", nargs="+", choices=defaults_data.SETS, default=list(defaults_data.SETS))
    parser.add_argument("--models", nargs="+", help="default: all of each set")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--config", action="append", default=[], metavar="NAME=JSON", help="a setting")
    parser.add_argument("--named", help="what figures with other settings are stored as")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--raw", type=Path, default=defaults_data.RAW, help="folder of raw files")
    parser.add_argument("--again", action="store_true", help="also what is there already")
    parser.add_argument("--dry", action="store_true", help="write nothing")
    return parser.parse_args()


if __name__ == "__main__":
    main()
