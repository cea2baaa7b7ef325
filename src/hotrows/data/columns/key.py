"""Keys: the raw values of dynamic features as int64 numbers, which get and lose rows in training.

A value that is the canonical text of an int64 number (42, -7; not 007, +1 or 1e5) is that number. Other
text is hashed to 64 bits (`values.hash_values`), so that two of n distinct texts share a key with a
probability of about n^2 / 2^65: 3e-5 for 33.8 million, 0.03 for a billion. A missing value is
`MISSING_KEY`, the least int64, which no value becomes.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from hotrows.data.raw.arrow_arrays import binary_array
from hotrows.data.raw.values import RawIds, hash_values, no_values
from hotrows.runtime.arrow import pa
from hotrows.schema import MISSING_KEY

_MOST_DIGITS = 18  # longer numbers are looked at one by one: some are beyond int64
_NUMBER = f"^(0|-?[1-9][0-9]{{0,{_MOST_DIGITS - 1}}})$"


class RawKeys:
    """Ids that are keys, without a vocabulary."""

    missing, unknown, dtype, has_values = MISSING_KEY, range(0), np.dtype(np.int64), False

    def words(self, raw: RawIds) -> RawIds:
        """The values that are counted and looked up: none."""
        return no_values(len(raw), raw.offsets)

    def ids(self, raw: RawIds, ranked: np.ndarray, where: Callable[[int], str]) -> np.ndarray:
        return keys_of(raw)

    def counted(self, ids: np.ndarray) -> np.ndarray:
        """Those of ids that are rows: none."""
        return ids[:0]

    def wrong(self, ids: np.ndarray) -> tuple[int, str] | None:
        return None


def keys_of(values: RawIds) -> np.ndarray:
    """The key of each value, [N] int64.

    "42", "-7", "007", ""  ->  42, -7, the hash of "007", MISSING_KEY
    """
    keys = hash_values(values).view(np.int64)
    keys[keys == MISSING_KEY] = MISSING_KEY + 1
    texts = binary_array(values)
    is_number = pa.compute.match_substring_regex(texts, _NUMBER)
    numbers = texts.filter(is_number).cast(pa.large_string()).cast(pa.int64())
    keys[is_number.to_numpy(zero_copy_only=False)] = numbers.to_numpy()
    for n in np.flatnonzero(values.lengths > _MOST_DIGITS).tolist():
        if (number := _long_number(values.value(n))) is not None:
            keys[n] = number
    keys[values.lengths == 0] = MISSING_KEY
    return keys


def _long_number(value: bytes) -> int | None:
    """The int64 that a value spells as canonical text; None: it is another text, or the missing key."""
    digits = value.removeprefix(b"-")
    if len(digits) > 19 or not digits.isdigit() or digits.startswith(b"0"):
        return None
    number = int(value)
    return number if MISSING_KEY < number < 1 << 63 else None
