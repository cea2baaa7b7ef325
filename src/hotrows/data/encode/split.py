"""Splits of rows into training, validation and test part; and requests, whose rows stay together."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from hotrows.data.columns.group import numbers_of
from hotrows.data.columns.history import BEGIN, END
from hotrows.data.columns.label import MISSING_LABEL
from hotrows.data.columns.of_schema import SchemaColumns
from hotrows.data.raw.values import MISSING_TIME, joined, mix64
from hotrows.data.rows import RawRows, Room, Rows, gathered
from hotrows.data.stored.order import permutation
from hotrows.data.stored.part import NAMES
from hotrows.data.stored.request_rows import Division

KINDS = ("fraction", "stratified", "position", "time", "group")
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_VALIDATION_OF_TRAINING = Fraction(1, 10)
_NEVER = np.iinfo(np.int64).max
_STRATUM = 1000  # rows of one label per permuted block
# A decimal number or a fraction, of few digits: a Fraction of 1e999999999 takes all memory there is.
_SHARE = re.compile(
    r"\s*(([0-9]{1,20}(\.[0-9]{0,20})?|\.[0-9]{1,20})(e-[0-9]{1,2})?|[0-9]{1,20}/[1-9][0-9]{0,19})\s*"
)


@dataclass(frozen=True)
class Split:
    """A rule that distributes rows over the parts.

    kind: `fraction` draws a part for every row from (seed, row number), or for every request;
    `stratified` draws so that every part gets its share of every label's rows; `position` cuts the
    files, in their order, into training, validation and test; `time` cuts by the schema's time; `group`
    draws a part for every value of a column from (seed, value).
    shares: of training, validation and test; they sum to 1. None where `before` replaces them.
    before: of a split by time: earlier rows than the first train, earlier ones than the second validate.
    by: the column of a split by group; None: the schema's grouping.
    """

    kind: str
    shares: tuple[Fraction, Fraction, Fraction] | None
    before: tuple[int, int] | None = None
    by: str | None = None

    @property
    def sharing(self) -> dict[str, bool]:
        """For each part, True if rows are to go to it."""
        train, end = self.before or (0, 0)
        shares = self.shares or (True, end > train, end < _NEVER)
        return {name: bool(share) for name, share in zip(NAMES, shares, strict=True)}


def parse_split(
    text: str, parse_time: Callable[[str], int] | None = None, declared: Sequence[str] = ()
) -> Split:
    """Parses `fraction:0.8,0.1,0.1`, `position:0.7,0.1,0.2`, or one share of training and validation.

    position:0.8  ->  0.72, 0.08, 0.2: the validation part is the last tenth of the first 80 %.
    `time:A,B`: the times, as the schema writes them, from which on rows validate and test; `time:A`
    leaves no validation part. `group:COLUMN:0.8,0.1,0.1`: by the values of a column.
    parse_time: converts a time in the schema's format to seconds since 1970; declared: the parts, of
    "validation" and "test", that have files of their own: the share or time of training alone leaves
    nothing to them, and others that do are an error.
    """
    kind, _, numbers = str(text).partition(":")
    by, _, numbers = numbers.rpartition(":") if kind == "group" else ("", "", numbers)
    shares = _shares(numbers, declared)
    if shares is None and kind == "time" and numbers and parse_time is not None:
        times = [parse_time(word) for word in numbers.split(",")]
        if len(times) <= 2 and times == sorted(times):
            before = _before(times, declared)
            return _checked(text, Split(kind, None, before), declared)
    if kind not in KINDS or shares is None:
        raise ValueError(
            f"split must be 'fraction:', 'stratified:', 'position:', 'group:COLUMN:' or 'time:' and the "
            f"shares of training, validation and test, which sum to 1 ('fraction:0.8,0.1,0.1'), or the "
            f"share of training alone ('position:0.8'), or, by time alone, the times from which on rows "
            f"validate and test ('time:2024-03-01,2024-03-02'), not {str(text)[:60]!r}"
        )
    return _checked(text, Split(kind, shares, by=by or None), declared)


def _checked(text: str, split: Split, declared: Sequence[str]) -> Split:
    """Returns the split; an error if it shares rows out to a part that has files of its own."""
    for part in (part for part in declared if split.sharing[part]):
        none = "fraction:0.9,0.1,0" if part == "test" else "fraction:0.9,0,0.1"
        raise ValueError(
            f"split {text!r} would move rows of the training files into the {part} part, which has files "
            f"of its own; give it no share ({none!r}), or leave the files or the split out"
        )
    return split


def _before(times: list[int], declared: Sequence[str]) -> tuple[int, int]:
    """The times before which rows train and validate; rows from one time on belong to the part that has
    no files of its own."""
    is_one = len(times) == 1 and "test" in declared and "validation" not in declared
    return times[0], _NEVER if is_one else times[-1]


def _shares(numbers: str, declared: Sequence[str] = ()) -> tuple[Fraction, Fraction, Fraction] | None:
    words = numbers.split(",")
    if not all(map(_SHARE.fullmatch, words)):
        return None
    shares = tuple(map(Fraction, words))
    if len(shares) == 1 and declared:
        other = 1 - shares[0]
        shares = (shares[0], *((other, 0) if "validation" not in declared else (0, other)))
    elif len(shares) == 1:
        validation = shares[0] * _VALIDATION_OF_TRAINING
        shares = (shares[0] - validation, validation, 1 - shares[0])
    total = sum(shares)
    if (len(shares) == 3 and total != 1) or (len(shares) == 2 and max(shares) <= 1):
        raise ValueError(
            f"split {numbers!r}: expected the shares of training, validation and test, which sum to 1, "
            f"found {len(shares)} that sum to {float(total):g}"
        )
    legal = len(shares) == 3 and min(shares) >= 0 and shares[0] > 0
    return (shares[0], shares[1], shares[2]) if legal else None


class Sharing:
    """Assigns rows to parts, chunk by chunk in the order of the stream.

    total: number of rows, of a split by position; before: times of a split by time; state: rows of
    each label so far, of a stratified split.
    """

    def __init__(
        self,
        split: Split,
        seed: int,
        total: int | None = None,
        before: tuple[int, int] | None = None,
        state: dict[str, int] | None = None,
    ) -> None:
        self._split = split
        self._seed = seed
        self._total = total
        self._before = before or split.before
        self._counted: dict[str, int] = dict(state or {})

    @property
    def state(self) -> dict[str, int]:
        """Number of rows of each label that were assigned so far."""
        return dict(self._counted)

    @property
    def settled(self) -> dict[str, Any]:
        """Number of rows and times that were determined before the first row; equal in every pass."""
        return {"total": self._total, "before": self._before}

    def parts(self, columns: RawRows, declared: int | None = None) -> np.ndarray:
        """Returns the part of each row as its index in NAMES: [rows] uint8. declared: that of the whole
        input; None: the split decides."""
        if declared is not None:
            return np.full(columns.num_rows, declared, np.uint8)
        rows = np.arange(columns.first_row, columns.first_row + columns.num_rows, dtype=np.int64)
        if self._split.kind == "position":
            assert self._total is not None
            return self._cut(rows, self._total)
        if self._split.kind == "time":
            return self._by_time(columns)
        if self._split.kind == "stratified":
            return self._stratified(columns)
        units = columns.get("requests" if self._split.by is None else "units")  # drawn whole
        numbers = rows if units is None else numbers_of(units, columns.first_row)
        return self._cut(random_bits(numbers, self._seed), 1 << 53)

    def _cut(self, numbers: np.ndarray, end: int) -> np.ndarray:
        """Returns the part of each number below `end`, the range being cut by the shares."""
        assert self._split.shares is not None
        train, validation, _ = self._split.shares
        bounds = np.array([int(train * end), int((train + validation) * end)])
        return np.searchsorted(bounds, numbers, side="right").astype(np.uint8)

    def _by_time(self, columns: RawRows) -> np.ndarray:
        assert self._before is not None
        times = columns.values["times"]
        missing = np.flatnonzero(times == MISSING_TIME)
        if len(missing):
            raise ValueError(
                f"{columns.where(int(missing[0]))} has no time, so a split by time cannot place it; "
                f"fill it in, or split in another way"
            )
        return np.searchsorted(self._before, times, side="right").astype(np.uint8)

    def _stratified(self, columns: RawRows) -> np.ndarray:
        """Cuts each label's rows into blocks; permutes every block and cuts it by the shares."""
        labels = columns.values["labels"][0]
        if labels.dtype.kind == "f":  # where another label is a number
            labels = np.where(np.isnan(labels), MISSING_LABEL, labels).astype(np.uint8)
        parts = np.empty(columns.num_rows, np.uint8)
        for label in np.unique(labels).tolist():
            chosen = np.flatnonzero(labels == label)
            before = self._counted.get(str(label), 0)
            numbers = np.arange(before, before + len(chosen))
            for block in np.unique(numbers // _STRATUM).tolist():
                order = np.argsort(permutation(_STRATUM, self._seed, label, block))
                inside = numbers // _STRATUM == block
                parts[chosen[inside]] = self._cut(order[numbers[inside] % _STRATUM], _STRATUM)
            self._counted[str(label)] = before + len(chosen)
        return parts


def random_bits(rows: np.ndarray, seed: int) -> np.ndarray:
    """Draws 53 random bits per row, a function of seed and row number."""
    key = mix64(np.array([seed & (1 << 64) - 1], np.uint64))
    bits = mix64(key + (rows.astype(np.uint64) + np.uint64(1)) * _GOLDEN)
    return (bits >> np.uint64(11)).astype(np.int64)


class SharedChecks:
    """Checks that rows of a request share features, chunk after chunk.

    first: the first row, encoded and raw, which can be sent; last: the last one of the chunk before,
    encoded; None before there are any.
    """

    def __init__(self, columns: SchemaColumns) -> None:
        self._division = Division(columns.sections)
        self.first: tuple[Rows, RawRows] | None = None
        self.last: Rows | None = None

    def check(self, rows: Rows, raw: RawRows) -> None:
        """ValueError names the first row that differs from the one before it, which is of its request."""
        requests = raw.get("requests")
        if requests is None or not len(rows):
            return
        if self.first is None:
            request, where = joined([requests.value(0)]), [raw.where(0)].__getitem__
            first = rows.take(np.zeros(1, np.int64))
            self.first = first, RawRows(0, 1, {"requests": request}, where)
        if self.last is not None:
            self._check(gathered([self.last, rows[:1]], np.arange(2), Room()), raw, 0)
        self._check(rows, raw, 1)
        self.last = rows.take(np.array([len(rows) - 1]))

    def _check(self, rows: Rows, raw: RawRows, first: int) -> None:
        numbers = rows.arrays["requests"]
        same = numbers[1:] == numbers[:-1]
        differing = [
            (int(places[0]) + first, "histories" if f"ids/{name}" in (BEGIN, END) else name)
            for name, differs in self._division.differences(rows).items()
            if len(places := np.flatnonzero(same & differs))
        ]
        if not differing:
            return
        row, name = min(differing)
        request = raw.values["requests"].value(row)[:60].decode("utf-8", "backslashreplace")
        raise ValueError(
            f"{raw.where(row)}, feature {name!r}: expected the value of the row before, of "
            f"the same request {request!r}, found another; correct the row, or leave {name!r} out of "
            f"shared"
        )
