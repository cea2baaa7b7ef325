"""Hooks of an optimizer: steps of tables at the beginning of its own, and plain states in its state_dict.

Tables that were looked up together are stepped in one call. A table whose gradient is dense is stepped
by the optimizer, with every row up to date.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from hotrows.acceleration.errors import refuse_capture
from hotrows.acceleration.exclusive import CAPTURE, exclusive
from hotrows.acceleration.gradient import RowGradient
from hotrows.acceleration.moments import update
from hotrows.acceleration.pack_gradient import PackGradient
from hotrows.acceleration.parameter import NO_TORCH_FUNCTION, TableParameter, intercept, release
from hotrows.acceleration.rules import BY_OPTIMIZER, rule_of_settings
from hotrows.acceleration.table import RowTable
from hotrows.acceleration.table_plan import TablePlan
from hotrows.acceleration.table_state import TableState
from hotrows.ops.deferred import Target
from hotrows.ops.deferred.history import MAX_DEFERRED_STEPS, StepHistory
from hotrows.runtime import device as devices
from hotrows.runtime.transfer import copied


def share_histories(tables: Iterable[RowTable]) -> None:
    """Lets tables of equal rule and step number share one history until their steps differ."""
    shared: dict[tuple, StepHistory] = {}
    for table in tables:
        if table.rule.kind != BY_OPTIMIZER:
            key = (id(table.optimizer), table.rule, table.history.now)
            if table.history.num_recorded == 0:
                table.join(shared.setdefault(key, StepHistory(table.history.now)))


class OptimizerHooks:
    """Steps tables within each step of an optimizer; `remove` takes the hooks away.

    thread: the one that has called `step`.
    """

    thread: threading.Thread | None = None

    def __init__(self, optimizer: Optimizer, tables: Sequence[RowTable]) -> None:
        self._tables = tuple(tables)
        self._by_weight = {id(table.weight): table for table in tables}
        self._hidden: list[tuple[Tensor, Tensor]] = []  # weights and gradients that are stepped
        self._skipped: list[tuple[Tensor, Tensor]] = []  # those of a step that is none
        self._num_entries = 0  # of the optimizer's state before its step
        self._handles: list[Any] = [
            optimizer.register_step_post_hook(self._after_step),
            optimizer.register_step_pre_hook(self._before_step),
            optimizer.register_state_dict_post_hook(self._plain_states),
            optimizer.register_load_state_dict_pre_hook(self._lend),
            optimizer.register_load_state_dict_post_hook(self._refresh),
        ]
        first = self._handles[0].id  # so that the user's hooks see the gradients
        optimizer._optimizer_step_post_hooks.move_to_end(first, last=False)  # type: ignore[attr-defined]

    def remove(self) -> None:
        self._forget_failed_step()
        for handle in self._handles:
            handle.remove()

    def _before_step(self, optimizer: Optimizer, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
        """Lets the optimizer step the tables once it has called its closure.

        That is behind every hook, whoever registers it. Optimizers with a rule call a closure once.
        """
        refuse_capture(table.weight for table in self._tables)
        self.thread = threading.current_thread()
        with CAPTURE:
            pass
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        self._forget_failed_step()
        has_stepped = False

        def step_tables_too() -> Any:
            nonlocal has_stepped
            loss = None if closure is None else closure()
            if not has_stepped:  # a hook may call it again
                has_stepped = True
                self._step(optimizer)
            return loss

        others = {name: value for name, value in kwargs.items() if name != "closure"}
        return (optimizer, step_tables_too, *args[2:]), others

    @exclusive
    def _step(self, optimizer: Optimizer) -> None:
        with NO_TORCH_FUNCTION(), torch.no_grad():
            self._refresh(optimizer)
            self._num_entries = len(optimizer.state)
            if getattr(optimizer, "found_inf", None) is None or not self._is_skipped(optimizer):
                step_tables(optimizer, self._by_weight, self._hidden)

    def _lend(self, optimizer: Optimizer, state: dict) -> None:
        """Brings states up to date, which may be among those that are loaded."""
        for table in self._tables:
            if table.entry is not None:
                table.entry.lend()

    @exclusive
    def _refresh(self, optimizer: Optimizer) -> None:
        """Takes over what others have done to the optimizer's settings and states."""
        is_changed = False
        for group in optimizer.param_groups:
            rule = rule_of_settings(optimizer, group)
            for weight in group["params"]:
                if id(weight) in self._by_weight:
                    is_changed |= self._by_weight[id(weight)].refresh(rule)
        if is_changed:
            share_histories(self._tables)

    def _is_skipped(self, optimizer: Any) -> bool:
        """Does what `GradScaler` leaves to fused optimizers: gradients are to be divided by its scale, or
        not to be used at all, where some are not finite."""
        is_skipped, scale = bool(optimizer.found_inf), getattr(optimizer, "grad_scale", None)
        for table in self._tables:
            weight, gradient = table.weight, table.weight.grad
            if not isinstance(gradient, RowGradient):
                continue
            if is_skipped:
                self._skipped.append((weight, gradient))
                weight.grad = None
            elif scale is not None:
                weight.grad = gradient.times(1 / float(scale))
        return is_skipped

    @exclusive
    def _after_step(self, optimizer: Optimizer, args: tuple, kwargs: dict) -> None:
        is_entered = False
        with NO_TORCH_FUNCTION():
            for weight, gradient in self._hidden:
                table = self._by_weight[id(weight)]
                if isinstance(weight, TableParameter):
                    assert isinstance(gradient, RowGradient)
                    gradient.is_spent = True
                    weight.grad = gradient
                    if table.entry is None and table.has_states:
                        table.enter({})
                        is_entered = True
                else:
                    intercept(weight)
                    table.stepped_densely()
            if is_entered:  # in the order of parameters, as PyTorch makes them
                new = set(list(optimizer.state)[self._num_entries :])
                for weight in (weight for group in optimizer.param_groups for weight in group["params"]):
                    if weight in new:
                        optimizer.state[weight] = optimizer.state.pop(weight)
            for weight, gradient in self._skipped:
                weight.grad = gradient
        self._hidden.clear()
        self._skipped.clear()
        if any(table.history.num_recorded >= MAX_DEFERRED_STEPS for table in self._tables):
            for table in self._tables:
                table.catch_up()
            share_histories(self._tables)

    @exclusive
    def _forget_failed_step(self) -> None:
        """Ends a step that failed behind its tables' own."""
        for weight, _ in self._hidden:
            if not isinstance(weight, TableParameter):
                intercept(weight)
                self._by_weight[id(weight)].stepped_densely()
        self._hidden.clear()
        self._skipped.clear()

    @exclusive
    def _plain_states(self, optimizer: Optimizer, state: dict) -> None:
        """Gives plain dictionaries to whoever calls state_dict(); those of cached tables are copies."""
        tables = {id(table.entry): table for table in self._tables}
        for key, entry in state["state"].items():
            if isinstance(entry, TableState) and id(entry) in tables:
                is_lent, table = entry.is_lent, tables[id(entry)]
                state["state"][key] = dict(entry)
                if not is_lent:
                    table.release_states()
        share_histories(self._tables)


