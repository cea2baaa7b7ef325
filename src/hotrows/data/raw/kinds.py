"""Kinds of columns: whether values are numbers, times, lists or text.

Of text that is numbers or times to a reader, and none to a machine, it is said how to write it.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

from hotrows.data.raw.clues import TIME_NAME, meaning
from hotrows.data.raw.sampled_rows import Column
from hotrows.data.raw.values import (
    LAST_EXACT,
    MISSING_WORDS,
    UNIX,
    Marks,
    joined,
    parse_times,
    plain_number,
    time_of,
)

SEPARATORS = ("|", ";", ",", "^", "\x02", "\x03", " ")
FORMATS = (
    *("%Y-%m-%d %H", "%Y/%m/%d", "%Y/%m/%d %H:%M:%S", "%Y/%m/%d %H:%M", "%d.%m.%Y", "%d.%m.%Y %H:%M:%S"),
    *("%d.%m.%Y %H:%M", "%m/%d/%Y", "%m/%d/%Y %H:%M:%S", "%m/%d/%Y %H:%M", "%d/%m/%Y"),
    *("%d/%m/%Y %H:%M:%S", "%d/%m/%Y %H:%M", "%Y%m%d", "%Y%m%d%H", "%Y%m%d%H%M%S", "%y%m%d%H"),
)
_FIRST, _LAST = 788_918_400, 2_208_988_800  # 1995 and 2040: between them are times of samples
FEW = 20  # different whole numbers that are ids rather than amounts
_MOST_WORDS = 5  # that may mean a missing number, of one column
_NUMBER = r"[+-]?(\d{1,3}([,.\' \u00a0]\d{3})+([.,]\d+)?|(?!0\d)\d+([.,]\d+)?|\.\d+)"
_SIGN = r"[^\w\s.+-]"
_AFFIXED = (  # a sign or a currency before, a sign or a unit behind, a number in brackets, 1,234
    re.compile(rf"[+-]?(?P<affix>{_SIGN}|[A-Za-z]{{2,3}} ) *{_NUMBER} *{_SIGN}?"),
    re.compile(rf"{_NUMBER} *(?P<affix>{_SIGN}|\+|[^\W\d]+([ /][^\W\d]+)?)"),
    re.compile(rf"(?P<affix>){_NUMBER}"),
)
_MARKS = tuple(Marks(*pair) for pair in (".,", ",.", ".'", ". ", ", "))
_MOST_AFFIXES = 3  # codes such as 12A have more
_MAY_BE_TIME = re.compile(r" *\d+[-/.]\d+[-/.T\d:+ Z]*")
_WORDED_TIME = re.compile(  # 5-Jan-2024, January 5, 2024 10:00, 01/05/2024 10:00 PM
    r"(.*[\d ,.-])?(jan(uary)?|feb(ruary)?|mar(ch)?|apr(il)?|may|june?|july?|aug(ust)?|sept?(ember)?"
    r"|oct(ober)?|nov(ember)?|dec(ember)?)[ ,.-].*\d.*|\d.*:\d\d ?[ap]\.?m\.?",
    re.IGNORECASE,
)
_ROUNDED = re.compile(r"\d(\.\d+)?E\+\d+")
_LOOKED_AT = 200  # values, for times
_TYPED_NAME = re.compile(r"(.+):(token|token_seq|float|float_seq)")
_OF_TYPED_NAMES = " "  # of lists


def column_of_kind(sample: Column) -> Column:
    if sample.kind == "text":
        return _of_text(sample)
    if sample.kind == "list":
        return _list(sample.name, sample.values, is_typed=True)
    kind = "number" if sample.kind == "boolean" else sample.kind
    values = (
        [x if x is None else int(x) for x in sample.values] if sample.kind == "boolean" else sample.values
    )
    format = "iso" if kind == "time" else "unix"  # as text, too
    infinite = {x for x in values if x in (math.inf, -math.inf)} if kind == "number" else set()
    words = tuple(map(str, sorted(infinite)))
    values = [None if x in infinite else x for x in values] if infinite else values
    counts, is_typed = _counted(values), kind != "number"
    column = Column(sample.name, kind, values, counts, words, format=format, is_typed=is_typed)
    return _as_unix_time(column) or _as_digits_of_time(column) or column


def _as_digits_of_time(column: Column) -> Column | None:
    """Times as whole numbers, such as 20240301, by their name."""
    if not (column.is_whole and column.counts and TIME_NAME.search(column.name)):
        return None
    text = Column(column.name, "text", [x if x is None else str(int(x)) for x in column.values])
    return _as_time(text, text, [str(int(x)) for x in column.counts])


def _of_text(sample: Column) -> Column:
    counts = _counted(sample.values)
    stripped = {word: word.strip(" ") for word in counts}
    words = [word for word in MISSING_WORDS if word in stripped.values()]
    known = [word for word in stripped.values() if word and word not in words]
    numbers = {word: plain_number(_bytes(word), sample.marks) for word in known}
    if odd := _words_among(sample.name, numbers, counts, stripped):
        words, known = [*words, *odd], [word for word in known if word not in odd]
        numbers = {word: numbers[word] for word in known}
    has_leading_zero = any(len(word) > 1 and word[0] == "0" and word.isdigit() for word in known)
    if known and None not in numbers.values() and not has_leading_zero:
        values = [None if x is None else numbers.get(stripped[x]) for x in sample.values]
        column = Column(sample.name, "number", values, _counted(values), tuple(words))
        time = _as_unix_time(column) or _as_time(column, sample, known)
        if time or not _skipped_by_floats(known):
            return time or column
    column = Column(sample.name, "text", sample.values, counts)
    return _as_time(column, sample, known) or _as_list(column) or column


def _words_among(
    name: str, numbers: Mapping[str, float | None], counts: Counter, stripped: Mapping[str, str]
) -> list[str]:
    """A few words without digits among numbers that are nine in ten values, or one word if they are half:
    they mean missing. None where the numbers are called ids, or are few whole ones."""
    words = [word for word, number in numbers.items() if number is None]
    known = {number for number in numbers.values() if number is not None}
    rows = sum(counts[x] for x, word in stripped.items() if numbers.get(word) is not None)
    least = 0.5 if len(words) == 1 else 0.9
    are_rare = rows >= least * sum(counts[x] for x, word in stripped.items() if word in numbers)
    are_words = len(words) <= _MOST_WORDS and not any(c.isdigit() for word in words for c in word)
    is_amount = len(known) > FEW or any(number % 1 for number in known)
    return words if are_rare and are_words and is_amount and meaning(name) != "ids" else []


def _skipped_by_floats(numbers: Sequence[str]) -> bool:
    """True if numbers in text are whole ones, some of which float64 does not hold."""
    digits = [number.lstrip("+-") for number in numbers]
    return all(map(str.isdigit, digits)) and max(map(int, digits)) > LAST_EXACT


def _as_unix_time(column: Column) -> Column | None:
    """Times as numbers since 1970: all from 1995 to 2040 in some unit, and by their name no ids."""
    counts = column.counts
    if meaning(column.name) == "ids" and not TIME_NAME.search(column.name):
        return None
    if column.kind != "number" or not counts:
        return None
    for format, unit in UNIX.items():
        if min(counts) >= _FIRST * unit and max(counts) <= _LAST * unit:
            seconds = [x if x is None else int(x // unit) for x in column.values]
            return replace(column, kind="time", values=seconds, format=format)
    return None


def _as_time(column: Column, sample: Column, known: Sequence[str]) -> Column | None:
    """Times as text in a format that all values have; digits alone need a name that says so."""
    if not known or (known[0].isdigit() and not TIME_NAME.search(sample.name)):
        return None
    formats = [f for f in ("iso", *FORMATS) if time_of(_bytes(known[0]), f) is not None]
    for format in formats:
        (parsed, _), bad = parse_times(joined([*map(_bytes, known)]), format, 1)
        if bad is None and parsed.min() >= -_LAST and parsed.max() <= 2 * _LAST:
            seconds = dict(zip(known, parsed.tolist(), strict=True))
            values = [None if x is None else seconds.get(x.strip(" ")) for x in sample.values]
            possible = dict.fromkeys((*MISSING_WORDS, *column.words))
            words = tuple(word for word in possible if word in set(sample.values))
            return Column(sample.name, "time", values, _counted(values), words, format)
    return None


def _as_list(column: Column) -> Column | None:
    """Lists in cells of text: of separators that occur, the one whose pieces repeat the most."""
    cells = [x for x in column.values if x is not None]
    for separator in SEPARATORS:
        with_it = sum(separator in cell for cell in cells)
        if not cells or 10 * with_it < len(cells):
            continue
        lists = [None if x is None else x.split(separator) for x in column.values]
        pieces = Counter(piece for cell in lists if cell for piece in cell)
        lengths = Counter(len(cell) for cell in lists if cell)
        repeats = 2 * len(pieces) < sum(pieces.values()) and len(pieces) < 2 * len(column.counts)
        is_prose = separator in (" ", ",") and not all(re.fullmatch(r"[\w.:-]+", x) for x in pieces)
        is_prose |= separator == " " and not all(any(c.isdigit() for c in x) for x in pieces)
        is_prose |= any(x != x.strip() for x in pieces)  # `Home | Shop`, `a &amp; b`
        is_prose |= _are_grouped(cells, separator)
        if repeats and len(lengths) > 1 and not is_prose and _are_in_any_place(lists, pieces):
            return replace(_list(column.name, lists), separator=separator)
    return None


def _are_in_any_place(lists: Sequence[list[str] | None], pieces: Counter[str]) -> bool:
    """True if pieces behind the first are found as the first, too: of `Boston,MA` and `shirt|XL` none is.
    By chance a piece is the first one of some cell as often as all pieces are."""
    cells = [cell for cell in lists if cell]
    first = {cell[0] for cell in cells}
    others = Counter(piece for cell in cells for piece in cell[1:])
    total = sum(pieces.values())
    expected = sum(n * (1 - (1 - pieces[x] / total) ** len(cells)) for x, n in others.items())
    return sum(n for x, n in others.items() if x in first) > 0.2 * expected


def _are_grouped(cells: Sequence[str], separator: str) -> bool:
    """True if cells are numbers like 1,234.50 rather than lists of ids."""
    number = re.compile(rf"[+-]?\d{{1,3}}({re.escape(separator)}\d{{3}})*([.,]\d+)?")
    first = {len(cell.partition(separator)[0]) for cell in cells if separator in cell}
    grouped = sum(number.fullmatch(cell.strip(" ")) is not None for cell in cells)
    return min(first) < 3 and 10 * grouped > 9 * len(cells)


def _list(name: str, values: Sequence[list[str] | None], is_typed: bool = False) -> Column:
    counts = Counter(x for value in values if value is not None for x in value)
    return Column(name, "list", values, counts, is_typed=is_typed)


def _counted(values: Sequence[Any]) -> Counter:
    counts = Counter(values)
    counts.pop(None, None)
    return counts


def quantiles(counts: Mapping[float, int], *shares: float) -> list[float]:
    """The values below which these shares of all lie."""
    ordered = sorted(counts.items())
    ends = list(accumulate(count for _, count in ordered))
    return [ordered[min(bisect_left(ends, share * ends[-1]), len(ends) - 1)][0] for share in shares]


def almost_numbers(column: Column) -> str:
    """Says how a column of text should be written where most values are numbers or times; "" if not."""
    known = [x for x in column.counts if str(x).strip(" ") not in ("", *MISSING_WORDS)]
    if column.kind != "text" or any(x.isdigit() and x[0] == "0" != x for x in known):
        return ""
    numbers = {x: number for x in known if (number := plain_number(_bytes(x))) is not None}
    affixes = {x: affix for x in known if x not in numbers and (affix := _affix(x)) is not None}
    others = [x for x in known if x not in numbers and x not in affixes]
    if affixes and len(set(affixes.values())) <= _MOST_AFFIXES and _are_few(others, known, column):
        shown = _shown([*list(affixes)[:1], *others])
        marks = [m for m in _MARKS if all(plain_number(_bytes(x), m) is not None for x in affixes)]
        what = "write them as 1234.5" + (f", or name their marks: {_options(marks[0])}" if marks else "")
        return f"numbers with commas, signs or units ({shown}) are read as text; {what}"
    others += affixes
    is_amount = len(numbers) > FEW or any(number % 1 for number in numbers.values())
    if others and is_amount and _are_few(others, known, column):
        return f"most values are numbers, but not {_shown(others)}: it is read as text"
    words = [x for x in known if not x.strip(" ").isdigit()][:_LOOKED_AT]
    no_times = [x for x in words if not _is_time(x)]
    if words and _are_few(no_times, words, column):
        shown = _shown([*no_times, *words])
        return f"times in several formats, or among words ({shown}), are read as text"
    if words and _are_few([x for x in words if not _WORDED_TIME.fullmatch(x.strip(" "))], words, column):
        return (
            f"times with names of months, or AM and PM ({_shown(words[:1])}), are read as text; write "
            f"them as 2024-03-01 14:30:00"
        )
    return ""


def rounded(raw: Column) -> str:
    """Says that ids are numbers as spreadsheets write long ones; "" if not. raw: as it was written."""
    if not raw.examples or not all(map(_ROUNDED.fullmatch, raw.examples)):
        return ""
    return (
        f"{raw.name!r}: a spreadsheet rounded numbers such as {raw.examples[0]}, so several ids may be "
        f"one; export the column as text"
    )


def _options(marks: Marks) -> str:
    decimal = f"--decimal {marks.decimal} " if marks.decimal != "." else ""
    thousands = marks.thousands if marks.thousands in (".", ",") else f'"{marks.thousands}"'
    return f"`hotrows schema {decimal}--thousands {thousands}`"


def _affix(value: str) -> str | None:
    """The unit or sign before or behind a number; None if the value is no such number."""
    matches = (pattern.fullmatch(value.strip(" ()")) for pattern in _AFFIXED)
    return next((match["affix"].strip() for match in matches if match), None)


def _are_few(some: list[str], known: list[str], column: Column) -> bool:
    """True if some of the known values have less than half of their rows."""
    return 2 * sum(column.counts[x] for x in some) < sum(column.counts[x] for x in known)


def _is_time(value: str) -> bool:
    times = (time_of(_bytes(value.strip(" ")), format) for format in ("iso", *FORMATS))
    return _MAY_BE_TIME.fullmatch(value) is not None and any(time is not None for time in times)


def _bytes(value: str) -> bytes:
    return value.encode("utf-8", "surrogateescape")


def _shown(values: list[str]) -> str:
    return ", ".join(map(repr, values[:3]))


def columns_of_types(columns: Sequence[Column]) -> tuple[list[Column], dict[str, str]]:
    """The columns by their names without types, of the kinds that these say, and the names in the file by
    those names. Nothing is renamed unless every column has a type."""
    matches = [_TYPED_NAME.fullmatch(column.name) for column in columns]
    names = [match[1] for match in matches if match]
    if len(set(names)) < len(columns):
        return [column_of_kind(column) for column in columns], {}
    understood = [
        _of_type(replace(column, name=match[1]), match[2])
        for column, match in zip(columns, matches, strict=True)
        if match
    ]
    return understood, dict(zip(names, (column.name for column in columns), strict=True))


def _of_type(column: Column, kind: str) -> Column:
    values = column.values
    if kind == "float":
        return replace(column_of_kind(column), is_typed=True)
    if kind == "float_seq":
        return Column(column.name, "other", [], Counter())
    if kind == "token":
        return Column(column.name, "text", values, Counter(x for x in values if x is not None))
    lists = [x if x is None else str(x).split(_OF_TYPED_NAMES) for x in values]
    counts = Counter(x for cell in lists if cell for x in cell)
    return Column(column.name, "list", lists, counts, separator=_OF_TYPED_NAMES, is_typed=True)
