"""Alarms: what of a stream, or of the model's predictions of it, somebody should look at."""

from __future__ import annotations

import logging
import math
import time

log = logging.getLogger("hotrows")

_SILENCE = 60.0  # seconds between two warnings
_EXIT_CODES = {"calibration": 3, "idle": 4, "nan": 5}


class Alarm(ValueError):
    """An alarm of a stream.

    A window whose calibration is out of bounds (`calibration`), no event for too long (`idle`), or
    predictions that are no finite numbers (`nan`).

    exit_code: of the command line.

    >>> Alarm("idle", "no event came for 60 s").exit_code
    4
    """

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind, self.exit_code = kind, _EXIT_CODES[kind]


class Outage:
    """Says, once a minute at most, that what a source named `name` reads from is away."""

    def __init__(self, name: str) -> None:
        self._name, self._warned_at = name, -math.inf

    def warn(self, error: object) -> None:
        if time.monotonic() - self._warned_at > _SILENCE:
            log.warning(f"{self._name}: {error}; it is tried again")
            self._warned_at = time.monotonic()
