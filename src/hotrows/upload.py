"""Upload: the tensors of a batch and its plan to a device, as one copy.

A step reads some twenty small tensors. They are laid end to end in one block of page-locked memory,
which is copied while the host goes on, and are views of the block on the device.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from hotrows.device import Device, Mark, aligned

LANE = "upload"


@dataclass(frozen=True)
class Uploaded:
    """value: with its tensors on the device, as soon as `mark` is passed; blocks: their memory.

    check: raises what is only known then, and waits for it; None: nothing is.
    """

    value: Any
    blocks: tuple[Tensor, ...]
    mark: Mark
    check: Callable[[], None] | None = None


def upload(device: Device, value: Any) -> Uploaded:
    """Copies every tensor of a value: a tensor, or a dataclass, tuple or dict that has some.

    A tensor that stands in several places is copied once.
    """
    places: dict[int, int] = {}
    size = 0

    def place(tensor: Tensor) -> Tensor:
        nonlocal size
        if id(tensor) not in places:
            places[id(tensor)] = size
            size += aligned(tensor.numel() * tensor.element_size())
        return tensor

    map_tensors(value, place)
    staged, block = device.staging(size), device.empty(LANE, size)
    filled: set[int] = set()

    def fill(tensor: Tensor) -> Tensor:
        if id(tensor) not in filled:
            filled.add(id(tensor))
            view_of(staged, places[id(tensor)], tensor).copy_(tensor)
        return tensor

    map_tensors(value, fill)
    mark = device.launch(LANE, lambda: _copy(block, staged), holds=[block])
    there = map_tensors(value, lambda tensor: view_of(block, places[id(tensor)], tensor))
    return Uploaded(there, (block,), mark)


def view_of(block: Tensor, place: int, like: Tensor) -> Tensor:
    """The bytes of a block from `place` on as a contiguous tensor of the form of another."""
    own = block[place : place + like.numel() * like.element_size()]
    return own.view(like.dtype).view(like.shape)


def map_tensors(value: Any, function: Callable[[Tensor], Tensor]) -> Any:
    """The value with `function` of each of its tensors in their place."""
    if isinstance(value, Tensor):
        return function(value)
    if isinstance(value, tuple):
        return tuple(map_tensors(part, function) for part in value)
    if isinstance(value, dict):
        return {key: map_tensors(part, function) for key, part in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
        changes = {name: map_tensors(part, function) for name, part in fields.items()}
        return dataclasses.replace(value, **changes)
    return value


def _copy(target: Tensor, source: Tensor) -> None:
    target.copy_(source, non_blocking=True)
