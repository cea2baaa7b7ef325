"""The cost of tables in fewer bits: the metric of a bundle on held-out rows, next to that of its run."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from hotrows.batch import Batch
from hotrows.data import Loader, Part
from hotrows.serving.export.bundles import request_of
from hotrows.serving.scorer import Scorer
from hotrows.train.loop import evaluate
from hotrows.train.loop.recommender import Recommender
from hotrows.train.metrics import Metrics
from hotrows.train.run import folder as run_folder

_BATCH, _BATCHES = 4096, 5  # of held-out rows, at most
_PARTS = ("test", "validation")


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
    for batch, logits in evaluate.logits_of(recommender, _first_batches(part)):
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


def _held_out(run: Path) -> tuple[str, Part | None]:
    try:
        parts = run_folder.open_data(run).parts
    except (OSError, ValueError):
        return "", None
    return next(((name, parts[name]) for name in _PARTS if parts[name].rows), ("", None))


def _first_batches(part: Part) -> Iterator[Batch]:
    return islice(Loader(part, _BATCH, shuffle=False).batches(0), _BATCHES)


def _by_label(bundle: Metrics, run: Metrics, label: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields each label with its deciding metric, of the bundle and of the run, where it is a number."""
    for name, of_run in (run.tasks or {label: run}).items():
        value = (bundle.tasks or {label: bundle})[name].value(of_run.decides)
        if math.isfinite(value):
            yield name, {"metric": of_run.decides, "bundle": value, "run": of_run.value(of_run.decides)}
