"""Fast memory: how a budget of bytes is written, and how groups of packs share it."""

from __future__ import annotations

import re
from collections.abc import Sequence

from hotrows.planning.packing import Group

SPLITS = ("reads", "rows", "even")
_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_UNITS |= {"KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}


def parse_bytes(text: str) -> int:
    """64MiB, 1.5GB or 1000000 as a number of bytes."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]*)", text.strip(), re.IGNORECASE)
    unit = _UNITS.get(found[2].upper()) if found else None
    if found is None or unit is None:
        raise ValueError(
            f"a size must be a number of bytes with or without a unit, such as 64MiB, 1.5GB or "
            f"1000000, not {text!r}"
        )
    return int(float(found[1]) * unit) if "." in found[1] else int(found[1]) * unit


def format_bytes(num_bytes: int) -> str:
    """A size to read: 256 MiB, 1.5 GiB."""
    size, units = float(num_bytes), ["bytes", "KiB", "MiB", "GiB", "TiB"]
    while size >= 1024 and len(units) > 1:
        size, units = size / 1024, units[1:]
    return f"{size:,.0f} {units[0]}" if size >= 100 else f"{size:.3g} {units[0]}"


def divide(fast_memory: int, groups: Sequence[Group], split: str = "reads") -> list[int]:
    """The slots of each group.

    split: bytes in proportion to what a sample reads of a group (`reads`), to what all of its rows
    take (`rows`), or as many for each (`even`).
    Every group has one slot at least and no more than it has rows; what one cannot use goes on to
    the others.
    """
    least = sum(group.stride for group in groups)
    if fast_memory < least:
        raise ValueError(
            f"fast memory must hold a row of every group of tables, {least:,} bytes at least, but "
            f"fast_memory is {fast_memory:,}"
        )
    slots = [1] * len(groups)
    left = fast_memory - least
    while shares := _shares(left, groups, slots, split):
        for g, more in shares.items():
            slots[g] += more
            left -= more * groups[g].stride
    for g, group in enumerate(groups):  # what rounding has left
        more = min(left // group.stride, max(group.rows, 1) - slots[g])
        slots[g] += more
        left -= more * group.stride
    return slots


def _shares(left: int, groups: Sequence[Group], slots: Sequence[int], split: str) -> dict[int, int]:
    """How many more slots each group gets of the bytes left, where it gets any."""
    growing = [g for g, group in enumerate(groups) if slots[g] < group.rows]
    weights = {g: _weight(groups[g], split) for g in growing}
    total = sum(weights.values())
    fair = {g: left * weights[g] // total // groups[g].stride for g in growing}
    return {g: min(fair[g], groups[g].rows - slots[g]) for g in growing if fair[g]}


def _weight(group: Group, split: str) -> int:
    if split == "even":
        return 1
    return (group.lookups if split == "reads" else group.rows) * group.stride
