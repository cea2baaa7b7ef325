"""Plans on a device: copies of those made on the host, and plans that the device makes itself.

    copy = upload(device, batch, plan)                          # a plan of the host
    copy = DevicePlanner(planner, device).upload(batch, plan)   # a plan whose packs the device makes
    device.wait(copy.mark); batch, plan = copy.value
    copy.check()                          # later, since it waits: raises for an id outside

A device finds rows, runs and places with its own ops from the ids: for packs whose rows are all there,
and batches with one id per feature and sample. Tensors have the sizes of the ids (`PackPlan.padded`),
so that nobody waits for a count. An id outside its table is padding, which trains no row, until
`check` says what it was.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from hotrows import ops
from hotrows.batch import Batch
from hotrows.engine.planning.planner import Planner, Reads, leaders_of, outside
from hotrows.ops.plan import PackPlan, Plan
from hotrows.runtime.device import Device, Mark
from hotrows.runtime.shapes import Int64
from hotrows.runtime.transfer import Uploaded, to_device

LANE = "plan"


def upload(device: Device, batch: Batch, plan: Plan, sent: Plan | None = None) -> Uploaded:
    """Copies a plan of the host and what a step reads of its batch: (batch, plan), behind a mark.

    Ids stay in host memory. sent: the plan with padding, which is copied; None: the plan itself.
    """
    copy = to_device(device, (_read_by_a_step(batch), sent or plan))
    read, device_plan = copy.value
    device_plan = replace(
        device_plan,
        on_host=plan,
        micro_batches=tuple(
            replace(part, on_host=on_host)
            for part, on_host in zip(device_plan.micro_batches, plan.micro_batches, strict=True)
        ),
    )
    return replace(copy, value=(_with(batch, read), device_plan))


@dataclass(frozen=True)
class DevicePlanned:
    """The packs of a plan, on the device as soon as `mark` is passed.

    blocks: their memory. check: waits for the mark, and raises where an id was outside its table.
    """

    packs: tuple[PackPlan, ...]
    blocks: tuple[Tensor, ...]
    mark: Mark
    check: Callable[[], None]


class DevicePlanner:
    """Makes the packs of plans on a device, with the bits of those that `planner` makes."""

    def __init__(self, planner: Planner, device: Device) -> None:
        self._planner, self._device = planner, device
        self._tables: dict[tuple[Any, ...], tuple[Tensor, Tensor, Tensor]] = {}

    def refusal(self, batch: Batch) -> str | None:
        """Why a batch must be planned on the host; None: the device can plan it."""
        if batch.requests is not None:
            return "samples of a request share features"
        if batch.offsets is not None:
            return "features are lists of ids"
        if batch.weights is not None:
            return "ids have weights"
        return self.refusal_of_all()

    def refusal_of_all(self) -> str | None:
        """Why no batch can be planned on the device."""
        if self._planner.ranks.num_ranks > 1:
            return f"{self._planner.ranks.num_ranks} ranks request rows of one another there"
        if self._planner.routes:
            return "batches are trained in micro-batches"
        if self._planner.crosses:
            return "the model crosses features"
        if any(pack.sequences for pack in self._planner.packs):
            return "the vectors of some features are not pooled"
        return None

    def upload(self, batch: Batch, plan: Plan) -> Uploaded:
        """Copies the ids of a batch and what a step reads of it, and plans its packs from these."""
        copy = to_device(self._device, (_read_by_a_step(batch), batch.ids))
        read, ids = copy.value
        planned = self.plan(batch, ids, copy.mark)
        value = _with(batch, read), replace(plan, packs=planned.packs)
        return Uploaded(value, (*copy.blocks, *planned.blocks), planned.mark, planned.check)

    def plan(self, batch: Batch, ids: Int64[Tensor, "_"], after: Mark) -> DevicePlanned:
        """Plans a batch in host memory whose ids are on the device once `after` is passed."""
        device, reads = self._device, self._planner.reads_of(batch.features)
        leaders, tables = leaders_of(reads), self._planner.packs
        num_rows = {r.signature: pack.rows for r, pack in zip(reads, tables, strict=True)}
        plans = {key: self._empty(len(leader.names) * batch.size) for key, leader in leaders.items()}
        bad = device.staging(len(leaders), dtype=torch.int64)
        blocks = [tensor for plan in plans.values() for tensor in _tensors(plan)]
        work = partial(self._fill, plans, leaders, num_rows, ids, batch.size, bad)
        for leader in leaders.values():
            self._tables_of(leader)
        mark = device.launch(LANE, work, after=[after], holds=[ids, *blocks])

        def check() -> None:
            device.finish(mark)
            for n, leader in zip(bad.tolist(), leaders.values(), strict=True):
                if n >= 0:
                    raise outside(n, leader, batch)

        return DevicePlanned(tuple(plans[r.signature] for r in reads), tuple(blocks), mark, check)

    def resolving(self, batch: Batch, ids: Int64[Tensor, "_"]) -> list[Callable[[], Tensor]]:
        """For each group of packs what makes, launched, the rows that a batch reads, with repeats.

        ids: of the batch, on the device. A bad id is -1: who plans the batch says what it was.
        """
        leaders = leaders_of(self._planner.reads_of(batch.features)).values()
        tables = [(*self._tables_of(leader), leader.num_columns) for leader in leaders]
        return [partial(_resolved, ids, batch.size, *of_group) for of_group in tables]

    def _fill(
        self,
        plans: Mapping[tuple[Any, ...], PackPlan],
        leaders: Mapping[tuple[Any, ...], Reads],
        num_rows: Mapping[tuple[Any, ...], int],
        ids: Int64[Tensor, "_"],
        batch_size: int,
        bad: Int64[Tensor, "{len(leaders)}"],
    ) -> None:
        """Launched: makes the plans of `leaders`; bad[g] becomes the first bad id of each, or -1."""
        for g, (key, leader) in enumerate(leaders.items()):
            rows, _, _, first = ops.resolve(
                ids, None, batch_size, *self._tables_of(leader), leader.num_columns
            )  # [N], .., [1]
            distinct, *runs = ops.unique_padded(rows, num_rows[key])  # [N]; [N], [N], [N + 1]
            values = distinct, distinct.clamp(min=0), *runs
            for tensor, value in zip(_tensors(plans[key]), values, strict=True):
                tensor.copy_(value)
            bad[g : g + 1].copy_(first, non_blocking=True)

    def _empty(self, num_ids: int) -> PackPlan:
        """A padded plan to be filled."""
        int64 = partial(self._device.empty, LANE, dtype=torch.int64)
        int32 = partial(self._device.empty, LANE, dtype=torch.int32)
        return PackPlan(
            rows=int64(num_ids),
            slots=int64(num_ids),
            inverse=int32(num_ids),
            order=int32(num_ids),
            starts=int32(num_ids + 1),
            num_bags=num_ids,
        )

    def _tables_of(
        self, reads: Reads
    ) -> tuple[Int64[Tensor, "K"], Int64[Tensor, "K"], Int64[Tensor, "K"]]:
        """The features and tables that are read, on the device, equal for every batch."""
        if reads.signature not in self._tables:
            put = self._device.put
            self._tables[reads.signature] = (
                put(reads.features),
                put(reads.first_rows),
                put(reads.num_rows),
            )
        return self._tables[reads.signature]


def _resolved(ids: Tensor, batch_size: int, *tables: Any) -> Tensor:
    return ops.resolve(ids, None, batch_size, *tables)[0]


def _tensors(plan: PackPlan) -> tuple[Tensor, ...]:
    return plan.rows, plan.slots, plan.inverse, plan.order, plan.starts


_Read = tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]


def _read_by_a_step(batch: Batch) -> _Read:
    """The tensors of a batch that a step reads in addition to its plan."""
    return batch.dense, batch.labels, batch.sample_weights, batch.groups


def _with(batch: Batch, read: _Read) -> Batch:
    dense, labels, weights, groups = read
    return replace(batch, dense=dense, labels=labels, sample_weights=weights, groups=groups)
