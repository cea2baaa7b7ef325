"""ScoredWindow: the samples of a stream that were scored since the last window, of all ranks."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from hotrows.batch import Batch
from hotrows.train.loop.evaluate import (
    Evaluated,
    importance_weighted,
    joined,
    metrics_of,
    of_all_ranks,
    recalibrated,
)
from hotrows.train.loop.recommender import Targets
from hotrows.train.loop.step_trainer import StepTrainer
from hotrows.train.metrics import Metrics

_MOST_WINDOWS = 8  # for which a window waits for samples of each label
_PARTS = ("logits", "labels", "weights", "groups")


class ScoredWindow:
    """Logits and targets of the events scored since the last window. stored: of a checkpoint.

    A rank adds those of its share of a batch; what is computed of them, and saved, is of all ranks.
    """

    def __init__(self, steps: StepTrainer, size: int, stored: Mapping[str, Tensor]) -> None:
        self._steps, self._recommender, self._size = steps, steps.recommender, size
        self._pieces: list[Evaluated] = []
        self._batches: list[int] = []  # of each piece
        self._num_checked = self._num_batches = self._num_samples = 0
        proposed = stored["proposed"].tolist() if "proposed" in stored else ()  # first: no scale
        self._proposed = self._recommender.calibration.with_scales(proposed)
        if "labels" in stored:
            mine = slice(None if steps.ranks.rank == 0 else 0)  # of another rank: none
            of_rank = {name: stored[name][mine] for name in _PARTS if name in stored}
            targets = Targets(of_rank["labels"], of_rank.get("weights"))
            self._append((of_rank["logits"], targets, of_rank.get("groups")))
            self.end_batch(len(stored["labels"]))

    def add(self, logits: Tensor, batch: Batch) -> None:
        targets = self._recommender.targets(batch)
        self._append(
            (logits.float(), importance_weighted(self._recommender, logits, targets), batch.groups)
        )

    def _append(self, piece: Evaluated) -> None:
        self._pieces.append(piece)
        self._batches.append(self._num_batches)

    def end_batch(self, size: int) -> None:
        """Says that all of a batch is added, which has so many samples on all ranks."""
        self._num_batches += 1
        self._num_samples += size

    @property
    def is_full(self) -> bool:
        return self._num_samples >= self._size

    def is_finite(self) -> bool:
        """True if the logits since the last call are finite numbers."""
        unchecked, self._num_checked = self._pieces[self._num_checked :], len(self._pieces)
        return all(bool(logits.isfinite().all()) for logits, _, _ in unchecked)

    def close(self) -> Metrics | None:
        """The metrics of the window, and begins a new one; None: a label has no sample in it yet.

        From here on predictions are calibrated by what fitted the window before, if this one shows it to
        be better; each fits the next proposal.
        """
        if not self._pieces:
            return None
        samples = self._of_all()
        logits, targets, _ = samples
        lacks_label = targets.weights is not None and not (targets.weights > 0).any(0).all()
        if lacks_label and len(logits) < _MOST_WINDOWS * self._size:
            return None
        self._pieces, self._batches, self._num_checked, self._num_samples = [], [], 0, 0
        if lacks_label:
            return None
        metrics = metrics_of(self._recommender, [samples])
        calibration, self._proposed = recalibrated(self._recommender, [samples], self._proposed)
        self._steps.calibrate(calibration)
        return metrics

    def tensors(self) -> dict[str, Tensor]:
        """The window so far, for a checkpoint."""
        proposed = torch.tensor(self._proposed.scales, dtype=torch.float64)
        if not self._pieces:
            return {"proposed": proposed}
        logits, targets, groups = self._of_all()
        parts = zip(_PARTS, (logits, targets.labels, targets.weights, groups), strict=True)
        return {"proposed": proposed, **{name: part for name, part in parts if part is not None}}

    def _of_all(self) -> Evaluated:
        """Collective: the samples of all ranks on the host, in the order of the stream."""
        sizes = torch.tensor([len(logits) for logits, _, _ in self._pieces])
        batches = torch.tensor(self._batches).repeat_interleave(sizes)
        return of_all_ranks(joined(list(map(_on_host, self._pieces))), batches, self._steps.ranks)


def _on_host(piece: Evaluated) -> Evaluated:
    logits, targets, groups = piece
    weights = None if targets.weights is None else targets.weights.cpu()
    of_host = Targets(targets.labels.cpu(), weights)
    return logits.cpu(), of_host, None if groups is None else groups.cpu()
