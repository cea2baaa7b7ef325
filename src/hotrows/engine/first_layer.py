"""Which packs a model's first layer reads by their distinct rows, and what their plan then is.

A batch reads frequent rows many times. Where the vectors of a pack go into one layer and nowhere
else, the layer may multiply each distinct row once (`ops.layers.row_products`); the pack's leaf is
then [U, D], its rows, and a gradient of a row is already the sum over the batch. Decided batch by
batch, by numbers of the plan alone, so that the same batch always has the same bits.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

import torch

from hotrows.ops.layers.row_products import RowReads
from hotrows.ops.plan import PackPlan, Plan

if TYPE_CHECKING:
    from hotrows.engine.planning.packing import Pack
    from hotrows.runtime.device import Device

# The share of ids that are multiplied no more, times the dim, from which it pays: adding a product to its
# sample costs as much as multiplying some columns. Measured; see docs/explanation/kernels.md.
LEAST_SAVING = 6.0


def packs_by_rows(packs: Sequence[Pack], roles: Collection[str], device: Device) -> tuple[int, ...]:
    """The packs that may be read so, on the host. roles: those that the model reads through
    `Vectors.joined` alone."""
    if not device.on_host:
        return ()
    return tuple(p for p, pack in enumerate(packs) if _can_go_by_rows(pack, roles))


def _can_go_by_rows(pack: Pack, roles: Collection[str]) -> bool:
    """True if all of the pack is of these roles, and each of its rows of one feature alone."""
    return (
        all(table.role in roles for table in pack.tables)
        and not pack.sequences
        and len(pack.columns) == len(pack.tables)
    )


def pays(pack: Pack, part: PackPlan) -> bool:
    """True if the first layer is computed faster from the distinct rows than from the vectors."""
    num_ids = part.inverse.numel()
    return num_ids > 0 and (1 - part.num_rows / num_ids) * pack.dim >= LEAST_SAVING


def reads_of(pack: Pack, plan: Plan, p: int) -> RowReads:
    """Which samples read each distinct row of pack p of the plan."""
    part = plan.packs[p]
    bounds = torch.searchsorted(part.rows, torch.tensor(pack.first_rows))
    return RowReads(bounds, part.starts, part.order, part.bags, part.weights, plan.batch_size)


def planned_by_rows(plan: Plan, by_rows: Collection[int]) -> Plan:
    """The plan whose vectors of these packs are the distinct rows themselves, one each: [U, D]."""
    if not by_rows:
        return plan
    packs = tuple(_once(part) if p in by_rows else part for p, part in enumerate(plan.packs))
    return dataclasses.replace(plan, packs=packs)


def _once(part: PackPlan) -> PackPlan:
    places = torch.arange(part.num_rows + 1, dtype=torch.int32)
    return PackPlan(part.rows, part.slots, places[:-1], places[:-1], places, num_bags=part.num_rows)
