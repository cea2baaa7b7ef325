"""The records of all tables, made and locked once, for every arm that a process trains in turn.

    block   | rows of pack 0: table, table, .. | rows of pack 1 | ..        [R, stride] uint8

Tables of the first arm fill gigabytes and the pages of host memory must be locked for the device, which
takes longer than an arm does. Rows begin as zeros, and as what earlier arms made of them. Only the first
steps of an arm are compared with those of others: the rows that these read are set to first values,
which depend on table and id alone.
"""

import contextlib
from collections.abc import Iterator
from unittest import mock

import torch
from torch import Tensor

from benchmarks.gpu_parts.part import Setting
from benchmarks.gpu_parts.timing import lock, unlock
from hotrows import ops
from hotrows.engine.embedding import Embedding
from hotrows.engine.storage.store import MemoryStore, empty_records
from hotrows.ops.record import RecordLayout, views
from hotrows.runtime.device import HOST, aligned, find

_NUM_VALUES = 4096  # first values are those of id modulo this
_CHUNK = 4 << 30  # bytes locked at once


class Memory:
    """layout: of a record; on_device: where the block is; num_rows: of all tables together."""

    def __init__(self, num_rows: int, layout: RecordLayout, on_device: bool, setting: Setting) -> None:
        self._setting, self._layout = setting, layout
        self.device = (find(setting.device) if on_device else HOST).torch
        stride = aligned(layout.stride) if setting.on_gpu else layout.stride
        if on_device:
            self.block = torch.zeros(num_rows, stride, dtype=torch.uint8, device=self.device)
        else:
            self.block = empty_records(num_rows, stride)
        self._locked: list[Tensor] = []
        if not on_device:
            # Chunks are whole pages of the block, which begins one; the last one ends with it.
            for chunk in self.block.view(-1).split(_CHUNK):
                chunk.zero_()
                lock(chunk, setting)
                self._locked.append(chunk)
        self._values = self._first_values()

    def close(self) -> None:
        for chunk in self._locked:
            unlock(chunk, self._setting)
        self._locked = []

    def _first_values(self) -> Tensor:
        """[_NUM_VALUES, stride]: the records of the ids 0, 1, .."""
        records = torch.zeros(_NUM_VALUES, self.block.shape[1], dtype=torch.uint8)
        weights = views(records[:, : self._layout.stride], self._layout.as_ints()).weights
        weights.uniform_(-0.01, 0.01, generator=torch.Generator().manual_seed(0))
        return records.to(self.device)

    @contextlib.contextmanager
    def in_place_of_tables(self, instead: Tensor | None = None) -> Iterator[None]:
        """Within, an `Embedding` is made on the block, or on the records `instead`, and fills nothing."""
        begin = 0

        def make(values, device=HOST, block=None) -> MemoryStore:
            nonlocal begin
            records = self.block[begin : begin + values.num_rows] if instead is None else instead
            begin += values.num_rows
            return MemoryStore(values.layout, records[:, : values.layout.stride], device, block)

        def make_group(values) -> tuple[Tensor, list[MemoryStore]]:
            block = self.block[begin : begin + values[0].num_rows]
            return block, [make(values[0], block=block)]

        device = type(find(self._setting.device))
        with (
            mock.patch.object(MemoryStore, "begun", make),
            mock.patch("hotrows.engine.packed_tables.group_block", make_group),
            mock.patch.object(device, "page_lock", lambda *_: None),
        ):
            yield

    def places(self, embedding: Embedding, ids: list[Tensor]) -> list[Tensor]:
        """The rows of the block that hold these ids of each table."""
        rows, begin = {}, 0
        for pack in embedding.packs:
            for table, first in zip(pack.tables, pack.first_rows, strict=False):
                rows[table.name] = begin + int(first)
            begin += pack.rows
        return [of_table + rows[t.name] for t, of_table in zip(embedding.tables, ids, strict=True)]

    def restore(self, embedding: Embedding, ids: list[Tensor]) -> None:
        """Gives rows their first values."""
        for of_table, rows in zip(ids, self.places(embedding, ids), strict=True):
            values = (of_table % _NUM_VALUES).to(self.device)
            ops.copy_rows(self._values, values, self.block, rows.to(self.device))

    def state_of(self, embedding: Embedding, ids: list[Tensor]) -> dict:
        """`bits`: a checksum of the records of these ids; `change`: of their weights, in sum."""
        total, change = 0, 0.0
        for of_table, rows in zip(ids, self.places(embedding, ids), strict=True):
            records = torch.zeros(len(rows), self.block.shape[1], dtype=torch.uint8, device=self.device)
            ops.copy_rows(self.block, rows.to(self.device), records, None)
            records = records[:, : self._layout.stride].contiguous()
            total = (31 * total + checksum(records)) % (1 << 64)
            difference = self._weights(records) - self.first_weights(of_table)
            change += difference.abs().sum(dtype=torch.float64).item()
        return {"bits": f"{total:016x}", "change": change}

    def first_weights(self, ids: Tensor) -> Tensor:
        """[n, dim]: the weights that ids begin with."""
        values = self._values[:, : self._layout.stride]
        return self._weights(values)[(ids % _NUM_VALUES).to(self.device)]

    def _weights(self, records: Tensor) -> Tensor:
        return views(records, self._layout.as_ints()).weights


def checksum(records: Tensor) -> int:
    """Of [n, stride] bytes; depends on what stands where."""
    words = records.view(torch.int32).long().reshape(-1)  # strides are multiples of four
    places = torch.arange(1, 2 * len(words), 2, device=words.device)
    return int((words * places).sum()) % (1 << 64)
