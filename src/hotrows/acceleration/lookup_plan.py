"""Plans of lookups: which lookups form a pack, which rows a pack reads, and where these are.

ids of all lookups    [N]    end to end, as rows of the tables laid end to end
ops.unique            [U]    distinct rows, and the runs of equal ones
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from hotrows import ops
from hotrows.acceleration import errors
from hotrows.acceleration.bags import LookupCall, bags_of, gradient_factors
from hotrows.acceleration.cached_group import CachedRows, CachedTableGroup
from hotrows.acceleration.parameter import NO_TORCH_FUNCTION, TableParameter
from hotrows.acceleration.table import RowTable
from hotrows.acceleration.table_plan import TablePlan
from hotrows.ops.deferred import Target
from hotrows.ops.deferred.history import WIDTH
from hotrows.ops.plan import PackPlan

DEVICES = ("cpu", "cuda")
_ID_TYPES = (torch.int64, torch.int32)
_KERNEL_TYPES = (torch.float32, torch.float64)

PackKey = tuple[torch.dtype, int, torch.device, str | None, CachedTableGroup | None]


def pack_calls(calls: Sequence[LookupCall]) -> dict[PackKey, list[int]]:
    """Numbers of the calls made together, by (dtype, width, device, kind of rule, cached group)."""
    packs: dict[PackKey, list[int]] = {}
    with NO_TORCH_FUNCTION():
        for i, call in enumerate(calls):
            if _is_single(call):
                continue
            table = table_of(call.weight)
            kind = None if table is None else table.rule.kind
            weight = call.weight
            key = (weight.dtype, weight.shape[1], weight.device, kind, group_of(weight))
            packs.setdefault(key, []).append(i)
    return packs


def _is_single(call: LookupCall) -> bool:
    """True if a lookup must be made by itself."""
    weight = call.weight
    return (
        call.is_plain
        or call.ids.dtype not in _ID_TYPES
        or not call.lookup.is_packable
        or weight.dtype not in _KERNEL_TYPES
        or weight.dim() != 2
        or weight.device.type not in DEVICES
        or any(
            x is not None and x.device != weight.device for x in (call.ids, call.offsets, call.samples)
        )
        or not weight.is_leaf
        or (weight.stride(-1) != 1 and group_of(weight) is None)
        or not weight.numel()
        or (call.samples is not None and call.samples.requires_grad)
    )


def table_of(weight: Tensor) -> RowTable | None:
    """The table of an accelerated weight; None for any other tensor."""
    return weight.table if isinstance(weight, TableParameter) else None


def group_of(weight: Tensor) -> CachedTableGroup | None:
    """The group behind whose cache a weight is."""
    table = table_of(weight)
    return None if table is None else table.group


def signature_of(calls: Sequence[LookupCall]) -> tuple:
    """Which weights are looked up, and how many ids in each."""
    return tuple((id(call.weight), call.ids.numel()) for call in calls)


def ids_of(calls: Sequence[LookupCall]) -> Tensor:
    """[N]: the ids of lookups, as a copy."""
    return torch.cat([call.ids.reshape(-1) for call in calls])


def distinct_weights(calls: Sequence[LookupCall]) -> list[Tensor]:
    """The weights of a pack, each once; of cached tables, in the order of their rows."""
    weights = list({id(call.weight): call.weight for call in calls}.values())
    with NO_TORCH_FUNCTION():
        if group_of(weights[0]) is not None:
            weights.sort(key=_first_row)
    return weights


def _first_row(weight: Tensor) -> int:
    table = table_of(weight)
    return 0 if table is None else table.first_row


def plan_rows(calls: Sequence[LookupCall]) -> TablePlan:
    """The rows of a pack's lookups, without targets and bags; each row's slot is its number in the table.

    Cached tables lie end to end as in their group, all others in the order of `distinct_weights`. Those
    are planned by the host, which maps their rows to slots, wherever the ids are.
    """
    weights = distinct_weights(calls)
    table_numbers = {id(weight): t for t, weight in enumerate(weights)}
    with NO_TORCH_FUNCTION():
        sizes = [weight.shape[0] for weight in weights]
        begins = [0, *itertools.accumulate(sizes)][:-1]
        if group_of(weights[0]) is not None:
            begins = [_first_row(weight) for weight in weights]
            calls = [replace(call, ids=call.ids.cpu()) for call in calls]
    reads = [table_numbers[id(call.weight)] for call in calls]
    device = calls[0].ids.device
    rows = _rows(calls, [begins[t] for t in reads], [sizes[t] for t in reads])  # [N]
    ends = (*begins, begins[-1] + sizes[-1])
    if device.type == "cpu":
        distinct, inverse, order, starts = ops.unique(rows)
        ascending = distinct
    else:  # as long as the ids, so that the host waits for no count
        distinct, inverse, order, starts = ops.unique_padded(rows, ends[-1])
        ascending = torch.where(distinct < 0, ends[-1], distinct)
    table_rows = distinct - begins[0] if begins[0] else distinct  # [U]
    bounds = torch.searchsorted(ascending, constant(ends, device))
    if len(weights) > 1:
        firsts = constant(tuple(begins), device)
        table_rows = distinct - firsts[torch.searchsorted(firsts, ascending, right=True) - 1]
    pack = PackPlan(distinct, table_rows, inverse, order, starts, num_bags=inverse.numel())
    return TablePlan(pack, table_rows, bounds)


@functools.lru_cache(maxsize=256)
def constant(numbers: tuple[int, ...], device: torch.device) -> Tensor:
    """[n] int64 on a device, copied there once."""
    return torch.tensor(numbers).to(device)


def plan_pack(
    calls: Sequence[LookupCall],
    tables: Sequence[RowTable | None],
    weights: Sequence[Tensor],
    group: CachedTableGroup | None,
    trains: bool,
) -> TablePlan:
    """The plan of a pack's lookups; tables: of the distinct weights; trains: rows may be stepped."""
    locations: CachedRows | None = None
    if group is None:
        plan = plan_rows(calls)
        rows, slots = plan.pack, plan.pack.slots
        with NO_TORCH_FUNCTION():
            targets = tuple(
                _frozen_target(weight.detach()) if table is None else table.target
                for weight, table in zip(weights, tables, strict=True)
            )
    else:
        plan, locations = _plan_cached(calls, group, trains)
        plan = locations.group.on_device(plan)
        rows, slots = plan.pack, locations.slots
        targets = tuple(group.target_of(table, locations.records) for table in tables if table)
    dtype, num_bags = targets[0].weights.dtype, sum(call.num_bags for call in calls)
    bag_starts, bags, factors = bags_of(calls, dtype)
    pack = PackPlan(
        rows.rows, slots, rows.inverse, rows.order, rows.starts, num_bags, bag_starts, bags, factors
    )
    grad_weights = gradient_factors(calls, factors, dtype)
    return TablePlan(
        pack, plan.table_rows, plan.bounds, targets, grad_weights, locations, plan.known_ends
    )


