"""Steps of tables: what the hooks of an optimizer do before its own step, and around its state.

Tables that were looked up together are stepped in one call. One whose gradient is dense is left to the
optimizer, with every row up to date.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from hotrows.capture import ranks
from hotrows.capture.gradient import PackGradient, RowGradient, TablePlan, settle
from hotrows.capture.history import History
from hotrows.capture.kept import KeptTable
from hotrows.capture.parameter import NO_TORCH_FUNCTION, TableParameter
from hotrows.capture.rules import BY_OPTIMIZER
from hotrows.capture.table import Table, counted_squares
from hotrows.ops import deferred
from hotrows.ops.deferred import Target

MOST_KEPT = 1 << 14
"""Steps that rows may be behind: what a step costs that looks for them grows with their number."""


def share_histories(tables: Iterable[Table]) -> None:
    """Tables that stand at the same step go on with one history until their steps differ."""
    shared: dict[tuple, History] = {}
    for table in tables:
        if table.rule.kind != BY_OPTIMIZER:
            key = (id(table.optimizer), table.rule, table.history.now)
            if table.history.num_kept == 0:
                table.join(shared.setdefault(key, History(table.history.now)))


def hook(
    optimizer: Optimizer, tables: Sequence[Table], group: Callable[[], dist.ProcessGroup | None]
) -> list[Any]:
    """Puts the tables' steps in front of an optimizer's own; the handles take them away again.

    group: the ranks whose gradients are averaged, if there are any by then.
    """
    by_weight = {id(table.weight): table for table in tables}
    hidden: list[tuple[Tensor, Tensor]] = []

    def before(optimizer: Optimizer, args: tuple, kwargs: dict) -> tuple[tuple, dict] | None:
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        if closure is not None:  # gradients first
            with torch.enable_grad():
                loss = closure()
            args, kwargs = (optimizer, lambda: loss), {}
        hidden.extend(step_tables(optimizer, by_weight, group()))
        return (args, kwargs) if closure is not None else None

    def after(optimizer: Optimizer, args: tuple, kwargs: dict) -> None:
        with NO_TORCH_FUNCTION():
            for weight, gradient in hidden:
                table = by_weight[id(weight)]
                if isinstance(gradient, RowGradient) and weight.grad is None:
                    gradient.is_spent = True
                    weight.grad = gradient
                else:
                    weight.__class__ = TableParameter
                    table.stepped_densely()
        hidden.clear()
        if any(table.history.num_kept >= MOST_KEPT for table in tables):
            for table in tables:
                table.catch_up()
            share_histories(tables)

    def publish(optimizer: Optimizer) -> None:
        for table in tables:
            table.catch_up()
            table.publish()
        share_histories(tables)

    def adopt(optimizer: Optimizer) -> None:
        for table in tables:
            table.adopt_states()
        share_histories(tables)

    def hide(optimizer: Optimizer, state: dict) -> None:
        for table in tables:
            table.hide()

    def before_loading(optimizer: Optimizer, state: dict) -> None:
        publish(optimizer)

    return [
        optimizer.register_step_pre_hook(before),
        optimizer.register_step_post_hook(after),
        optimizer.register_state_dict_pre_hook(publish),
        optimizer.register_state_dict_post_hook(hide),
        optimizer.register_load_state_dict_pre_hook(before_loading),
        optimizer.register_load_state_dict_post_hook(adopt),
    ]


def step_tables(
    optimizer: Optimizer, tables: Mapping[int, Table], group: dist.ProcessGroup | None = None
) -> list[tuple[Tensor, Tensor]]:
    """Steps the tables that have a gradient; returns (weight, gradient) of each.

    Those whose gradient is dense are left to the optimizer, with every row up to date. group: ranks
    whose gradients are averaged first.
    """
    if group is not None:
        _average(tables.values(), group)
    stepped: list[tuple[Tensor, Tensor]] = []
    packs: dict[tuple[int, int], list[tuple[Table, RowGradient]]] = {}
    for gradient in map(gradient_of, tables.values()):
        if isinstance(gradient, RowGradient):
            gradient.check_unspent()
    with NO_TORCH_FUNCTION(), torch.no_grad():
        for settings in optimizer.param_groups:
            for weight in settings["params"]:
                table = tables.get(id(weight))
                if table is None or weight.grad is None:
                    continue
                gradient = weight.grad
                stepped.append((weight, gradient))
                if table.multiples:
                    settle(table.multiples, table, but=gradient)
                if not isinstance(gradient, RowGradient) or gradient.dense is not None:
                    _leave_to_optimizer(table, gradient)
                    continue
                weight.grad = None
                if len(gradient.parts) == 1 and table.rule.kind != BY_OPTIMIZER:
                    pack = gradient.parts[0].of
                    packs.setdefault((id(pack), id(settings)), []).append((table, gradient))
                else:
                    table.step(gradient, settings)
        by_id = {id(settings): settings for settings in optimizer.param_groups}
        for (_, key), members in packs.items():
            _step_pack(members, by_id[key])
    return stepped


def _average(tables: Iterable[Table], group: dist.ProcessGroup) -> None:
    with NO_TORCH_FUNCTION(), torch.no_grad():
        means = ranks.averaged([(table, table.weight.grad) for table in tables], group)
        for table, mean in means:
            table.weight.grad = mean


def _leave_to_optimizer(table: Table, gradient: Tensor) -> None:
    if table.keeper is not None:
        raise RuntimeError(
            f"table {table.names[0]} is kept behind a cache and has a dense gradient, which the "
            f"optimizer cannot step there: something has read or learned from all of the table. Leave "
            f"that out, or accelerate without fast_memory"
        )
    table.catch_up()
    table.publish()
    table.weight.__class__ = nn.Parameter  # so that PyTorch takes its usual path
    table.weight.grad = gradient.to_dense() if isinstance(gradient, RowGradient) else gradient


def _step_pack(members: list[tuple[Table, RowGradient]], group: Mapping[str, Any]) -> None:
    """One step of tables that were looked up together, in as few calls as their places allow."""
    pack = members[0][1].parts[0].of
    _prepare(members, group)
    members.sort(key=lambda member: member[1].parts[0].table)
    begin = 0
    for at in range(1, len(members) + 1):
        places = [members[i][1].parts[0].table for i in (at - 1, at) if i < len(members)]
        if at == len(members) or places[1] != places[0] + 1:
            _update(pack, members[begin:at])
            begin = at
    for history in {id(table.history): table.history for table, _ in members}.values():
        history.taken()
    for table, _ in members:
        if table.rule.lazy:
            table.history.forget()


def _prepare(members: list[tuple[Table, RowGradient]], group: Mapping[str, Any]) -> None:
    """Writes down the step in the tables' histories; tables that go different ways part."""
    ways: dict[tuple[int, float], list[Table]] = {}
    for table, gradient in members:
        table.make_states()
        ways.setdefault((id(table.history), gradient.decay), []).append(table)
    for (_, decay), tables in ways.items():
        history = tables[0].history
        if history.num_tables > len(tables):
            own = history.fork()
            for table in tables:
                table.join(own)
            history = own
        numbers = tables[0].rule.numbers
        assert numbers is not None
        history.prepare(numbers(group, history.now + 1, decay))


