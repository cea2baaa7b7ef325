"""Ranks that are processes, behind torch.distributed.

    ranks = process_group.start()      # within torchrun: joins all other ranks; alone: one rank

A process group that exists already is used as it is, beside GPUs for groups of ours. Every channel is a
group of its own, of Gloo and, for tensors of GPUs, NCCL, whose collectives are launched and not waited
for; a collective that does not end within `timeout` seconds raises, so that no job hangs. NCCL's own
watchdog ends those of GPUs: whoever waits for the device goes on, with values that mean nothing, and the
next collective of any kind raises.
"""

from __future__ import annotations

import atexit
import functools
import math
import os
import re
import secrets
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist

from hotrows.engine.distributed import job
from hotrows.engine.distributed.comm import Arriving, OneRank, Ranks, Sent
from hotrows.engine.distributed.job import RankLost
from hotrows.runtime import background
from hotrows.runtime.background import Worker

TIMEOUT = 300.0  # seconds
_AS_BYTES = (torch.bfloat16, torch.float16)  # sent as bytes, since Gloo has no arithmetic of them
_POLL = 0.02  # seconds
_TO_CONNECT = 10.0  # seconds, once all ranks have met
_TO_COME = 60.0  # seconds in which the other ranks start, where this one has failed
_GRACE = 2.0  # seconds in which a step may end by its own timeout
_TIMED_OUT = re.compile("timed? ?out", re.IGNORECASE)


def start(timeout: float = TIMEOUT, failure: str = "") -> Ranks:
    """All ranks of this job, from torchrun's environment variables; alone without them.

    timeout: seconds that a collective may take. failure: why this rank cannot go on, if it cannot: a
    ValueError says so on all ranks, which would wait for it otherwise.

    >>> ranks = start()  # without torchrun: this process alone
    >>> ranks.rank, ranks.num_ranks
    (0, 1)
    """
    if dist.is_initialized():
        ranks = Processes(timeout)
        return ranks.channel("hotrows") if torch.cuda.is_available() else ranks
    if not job.is_several():
        return OneRank()
    try:
        _within(timeout, lambda: _join(timedelta(seconds=timeout)))
    except RuntimeError as error:
        raise RankLost(
            f"the {os.environ['WORLD_SIZE']} ranks of this job did not meet at "
            f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')} within {timeout:,.0f} s "
            f"({_reason(error)}): look whether all of them were started and reach that address; on "
            f"several networks GLOO_SOCKET_IFNAME names the one to take"
        ) from error
    atexit.register(end)
    ranks = Processes(timeout)
    for rank, words in enumerate(ranks.gather_objects(failure)):
        if words:
            raise ValueError(f"rank {rank}: {words}")
    return ranks


def fail(words: str) -> None:
    """Ends the ranks that wait to meet this one, which has failed before; at once if they have met."""
    if job.is_several() and not dist.is_initialized():
        with suppress(Exception):  # this rank has reported its own failure
            start(_TO_COME, words)


