"""Ranks that are processes, behind torch.distributed.

    ranks = processes.start()          # within torchrun: joins the others; alone: one rank

A process group that exists already is used as it is. Every channel is a Gloo group of its own; a
collective that does not end within `timeout` seconds raises, so that no job hangs.
"""

from __future__ import annotations

import math
import os
import re
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist

from hotrows.ranks import Arriving, OneRank, Ranks

TIMEOUT = 300.0  # seconds
_AS_BYTES = (torch.bfloat16, torch.float16)  # Gloo sends bytes of all of these


_POLL = 0.02  # seconds
_GRACE = 2.0  # seconds in which a step may end by its own timeout
_TIMED_OUT = re.compile("timed? ?out", re.IGNORECASE)


class RankLost(RuntimeError):
    """Another rank has gone, or does not answer."""


def start(timeout: float = TIMEOUT) -> Ranks:
    """All ranks of this job, from torchrun's environment variables; alone without them.

    timeout: seconds that a collective may take.
    """
    if dist.is_initialized():
        return Processes(timeout)
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
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
    return Processes(timeout)


def restarted() -> bool:
    """Whether torchrun has started this job again after a failure (`--max-restarts`)."""
    return _restarts() > 0


def _restarts() -> int:
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


def name() -> str:
    """`rank 1: ` within a job of several ranks, for messages; nothing else."""
    return f"rank {os.environ['RANK']}: " if int(os.environ.get("WORLD_SIZE", "1")) > 1 else ""


@dataclass
class Sent:
    """What a rank has sent to others: bytes, and messages (one to each rank it has something for)."""

    num_bytes: int = 0
    messages: int = 0


class Processes:
    """This process among those of a process group; see `hotrows.ranks.Ranks`.

    sent: so far, on all channels; notes_times: whether collectives say when they were over.
    """

    def __init__(
        self, timeout: float = TIMEOUT, group: Any = None, sent: Sent | None = None
    ) -> None:
        self.rank, self.num_ranks = dist.get_rank(), dist.get_world_size()
        self.sent = sent or Sent()
        self.notes_times = False
        self._timeout = timeout
        self._group = group
        self._channels: dict[str, Processes] = {}

    def all_to_all(self, rows: Tensor, sent: Sequence[int], received: Sequence[int]) -> Arriving:
        out = rows.new_empty(sum(received), *rows.shape[1:])
        self._count(rows, [n for p, n in enumerate(sent) if p != self.rank])
        work = self._guarded(
            dist.all_to_all_single, _as_sent(out), _as_sent(rows.contiguous()), list(received),
            list(sent), group=self._group, async_op=True,
        )  # fmt: skip
        return _Travelling(self, work, out)

    def all_reduce(self, values: Tensor) -> Arriving:
        # A ring sends every rank 2 (P - 1) / P of the values, in as many messages.
        steps = 2 * (self.num_ranks - 1)
        self.sent.num_bytes += values.nbytes * steps // self.num_ranks
        self.sent.messages += steps
        work = self._guarded(dist.all_reduce, values, group=self._group, async_op=True)
        return _Travelling(self, work, values)

    def all_gather(self, values: Tensor) -> Arriving:
        out = values.new_empty(self.num_ranks, *values.shape)
        self._count(values[None], [1] * (self.num_ranks - 1))
        work = self._guarded(
            dist.all_gather, list(out.unbind()), values.contiguous(), group=self._group,
            async_op=True,
        )  # fmt: skip
        return _Travelling(self, work, out)

    def gather_objects(self, value: Any) -> list[Any]:
        found = [None] * self.num_ranks
        self._guarded(dist.all_gather_object, found, value, group=self._group)
        return found

    def barrier(self) -> None:
        self._guarded(dist.barrier, group=self._group)

    def channel(self, name: str) -> Processes:
        if name not in self._channels:
            timeout = timedelta(seconds=self._timeout)
            group = self._guarded(
                _within, self._timeout, lambda: dist.new_group(backend="gloo", timeout=timeout)
            )
            self._channels[name] = Processes(self._timeout, group, self.sent)
        return self._channels[name]

    def _count(self, rows: Tensor, others: Sequence[int]) -> None:
        width = rows[0].nbytes if len(rows) else 0
        self.sent.num_bytes += sum(others) * width
        self.sent.messages += sum(n > 0 for n in others)

    def _guarded(self, function: Any, *arguments: Any, **rest: Any) -> Any:
        try:
            return function(*arguments, **rest)
        except RuntimeError as error:
            raise self.lost(error) from error

    def lost(self, error: RuntimeError) -> RankLost:
        """What to say of a collective that failed."""
        others, reason = f"another of the {self.num_ranks} ranks", _reason(error)
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


def _join(timeout: timedelta) -> None:
    store, rank, num_ranks = next(dist.rendezvous("env://", timeout=timeout))
    room = _meet(store, rank, num_ranks, timeout)
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    dist.init_process_group(backend, store=room, rank=rank, world_size=num_ranks, timeout=timeout)


def _meet(store: Any, rank: int, num_ranks: int, timeout: timedelta) -> Any:
    """The part of the store for the ranks that are there now.

    torchrun's store outlives a restart, and with it the addresses of ranks that are dead: who reads them
    connects to nobody. So rank 0 opens a room under a name of its own, the others leave theirs in it,
    and enter once they find them in its answer. Counting restarts would not do, since the agents of
    several hosts count apart.
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
    """What the step gives; Gloo's own timeout does not end a wait for a rank that died connecting."""
    found: list[Any] = []
    failed: list[BaseException] = []

    def take() -> None:
        try:
            found.append(step())
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=take, name="hotrows-connect", daemon=True)
    thread.start()
    thread.join(timeout + _GRACE)
    if failed:
        raise failed[0]
    if not found:
        raise RuntimeError("timed out connecting")
    return found[0]


def _reason(error: RuntimeError) -> str:
    """What Gloo says, without where in its source and what may typically be the cause."""
    line = re.sub(r"^\[\S+:\d+\] ", "", str(error).splitlines()[0])
    return line.partition(". This is typically")[0]


class _Travelling:
    """A collective under way.

    arrived_at: when its result was there, by `time.perf_counter`, where the ranks note times.
    """

    def __init__(self, ranks: Processes, work: Any, out: Tensor) -> None:
        self._ranks, self._work, self._out = ranks, work, out
        self.arrived_at: float | None = None
        if ranks.notes_times:
            work.get_future().add_done_callback(self._note)

    def _note(self, _: Any) -> None:
        self.arrived_at = time.perf_counter()

    def wait(self) -> Tensor:
        try:
            self._work.wait()
        except RuntimeError as error:
            raise self._ranks.lost(error) from error
        return self._out


def _as_sent(rows: Tensor) -> Tensor:
    """[R, bytes] of what Gloo knows no arithmetic of; all else as it is."""
    if rows.dtype not in _AS_BYTES:
        return rows
    width = math.prod(rows.shape[1:])
    return rows.view(len(rows), width).view(torch.uint8)
