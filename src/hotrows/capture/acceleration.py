"""accelerate: packs the embeddings of any PyTorch model, and updates their rows alone.

    model, optimizer = hotrows.accelerate(model, optimizer)

The same objects come back, changed in place: the loop that trains them stays as it is.

    model        its class gets a `forward` that runs the captured graph (`capture.graph`)
    weights      of nn.Embedding and nn.EmbeddingBag become `TableParameter`s
    optimizer    a hook before each step updates the tables, row by row, and hides them from the rest;
                 hooks around its state_dict bring all rows up to date

`restore` undoes it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from hotrows.capture import lookup, penalty, ranks  # noqa: F401  (they say what they handle)
from hotrows.capture.function import capture
from hotrows.capture.gradient import PackGradient, RowGradient, TablePlan, settle
from hotrows.capture.history import History
from hotrows.capture.kept import KeptTable, ToKeep, keep, why_not_kept
from hotrows.capture.parameter import NO_TORCH_FUNCTION, TableParameter, capturing
from hotrows.capture.report import Report
from hotrows.capture.rules import BY_OPTIMIZER, Rule, rule_of, with_lazy
from hotrows.capture.table import Table, counted_squares
from hotrows.ops import deferred
from hotrows.ops.deferred import Target
from hotrows.planning.budget import parse_bytes
from hotrows.tiers import Caching

if TYPE_CHECKING:
    from hotrows.capture.ahead import Seen

Optimizers = TypeVar("Optimizers", Optimizer, list, tuple)

_STATE = "_hotrows"
SMALL = 1 << 16
"""Weights up to which a model's only table stays plain: PyTorch's own steps are as fast there."""


@dataclass(frozen=True)
class Found:
    """An embedding weight of a model: its names there, and its rule or the reason why it stays plain.

    stays: why its rows would stay in memory where those of others are kept behind a cache.
    """

    names: tuple[str, ...]
    weight: nn.Parameter
    optimizer: Optimizer | None
    rule: Rule | str
    stays: str = ""


def accelerate(
    model: nn.Module,
    optimizer: Optimizers,
    *,
    lazy: bool = False,
    packing: bool = True,
    fast_memory: int | str | None = None,
    store: str = "memory",
) -> tuple[nn.Module, Optimizers]:
    """Packs the lookups of a model's embeddings and updates their rows alone; returns both arguments.

    optimizer: one or several of PyTorch's; they decide how rows are updated, with their own meaning:
    where dense Adam or weight decay moves rows that no batch touched, those rows are caught up before
    anyone reads them.
    lazy: rows that a batch does not touch stay as they are, as under SparseAdam: faster, and another
    algorithm.
    packing: whether the model's forward is captured, so that lookups are made together; without it,
    each is made by itself.

    fast_memory: bytes, or text like "2GiB": rows live in `store` (`memory`, or `file:PATH`, a new
    folder), and those that are used are held in so much memory. `lookahead` keeps training from
    waiting for them. None: every row is in memory.

    A table that cannot be handled stays plain PyTorch: `hotrows.explain` says which and why.
    """
    if isinstance(model, nn.parallel.DistributedDataParallel | nn.DataParallel):
        raise ValueError(
            f"accelerate takes the model before it is wrapped in {type(model).__name__}: "
            f"accelerate(model, optimizer), then {type(model).__name__}(model)"
        )
    if _STATE in model.__dict__:
        raise ValueError("this model is accelerated already; hotrows.restore(model) undoes it")
    optimizers = [optimizer] if isinstance(optimizer, Optimizer) else list(optimizer)
    for of in optimizers:
        if not isinstance(of, Optimizer):
            raise ValueError(
                f"optimizer must be a torch.optim.Optimizer, or a list of them, not {type(of).__name__}"
            )
    found = find(model, optimizers)
    tables = _tables(found, lazy, _caching(fast_memory, store))
    share_histories(tables)
    state = Acceleration(model, optimizers, tables, found, packing)
    model.__dict__[_STATE] = state
    model.__class__ = _accelerated(type(model))
    return model, optimizer


def restore(model: nn.Module) -> nn.Module:
    """Makes an accelerated model plain again, and its optimizers; every row is up to date."""
    state = acceleration_of(model)
    if state is None:
        raise ValueError("this model is not accelerated: there is nothing to restore")
    state.undo()
    model.__class__ = type(model)._hotrows_plain  # type: ignore[attr-defined]
    del model.__dict__[_STATE]
    return model


def acceleration_of(model: nn.Module) -> Acceleration | None:
    """What is known of an accelerated model."""
    return model.__dict__.get(_STATE)


def find(model: nn.Module, optimizers: Sequence[Optimizer]) -> list[Found]:
    """The embedding weights of a model, each once, with what updates them."""
    names: dict[int, list[str]] = {}
    weights: dict[int, nn.Parameter] = {}
    modules: dict[int, list[nn.Module]] = {}
    sparse: set[int] = set()
    for path, module in model.named_modules(remove_duplicate=False):
        if isinstance(module, nn.Embedding | nn.EmbeddingBag):
            key = id(module.weight)
            weights[key] = module.weight  # type: ignore[assignment]
            names.setdefault(key, []).append(f"{path}.weight" if path else "weight")
            modules.setdefault(key, []).append(module)
            if module.sparse:
                sparse.add(key)
    group_of = {
        id(p): (of, group)
        for of in optimizers
        for group in of.param_groups
        for p in group["params"]
    }
    found = []
    for key, weight in weights.items():
        of, group = group_of.get(key, (None, {}))
        rule: Rule | str
        if type(weight) is not nn.Parameter:
            rule = f"its weight is a {type(weight).__name__}, not a plain parameter"
        elif not weight.requires_grad:
            rule = "frozen (requires_grad=False): its rows are looked up, and never change"
        elif of is None:
            rule = "none of the optimizers given updates it"
        elif weight.dim() == 2 and weight.shape[1] > 1 and weight.stride(1) != 1:
            rule = "its rows are not laid out one after another"
        elif weight.device.type != "cpu":
            rule = f"it is on {weight.device}; tables are updated on the CPU so far"
        elif len(weights) == 1 and weight.numel() <= SMALL:
            rule = (
                f"the only table, and so small ({weight.numel():,} weights) that there is no gain"
            )
        else:
            rule = rule_of(of, group, weight, key in sparse)
        stays = why_not_kept(modules[key], weight, rule) if isinstance(rule, Rule) else ""
        found.append(Found(tuple(dict.fromkeys(names[key])), weight, of, rule, stays))
    return found


def _caching(fast_memory: int | str | None, store: str) -> Caching | None:
    if fast_memory is None:
        if store != "memory":
            raise ValueError(f"store={store!r} needs fast_memory, the bytes of rows held in memory")
        return None
    if isinstance(fast_memory, str):
        try:
            fast_memory = parse_bytes(fast_memory)
        except ValueError as error:
            raise ValueError(f"fast_memory: {error}") from None
    return Caching(int(fast_memory), store)


def _tables(found: Sequence[Found], lazy: bool, caching: Caching | None) -> list[Table]:
    """The tables of a model, in order; they move into stores where these are asked for."""
    given = [
        ToKeep(of.names, of.weight, with_lazy(of.rule) if lazy else of.rule, of.optimizer)
        for of in found
        if isinstance(of.rule, Rule) and of.optimizer is not None
    ]
    stays = {id(of.weight) for of in found if caching is None or of.stays}
    moving = [of for of in given if id(of.weight) not in stays]
    kept = {id(of.weight): of for of in (keep(moving, caching) if caching else [])}
    return [
        kept.get(id(of.weight)) or Table(of.names, of.weight, of.rule, of.optimizer) for of in given
    ]


def share_histories(tables: Iterable[Table]) -> None:
    """Tables that stand at the same step go on with one history until their steps differ."""
    shared: dict[tuple, History] = {}
    for table in tables:
        if table.rule.kind != BY_OPTIMIZER:
            key = (id(table.optimizer), table.rule, table.history.now)
            if table.history.num_kept == 0:
                table.join(shared.setdefault(key, History(table.history.now)))


class Acceleration:
    """What stands behind an accelerated model: its tables, and the hooks of its optimizers."""

    def __init__(
        self,
        model: nn.Module,
        optimizers: Sequence[Optimizer],
        tables: Sequence[Table],
        found: Sequence[Found],
        packing: bool,
    ) -> None:
        self.optimizers, self.tables, self.found = tuple(optimizers), tuple(tables), tuple(found)
        self.report = Report(model)
        for table in self.tables:
            table.weight.__class__ = TableParameter
            table.weight.table = table  # type: ignore[attr-defined]
        self.keepers = tuple({id(t.keeper): t.keeper for t in self.tables if t.keeper}.values())
        self.seen: list[Seen] = []  # of look aheads that learn how the model is called
        plain = type(model).forward
        self._forward = capture(plain, self.report) if packing and self._gains() else plain
        self.group: dist.ProcessGroup | None = None
        names = [name for table in self.tables for name in table.names]
        model._ddp_params_and_buffers_to_ignore = names  # type: ignore[assignment]
        self._hooks = [
            hook
            for optimizer in self.optimizers
            for hook in _hook(self, optimizer, [t for t in self.tables if t.optimizer is optimizer])
        ]

    def _gains(self) -> bool:
        """Whether there is anything to pack."""
        return len(self.found) > 1

    def forward(self, model: nn.Module, args: tuple, kwargs: Mapping[str, Any]) -> Any:
        for seen in self.seen:
            seen.see(args, kwargs)
        group = ranks.active_group()
        if group is not None and self.group is not group:
            self.group = group
            ranks.share_weights(list(self.tables), group)
        with capturing():
            if group is None:
                return self._forward(model, *args, **kwargs)
            with torch._dynamo.config.patch(optimize_ddp=False):  # it would cut the graph in pieces
                return self._forward(model, *args, **kwargs)

    @property
    def refused(self) -> dict[str, str]:
        """The tables that stay plain PyTorch, and why."""
        return {of.names[0]: of.rule for of in self.found if isinstance(of.rule, str)}

    @property
    def in_memory(self) -> dict[str, str]:
        """Where tables are kept behind a cache: those that are not, and why."""
        tables = [of for of in self.found if self.keepers and of.stays]
        return {of.names[0]: of.stays for of in tables}

    def plain_forward(self, model: nn.Module) -> Callable[..., Any]:
        """The model's own forward, to be captured anew."""
        return type(model)._hotrows_plain.forward.__get__(model)  # type: ignore[attr-defined]

    def catch_up(self) -> None:
        """Brings every row of every table up to date."""
        for table in self.tables:
            table.catch_up()
        share_histories(self.tables)

    def undo(self) -> None:
        self.catch_up()
        gradients = [_gradient_of(table) for table in self.tables]
        plain = [of.to_dense() if isinstance(of, RowGradient) else of for of in gradients]
        for hook in self._hooks:
            hook.remove()
        for table, gradient in zip(self.tables, plain, strict=True):
            table.move_out()
            table.weight.__class__ = nn.Parameter
            del table.weight.table  # type: ignore[attr-defined]
            table.weight.grad = gradient
        for keeper in self.keepers:
            keeper.close()


