"""StreamConfig: how events become batches, what is watched and when a stream ends, declared once.

The options of `hotrows train --stream`, their checks and the table in docs/reference/settings.md are
read from here.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hotrows.runtime.json_file import build
from hotrows.runtime.settings import declared, setting

LATE = ("drop", "train")
DELAYED = ("wait", "weight")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


@dataclass(frozen=True)
class StreamConfig:
    """How a run trains on a stream; all of it may change when the run is resumed.

    >>> StreamConfig(max_wait=0.2, alarm_idle=600.0).max_wait
    0.2
    """

    max_wait: float = setting(
        1.0, "Seconds after its first event when a batch is trained, full or not", above=0, resumable=True
    )
    queue: int = setting(
        8,
        "Batches that wait for training at most; then nothing is read",
        least=1,
        most=1 << 16,
        changes="no bit",
        option="--stream-queue",
    )
    lateness: float | None = setting(
        None,
        "Seconds of event time (the schema's `time`) by which an event may be older than the newest one "
        "before it; an older one is late",
        unset="no limit",
        least=0,
        resumable=True,
    )
    late: str = setting(
        "drop",
        "Late events become dead letters (drop), or are counted and trained (train)",
        choices=LATE,
        resumable=True,
    )
    join_on: str | None = setting(
        None,
        "Column with the id of an impression, in impressions and in labels (--labels)",
        unset="no labels of their own",
    )
    label_window: str = setting(
        "1h",
        "Time for which a label counts after its impression (attribution window): 90s, 30m, 1h, 7d",
        resumable=True,
    )
    delayed_labels: str = setting(
        "wait",
        "An impression is trained once its label is known or its window is over (wait), or at once as a "
        "negative, and again if a positive comes, by importance weights: loss fake_negative (weight)",
        choices=DELAYED,
    )
    label_memory: int | None = setting(
        None,
        "Memory of the impressions that are held for their labels; beyond it the run ends",
        unset="4GiB",
        least=1,
        changes="no bit",
        unit="bytes",
    )
    dead_letters: str | None = setting(
        None,
        "File of the events that are malformed or dropped, with position and reason",
        unset="dead_letters.jsonl in the run",
        changes="no bit",
    )
    window: int = setting(
        10_000,
        "Events over which progressive validation computes AUC, log loss and calibration",
        least=1,
        changes="no bit",
    )
    checkpoint_seconds: float | None = setting(
        60.0, "Seconds between checkpoints, beside --checkpoint-every", above=0, changes="no bit"
    )
    stop_when_idle: float | None = setting(
        None,
        "Seconds without an event after which the stream has ended",
        unset="never",
        least=0,
        resumable=True,
    )
    alarm_calibration: str | None = setting(
        None,
        "Bounds of a window's calibration, such as 0.8,1.25: outside of them the run saves and exits "
        "with 3",
        unset="no alarm",
        changes="no bit",
    )
    alarm_idle: float | None = setting(
        None,
        "Seconds without an event that can be trained after which the run saves and exits with 4",
        unset="no alarm",
        above=0,
        changes="no bit",
    )

    def __post_init__(self) -> None:
        for known in SETTINGS.values():
            known.check(getattr(self, known.name))
        _ = self.calibration_bounds, self.window_seconds

    @property
    def calibration_bounds(self) -> tuple[float, float] | None:
        """The least and the largest calibration without an alarm; None: there is no such alarm."""
        if self.alarm_calibration is None:
            return None
        try:
            low, high = (float(text) for text in self.alarm_calibration.split(","))
        except ValueError:
            low, high = math.nan, math.nan
        if not 0 <= low < high < math.inf:
            raise ValueError(
                f"alarm_calibration must be two numbers that rise, such as 0.8,1.25, not "
                f"{self.alarm_calibration!r}"
            )
        return low, high

    @property
    def window_seconds(self) -> int:
        """Seconds after an impression for which a label counts."""
        text = self.label_window.strip()
        number, unit = text[:-1].strip(), _SECONDS.get(text[-1:])
        if unit is None or not number.isdecimal() or not 0 < int(number) * unit < 1 << 40:
            raise ValueError(
                f"label_window must be a whole number above 0 with a unit, s, m, h or d, such as 90s or "
                f"1h, not {self.label_window!r}"
            )
        return int(number) * unit

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @staticmethod
    def from_json(fields: Mapping[str, Any]) -> StreamConfig:
        return build(StreamConfig, fields, "stream configuration")


GROUPS = {"Streams": tuple(field.name for field in dataclasses.fields(StreamConfig))}
SETTINGS = declared(StreamConfig, GROUPS)
