"""Standing: where a run stands, and what its schedule and validation make of that.

Values and pure functions: part of every checkpoint, so that a resumed run decides as the one that
was never stopped.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from hotrows.config import TrainConfig
from hotrows.data.hot_cold import Position
from hotrows.metrics import Metrics


@dataclass(frozen=True)
class Standing:
    """Where a run stands.

    step: batches trained; evaluated_at: the step of the last evaluation.
    lr_decay: what plateaus have left of the learning rates; stale: evaluations since the best one.
    best: what the checkpoint of best_step scored; peak: the highest score so far.
    position: in the blocks of hot and cold batches, where the data is regrouped.
    """

    step: int = 0
    evaluated_at: int = 0
    lr_decay: float = 1.0
    stale: int = 0
    best_step: int = 0
    best: Metrics | None = None
    peak: float | None = None
    position: Position | None = None

    def to_json(self) -> dict[str, Any]:
        best = self.best.to_json() if self.best else None
        position = self.position.to_json() if self.position else None
        return {**dataclasses.asdict(self), "best": best, "position": position}

    @staticmethod
    def from_json(fields: dict[str, Any]) -> Standing:
        best = Metrics.from_json(fields["best"]) if fields["best"] else None
        position = Position.from_json(fields["position"]) if fields.get("position") else None
        return Standing(**{**fields, "best": best, "position": position})


def after_step(standing: Standing) -> Standing:
    return dataclasses.replace(standing, step=standing.step + 1)


def after_evaluation(
    standing: Standing, metrics: Metrics, config: TrainConfig, epoch_steps: int
) -> Standing:
    """A better score becomes the best; too many that are not better lower the learning rates.

    In the first epoch every sample is new, so nothing is learned by heart and later is better:
    there a score becomes the best unless it is lower than chance explains. A validation part of a
    thousand samples would else often choose a model of half an epoch.
    """
    evaluated = dataclasses.replace(standing, evaluated_at=standing.step)
    peak = metrics.score if standing.peak is None else standing.peak
    margin = metrics.chance if standing.step <= epoch_steps else 0.0
    if standing.best is None or metrics.score > peak - margin:
        peak = max(peak, metrics.score)
        step = standing.step
        return dataclasses.replace(evaluated, stale=0, best_step=step, best=metrics, peak=peak)
    stale, patience = standing.stale + 1, config.decay_patience
    plateau = patience is not None and stale % patience == 0
    decay = standing.lr_decay * (config.decay_factor if plateau else 1.0)
    return dataclasses.replace(evaluated, stale=stale, lr_decay=decay)


def stops_early(standing: Standing, config: TrainConfig) -> bool:
    return config.stop_patience is not None and standing.stale >= config.stop_patience


def lr_scale(standing: Standing, config: TrainConfig) -> float:
    """What the learning rates are multiplied with in the next step."""
    rise = min(1.0, (standing.step + 1) / config.warmup_steps) if config.warmup_steps else 1.0
    return standing.lr_decay * rise


def evaluation_is_due(
    standing: Standing, config: TrainConfig, epoch_steps: int, total_steps: int
) -> bool:
    """Whether the next thing to do is an evaluation.

    At the end always; else every `evaluate_every` steps, or at each quarter of the first epoch and
    the end of each one.
    """
    step = standing.step
    if step == standing.evaluated_at:
        return False
    if step == total_steps:
        return True
    if config.evaluate_every is not None:
        return step % config.evaluate_every == 0
    return step % epoch_steps == 0 or step in {epoch_steps * q // 4 for q in (1, 2, 3)}
