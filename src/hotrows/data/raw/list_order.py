"""Whether lists begin with their newest item, as far as a log in order of time shows it.

A later list of a user goes on from an earlier one. Where the newest item is the first, the beginning of
the earlier list is found a few places later; where it is the last, its end is found a few places before:

    newest first    [a b c d e ..]  ->  [x a b c d e ..]
    newest last     [.. a b c d e]  ->  [.. a b c d e x]

Which rows are of one user need not be known: runs of four ids hardly come together by chance.
"""

from __future__ import annotations

import numpy as np

_RUN, _PLACES = 4, 8  # ids that are compared, and how many places farther they are looked for
_LEAST, _LEAST_SHARE = 20, 0.02  # rows that show it, and their share
_CLEAR = 4  # times those of the other order

NEWEST_FIRST = (
    "its lists seem to begin with the newest item, if the rows are in order of time: max_length keeps "
    "the last ids of a list, and models take the last as the newest; turn the lists around"
)


def are_newest_first(ids: np.ndarray, bounds: np.ndarray) -> bool:
    """True if lists of rows in order of time show that the newest item comes first.

    ids: of all lists, end to end; bounds: [rows + 1] where each begins, and the last ends.
    """
    starts, ends = bounds[:-1].astype(np.int64), bounds[1:].astype(np.int64)
    is_long = ends - starts > _RUN
    starts, ends = starts[is_long], ends[is_long]
    if len(starts) < _LEAST:
        return False
    runs = np.zeros(len(ids) - _RUN + 1, np.uint64)
    for place in range(_RUN):
        runs = runs * np.uint64(0x9E3779B97F4A7C15) + ids[place : len(runs) + place].astype(np.uint64)
    first = _continue(runs, starts, ends - starts, 1)
    last = _continue(runs, ends - _RUN, ends - starts, -1)
    return first >= max(_LEAST, _LEAST_SHARE * len(starts), _CLEAR * last)


def _continue(runs: np.ndarray, places: np.ndarray, lengths: np.ndarray, step: int) -> int:
    """Counts the lists that have the run of an earlier list, at its place, some places farther."""
    known, rows = np.unique(runs[places], return_index=True)
    goes_on = np.zeros(len(places), bool)
    for shift in range(1, _PLACES + 1):
        is_long = np.flatnonzero(lengths >= shift + _RUN)
        wanted = runs[places[is_long] + step * shift]
        nearest = np.minimum(np.searchsorted(known, wanted), len(known) - 1)
        goes_on[is_long] |= (known[nearest] == wanted) & (rows[nearest] < is_long)
    return int(goes_on.sum())
