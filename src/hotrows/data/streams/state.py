"""How far a stream was read, and how labels were joined: part of the checkpoints of a run on it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class LabelState:
    """How labels were joined.

    joined, late, unmatched, duplicates: labels that found their impression, came after its window, found
    none, or say what was known; repeated: impressions with the id of another one; released: samples.
    label_time: of the newest label; until: the event time up to which all is known.
    """

    joined: int = 0
    late: int = 0
    unmatched: int = 0
    duplicates: int = 0
    repeated: int = 0
    released: int = 0
    label_time: int | None = None
    until: int | None = None

    def __str__(self) -> str:
        return (
            f"{self.joined:,} joined, {self.late:,} late, {self.unmatched:,} without an impression, "
            f"{self.duplicates:,} duplicates; {self.repeated:,} impressions with the id of another one"
        )


@dataclass(frozen=True)
class StreamState:
    """How far a stream was read.

    source: its name; position: behind the last event. events: in batches so far; read: events in all,
    those that were malformed or late included. malformed, late: how many were; event_time: the newest one
    so far, in seconds since 1970, None where none has a time; short: events whose histories may lack some
    that were dropped. labels: of impressions whose labels come later.
    """

    source: str
    position: dict[str, Any]
    events: int = 0
    read: int = 0
    malformed: int = 0
    late: int = 0
    event_time: int | None = None
    short: int = 0
    labels: LabelState | None = None
