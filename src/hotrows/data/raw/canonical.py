"""The canonical text of a value: one spelling for what programs write in several, whatever the format.

    value                written by CSV writers as                      canonical text
    whole float          42.0, 1e+10, -0.0                              42, 10000000000, 0
    boolean              True, TRUE, true                               true
    time                 2024-03-01T10:00:00.500000, ... 10:00:00.500   2024-03-01 10:00:00.5
    midnight             2024-03-01 00:00:00, 2024-03-01                2024-03-01
    float without value  NaN, nan, nothing                              the empty text: missing

These exact forms alone are changed. `007`, `1e5`, `05db9164`, `42.50`, `+42` and ` 42` are text that
stands for itself; so are floats beyond 2^53, which skip whole numbers.

Prepared data names the version of this rule as its `text_rule`, and is read where that is TEXT_RULE.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from hotrows.data.raw.columns import RawIds
from hotrows.runtime.native import call

TEXT_RULE = 3
LAST_EXACT = 1 << 53  # float64 holds whole numbers exactly up to here


def canonical(values: RawIds, threads: int) -> RawIds:
    """Returns the values in canonical text; they are copied only if one has to be written anew."""
    starts, lengths = np.ascontiguousarray(values.starts), np.ascontiguousarray(values.lengths)
    spans = np.empty((2, len(values)), np.uint32)
    arguments = (values.text, starts, lengths, len(values))
    size = call("canonical", *arguments, spans[0], spans[1], threads)
    if not size:
        return RawIds(values.text, spans[0], spans[1], values.offsets)
    text = np.empty(size, np.uint8)
    call("write_canonical", *arguments, text, spans[0], spans[1])
    return RawIds(text, spans[0], spans[1], values.offsets)


@lru_cache(256)
def canonical_words(words: tuple[str, ...]) -> tuple[str, ...]:
    """The canonical texts of a schema's words, to compare values with."""
    found = canonical(joined([word.encode() for word in words]), 1)
    return tuple(found.value(n).decode() for n in range(len(words)))


def joined(words: Sequence[bytes]) -> RawIds:
    """A column of these values."""
    lengths = np.array([len(word) for word in words], np.uint32)
    ends = lengths.cumsum(dtype=np.uint32)
    return RawIds(np.frombuffer(b"".join(words), np.uint8), ends - lengths, lengths)
