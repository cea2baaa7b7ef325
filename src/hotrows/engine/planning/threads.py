"""Threads: groups of packs are planned in parallel, with the results of one thread.

    threads = Threads(4)
    plans = threads.map(plan_pack, reads)       # [plan_pack(r) for r in reads]

Groups share nothing, and the native core releases Python's lock, so several threads plan a batch as
many times as fast, up to the number of groups. Each computes alone: teams of OpenMP within them, and
within the copies that PyTorch makes for them, would only fight for the cores.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TypeVar

import torch

from hotrows.engine.distributed import job
from hotrows.runtime import native
from hotrows.runtime.machine import num_cores

Item = TypeVar("Item")
Result = TypeVar("Result")

_MOST = 8  # threads: every part of the packs costs the step two launches more
_LEFT = 2  # cores for the threads that train and move rows


class Threads:
    """A pool of `num` threads; 1: the caller's thread alone."""

    def __init__(self, num: int = 1) -> None:
        self.num = num
        self._pool: ThreadPoolExecutor | None = None  # from the first call on
        self._process = 0  # whose threads these are

    def map(self, work: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
        """work(item) of every item, in order; of several errors the first in that order is raised, once
        nothing runs any more."""
        if self.num == 1 or len(items) < 2:
            return [work(item) for item in items]
        if self._pool is None or self._process != os.getpid():  # a forked child has none of the threads
            self._pool = ThreadPoolExecutor(self.num, "hotrows-planning", _compute_alone)
            self._process = os.getpid()
        futures = [self._pool.submit(work, item) for item in items]
        wait(futures)
        return [future.result() for future in futures]

    def close(self) -> None:
        """Ends the threads once they have finished their work; a later `map` starts new ones."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown()


def num_threads(num: int | None, on_host: bool) -> int:
    """The number of threads that plan: `num`; None: one on the host, whose cores train, and with a device
    all cores but two, of this rank's share of them, at most 8.

    >>> num_threads(None, on_host=True)
    1
    """
    if num is not None:
        return num
    return 1 if on_host else max(min(_MOST, num_cores() // job.ranks_here() - _LEFT), 1)


def _compute_alone() -> None:
    torch.get_num_threads()  # PyTorch sets it for a thread that is new, once
    native.call("set_threads", 1)
