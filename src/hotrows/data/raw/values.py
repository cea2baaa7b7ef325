"""Raw values of a column: their canonical text, trimming, cutting into lists, parsing, hashing.

The native core runs them on several threads; `plain_number` and `time_of` read single values. Canonical
text is one spelling for what programs write in several, whatever the format: a table in
docs/reference/formats.md has all of them. Prepared data names the version of this rule as its
`text_rule`, and is read where that is TEXT_RULE.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from hotrows.runtime.native import call

TEXT_RULE = 3
LAST_EXACT = 1 << 53  # float64 holds whole numbers exactly up to here
MISSING_TIME = np.iinfo(np.int64).min
MISSING_WORDS = (
    *("NULL", "Null", "null", "\\N", "NA", "N/A", "n/a", "nan", "NaN", "None", "none", "?", "-"),
)
_LAST_SECOND = 253_402_300_799  # of the year 9999; milliseconds read as seconds are beyond it since 1978
_NUMBER = re.compile(rb"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_WORDS = dict.fromkeys((b"true", b"True", b"TRUE"), 1.0) | dict.fromkeys((b"NaN", b"nan"), math.nan)
_WORDS |= dict.fromkeys((b"false", b"False", b"FALSE"), 0.0)
UNIX = {"unix": 1, "unix_ms": 10**3, "unix_us": 10**6, "unix_ns": 10**9}  # units of a second
_UNITS = dict(zip(UNIX, ("seconds", "milliseconds", "microseconds", "nanoseconds"), strict=True))


@dataclass(frozen=True)
class RawIds:
    """The values of an id column, as bytes.

    text: [size] uint8, the bytes of all values; starts, lengths: [N] uint32, the span of each value in
    `text`; a value of length 0 is missing.
    offsets: [rows + 1] int64 where a row holds a list: its values are offsets[r] .. offsets[r + 1].
    None: one value per row, N = rows.
    """

    text: np.ndarray
    starts: np.ndarray
    lengths: np.ndarray
    offsets: np.ndarray | None = None

    def __len__(self) -> int:
        """N, the number of values."""
        return len(self.starts)

    def value(self, n: int) -> bytes:
        start = int(self.starts[n])
        return self.text[start : start + int(self.lengths[n])].tobytes()


@dataclass(frozen=True)
class Bad:
    """A value of the wrong kind: its row, its column, the kind that was expected, and what to do."""

    row: int
    column: str
    expected: str
    remedy: str = "correct the row, or the schema"


@dataclass(frozen=True)
class Marks:
    """Marks in numbers: before decimals, and between groups of three digits ("": none)."""

    decimal: str = "."
    thousands: str = ""


MACHINE = Marks()  # as machines write numbers


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
    column = canonical(joined([word.encode() for word in words]), 1)
    return tuple(column.value(n).decode() for n in range(len(words)))


def joined(words: Sequence[bytes]) -> RawIds:
    """A column of these values."""
    lengths = np.array([len(word) for word in words], np.uint32)
    ends = lengths.cumsum(dtype=np.uint32)
    return RawIds(np.frombuffer(b"".join(words), np.uint8), ends - lengths, lengths)


def no_values(num_values: int, offsets: np.ndarray | None = None) -> RawIds:
    """A column whose every value is missing; offsets: of its lists, None: one value per row."""
    nothing = np.zeros(num_values, np.uint32)
    return RawIds(np.zeros(0, np.uint8), nothing, nothing, offsets)


def blank(values: RawIds, strip: bool, missing: Sequence[str], threads: int) -> None:
    """Strips spaces around values and empties those that mean missing, in place."""
    if not strip and not missing:
        return
    words = [word.encode() for word in missing]
    starts, lengths = values.starts, values.lengths
    text = np.frombuffer(b"".join(words) or b"\0", np.uint8)
    ends = np.cumsum([len(word) for word in words], dtype=np.int64)
    arguments = (starts, lengths, starts.size, int(strip), text, ends, len(words), threads)
    call("blank", values.text, *arguments)


def blank_numbers(numbers: np.ndarray, missing: Sequence[str]) -> None:
    """Sets the numbers that are written as one of the missing words to NaN, in place."""
    for word in (word.encode() for word in missing):
        if _NUMBER.fullmatch(word) or word.lstrip(b"+-").lower() in (b"inf", b"infinity"):
            numbers[numbers == float(word)] = np.nan


def cut_lists(cells: RawIds, separator: str, threads: int) -> RawIds:
    """Cuts every cell at its separators; an empty cell is an empty list."""
    n = len(cells)
    starts, lengths = np.ascontiguousarray(cells.starts), np.ascontiguousarray(cells.lengths)
    offsets = np.empty(n + 1, np.int64)
    cell_arguments = (cells.text, starts, lengths, n, ord(separator), offsets)
    total = call("count_values", *cell_arguments, threads)
    spans = np.empty((2, total), np.uint32)
    call("cut_values", *cell_arguments, spans[0], spans[1], threads)
    return RawIds(cells.text, spans[0], spans[1], offsets)


def keep_last(lists: RawIds, max_length: int | None) -> RawIds:
    """Shortens every list to its last `max_length` values."""
    assert lists.offsets is not None
    kept = last_ones(lists.offsets, max_length)
    if kept is None:
        return lists
    offsets = np.concatenate([[0], kept.cumsum()])[lists.offsets]
    return RawIds(lists.text, lists.starts[kept], lists.lengths[kept], offsets)


def last_ones(offsets: np.ndarray, max_length: int | None) -> np.ndarray | None:
    """Which values are among the last `max_length` of their list, [N] bool; None: all."""
    lengths = np.diff(offsets)
    if max_length is None or not len(lengths) or lengths.max() <= max_length:
        return None
    return np.arange(offsets[-1]) >= np.repeat(offsets[1:] - max_length, lengths)


def is_one_of(values: RawIds, words: Sequence[str]) -> np.ndarray:
    """[N] bool: whether each value, without the spaces around it, is one of the words."""
    stripped = RawIds(values.text, values.starts.copy(), values.lengths.copy())
    blank(stripped, True, (), 1)
    is_match = np.zeros(len(values), bool)
    for word in (np.frombuffer(word.encode("utf-8", "surrogateescape"), np.uint8) for word in words):
        same = np.flatnonzero(stripped.lengths == len(word))
        for i, byte in enumerate(word):
            same = same[stripped.text[stripped.starts[same] + np.uint32(i)] == byte]
        is_match[same] = True
    return is_match


def integers(numbers: np.ndarray) -> RawIds:
    """Writes [N] float64 whole numbers as decimal digits; missing where NaN."""
    present = ~np.isnan(numbers)
    distinct, rank = np.unique(numbers[present].astype(np.int64), return_inverse=True)
    words = joined([str(number).encode() for number in distinct.tolist()])
    spans = np.zeros((2, len(numbers)), np.uint32)
    spans[0, present], spans[1, present] = words.starts[rank], words.lengths[rank]
    return RawIds(words.text, spans[0], spans[1])


def parse_numbers(values: RawIds, threads: int, marks: Marks = MACHINE) -> tuple[np.ndarray, int | None]:
    """Parses [N] float64, NaN where missing; and the index of the first value that is no number."""
    fields = RawIds(values.text, values.starts.reshape(1, -1), values.lengths.reshape(1, -1))
    numbers, bad = parse_fields(fields, [0], threads, marks)
    return numbers[0], None if bad is None else bad[0]


def parse_fields(
    fields: RawIds, columns: Sequence[int], threads: int, marks: Marks = MACHINE
) -> tuple[np.ndarray, tuple[int, int] | None]:
    """Parses k columns of fields whose starts and lengths are [all columns, rows]. marks: see `Marks`.

    Returns [k, rows] float64, NaN where missing, and (row, index into `columns`) of the first value
    that is no number, or None.
    """
    num_rows = fields.starts.shape[1]
    numbers = np.empty((len(columns), num_rows))
    starts, lengths = np.ascontiguousarray(fields.starts), np.ascontiguousarray(fields.lengths)
    which = np.zeros(1, np.int64)
    of_fields = (fields.text, len(fields.text), starts, lengths, num_rows)
    places = np.array(columns, np.int32)
    marks_of = ord(marks.decimal), ord(marks.thousands or "\0")
    row = call("parse_numbers", *of_fields, places, len(columns), *marks_of, numbers, which, threads)
    return numbers, None if row < 0 else (row, int(which[0]))


def parse_times(values: RawIds, format: str, threads: int) -> tuple[np.ndarray, int | None]:
    """Returns [2, N] int64: seconds since 1970, and those of the clock by which a time is written, both
    MISSING_TIME where missing; and the index of the first value that is no time, or None."""
    check_time_format(format)
    if format in UNIX:
        numbers, bad = parse_numbers(values, threads)
        return seconds_of(numbers, bad, format)
    seconds = np.empty((2, len(values)), np.int64)
    starts, lengths = np.ascontiguousarray(values.starts), np.ascontiguousarray(values.lengths)
    how = np.frombuffer(format.encode(), np.uint8)
    of_values = (values.text, starts, lengths, len(values))
    bad = call("parse_times", *of_values, how, len(how), *seconds, threads)
    end = None if bad < 0 else bad
    beyond = first_beyond(seconds[0, :end])  # which an offset from UTC may go
    return seconds, end if beyond is None else beyond


def seconds_of(numbers: np.ndarray, bad: int | None, format: str) -> tuple[np.ndarray, int | None]:
    """Converts numbers of a format of UNIX to [2, N] int64 seconds, see `parse_times`.

    bad: index of the first value that is no number, or None; later values are not read. Returned
    with the seconds: the index of the first value that is no time, or None.
    """
    whole_seconds = np.floor(numbers[:bad] / UNIX[format])
    end = first_beyond(whole_seconds)
    present = np.flatnonzero(~np.isnan(whole_seconds[:end]))
    seconds = np.full(len(numbers), MISSING_TIME)
    seconds[present] = whole_seconds[present].astype(np.int64)
    return np.stack([seconds, seconds]), bad if end is None else end


def first_beyond(seconds: np.ndarray) -> int | None:
    """The index of the first second that is beyond those that times may have, or None."""
    wrong = np.flatnonzero(np.abs(seconds) > _LAST_SECOND)  # the absolute MISSING_TIME is itself
    return int(wrong[0]) if len(wrong) else None


def kind_of_time(format: str) -> str:
    """The form that a time should have, for messages."""
    if format in UNIX:
        formats = list(UNIX)
        other = formats[(formats.index(format) + 1) % len(formats)]
        return (
            f"time {format} ({_UNITS[format]} since 1970 until the year 9999; "
            f"{_UNITS[other]} are {other!r})"
        )
    example = "such as 2024-03-01T10:00:00.5+01:00, " if format == "iso" else ""
    return f"time {format} ({example}until the year 9999)"


def check_time_format(format: str) -> None:
    directives = re.findall(r"%(.?)", format)
    legal = all(name and name in "YymdHMS" for name in directives)
    if format not in (*UNIX, "iso") and not (directives and legal):
        raise ValueError(
            f"the format of a time must be {', '.join(map(repr, UNIX))}, 'iso', or made of %Y %y %m %d "
            f"%H %M %S and what stands between them ('%d.%m.%Y %H:%M'), not {format!r}"
        )


def hash_values(raw: RawIds) -> np.ndarray:
    """Hashes each value: [N] uint64, h = length * golden, then h = mix64(h ^ word) for
    every eight bytes, the last padded with zeros."""
    hashes = raw.lengths.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    for start in range(0, int(raw.lengths.max(initial=0)), 8):
        longer = np.flatnonzero(raw.lengths > start)
        word = np.zeros(len(longer), np.uint64)
        for byte in range(8):
            has = raw.lengths[longer] > start + byte
            values = raw.text[raw.starts[longer[has]] + np.uint32(start + byte)].astype(np.uint64)
            word[has] |= values << np.uint64(8 * byte)
        hashes[longer] = mix64(hashes[longer] ^ word)
    return hashes


def mix64(x: np.ndarray) -> np.ndarray:
    """The finalizer of splitmix64 (Steele, Lea, Flood 2014)."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def plain_number(value: bytes, marks: Marks = MACHINE) -> float | None:
    """Parses the number or boolean in a field: NaN if it is missing, None if float32 holds no such."""
    text = value.strip(b" ")
    if not text:
        return math.nan
    text = text if marks == MACHINE else _without_marks(text, marks)
    if not _NUMBER.fullmatch(text):
        return _WORDS.get(text)
    number = float(text) + 0.0  # never a negative zero
    with np.errstate(over="ignore"):
        return number if np.isfinite(np.float32(number)) else None


def _without_marks(text: bytes, marks: Marks) -> bytes:
    """A number as machines write it; another text where a mark stands elsewhere.

    b"1.234,5" of Marks(",", ".")  ->  b"1234.5"
    """
    number, point, fraction = text.partition(marks.decimal.encode())
    if marks.thousands:
        mark = marks.thousands.encode()
        if re.fullmatch(rb"[+-]?[0-9]{1,3}(%b[0-9]{3})+" % re.escape(mark), number):
            number = number.replace(mark, b"")
    if point != b"." and b"." in number + fraction:
        return b"?"
    return number + (b"." if point else b"") + fraction


def time_of(value: bytes, format: str) -> int | None:
    """Parses one time: seconds since 1970, None if it is missing or no time."""
    seconds, bad = parse_times(joined([value]), format, 1)
    return None if bad is not None or seconds[0, 0] == MISSING_TIME else int(seconds[0, 0])
