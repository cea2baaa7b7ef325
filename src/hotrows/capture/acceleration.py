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

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

from hotrows.capture import lookup, penalty, ranks, stepping  # noqa: F401  (they say what they handle)
from hotrows.capture.function import capture
from hotrows.capture.gradient import RowGradient
from hotrows.capture.kept import ToKeep, keep, why_not_kept
from hotrows.capture.parameter import TableParameter, capturing
from hotrows.capture.report import Report
from hotrows.capture.rules import Rule, rule_of, with_lazy
from hotrows.capture.stepping import gradient_of, share_histories
from hotrows.capture.table import Table
from hotrows.planning.budget import parse_bytes
from hotrows.tiers import Caching

if TYPE_CHECKING:
    from hotrows.capture.ahead import Seen

Optimizers = TypeVar("Optimizers", Optimizer, list, tuple)

_STATE = "_hotrows"
SMALL = 1 << 18
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
            for hook in stepping.hook(
                optimizer, [t for t in self.tables if t.optimizer is optimizer], lambda: self.group
            )
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
        gradients = [gradient_of(table) for table in self.tables]
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
