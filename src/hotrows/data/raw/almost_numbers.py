"""Columns of text that are numbers or times to a reader, and none to a machine: what to say of them."""

from __future__ import annotations

import re

from hotrows.data.raw.kinds import FEW, FORMATS, Column
from hotrows.data.raw.values import MISSING_WORDS, plain_number, plain_time

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
        return f"numbers with commas, signs or units ({shown}) are read as text; write them as 1234.5"
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
    """What stands before or behind a number; None if the value is no such number."""
    matches = (pattern.fullmatch(value.strip(" ()")) for pattern in _AFFIXED)
    return next((match["affix"].strip() for match in matches if match), None)


def _are_few(some: list[str], known: list[str], column: Column) -> bool:
    """Whether some of the known values have less than half of their rows."""
    return 2 * sum(column.counts[x] for x in some) < sum(column.counts[x] for x in known)


def _is_time(value: str) -> bool:
    text = _bytes(value.strip(" ")) if _MAY_BE_TIME.fullmatch(value) else b""
    return any(plain_time(text, format) is not None for format in ("iso", *FORMATS))


def _bytes(value: str) -> bytes:
    return value.encode("utf-8", "surrogateescape")


def _shown(values: list[str]) -> str:
    return ", ".join(map(repr, values[:3]))
