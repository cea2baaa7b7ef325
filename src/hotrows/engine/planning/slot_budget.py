"""Slot budget: groups of packs share the bytes of fast memory."""

from __future__ import annotations

from collections.abc import Sequence

from hotrows.engine.planning.packing import Group


def divide(fast_memory: int, groups: Sequence[Group], split: str = "reads") -> list[int]:
    """The number of slots of each group.

    split: bytes in proportion to the bytes that a sample reads of a group (`reads`), to the bytes of all
    its rows (`rows`), or equal (`even`).
    Every group has one slot at least and no more than it has rows; bytes that one cannot use are shared
    by all other groups.
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
    for g, group in enumerate(groups):  # bytes that rounding has left
        more = min(left // group.stride, max(group.rows, 1) - slots[g])
        slots[g] += more
        left -= more * group.stride
    return slots


def _shares(left: int, groups: Sequence[Group], slots: Sequence[int], split: str) -> dict[int, int]:
    """The further slots of each group that gets any of the bytes left."""
    growing = [g for g, group in enumerate(groups) if slots[g] < group.rows]
    weights = {g: _weight(groups[g], split) for g in growing}
    total = sum(weights.values())
    fair = {g: left * weights[g] // total // groups[g].stride for g in growing}
    return {g: min(fair[g], groups[g].rows - slots[g]) for g in growing if fair[g]}


def _weight(group: Group, split: str) -> int:
    if split == "even":
        return 1
    return (group.lookups if split == "reads" else group.rows) * group.stride