def step_tables(
    optimizer: Optimizer, tables: Mapping[int, RowTable], hidden: list[tuple[Tensor, Tensor]]
) -> None:
    """Steps the tables that have a gradient, and appends (weight, gradient) of each to `hidden`.

    Those whose gradient is dense, or whose settings have no rule, are left to the optimizer, with every
    row up to date. tables: by the `id()` of their weights.
    """
    # No gradient may be used twice.
    packs: dict[tuple[int, int], tuple[list[tuple[RowTable, RowGradient]], Mapping[str, Any]]] = {}
    for gradient in map(gradient_of, tables.values()):
        if isinstance(gradient, RowGradient):
            gradient.check_unspent()
    is_sparse = isinstance(optimizer, torch.optim.SparseAdam)
    with NO_TORCH_FUNCTION(), torch.no_grad():
        for settings in optimizer.param_groups:
            for weight in settings["params"]:
                table = tables.get(id(weight))
                if table is None or weight.grad is None:
                    continue
                gradient = weight.grad
                hidden.append((weight, gradient))
                table.moments.settle(before=table.history.now)
                if table.multiples:
                    is_row_gradient = isinstance(gradient, RowGradient)
                    table.materialize_multiples(but=gradient.content if is_row_gradient else None)
                is_dense = not isinstance(gradient, RowGradient) or gradient.dense is not None
                if table.is_left_plain or is_dense:
                    _leave_to_optimizer(table, gradient, is_sparse)
                    continue
                weight.grad = None
                # Collect gradients of one pack, which are updated at once.
                if len(gradient.parts) == 1 and table.rule.kind != BY_OPTIMIZER:
                    pack = gradient.parts[0].pack
                    members, _ = packs.setdefault((id(pack), id(settings)), ([], settings))
                    members.append((table, gradient))
                else:
                    rows, sums = gradient.coalesced()
                    table.step(rows, sums, gradient.decay, settings)
        for members, group_settings in packs.values():
            _step_pack(members, group_settings)


