"""Sizes in bytes as text: 2GiB, 512MB."""

from __future__ import annotations

import re

_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_UNITS |= {"KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}


def parse_bytes(text: str) -> int:
    """The number of bytes that 64MiB, 1.5GB or 1000000 says.

    >>> parse_bytes('64MiB'), parse_bytes('1.5GB')
    (67108864, 1500000000)
    """
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*([a-z]*)", text.strip(), re.IGNORECASE)
    unit = _UNITS.get(match[2].upper()) if match else None
    if match is None or unit is None:
        raise ValueError(
            f"a size must be a number of bytes with or without a unit, such as 64MiB, 1.5GB or "
            f"1000000, not {text!r}"
        )
    size = float(match[1]) * unit
    if size >= 1 << 63:
        raise ValueError(f"a size must be below 8388608 TiB, not {text[:40]!r}")
    return int(size) if "." in match[1] else int(match[1]) * unit


def format_bytes(num_bytes: int) -> str:
    """A size to read: 256 MiB, 1.5 GiB.

    >>> format_bytes(3 << 29)
    '1.5 GiB'
    """
    size, units = float(num_bytes), ["bytes", "KiB", "MiB", "GiB", "TiB"]
    while size >= 1024 and len(units) > 1:
        size, units = size / 1024, units[1:]
    return f"{size:,.0f} {units[0]}" if size >= 100 else f"{size:.3g} {units[0]}"
