"""accelerate: packs the embeddings of any PyTorch model, and updates their rows alone.

    model, optimizer = hotrows.accelerate(model, optimizer)

Both are changed in place, so the loop that trains them does not change.

    model        its class gets a `forward` that runs the captured graph (`acceleration.graph`)
    weights      of nn.Embedding and nn.EmbeddingBag become `TableParameter`s
    optimizer    its step begins with one of the tables, row by row, behind all hooks and the closure;
                 its state shows those of tables to whoever reads them

`restore` undoes it.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch.optim import Optimizer

from hotrows.acceleration import gradient_ops, l2_terms, linear, lookup_handlers
from hotrows.acceleration.batch_arguments import CallRecorder
from hotrows.acceleration.cached_group import CachedTableGroup
from hotrows.acceleration.cached_tables import cache_tables, why_not_cached
from hotrows.acceleration.ddp import Averaging
from hotrows.acceleration.dynamic_embedding import DynamicEmbedding
from hotrows.acceleration.forecast import Forecast, forecast
from hotrows.acceleration.gradient import RowGradient
from hotrows.acceleration.graph import capture
from hotrows.acceleration.lookup_plan import DEVICES
from hotrows.acceleration.optimizer_hooks import OptimizerHooks, gradient_of, share_histories
from hotrows.acceleration.parameter import CLASSES, capturing, intercept, release
from hotrows.acceleration.report import CaptureReport
from hotrows.acceleration.rules import SHARED, Rule, rule_of, sharing_memory
from hotrows.acceleration.table import RowTable, TableArguments
from hotrows.engine.caching import Caching
from hotrows.runtime.units import parse_bytes
from hotrows.runtime.user_warnings import warn

Optimizers = TypeVar("Optimizers", Optimizer, list, tuple)

_STATE = "_hotrows"
_NOT_UPDATED = "none of the optimizers given updates it"
_COMPUTED = "its weight is computed at every read: parametrized, or pruned"
_ASIDE = "the forecast expects PyTorch to be faster"
_NOT_COMPILED = "an accelerated model is captured by hotrows; hotrows.restore(model) first"
_HANDLERS = (gradient_ops, l2_terms, lookup_handlers)  # what they handle is registered by their import
SMALL = 1 << 18  # weights up to which a model's only table stays plain: PyTorch is as fast there


@dataclass(frozen=True)
class EmbeddingWeight:
    """An embedding weight of a model: its names, and its rule or the reason why it stays plain.

    why_in_memory: why its rows stay in memory where other tables are behind a cache. sparse: whether a
    module of it makes sparse gradients.
    """

    names: tuple[str, ...]
    weight: nn.Parameter
    optimizer: Optimizer | None
    rule: Rule | str
    why_in_memory: str = ""
    sparse: bool = False


def accelerate(
    model: nn.Module,
    optimizer: Optimizers,
    *,
    lazy: bool = False,
    packing: bool = True,
    fast_memory: int | str | None = None,
    store: str = "memory",
    linear_paths: bool = True,
    always: bool = False,
) -> tuple[nn.Module, Optimizers]:
    """Packs the lookups of a model's embeddings and updates their rows alone; returns both arguments.

    optimizer: one or several of PyTorch's; they decide how rows are updated, with their own meaning:
    where dense Adam or weight decay moves rows that no batch touched, those rows are brought up to
    date before they are read.
    lazy: rows that a batch does not touch do not change, as under SparseAdam: faster, and another
    algorithm.
    packing: whether the model's forward is captured, so that lookups are made together; False: each
    lookup is made by itself.
    fast_memory: bytes, or text like "2GiB", of the cache for rows in use; all rows are in `store`
    (`memory`, or `file:PATH`, a new folder). `lookahead` keeps training from waiting for them.
    None: every row is in memory.
    linear_paths: whether captured linear layers are multiplied by another library where that is twice as
    fast, as the rule of this processor has it; rounding alone changes. False: by PyTorch's default.
    always: handle tables also where the forecast, from rows and optimizer, expects PyTorch to be faster;
    otherwise they then stay plain, which a warning says.

    A table that cannot be handled stays plain PyTorch: `hotrows.explain` says which and why.

    >>> model = torch.nn.Sequential(torch.nn.Embedding(1000, 8), torch.nn.Linear(8, 1))
    >>> optimizer = torch.optim.Adam(model.parameters())
    >>> model, optimizer = hotrows.accelerate(model, optimizer)
    >>> model(torch.tensor([3, 4])).shape
    torch.Size([2, 1])
    """
    optimizers = _checked(model, optimizer)
    embeddings = find_embeddings(model, optimizers)
    if embeddings and all(x.rule == _NOT_UPDATED for x in embeddings):
        warn(
            "accelerate does nothing: the optimizer updates no embedding of this model; pass the one "
            "that was made with model.parameters()"
        )
    expected = _forecast(embeddings)
    is_asked_for = any((always, lazy, fast_memory))  # another algorithm, or more rows than fit
    if expected is not None and not (expected.pays or is_asked_for):
        warn(f"accelerate leaves the model plain: {expected}; accelerate(..., always=True) changes it")
        embeddings = [replace(x, rule=_ASIDE) if isinstance(x.rule, Rule) else x for x in embeddings]
    tables = _tables(embeddings, lazy, _caching(fast_memory, store))
    share_histories(tables)
    for module in model.modules():
        if isinstance(module, DynamicEmbedding):
            module.follow(*optimizers)
    # Put our forward before the model's own.
    state = Acceleration(model, optimizers, tables, embeddings, packing, linear_paths, expected)
    model.__dict__[_STATE] = state
    model.__class__ = _accelerated(type(model))
    return model, optimizer


def restore(model: nn.Module) -> nn.Module:
    """Makes an accelerated model and its optimizers plain again, with every row up to date.

    >>> model = torch.nn.Sequential(torch.nn.Embedding(1000, 8), torch.nn.Linear(8, 1))
    >>> fast, optimizer = hotrows.accelerate(model, torch.optim.Adam(model.parameters()))
    >>> type(hotrows.restore(fast)[0]).__name__
    'Embedding'
    """
    check_model(model, "hotrows.restore(model)")
    state = acceleration_of(model)
    if state is None:
        raise ValueError("this model is not accelerated: there is nothing to restore")
    state.undo()
    model.__class__ = type(model)._hotrows_plain  # type: ignore[attr-defined]
    del model.__dict__[_STATE]
    return model


def acceleration_of(model: nn.Module) -> Acceleration | None:
    """Returns the state of an accelerated model; None for any other."""
    return model.__dict__.get(_STATE)


def find_embeddings(model: nn.Module, optimizers: Sequence[Optimizer]) -> list[EmbeddingWeight]:
    """Returns the embedding weights of a model, each once, with their optimizers and rules."""
    names: dict[int, list[str]] = {}
    modules: dict[int, list[nn.Embedding | nn.EmbeddingBag]] = {}
    for path, module in model.named_modules(remove_duplicate=False):
        if isinstance(module, nn.Embedding | nn.EmbeddingBag):
            weight = module._parameters.get("weight")
            key = id(module if weight is None else weight)  # of a parametrized one, which is computed
            names.setdefault(key, []).append(f"{path}.weight" if path else "weight")
            modules.setdefault(key, []).append(module)
    settings = {
        id(p): (optimizer, group)
        for optimizer in optimizers
        for group in optimizer.param_groups
        for p in group["params"]
    }
    embeddings, shared = [], sharing_memory(model)
    for key, users in modules.items():
        parameter = users[0]._parameters.get("weight")
        weight = nn.Parameter(torch.empty(0)) if parameter is None else parameter
        optimizer, group = settings.get(key, (None, {}))
        rule: Rule | str = _why_plain(weight, optimizer, is_only=len(modules) == 1)
        rule = _COMPUTED if parameter is None else SHARED if key in shared else rule
        if not rule and optimizer is not None:
            rule = rule_of(optimizer, group, weight, any(user.sparse for user in users))
        why = why_not_cached(users, weight, rule) if isinstance(rule, Rule) else ""
        named, sparse = tuple(dict.fromkeys(names[key])), any(user.sparse for user in users)
        embeddings.append(EmbeddingWeight(named, weight, optimizer, rule, why, sparse))
    return embeddings


def _forecast(embeddings: Sequence[EmbeddingWeight]) -> Forecast | None:
    return forecast(
        (x.weight, x.rule, type(x.optimizer).__name__, x.sparse)
        for x in embeddings
        if isinstance(x.rule, Rule) and not x.rule.lazy
    )


def _why_plain(weight: nn.Parameter, optimizer: Optimizer | None, is_only: bool) -> str:
    """The reason why a weight stays plain PyTorch under any optimizer; "" where there is none."""
    if type(weight) not in CLASSES:
        return f"its weight is a {type(weight).__name__}, not a plain parameter"
    if not weight.requires_grad:
        return "frozen (requires_grad=False): its rows are looked up, and never change"
    if optimizer is None:
        return _NOT_UPDATED
    if weight.dim() == 2 and weight.shape[1] > 1 and weight.stride(1) != 1:
        return "its rows are not laid out one after another"
    if weight.device.type not in DEVICES:
        return f"it is on {weight.device}; tables are updated on {' and '.join(DEVICES)} alone"
    if is_only and weight.numel() <= SMALL:
        return f"the only table, and so small ({weight.numel():,} weights) that there is no gain"
    return ""


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
    if isinstance(fast_memory, bool) or not hasattr(fast_memory, "__index__") or fast_memory < 1:
        raise ValueError(
            f"fast_memory must be a number of bytes from 1 on, or text like '2GiB', not {fast_memory!r}"
        )
    return Caching(int(fast_memory), store)


def _tables(embeddings: Sequence[EmbeddingWeight], lazy: bool, caching: Caching | None) -> list[RowTable]:
    """Makes the tables of a model, in order; with `caching`, they move into stores."""
    arguments = [
        TableArguments(x.names, x.weight, replace(x.rule, lazy=lazy or x.rule.lazy), x.optimizer)
        for x in embeddings
        if isinstance(x.rule, Rule) and x.optimizer is not None
    ]
    cached: dict[int, RowTable] = {}
    if caching is not None:
        in_memory = {id(x.weight) for x in embeddings if x.why_in_memory}
        moving = [table for table in arguments if id(table.weight) not in in_memory]
        cached = {id(table.weight): table for table in cache_tables(moving, caching)}
    return [cached.get(id(table.weight)) or RowTable(*table) for table in arguments]


class Acceleration:
    """The state of an accelerated model: its tables, and the hooks of its optimizers.

    groups: of its tables that are behind caches. recorders: record the arguments of the model's calls.
    forecast: what was expected of its tables, if anything was.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizers: Sequence[Optimizer],
        tables: Sequence[RowTable],
        embeddings: Sequence[EmbeddingWeight],
        packing: bool,
        linear_paths: bool,
        forecast: Forecast | None = None,
    ) -> None:
        self.forecast = forecast
        self.optimizers, self.tables = tuple(optimizers), tuple(tables)
        self.embeddings = tuple(embeddings)
        self.report = CaptureReport(model)
        for table in self.tables:
            intercept(table.weight)
            table.weight.table = table  # type: ignore[attr-defined]
        groups = [table.group for table in self.tables if table.group is not None]
        self.groups: tuple[CachedTableGroup, ...] = tuple({id(group): group for group in groups}.values())
        self.recorders: list[CallRecorder] = []
        plain = type(model).forward
        self._hooks: list[OptimizerHooks] = []
        swaps = linear_paths and linear.gains(model)
        is_aside = forecast is not None and not self.tables
        captures = packing and ((len(embeddings) > 1 and not is_aside) or swaps)
        self._forward = capture(plain, self.report, self._trainer, swaps) if captures else plain
        self._averaging = Averaging(self.tables)
        names = [name for table in self.tables for name in table.names]
        model._ddp_params_and_buffers_to_ignore = names  # type: ignore[assignment]
        by_optimizer: dict[Optimizer, list[RowTable]] = {}
        for table in self.tables:
            by_optimizer.setdefault(table.optimizer, []).append(table)
        self._hooks = [OptimizerHooks(optimizer, updated) for optimizer, updated in by_optimizer.items()]

    def forward(self, model: nn.Module, args: tuple, kwargs: Mapping[str, Any]) -> Any:
        for recorder in self.recorders:
            recorder.record(args, kwargs)
        if torch._C._functorch.peek_interpreter_stack() is not None:
            self._prepare_transform()
        is_parallel = self._averaging.begin()
        with capturing():
            if not is_parallel:
                return self._forward(model, *args, **kwargs)
            with torch._dynamo.config.patch(optimize_ddp=False):  # it would cut the graph in pieces
                output = self._forward(model, *args, **kwargs)
        self._averaging.follow(output)
        return output

    def _trainer(self) -> threading.Thread | None:
        """The thread that trains the model; None: none yet, or no more."""
        threads = (hooks.thread for hooks in self._hooks)
        return next((x for x in threads if x is not None and x.is_alive()), None)

    def _prepare_transform(self) -> None:
        """Brings rows up to date for `torch.func`, which reads weights as they are stored."""
        if self.groups:
            raise RuntimeError(
                "torch.func cannot transform a model with tables behind a cache (fast_memory); "
                "accelerate it without fast_memory, or hotrows.restore(model) first"
            )
        with temporarily_clear_interpreter_stack():
            self.catch_up()

    @property
    def refused(self) -> dict[str, str]:
        """The tables that stay plain PyTorch, and why."""
        return {x.names[0]: x.rule for x in self.embeddings if isinstance(x.rule, str)}

    @property
    def in_memory(self) -> dict[str, str]:
        """The tables that stay in memory where other tables are behind a cache, and why."""
        tables = [x for x in self.embeddings if self.groups and x.why_in_memory]
        return {x.names[0]: x.why_in_memory for x in tables}

    def catch_up(self) -> None:
        """Brings every row of every table up to date."""
        for table in self.tables:
            table.catch_up()
        share_histories(self.tables)

    def undo(self) -> None:
        self.catch_up()
        plain = _plain_gradients(self.tables)
        for hooks in self._hooks:
            hooks.remove()
        for table, gradient in zip(self.tables, plain, strict=True):
            table.before_write()
            table.make_plain()
            release(table.weight)
            del table.weight.table  # type: ignore[attr-defined]
            table.weight.grad = gradient
        for group in self.groups:
            group.close()


