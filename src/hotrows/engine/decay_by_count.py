"""DecayByCount: the factor of each row's weight decay, for optimizers with `decay_by_count`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from hotrows.engine.planning.packing import Pack
from hotrows.ops.record import RankShard
from hotrows.runtime.device import Device
from hotrows.runtime.shapes import Float32, Int64


class DecayByCount:
    """1 / how often the id of a row occurs in the training data, of the packs that decay by count."""

    def __init__(self, packs: Sequence[Pack], shards: Sequence[RankShard], device: Device) -> None:
        optimizers = [pack.tables[0].optimizer for pack in packs]
        self._packs, self._shards, self._device = packs, shards, device
        self._of = {p for p, optimizer in enumerate(optimizers) if optimizer and optimizer.decay_by_count}
        self._scales: dict[int, Tensor] = {}  # by pack: [rows]

    @property
    def needs_counts(self) -> bool:
        """True if `set_counts` must come before the first update."""
        return bool(self._of)

    def set_counts(self, counts: Mapping[str, Tensor]) -> None:
        """Sets how often each id of a table occurs in the training data: [rows] by table."""
        for p in sorted(self._of):
            tables = self._packs[p].tables
            absent = [table.name for table in tables if table.name not in counts]
            if absent:
                raise ValueError(f"decay_by_count: there are no counts of table {absent[0]!r}")
            of_slices = [
                counts[tables[piece.table].name][piece.ids.start : piece.ids.stop : piece.ids.step]
                for piece in self._shards[p].slices
            ]
            self._scales[p] = self._device.put(1 / torch.cat(of_slices).clamp(min=1).float())

    def factor(self, p: int, rows: Int64[Tensor, "U"]) -> Float32[Tensor, "U"] | None:
        """The factor of each row of pack p; None: 1."""
        if p in self._of and p not in self._scales:
            raise ValueError("decay_by_count needs the counts of ids: call set_counts first")
        return self._scales[p][rows] if p in self._of else None
