"""Copies to a device: the tensors of a batch and its plan, as one.

A step reads some twenty small tensors. They are laid end to end in one block of page-locked memory,
which is copied while the host goes on, and are views of the block on the device.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from hotrows.runtime.device import Device, Mark, aligned

LANE = "upload"


@dataclass(frozen=True)
class Uploaded:
    """A value whose tensors are on a device as soon as `mark` is passed.

    blocks: their memory. check: waits for the device and raises what is only known there, such as an
    id outside its table; None: nothing to check.
    """

    value: Any
    blocks: tuple[Tensor, ...]
    mark: Mark
    check: Callable[[], None] | None = None


def to_device(device: Device, value: Any) -> Uploaded:
    """Copies every tensor of a value: a tensor, or a dataclass, tuple or dict that has some.

    A tensor that occurs several times is copied once, and is one tensor there, too. On the host nothing
    is copied.
    """
    if device.on_host:
        return Uploaded(value, (), None)
    offsets: dict[int, tuple[int, Tensor]] = {}  # by the identity of a tensor
    size = 0

    def place(tensor: Tensor) -> Tensor:
        nonlocal size
        if id(tensor) not in offsets:
            offsets[id(tensor)] = size, tensor
            size += aligned(tensor.numel() * tensor.element_size())
        return tensor

    map_tensors(value, place)
    source, block = device.staging(size), device.empty(LANE, size)
    for offset, tensor in offsets.values():
        view_of(source, offset, tensor).copy_(tensor)
    mark = device.launch(LANE, lambda: block.copy_(source, non_blocking=True), holds=[block])
    views = {key: view_of(block, offset, tensor) for key, (offset, tensor) in offsets.items()}
    copy = map_tensors(value, lambda tensor: views[id(tensor)])
    return Uploaded(copy, (block,), mark)


def copied(device: Device, tensor: Tensor) -> Tensor:
    """A copy of a small tensor for what the calling thread launches next; the host waits for nothing."""
    if device.on_host:
        return tensor
    source = device.staging(*tensor.shape, dtype=tensor.dtype)
    source.copy_(tensor)
    return source.to(device.torch, non_blocking=True)


def view_of(block: Tensor, offset: int, like: Tensor) -> Tensor:
    """The bytes of a block from `offset` on as a contiguous tensor of the shape and dtype of `like`."""
    part = block[offset : offset + like.numel() * like.element_size()]
    return part.view(like.dtype).view(like.shape)


def map_tensors(value: Any, function: Callable[[Tensor], Tensor]) -> Any:
    """The value with `function` of each of its tensors in their place."""
    if isinstance(value, Tensor):
        return function(value)
    if isinstance(value, tuple):
        return tuple(map_tensors(part, function) for part in value)
    if isinstance(value, dict):
        return {key: map_tensors(part, function) for key, part in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value)]
        changes = {name: map_tensors(getattr(value, name), function) for name in names}
        return dataclasses.replace(value, **changes)
    return value