def _plain_gradients(tables: Sequence[RowTable]) -> list[Tensor | None]:
    """The gradients of tables in plain PyTorch; None where a step has made them unknown."""
    gradients = [gradient_of(table) for table in tables]
    lost = [isinstance(gradient, RowGradient) and gradient.content.is_lost for gradient in gradients]
    if any(lost):
        names = ", ".join(table.names[0] for table, is_lost in zip(tables, lost, strict=True) if is_lost)
        warn(
            f"the gradients of {names} are None now: they held a multiple of the weights as they were "
            f"before optimizer.step(), which are no more"
        )
    return [
        None if is_lost else gradient.to_dense() if isinstance(gradient, RowGradient) else gradient
        for gradient, is_lost in zip(gradients, lost, strict=True)
    ]


# ---- the model


def check_model(model: Any, call: str) -> None:
    """Refuses what is no model in the first argument of a call."""
    if not isinstance(model, nn.Module):
        kind = f"the class {model.__name__}" if isinstance(model, type) else type(model).__name__
        raise ValueError(f"model must be an object of torch.nn.Module, not {kind}; the call is {call}")


def _checked(model: Any, optimizer: Any) -> list[Optimizer]:
    """The optimizers; refuses what is no plain model with optimizers of PyTorch."""
    check_model(model, "hotrows.accelerate(model, optimizer)")
    if isinstance(model, nn.parallel.DistributedDataParallel | nn.DataParallel):
        raise ValueError(
            f"accelerate takes the model before it is wrapped in {type(model).__name__}: "
            f"accelerate(model, optimizer), then {type(model).__name__}(model)"
        )
    if _STATE in model.__dict__:
        raise ValueError("this model is accelerated already; hotrows.restore(model) undoes it")
    optimizers = list(optimizer) if isinstance(optimizer, Iterable) else [optimizer]
    for one in optimizers:
        if not isinstance(one, Optimizer):
            raise ValueError(
                f"optimizer must be a torch.optim.Optimizer, or a list of them, not {type(one).__name__}"
            )
    return optimizers