def _leave_to_optimizer(table: RowTable, gradient: Tensor, is_sparse: bool) -> None:
    if table.group is not None:
        why = (
            "has a state or settings in its optimizer that rows cannot be stepped with: the optimizer's "
            "state or a parameter group was changed. Undo that"
            if table.is_left_plain
            else "has a dense gradient, which the optimizer cannot step there: something has read or "
            "learned from all of the table. Leave that out"
        )
        raise RuntimeError(
            f"table {table.names[0]} is kept behind a cache and {why}, or accelerate without fast_memory"
        )
    table.catch_up()
    table.moments.settle()
    release(table.weight)  # so that PyTorch takes its usual path
    if isinstance(gradient, RowGradient):
        is_sparse = is_sparse and not gradient.decay and gradient.dense is None
        gradient = _sparse(gradient) if is_sparse else gradient.to_dense()
    table.weight.grad = gradient


def _sparse(gradient: RowGradient) -> Tensor:
    rows, sums = gradient.coalesced()
    return torch.sparse_coo_tensor(rows[None], sums, gradient.shape)


def _step_pack(members: list[tuple[RowTable, RowGradient]], group: Mapping[str, Any]) -> None:
    """Makes one step of tables that were looked up together, in one call per run of adjacent tables."""
    pack = members[0][1].parts[0].pack
    _record_step(members, group)
    members.sort(key=lambda member: member[1].parts[0].table)
    begin = 0
    for end in range(1, len(members) + 1):
        numbers = [members[i][1].parts[0].table for i in (end - 1, end) if i < len(members)]
        if end == len(members) or numbers[1] != numbers[0] + 1:
            _update(pack, members[begin:end])
            begin = end
    for history in {id(table.history): table.history for table, _ in members}.values():
        history.now += 1
    for table, _ in members:
        if table.rule.lazy:
            table.history.forget()


def _record_step(members: list[tuple[RowTable, RowGradient]], group: Mapping[str, Any]) -> None:
    """Records the step in the tables' histories; tables whose steps differ stop sharing one."""
    alike: dict[tuple[int, float], list[RowTable]] = {}
    for table, gradient in members:
        table.make_states()
        alike.setdefault((id(table.history), gradient.decay), []).append(table)
    for (_, decay), tables in alike.items():
        history = tables[0].history
        if history.num_tables > len(tables):
            fork = history.fork()
            for table in tables:
                table.join(fork)
            history = fork
        numbers = tables[0].rule.numbers
        assert numbers is not None
        history.record(numbers(group, history.now + 1, decay))


def _update(pack: PackGradient, members: list[tuple[RowTable, RowGradient]]) -> None:
    plan = pack.plan
    parts = [gradient.parts[0] for _, gradient in members]
    first, last = parts[0].table, parts[-1].table
    bounds = plan.bounds[first : last + 2]
    tables = [table for table, _ in members]
    runs: tuple[Tensor, Tensor, Tensor | None]
    if pack.is_summed:
        starts = torch.arange(plan.pack.num_rows + 1, dtype=torch.int32, device=bounds.device)
        runs, grad, weights = (starts[:-1], starts, None), pack.sums, None
    else:
        runs = plan.pack.order, plan.pack.starts, plan.pack.bags
        grad, weights = pack.grad, pack.weights
    factors = _factors(tuple(part.factor for part in parts), bounds.device)
    if plan.locations is not None:  # the rows of these tables alone
        begin, end = plan.ends[first], plan.ends[last + 1]
        bounds = bounds - begin
        runs = runs[0], runs[1][begin : end + 1], runs[2]
    with _writing(plan, first, last, tables) as (targets, slots):
        kind = tables[0].rule.kind
        update(kind, tables, targets, slots, bounds, *runs, weights, grad, factors)


def _writing(
    plan: TablePlan, first: int, last: int, tables: Sequence[RowTable]
) -> AbstractContextManager[tuple[list[Target], Tensor]]:
    """Within: the targets of tables `first` to `last`, and slots: of all rows; with a cache, theirs."""
    if plan.locations is None:
        return nullcontext(([table.target for table in tables], plan.pack.slots))
    return plan.locations.between(plan.ends[first], plan.ends[last + 1]).writing(tables)


@functools.lru_cache(maxsize=64)
def _factors(factors: tuple[float, ...], device: torch.device) -> Tensor:
    """[T] float64 on a device."""
    return copied(devices.device_of(device), torch.tensor(factors, dtype=torch.float64))


def gradient_of(table: RowTable) -> Tensor | None:
    with NO_TORCH_FUNCTION():
        return table.weight.grad
