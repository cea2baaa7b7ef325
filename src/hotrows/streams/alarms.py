"""Alarms: what of a stream, or of the model's predictions of it, somebody should look at."""

from __future__ import annotations

_EXIT_CODES = {"calibration": 3, "idle": 4, "nan": 5}


class Alarm(ValueError):
    """A window whose calibration is out of bounds (`calibration`), no event for too long (`idle`), or
    predictions that are no finite numbers (`nan`).

    exit_code: of the command line.
    """

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind, self.exit_code = kind, _EXIT_CODES[kind]
