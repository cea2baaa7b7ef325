"""Kinds of columns: whether values are numbers, times, lists or text, and which column is the label.

Of text that is numbers or times to a reader, and none to a machine, it is said how to write it. Of the
label it is found what counts as 1, or how it is learned as a number.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

from hotrows.data.raw.clues import LABELS, RATINGS, TIME_NAME, meaning, plain
from hotrows.data.raw.sampled_rows import Column
from hotrows.data.raw.values import (
    LAST_EXACT,
    MISSING_WORDS,
    UNIX,
    joined,
    parse_times,
    plain_number,
    time_of,
)
from hotrows.runtime.suggestions import did_you_mean
from hotrows.schema import Label

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
_MOST_AFFIXES = 3  # codes such as 12A have more
_MAY_BE_TIME = re.compile(r" *\d+[-/.]\d+[-/.T\d:+ Z]*")
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
    column = Column(sample.name, kind, values, _counted(values), format=format, is_typed=kind != "number")
    return _as_unix_time(column) or column


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
        what = "write them as 1234.5, or name their marks: `hotrows schema --thousands ,`"
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
    return ""


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


PANDAS_INDEX = re.compile(r"__index_level_\d+__")
_CERTAIN = ("label", "labels", "target")  # names of labels, of whatever values
_OFTEN_FEATURES = ("y", "like", "buy", "class", "income")  # are labels if they have two values
_POSITIVE = ("yes", "y", "true", "t", "positive", "pos", "click", "clicked", ">50k", ">50k.", "good")
_SENTINELS = (-1, -9, -99, -999, -9999, -99999, -999999)
_FEW_CLASSES = 5  # numbers of a label that may be classes


def label_of(columns: Sequence[Column], wanted: str | None, source: str, notes: list[str]) -> Label:
    """The label, by its name or by its values; other columns with such a name are noted."""
    names = [column.name for column in columns]
    if wanted is not None:
        if wanted not in names:
            raise ValueError(
                f"{source} has no column {wanted!r} for a label{did_you_mean(wanted, names)}"
            )
        return _declared(columns[names.index(wanted)], source, notes)
    by_name = {plain(column.name): column for column in reversed(columns) if is_target(column)}
    called = sorted(filter(None, map(by_name.get, LABELS)), key=lambda column: column.missing > 0)
    pairs = sorted(filter(is_target, columns), key=lambda column: _rank(column, columns))
    bits = [column for column in pairs if set(column.counts) == {0, 1}]
    numbers = [c for c in columns if c.kind == "number" and len(c.counts) > 1 and not c.missing]
    counts = [c for c in numbers if plain(c.name) in set(LABELS) - set(_OFTEN_FEATURES)]
    ratings = [c for c in numbers if plain(c.name) in (*RATINGS, "y")]
    for candidates in (called, counts, bits, ratings, pairs):
        if candidates:
            break
    else:
        raise ValueError(
            f"no column of {source} looks like a label (two values, such as 0 and 1); say which one is: "
            f"--label COLUMN, or draft_schema(..., label=COLUMN)"
        )
    if candidates is not called:
        others = [column.name for column in candidates[1:]]
        more = f"; {', '.join(map(repr, others[:5]))} could be" if others else ""
        notes.append(f"label: {candidates[0].name!r} is a guess{more}")
    return _declared(candidates[0], source, notes)


def _rank(column: Column, columns: Sequence[Column]) -> tuple[bool, bool]:
    """Sorts what may be the label: by a value such as `yes`, then the first column, or else the last."""
    positive = {str(word).strip().lower() for word in column.counts} & set(_POSITIVE)
    return not positive, column not in (columns[0], columns[-1])


def is_target(column: Column) -> bool:
    """True if a column has two values, or 0 or 1 alone; rows may lack it where its name is a label's."""
    if PANDAS_INDEX.fullmatch(column.name):
        return False
    if column.missing and plain(column.name) not in LABELS:
        return False
    is_pair = column.kind in ("text", "number") and len(column.counts) == 2
    zero_or_one = column.kind == "number" and set(column.counts) <= {0, 1}
    return bool(column.counts) and (is_pair or zero_or_one)


