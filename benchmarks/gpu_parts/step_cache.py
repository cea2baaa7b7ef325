"""A cache that is filled within the step, as TorchRec's and FBGEMM's over unified memory is.

    slots = cache.fetch(rows)       # the batch's distinct rows: hits stay, misses are brought in now
    (lookup, backward, update on these slots)
    cache.put_back()                # rows that found no slot are written to host memory

Rows belong to sets of 32 slots by a hash; a miss takes the slot of its set that was used longest ago and
not by this batch, whose row is written to host memory first. More misses than that in one set have
places behind the slots for this step alone. Nothing is planned ahead and nothing overlaps: that is what
it stands for. On a GPU in Triton (`step_cache_kernels`), elsewhere in PyTorch, step by step the same.
"""

import torch
from torch import Tensor

WAYS = 32
_HASH = 0x9E3779B1


class StepCache:
    """host: [R, stride] uint8, the records of all rows, read and written by the device where there is
    one; num_slots: of the cache, rounded down to sets; most_rows: distinct rows of a batch at most."""

    def __init__(self, host: Tensor, num_slots: int, most_rows: int, device: str) -> None:
        self.host, self._device = host, device
        self.num_sets = max(num_slots // WAYS, 1)
        shape = (self.num_sets, WAYS)
        self.row_of = torch.full(shape, -1, dtype=torch.int64, device=device)
        self.last_use = torch.full(shape, -1, dtype=torch.int32, device=device)
        # Records begin at multiples of 16 bytes, as those of the library do.
        stride = -(-host.shape[1] // 16) * 16
        records = torch.zeros(self.num_slots + most_rows, stride, dtype=torch.uint8, device=device)
        self.records = records[:, : host.shape[1]]
        self.num_misses = torch.zeros((), dtype=torch.int64, device=device)
        self._time = 0
        self._rows = self._slots = torch.empty(0, dtype=torch.int64, device=device)

    @property
    def num_slots(self) -> int:
        return self.num_sets * WAYS

    def fetch(self, rows: Tensor) -> Tensor:
        """[U] int64: where the records of `rows` [U] are, distinct but for padding, which is -1."""
        self._time += 1
        sets = ((rows * _HASH) >> 16).remainder(self.num_sets)
        slots = self._find(rows, sets)
        missing = (slots < 0) & (rows >= 0)
        self.num_misses += missing.sum()
        of_set, order = torch.where(missing, sets, self.num_sets).sort(stable=True)
        rank = torch.arange(len(rows), device=rows.device) - torch.searchsorted(of_set, of_set)
        self._replace(rows, slots, of_set, order, rank)
        self._rows, self._slots = rows, slots
        return slots.clamp(min=0)

    def put_back(self) -> None:
        """Writes the rows that found no slot to host memory."""
        if self._on_gpu:
            self._kernels.put_back(self.records, self.host, self._rows, self._slots, self.num_slots)
            return
        out = self._slots >= self.num_slots
        self.host[self._rows[out]] = self.records[self._slots[out]]

    def flush(self) -> None:
        """Launches the write of all rows to host memory; they stay."""
        rows = self.row_of.view(-1)
        slots = torch.where(rows >= 0, torch.arange(len(rows), device=rows.device), -1)
        if self._on_gpu:
            self._kernels.put_back(self.records, self.host, rows, slots, 0)
            return
        self.host[rows[slots >= 0]] = self.records[slots[slots >= 0]]

    @property
    def _on_gpu(self) -> bool:
        return self.records.is_cuda

    @property
    def _kernels(self):
        from benchmarks.gpu_parts import step_cache_kernels

        return step_cache_kernels

    def _find(self, rows: Tensor, sets: Tensor) -> Tensor:
        """The slots of rows, which are used now; -1: it has none."""
        if self._on_gpu:
            return self._kernels.find(rows, sets, self.row_of, self.last_use, self._time)
        hit = (self.row_of[sets] == rows[:, None]) & (rows >= 0)[:, None]
        slots = torch.where(hit.any(1), sets * WAYS + hit.int().argmax(1), -1)
        self.last_use.view(-1)[slots[slots >= 0]] = self._time
        return slots

    def _replace(self, rows: Tensor, slots: Tensor, of_set: Tensor, order: Tensor, rank: Tensor) -> None:
        """Gives missing rows their slots, and moves records: of_set, order, rank: of misses by set."""
        if self._on_gpu:
            self._kernels.replace(
                self.records, self.host, rows, slots, of_set, order, rank, self.row_of, self.last_use,
                self._time,
            )  # fmt: skip
            return
        num = int((of_set < self.num_sets).sum())
        of_set, place, rank = of_set[:num], order[:num], rank[:num]
        oldest_first = self.last_use[of_set].sort(dim=1, stable=True)
        way = oldest_first.indices.gather(1, rank.clamp(max=WAYS - 1)[:, None])[:, 0]
        free = (rank < WAYS) & (self.last_use[of_set, way] < self._time)
        slot = torch.where(free, of_set * WAYS + way, self.num_slots + place)
        slots[place] = slot
        old = torch.where(free, self.row_of[of_set, way], -1)
        self.host[old[old >= 0]] = self.records[slot[old >= 0]]
        self.records[slot] = self.host[rows[place]]
        self.row_of.view(-1)[slot[free]] = rows[place][free]
        self.last_use.view(-1)[slot[free]] = self._time
