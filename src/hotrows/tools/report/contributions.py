"""What each value of a row adds to its prediction, compared with other rows.

A feature adds the logit of the row less the mean logit where the feature has the values of other rows. Of
a sum of features, as logistic regression is, that is exact, and all of them together are the difference
from the mean of these rows; of other models, and under focal loss, whose logits are bent outputs, what
features say together is left over.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from hotrows.tools.report.importance import permuted_together
from hotrows.train.loop.predictor import Predictor
from hotrows.train.telling.row_sample import RowSample


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
