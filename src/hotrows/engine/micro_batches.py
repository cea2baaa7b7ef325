"""MicroBatches: lookups and gradients of plans whose rows are exchanged, micro-batch by micro-batch.

    leaves = micro_batches.lookup(plan, s)             # of each micro-batch in turn
    micro_batches.send_gradients(plan, s, gradients)   # likewise, before the next is looked up
    micro_batches.gradients(plan)                      # of this rank's rows, by pack, once all are sent

A rank's rows are looked up once, and `RowExchange` brings each rank those that its samples read. With
several streams, a micro-batch is pooled while the model trains on the one before.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from hotrows import ops
from hotrows.engine.distributed.comm import Note, Ranks
from hotrows.engine.distributed.row_exchange import RowExchange
from hotrows.engine.packed_tables import PackedTables, held_by_streams
from hotrows.ops.plan import PackPlan, Plan
from hotrows.ops.record import RecordLayout
from hotrows.runtime.cuda_streams import PendingTensors
from hotrows.runtime.device import Device
from hotrows.runtime.shapes import Float32

WIRE_DTYPES = {"float32": None, "bfloat16": torch.bfloat16, "float16": torch.float16}


class MicroBatches:
    """Looks up and updates the micro-batches of one plan at a time; all ranks call it together.

    wire_dtype: of rows and gradients between ranks. note: called with what happened, when.
    """

    note: Note | None = None

    def __init__(
        self, tables: PackedTables, ranks: Ranks, device: Device, wire_dtype: str = "float32"
    ) -> None:
        self._tables, self._ranks, self._device = tables, ranks, device
        self._wire_dtype = WIRE_DTYPES[wire_dtype]
        self._widths = [  # by pack, how many columns of its rows each rank has
            [pack.shard(rank, ranks.num_ranks).dim for rank in range(ranks.num_ranks)]
            for pack in tables.packs
        ]
        self._exchange: RowExchange | None = None
        self._prefetched: tuple[Plan, int, PendingTensors] | None = None

    def lookup(self, plan: Plan, s: int) -> list[Tensor]:
        """The bags of micro-batch s, [M, D] per pack."""
        if self._exchange is None or self._exchange.plan is not plan:
            pool = partial(self._tables.pool, plan=plan)
            self._exchange = RowExchange(
                plan, self._widths, pool, self._ranks, self._wire_dtype, self.note
            )
        leaves, streams = self._leaves(plan, s), self._tables.streams
        if streams.are_several and s + 1 < len(plan.micro_batches):
            pending = streams.begin(self._pools(self._exchange, s + 1), held_by_streams(plan))
            self._prefetched = plan, s + 1, pending
        return leaves

    def _leaves(self, plan: Plan, s: int) -> list[Tensor]:
        """The leaves of a micro-batch, prefetched or pooled now."""
        prefetched, self._prefetched = self._prefetched, None
        if prefetched is not None and prefetched[0] is plan and prefetched[1] == s:
            return prefetched[2].wait(self._device)
        assert self._exchange is not None
        return self._tables.streams.run_all(self._pools(self._exchange, s), held_by_streams(plan))

    def _pools(self, exchange: RowExchange, s: int) -> list[Callable[[], Tensor]]:
        parts = exchange.plan.micro_batches[s].packs
        return [partial(_pool, *pair) for pair in zip(exchange.rows(s), parts, strict=True)]

    def send_gradients(self, plan: Plan, s: int, leaves: Sequence[Tensor]) -> None:
        """Sends the gradients of a micro-batch's leaves to the ranks that have its rows."""
        parts = plan.micro_batches[s].packs
        pairs = zip(leaves, parts, strict=True)
        self._exchange_of(plan).send_gradients(s, [_sum_by_row(*pair) for pair in pairs])

    def gradients(self, plan: Plan, leaves: Sequence[Tensor]) -> Sequence[Tensor]:
        """The gradients of this rank's rows, by pack [num_shared + R, d], each waited for where it is
        first read; ends the exchange.

        leaves: of the last micro-batch, whose gradients are sent now if they were not.
        """
        exchange = self._exchange_of(plan)
        if not exchange.all_sent:
            self.send_gradients(plan, len(plan.micro_batches) - 1, leaves)
        self._exchange = None
        return _Gradients(exchange, len(self._widths))

    def _exchange_of(self, plan: Plan) -> RowExchange:
        assert self._exchange is not None and self._exchange.plan is plan, "look it up first"
        return self._exchange


class _Gradients(Sequence[Tensor]):
    """Gradients by pack, so that a pack is updated while those of the next arrive."""

    def __init__(self, exchange: RowExchange, num_packs: int) -> None:
        self._of_pack = functools.cache(exchange.gradients)
        self._num_packs = num_packs

    def __len__(self) -> int:
        return self._num_packs

    def __getitem__(self, p: int) -> Tensor:  # type: ignore[override]
        if not 0 <= p < self._num_packs:
            raise IndexError(p)  # ends an iteration
        return self._of_pack(p)


def _pool(rows: Float32[Tensor, "A D"], part: PackPlan) -> Float32[Tensor, "{part.num_bags} D"]:
    """The bags of a micro-batch, from its rows in order."""
    records = rows.contiguous().view(torch.uint8)  # [A, 4 D]
    layout = RecordLayout(rows.shape[1]).as_ints()
    slots = torch.arange(len(rows), device=rows.device)
    return ops.pool(records, layout, slots, part.inverse, part.bag_starts, part.weights)


def _sum_by_row(leaf: Float32[Tensor, "{part.num_bags} D"], part: PackPlan) -> Float32[Tensor, "A D"]:
    """The gradients of a micro-batch's rows, in order."""
    grad = torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
    return ops.sum_gradients(grad, part.order, part.starts, part.bags, part.weights)