class Processes:
    """This process among those of a process group; see `hotrows.engine.distributed.comm.Ranks`.

    sent: so far, on all channels; notes_times: whether collectives note when they arrived.
    """

    def __init__(
        self,
        timeout: float = TIMEOUT,
        group: Any = None,
        sent: Sent | None = None,
        on_gpus: list[Any] | None = None,
    ) -> None:
        self.rank, self.num_ranks = dist.get_rank(group), dist.get_world_size(group)
        self.sent = sent or Sent()
        self.notes_times = False
        self._timeout = timeout
        self._named_group = None if group is None else weakref.ref(group)  # `end` is to free it
        self._channels: dict[str, Processes] = {}
        # The NCCL groups of all channels that have sent anything.
        self._on_gpus: list[Any] = [] if on_gpus is None else on_gpus

    @property
    def _group(self) -> Any:
        return self._named_group and self._named_group()

    def all_to_all(self, rows: Tensor, sent: Sequence[int], received: Sequence[int]) -> Arriving:
        out = rows.new_empty(sum(received), *rows.shape[1:])
        self._count(rows, [n for p, n in enumerate(sent) if p != self.rank])
        tensors, counts = (_as_sent(out), _as_sent(rows.contiguous())), (list(received), list(sent))
        return self._pending(out, dist.all_to_all_single, *tensors, *counts)

    def all_reduce(self, values: Tensor) -> Arriving:
        # A ring sends every rank 2 (P - 1) / P of the values, in as many messages.
        steps = 2 * (self.num_ranks - 1)
        self.sent.num_bytes += values.nbytes * steps // self.num_ranks
        self.sent.messages += steps
        return self._pending(values, dist.all_reduce, values)

    def all_gather(self, values: Tensor) -> Arriving:
        out = values.new_empty(self.num_ranks, *values.shape)
        self._count(values[None], [1] * (self.num_ranks - 1))
        return self._pending(out, dist.all_gather, list(out.unbind()), values.contiguous())

    def gather_objects(self, value: Any) -> list[Any]:
        values = [None] * self.num_ranks
        self._guarded(dist.all_gather_object, values, value, group=self._group)
        return values

    def barrier(self) -> None:
        self._guarded(dist.barrier, group=self._group)

    def channel(self, name: str) -> Processes:
        if name not in self._channels:
            group = self._group_of(_backend(), self._timeout)
            self._channels[name] = Processes(self._timeout, group, self.sent, self._on_gpus)
        return self._channels[name]

    def within(self, seconds: float) -> Processes:
        """Collective: these ranks on a channel whose collectives may take so many seconds."""
        return Processes(seconds, self._group_of("gloo", seconds), self.sent)

    def _group_of(self, backend: str, seconds: float) -> Any:
        """Collective: a new group of all ranks, whose collectives may take so many seconds."""
        timeout = timedelta(seconds=seconds)
        new_group = functools.partial(dist.new_group, backend=backend, timeout=timeout)
        return self._guarded(_within, self._timeout, new_group)

    def _count(self, rows: Tensor, others: Sequence[int]) -> None:
        width = rows[0].nbytes if len(rows) else 0
        self.sent.num_bytes += sum(others) * width
        self.sent.messages += sum(n > 0 for n in others)

    def _pending(self, out: Tensor, collective: Any, *arguments: Any) -> _Pending:
        if out.is_cuda:
            group: Any = self._group or dist.group.WORLD
            backend = group._get_backend(out.device)
            if backend.name() == "nccl" and backend not in self._on_gpus:
                self._on_gpus.append(backend)
        work = self._guarded(collective, *arguments, group=self._group, async_op=True)
        return _Pending(self, work, out)

    def _guarded(self, function: Any, *arguments: Any, **options: Any) -> Any:
        try:
            for nccl in self._on_gpus:
                if (state := nccl.get_error().name) != "SUCCESS":
                    raise RuntimeError(f"NCCL: {state}")
            return function(*arguments, **options)
        except RuntimeError as error:
            raise self.lost(error) from error

    def lost(self, error: RuntimeError) -> RankLost:
        """The error for a collective that failed; ends those that GPUs wait for."""
        for nccl in self._on_gpus:
            nccl.abort()
        self._on_gpus.clear()
        others, reason = f"another of the {dist.get_world_size()} ranks", _reason(error)
        if _TIMED_OUT.search(reason):
            return RankLost(
                f"waited more than {self._timeout:,.0f} s for {others} ({reason}): it hangs, is cut off "
                f"or is slow; end what is left of it, then go on from the last checkpoint with --resume, "
                f"and a longer --timeout where it was only slow"
            )
        return RankLost(
            f"lost {others} ({reason}): the first error among the ranks' messages says why; go on from "
            f"the last checkpoint with --resume"
        )


def _backend() -> str:
    """Gloo for tensors of the host, among them all of planning; NCCL for those of GPUs."""
    return "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"


