"""What each value of a row adds to its prediction, compared with other rows.

A feature adds the logit of the row less the mean logit where the feature has the values of other rows. Of
a sum of features, as logistic regression is, that is exact, and all of them together are the difference
from the mean of these rows; of other models, and under focal loss, whose logits are bent outputs, what
features say together is left over.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from hotrows.tools.report.importance import permuted_together
from hotrows.train.loop.predictor import Predictor
from hotrows.train.telling.row_sample import RowSample

Values = Callable[[str], str]  # the value of a feature, as text


@dataclass(frozen=True)
class Contributions:
    """Numbers by label: logits, of labels that are numbers the outputs, as their link makes predictions.

    row: of the row; usual: their mean over the other rows; adds: by names of features, those of lists of
    one history together, the largest first.
    """

    row: dict[str, float]
    usual: dict[str, float]
    adds: dict[tuple[str, ...], dict[str, float]]

    @property
    def left_over(self) -> dict[str, float]:
        """What the features add together only."""
        return {
            label: self.row[label] - self.usual[label] - sum(one[label] for one in self.adds.values())
            for label in self.row
        }


UNITS = {"sigmoid": "log odds", "exp": "logarithm"}  # of outputs, by the link of a label


def units_of(predictor: Predictor) -> dict[str, str]:
    """By label, in which unit features add."""
    losses = predictor.calibration.losses
    return {label: UNITS.get(losses[label].link, "prediction") for label in predictor.labels}


def prediction_of(link: str, output: float) -> float:
    """The prediction of a calibrated output: by sigmoid, exp, or the output itself."""
    if link == "sigmoid":
        return 0.5 + 0.5 * math.tanh(output / 2)
    return math.exp(min(output, 700.0)) if link == "exp" else output


@dataclass(frozen=True)
class Example:
    """A row that is explained. predictions: by label, that of the row, that of a typical row, the unit in
    which features add; adds: names of features, their value, and what it adds by label."""

    title: str
    predictions: dict[str, tuple[float, float, str]]
    adds: list[tuple[str, str, dict[str, float]]]


def example(predictor: Predictor, title: str, explained: Contributions, value: Values) -> Example:
    """What a row's values add, in words. value: that of a feature, as text."""
    units, losses = units_of(predictor), predictor.calibration.losses
    predictions = {
        label: (
            prediction_of(losses[label].link, output),
            prediction_of(losses[label].link, explained.usual[label]),
            units[label],
        )
        for label, output in explained.row.items()
    }
    adds = [(" + ".join(n), ", ".join(map(value, n)), dict(by)) for n, by in explained.adds.items()]
    return Example(title, predictions, adds)


def contributions(predictor: Predictor, rows: RowSample, number: int, others: RowSample) -> Contributions:
    """What each feature of the row of that number adds; others: the rows that it is compared with."""
    row = rows.taken(torch.full((len(others),), number))

    def mean(sample: RowSample) -> dict[str, float]:
        logits = torch.cat([logits for _, logits in predictor.logits(sample.batches())])
        calibrated = predictor.calibration.calibrated(logits.double()).view(len(sample), -1)
        return dict(zip(predictor.labels, calibrated.mean(0).tolist(), strict=True))

    def added(sample: RowSample) -> dict[str, float]:
        return {label: outputs[label] - without for label, without in mean(sample).items()}

    outputs = mean(row)
    adds = {names: added(row.with_ids(names, others)) for names in permuted_together(others)}
    for name, place in predictor.schema.dense_places.items():
        adds[name,] = added(row.with_numbers(place, others))
    order = sorted(adds, key=lambda names: -max(map(abs, adds[names].values())))
    return Contributions(outputs, mean(others), {names: adds[names] for names in order})