def is_called_label(column: Column) -> bool:
    """True if by its name a column is a label, known only afterwards."""
    name = plain(column.name)
    return name in _CERTAIN or (name in LABELS and is_target(column))


def sentinel(column: Column) -> float | None:
    """The one number of a column, such as -1 or 9999, that lies apart from all others: it may mean
    missing. Above the others, it has a hundredth of the rows, and is four times the next."""
    if len(column.counts) < 3:
        return None
    below = [x for x in column.counts if x < 0]
    *_, second, top = sorted(column.counts)
    is_apart = top > max(4 * second, 9) and -top in _SENTINELS
    if is_apart and column.counts[top] * 100 >= column.counts.total():
        below.append(top)
    return below[0] if len(below) == 1 and -abs(below[0]) in _SENTINELS else None


def _declared(column: Column, source: str, notes: list[str]) -> Label:
    name, words = column.name, sorted(column.counts)
    if column.missing:
        notes.append(
            f"label: {name!r} is missing in {column.missing:,} rows, which `prepare` refuses; leave them "
            f"out (of a frame: frame.dropna(subset=[{name!r}]))"
        )
    if column.kind == "number" and set(words) <= {0, 1}:
        if len(words) == 1:
            notes.append(f"label: {name!r} is {words[0]:g} in all rows looked at")
        return Label(name)
    if column.kind == "number" and len(words) == 2:
        low, high = words
        notes.append(
            f"label: {high:g} of {name!r} counts as 1 and {low:g} as 0, as all from {high:g} on, and all "
            f"below (at_least)"
        )
        return Label(name, at_least=float(high))
    if column.kind == "number" and len(words) > 2:
        if (odd := sentinel(column)) is not None:
            notes.append(
                f"label: {odd:g} of {name!r} ({column.counts[odd]:,} rows looked at) lies apart from all "
                f"others: if it means that there is no label, leave these rows out"
            )
            words.remove(odd)
            if words == [0, 1]:
                return Label(name)
        return _of_numbers(column, words, notes)
    # A text of two values; anything else is refused.
    if column.kind == "text" and len(words) == 2:
        known = [word for word in words if word.strip().lower() in _POSITIVE]
        positive = known[0] if len(known) == 1 else min(words, key=lambda word: column.counts[word])
        if len(known) != 1:
            notes.append(f"label: {positive.strip()!r} of {name!r} counts as 1, as the rarer value")
        return Label(name, positive=(positive.strip(),))
    raise ValueError(
        f"{source}, column {name!r}: expected a label of two values or of numbers, found "
        f"{column.kind} with {len(words):,} values; write a schema with Label({name!r}, positive=(...))"
    )


def _of_numbers(column: Column, words: Sequence[float], notes: list[str]) -> Label:
    """The label of more than two numbers; words: without one that means missing."""
    name, counts = column.name, Counter({x: column.counts[x] for x in words})
    loss, why = _loss_of(counts)
    middle = 4 if 4 < words[-1] <= 5 else quantiles(counts, 0.5)[0]
    least = next(x for x in words if x >= max(middle, words[1]))
    listed, classes = "", ""
    if len(words) <= _FEW_CLASSES:
        listed = f" ({', '.join(f'{x:g}' for x in words)})"
        classes = (
            f"; if they are classes, Label({name!r}, positive=('{words[-1]:g}',)) learns one of them"
        )
    notes.append(
        f"label: {name!r} is learned as a number{listed}, and loss={loss!r} is a guess ({why}); "
        f"at_least={least:g} instead of a loss would learn whether it is that much{classes}"
    )
    return Label(name, loss=loss)


def _loss_of(counts: Counter[float]) -> tuple[str, str]:
    """The loss by which a label of more than two numbers is learned, and why."""
    middle, high = quantiles(counts, 0.5, 0.99)
    if all(x % 1 == 0 for x in counts) and min(counts) == 0 and 2 * middle < high:
        return "poisson", "whole numbers from 0 on, small ones above all: counts"
    errors = Counter[float]()
    for x, count in counts.items():
        errors[abs(x - middle)] += count
    usual, large = quantiles(errors, 0.5, 0.99)
    if 0 < 10 * usual < large:
        return f"huber:{2 * usual:.2g}", "some are far from all others; beyond this error it is linear"
    return "squared", "none are far from all others"
