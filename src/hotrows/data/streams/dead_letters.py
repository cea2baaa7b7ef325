"""DeadLetters: events that were not trained, a line of JSON each, with position and reason.

    {"read": 1041, "place": "clicks/a.jsonl line 1042", "reason": "malformed",
     "what": "clicks/a.jsonl event 1,042, column 'price': expected a number, found 'x'; correct ..",
     "event": "{\"click\": 1, \"price\": \"x\"}"}

`read` counts the events of the stream before it. A resumed run reads events after its checkpoint again,
and so drops the letters that were written about them: each event has at most one.
"""

from __future__ import annotations

from pathlib import Path

from hotrows.data.streams.alarms import log
from hotrows.data.streams.line_log import LineLog

_LONGEST = 1 << 16  # characters of an event that are written
MALFORMED, LATE = "malformed", "late"


class DeadLetters:
    """Appends to a file of dead letters, and warns of the first malformed event. read: events that were
    read before; later letters are dropped."""

    def __init__(self, path: Path | str, read: int = 0) -> None:
        self.path = path = Path(path)
        self._log = LineLog(path, lambda letter: type(n := letter.get("read")) is int and n < read)
        self.sync, self.close, self._has_warned = self._log.sync, self._log.close, False

    def write(self, read: int, place: str, reason: str, what: str, event: str) -> None:
        """place: where the event is in the source; what: the reason in words; event: as it came."""
        if reason == MALFORMED and not self._has_warned:
            log.warning(f"{place} is not trained: {what}; malformed events go to {self.path}")
            self._has_warned = True
        position = {"read": read, "place": place}
        self._log.write({**position, "reason": reason, "what": what, "event": event[:_LONGEST]})
