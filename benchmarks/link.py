"""A link of a stated rate between fast and slow memory, where a machine has only one kind of memory.

    pace(embedding, bytes_per_second)      # every row that moves takes its time on the link

    gather_rate(records)                   # what to compare its rate with

Both directions share the link. A row's own copy counts towards its time, so that the link is never
faster than stated and, beside copies that take longer, no slower than they are.
"""

import threading
import time
from typing import Any

import torch
from torch import Tensor

from hotrows import ops
from hotrows.engine.embedding import Embedding
from hotrows.storage.store import Store


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

    def __init__(self, bytes_per_second: float) -> None:
        self.bytes_per_second = bytes_per_second
        self.busy_seconds = 0.0
        self.num_bytes = 0
        self._free_at = 0.0
        self._lock = threading.Lock()

    def send(self, num_bytes: int, begun: float) -> None:
        """Waits until so many bytes have crossed. begun: when their copy began."""
        seconds = num_bytes / self.bytes_per_second
        with self._lock:
            self._free_at = max(begun, self._free_at) + seconds
            self.busy_seconds += seconds
            self.num_bytes += num_bytes
            arrives = self._free_at
        time.sleep(max(0.0, arrives - time.perf_counter()))


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


def pace(embedding: Embedding, bytes_per_second: float) -> Link:
    """Puts a link between the caches of an embedding and its stores."""
    link = Link(bytes_per_second)
    assert embedding.cached_tables is not None
    for group in embedding.cached_tables.groups:
        group.cache.store = PacedStore(group.cache.store, link)
    return link
