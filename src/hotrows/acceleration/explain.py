"""explain: a readable account of how a model makes its lookups in one run."""

import random
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hotrows.acceleration.accelerate import acceleration_of, check_model
from hotrows.acceleration.graph import capture
from hotrows.acceleration.parameter import capturing
from hotrows.acceleration.report import CapturedGraph, CaptureReport, TableRead
from hotrows.runtime.random_numbers import restored


@dataclass(frozen=True)
class Explanation:
    """An account of the lookups of a model: `str()` of it is for people, `as_dict()` for programs.

    `unread`: tables that no lookup read in this run. `refused`: tables that stay plain PyTorch -> why.
    `notes`: parts that dynamo could not trace, and that run as plain PyTorch. `in_memory`: tables that
    stay in memory while other tables are behind a cache -> why. `forecast`: what was expected of the
    tables from their sizes when the model was accelerated; "" if nothing was.
    """

    graphs: tuple[CapturedGraph, ...]
    unread: tuple[str, ...]
    refused: Mapping[str, str]
    notes: tuple[str, ...]
    in_memory: Mapping[str, str] = field(default_factory=dict)
    forecast: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Returns dicts, lists, strings and numbers alone, as JSON has them."""
        return asdict(self)

    def __str__(self) -> str:
        return "\n".join(_lines(self))


def explain(model: nn.Module, *example: Any, **kwargs: Any) -> Explanation:
    """Runs `model(*example, **kwargs)` once, in its present mode, and reports how its lookups are made.

    Buffers, tables with `max_norm` and random states are restored; no gradient is computed.

    >>> model = torch.nn.Sequential(torch.nn.Embedding(1000, 8), torch.nn.Linear(8, 1))
    >>> model, optimizer = hotrows.accelerate(model, torch.optim.Adam(model.parameters()))
    >>> print(hotrows.explain(model, torch.tensor([3, 4])))
    no lookups packed
      alone: 0.weight (no other lookup to pack it with)
      left as it is: 0.weight (the only table, and so small (8,000 weights) that there is no gain)
    """
    check_model(model, "hotrows.explain(model, *arguments_of_the_model)")
    report = CaptureReport(model)
    accelerated = acceleration_of(model)

    def run(*args: Any, **named: Any) -> Any:
        return model(*args, **named)

    if accelerated is not None:
        run = type(model)._hotrows_plain.forward.__get__(model)  # type: ignore[attr-defined]
    with _restoring_state(model), capturing():
        capture(run, report)(*_copied(example), **_copied(kwargs))
    read = {lookup.table for graph in report.graphs for lookup in _reads(graph)}
    tables = (name for name, table in model.named_modules() if _is_table(table))
    unread = tuple(name for name in map(_weight_of, tables) if name not in read | _tied(model, read))
    refused, in_memory = ({}, {}) if accelerated is None else (accelerated.refused, accelerated.in_memory)
    expected = "" if accelerated is None or accelerated.forecast is None else str(accelerated.forecast)
    graphs, notes = tuple(report.graphs), tuple(report.notes)
    return Explanation(graphs, unread, dict(refused), notes, in_memory, expected)


def _is_table(module: nn.Module) -> bool:
    return isinstance(module, nn.Embedding | nn.EmbeddingBag) and "weight" in module._parameters


def _weight_of(table: str) -> str:
    return f"{table}.weight" if table else "weight"


def _tied(model: nn.Module, read: set[str]) -> set[str]:
    """All names of the parameters that were read, where some have several."""
    named = dict(model.named_parameters(remove_duplicate=False))
    tensors = {id(named[name]) for name in read if name in named}
    return {name for name, parameter in named.items() if id(parameter) in tensors}


def _reads(graph: CapturedGraph) -> Iterator[TableRead]:
    for members in graph.packs:
        yield from members
    for alone in graph.alone:
        yield alone.lookup


def _copied(value: Any) -> Any:
    """Copies the tensors of an argument, since a model may write into them."""
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        return {key: _copied(item) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_copied(item) for item in value)
    return value


@contextmanager
def _restoring_state(model: nn.Module) -> Iterator[None]:
    """Restores behind it what a run in training mode changes besides parameters' gradients."""
    changing = [*model.buffers(), *_clipped_while_read(model)]
    copies = [tensor.detach().clone() for tensor in changing]
    states = random.getstate(), np.random.get_state()  # noqa: NPY002
    of_model = {tensor.device for tensor in (*model.parameters(), *model.buffers())}
    try:
        with restored([device for device in of_model if device.type == "cuda"]):
            yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])  # noqa: NPY002
        with torch.no_grad():
            for tensor, before in zip(changing, copies, strict=True):
                tensor.copy_(before)


def _clipped_while_read(model: nn.Module) -> list[Tensor]:
    tables = (module for module in model.modules() if _is_table(module))
    return [table.weight for table in tables if table.max_norm is not None]  # type: ignore[misc]


# As text


def _lines(explained: Explanation) -> Iterator[str]:
    graphs = explained.graphs
    packs = [members for graph in graphs for members in graph.packs]
    if packs:
        num_lookups = sum(map(len, packs))
        tables = {lookup.table for members in packs for lookup in members}
        of_tables = f"{_num(num_lookups, 'lookup')} of {_num(len(tables), 'table')}"
        yield f"{of_tables} in {_num(len(packs), 'pack')}"
    else:
        yield "no lookups packed"
    for number, members in enumerate(packs):
        yield f"  pack {number}: {_num(len(members), 'lookup')} ({_dims(members)})"
    for alone in (single for graph in graphs for single in graph.alone):
        yield f"  alone: {alone.lookup.table} ({alone.reason})"
    for reason in (graph.break_reason for graph in graphs if graph.break_reason):
        yield f"  break between graphs: {reason}"
    for note in explained.notes:
        yield f"  not captured: {note}"
    for table in explained.unread:
        yield f"  read by no lookup here: {table}"
    for table, reason in explained.refused.items():
        yield f"  left as it is: {table} ({reason})"
    for table, reason in explained.in_memory.items():
        yield f"  in memory, not behind the cache: {table} ({reason})"
    if explained.forecast:
        yield f"  forecast: {explained.forecast}"


def _num(count: int, word: str) -> str:
    return f"{count:,} {word}" + ("" if count == 1 else "s")


def _dims(members: tuple[TableRead, ...]) -> str:
    dims = Counter(lookup.dim for lookup in members)
    return ", ".join(f"dim {dim}: {count}" for dim, count in sorted(dims.items()))
