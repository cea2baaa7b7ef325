"""Progress of a run, and the sums over its steps that it is made of."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from hotrows.engine.caching import CacheTraffic
from hotrows.engine.distributed.comm import Ranks
from hotrows.engine.distributed.process_group import Sent
from hotrows.runtime.device import Device
from hotrows.runtime.utilization import Utilization
from hotrows.train.metrics import Metrics


@dataclass(frozen=True)
class Progress:
    """Where a run is, for a progress bar.

    stage: `train` or `evaluate`; done and total: steps, or samples when evaluating. The total of a stream
        is not known: 0.
    loss, samples_per_second: of the last interval of training.
    hit_rate: the share of rows that were in fast memory already.
    bytes_in, bytes_out: moved per second.
        waited: the share of the interval spent waiting.
        waited_for: mostly for this stage. All of the last interval, None where every row is in memory.
    validation: metrics of the evaluation after this step.
    is_best: whether this checkpoint is the best so far, by the rule of the run.
        is_peak: whether its score is the highest.

    >>> seen = []
    >>> config = hotrows.TrainConfig(steps=2)
    >>> result = hotrows.Trainer(data, config, f"{folder}/seen", progress=seen.append).fit()
    >>> seen[0].stage, seen[0].done, seen[0].total
    ('train', 1, 2)
    """

    stage: str
    done: int
    total: int
    loss: float | None = None
    samples_per_second: float | None = None
    hit_rate: float | None = None
    bytes_in: float | None = None
    bytes_out: float | None = None
    waited: float | None = None
    waited_for: str | None = None
    validation: Metrics | None = None
    is_best: bool = False
    is_peak: bool = False


@dataclass(frozen=True)
class SlowestStep:
    """A step of training. seconds: it took; stalled: of these until its batch came; waited_for: the
    stage that it mostly waited for meanwhile."""

    step: int
    seconds: float
    stalled: float
    waited_for: str | None

    def to_json(self) -> dict[str, Any]:
        """The fields of a line of metrics.jsonl."""
        return {f"slowest_{name}": value for name, value in dataclasses.asdict(self).items()}


@dataclass
class Interval:
    """Sums over some steps of training."""

    steps: int = 0
    samples: int = 0
    loss: Tensor | float = 0.0
    seconds: float = 0.0
    stalled: float = 0.0
    waited: dict[str, float] = field(default_factory=dict)
    busy: dict[str, float] = field(default_factory=dict)
    moves: CacheTraffic = field(default_factory=CacheTraffic)
    slowest: SlowestStep | None = None

    def add(self, loss: Tensor, samples: int, *, seconds: float, stalled: float) -> None:
        self.steps += 1
        self.samples += samples
        self.loss = self.loss + loss
        self.seconds += seconds
        self.stalled += stalled

    def add_slowest(self, step: SlowestStep) -> None:
        """Keeps the slowest of the steps that are shown."""
        if self.slowest is None or step.seconds > self.slowest.seconds:
            self.slowest = step

    def add_stages(self, waited: Mapping[str, float], busy: Mapping[str, float]) -> None:
        """waited: seconds for each stage; busy: seconds in which each was at work."""
        for sums, seconds_by_stage in ((self.waited, waited), (self.busy, busy)):
            for stage, seconds in seconds_by_stage.items():
                sums[stage] = sums.get(stage, 0.0) + seconds

    def moved(self) -> dict[str, Any]:
        """The fields of `Progress` about the cache."""
        return {
            "hit_rate": 1 - self.moves.rows_in / max(self.moves.rows, 1),
            "bytes_in": self.moves.bytes_in / self.seconds,
            "bytes_out": self.moves.bytes_out / self.seconds,
            "waited": self.stalled / self.seconds,
            "waited_for": max(self.waited, key=self.waited.__getitem__, default=None),
        }

    def sum_over(self, ranks: Ranks) -> None:
        """Sums the loss, the samples and the moves over ranks; collective."""
        sums = [float(self.loss), self.samples, *dataclasses.astuple(self.moves)]
        loss, samples, *moves = ranks.all_reduce(torch.tensor(sums, dtype=torch.float64)).wait().tolist()
        self.loss, self.samples, self.moves = loss, int(samples), CacheTraffic(*map(int, moves))

    @property
    def samples_per_second(self) -> float:
        return self.samples / self.seconds if self.seconds else 0.0


class Meter:
    """Sums over steps: since the last line of metrics, and since training began.

    shown: fields of `Progress` of the last whole interval.
    """

    def __init__(self, ranks: Ranks, device: Device) -> None:
        self.interval, self.total = Interval(), Interval()
        self.shown: dict[str, Any] = {}
        self._ranks, self._sent, self._used = ranks, Sent(), Utilization(device)

    def begin_step(self) -> None:
        """Says that a step begins: what was done between two intervals is in none."""
        if not self.interval.steps:
            self._used.begin()

    def close_interval(self, cached: bool) -> dict[str, Any]:
        """Begins a new interval; returns the fields of the old one that only this rank has; collective.

        cached: whether fast memory holds a part of the rows.
        """
        interval, self.interval = self.interval, Interval()
        used = self._used.end()
        slowest = interval.slowest.to_json() if interval.slowest else {}
        num_samples = interval.samples
        interval.sum_over(self._ranks)
        loss, speed = float(interval.loss) / interval.steps, interval.samples_per_second
        self.shown = {"loss": loss, "samples_per_second": speed}
        if cached:
            self.shown |= interval.moved()
        return {
            **self._sent_since(interval.steps, num_samples),
            "stall_seconds": interval.stalled,
            "seconds": interval.seconds,
            **slowest,
            **{f"waited_{stage.replace(' ', '_')}": s for stage, s in interval.waited.items()},
            **{f"busy_{stage.replace(' ', '_')}": s for stage, s in interval.busy.items()},
            **used,
        }

    def _sent_since(self, steps: int, num_samples: int) -> dict[str, float]:
        """Returns the samples of this rank, and what it has sent per step; empty where it is alone."""
        if self._ranks.num_ranks == 1:
            return {}
        sent = self._ranks.sent
        before, self._sent = self._sent, dataclasses.replace(sent)
        return {
            "samples_here": num_samples,
            "bytes_sent": (sent.num_bytes - before.num_bytes) / steps,
            "messages_sent": (sent.messages - before.messages) / steps,
        }
