"""How good predictions are: exact AUC, log loss and calibration over a whole part of the data.

Nothing is averaged over batches and nothing is binned but the calibration error. All from logits,
in float64, with one sort:

    AUC          the chance that a random click is ranked above a random non-click; ties count half
    log loss     mean of log(1 + exp(z)) - y * z
    calibration  mean prediction / mean label; 1 is right, 2 promises twice the clicks
    calibration error   mean |prediction - label| of 20 bins of equal size, from low to high
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.nn import functional

_BINS = 20


@dataclass(frozen=True)
class Metrics:
    """What `measure` found; `auc` is nan where all labels are equal, `calibration` without a 1."""

    samples: int
    auc: float
    log_loss: float
    click_rate: float
    mean_prediction: float
    calibration: float
    calibration_error: float

    @property
    def score(self) -> float:
        """What validation decides by, higher is better: AUC, or where there is none, -log loss."""
        return -self.log_loss if math.isnan(self.auc) else self.auc

    @property
    def chance(self) -> float:
        """By how much the score may miss by chance: its standard error (Hanley and McNeil 1982)."""
        if math.isnan(self.auc):
            return 0.0
        clicks = self.samples * self.click_rate
        others = self.samples - clicks
        both_above, both_below = self.auc / (2 - self.auc), 2 * self.auc**2 / (1 + self.auc)
        spread = (clicks - 1) * (both_above - self.auc**2) + (others - 1) * (
            both_below - self.auc**2
        )
        return math.sqrt((self.auc * (1 - self.auc) + spread) / (clicks * others))

    def to_json(self) -> dict:
        """Plain numbers; nan becomes None, which JSON can say."""
        fields = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return {name: None if math.isnan(value) else value for name, value in fields.items()}

    @staticmethod
    def from_json(fields: dict[str, Any]) -> Metrics:
        known: dict[str, Any] = {n: math.nan if v is None else v for n, v in fields.items()}
        return Metrics(**known)


def measure(logits: Tensor, labels: Tensor) -> Metrics:
    """Metrics of [M] logits against [M] labels of 0 and 1."""
    if logits.shape != labels.shape or logits.dim() != 1 or not len(logits):
        raise ValueError(
            f"metrics need as many logits as labels, at least one, not {list(logits.shape)} "
            f"and {list(labels.shape)}"
        )
    scores, order = logits.double().sort(stable=True)
    clicks = labels.double()[order]
    predictions = scores.sigmoid()
    click_rate, mean = clicks.mean().item(), predictions.mean().item()
    return Metrics(
        samples=len(scores),
        auc=_auc_of_sorted(scores, clicks),
        log_loss=(functional.softplus(scores) - clicks * scores).mean().item(),
        click_rate=click_rate,
        mean_prediction=mean,
        calibration=mean / click_rate if click_rate else math.nan,
        calibration_error=_calibration_error(predictions, clicks),
    )


def auc(scores: Tensor, labels: Tensor) -> float:
    """Area under the ROC curve; nan where all labels are equal.

    scores = [1., 2., 2., 3.], labels = [0, 0, 1, 1]  ->  (1 + 0.5 + 1 + 1) / 4 = 0.875
    """
    scores, order = scores.double().sort()
    return _auc_of_sorted(scores, labels.double()[order])


def _auc_of_sorted(scores: Tensor, clicks: Tensor) -> float:
    """Sums, over runs of equal scores, clicks of the run * (others before it + half of its own)."""
    positives = clicks.sum().item()
    negatives = len(clicks) - positives
    if scores.isnan().any() or not positives or not negatives:
        return math.nan
    _, sizes = scores.unique_consecutive(return_counts=True)
    ends = sizes.cumsum(0)
    clicks_up_to = clicks.cumsum(0)[ends - 1]
    clicks_in = clicks_up_to.diff(prepend=clicks_up_to.new_zeros(1))
    others_in = sizes - clicks_in
    others_before = others_in.cumsum(0) - others_in
    pairs = (clicks_in * (others_before + others_in / 2)).sum().item()
    return pairs / (positives * negatives)


def _calibration_error(predictions: Tensor, clicks: Tensor) -> float:
    gaps = (predictions - clicks).tensor_split(min(_BINS, len(clicks)))
    return sum(abs(gap.sum().item()) for gap in gaps) / len(clicks)
