"""Assess: what models predict for a sample of rows, and how good that is, by slice and feature."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from hotrows.data import Part
from hotrows.engine import checkpoint
from hotrows.tools.report.contributions import Example, contributions, example
from hotrows.tools.report.facts import Facts
from hotrows.tools.report.importance import Importance, importances
from hotrows.tools.report.quality import Quality, measure
from hotrows.tools.report.slices import MeasuredSlice, Slicer, default_columns, measured
from hotrows.train import load_run
from hotrows.train.loop.predictor import Predictor
from hotrows.train.run import folder as run_folder
from hotrows.train.telling.row_sample import RowSample, ScoredRows, sample_of, score

SAMPLE_ROWS = 100_000
_OTHERS = 300  # rows that an example is compared with


@dataclass(frozen=True)
class Scope:
    """Which predictions a report is about.

    part: the part of the data that is predicted (default: test, or validation if that is empty).
    rows: how many rows are predicted, at most; 0: none.
    slices: columns to cut metrics by (default: the most important ones).
    seed: the seed of sample, resamples and permutations. how: more arguments of `load_run`.
    """

    part: str | None = None
    rows: int = SAMPLE_ROWS
    slices: tuple[str, ...] = ()
    seed: int = 0
    how: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Assessment:
    """Predictions of a run for a sample of a part. permuted: rows that importances are of; slices: by
    column and label; examples: rows that are explained."""

    part: Part
    sample: RowSample
    scored: dict[str, ScoredRows]
    quality: dict[str, Quality]
    importances: list[Importance]
    permuted: int
    slices: dict[str, dict[str, list[MeasuredSlice]]]
    examples: Sequence[Example] = ()

    def is_paired(self, other: Assessment) -> bool:
        """True if both have predicted equal rows, so that their difference has an interval."""
        return self.scored.keys() == other.scored.keys() and all(
            torch.equal(one.labels, other.scored[label].labels)
            and torch.equal(one.rows, other.scored[label].rows)
            for label, one in self.scored.items()
        )


def check(runs: Sequence[Facts], scope: Scope, live: bool = False) -> None:
    """Raises ValueError, in a line, for runs that no report can be made of.

    live: whether the page is written while a run is trained, so that it may be without predictions.
    """
    for facts in runs:
        if facts.writer is not None and not live:
            raise ValueError(
                f"run {facts.run} is being written by {facts.writer}; wait until that ends, or write a "
                f"page that grows with it: --follow"
            )
        if facts.labels != runs[0].labels:
            raise ValueError(
                f"{runs[0].run} learns {', '.join(runs[0].labels)} and {facts.run} "
                f"{', '.join(facts.labels)}, which are not comparable; make a report of each"
            )
        if live or not scope.rows:
            continue
        checkpoint.folder_of(facts.run, scope.how.get("which", "best"))
        if facts.data is None:
            run_folder.open_data(facts.run)
        _part(facts, scope)


def _part(facts: Facts, scope: Scope) -> Part:
    assert facts.data is not None
    parts = facts.data.parts
    names = [scope.part] if scope.part else ["test", "validation"]
    for name in names:
        if parts[name].rows:
            return parts[name]
    raise ValueError(
        f"run {facts.run} has no samples to predict: in {facts.data.path} {' and '.join(names)} are "
        f"empty: name another --part, or --rows 0 for a page without predictions"
    )


def assess(
    runs: Sequence[Facts], scope: Scope, progress: Callable[..., None] = lambda stage, done, total: None
) -> list[Assessment]:
    """Predicts and measures a sample for each run; the first one's important features cut them all."""
    assessments: list[Assessment] = []
    for number, facts in enumerate(runs):
        progress(f"predicting {facts.name}", 0, 4)
        part, data = _part(facts, scope), facts.data
        assert data is not None
        predictor = load_run(facts.run, **scope.how)
        try:
            sample = sample_of(part, scope.rows, scope.seed)
            slicer = Slicer(sample, data, run_folder.raw_values(facts.run))
            slicer.check(scope.slices if number == 0 else ())
            scored = score(predictor, sample)
            progress(f"predicting {facts.name}", 1, 4)
            ranking = predictor.ranking
            quality = {label: measure(one, ranking, seed=scope.seed) for label, one in scored.items()}
            progress(f"predicting {facts.name}", 2, 4)
            features, permuted = importances(predictor, sample, scope.seed)
            explained = list(_examples(predictor, sample, slicer, scored)) if number == 0 else []
            progress(f"predicting {facts.name}", 3, 4)
        finally:
            predictor.embedding.close()
        # Cut it by columns; the first run says by which.
        if number == 0:
            important = [name for one in features for name in one.names[:1]]
            columns = scope.slices or default_columns(important, facts.schema)
        slices = {
            column: {
                label: measured(one, slicer.slices(column), scope.seed) for label, one in scored.items()
            }
            for column in columns
            if number == 0 or column in slicer.columns
        }
        assessed = Assessment(part, sample, scored, quality, features, permuted, slices, explained)
        assessments.append(assessed)
    return assessments


def _examples(
    predictor: Predictor, sample: RowSample, slicer: Slicer, scored: dict[str, ScoredRows]
) -> Iterator[Example]:
    """Explains the rows of the sample with the highest, the middle and the lowest prediction."""
    first = next(iter(scored.values()))
    order = first.predictions.argsort(stable=True)
    places = {"The highest prediction": -1, "A middle one": len(order) // 2, "The lowest": 0}
    others = sample.drawn(_OTHERS)
    for title, place in places.items() if len(sample) > 1 else ():
        row = int(first.rows[order[place]])
        explained = contributions(predictor, sample, row, others)
        yield example(predictor, title, explained, partial(slicer.value, row=row))
