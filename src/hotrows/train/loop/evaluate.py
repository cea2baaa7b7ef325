"""Evaluation: logits and metrics of a recommender over batches, on one rank or several.

Predictions are made in float32 whatever the precision of training was: half of a rounding's width
would make ties of samples that the model tells apart. They change no state: no row, no parameter,
no random number.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor

from hotrows import models
from hotrows.batch import Batch, split
from hotrows.data import Loader, Part
from hotrows.data.stored.order import Share
from hotrows.engine.distributed.comm import Ranks
from hotrows.engine.pipeline.prefetch import prefetch
from hotrows.losses import Calibration, Loss
from hotrows.ops.plan import Plan
from hotrows.runtime.terminal import silent
from hotrows.train.loop.recommender import Recommender, Targets, check_defaults
from hotrows.train.metrics import Metrics, better, fitted, mean_of, metrics_by
from hotrows.train.metrics.result import no_metrics
from hotrows.train.metrics.sums import weighted_mean
from hotrows.train.run.state import after_evaluation

EVALUATION_BATCH = 8192
Evaluate = Callable[..., Metrics]  # of a part of the data, and a function called with progress
Evaluated = tuple[Tensor, Targets, Tensor | None]  # logits, targets and groups of some samples
_SCALING: ContextVar[str] = ContextVar("scaling", default="kept")


@contextmanager
def scaling(how: str) -> Iterator[None]:
    """What evaluations of this thread do with the scale of each label's logits: `fitted` to their samples
    about the logit of the base rate, where the config wants predictions calibrated; `none`: they are of
    the model alone, for what training decides."""
    before = _SCALING.set(how)
    try:
        yield
    finally:
        _SCALING.reset(before)


def logits_of(recommender: Recommender, batches: Iterable[Batch]) -> Iterator[tuple[Batch, Tensor]]:
    """Yields each batch with its logits, [B] or [B, T] in host memory.

    The next batches are planned meanwhile; a list of one batch takes no thread.
    """
    check_defaults()
    embedding = recommender.embedding
    plans = ((batch, embedding.plan(batch)) for batch in batches)
    is_one = isinstance(batches, Sequence) and len(batches) == 1
    planned = prefetch(plans, 0 if is_one else recommender.config.plan_depth)
    with closing(planned):
        for batch, plan in planned:
            with recommender.mode.evaluating():
                logits = _logits(recommender, *embedding.to_device(batch, plan)).cpu()
            yield batch, logits


def _logits(recommender: Recommender, batch: Batch, plan: Plan) -> Tensor:
    logits = []
    for number, part in enumerate(split(batch, max(len(plan.micro_batches), 1))):
        vectors = recommender.embedding.lookup(plan, number)
        output = recommender.model(vectors, part.dense)
        logits.append(models.logits_and_loss(output)[0])
    return torch.cat(logits) if len(logits) > 1 else logits[0]


def evaluate(
    recommender: Recommender, part: Part, progress: Callable[[int, int], None] = silent
) -> Metrics:
    """Computes metrics over all of a part of the data; collective between the recommender's ranks.

    progress: called with the samples that are done, and their number in all.
    """
    if not part.rows:
        raise ValueError(
            "this part of the data has no samples: evaluate another one, or prepare it with another split"
        )
    ranks = recommender.ranks
    seat: dict[str, Any] = {"rank": ranks.rank, "num_ranks": ranks.num_ranks}
    loader = Loader(part, EVALUATION_BATCH, **seat, shares=recommender.shares)
    evaluated: list[Evaluated] = []
    for number, (batch, logits) in enumerate(logits_of(recommender, loader.batches(0)), 1):
        evaluated.append((logits, recommender.targets(batch), batch.groups))
        progress(min(number * EVALUATION_BATCH, part.rows), part.rows)
    return _metrics_of(recommender, _gather(joined(evaluated), part.rows, ranks, recommender.shares))


class HeldOut:
    """Validation by parts of the data: the validation part decides, the test part reports."""

    name = "validation"

    def validate(self, trainer: Any) -> None:
        """Evaluates between two steps; the state knows of it, and callbacks hear of it."""
        if not trainer.data.parts["validation"].rows:
            trainer.steps.state = dataclasses.replace(trainer.state, evaluated_at=trainer.state.step)
            return
        with scaling("fitted"), trainer.recommender.random.drawing():
            metrics = trainer.evaluate("validation")
        trainer.steps.calibrate(trainer.recommender.calibration.with_scales(metrics.scales))
        epoch_steps = trainer.reports.epoch_steps
        trainer.steps.state = after_evaluation(trainer.state, metrics, trainer.config, epoch_steps)
        trainer.reports.write_evaluation(metrics)
        for callback in trainer.callbacks:
            callback.on_evaluation_end(trainer, metrics)

    def results(self, trainer: Any) -> dict[str, Metrics | None]:
        """The metrics of the best checkpoint, which memory holds, on the validation and the test part."""
        has_test = bool(trainer.data.parts["test"].rows)
        with trainer.recommender.random.drawing():
            test = trainer.evaluate("test") if has_test else None
        return {"validation": trainer.state.best, "test": test}


def metrics_of(recommender: Recommender, evaluated: Sequence[Evaluated]) -> Metrics:
    """The metrics of predictions piece by piece, of one rank."""
    return _metrics_of(recommender, joined(evaluated))


def importance_weighted(recommender: Recommender, logits: Tensor, targets: Targets) -> Targets:
    """The labels of samples that were drawn otherwise than they will be predicted, with the weights that
    their loss corrects it by."""
    first, *_ = recommender.calibration.losses.values()
    weights = first.importance(logits.float(), targets.labels)
    if weights is None:
        return targets
    return Targets(targets.labels, weights if targets.weights is None else weights * targets.weights)


def recalibrated(
    recommender: Recommender, evaluated: Sequence[Evaluated], proposed: Calibration
) -> tuple[Calibration, Calibration]:
    """The calibration of a recommender after predictions piece by piece, of one rank, and the proposal
    for the next: what was fitted to samples is taken up if later ones are predicted better by it."""
    samples, kept, fits = joined(evaluated), dict[str, Loss](), dict[str, Loss]()
    for t, (name, loss) in enumerate(recommender.calibration.losses.items()):
        logits, targets, _ = _counting(_task(recommender, samples, t))
        kept[name] = fits[name] = loss
        if loss.labels.binary and len(logits):
            of_label, base = (logits, targets.labels, targets.weights), recommender.base_logits[t]
            if base is None:  # the prepared data has no such label
                base = Loss().first_output(weighted_mean(targets.labels.double(), targets.weights))
            kept[name] = better(loss, proposed.losses[name], *of_label)
            fits[name] = fitted(loss, *of_label, base)
    return Calibration(kept), Calibration(fits)


def _metrics_of(recommender: Recommender, samples: Evaluated) -> Metrics:
    how, calibration = _SCALING.get(), recommender.calibration
    calibration = calibration.with_scales(()) if how == "none" else calibration
    fits = how == "fitted" and recommender.config.calibration == "scale"
    bases = recommender.base_logits if fits else (None,) * len(recommender.labels)
    by_task = {
        name: _metrics(recommender, _task(recommender, samples, t), name, loss, bases[t])
        for t, (name, loss) in enumerate(calibration.losses.items())
    }
    return mean_of(by_task) if len(by_task) > 1 else by_task[recommender.labels[0]]


def joined(pieces: Sequence[Evaluated]) -> Evaluated:
    logits = torch.cat([logits for logits, _, _ in pieces])
    labels = torch.cat([targets.labels for _, targets, _ in pieces])
    weights = _cat([targets.weights for _, targets, _ in pieces])
    return logits, Targets(labels, weights), _cat([groups for _, _, groups in pieces])


def _cat(pieces: Sequence[Tensor | None]) -> Tensor | None:
    present = [piece for piece in pieces if piece is not None]
    return torch.cat(present) if present else None


def _task(recommender: Recommender, samples: Evaluated, t: int) -> Evaluated:
    """Logits, labels and weights of task t alone, [B]."""
    logits, targets, groups = samples
    if isinstance(recommender.tasks, int | None):
        return samples
    assert targets.weights is not None
    return logits[:, t], Targets(targets.labels[:, t], targets.weights[:, t]), groups


def _counting(samples: Evaluated) -> Evaluated:
    """The samples of a task with a weight above 0."""
    logits, targets, groups = samples
    if targets.weights is None:
        return samples
    counts = targets.weights > 0
    counting = Targets(targets.labels[counts], targets.weights[counts])
    return logits[counts], counting, None if groups is None else groups[counts]


def _metrics(
    recommender: Recommender, samples: Evaluated, label: str, loss: Loss, base: float | None
) -> Metrics:
    """base: fit the scale of the loss to these samples first, about this logit of the base rate."""
    logits, targets, groups = _counting(samples)
    if not len(logits):
        return no_metrics(loss.decides)
    wrong = int((~logits.isfinite()).sum())
    if wrong:
        raise ValueError(
            f"{wrong:,} of {len(logits):,} predictions of {label} are no finite numbers: training "
            f"diverged, or this part has numbers that training never saw; lower the learning rates "
            f"(--lr, --dense-lr), warm up, set clip_norm, or give dense features another transform"
        )
    labels, weights = targets.labels, targets.weights
    if base is not None:
        loss = fitted(loss, logits, labels, weights, base, recommender.config.start_from is None)
    return metrics_by(loss, logits, labels, weights, groups, recommender.ranking)


def _gather(samples: Evaluated, num_samples: int, ranks: Ranks, parts: tuple[int, ...]) -> Evaluated:
    """The samples of all ranks in the order of the part, so that sums have one order; collective."""
    if ranks.num_ranks == 1:
        return samples
    shares = [
        Share(num_samples, EVALUATION_BATCH, p, ranks.num_ranks, parts) for p in range(ranks.num_ranks)
    ]
    places = [torch.as_tensor(share.among(0, num_samples)) for share in shares]
    return of_all_ranks(samples, list(map(len, places)), torch.cat(places).argsort(), ranks)


def of_all_ranks(samples: Evaluated, sizes: Sequence[int], order: Tensor, ranks: Ranks) -> Evaluated:
    """Collective: the samples of all ranks, in host memory. sizes: of each rank's; order: of the samples,
    [sum(sizes)], numbered rank by rank."""

    def gathered(values: Tensor) -> Tensor:
        padded = torch.zeros(max(sizes), *values.shape[1:], dtype=values.dtype)
        padded[: len(values)] = values
        by_rank = ranks.all_gather(padded).wait()  # [P, most, ...]
        return torch.cat([padded[:size] for padded, size in zip(by_rank, sizes, strict=True)])[order]

    logits, targets, groups = samples
    weights = None if targets.weights is None else gathered(targets.weights)
    of_all = Targets(gathered(targets.labels), weights)
    return gathered(logits), of_all, None if groups is None else gathered(groups)
