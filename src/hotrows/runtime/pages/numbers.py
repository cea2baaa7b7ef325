"""Numbers as people read them, in tables and beside axes."""

from __future__ import annotations

import math


def short(value: float) -> str:
    """A number as a few characters.

    >>> short(1234), short(45e6)
    ('1.23k', '45M')
    """
    for unit, name in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= unit:
            return f"{value / unit:.3g}{name}"
    return f"{value:.4g}"


def number(value: float | None) -> str:
    """A number for a table, of four digits; None as nothing.

    >>> number(1234.5), number(0.12345)
    ('1,234', '0.1235')
    """
    if value is None:
        return ""
    return (
        short(value) if abs(value) >= 1e6 else f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    )


def percent(value: float) -> str:
    """A share as per cent, to its first digit.

    >>> percent(0.0123), percent(0.00012)
    ('1 %', '0.01 %')
    """
    digits = max(0, -math.floor(math.log10(value * 100))) if 0 < value < 0.01 else 0
    return f"{value * 100:.{digits}f} %"
