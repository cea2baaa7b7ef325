"""What the pretended GPU asks of each call of an operation, thousands of times in a test: quickly."""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch
from torch.utils._pytree import tree_leaves, tree_map


class Operation(NamedTuple):
    """What is the same for all calls. arguments: name of each, and whether it is written to."""

    name: str
    is_view: bool
    is_random: bool
    has_aliases: bool
    arguments: tuple[tuple[str, bool], ...]


@functools.cache
def operation(func):
    schema = func._schema
    aliases = [value.alias_info for value in (*schema.arguments, *schema.returns)]
    writes = (alias is not None and alias.is_write for alias in aliases)
    return Operation(
        func.name(),
        func.is_view,
        torch.Tag.nondeterministic_seeded in func.tags,
        any(alias is not None for alias in aliases),
        tuple(zip((argument.name for argument in schema.arguments), writes, strict=False)),
    )


def leaves_of(value):
    """As PyTorch's `tree_leaves`, which takes ten times as long for a few arguments."""
    found = []
    _collect(value, found)
    return found


def _collect(value, found):
    kind = type(value)
    if kind is tuple or kind is list:
        for part in value:
            _collect(part, found)
    elif kind is dict:
        for part in value.values():
            _collect(part, found)
    elif isinstance(value, tuple | list | dict) and kind is not torch.Size:
        found += tree_leaves(value)
    else:
        found.append(value)


def mapped(function, value):
    """As PyTorch's `tree_map`."""
    kind = type(value)
    if kind is tuple or kind is list:
        return kind([mapped(function, part) for part in value])
    if kind is dict:
        return {name: mapped(function, part) for name, part in value.items()}
    if isinstance(value, tuple | list | dict) and kind is not torch.Size:
        return tree_map(function, value)
    return function(value)
