"""Balance: how packs are split, and how large groups and micro-batches may be (PICASSO, section 3).

Each is a size out of measured volumes and bounds, and nothing else. What the paper calls CalcVParam,
Capacity_g and BS_micro is named here by what it is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

FAR_ABOVE = 1.5  # times the mean volume, from where on a pack is split


def volume(ids: float, tables: Sequence[tuple[int, float]]) -> float:
    """The numbers that a pack moves in a batch: ids x sum of dim x frequency over its tables.

    ids: that a batch reads of all packs; tables: (dim, the share of these ids that a table's rows
    take) for each.
    """
    return ids * sum(dim * frequency for dim, frequency in tables)


def balance(volumes: Sequence[float], far_above: float = FAR_ABOVE) -> tuple[int, ...]:
    """Into how many even parts each pack goes: a volume far above the mean into ceil(volume / mean)."""
    if not volumes or sum(volumes) <= 0:
        return (1,) * len(volumes)
    mean = sum(volumes) / len(volumes)
    return tuple(math.ceil(v / mean) if v > far_above * mean else 1 for v in volumes)


def micro_batch_size(bounds: Mapping[str, float], per_instance: Mapping[str, float]) -> int:
    """The samples of a micro-batch: the least of bound / cost per sample over resources.

    bounds: by resource, what a micro-batch may take of it, bytes of memory say; per_instance: what
    a sample takes. At least one; a resource that no sample takes bounds nothing.
    """
    return max(1, math.floor(_least(bounds, per_instance)))


def group_capacity(bounds: Mapping[str, float], per_parameter: Mapping[str, float]) -> float:
    """The parameters that the packs of a group may move together: the least of bound / cost of one."""
    return _least(bounds, per_parameter)


def group(volumes: Sequence[float], capacity: float) -> tuple[tuple[int, ...], ...]:
    """Packs in order, into groups of at most `capacity` together; one above it is a group alone."""
    groups: list[list[int]] = []
    taken = 0.0
    for pack, of in enumerate(volumes):
        if not groups or taken + of > capacity:
            groups.append([])
            taken = 0.0
        groups[-1].append(pack)
        taken += of
    return tuple(map(tuple, groups))


def _least(bounds: Mapping[str, float], costs: Mapping[str, float]) -> float:
    unbounded = sorted(costs.keys() - bounds.keys())
    if unbounded:
        raise ValueError(f"there is a cost of {unbounded[0]!r}, but no bound on it")
    found = [bounds[name] / cost for name, cost in costs.items() if cost > 0]
    if not found:
        raise ValueError(
            "no resource costs anything, so nothing bounds the size; name one that does"
        )
    return min(found)
