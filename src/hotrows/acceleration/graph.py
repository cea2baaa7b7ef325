"""The torch.compile backend "hotrows": the lookups of a graph, as far as their ids allow, as one call.

Dynamo passes a model to the backend as a graph of PyTorch's own calls, before autograd. The
backend finds the lookups, moves the nodes that their ids need to the front, and makes one `lookup` of
them; the remaining graph then runs call by call, as PyTorch runs it, so that no other result changes.

    x0 ─ slice ─ embedding ─┐                         x0 ─ slice ─┐
    x1 ─ slice ─ embedding ─┼─ cat ─ linear    ->     x1 ─ slice ─┼─ lookup ─ cat ─ linear ─ ...
    (linear ─ argmax) ─ embedding ─ ...                           └ (the dependent lookup does not move)

A node moves forward only. It stays behind every node that changes memory that it reads, or that changes a
mode (autograd on or off, autocast). So each lookup has an earliest place, and may be made anywhere
between that and its own place; a scan from the left finds the fewest calls that make all of them.

`capture` makes such graphs of a Python function. Dynamo stores compiled code at the code object of a
function, for at most eight kinds of inputs each. Models share the code of their class, so each captured
function gets a code object of its own.
"""

import inspect
import itertools
import logging
import operator
import re
import threading
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial, wraps
from pathlib import Path
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor
from torch._dynamo import config as dynamo_config
from torch.fx import Graph, GraphModule, Node

from hotrows.acceleration import nodes
from hotrows.acceleration.bags import Lookup
from hotrows.acceleration.exclusive import CAPTURE
from hotrows.acceleration.linear import swap_products
from hotrows.acceleration.lookup import lookup
from hotrows.acceleration.lookup_nodes import LookupNode, alone, find_lookups, is_tensor
from hotrows.acceleration.report import CapturedGraph, CaptureReport, SingleLookup, TableRead