def _update(pack: PackGradient, members: list[tuple[Table, RowGradient]]) -> None:
    plan = pack.plan
    parts = [gradient.parts[0] for _, gradient in members]
    first, last = parts[0].table, parts[-1].table
    begin, end = plan.ends[first], plan.ends[last + 1]
    bounds = plan.bounds[first : last + 2] - begin
    tables = [table for table, _ in members]
    runs, grad, weights = (
        (plan.order, plan.starts[begin : end + 1], plan.bags),
        pack.grad,
        pack.weights,
    )
    if pack.is_summed:
        each = torch.arange(begin, end + 1, dtype=torch.int32)
        runs, grad, weights = (each[:-1] - begin, each - begin, None), pack.sums[begin:end], None
    factors = torch.tensor([part.factor for part in parts], dtype=torch.float64)
    with _held(plan, begin, end, tables) as (targets, slots), counted_squares(tables) as squares:
        deferred.update(
            tables[0].rule.kind, targets, slots, bounds, *runs, weights, grad, factors, squares,
        )  # fmt: skip


@contextmanager
def _held(
    plan: TablePlan, begin: int, end: int, tables: Sequence[Table]
) -> Iterator[tuple[list[Target], Tensor]]:
    """Where the rows of tables that are stepped together are."""
    if plan.place is None:
        yield [table.target for table in tables], plan.slots[begin:end]
        return
    place = plan.place.part(begin, end)
    with place.keeper.held(place) as (records, slots):
        kept = (table for table in tables if isinstance(table, KeptTable))
        yield [table.target_in(records) for table in kept], slots


def gradient_of(table: Table) -> Tensor | None:
    with NO_TORCH_FUNCTION():
        return table.weight.grad
