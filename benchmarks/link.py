"""Links of a stated rate, where a machine has only one kind of memory, and ranks share it.

    pace(embedding, bytes_per_second)      # every row that moves takes its time on the link
    PacedRanks(ranks, Link(bytes_per_second, latency))    # and so does every message

    gather_rate(records)                   # what to compare its rate with

Both directions share the link. A row's own copy counts towards its time, so that the link is never
faster than stated and, beside copies that take longer, no slower than they are.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from hotrows.distributed.comm import Arriving, Ranks
from hotrows.storage.store import Store
from torch import Tensor

from hotrows import ops
from hotrows.engine.embedding import Embedding


def gather_rate(records: Tensor, seconds: float = 1.5) -> float:
    """Bytes a second at which this process gathers rows of memory at random, [R, stride] uint8.

    A mean, not the best: where other programs keep the cores busy they slow down what is fast, and a
    link that is to be so many times slower with it.
    """
    rows = torch.randint(len(records), (min(len(records), 20_000),)).sort().values
    out, num = torch.empty(len(rows), records.shape[1], dtype=torch.uint8), 0
    begin = time.perf_counter()
    while time.perf_counter() - begin < seconds:
        ops.copy_rows(records, rows, out, None)
        num += 1
    return num * out.numel() / (time.perf_counter() - begin)


class Link:
    """Gives bytes their turn; what waits sleeps, and leaves its core to others."""

    def __init__(self, bytes_per_second: float, latency: float = 0.0) -> None:
        self.bytes_per_second, self.latency = bytes_per_second, latency
        self.busy_seconds = 0.0
        self.num_bytes = 0
        self._free_at = 0.0
        self._lock = threading.Lock()

    def send(self, num_bytes: int, begun: float) -> None:
        """Waits until so many bytes have crossed. begun: when their copy began."""
        sleep_until(self.arrival(num_bytes, begun))

    def arrival(self, num_bytes: int, begun: float) -> float:
        """Takes the link's next turn for so many bytes; returns when they will have crossed."""
        seconds = self.latency + num_bytes / self.bytes_per_second
        with self._lock:
            self._free_at = max(begun, self._free_at) + seconds
            self.busy_seconds += seconds
            self.num_bytes += num_bytes
            return self._free_at


def sleep_until(when: float) -> None:
    """when: by `time.perf_counter`."""
    time.sleep(max(0.0, when - time.perf_counter()))


class PacedStore:
    """A store behind a link."""

    def __init__(self, store: Store, link: Link) -> None:
        self._store, self._link, self.stride = store, link, store.stride

    def read(self, rows: Tensor, out: Tensor) -> None:
        begun = time.perf_counter()
        self._store.read(rows, out)
        self._link.send(len(rows) * self.stride, begun)

    def write(self, rows: Tensor, records: Tensor, keeps: bool = False) -> None:
        begun = time.perf_counter()
        self._store.write(rows, records, keeps)
        self._link.send(len(rows) * self.stride, begun)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


class PacedRanks:
    """Ranks whose messages share a link of a stated rate, out and in at once; they wait asleep.

    link: of this rank. A collective takes its turn when it begins; what is received comes meanwhile.
    """

    def __init__(self, ranks: Ranks, link: Link) -> None:
        self._ranks, self.link = ranks, link
        self._channels: dict[str, PacedRanks] = {}

    def all_to_all(self, rows: Tensor, sent: Sequence[int], received: Sequence[int]) -> Arriving:
        others = [p for p in range(self._ranks.num_ranks) if p != self._ranks.rank]
        width = rows[0].nbytes if len(rows) else 0
        most = max(sum(counts[p] for p in others) for counts in (sent, received))
        return self._paced(most * width, self._ranks.all_to_all, rows, sent, received)

    def all_reduce(self, values: Tensor) -> Arriving:
        num_ranks = self._ranks.num_ranks
        num_bytes = values.nbytes * 2 * (num_ranks - 1) // num_ranks
        return self._paced(num_bytes, self._ranks.all_reduce, values)

    def all_gather(self, values: Tensor) -> Arriving:
        num_bytes = values.nbytes * (self._ranks.num_ranks - 1)
        return self._paced(num_bytes, self._ranks.all_gather, values)

    def channel(self, name: str) -> PacedRanks:
        if name not in self._channels:
            self._channels[name] = PacedRanks(self._ranks.channel(name), self.link)
        return self._channels[name]

    def _paced(self, num_bytes: int, collective: Callable[..., Arriving], *arguments: Any) -> Arriving:
        arrives = self.link.arrival(num_bytes, time.perf_counter())
        return _Paced(collective(*arguments), arrives)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ranks, name)


class _Paced:
    arrived_at: float | None = None

    def __init__(self, arriving: Arriving, arrives: float) -> None:
        self._arriving, self._arrives = arriving, arrives

    def wait(self) -> Tensor:
        value = self._arriving.wait()
        sleep_until(self._arrives)
        return value


def pace(embedding: Embedding, bytes_per_second: float) -> Link:
    """Puts a link between the caches of an embedding and its stores."""
    link = Link(bytes_per_second)
    assert embedding.cached_tables
    for group in embedding.cached_tables.groups:
        group.cache.store = PacedStore(group.cache.store, link)
    return link