def hotrows(graph_module: GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    """Compiles a graph for `torch.compile(model, backend="hotrows")`."""
    return rewrite(graph_module, example_inputs, CaptureReport())


def rewrite(
    graph_module: GraphModule,
    example_inputs: Sequence[Any],
    report: CaptureReport,
    linear_paths: bool = False,
) -> Callable[..., Any]:
    """Packs the lookups of a graph and writes them into `report`; returns a callable that runs it.

    linear_paths: whether linear layers take the paths of this processor's rule.

    RuntimeError: a part that is run again in backward has lookups. Dynamo makes arguments of its tables,
    whose changes PyTorch refuses then, and compares its ops with those of the first run.
    """
    for part in graph_module.children():
        if isinstance(part, GraphModule) and any(find_lookups(part.graph)):
            raise RuntimeError("torch.utils.checkpoint has lookups in it, which are not packed")
    lookups = list(find_lookups(graph_module.graph))
    packs = pack(graph_module.graph, lookups)
    for part in graph_module.modules():
        if isinstance(part, GraphModule):
            _intercept_data(part)
    names = _names(graph_module.graph, example_inputs, report)
    num_linears = swap_products(graph_module.graph) if linear_paths else 0
    report.add(_captured(graph_module, lookups, packs, names, num_linears))
    if packs or num_linears:
        graph_module.recompile()
    forward = graph_module.forward
    if any(getattr(type(value), "intercepts_in_graphs", False) for value in example_inputs):
        return _with_intercepts(forward)
    return forward


def _intercept_data(graph_module: GraphModule) -> None:
    """Lets `weight.data`, read or assigned, be what it is outside of graphs, where a table brings its
    rows up to date first: dynamo's own functions for it ask no `__torch_function__`."""
    intercepted = {torch._C._autograd._get_data_attr: _data_of, Tensor.set_: _set_data_of}  # type: ignore[attr-defined]
    replaced = [node for node in graph_module.graph.nodes if node.target in intercepted]
    for node in replaced:
        node.target = intercepted[node.target]
        if node.target is _set_data_of:
            for user in list(node.users):  # which takes back the version that Tensor.set_ counts
                graph_module.graph.erase_node(user)
    if replaced:
        graph_module.recompile()


def _data_of(tensor: Any) -> Any:
    return tensor.data


def _set_data_of(tensor: Any, data: Any) -> None:
    tensor.data = data


def _with_intercepts(forward: Callable[..., Any]) -> Callable[..., Any]:
    """Runs `forward` with `__torch_function__` enabled.

    Dynamo disables it (from 2.13 on) in graphs for which it traced such a method, since the graph should
    contain what the method does. A class with `intercepts_in_graphs` adds nothing while dynamo traces,
    and intercepts when the graph runs.
    """

    def run(*inputs: Any) -> Any:
        with torch._C._EnableTorchFunction():
            return forward(*inputs)

    return run


# Packing

_DEPENDENT = ("its ids depend on another lookup", "its ids are made of random numbers")


class PackedLookup:
    """The function that a pack calls: `lookup`, with the options of the pack's lookups."""

    def __init__(self, lookups: Iterable[Lookup]):
        self.lookups = tuple(lookups)
        self.__name__ = self.__qualname__ = "lookup"  # as the code of the graph names it

    def __call__(self, weights: Any, ids: Any, offsets: Any, per_sample_weights: Any) -> Any:
        return lookup(self.lookups, weights, ids, offsets, per_sample_weights)


def pack(graph: Graph, lookups: list[LookupNode]) -> list[list[LookupNode]]:
    """Rewrites `graph`, and returns its packs. Writes into `lookups` which are not packed, and why."""
    order = {node: place for place, node in enumerate(graph.nodes)}
    earliest = earliest_places(order)
    origins = _origins(graph, {x.node for x in lookups})
    lookups[:] = [
        alone(x, next((why for why in _DEPENDENT if why in origins[x.node]), "")) for x in lookups
    ]
    packs, moved = [], set[Node]()
    packable = [x for x in lookups if not x.why_alone]
    for place, members in _fewest_places(packable, order, earliest):
        _place(graph, place, members, order, moved)
        if len(members) > 1:
            packs.append(members)
    packed = {member.node for members in packs for member in members}
    for i, single in enumerate(lookups):
        if single.node not in packed:
            lookups[i] = alone(single, "no other lookup to pack it with")
    _remove(graph, packs)
    return packs


def _origins(graph: Graph, lookups: set[Node]) -> dict[Node, set[str]]:
    """By node: the reasons among `_DEPENDENT` why ids that it reads are not known at the front."""
    origins: dict[Node, set[str]] = {}
    made_of: dict[Node, set[str]] = {}
    memory: dict[int | None, set[str]] = defaultdict(set)  # by what was written into it
    for node in graph.nodes:
        read = [made_of[input_node] for input_node in node.all_input_nodes]
        origins[node] = set().union(*read, *(memory[storage] for storage in nodes.storages(node)))
        is_of_kind = node in lookups, nodes.is_random(node)
        made_of[node] = origins[node] | set(itertools.compress(_DEPENDENT, is_of_kind))
        for written in nodes.written_by(node):
            memory[nodes.storage_of(written)] |= made_of[node]
    return origins


def earliest_places(order: dict[Node, int]) -> dict[Node, int]:
    """By node, the place in `order` before which it may not be moved."""
    places: dict[Node, int] = {}
    wall = 0  # no node behind it may be moved before it
    written: dict[int | None, int] = {}  # memory -> behind its last change
    for node, place in order.items():
        if node.op == "placeholder":
            places[node] = wall = place + 1
            continue
        after = [wall, *(places[input_node] for input_node in node.all_input_nodes)]
        if written:
            last = max(written.values())
            after += [last if m is None else written.get(m, 0) for m in nodes.storages(node)]
        places[node] = max(after)
        if nodes.is_wall(node):
            places[node] = wall = place + 1
        elif changed := list(nodes.written_by(node)):
            places[node] = place + 1
            written.update({nodes.storage_of(x): place + 1 for x in changed})
    return places


def _fewest_places(
    lookups: list[LookupNode], order: dict[Node, int], earliest: dict[Node, int]
) -> Iterator[tuple[int, list[LookupNode]]]:
    """Yields the fewest (place, lookups) with each lookup between its earliest and its own place."""
    left = sorted(lookups, key=lambda x: order[x.node])
    while left:
        last = order[left[0].node]
        members = [x for x in left if earliest[x.node] <= last]
        left = [x for x in left if earliest[x.node] > last]
        yield max(earliest[x.node] for x in members), members


def _place(
    graph: Graph, place: int, members: list[LookupNode], order: dict[Node, int], moved: set[Node]
) -> None:
    """Moves what `members` need to `place`, and behind it their one call, or the only member itself."""
    before = next(node for node in list(order)[place:] if node not in moved)
    with graph.inserting_before(before):
        columns = zip(*((x.weight, x.ids, x.offsets, x.per_sample_weights) for x in members), strict=True)
        call = graph.call_function(PackedLookup(x.options for x in members), tuple(columns))
    needed = [node for node in _needed(members, order, place) if node not in moved]
    if len(members) == 1:
        needed.append(members[0].node)
    for node in needed:
        call.prepend(node)
    moved.update(needed)
    if len(members) == 1:
        graph.erase_node(call)
    else:
        _replace_results(graph, call, members)


def _replace_results(graph: Graph, call: Node, members: list[LookupNode]) -> None:
    """Replaces the results of a pack's members by those of its call."""
    with graph.inserting_after(call):
        for i, member in reversed(list(enumerate(members))):
            vectors = graph.call_function(operator.getitem, (call, i))
            for result in member.results:
                vectors.meta.update(result.meta)
                result.replace_all_uses_with(vectors)


def _needed(members: list[LookupNode], order: dict[Node, int], place: int) -> list[Node]:
    """The nodes from `place` on that the calls of `members` read, in their order."""
    needed: set[Node] = set()
    todo = [node for member in members for node in member.node.all_input_nodes]
    while todo:
        node = todo.pop()
        if node not in needed and order[node] >= place:
            needed.add(node)
            todo.extend(node.all_input_nodes)
    return sorted(needed, key=order.__getitem__)


def _remove(graph: Graph, packs: list[list[LookupNode]]) -> None:
    for member in (member for members in packs for member in members):
        for result in member.results:
            if result is not member.node:
                graph.erase_node(result)
        graph.erase_node(member.node)


# The report


def _names(graph: Graph, example_inputs: Sequence[Any], report: CaptureReport) -> dict[Node, str]:
    """By input of the graph: its name in the model, or where dynamo found it."""
    inputs = [node for node in graph.nodes if node.op == "placeholder"]
    named = zip(inputs, example_inputs, strict=False)
    return {node: report.name_of(value) or readable(nodes.source_of(node)) for node, value in named}


def readable(source: str) -> str:
    """Shortens L['self']._modules['tables']._modules['0']._parameters['weight'] -> tables.0.weight"""
    parts = re.findall(r"\['(\w+)'\]|\.([A-Za-z]\w*)", source)
    words = [quoted or plain for quoted, plain in parts]
    return ".".join(words[1:] or words)


def _captured(
    graph_module: GraphModule,
    lookups: list[LookupNode],
    packs: list[list[LookupNode]],
    names: dict[Node, str],
    num_linears: int,
) -> CapturedGraph:
    reads = {x.node: _read(x, names) for x in lookups}
    packed = {member.node for members in packs for member in members}
    return CapturedGraph(
        packs=tuple(tuple(reads[x.node] for x in members) for members in packs),
        alone=tuple(SingleLookup(reads[x.node], x.why_alone) for x in lookups if x.node not in packed),
        num_linears=num_linears,
        break_reason=_break_reason(graph_module),
    )


def _read(lookup: LookupNode, names: dict[Node, str]) -> TableRead:
    weight = lookup.weight
    shape = tuple(nodes.result(weight).shape) if is_tensor(weight) else ()
    rows, dim = (int(shape[0]), int(shape[1])) if len(shape) == 2 else (0, 0)
    kind = "embedding" if lookup.options.mode is None else f"bag, {lookup.options.mode}"
    return TableRead(names.get(weight) or str(getattr(weight, "name", "?")), rows, dim, kind)


def _break_reason(graph_module: GraphModule) -> str:
    """Why the graph ends before the function does, in one line; "" where it does not."""
    reason = getattr(graph_module, "compile_subgraph_reason", None)
    if reason is None or not getattr(reason, "graph_break", False):
        return ""
    text = str(getattr(reason, "reason", "")).strip()
    if text.startswith("generic_jump"):
        text = "a branch on the value of a tensor"
    line = next(iter(text.splitlines()), "not known")
    frames = getattr(reason, "user_stack", None)
    return f"{line} (line {frames[-1].lineno} of {Path(frames[-1].filename).name})" if frames else line


# Hooks may be registered, and removed again, at any time: a graph is checked for them at each call.
_SETTINGS = {"suppress_errors": True, "skip_nnmodule_hook_guards": False}
_running = threading.local()  # .report: of the captured function that this thread is in


def capture(
    function: Callable[..., Any],
    report: CaptureReport,
    trainer: Callable[[], threading.Thread | None] = lambda: None,
    linear_paths: bool = False,
) -> Callable[..., Any]:
    """Returns a callable that does what `function` does, with its lookups packed.

    linear_paths: as in `rewrite`.

    trainer: returns the thread that trains, once one does. It alone compiles from then on, and others run
    what there is: while dynamo compiles, optimizers of every thread round as in compiled code.

    Parts that dynamo cannot trace run uncaptured, and `report.notes` says why. The callable
    holds compiled code: leave it out of copies and pickles, and capture anew. `.plain` is `function`.
    """
    # Let dynamo compile the function, where it can.
    try:
        compiled = _compiled(function, report, linear_paths)
    except RuntimeError as error:  # a Python that this PyTorch cannot compile for
        report.note(_first_line(error))
        compiled = function
    # Run it with our settings of dynamo, which are the process', and put the user's back.
    num_graphs, packs_nothing = 0, False

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if packs_nothing or _is_traced():
            return function(*args, **kwargs)
        thread = trainer()
        if thread is None:
            with CAPTURE:
                return run(args, kwargs)
        if thread is not threading.current_thread():
            return torch._dynamo.run(compiled)(*args, **kwargs)
        return run(args, kwargs)

    def run(args: Any, kwargs: Any) -> Any:
        nonlocal num_graphs, packs_nothing
        before = getattr(_running, "report", None)
        settings = [(name, getattr(dynamo_config, name)) for name in _SETTINGS]
        _running.report = report
        try:
            for name, value in _SETTINGS.items():
                setattr(dynamo_config, name, value)
            result = compiled(*args, **kwargs)
        finally:
            _running.report = before
            for name, value in settings:
                setattr(dynamo_config, name, value)
        # A forward without lookups to pack runs as it is from then on.
        if len(report.graphs) > num_graphs:
            num_graphs, packs_nothing = len(report.graphs), report.has_nothing_to_pack()
        return result

    call.plain = function  # type: ignore[attr-defined]
    _filter_messages()
    return call


def _is_traced() -> bool:
    """True if another capture is under way, which must trace the function itself."""
    compiler = torch.compiler
    return compiler.is_dynamo_compiling() or compiler.is_exporting() or torch.jit.is_tracing()


def _compiled(
    function: Callable[..., Any], report: CaptureReport, linear_paths: bool
) -> Callable[..., Any]:
    options: dict[str, Any] = {}
    if "isolate_recompiles" in inspect.signature(torch.compile).parameters:
        options["isolate_recompiles"] = True
    backend = partial(rewrite, report=report, linear_paths=linear_paths)
    return torch.compile(with_own_code(function), backend=backend, dynamic=None, **options)


def with_own_code(function: Callable[..., Any]) -> Callable[..., Any]:
    """A copy of a Python function whose code object is its own; any other callable as it is."""
    if isinstance(function, MethodType):
        return MethodType(with_own_code(function.__func__), function.__self__)
    if not isinstance(function, FunctionType):
        return function
    code = function.__code__.replace()
    copy = FunctionType(
        code, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    copy.__kwdefaults__ = function.__kwdefaults__
    copy.__annotations__ = function.__annotations__
    copy.__qualname__, copy.__module__ = function.__qualname__, function.__module__
    copy.__dict__.update(function.__dict__)
    return copy


# Dynamo says only in its log where it gives up


_GIVES_UP = "torch._dynamo.convert_frame"
_BREAKS_AT_ITEM = "torch._dynamo.variables.tensor"  # the report has it as the reason of a break


def _filter_messages() -> None:
    """Adds filters of warnings and of dynamo's log; they are global, and let others' messages pass."""
    # Dynamo reads the .grad of intermediate results; PyTorch warns of it as if the model had done so.
    modules = r"torch\._(dynamo|subclasses)"
    warnings.filterwarnings("ignore", r"The \.grad attribute of a Tensor", module=modules)
    for name in (_GIVES_UP, _BREAKS_AT_ITEM):
        log = logging.getLogger(name)
        if _to_report not in log.filters:
            log.addFilter(_to_report)


def _to_report(record: logging.LogRecord) -> bool:
    """Writes messages about a captured function into its report instead of the log."""
    report = getattr(_running, "report", None)
    if report is None or record.levelno < logging.WARNING:
        return True
    if record.name == _GIVES_UP:
        error = record.exc_info[1] if isinstance(record.exc_info, tuple) else None
        report.note(_first_line(error) if error is not None else _limit(record.getMessage()))
    return False


def _first_line(error: BaseException) -> str:
    error = getattr(error, "inner_exception", None) or error  # what a backend's failure wraps
    text = next(iter(str(error).strip().splitlines()), "")
    return f"dynamo gave up, so plain PyTorch runs: {type(error).__name__}: {text}"


def _limit(message: str) -> str:
    lines = [line.strip() for line in message.splitlines()]
    where = next((line for line in lines if line.startswith("function:")), "")
    return f"{lines[0]}; {where}: inputs of a new kind run as plain PyTorch from here on"
