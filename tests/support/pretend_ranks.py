"""Ranks as threads, each with a pretended GPU of its own.

    with pretend_ranks.gpus(3):
        results = pretend_ranks.run(work, 3)      # work(ranks) on each of them, device="cuda"

Lanes and the caller's own launches are those of one rank: what a rank reads of another's memory must come
through a collective, which takes tensors over behind all that their ranks have launched.
"""

import threading
from contextlib import ExitStack, contextmanager
from unittest import mock

from torch.utils._pytree import tree_leaves

from hotrows.engine.distributed.in_process import ThreadRanks
from hotrows.engine.distributed.in_process import run as on_threads
from tests.support import pretend


class _Device(pretend.PretendDevice):
    """A rank's: its lanes have its number in their names, its order is that of all."""

    def __init__(self, order, rank, delay):
        super().__init__(delay)
        self.order, self._failures, self._rank = order, order.failures, rank

    def empty(self, lane, *shape, **options):
        return super().empty(self._named(lane), *shape, **options)

    def launch(self, lane, work, after=(), holds=()):
        return super().launch(self._named(lane), work, after, holds)

    def _named(self, lane):
        return lane if lane.endswith(self._rank) else lane + self._rank


class _Ranks(ThreadRanks):
    """Collectives swap the clocks of their callers, too: none sees another's work before it is done."""

    def _swap(self, kind, value):
        order = pretend.present_order()
        pairs = super()._swap(kind, (value, order.now()[1]))
        order.launched(order.now()[0], [clock for _, clock in pairs])
        values = [value for value, _ in pairs]
        for tensor in tree_leaves(values):
            if isinstance(tensor, pretend.PretendTensor):  # what is sent is held until all have it
                tensor.memory.held.add(order.caller)
        return values

    def channel(self, name):
        return _Ranks(self._meeting, self.rank, name)


@contextmanager
def gpus(num, delay=lambda: None):
    with pretend.gpu() as first, ExitStack() as stack:
        devices = [_Device(first.order, f" of rank {rank}", delay) for rank in range(num)]
        for device in devices:
            stack.callback(device.close)

        def of_this_rank(*_):
            return devices[first.order.thread.rank]

        stack.enter_context(mock.patch("hotrows.runtime.device.Cuda", of_this_rank))
        start, run_thread = threading.Thread.start, threading.Thread.run

        def start_with_rank(thread):
            thread.rank_of_starter = getattr(first.order.thread, "rank", None)
            start(thread)

        def run_with_rank(thread):
            if getattr(thread, "rank_of_starter", None) is not None:
                be(thread.rank_of_starter)
            run_thread(thread)

        stack.enter_context(mock.patch.object(threading.Thread, "start", start_with_rank))
        stack.enter_context(mock.patch.object(threading.Thread, "run", run_with_rank))
        yield devices


def run(work, num_ranks):
    """The results of `work(ranks)` on each rank."""

    def of_rank(ranks):
        order = pretend.present_order()
        be(ranks.rank)
        result = work(_Ranks(ranks._meeting, ranks.rank))
        order.host_waits(order.now()[1])  # who reads what ranks have made waits for them
        return result

    return on_threads(of_rank, num_ranks)


def be(rank):
    """Makes the calling thread, and those that it starts, one of a rank."""
    order = pretend.present_order()
    order.thread.rank, order.thread.caller = rank, f"caller of rank {rank}"
