"""Where the rows of a pack live for good.

`MemoryStore` holds every record of a pack in host memory, so a row's slot is its row number.
`HostStore` and `FileStore` (in `storage.file`) stand behind a cache and serve a group of packs that
read the same rows: they `read` and `write` records of the group, its packs' records side by side.
Stores obey plans: they know nothing of ids, batches or optimizers.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from hotrows import native, ops
from hotrows.record import RecordLayout, RecordViews, views
from hotrows.schema import Constant, Initializer, Normal

_CHUNK = 1 << 20  # rows


@dataclass(frozen=True)
class FirstValues:
    """How the rows of a store begin: from the stream of their table, wherever and whenever.

    first_rows: [K + 1], pieces: [K, 5] int64, of what tables the store is made (`ops.initialize`);
    state: of a new row, S numbers.
    """

    layout: RecordLayout
    first_rows: Tensor
    pieces: Tensor
    initializer: Initializer
    state: tuple[float, ...]

    @property
    def num_rows(self) -> int:
        return int(self.first_rows[-1])

    def fill(self, records: Tensor, rows: Tensor) -> None:
        """Makes records [m, stride] the first ones of `rows` [m] int64."""
        kind, scale = _kind(self.initializer)
        ops.initialize(
            records, self.layout.as_ints(), rows, self.first_rows, self.pieces, kind, scale,
            list(self.state),
        )  # fmt: skip


class MemoryStore:
    """All records of a pack in host memory, [R, stride] bytes, on huge pages where there are any."""

    def __init__(self, first: FirstValues) -> None:
        self.layout = first.layout
        self.records = empty_records(first.num_rows, self.layout.stride)
        for begin in range(0, first.num_rows, _CHUNK):
            end = min(begin + _CHUNK, first.num_rows)
            first.fill(self.records[begin:end], torch.arange(begin, end))

    @classmethod
    def empty(cls, layout: RecordLayout, num_rows: int) -> MemoryStore:
        """A store whose rows are still to be written."""
        store = cls.__new__(cls)
        store.layout, store.records = layout, empty_records(num_rows, layout.stride)
        return store

    @property
    def views(self) -> RecordViews:
        """Weights [R, D], state [R, S] and step [R] of all rows, as views of the records."""
        return views(self.records, self.layout.as_ints())

    @property
    def num_bytes(self) -> int:
        return self.records.numel()


class Store(Protocol):
    """Slow memory behind a cache: records of a group of packs, `stride` bytes each.

    One thread may read while another writes other rows.
    """

    stride: int

    def read(self, rows: Tensor, out: Tensor) -> None:
        """Fills out [m, stride] uint8 with the records of `rows` [m] int64, distinct, ascending."""

    def write(self, rows: Tensor, records: Tensor, keeps: bool = False) -> None:
        """Stores the records of `rows`; keeps: the writer holds them on, and writes before it reads."""


class HostStore:
    """The memory stores of a group's packs as slow memory."""

    def __init__(self, stores: Sequence[MemoryStore]) -> None:
        self.stores = tuple(stores)
        self.stride = sum(store.layout.stride for store in stores)

    def read(self, rows: Tensor, out: Tensor) -> None:
        for store, part in zip(self.stores, self._parts(out), strict=True):
            ops.copy_rows(store.records, rows, part, None)

    def write(self, rows: Tensor, records: Tensor, keeps: bool = False) -> None:
        for store, part in zip(self.stores, self._parts(records), strict=True):
            ops.copy_rows(part, None, store.records, rows)

    def _parts(self, records: Tensor) -> tuple[Tensor, ...]:
        return records.split([store.layout.stride for store in self.stores], 1)


def empty_records(num_rows: int, stride: int) -> Tensor:
    """[num_rows, stride] bytes of memory, on huge pages where there are any."""
    try:
        records = torch.empty(num_rows, stride, dtype=torch.uint8)
    except RuntimeError as error:
        raise ValueError(
            f"{num_rows:,} rows of {stride} bytes need {num_rows * stride / 2**30:.1f} GiB of "
            f"memory, which this machine does not give; keep the tables in a file "
            f"(store='file:PATH' with fast_memory), or use a smaller dim, a row optimizer with less "
            f"state, or a larger min_count when preparing the data"
        ) from error
    library = native.load()
    if library is not None and records.numel():
        library.hotrows_advise_huge_pages(native.pointer(records), ctypes.c_int64(records.numel()))
    return records


def _kind(initializer: Initializer) -> tuple[str, float]:
    if isinstance(initializer, Constant):
        return "constant", initializer.value
    if isinstance(initializer, Normal):
        return "normal", initializer.std
    return "uniform", initializer.scale
