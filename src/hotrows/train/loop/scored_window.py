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
from hotrows.train.run.stream_batches import shares_of

_MOST_WINDOWS = 8  # for which a window waits for samples of each label
_PARTS = ("logits", "labels", "weights", "groups")


class ScoredWindow:
    """Logits and targets of the events scored since the last window. stored: of a checkpoint.

    A rank adds those of its share of a batch; what is computed of them, and saved, is of all ranks.
    """

    def __init__(self, steps: StepTrainer, size: int, stored: Mapping[str, Tensor]) -> None:
        self._steps, self._recommender, self._size = steps, steps.recommender, size
        self._begin()
        proposed = stored["proposed"].tolist() if "proposed" in stored else ()  # first: no scale
        self._proposed = self._recommender.calibration.with_scales(proposed)
        if "labels" in stored:
            num, others = len(stored["labels"]), steps.ranks.num_ranks - 1
            mine = slice(0 if steps.ranks.rank else num)
            of_rank = {name: stored[name][mine] for name in _PARTS if name in stored}
            targets = Targets(of_rank["labels"], of_rank.get("weights"))
            self._append((of_rank["logits"], targets, of_rank.get("groups")))
            self._note_sizes([num, *[0] * others])

    def _begin(self) -> None:
        self._pieces: list[Evaluated] = []
        self._sizes: list[list[int]] = []  # by batch, of the samples of each rank
        self._has_label = torch.tensor(False)
        self._num_checked = self._num_samples = 0

    def add(self, logits: Tensor, batch: Batch) -> None:
        targets = self._recommender.targets(batch)
        self._append(
            (logits.float(), importance_weighted(self._recommender, logits, targets), batch.groups)
        )

    def _append(self, piece: Evaluated) -> None:
        self._pieces.append(piece)
        _, targets, _ = piece
        has_label = torch.tensor(True) if targets.weights is None else (targets.weights > 0).any(0)
        self._has_label = self._has_label | has_label  # [T], or one of all

    def end_batch(self, size: int) -> None:
        """Says that all of a batch is added, which has so many samples on all ranks."""
        shares = shares_of(size, self._steps.ranks.num_ranks)
        self._note_sizes([end - first for first, end in shares])

    def _note_sizes(self, of_ranks: list[int]) -> None:
        self._sizes.append(of_ranks)
        self._num_samples += sum(of_ranks)

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
        if not self._sizes:
            return None
        of_ranks = self._steps.ranks.all_gather(self._has_label.cpu()).wait()
        if not of_ranks.any(0).all():  # a label is lacking
            if self._num_samples >= _MOST_WINDOWS * self._size:
                self._begin()
            return None
        samples = self._of_all()
        self._begin()
        metrics = metrics_of(self._recommender, [samples])
        calibration, self._proposed = recalibrated(self._recommender, [samples], self._proposed)
        self._steps.calibrate(calibration)
        return metrics

    def tensors(self) -> dict[str, Tensor]:
        """The window so far, for a checkpoint."""
        proposed = torch.tensor(self._proposed.scales, dtype=torch.float64)
        if not self._sizes:
            return {"proposed": proposed}
        logits, targets, groups = self._of_all()
        parts = zip(_PARTS, (logits, targets.labels, targets.weights, groups), strict=True)
        return {"proposed": proposed, **{name: part for name, part in parts if part is not None}}

    def _of_all(self) -> Evaluated:
        """Collective: the samples of all ranks on the host, in the order of the stream."""
        sizes = torch.tensor(self._sizes)  # [batches, P]
        batches = torch.arange(len(sizes)).repeat(sizes.shape[1]).repeat_interleave(sizes.T.flatten())
        order, mine = batches.argsort(stable=True), joined(list(map(_on_host, self._pieces)))
        return of_all_ranks(mine, sizes.sum(0).tolist(), order, self._steps.ranks)


def _on_host(piece: Evaluated) -> Evaluated:
    logits, targets, groups = piece
    weights = None if targets.weights is None else targets.weights.cpu()
    of_host = Targets(targets.labels.cpu(), weights)
    return logits.cpu(), of_host, None if groups is None else groups.cpu()
