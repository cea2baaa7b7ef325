"""Sums of dataclasses: fields are added one by one."""

from __future__ import annotations

import dataclasses
from typing import Any, TypeVar

Sum = TypeVar("Sum", bound="Summed")


class Summed:
    """A dataclass of numbers, or arrays, that can be added to another of its kind."""

    def __add__(self: Sum, other: Sum) -> Sum:
        kind: Any = type(self)
        return kind(*(getattr(self, f.name) + getattr(other, f.name) for f in dataclasses.fields(kind)))
