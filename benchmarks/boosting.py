"""Is the default model as good as logistic regression, LightGBM and CatBoost by their defaults?

    python -m benchmarks.peers boosting                         # once: the environment of the peers
    python -m benchmarks.boosting --raw FOLDER_OF_RAW_FILES     # what is not there yet
    python -m benchmarks.boosting --sets adult --arms ours --again
    python -m benchmarks.boosting --compare                     # of what ran: paired differences

All arms get the samples of one prepared set, as it is split there: LightGBM and CatBoost get ids as
categories, numbers, lists of few values as 0 and 1 of each value, and no histories; they stop early on
the validation part. Logistic regression is scikit-learn's on one-hot ids; the validation part chooses its
L2 term. Every arm runs on one thread; seconds are those of the processor, for fitting and predicting.
`ours` is the default, `plain` has no effects, `once` reads samples once, as the default does with many
(`--larger`: sets of 260,000 to 2.8 million samples). `before` in the result file is the default of commit
e836f3c8. A comparison is of the seeds on which all of its arms ran: `compared` is `ours` less the peer of
the largest mean AUC, `difference` is `ours` less `before`. A hash of its name puts a set into half A, on
which constants were chosen, or B.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
import time
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks import defaults_data, defaults_more, one_hot
from benchmarks.harness import ROOT, add, conditions, environment_of, stored
from benchmarks.paired import auc_of, difference, error_of, placed
from benchmarks.peers import RECIPES, python_of
from benchmarks.workload import DATA
from hotrows.data import EncodedData, Loader, Part
from hotrows.train import Trainer
from hotrows.train.config import TrainConfig
from hotrows.train.metrics import compute_metrics

NAME, LARGER, QUESTION = "boosting", "boosting-larger", __doc__.splitlines()[0]
PEERS = ("one-hot LR", "lightgbm", "catboost")
OURS: dict[str, dict[str, Any]] = {
    "ours": {},
    "plain": {"plain": True},
    "once": {"epochs": 1},
    "lr": {"model": "lr"},
}
MADE = {**defaults_data.SETS, **defaults_more.MORE, **defaults_more.LARGER}
SETS = [name for name in MADE if name not in defaults_more.LARGER]
MOST_SEEDS = 10
CHANCES = DATA / "boosting"  # probabilities of test parts, which `--compare` reads
MOST_VALUES = 64  # of a list that becomes columns of 0 and 1


def main() -> None:
    args = _arguments()
    torch.set_num_threads(1)
    if args.compare:
        for name in args.sets:
            _compare(name, args.raw)
        return
    for name in args.sets:
        for seed in args.seeds:
            for arm in args.arms:
                file = LARGER if name in defaults_more.LARGER else NAME
                done = stored(file).get("sets", {}).get(name, {}).get(arm, {})
                if args.again or str(seed) not in done:
                    figures, chances = _figures(name, arm, seed, args.raw)
                    if not args.dry:
                        CHANCES.mkdir(parents=True, exist_ok=True)
                        np.save(_file(name, arm, seed), chances.astype(np.float32))
                        add(file, ["sets", name, arm, str(seed)], figures, _facts())
                    shown = {n: f"{v:.4f}" if isinstance(v, float) else v for n, v in figures.items()}
                    print(f"{name} {arm} {seed}: {shown}", flush=True)


def _facts() -> dict[str, Any]:
    return {"question": QUESTION, **conditions(1), "peers": RECIPES[NAME].installs[0]}


def _compare(name: str, raw: Path) -> None:
    """Adds the default less the best peer, and less its former self, where probabilities were kept."""
    for key, others in (("compared", PEERS), ("difference", ("before",))):
        kept = {
            arm: {seed for seed in range(MOST_SEEDS) if _file(name, arm, seed).exists()}
            for arm in ("ours", *others)
        }
        ran = {arm: seeds for arm, seeds in kept.items() if seeds}
        seeds = sorted(set.intersection(*ran.values())) if ran.keys() > {"ours"} else []
        if seeds:
            add(NAME, ["sets", name, key], _compared(name, [*ran], seeds, raw), _facts())


def _compared(name: str, arms: list[str], seeds: list[int], raw: Path) -> dict[str, Any]:
    """The first arm less the one of the others that has the largest mean AUC."""
    tests = [defaults_data.load(name, seed, raw, MADE[name]).parts["test"] for seed in seeds]
    labels = [_arrays(test)["labels"].astype(np.int64) for test in tests]
    scores = {arm: [np.load(_file(name, arm, seed)) for seed in seeds] for arm in arms}
    ours, *others = arms
    aucs = {
        arm: np.mean([auc_of(*pair) for pair in zip(scores[arm], labels, strict=True)]) for arm in arms
    }
    losses = {
        arm: np.mean([_log_loss(*p) for p in zip(scores[arm], labels, strict=True)]) for arm in arms
    }
    best = max(others, key=lambda arm: aucs[arm])
    shares = [error_of(placed(*pair), pair[1]) for pair in zip(scores[ours], labels, strict=True)]
    return {
        **difference(scores[ours], scores[best], labels, name in defaults_data.GIVEN),
        "best": best,
        "peers": others,
        "seeds": seeds,
        "log_loss": round(float(losses[ours] / min(losses[arm] for arm in others)), 4),
        "test_positives": int(min(np.bincount(labels[0], minlength=2))),
        "of_drawing": round(float(np.mean(shares)), 5),
    }


def _log_loss(chances: np.ndarray, labels: np.ndarray) -> float:
    right = np.where(labels, chances, 1 - chances).astype(np.float64)
    return float(-np.log(right.clip(1e-7)).mean())


def _file(name: str, arm: str, seed: int | str) -> Path:
    return CHANCES / f"{name}-{arm}-{seed}.npy"


def _figures(name: str, arm: str, seed: int, raw: Path) -> tuple[dict[str, Any], np.ndarray]:
    """Figures of an arm, and the probabilities of the test part."""
    data = defaults_data.load(name, seed, raw, MADE[name])
    facts = {"rows": data.parts["train"].rows, "commit": conditions(1)["commit"][:8]}
    if arm in OURS:
        figures, chances = _ours(data, {**OURS[arm], "seed": seed})
    elif arm == "one-hot LR":
        begin = time.process_time()
        fitted = one_hot.fitted_by_scikit_learn(data)
        seconds = round(time.process_time() - begin, 2)
        figures = {"auc": fitted.metrics.auc, "log_loss": fitted.metrics.log_loss, "cpu_seconds": seconds}
        chances = fitted.chances
    else:
        figures, chances = _boosted(data, arm, seed)
    return {**figures, **facts}, chances


def _ours(data: EncodedData, settings: dict[str, Any]) -> tuple[dict[str, Any], np.ndarray]:
    begin = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(data, TrainConfig.from_fields(settings), Path(folder) / "run")
        result = trainer.fit()
        seconds = round(time.process_time() - begin, 2)
        test = Loader(data.parts["test"], 8192, shuffle=False).batches(0)
        chances = np.concatenate(
            [np.asarray(scores).ravel() for scores in trainer.recommender.predict(test)]
        )
    assert result.test is not None and result.validation is not None
    figures = {
        "auc": result.test.auc,
        "log_loss": result.test.log_loss,
        "cpu_seconds": seconds,
        "validation_auc": result.validation.auc,
        "steps": result.steps,
        "best_step": result.best_step,
    }
    return figures, chances


def _boosted(data: EncodedData, library: str, seed: int) -> tuple[dict[str, Any], np.ndarray]:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "data.npz"
        arrays = {part: _arrays(data.parts[part]) for part in ("train", "validation", "test")}
        np.savez(file, **{f"{part}_{k}": a for part, of in arrays.items() for k, a in of.items()})
        done = subprocess.run(
            [python_of(NAME), "-m", "benchmarks.arms.boosting_arm", library, file, str(seed)],
            cwd=ROOT,
            env=environment_of(1),
            capture_output=True,
            text=True,
            check=True,
        )
        chances = torch.from_numpy(np.load(f"{file}.{library}.npy")).double().clamp(1e-7, 1 - 1e-7)
    labels = torch.from_numpy(arrays["test"]["labels"])
    metrics = compute_metrics(chances.logit().float(), labels, None, None)
    of_run = json.loads(done.stdout.splitlines()[-1])
    return {"auc": metrics.auc, "log_loss": metrics.log_loss, **of_run}, chances.numpy()


def _arrays(part: Part) -> dict[str, np.ndarray]:
    """Ids, one column of each feature of one id, numbers and labels."""
    schema, ids, dense, labels = part.schema, [], [], []
    single = {feature.name for feature in schema.sparse if not feature.many}
    for batch in Loader(part, 8192, shuffle=False).batches(0):
        size, columns, numbers = batch.size, [], [batch.dense.numpy()]
        offsets = np.arange(len(batch.ids) + 1) if batch.offsets is None else batch.offsets.numpy()
        for f, name in enumerate(batch.features):
            ends = offsets[f * size : (f + 1) * size + 1]
            values = batch.ids.numpy()[ends[0] : ends[-1]]
            if name in single:
                columns.append(values)
            elif schema.rows_of(name) <= MOST_VALUES:
                has = np.zeros((size, schema.rows_of(name)), np.float32)
                has[np.repeat(np.arange(size), np.diff(ends)), values] = 1
                numbers.append(has)
        ids.append(np.stack(columns, 1) if columns else np.zeros((size, 0), np.int64))
        dense.append(np.hstack(numbers))
        labels.append(batch.labels.numpy())
    return {"ids": np.vstack(ids), "dense": np.vstack(dense), "labels": np.concatenate(labels)}


def half_of(name: str) -> str:
    """A or B, for good."""
    return "AB"[zlib.crc32(name.encode()) % 2]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=QUESTION)
    parser.add_argument("--sets", nargs="+", choices=[*MADE], default=SETS)
    parser.add_argument("--larger", action="store_const", dest="sets", const=[*defaults_more.LARGER])
    parser.add_argument("--arms", nargs="+", choices=(*PEERS, *OURS), default=[*PEERS, *OURS])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--raw", type=Path, default=defaults_data.RAW, help="folder of raw files")
    parser.add_argument("--again", action="store_true", help="also what is there already")
    parser.add_argument("--compare", action="store_true", help="compare what ran, and run nothing")
    parser.add_argument("--dry", action="store_true", help="write nothing")
    return parser.parse_args()


if __name__ == "__main__":
    main()
