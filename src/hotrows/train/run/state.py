"""RunState: how far a run has trained, and what its schedule and validation make of that.

Values and pure functions: part of every checkpoint, so that a resumed run decides as the one that
was never stopped.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

from hotrows.data.streams import StreamState
from hotrows.losses import Calibration, StoredLoss
from hotrows.runtime.json_file import build
from hotrows.train.config import TrainConfig
from hotrows.train.metrics import Metrics


@dataclass(frozen=True)
class RunState:
    """How far a run has trained, and how well.

    step: batches trained; evaluated_at: the step of the last evaluation.
    lr_decay: factor of the learning rates after the plateaus so far; stale: evaluations since the best.
    best: metrics of the checkpoint of best_step; peak: the highest score so far.
    position: in the order of the batches, where the step does not say it: of regrouped data.
    stream: how far the stream was trained, of a run on one.
    calibration: how outputs are turned into predictions, by the last evaluation; {}: as trained.
    """

    step: int = 0
    evaluated_at: int = 0
    lr_decay: float = 1.0
    stale: int = 0
    best_step: int = 0
    best: Metrics | None = None
    peak: float | None = None
    position: dict[str, Any] | None = None
    stream: StreamState | None = None
    calibration: dict[str, StoredLoss] = dataclasses.field(default_factory=dict)

    def calibration_of(self, losses: Calibration) -> Calibration:
        """The calibration of this run for labels and losses of a model, whatever their scales are."""
        return losses.scaled_as(Calibration.of_stored(self.calibration))

    def to_json(self) -> dict[str, Any]:
        best = self.best.to_json() if self.best else None
        fields = {**dataclasses.asdict(self), "best": best}
        absent = [name for name in ("stream", "calibration") if not fields[name]]
        return {name: value for name, value in fields.items() if name not in absent}

    @staticmethod
    def from_json(fields: dict[str, Any]) -> RunState:
        best = Metrics.from_json(fields["best"]) if fields.get("best") is not None else None
        return build(RunState, {**fields, "best": best})


def after_evaluation(
    state: RunState, metrics: Metrics, config: TrainConfig, epoch_steps: int
) -> RunState:
    """The state after an evaluation: a better score is the best; too many others lower the rates.

    In the first epoch every sample is new, so nothing is learned by heart and later is better:
    there a score becomes the best unless it is lower than chance explains. A validation part of a
    thousand samples would else often choose a model of half an epoch. So it is with logistic regression
    whose weights decay, in all epochs: its loss has one minimum, and each is nearer to it.
    """
    evaluated = dataclasses.replace(state, evaluated_at=state.step)
    if math.isnan(metrics.score):  # nothing decides, as where there is no validation part
        return dataclasses.replace(evaluated, best_step=state.step, best=metrics)
    peak = metrics.score if state.peak is None else state.peak
    later_is_better = state.step <= epoch_steps or _has_one_minimum(config)
    margin = metrics.chance if later_is_better else 0.0
    if state.best is None or metrics.score > peak - margin:
        peak = max(peak, metrics.score)
        step = state.step
        return dataclasses.replace(evaluated, stale=0, best_step=step, best=metrics, peak=peak)
    stale, patience = state.stale + 1, config.decay_patience
    plateau = patience is not None and stale % patience == 0
    decay = state.lr_decay * (config.decay_factor if plateau else 1.0)
    return dataclasses.replace(evaluated, stale=stale, lr_decay=decay)


def best_rule(config: TrainConfig, metric: str) -> str:
    """Says how `after_evaluation` chooses the best checkpoint by a metric, for terminal and picture."""
    latest = f"the latest whose {metric} is within one standard error of the best so far"
    if _has_one_minimum(config):
        return f"best checkpoint: {latest}"
    return f"best checkpoint: in the first epoch {latest}; later only a better one"


def _has_one_minimum(config: TrainConfig) -> bool:
    return config.model == "lr" and getattr(config.row_optimizer, "weight_decay", 0.0) > 0


def stops_early(state: RunState, config: TrainConfig) -> bool:
    """True if `stop_patience` evaluations in a row were not better."""
    return config.stop_patience is not None and state.stale >= config.stop_patience


def lr_scale(state: RunState, config: TrainConfig) -> float:
    """The factor of the learning rates in the next step."""
    rise = min(1.0, (state.step + 1) / config.warmup_steps) if config.warmup_steps else 1.0
    return state.lr_decay * rise


def evaluation_is_due(state: RunState, config: TrainConfig, epoch_steps: int, total_steps: int) -> bool:
    """True if an evaluation comes before the next step.

    At the end always; before it every `evaluate_every` steps, or at each quarter of the first epoch
    and at the end of each one.
    """
    step = state.step
    if step == state.evaluated_at:
        return False
    if step == total_steps:
        return True
    if config.evaluate_every is not None:
        return step % config.evaluate_every == 0
    return step % epoch_steps == 0 or step in {epoch_steps * q // 4 for q in (1, 2, 3)}
