"""Ranks: the processes that train one model together, and their collectives.

`OneRank` is a process alone, `process_group.Processes` are ranks behind `torch.distributed`, and
`in_process.ThreadRanks` are threads of one process, for tests and for reading.

Every method is collective: all ranks call it, in one order. Ranks of one job may have several
`channels`, each with an order of its own, so that threads need not wait for one another.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

Note = Callable[[str, str, float, float], None]  # of a timeline: stage, lane, begin, end in seconds


class Waits(threading.local):
    """For how many seconds the thread that looks has waited for other ranks."""

    seconds = 0.0


@dataclass
class Sent:
    """Traffic of a rank to others: bytes, and messages (one to each rank that gets any), and waits."""

    num_bytes: int = 0
    messages: int = 0
    waits: Waits = field(default_factory=Waits)


class Arriving(Protocol):
    """The result of a collective that has been started.

    arrived_at: when it arrived, by `time.perf_counter`; None where the ranks do not note times.
    """

    arrived_at: float | None

    def wait(self) -> Tensor:
        """Waits for the result."""


class Ranks(Protocol):
    """This process among P.

    rank: its number, from 0; num_ranks: P. sent: so far, on all channels.
    notes_times: whether collectives note when they arrived.
    """

    rank: int
    num_ranks: int
    sent: Sent
    notes_times: bool

    def all_to_all(self, rows: Tensor, sent: Sequence[int], received: Sequence[int]) -> Arriving:
        """Sends rows [sum(sent), ...] to the ranks in turn, sent[p] of them to rank p; receives
        [sum(received), ...], the rows from rank 0, from rank 1, ..."""

    def all_reduce(self, values: Tensor) -> Arriving:
        """Sums over ranks, in place; equal bits on all of them."""

    def all_gather(self, values: Tensor) -> Arriving:
        """[P, ...]: the values of all ranks, of one shape."""

    def gather_objects(self, value: Any) -> list[Any]:
        """The value of every rank, on every rank: for small values, and seldom."""

    def barrier(self) -> None:
        """Returns once all ranks have called it."""

    def channel(self, name: str) -> Ranks:
        """These ranks on a channel with an order of its own."""


def any_rank(ranks: Ranks, flag: bool) -> bool:
    """Collective: whether any rank has the flag: then all do what one wants."""
    return bool(ranks.all_gather(torch.tensor([flag])).wait().any())


class Arrived:
    """A result that needs no waiting."""

    arrived_at: float | None = None

    def __init__(self, value: Tensor) -> None:
        self._value = value

    def wait(self) -> Tensor:
        return self._value


class OneRank:
    """A process alone: it receives what it sends."""

    rank = 0
    num_ranks = 1
    sent = Sent()  # nothing, ever
    notes_times = False

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


class Seat(OneRank):
    """The place of one rank among several: it has their sizes, and communicates with none of them."""

    def __init__(self, rank: int, num_ranks: int) -> None:
        self.rank, self.num_ranks = rank, num_ranks
