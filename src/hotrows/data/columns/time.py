"""The time of a sample: seconds since 1970, which splits and histories read, and the clock that ids show.

It is stored, in `times`, where keys expire by it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from hotrows.data.raw.arrow_arrays import clocks_of
from hotrows.data.raw.cells import Cells
from hotrows.data.raw.values import MISSING_TIME, Bad
from hotrows.data.rows import Arrays, RawRows, Section
from hotrows.schema import Schema


class TimeColumn:
    """The column of times, if a schema has one."""

    numeric: tuple[str, ...] = ()

    def __init__(self, schema: Schema) -> None:
        self._time = schema.time
        self.sections = (Section("times", np.dtype(np.int64)),) if schema.keeps_times else ()

    def read(self, cells: Cells, values: dict[str, Any]) -> Iterable[Bad | None]:
        time = self._time
        if time is None or not cells.has(time.column):
            return ()
        (seconds, clocks), bad = cells.times(time.column, time.format)
        if time.zone is not None and bad is None:
            clocks = clocks_of(seconds, time.zone)
        elif time.utc_offset is not None:
            clocks = np.where(seconds == MISSING_TIME, seconds, seconds + round(time.utc_offset * 3600))
        values["times"], values["clocks"] = seconds, clocks
        return (bad,)

    def encode(self, raw: RawRows, arrays: Arrays, threads: int) -> None:
        if self.sections and (times := raw.get("times")) is not None:
            arrays["times"] = times
