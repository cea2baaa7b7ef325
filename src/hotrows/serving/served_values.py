"""Values of the rows that are scored, by feature: how many are missing, unknown or out of range.

Rows that are spelled otherwise than those of the training get scores, and wrong ones: a column that is
gone, another format, another unit. `predict` warns of it at the end of its rows; requests have no end. So
they are counted, and compared with the prepared data when there are twice as many as last time.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass

import numpy as np

from hotrows.data.encode.encoder import Encoder
from hotrows.data.encode.rates import FAR, is_chance, warning_of
from hotrows.data.rows import RawRows, Rows
from hotrows.runtime.sums import Summed

log = logging.getLogger("hotrows")

_DEVIATIONS = 10  # from the mean: further are at most 1 % of any numbers (Chebyshev)
_USUAL = 1 / _DEVIATIONS**2
_QUIET = 60.0  # seconds between two warnings
_MOST_ROWS = 1 << 16  # that are compared together


@dataclass(frozen=True)
class Served(Summed):
    """Values of a feature since the start. out_of_range: numbers under `standard` further than 10
    deviations from their mean in the training part."""

    values: int = 0
    missing: int = 0
    unknown: int = 0
    out_of_range: int = 0


class ServedValues:
    """Counts of the values of scored rows; many threads may add to them."""

    def __init__(self, encoder: Encoder) -> None:
        self._encoder, self._lock = encoder, threading.Lock()
        self.clear()

    def clear(self) -> None:
        """Forgets all rows."""
        self._before: dict[str, Served] = {}
        self._quiet_until = 0.0
        self._begin()

    def add(self, raw: RawRows, rows: Rows, shared: Collection[str] = ()) -> None:
        """Counts rows; logs a warning where those since the last one differ from the prepared data.

        shared: features that a request has once for all of its rows: they count as one value.
        """
        with self._lock:
            self._recent.add(raw, rows, shared)
            is_due = self._recent.rows >= self._next and time.monotonic() >= self._quiet_until
            if (is_due and self._warned()) or self._recent.rows >= _MOST_ROWS:
                self._before = self._total()
                self._begin()

    def by_feature(self) -> dict[str, Served]:
        """The counts of each feature, in the order of the schema."""
        with self._lock:
            return self._total()

    def _warned(self) -> bool:
        """Compares the rows with the prepared data; whether it logs a warning."""
        self._next = 2 * self._recent.rows
        far = tuple(self._recent.far())
        if far:
            log.warning("%s", warning_of(far))
            self._quiet_until = time.monotonic() + _QUIET
        return bool(far)

    def _begin(self) -> None:
        self._recent, self._next = _Recent(self._encoder), 1

    def _total(self) -> dict[str, Served]:
        nothing = Served()
        return {name: one + self._before.get(name, nothing) for name, one in self._recent.by_feature()}


class _Recent:
    """Counts of the rows that are compared together."""

    def __init__(self, encoder: Encoder) -> None:
        self._rates, numbers = encoder.rate_counter(), encoder.columns.numbers
        self._standard = numbers.standard
        self._dense = list(encoder.schema.dense_places)
        self._names = [numbers.features[place].name for place in self._standard]
        self._far_numbers = np.zeros(len(self._names), np.int64)
        self.rows = 0

    def add(self, raw: RawRows, rows: Rows, shared: Collection[str]) -> None:
        once = np.array([name in shared for name in self._dense], bool)
        self._rates.add(raw, rows, once)
        self.rows += len(rows)
        is_far = np.abs(rows.arrays["dense"][:, self._standard]) > _DEVIATIONS
        is_far[1:, once[self._standard]] = False
        self._far_numbers += np.count_nonzero(is_far, axis=0)

    def by_feature(self) -> Iterator[tuple[str, Served]]:
        far = dict(zip(self._names, self._far_numbers.tolist(), strict=True))
        for name, counts in self._rates.rates().features.items():
            yield name, Served(counts.values, counts.missing, counts.unknown, far.get(name, 0))

    def far(self) -> Iterator[str]:
        """Yields a sentence for each feature whose values are far from the usual ones."""
        rates = self._rates.rates()
        yield from rates.far
        for name, number in zip(self._names, self._far_numbers.tolist(), strict=True):
            values = rates.features[name].values
            rate = number / max(values, 1)
            if rate - _USUAL > FAR and not is_chance(values, rate, _USUAL):
                yield f"{name!r} {rate:.1%} further than {_DEVIATIONS} deviations from the mean"
