"""Ranks that are processes, behind torch.distributed.

    ranks = processes.start()          # within torchrun: joins the others; alone: one rank

A process group that exists already is used as it is. Every channel is a Gloo group of its own; a
collective that does not end within `timeout` seconds raises, so that no job hangs.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist

from hotrows.ranks import Arriving, OneRank, Ranks

TIMEOUT = 300.0  # seconds
_AS_BYTES = (torch.bfloat16, torch.float16)  # Gloo sends bytes of all of these


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
    # Ranks that torchrun starts again meet in the same store: what the last ones left there, their
    # addresses, is not for these.
    patience = timedelta(seconds=timeout)
    store, rank, num_ranks = next(dist.rendezvous("env://", timeout=patience))
    attempt = dist.PrefixStore(f"hotrows/{_restarts()}", store)
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    dist.init_process_group(
        backend, store=attempt, rank=rank, world_size=num_ranks, timeout=patience
    )
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
            group = dist.new_group(backend="gloo", timeout=timedelta(seconds=self._timeout))
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
        return RankLost(
            f"rank {self.rank} lost another of the {self.num_ranks} ranks, or waited for it more than "
            f"{self._timeout:,.0f} s: {str(error).splitlines()[0]}; look for the first error among the "
            f"ranks' messages, then go on from the last checkpoint with --resume"
        )


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
