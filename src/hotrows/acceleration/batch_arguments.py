"""The arguments of a model in its batches: where they are is learned from the model's calls."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

Inputs = Callable[[Any], Any]
Path = tuple[Any, ...]

_MAX_CALLS = 8  # calls of the model for one batch that are recorded
_CONSTANTS = (type(None), bool, int, float, str)


@dataclass(frozen=True)
class CallArguments:
    """Arguments of a model."""

    args: tuple
    kwargs: dict[str, Any]


def call_arguments(inputs: Any) -> CallArguments:
    """The arguments that a user's `inputs` function means: a tensor, a tuple, or a dictionary."""
    if isinstance(inputs, CallArguments):
        return inputs
    if isinstance(inputs, Mapping):
        return CallArguments((), dict(inputs))
    return CallArguments(tuple(inputs) if isinstance(inputs, tuple) else (inputs,), {})


class CallRecorder:
    """The arguments of a model's calls for one batch, while a look-ahead learns how it is called."""

    def __init__(self) -> None:
        self.calls: list[CallArguments] = []

    def record(self, args: tuple, kwargs: Mapping[str, Any]) -> None:
        if len(self.calls) < _MAX_CALLS:
            self.calls.append(CallArguments(args, dict(kwargs)))

    def inputs_from(self, batch: Any) -> Inputs | None:
        """The function that makes the arguments of the first call which takes them from the batch.

        None: there was no call; LookupError: none takes them from there.
        """
        errors: list[LookupError] = []
        for call in self.calls:
            try:
                return inputs_from(batch, call.args, call.kwargs)
            except LookupError as error:
                errors.append(error)
        if errors:
            raise errors[0]
        return None


def inputs_from(batch: Any, args: tuple, kwargs: Mapping[str, Any]) -> Inputs:
    """Returns a function from batches to such arguments; LookupError: this batch lacks them."""
    index = _BatchIndex(batch)
    positional = [index.getter(value, f"argument {i + 1}") for i, value in enumerate(args)]
    named = {name: index.getter(value, f"argument {name!r}") for name, value in kwargs.items()}

    def inputs(batch: Any) -> CallArguments:
        args = tuple(get(batch) for get in positional)
        return CallArguments(args, {name: get(batch) for name, get in named.items()})

    return inputs


class _BatchIndex:
    """The path of everything in a batch, by identity and, for tensors, by the memory that they show."""

    def __init__(self, batch: Any) -> None:
        self._by_id: dict[int, Path] = {}
        self._by_memory: dict[tuple, Path] = {}
        self._add(batch, ())

    def _add(self, value: Any, path: Path) -> None:
        if isinstance(value, _CONSTANTS):
            return
        self._by_id.setdefault(id(value), path)
        if isinstance(value, Tensor):
            self._by_memory.setdefault(_memory(value), path)
        elif isinstance(value, Mapping):
            for key, item in value.items():
                self._add(item, (*path, key))
        elif isinstance(value, list | tuple):
            for i, item in enumerate(value):
                self._add(item, (*path, i))

    def getter(self, value: Any, name: str) -> Callable[[Any], Any]:
        """Returns a function that reads, from a batch, the item that is `value` in this one."""
        if isinstance(value, _CONSTANTS):
            return lambda batch: value
        path = self._by_id.get(id(value))
        if path is None and isinstance(value, Tensor):
            path = self._by_memory.get(_memory(value))
        if path is not None:
            return lambda batch: functools.reduce(operator.getitem, path, batch)
        if isinstance(value, dict):
            by_key = {key: self.getter(item, f"{name}[{key!r}]") for key, item in value.items()}
            return lambda batch: {key: get(batch) for key, get in by_key.items()}
        if type(value) in (list, tuple):
            getters = [self.getter(item, f"{name}[{i}]") for i, item in enumerate(value)]
            return lambda batch: type(value)(get(batch) for get in getters)
        raise LookupError(f"{name} is not in the batch as the loader gave it")


def _memory(tensor: Tensor) -> tuple:
    memory = tensor.untyped_storage().data_ptr(), tensor.storage_offset()
    return *memory, tensor.shape, tensor.stride(), tensor.dtype
