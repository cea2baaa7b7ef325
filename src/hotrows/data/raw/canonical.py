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

import re
from collections.abc import Iterable

import numpy as np

from hotrows.data.raw.columns import RawIds
from hotrows.runtime import native
from hotrows.runtime.native import call

TEXT_RULE = 3
LAST_EXACT = 1 << 53  # float64 holds whole numbers exactly up to here

_WORDS = {b"True": b"true", b"TRUE": b"true", b"False": b"false", b"FALSE": b"false"}
_WORDS |= {b"NaN": b"", b"nan": b"", b"-0": b"0", b"-0.0": b"0"}
_WHOLE = re.compile(rb"(-?(?:0|[1-9][0-9]*))\.0")
_EXPONENT = re.compile(rb"(-?)([1-9])(?:\.([0-9]*[1-9]))?e\+([0-9]{2})")
_TIME = re.compile(
    rb"([0-9]{4}-[0-9]{2}-[0-9]{2})[ T]([0-9]{2}:[0-9]{2}:[0-9]{2})(?:\.([0-9]{1,9}))?"
    rb"(Z|[+-][0-9]{2}:?[0-9]{2})?"
)


def canonical(values: RawIds, threads: int) -> RawIds:
    """Returns the values in canonical text; they are copied only if one has to be written anew."""
    library = native.load()
    if library is None:
        return _joined([plain_canonical(values.value(n)) for n in range(len(values))], values.offsets)
    starts, lengths = np.ascontiguousarray(values.starts), np.ascontiguousarray(values.lengths)
    spans = np.empty((2, len(values)), np.uint32)
    arguments = (values.text, starts, lengths, len(values))
    size = call("canonical", *arguments, spans[0], spans[1], threads)
    if not size:
        return RawIds(values.text, spans[0], spans[1], values.offsets)
    text = np.empty(size, np.uint8)
    call("write_canonical", *arguments, text, spans[0], spans[1])
    return RawIds(text, spans[0], spans[1], values.offsets)


def canonical_words(words: Iterable[str]) -> tuple[str, ...]:
    """The canonical texts of a schema's words, to compare values with."""
    return tuple(plain_canonical(word.encode()).decode() for word in words)


def plain_canonical(value: bytes) -> bytes:
    """The canonical text of one value, b"" if it is missing: the specification."""
    if value in _WORDS:
        return _WORDS[value]
    if match := _WHOLE.fullmatch(value):
        return match[1]
    if match := _EXPONENT.fullmatch(value):
        fraction, exponent = match[3] or b"", int(match[4])
        number = int(match[2] + fraction) * 10 ** max(exponent - len(fraction), 0)
        is_whole = len(fraction) <= exponent
        return b"%s%d" % (match[1], number) if is_whole and number <= LAST_EXACT else value
    if match := _TIME.fullmatch(value):
        return _time(*match.groups(b""))
    return value


def _time(date: bytes, clock: bytes, fraction: bytes, zone: bytes) -> bytes:
    fraction = fraction.rstrip(b"0")
    zone = b"Z" if zone[1:].replace(b":", b"") == b"0000" else zone.replace(b":", b"")
    if (clock, fraction, zone) == (b"00:00:00", b"", b""):
        return date
    return date + b" " + clock + (b"." + fraction if fraction else b"") + zone


def _joined(words: list[bytes], offsets: np.ndarray | None) -> RawIds:
    lengths = np.array([len(word) for word in words], np.uint32)
    ends = lengths.cumsum(dtype=np.uint32)
    return RawIds(np.frombuffer(b"".join(words), np.uint8), ends - lengths, lengths, offsets)