# ---- the model


def _accelerated(plain: type[nn.Module]) -> type[nn.Module]:
    """The class of an accelerated model: its own, but for `forward` and copies."""

    @torch.compiler.disable
    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return self.__dict__[_STATE].forward(self, args, kwargs)

    def deep_copy(self: nn.Module, memo: dict[int, Any]) -> nn.Module:
        """A plain model of the same values."""
        import copy

        other = plain.__new__(plain)
        memo[id(self)] = other
        kept = {name: of for name, of in self.__dict__.items() if name != _STATE}
        other.__dict__.update(copy.deepcopy(kept, memo))
        return other

    def reduced(self: nn.Module, protocol: Any) -> Any:
        """Saved as a plain model."""
        kept = {name: of for name, of in self.__dict__.items() if name != _STATE}
        return _plain_again, (plain,), kept

    members = {
        "forward": forward,
        "__deepcopy__": deep_copy,
        "__reduce_ex__": reduced,
        "__module__": plain.__module__,
        "__qualname__": plain.__qualname__,
        "__doc__": plain.__doc__,
        "_hotrows_plain": plain,
    }
    return type(plain.__name__, (plain,), members)


def _plain_again(plain: type[nn.Module]) -> nn.Module:
    return plain.__new__(plain)


# ---- the optimizer


def _hook(of: Acceleration, optimizer: Optimizer, tables: Sequence[Table]) -> list[Any]:
    """Puts the tables' steps in front of an optimizer's own."""
    by_weight = {id(table.weight): table for table in tables}
    hidden: list[tuple[Tensor, Tensor]] = []

    def before(optimizer: Optimizer, args: tuple, kwargs: dict) -> tuple[tuple, dict] | None:
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        if closure is not None:  # gradients first
            with torch.enable_grad():
                loss = closure()
            args, kwargs = (optimizer, lambda: loss), {}
        hidden.extend(step_tables(optimizer, by_weight, of.group))
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
    for gradient in map(_gradient_of, tables.values()):
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


def _gradient_of(table: Table) -> Tensor | None:
    with NO_TORCH_FUNCTION():
        return table.weight.grad