def _accelerated(plain: type[nn.Module]) -> type[nn.Module]:
    """Makes the class of an accelerated model: a subclass whose `forward` is ours, and copies plain."""

    @torch.compiler.disable(reason=_NOT_COMPILED)
    @functools.wraps(plain.forward)
    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return self.__dict__[_STATE].forward(self, args, kwargs)

    def deep_copy(self: nn.Module, memo: dict[int, Any]) -> nn.Module:
        """Returns a plain model of equal values."""
        import copy

        other = plain.__new__(plain)
        memo[id(self)] = other
        attributes = {name: x for name, x in self.__dict__.items() if name != _STATE}
        other.__dict__.update(copy.deepcopy(attributes, memo))
        return other

    def reduced(self: nn.Module, protocol: Any) -> Any:
        """Pickles as a plain model."""
        attributes = {name: x for name, x in self.__dict__.items() if name != _STATE}
        return _new_plain, (plain,), attributes

    def prepare_script(self: nn.Module) -> nn.Module:
        """Refuses `torch.jit.script`, which would read the source of our `forward`."""
        raise RuntimeError(f"torch.jit.script cannot read it: {_NOT_COMPILED}")

    # A class of them, which looks like the plain one.
    members = {
        "forward": forward,
        "__deepcopy__": deep_copy,
        "__reduce_ex__": reduced,
        "__prepare_scriptable__": prepare_script,
        "__module__": plain.__module__,
        "__qualname__": plain.__qualname__,
        "__doc__": plain.__doc__,
        "_hotrows_plain": plain,
    }
    return type(plain.__name__, (plain,), members)


def _new_plain(plain: type[nn.Module]) -> nn.Module:
    return plain.__new__(plain)
