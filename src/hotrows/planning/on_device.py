"""Plans made on a device: the ids go there, its own ops find rows, runs and places.

    sent = upload(device, batch.ids)
    planned = DevicePlanner(planner, device).plan(batch, sent.value, sent.mark)
    planned.check()                          # later, since it waits: raises for an id outside

For packs whose rows are all on the device, and batches with one id per feature and sample. Sizes are
those of the ids (`PackPlan.padded`), so that nobody waits for a count. An id outside its table is
padding, which no row learns from, until `check` is asked what it was.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from hotrows import ops
from hotrows.batch import Batch
from hotrows.device import Device, Mark
from hotrows.plan import PackPlan
from hotrows.planning.planner import Planner, Reads, leaders_of, outside

LANE = "plan"
PLANNING = ("host", "device")  # where plans are made


@dataclass(frozen=True)
class Planned:
    """packs: on the device, as soon as `mark` is passed; blocks: their memory.

    check: waits for the mark, and raises where an id was outside its table.
    """

    packs: tuple[PackPlan, ...]
    blocks: tuple[Tensor, ...]
    mark: Mark
    check: Callable[[], None]


class DevicePlanner:
    """Makes on a device the packs that `planner` would make."""

    def __init__(self, planner: Planner, device: Device) -> None:
        self._planner, self._device = planner, device
        self._tables: dict[tuple, tuple[Tensor, Tensor, Tensor]] = {}

    def refusal(self, batch: Batch) -> str | None:
        """Why a batch is planned on the host; None: it can be planned here."""
        if batch.offsets is not None:
            return "features are lists of ids"
        if batch.weights is not None:
            return "ids have weights"
        if self._planner.routes:
            return "batches are learned from in parts"
        if self._planner.crosses:
            return "the model crosses features"
        if any(pack.sequences for pack in self._planner.packs):
            return "the vectors of some features stay apart"
        return None

    def plan(self, batch: Batch, ids: Tensor, after: Mark) -> Planned:
        """batch: in host memory; ids: its own, on the device once `after` is passed."""
        device, every = self._device, self._planner.reads_of(batch.features)
        leaders = leaders_of(every)
        num_rows = {of.signature: p.rows for of, p in zip(every, self._planner.packs, strict=True)}
        made = {key: self._empty(len(of.names) * batch.size) for key, of in leaders.items()}
        tables = {key: self._tables_of(of) for key, of in leaders.items()}
        bad = device.staging(len(leaders), dtype=torch.int64)
        blocks = [tensor for part in made.values() for tensor in _written(part)]

        def work() -> None:
            for g, (key, of) in enumerate(leaders.items()):
                rows, _, _, first = ops.resolve(ids, None, batch.size, *tables[key], of.num_columns)
                distinct, *runs = ops.unique_padded(rows, num_rows[key])
                found = distinct, distinct.clamp(min=0), *runs
                for into, values in zip(_written(made[key]), found, strict=True):
                    into.copy_(values)
                bad[g : g + 1].copy_(first, non_blocking=True)

        mark = device.launch(LANE, work, after=[after], holds=[ids, *blocks])

        def check() -> None:
            device.finish(mark)
            for n, of in zip(bad.tolist(), leaders.values(), strict=True):
                if n >= 0:
                    raise outside(n, of, batch)

        return Planned(tuple(made[of.signature] for of in every), tuple(blocks), mark, check)

    def _empty(self, num_ids: int) -> PackPlan:
        """Room for a padded plan."""
        long, short = (
            partial(self._device.empty, LANE, dtype=of) for of in (torch.int64, torch.int32)
        )
        return PackPlan(
            rows=long(num_ids), slots=long(num_ids), inverse=short(num_ids), order=short(num_ids),
            starts=short(num_ids + 1), num_bags=num_ids,
        )  # fmt: skip

    def _tables_of(self, reads: Reads) -> tuple[Tensor, Tensor, Tensor]:
        """Which features and tables are read, on the device: the same for every batch."""
        if reads.signature not in self._tables:
            put = self._device.put
            self._tables[reads.signature] = (
                put(reads.features), put(reads.first_rows), put(reads.num_rows),
            )  # fmt: skip
        return self._tables[reads.signature]


def _written(part: PackPlan) -> tuple[Tensor, ...]:
    return part.rows, part.slots, part.inverse, part.order, part.starts
