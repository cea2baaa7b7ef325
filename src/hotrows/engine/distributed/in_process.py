"""Ranks as threads of one process: slow and plain, to test and to read.

    def work(ranks): ...
    results = run(work, num_ranks=3)         # work(rank 0), work(rank 1), work(rank 2), at once

A collective waits until all ranks have called it; one that fails, or that ranks call in different
orders, raises on all of them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from hotrows.engine.distributed.comm import Arrived, Arriving, Sent

Result = TypeVar("Result")
_PATIENCE = 60.0  # seconds


def run(work: Callable[[ThreadRanks], Result], num_ranks: int) -> list[Result]:
    """The results of `work` on every rank; the first error of any is raised."""
    meeting = _Meeting(num_ranks)
    results: list[Any] = [None] * num_ranks
    errors: list[BaseException] = []
    num_threads = torch.get_num_threads()

    def one(rank: int) -> None:
        torch.set_num_threads(num_threads)  # a thread begins with PyTorch's own choice
        try:
            results[rank] = work(ThreadRanks(meeting, rank))
        except BaseException as error:
            if not isinstance(error, threading.BrokenBarrierError):
                errors.append(error)
            meeting.break_up()

    threads = [threading.Thread(target=one, args=(rank,)) for rank in range(num_ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    if meeting.broken:
        raise RuntimeError("ranks called different collectives, or one ended before the others")
    return results


class ThreadRanks:
    """One of the threads; see `hotrows.engine.distributed.comm.Ranks`."""

    sent = Sent()  # not counted
    notes_times = False

    def __init__(self, meeting: _Meeting, rank: int, name: str = "") -> None:
        self.rank, self.num_ranks = rank, meeting.num_ranks
        self._meeting, self._name = meeting, name

    def all_to_all(self, rows: Tensor, sent: Sequence[int], received: Sequence[int]) -> Arriving:
        assert sum(sent) == len(rows), "all rows are sent"
        parts = self._swap("all_to_all", rows.clone().split(list(sent)))
        arrived = [of_rank[self.rank] for of_rank in parts]
        assert list(map(len, arrived)) == list(received), "ranks agree on how many rows are sent"
        return Arrived(torch.cat(arrived))

    def all_reduce(self, values: Tensor) -> Arriving:
        parts = self._swap("all_reduce", values.clone())
        total = parts[0].clone()
        for part in parts[1:]:
            total += part
        return Arrived(values.copy_(total))

    def all_gather(self, values: Tensor) -> Arriving:
        return Arrived(torch.stack(self._swap("all_gather", values.clone())))

    def gather_objects(self, value: Any) -> list[Any]:
        return self._swap("gather_objects", value)

    def barrier(self) -> None:
        self._swap("barrier", None)

    def channel(self, name: str) -> ThreadRanks:
        return ThreadRanks(self._meeting, self.rank, name)

    def _swap(self, kind: str, value: Any) -> list[Any]:
        begin = time.perf_counter()
        swapped = self._meeting.swap(self._name, self.rank, kind, value)
        self.sent.waits.seconds += time.perf_counter() - begin
        return swapped


class _Meeting:
    """Where ranks swap values, channel by channel."""

    def __init__(self, num_ranks: int) -> None:
        self.num_ranks = num_ranks
        self.broken = False
        self._lock = threading.Lock()
        self._channels: dict[str, tuple[threading.Barrier, list[Any]]] = {}

    def swap(self, channel: str, rank: int, kind: str, value: Any) -> list[Any]:
        with self._lock:
            if channel not in self._channels:
                barrier = threading.Barrier(self.num_ranks, timeout=_PATIENCE)
                self._channels[channel] = barrier, [None] * self.num_ranks
            barrier, values = self._channels[channel]
            if self.broken:
                raise threading.BrokenBarrierError
        values[rank] = (kind, value)
        try:
            barrier.wait()
            swapped = list(values)
            barrier.wait()
        except threading.BrokenBarrierError:
            self.broken = True
            raise
        kinds = [kind for kind, _ in swapped]
        if len(set(kinds)) > 1:
            raise AssertionError(f"ranks call different collectives: {kinds}")
        return [value for _, value in swapped]

    def break_up(self) -> None:
        with self._lock:
            self.broken = True
            for barrier, _ in self._channels.values():
                barrier.abort()