def _plan_cached(
    calls: Sequence[LookupCall], group: CachedTableGroup, trains: bool
) -> tuple[TablePlan, CachedRows]:
    """The rows of lookups in cached tables, and where they are: as planned ahead, or inserted now."""
    group.synchronize()
    batch = group.training_batch
    if (
        batch is not None
        and batch.locations is not None
        and batch.signature == signature_of(calls)
        and torch.equal(batch.ids, ids_of(calls).cpu())
    ):
        assert batch.plan is not None
        group.counts["ahead"] += 1
        return batch.plan, batch.locations
    plan = plan_rows(calls)
    return plan, group.locate(plan.pack.rows, trains)


def _frozen_target(weights: Tensor) -> Target:
    """The target of a plain weight: none of its steps is ever deferred."""
    no_last = weights.new_empty(0, dtype=torch.int32)
    return Target(weights, (), no_last, weights.new_empty(0, WIDTH, dtype=torch.float64), 0, 0, 0)


def _rows(calls: Sequence[LookupCall], first_rows: Sequence[int], num_rows: Sequence[int]) -> Tensor:
    """[N] int64: the row of each id, in the tables laid end to end.

    first_rows, num_rows: [L], of the table of each lookup. An id outside its table is an error; on a
    device, a later one, for the host does not wait: until then the id is padding.
    """
    device = calls[0].ids.device
    sizes = [call.ids.numel() for call in calls]
    ids = [call.ids.reshape(-1) for call in calls]
    changes = [i for i in range(1, len(sizes)) if sizes[i] != sizes[i - 1]]
    rows = []
    for begin, end in itertools.pairwise([0, *changes, len(sizes)]):
        span_ids = torch.cat(ids[begin:end]) if end - begin > 1 else ids[begin]
        # As sequences of one batch: one bag per id, lookup after lookup.
        numbers = tuple(range(end - begin)), tuple(first_rows[begin:end]), tuple(num_rows[begin:end])
        tables = (constant(of_span, device) for of_span in numbers)
        span_rows, _, _, bad = ops.resolve(span_ids.long(), None, sizes[begin], *tables, 0)
        known = span_ids if device.type == "cpu" else None
        weights = [call.weight for call in calls[begin:end]]
        errors.check(bad, functools.partial(_outside, weights, sizes[begin], known))
        rows.append(span_rows)
    return torch.cat(rows) if len(rows) > 1 else rows[0]


def _name_of(weight: Tensor) -> str:
    table = table_of(weight)
    return "" if table is None else f" {table.names[0]}"


def _outside(weights: Sequence[Tensor], size: int, ids: Tensor | None, bad: int) -> IndexError:
    """weights: the table of each lookup, of `size` ids; ids: of all, if they are at hand."""
    weight = weights[bad // size]
    name, num_rows = _name_of(weight), len(weight)
    which = f"the id at place {bad % size}" if ids is None else f"id {int(ids[bad])}"
    return IndexError(
        f"index out of range in self: {which} is looked up in table{name} of {num_rows} "
        f"rows, which has ids 0 to {num_rows - 1}"
    )
