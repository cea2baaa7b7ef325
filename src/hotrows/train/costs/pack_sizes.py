"""Pack sizes: how packs are split, and how large micro-batches may be.

The sizing rules of PICASSO (section 3), each computed from measured volumes and bounds alone. `volume`
is the paper's CalcVParam, `micro_batch_size` its BS_micro. What is a group in the paper is a pack here;
its capacity is an equal share of all volume (`parts_of`), the number of shares what the cost model finds
best (`hotrows.train.costs.interleaving`). `balance` splits a pack far above the mean.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

FAR_ABOVE = 1.5  # ratio of a volume to the mean above which a pack is split


def volume(ids: float, tables: Sequence[tuple[int, float]]) -> float:
    """Numbers that a pack moves in a batch: ids x sum of dim x frequency over its tables.

    ids: ids that a batch reads of all packs.
    tables: for each table its dim, and the share of these ids that are its own.
    """
    return ids * sum(dim * frequency for dim, frequency in tables)


def balance(volumes: Sequence[float], far_above: float = FAR_ABOVE) -> tuple[int, ...]:
    """Number of even parts of each pack: ceil(volume / mean) for a volume far above the mean."""
    if not volumes or sum(volumes) <= 0:
        return (1,) * len(volumes)
    mean = sum(volumes) / len(volumes)
    return tuple(math.ceil(v / mean) if v > far_above * mean else 1 for v in volumes)


def micro_batch_size(bounds: Mapping[str, float], per_instance: Mapping[str, float]) -> int:
    """Samples of a micro-batch, at least one: the least of bound / cost per sample over resources.

    bounds: amount of each resource that a micro-batch may take, such as bytes of memory.
    per_instance: amount that a sample takes; a resource that no sample takes bounds nothing.
    """
    return max(1, math.floor(_least(bounds, per_instance)))


def parts_of(volumes: Sequence[float], num: int, most: Sequence[int]) -> tuple[int, ...]:
    """Number of parts of each pack, at least one: of about an equal share of all volume, of `num` shares.

    most: the parts that each pack can have, one per table.
    """
    capacity = max(sum(volumes) / num, 1e-9)
    return tuple(max(1, min(round(v / capacity), m)) for v, m in zip(volumes, most, strict=True))


def _least(bounds: Mapping[str, float], costs: Mapping[str, float]) -> float:
    unbounded = sorted(costs.keys() - bounds.keys())
    if unbounded:
        raise ValueError(f"there is a cost of {unbounded[0]!r}, but no bound on it")
    sizes = [bounds[name] / cost for name, cost in costs.items() if cost > 0]
    if not sizes:
        raise ValueError("no resource costs anything, so nothing bounds the size; name one that does")
    return min(sizes)
