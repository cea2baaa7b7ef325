"""Threads: groups of packs are planned side by side, with the results of one thread.

    threads = Threads(4)
    plans = threads.map(plan_pack, reads)       # [plan_pack(of) for of in reads]

Groups share nothing, and the native core lets Python go on, so several threads plan a batch as many
times as fast, up to the number of groups. Each computes alone: teams of OpenMP within them, and
within the copies that PyTorch makes for them, would only fight for the cores.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, TypeVar

import torch

from hotrows import native

Item = TypeVar("Item")
Made = TypeVar("Made")

_MOST = 8  # every part costs the step two launches more
_LEFT = 2  # cores for the threads that train and move rows


class Threads:
    """num: how many; 1: the caller's own, and no other."""

    def __init__(self, num: int = 1) -> None:
        self.num = num
        self._pool: ThreadPoolExecutor | None = None  # from the first call on

    def map(self, work: Callable[[Item], Made], items: Sequence[Item]) -> list[Made]:
        """work(item) of each, in their order; of several errors the first in that order is raised,
        once nothing runs any more."""
        if self.num == 1 or len(items) < 2:
            return [work(item) for item in items]
        made = [self.begin(work, item) for item in items]
        wait(made)
        return [of.result() for of in made]

    def begin(self, work: Callable[..., Made], *arguments: Any) -> Future[Made]:
        """Does `work` beside what the caller does next."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self.num, "hotrows-planning", _compute_alone)
        return self._pool.submit(work, *arguments)

    def close(self) -> None:
        """Ends the threads once they have done what was begun; whoever goes on gets others."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown()


def num_threads(asked: int | None, on_host: bool) -> int:
    """How many threads plan: those asked for; None: one on the host, whose cores train, and beside a
    device all cores but two, at most 8."""
    if asked is not None:
        return asked
    return 1 if on_host else max(min(_MOST, _num_cores() - _LEFT), 1)


def _num_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _compute_alone() -> None:
    torch.get_num_threads()  # PyTorch sets it for a thread that is new, once
    core = native.load()
    if core is not None:
        core.hotrows_use_one_thread()
