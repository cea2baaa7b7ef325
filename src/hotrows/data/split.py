"""Which part of the data a row belongs to: training, validation or test."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from hotrows.data.columns import Columns
from hotrows.data.order import permutation
from hotrows.data.values import MISSING_TIME, mix64

NAMES = ("train", "validation", "test")
KINDS = ("fraction", "stratified", "position", "time")

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_VALIDATION_OF_TRAINING = Fraction(1, 10)
_STRATUM = 1000  # rows of one label that are shared out together


@dataclass(frozen=True)
class Split:
    """How rows are shared out.

    kind: `fraction` draws a part for every row from (seed, row number); `stratified` draws so that
    every part gets its share of every label's rows; `position` cuts the files, in their order, into
    training, validation and test; `time` cuts by the schema's time.
    shares: of training, validation and test; they sum to 1. None where `before` says it.
    before: of a split by time: what is earlier than the first trains, than the second validates.
    """

    kind: str
    shares: tuple[Fraction, Fraction, Fraction] | None
    before: tuple[int, int] | None = None

    @property
    def needs_total(self) -> bool:
        """Whether the number of rows must be known before the first can be given to a part."""
        return self.kind == "position"

    @property
    def needs_times(self) -> bool:
        """Whether all times must be seen before the first row can be given to a part."""
        return self.kind == "time" and self.before is None


def parse_split(text: str, parse_time: Callable[[str], int] | None = None) -> Split:
    """`fraction:0.8,0.1,0.1`, `position:0.7,0.1,0.2`; or one share, of training and validation.

    position:0.8  ->  0.72, 0.08, 0.2: the validation part is the last tenth of the first 80 %.
    `time:A,B`: the times, as the schema writes them, from which on rows validate and test; `time:A`
    leaves no validation part.
    parse_time: seconds since 1970 of a time as the schema writes it.
    """
    kind, _, numbers = text.partition(":")
    shares = _shares(numbers)
    if shares is None and kind == "time" and numbers and parse_time is not None:
        given = [parse_time(word) for word in numbers.split(",")]
        if len(given) <= 2 and given == sorted(given):
            return Split(kind, None, (given[0], given[-1]))
    if kind not in KINDS or shares is None:
        raise ValueError(
            f"split must be 'fraction:', 'stratified:', 'position:' or 'time:' and the shares of "
            f"training, validation and test, which sum to 1 ('fraction:0.8,0.1,0.1'), or the share "
            f"of training alone ('position:0.8'), or the times from which on rows validate and test "
            f"('time:2024-03-01,2024-03-02'), not {text!r}"
        )
    return Split(kind, shares)


def _shares(numbers: str) -> tuple[Fraction, Fraction, Fraction] | None:
    try:
        shares = tuple(Fraction(number) for number in numbers.split(","))
    except (ValueError, ZeroDivisionError):
        return None
    if len(shares) == 1:
        validation = shares[0] * _VALIDATION_OF_TRAINING
        shares = (shares[0] - validation, validation, 1 - shares[0])
    legal = len(shares) == 3 and sum(shares) == 1 and min(shares) >= 0 and shares[0] > 0
    return (shares[0], shares[1], shares[2]) if legal else None


class Sharing:
    """Gives rows to parts, chunk by chunk in the order of the stream.

    total: rows in all, of a split by position; before: of one by time. A split that is stratified
    counts the rows of each label: `state` is what it has counted.
    """

    def __init__(
        self, split: Split, seed: int, total: int | None = None,
        before: tuple[int, int] | None = None, state: dict[str, int] | None = None,
    ) -> None:  # fmt: skip
        self._split = split
        self._seed = seed
        self._total = total
        self._before = before or split.before
        self._counted: dict[str, int] = dict(state or {})

    @property
    def state(self) -> dict[str, int]:
        """How many rows of each label have been shared out."""
        return dict(self._counted)

    @property
    def settled(self) -> dict[str, Any]:
        """What was found out before the first row; the same for every pass."""
        return {"total": self._total, "before": self._before}

    def parts(self, columns: Columns) -> np.ndarray:
        """[rows] uint8, the part of each row as its place in NAMES."""
        rows = np.arange(columns.first_row, columns.first_row + columns.num_rows, dtype=np.int64)
        if self._split.kind == "position":
            assert self._total is not None
            return self._cut(rows, self._total)
        if self._split.kind == "time":
            return self._by_time(columns)
        if self._split.kind == "stratified":
            return self._stratified(columns)
        return self._cut(random_bits(rows, self._seed), 1 << 53)

    def _cut(self, numbers: np.ndarray, end: int) -> np.ndarray:
        """The part of each number below `end`, when the range up to it is cut by the shares."""
        assert self._split.shares is not None
        train, validation, _ = self._split.shares
        bounds = np.array([int(train * end), int((train + validation) * end)])
        return np.searchsorted(bounds, numbers, side="right").astype(np.uint8)

    def _by_time(self, columns: Columns) -> np.ndarray:
        assert columns.times is not None and self._before is not None
        missing = np.flatnonzero(columns.times == MISSING_TIME)
        if len(missing):
            raise ValueError(
                f"{columns.where(int(missing[0]))} has no time, so a split by time cannot place it; "
                f"fill it in, or split in another way"
            )
        return np.searchsorted(self._before, columns.times, side="right").astype(np.uint8)

    def _stratified(self, columns: Columns) -> np.ndarray:
        """Each label's rows in blocks; every block is permuted, then cut by the shares."""
        assert columns.labels is not None
        parts = np.empty(columns.num_rows, np.uint8)
        for label in np.unique(columns.labels[0]).tolist():
            chosen = np.flatnonzero(columns.labels[0] == label)
            before = self._counted.get(str(label), 0)
            numbers = np.arange(before, before + len(chosen))
            for block in np.unique(numbers // _STRATUM).tolist():
                order = np.argsort(permutation(_STRATUM, self._seed, label, block))
                inside = numbers // _STRATUM == block
                parts[chosen[inside]] = self._cut(order[numbers[inside] % _STRATUM], _STRATUM)
            self._counted[str(label)] = before + len(chosen)
        return parts


def random_bits(rows: np.ndarray, seed: int) -> np.ndarray:
    """53 random bits per row; any row in any order."""
    key = mix64(np.array([seed & (1 << 64) - 1], np.uint64))
    bits = mix64(key + (rows.astype(np.uint64) + np.uint64(1)) * _GOLDEN)
    return (bits >> np.uint64(11)).astype(np.int64)
