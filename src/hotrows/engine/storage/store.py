"""Stores: where the records of a pack are stored permanently.

`MemoryStore` has every record of a pack in memory, the host's or a device's, so a row's slot is its
row number. `HostStore` and `FileStore` (in `file_store`) are behind a cache and serve a group of packs
that read the same rows: they `read` and `write` records of the group, its packs' records side by side.
Stores obey plans: they know nothing of ids, batches or optimizers.
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from hotrows import ops
from hotrows.ops.record import RecordLayout, RecordViews, views
from hotrows.runtime import native
from hotrows.runtime.device import HOST, Device, aligned
from hotrows.table import Constant, Initializer, Normal

_CHUNK = 1 << 20  # rows
_MAP_NORESERVE = 0x4000  # of Linux, where Python has no name for it


@dataclass(frozen=True)
class InitialValues:
    """The initial values of the rows of a store, drawn from the random stream of their table.

    first_rows: [K + 1], pieces: [K, 5] int64, the tables that the store consists of, as in
    `ops.initialize`; state: S numbers of a new row; step: its int32, where records have one. present:
    (begin, end) of the rows that a store begins with, where others come with their keys; None: all.
    """

    layout: RecordLayout
    first_rows: Tensor
    pieces: Tensor
    initializer: Initializer
    state: tuple[float, ...]
    step: int = 0
    present: tuple[tuple[int, int], ...] | None = None

    @property
    def num_rows(self) -> int:
        return int(self.first_rows[-1])

    def fill(self, records: Tensor, rows: Tensor) -> None:
        """Fills records [m, stride] with the initial values of `rows` [m] int64."""
        keys, state = (self.first_rows, self.pieces), list(self.state)
        layout = self.layout.as_ints()
        ops.initialize(records, layout, rows, *keys, *_kind(self.initializer), state)
        if self.step and len(records):
            step = views(records, layout).step
            assert step is not None
            step.fill_(self.step)

    def of_keys(self, rows: Tensor, keys: Tensor) -> Tensor:
        """[b, stride]: new records of rows that stand for keys of dynamic features.

        A key has the first values that the row of an id equal to it has in a table without keys.
        """
        records = torch.empty(len(rows), self.layout.stride, dtype=torch.uint8)
        pieces = self.pieces[torch.searchsorted(self.first_rows, rows, right=True) - 1].clone()
        pieces[:, 1], pieces[:, 2] = keys, 1  # each row is a piece that begins with its key
        numbers = torch.arange(len(rows) + 1)
        kind, scale = _kind(self.initializer)
        ops.initialize(
            records, self.layout.as_ints(), numbers[:-1], numbers, pieces, kind, scale, list(self.state)
        )
        return records


class MemoryStore:
    """All records of a pack in memory, [R, stride] bytes: on huge pages where there are any, or on a
    device. Where rows come with their keys, only those that have come take memory.

    block: the `group_block` that the records are part of, if any.
    """

    def __init__(
        self, layout: RecordLayout, records: Tensor, device: Device = HOST, block: Tensor | None = None
    ) -> None:
        self.layout, self.records, self.device, self.block = layout, records, device, block

    @classmethod
    def empty(cls, layout: RecordLayout, num_rows: int) -> MemoryStore:
        """A store of uninitialised records in host memory."""
        return cls(layout, empty_records(num_rows, layout.stride))

    @classmethod
    def begun(cls, values: InitialValues, device: Device = HOST) -> MemoryStore:
        """A store of initial values."""
        stride, num_rows = values.layout.stride, values.num_rows
        if values.present is None or not device.on_host or num_rows == 0:
            records = empty_records(num_rows, stride, device)
            if values.present is not None:
                records.zero_()  # readers of whole tables see rows that have not come, too
        else:
            records = _reserved_records(num_rows, stride)
        store = cls(values.layout, records, device)
        store.begin(values)
        return store

    def begin(self, values: InitialValues) -> None:
        """Gives the rows that are present their initial values."""
        for first, end in values.present or ((0, values.num_rows),):
            for begin in range(first, end, _CHUNK):
                rows = torch.arange(begin, min(begin + _CHUNK, end))
                if self.device.on_host:
                    values.fill(self.records[begin : begin + len(rows)], rows)
                else:  # made on the host, so that they have the same bits everywhere
                    records = empty_records(len(rows), self.layout.stride)
                    values.fill(records, rows)
                    self.copy_in(begin, records)

    @property
    def is_plain(self) -> bool:
        """True if its records have host memory of their own."""
        return self.device.on_host and self.block is None

    @property
    def views(self) -> RecordViews:
        """Weights [R, D], state [R, S] and step [R] of all rows, as views of the records."""
        return views(self.records, self.layout.as_ints())

    @property
    def num_bytes(self) -> int:
        return self.records.numel()

    def copy_out(self, begin: int, end: int) -> Tensor:
        """[end - begin, stride]: records in host memory; views of records that are there already."""
        return self.records[begin:end].cpu().contiguous()

    def copy_in(self, begin: int, records: Tensor) -> None:
        """Overwrites the records from row `begin` on by records in host memory."""
        self.records[begin : begin + len(records)] = self.device.put(records)


class Store(Protocol):
    """Slow memory behind a cache: records of a group of packs, `stride` bytes each.

    One thread may read while another writes other rows.
    """

    stride: int

    def read(self, rows: Tensor, out: Tensor) -> None:
        """Fills out [m, stride] uint8 with the records of `rows` [m] int64, distinct, ascending."""

    def write(self, rows: Tensor, records: Tensor, keeps: bool = False) -> None:
        """Stores the records of `rows`; keeps: the writer retains them, and writes before it reads."""


class HostStore:
    """The memory stores of a group's packs as slow memory; where these share a `group_block`, its records
    are those of the group, with gaps."""

    def __init__(self, stores: Sequence[MemoryStore]) -> None:
        self.stores, self._block = tuple(stores), stores[0].block
        self.stride = sum(store.layout.stride for store in stores)
        if self._block is not None:
            self.stride = self._block.shape[1]

    def read(self, rows: Tensor, out: Tensor) -> None:
        if self._block is not None:
            ops.copy_rows(self._block, rows, out, None)
            return
        for store, part in zip(self.stores, self._parts(out), strict=True):
            ops.copy_rows(store.records, rows, part, None)

    def write(self, rows: Tensor, records: Tensor, keeps: bool = False) -> None:
        if self._block is not None:
            ops.copy_rows(records, None, self._block, rows)
            return
        for store, part in zip(self.stores, self._parts(records), strict=True):
            ops.copy_rows(part, None, store.records, rows)

    def _parts(self, records: Tensor) -> tuple[Tensor, ...]:
        return records.split([store.layout.stride for store in self.stores], 1)


def group_block(values: Sequence[InitialValues]) -> tuple[Tensor, list[MemoryStore]]:
    """Host memory of a group's packs, and the store of each: the records of a row lie side by side.

    Each begins at a multiple of what a device reads at once, so a row is moved as a whole, in few and
    full requests: [R, sum of the strides, each rounded up].
    """
    sizes = [aligned(of_pack.layout.stride) for of_pack in values]
    block = empty_records(values[0].num_rows, sum(sizes))
    if values[0].present is not None:
        block.zero_()  # as in `MemoryStore.begun`
    stores = [
        MemoryStore(of_pack.layout, part[:, : of_pack.layout.stride], block=block)
        for of_pack, part in zip(values, block.split(sizes, 1), strict=True)
    ]
    for store, of_pack in zip(stores, values, strict=True):
        store.begin(of_pack)
    return block, stores


def empty_records(num_rows: int, stride: int, device: Device = HOST) -> Tensor:
    """[num_rows, stride] bytes of memory, on huge pages where there are any.

    Host memory is on pages of its own, which can be locked for a device. On a device records begin at
    aligned addresses, so there may be gaps between them.
    """
    if not device.on_host:
        return _on_device(num_rows, stride, device)
    try:
        records = _on_own_pages(num_rows * stride).view(num_rows, stride)
    except RuntimeError as error:
        raise ValueError(
            f"{num_rows:,} rows of {stride} bytes need {num_rows * stride / 2**30:.1f} GiB of "
            f"memory, which this machine does not give; keep the tables in a file "
            f"(store='file:PATH' with fast_memory), or use a smaller dim, a row optimizer with less "
            f"state, or a larger min_count when preparing the data"
        ) from error
    return _on_huge_pages(records)


def _reserved_records(num_rows: int, stride: int) -> Tensor:
    """[num_rows, stride] bytes of address space, zeros, which take memory as they are written."""
    try:
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", _MAP_NORESERVE)
        memory = mmap.mmap(-1, num_rows * stride, flags=flags)
    except (AttributeError, OSError, ValueError) as error:  # Windows reserves nothing
        raise ValueError(
            f"{num_rows:,} rows of {stride} bytes, to which a table without a capacity may grow, are "
            f"more than this system lets a process reserve ({error}); give it a capacity=ROWS"
        ) from error
    return _on_huge_pages(torch.frombuffer(memory, dtype=torch.uint8).view(num_rows, stride))


def _on_huge_pages(records: Tensor) -> Tensor:
    """The records, whose memory the system is advised to take in huge pages."""
    if records.numel():
        native.call("advise_huge_pages", records, records.numel())
    return records


def _on_own_pages(size: int) -> Tensor:
    """[size] bytes that begin a page and share none with other memory."""
    block = torch.empty(size + 2 * mmap.PAGESIZE, dtype=torch.uint8)
    begin = -block.data_ptr() % mmap.PAGESIZE
    return block[begin : begin + size]


def _on_device(num_rows: int, stride: int, device: Device) -> Tensor:
    distance = aligned(stride)
    try:
        records = torch.empty(num_rows, distance, dtype=torch.uint8, device=device.torch)
    except torch.OutOfMemoryError as error:
        raise ValueError(
            f"{num_rows:,} rows of {distance} bytes need {num_rows * distance / 2**30:.1f} GiB of "
            f"the device's memory, which has not so much left: keep the rows in host memory and a part "
            f"of them on the device (fast_memory), or use a smaller dim or a row optimizer with less "
            f"state"
        ) from error
    return records[:, :stride]


def _kind(initializer: Initializer) -> tuple[str, float]:
    if isinstance(initializer, Constant):
        return "constant", initializer.value
    if isinstance(initializer, Normal):
        return "normal", initializer.std
    return "uniform", initializer.scale
