"""Numbers as people read them, in tables and beside axes."""

from __future__ import annotations

import math


def short(value: float) -> str:
    """1,234 as 1.2k, 45,000,000 as 45M."""
    for unit, name in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= unit:
            return f"{value / unit:.3g}{name}"
    return f"{value:.4g}"


def number(value: float | None) -> str:
    """1234.5 as 1,235 and 0.12345 as 0.1235, for tables; None as nothing."""
    if value is None:
        return ""
    return (
        short(value) if abs(value) >= 1e6 else f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    )


def percent(value: float) -> str:
    """0.0123 as 1 %, 0.00012 as 0.01 %."""
    digits = max(0, -math.floor(math.log10(value * 100))) if 0 < value < 0.01 else 0
    return f"{value * 100:.{digits}f} %"
