"""Trace: when each stage of each batch ran, as a file that Perfetto and chrome://tracing open."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Event:
    """A stage of a batch, from `begin` to `end` in seconds of one clock."""

    stage: str
    lane: str
    batch: int
    begin: float
    end: float


def trace_text(events: Sequence[Event]) -> str:
    """Events in the Trace Event Format, JSON with a row per lane and times in microseconds."""
    lanes = list(dict.fromkeys(event.lane for event in events))
    first = min((event.begin for event in events), default=0.0)
    named = [
        {"ph": "M", "name": "thread_name", "pid": 0, "tid": i, "args": {"name": lane}}
        for i, lane in enumerate(lanes)
    ]
    spans = [
        {
            "ph": "X",
            "name": f"{event.stage} {event.batch}",
            "cat": event.stage,
            "pid": 0,
            "tid": lanes.index(event.lane),
            "ts": round((event.begin - first) * 1e6, 1),
            "dur": round((event.end - event.begin) * 1e6, 1),
            "args": {"batch": event.batch},
        }
        for event in events
    ]
    return json.dumps({"traceEvents": named + spans, "displayTimeUnit": "ms"}) + "\n"
