"""One id a sample: a value as it is, or one made of a number or of the time; and vocabularies of ids.

An id is made of a value's text, so that it is the same id whatever carries it. Ids of a vocabulary are 1
for a missing value, then those of unknown values, then the values of training by rank.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from hotrows.data.columns.key import RawKeys
from hotrows.data.raw import values as raw_values
from hotrows.data.raw.arrow_arrays import spans_of, text_array
from hotrows.data.raw.cells import Cells
from hotrows.data.raw.values import MISSING_TIME, Bad, RawIds
from hotrows.data.rows import Section, width_of
from hotrows.schema import FIRST_UNKNOWN, MISSING, IdFeature, Schema, Sequence, Sparse

LEGAL = ("u1", "u2", "u4", "i8")  # types of stored ids


class RankedIds:
    """Ids by the rank of a value in a vocabulary. unknown: those of values that it lacks."""

    missing, has_values = MISSING, True

    def __init__(self, schema: Schema, feature: IdFeature) -> None:
        self._schema, self._feature = schema, feature
        self.unknown = range(FIRST_UNKNOWN, FIRST_UNKNOWN + feature.num_unknown)

    @property
    def dtype(self) -> np.dtype:
        """The narrowest integer that holds the ids."""
        return width_of(self._schema.rows_of(self._feature.name))

    def words(self, raw: RawIds) -> RawIds:
        """The values that are counted and looked up."""
        return raw

    def ids(self, raw: RawIds, ranked: np.ndarray, where: Callable[[int], str]) -> np.ndarray:
        """The ids of values. ranked: of `words`, -1 where there is none."""
        if self.unknown or not len(unknown := np.flatnonzero(ranked < 0)):
            return ranked
        n = int(unknown[0])
        row = n if raw.offsets is None else int(np.searchsorted(raw.offsets, n, side="right")) - 1
        value = raw.value(n)[:60].decode("utf-8", "backslashreplace")
        raise ValueError(
            f"{where(row)}, feature {self._feature.name!r}: {value!r} was never seen in training, and "
            f"num_unknown=0 gives such values no id; correct the row, or prepare with num_unknown=1"
        )

    def counted(self, ids: np.ndarray) -> np.ndarray:
        """Those of ids that are rows."""
        return ids

    def wrong(self, ids: np.ndarray) -> tuple[int, str] | None:
        """The place of the first number that is no id, and what was expected."""
        rows = self._schema.rows_of(self._feature.name)
        places = np.flatnonzero((ids < 0) | (ids >= rows))
        return (int(places[0]), f"ids from 0 to {rows - 1:,}") if len(places) else None


class IdColumn:
    """A column of one id a sample."""

    is_list = is_sequence = has_weights = has_order = False
    max_length: int | None = None

    def __init__(self, schema: Schema, feature: IdFeature) -> None:
        self.feature, self.name, self.column = feature, feature.name, schema.column_of(feature)
        self.lookup: RankedIds | RawKeys = RawKeys() if feature.dynamic else RankedIds(schema, feature)
        self.shared, self.transform = feature.name in schema.shared, getattr(feature, "transform", "none")
        self.numeric = (self.column,) if self.transform in _OF_NUMBERS else ()

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.column,)

    @property
    def sections(self) -> tuple[Section, ...]:
        return (
            Section(f"ids/{self.name}", self.lookup.dtype, None, self.is_list, self.shared, legal=LEGAL),
        )

    def read(self, cells: Cells, values: dict[str, Any]) -> Iterable[Bad]:
        problems: list[Bad] = []
        if self.transform in _OF_TIME and "clocks" in values:
            raw = raw_values.integers(_of_time(self.transform, values["clocks"]))
        elif cells.has(self.column):
            raw, problems = self._read(cells)
        else:
            raw = raw_values.no_values(cells.num_rows)
        values[f"ids/{self.name}"] = raw
        return problems

    def _read(self, cells: Cells) -> tuple[RawIds, list[Bad]]:
        if self.numeric:
            assert isinstance(self.feature, Sparse)
            numbers, _ = cells.number(self.column)
            return raw_values.integers(_OF_NUMBERS[self.transform](self.feature, numbers)), []
        raw = cells.ids(self.column)
        return made_of(self.feature, self.column, raw)

    def is_unknown(self, ids: np.ndarray) -> np.ndarray:
        """Which ids are of values that the vocabulary lacks."""
        return (ids >= self.lookup.unknown.start) & (ids < self.lookup.unknown.stop)

    def absent(self, values: np.ndarray, bounds: np.ndarray | None) -> np.ndarray:
        """[rows] bool, which have no value."""
        return values == self.lookup.missing

    def encode(
        self, values: Mapping[str, Any], ids: np.ndarray, arrays: dict[str, Any], bounds: dict[str, Any]
    ) -> None:
        arrays[f"ids/{self.name}"] = ids
        if (offsets := values[f"ids/{self.name}"].offsets) is not None:
            bounds[self.name] = offsets


def made_of(feature: Any, column: str, raw: RawIds) -> tuple[RawIds, list[Bad]]:
    """The values that a feature makes of raw ones; and the first of which it makes nothing."""
    if type(feature) in (Sparse, Sequence):
        return raw, []
    ids = spans_of(feature.ids_of(text_array(raw)).cast("large_string"))
    wrong = np.flatnonzero((raw.lengths > 0) & (ids.lengths == 0))[:1].tolist()
    rows = wrong if raw.offsets is None else np.searchsorted(raw.offsets, wrong, "right") - 1
    values = RawIds(ids.text, ids.starts, ids.lengths, raw.offsets)
    return values, [Bad(int(row), column, feature.expected) for row in rows]


def _bucket(feature: Sparse, numbers: np.ndarray) -> np.ndarray:
    """[rows] float64: how many of the boundaries are at most a number; NaN where missing."""
    buckets = np.searchsorted(feature.boundaries, numbers, side="right").astype(np.float64)
    return np.where(np.isnan(numbers), np.nan, buckets)


def _log(feature: Sparse, numbers: np.ndarray) -> np.ndarray:
    """[rows] float64: floor(log(x)^2) above 2 and floor(x) else; NaN where missing."""
    logarithm = np.log(np.where(numbers > 2, numbers, 1.0))
    low = np.clip(numbers, -(2.0**62), 2.0)
    return np.floor(np.where(numbers > 2, logarithm**2, low))


def _of_time(transform: str, clocks: np.ndarray) -> np.ndarray:
    present = clocks != MISSING_TIME
    return np.where(present, _OF_TIME[transform](np.where(present, clocks, 0)), np.nan)


def _day(seconds: np.ndarray) -> np.ndarray:
    dates = (seconds // 86400).astype("datetime64[D]")
    return (dates - dates.astype("datetime64[M]")).astype(np.int64) + 1


def _weekday(seconds: np.ndarray) -> np.ndarray:
    return (seconds // 86400 + 3) % 7  # 1970 began on a Thursday


_OF_NUMBERS = {"log": _log, "bucket": _bucket}
_OF_TIME: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "hour": lambda seconds: seconds // 3600 % 24,
    "weekday": _weekday,
    "weekend": lambda seconds: (_weekday(seconds) >= 5).astype(np.int64),
    "day": _day,
}
