"""Ranks: the processes that train one model together, as what they can do with one another.

`OneRank` is a process alone. `hotrows.exchange` has ranks behind `torch.distributed`, and ranks that
are threads of one process, for tests and for reading.

Every method is collective: all ranks call it, in the same order. Ranks of one job may talk on several
`channels`, each with an order of its own, so that threads need not wait for one another.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from torch import Tensor

Note = Callable[[str, str, float, float], None]  # of a timeline: stage, lane, begin, end in seconds


class Arriving(Protocol):
    """What a collective that has been started brings."""

    def wait(self) -> Tensor:
        """The result, once it is there."""


class Ranks(Protocol):
    """This process among P.

    rank: its number, from 0; num_ranks: P.
    """

    rank: int
    num_ranks: int

    def all_to_all(self, rows: Tensor, sent: Sequence[int], received: Sequence[int]) -> Arriving:
        """Sends rows [sum(sent), ...] to the ranks in turn, sent[p] of them to rank p; brings
        [sum(received), ...], what came from rank 0, from rank 1, ..."""

    def all_reduce(self, values: Tensor) -> Arriving:
        """Sums over ranks, in place; the same bits on all of them."""

    def all_gather(self, values: Tensor) -> Arriving:
        """[P, ...]: the values of all ranks, of one shape."""

    def gather_objects(self, value: Any) -> list[Any]:
        """The value of every rank, on every rank: small things, seldom."""

    def barrier(self) -> None:
        """Returns once all ranks have come here."""

    def channel(self, name: str) -> Ranks:
        """The same ranks on a channel of their own."""


class Arrived:
    """What is there already."""

    def __init__(self, value: Tensor) -> None:
        self._value = value

    def wait(self) -> Tensor:
        return self._value


class OneRank:
    """A process alone: what it sends, it gets."""

    rank = 0
    num_ranks = 1

    def all_to_all(self, rows: Tensor, sent: Sequence[int], received: Sequence[int]) -> Arriving:
        return Arrived(rows)

    def all_reduce(self, values: Tensor) -> Arriving:
        return Arrived(values)

    def all_gather(self, values: Tensor) -> Arriving:
        return Arrived(values[None])

    def gather_objects(self, value: Any) -> list[Any]:
        return [value]

    def barrier(self) -> None:
        pass

    def channel(self, name: str) -> Ranks:
        return self
