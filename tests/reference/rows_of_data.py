"""What the native core does with rows of data, in plain Python and NumPy."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from datetime import datetime, timezone
from typing import Any

import numpy as np
import pytest

from hotrows.data import rows
from hotrows.data.columns.number import ColumnMoments, NumberColumns
from hotrows.data.encode import encoder, passes, writing
from hotrows.data.raw import reading, text, values
from hotrows.data.raw import values as canonical_text
from hotrows.data.raw.cells import Fields
from hotrows.data.raw.chunks import Chunk
from hotrows.data.raw.text import WRONG_COLUMNS, Layout, cut_line
from hotrows.data.raw.values import LAST_EXACT, MACHINE, MISSING_TIME, UNIX, Marks, RawIds, plain_number
from hotrows.data.stored import order
from tests.reference.vocabularies import PlainCounts, PlainVocabularies

_WORDS = {b"True": b"true", b"TRUE": b"true", b"False": b"false", b"FALSE": b"false"}
_WORDS |= {b"NaN": b"", b"nan": b"", b"-0": b"0", b"-0.0": b"0"}
_WHOLE = re.compile(rb"(-?(?:0|[1-9][0-9]*))\.0")
_EXPONENT = re.compile(rb"(-?)([1-9])(?:\.([0-9]*[1-9]))?e\+([0-9]{2})")
_LAST_SECOND = 253_402_300_799  # of the year 9999
_DIRECTIVES = {"Y": "[0-9]{4}"} | dict.fromkeys("ymdHMS", "[0-9]{2}")
_ISO = re.compile(
    rb"([0-9]{4})-([0-9]{2})-([0-9]{2})(?:[T ]([0-9]{2}):([0-9]{2})(?::([0-9]{2})(?:\.[0-9]{1,9})?)?"
    rb" ?(?:(Z|UTC)|([+-])([0-9]{2})(?::?([0-9]{2}))?)?)?"
)
_OFFSET = re.compile(rb"(:.*?) ?[+-][0-9]{2}(:?[0-9]{2})?")
_TIME = re.compile(
    rb"([0-9]{4}-[0-9]{2}-[0-9]{2})[ T]([0-9]{2}:[0-9]{2}:[0-9]{2})(?:\.([0-9]{1,9}))?"
    rb"(Z|[+-][0-9]{2}:?[0-9]{2})?"
)


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


def canonical(column: RawIds, threads: int) -> RawIds:
    written = canonical_text.joined([plain_canonical(column.value(n)) for n in range(len(column))])
    return RawIds(written.text, written.starts, written.lengths, column.offsets)


def blank(column: RawIds, strip: bool, missing: Sequence[str], threads: int) -> None:
    words = [word.encode() for word in missing]
    starts, lengths = column.starts.reshape(-1), column.lengths.reshape(-1)
    for n in range(len(starts)):
        start = int(starts[n])
        value = column.text[start : start + int(lengths[n])].tobytes()
        kept = value.lstrip(b" ") if strip else value
        starts[n] = start + len(value) - len(kept)
        kept = kept.rstrip(b" ") if strip else kept
        lengths[n] = 0 if kept in words else len(kept)


def cut_lists(cells: RawIds, separator: str, threads: int) -> RawIds:
    spans: list[tuple[int, int]] = []
    offsets = [0]
    for n in range(len(cells)):
        start = int(cells.starts[n])
        for value in cells.value(n).split(separator.encode()) if cells.lengths[n] else ():
            spans.append((start, len(value)))
            start += len(value) + 1
        offsets.append(len(spans))
    starts, lengths = np.array(spans, np.uint32).reshape(-1, 2).T
    return RawIds(cells.text, starts.copy(), lengths.copy(), np.array(offsets, np.int64))


def parse_fields(
    fields: RawIds, columns: Sequence[int], threads: int, marks: Marks = MACHINE
) -> tuple[np.ndarray, tuple[int, int] | None]:
    numbers = np.zeros((len(columns), fields.starts.shape[1]))
    for row in range(fields.starts.shape[1]):
        for i, column in enumerate(columns):
            start = int(fields.starts[column, row])
            end = start + int(fields.lengths[column, row])
            number = plain_number(fields.text[start:end].tobytes(), marks)
            if number is None:
                return numbers, (row, i)
            numbers[i, row] = number
    return numbers, None


def parse_times(column: RawIds, format: str, threads: int) -> tuple[np.ndarray, int | None]:
    values.check_time_format(format)
    if format in UNIX:
        return values.seconds_of(*values.parse_numbers(column, threads), format)
    seconds, bad = np.full((2, len(column)), MISSING_TIME), None
    for n in range(len(column)):
        value = column.value(n)
        if value in (b"", b"NaN", b"nan"):
            continue
        time = plain_time(value, format)
        if time is None:
            bad = n if bad is None else bad
            continue
        seconds[:, n] = time, plain_time(_OFFSET.sub(rb"\1", value), format) if format == "iso" else time
    return seconds, bad


def plain_time(value: bytes, format: str) -> int | None:
    """Parses a time by its format: seconds since 1970, None if it is no time."""
    if format in UNIX:
        number = plain_number(value)
        if number is None or math.isnan(number):
            return None
        seconds = math.floor(number / UNIX[format])
        return seconds if abs(seconds) <= _LAST_SECOND else None
    if format == "iso":
        return _plain_iso(value)
    parts = re.split(r"%(.)", format)
    pattern = "".join(
        f"({_DIRECTIVES[part]})" if i % 2 else re.escape(part) for i, part in enumerate(parts)
    )
    match = re.fullmatch(pattern.encode(), value, re.DOTALL)
    if not match:
        return None
    fields = dict(zip(parts[1::2], map(int, match.groups()), strict=True))
    year = fields.get("Y", 1970)
    for directive in parts[1::2]:  # the last directive that holds a year counts
        if directive == "y":
            year = fields["y"] + (2000 if fields["y"] < 69 else 1900)
        elif directive == "Y":
            year = fields["Y"]
    hour, minute, second = (fields.get(name, 0) for name in "HMS")
    month, of_month = fields.get("m", 1), fields.get("d", 1)
    return _seconds(year, month, of_month, hour, minute, second)


def _plain_iso(value: bytes) -> int | None:
    """Parses a date, or a date and time of ISO 8601; without an offset it is UTC."""
    match = _ISO.fullmatch(value)
    if match is None:
        return None
    *moment, _, sign, hours, minutes = match.groups()
    seconds = _seconds(*(int(number or 0) for number in moment))
    offset = int(hours or 0) * 3600 + int(minutes or 0) * 60
    if seconds is None or int(hours or 0) > 23 or int(minutes or 0) > 59:
        return None
    seconds += offset if sign == b"-" else -offset
    return seconds if seconds <= _LAST_SECOND else None


def _seconds(year: int, month: int, day: int, hour: int, minute: int, second: int) -> int | None:
    """Seconds since 1970; None where there is no such time."""
    try:
        moment = datetime(year, month, day, hour, minute, second, tzinfo=timezone.utc)
    except ValueError:
        return None
    return int(moment.timestamp())


def cut_in_python(chunk: Chunk, layout: Layout, how: Any) -> tuple[Fields, tuple | None]:
    text = bytearray()
    spans: list[list[tuple[int, int]]] = []
    problem = None
    used = layout.used
    for row, line in enumerate(chunk.text.split(b"\n")[:-1]):
        fields, kind = cut_line(bytes(line), layout.delimiter)
        if kind is None and len(fields) != len(layout.names):
            kind = WRONG_COLUMNS
        if kind is not None:
            problem = (kind, row, len(fields) - 1)
            break
        spans.append([])
        for column in used:
            spans[-1].append((len(text), len(fields[column])))
            text += fields[column]
    table = np.array(spans, np.uint32).reshape(len(spans), len(used), 2)
    starts, lengths = np.ascontiguousarray(table.transpose(2, 1, 0))
    cut = RawIds(np.frombuffer(bytes(text), np.uint8), starts, lengths)
    return Fields(cut, layout.places, np.ones(len(used), bool)), problem


def _add_moments(self: ColumnMoments, values: np.ndarray, threads: int) -> None:
    for moments, column in zip(self._moments, values, strict=True):
        count, mean, squares = map(float, moments)
        for value in column[~np.isnan(column)].tolist():
            difference = value - mean
            count += 1
            mean += difference / count
            squares += difference * (value - mean)
        moments[:] = count, mean, squares


def _transform(self: NumberColumns, values: np.ndarray, threads: int) -> np.ndarray:
    dense = np.zeros(values.shape[::-1], np.float32)
    for f, column in enumerate(values):
        for row, value in enumerate(column):
            if f in self._indicators:
                dense[row, f] = math.isnan(value)
            elif self._logs[f] and not math.isnan(value):
                dense[row, f] = math.log1p(max(value, 0.0))
            elif not math.isnan(value):
                dense[row, f] = (value - self._shift[f]) / self._divisor[f]
    return dense


def take(column: np.ndarray, order: np.ndarray, out: np.ndarray) -> np.ndarray:
    out[:] = column[order]
    return out


def measured(offsets: np.ndarray, size: int, order: np.ndarray) -> np.ndarray:
    starts, ends = (bounds[order].astype(np.int64) for bounds in (offsets[:-1], offsets[1:]))
    if ((starts < 0) | (ends < starts) | (ends > size)).any():
        raise ValueError(rows.DAMAGED)
    return ends - starts


def take_lists(
    ids: np.ndarray, offsets: np.ndarray, order: np.ndarray, ends: np.ndarray, out: np.ndarray
) -> np.ndarray:
    starts = offsets[:-1][order].astype(np.int64)
    out[:] = ids[np.arange(ends[-1]) + np.repeat(starts - ends[:-1], np.diff(ends))]
    return out


def permutation(n: int, *seed: int) -> np.ndarray:
    """0 .. n - 1, sorted by random bits above each number."""
    raw = np.random.PCG64(np.random.SeedSequence([number & (1 << 64) - 1 for number in seed])).random_raw(
        n
    )
    bits = np.uint64(max(1, (n - 1).bit_length()))
    keys = np.sort(raw << bits | np.arange(n, dtype=np.uint64))
    return (keys & ((np.uint64(1) << bits) - np.uint64(1))).astype(np.int64)


def dealt(
    state: Any, columns: Sequence[tuple[np.ndarray, np.ndarray | None]], salts: np.ndarray, rows: int
) -> np.ndarray:
    """The cluster of each row, sample by sample."""
    numbers = np.empty(rows, np.uint8)
    bit_of = np.arange(len(state.sizes))
    for row in range(rows):
        keys = [np.empty(0, np.uint64)]
        for (ids, offsets), salt in zip(columns, salts, strict=True):
            first, end = (row, row + 1) if offsets is None else offsets[row : row + 2]
            keys.append(ids[first:end].astype(np.uint64) + salt)
        places = np.concatenate(keys) * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(64 - state.bits)
        seen = np.unpackbits(state.seen[places], axis=1, bitorder="little")  # [N, 8 * num_bytes]
        score = seen.sum(0, dtype=np.int64)[bit_of] * order._ONE - state.sizes * state.step
        best = int(np.where(state.sizes < state.most, score, np.iinfo(np.int64).min).argmax())
        state.sizes[best] += 1
        state.seen[places, best // 8] |= np.uint8(1 << best % 8)
        numbers[row] = best
    return numbers


_TWINS: dict[Any, dict[str, Any]] = {
    canonical_text: {"canonical": canonical},
    reading: {"canonical": canonical},
    encoder: {"Vocabularies": PlainVocabularies},
    passes: {"Counts": PlainCounts},
    rows: {"take": take, "measured": measured, "take_lists": take_lists},
    writing: {"Counts": PlainCounts},
    order: {"permutation": permutation, "_dealt": dealt},
    text: {"_cut": cut_in_python},
    values: {
        "blank": blank,
        "cut_lists": cut_lists,
        "parse_fields": parse_fields,
        "parse_times": parse_times,
    },
    ColumnMoments: {"add": _add_moments},
    NumberColumns: {"transformed": _transform},
}


def use_plain_python(patch: pytest.MonkeyPatch) -> None:
    """Puts the functions of this file in place of those that call the native core."""
    for module, twins in _TWINS.items():
        for name, twin in twins.items():
            patch.setattr(module, name, twin)
