"""The cost of fewer bits: of tables by the metric of a bundle on held-out rows, next to that of its run;
of products by the scores of such rows, next to those with float32.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hotrows.batch import Batch
from hotrows.data import Loader, Part
from hotrows.serving.bundle import PRECISIONS
from hotrows.serving.core_layers import open_core
from hotrows.serving.export.bundles import request_of
from hotrows.serving.scorer import Scorer
from hotrows.train.loop import evaluate
from hotrows.train.loop.recommender import Recommender
from hotrows.train.metrics import Metrics
from hotrows.train.run import folder as run_folder

_BATCH, _BATCHES = 4096, 5  # of held-out rows, at most
_PARTS = ("test", "validation")
_FEW = 1000  # rows that precisions are compared on
# A precision holds with differences up to these: of the AUC, of the mean prediction, as a share, and of a
# prediction, as a share of their deviation where it is no probability.
_AUC, _MEAN, _PREDICTION = 0.0002, 0.005, {"float32": 0.0, "bfloat16": 0.002, "int8": 0.005}


def compare_held_out(folder: Path, recommender: Recommender, run: Path) -> dict[str, Any]:
    """Scores the first held-out rows of the data of `run` by the bundle in `folder`, and by the model.

    Returns part, rows and, by label, the metric that decides, its value of the bundle and of the run.
    Empty where the data is not there any more, or has no such rows.
    """
    name, part = _held_out(run)
    if part is None:
        return {}
    scorer = Scorer(folder, trust=True)
    of_bundle: list[evaluate.Evaluated] = []
    of_run: list[evaluate.Evaluated] = []
    for batch, logits in evaluate.logits_of(recommender, _first_batches(part, _BATCH, _BATCHES)):
        request = request_of(batch, scorer.bundle, recommender.schema)
        targets = recommender.targets(batch)
        of_bundle.append((torch.from_numpy(scorer.logits_of([request])[0]), targets, batch.groups))
        of_run.append((logits, targets, batch.groups))
    bundle = evaluate.metrics_of(recommender, of_bundle)
    model = evaluate.metrics_of(recommender, of_run)
    return {
        "part": name,
        "rows": sum(len(logits) for logits, _, _ in of_run),
        "labels": dict(_by_label(bundle, model, recommender.labels[0])),
    }


def compare_precisions(folder: Path, recommender: Recommender, run: Path) -> dict[str, dict[str, Any]]:
    """Scores the first held-out rows of the data of `run` by the bundle in `folder` with each precision.

    Returns by precision the part, its rows, the largest differences from float32, of predictions, of the
    AUC (None without one) and of the mean prediction as a share of it, and whether it holds: whether they
    are within their bounds. Empty where no layer may have another precision, where the data is not there
    any more, or has no such rows.
    """
    (name, part), scorer = _held_out(run), Scorer(folder)
    if part is None or not any(layer.can_be_narrow for layer in scorer.bundle.core_layers):
        return {}
    ((batch, _),) = evaluate.logits_of(recommender, _first_batches(part, _FEW, 1))
    request, targets = request_of(batch, scorer.bundle, recommender.schema), recommender.targets(batch)
    content, outcomes, errors = scorer.version.program.content(), [], {}
    probabilities = [loss.link == "sigmoid" for loss in scorer.version.calibration.losses.values()]
    for precision in PRECISIONS:
        bundle = dataclasses.replace(scorer.bundle, precision=precision)
        version = dataclasses.replace(scorer.version, core=open_core(bundle, content, threads=1))
        (logits,) = scorer.logits_of([request], version)
        metrics = evaluate.metrics_of(recommender, [(torch.from_numpy(logits), targets, batch.groups)])
        tasks = list(metrics.tasks.values()) or [metrics]
        outcomes.append((scorer.predictions(logits, version).reshape(len(logits), -1), tasks))
        (before, of_float32), (now, of_now) = outcomes[0], outcomes[-1]
        units = np.where(probabilities, 1.0, np.maximum(before.std(0), 1e-12))
        aucs = [(x.auc, y.auc) for x, y in zip(of_now, of_float32, strict=True) if math.isfinite(y.auc)]
        means = now.mean(0, np.float64) - before.mean(0, np.float64)
        shares = np.where(probabilities, before.mean(0), np.maximum(np.abs(before.mean(0)), units))
        error = {
            "prediction": float((np.abs(now - before) / units).max()),
            "auc": max((abs(x - y) for x, y in aucs), default=None),
            "mean": float(np.abs(means / shares).max()),
        }
        bounds = {"prediction": _PREDICTION[precision], "auc": _AUC, "mean": _MEAN}
        holds = all((error[key] or 0.0) <= bound for key, bound in bounds.items())
        errors[precision] = {"part": name, "rows": len(logits), **error, "holds": holds}
    return errors


def smallest(errors: Mapping[str, Mapping[str, Any]]) -> str:
    """The precision of fewest bits that holds, of those that `compare_precisions` returns."""
    holding = [name for name in PRECISIONS if name in errors and errors[name]["holds"]]
    return holding[-1] if holding else "float32"


def _held_out(run: Path) -> tuple[str, Part | None]:
    try:
        parts = run_folder.open_data(run).parts
    except (OSError, ValueError):
        return "", None
    return next(((name, parts[name]) for name in _PARTS if parts[name].rows), ("", None))


def _first_batches(part: Part, size: int, count: int) -> Iterator[Batch]:
    return islice(Loader(part, size, shuffle=False).batches(0), count)


def _by_label(bundle: Metrics, run: Metrics, label: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields each label with its deciding metric, of the bundle and of the run, where it is a number."""
    for name, of_run in (run.tasks or {label: run}).items():
        value = (bundle.tasks or {label: bundle})[name].value(of_run.decides)
        if math.isfinite(value):
            yield name, {"metric": of_run.decides, "bundle": value, "run": of_run.value(of_run.decides)}
