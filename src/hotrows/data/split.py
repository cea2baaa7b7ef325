"""Which part of the data a row belongs to: training, validation or test."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np

NAMES = ("train", "validation", "test")
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_VALIDATION_OF_TRAINING = Fraction(1, 10)


@dataclass(frozen=True)
class Split:
    """How rows are shared out.

    kind: `fraction` draws a part for every row from (seed, row number); `position` cuts the files,
    in their order, into training, validation and test.
    shares: of training, validation and test; they sum to 1.
    """

    kind: str
    shares: tuple[Fraction, Fraction, Fraction]

    @property
    def needs_total(self) -> bool:
        """Whether the number of rows must be known before the first can be given to a part."""
        return self.kind == "position"


def parse_split(text: str) -> Split:
    """`fraction:0.8,0.1,0.1`, `position:0.7,0.1,0.2`; or one share, of training and validation.

    position:0.8  ->  0.72, 0.08, 0.2: the validation part is the last tenth of the first 80 %.
    """
    kind, _, numbers = text.partition(":")
    try:
        shares = tuple(Fraction(number) for number in numbers.split(","))
    except (ValueError, ZeroDivisionError):
        shares = ()
    if len(shares) == 1:
        validation = shares[0] * _VALIDATION_OF_TRAINING
        shares = (shares[0] - validation, validation, 1 - shares[0])
    legal = len(shares) == 3 and sum(shares) == 1 and min(shares) >= 0 and shares[0] > 0
    if kind not in ("fraction", "position") or not legal:
        raise ValueError(
            f"split must be 'fraction:' or 'position:' and the shares of training, validation and "
            f"test, which sum to 1 ('fraction:0.8,0.1,0.1'), or the share of training alone "
            f"('position:0.8'), not {text!r}"
        )
    return Split(kind, (shares[0], shares[1], shares[2]))


def parts_of(
    split: Split, first_row: int, num_rows: int, total: int | None, seed: int
) -> np.ndarray:
    """[num_rows] uint8, the part of each row as its place in NAMES."""
    rows = np.arange(first_row, first_row + num_rows, dtype=np.int64)
    if split.kind == "position":
        assert total is not None
        return _parts(rows, split, total)
    return _parts(_random(rows, seed), split, 1 << 53)


def _parts(numbers: np.ndarray, split: Split, end: int) -> np.ndarray:
    """The part of each number below `end`, when the range up to it is cut by the shares."""
    train, validation, _ = split.shares
    bounds = np.array([int(train * end), int((train + validation) * end)])
    return np.searchsorted(bounds, numbers, side="right").astype(np.uint8)


def _random(rows: np.ndarray, seed: int) -> np.ndarray:
    """53 random bits per row; any row in any order."""
    key = _mix64(np.array([seed & (1 << 64) - 1], np.uint64))
    bits = _mix64(key + (rows.astype(np.uint64) + np.uint64(1)) * _GOLDEN)
    return (bits >> np.uint64(11)).astype(np.int64)


def _mix64(x: np.ndarray) -> np.ndarray:
    """The finalizer of splitmix64 (Steele, Lea, Flood 2014)."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