def end() -> None:
    """Leaves the group; at the end of a process of `start` by itself.

    Threads of Gloo hold tensors a moment longer than a collective takes, and need Python to free them:
    while Python ends, that aborts. Those that still wait for a rank are left where they are.
    """
    background.end()  # they may use it
    if dist.is_initialized():
        Worker("hotrows-leave", dist.destroy_process_group, patience=0).wait(_GRACE)


def _join(timeout: timedelta) -> None:
    # Aborted collectives are told here, in a line, not by the end of the process (the default).
    os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "2")
    store, rank, num_ranks = next(dist.rendezvous("env://", timeout=timeout))
    room = _meet(store, rank, num_ranks, timeout)
    how: dict[str, Any] = {"store": room, "rank": rank, "world_size": num_ranks, "timeout": timeout}
    # All ranks are there: one that does not connect now is lost.
    _within(_TO_CONNECT, lambda: dist.init_process_group(_backend(), **how))


def _meet(store: Any, rank: int, num_ranks: int, timeout: timedelta) -> Any:
    """The part of the store for the ranks of this start.

    torchrun's store outlives a restart, and with it the addresses of ranks that are dead: a rank that
    reads them connects to nobody. So rank 0 opens a room under a random name, all other ranks write
    random names of theirs into it, and enter once its answer lists them. Counting restarts would not
    do, since the agents of several hosts count apart.
    """
    name, door = secrets.token_hex(8), "hotrows/door"
    if rank == 0:
        store.set(door, name)
        keys = [f"{name}/{other}" for other in range(1, num_ranks)]
        store.wait(keys, timeout)
        store.set(f"{name}/met", b" ".join(store.get(key) for key in keys))
        return dist.PrefixStore(name, store)
    until = time.monotonic() + timeout.total_seconds()
    while time.monotonic() < until:
        if store.check([door]):
            room = store.get(door).decode()
            store.set(f"{room}/{rank}", name)
            met = f"{room}/met"
            if store.check([met]) and name in store.get(met).decode().split():
                return dist.PrefixStore(room, store)
        time.sleep(_POLL)
    raise RuntimeError("timed out waiting for rank 0")


def _within(timeout: float, step: Callable[[], Any]) -> Any:
    """The step's result; Gloo's own timeout does not end a wait for a rank that died connecting."""
    worker = Worker("hotrows-connect", step, patience=0)
    if not worker.wait(timeout + _GRACE):
        raise RuntimeError("timed out connecting")
    return worker.result()


def _reason(error: RuntimeError) -> str:
    """Gloo's message, without its place in the source and the typical causes."""
    line = re.sub(r"^\[\S+:\d+\] ", "", str(error).splitlines()[0])
    return line.partition(". This is typically")[0]


class _Pending:
    """A collective under way; arrived_at: when its result arrived, where the ranks note times."""

    def __init__(self, ranks: Processes, work: Any, out: Tensor) -> None:
        self._ranks, self._work, self._out = ranks, work, out
        self.arrived_at: float | None = None
        self._noted = work.get_future().then(self._note) if ranks.notes_times else None

    def _note(self, _: Any) -> None:
        self.arrived_at = time.perf_counter()

    def wait(self) -> Tensor:
        begin = time.perf_counter()
        try:
            self._work.wait()
        except RuntimeError as error:
            raise self._ranks.lost(error) from error
        self._ranks.sent.waits.seconds += time.perf_counter() - begin
        if self._noted is not None:
            self._noted.wait()  # by a thread of Gloo, of which nothing is left then
        return self._out


def _as_sent(rows: Tensor) -> Tensor:
    """[R, bytes] of dtypes that Gloo has no arithmetic of; other tensors unchanged."""
    if rows.dtype not in _AS_BYTES:
        return rows
    width = math.prod(rows.shape[1:])
    return rows.view(len(rows), width).view(torch.uint8)
