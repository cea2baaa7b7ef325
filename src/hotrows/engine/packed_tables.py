"""PackedTables: the rows of a model's packs that this rank has, and what reads and updates them.

Rows are in memory, or in a store behind a cache (`cached_tables`). Plans name their slots. Where those
of a plan are, `read_through` says: here nothing asks.

    leaves = tables.lookup(plan)                        # [M, D] per pack: bags of rows
    tables.update(plan, gradients, hyperparameters)     # sums per row, then the row optimizers
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from hotrows import ops, optim
from hotrows.engine.cached_tables import CachedTables
from hotrows.engine.caching import Caching
from hotrows.engine.changed_rows import ChangedRows, spans_of
from hotrows.engine.decay_by_count import DecayByCount
from hotrows.engine.dense_rows import DenseRows
from hotrows.engine.distributed.comm import Ranks
from hotrows.engine.distributed.first_rank import to_first
from hotrows.engine.planning import packing
from hotrows.engine.planning.packing import Pack
from hotrows.engine.planning.sharding import columns_of
from hotrows.engine.planning.threads import Threads
from hotrows.engine.read_through import AllInMemory, BehindCache, ChangingRows, RowsOfPlan, StoredRows
from hotrows.engine.storage.cache import chunks
from hotrows.engine.storage.store import InitialValues, MemoryStore, group_block
from hotrows.ops.plan import Plan
from hotrows.ops.record import RankShard, RecordViews, views
from hotrows.optim import RowOptimizer, RowWiseAdagrad
from hotrows.runtime.cuda_streams import Streams
from hotrows.runtime.device import Device
from hotrows.runtime.shapes import Float, Float32, Float64, Int64

_LEAST_NARROW = 8  # columns of vectors in bfloat16: weights of single ids, which are added up, are not


@dataclass(frozen=True)
class _Gradients:
    """The inputs of an update.

    leaves: [M, D] per pack, of its bags; None: the loss did not use the pack, which stays as it is.
    hyperparameters: see `Embedding.hyperparameters`. mean_squares: [U] per pack, of each row's gradient
    over all columns, where the optimizer needs it and this rank has some only.
    """

    leaves: Sequence[Tensor | None]
    hyperparameters: Float64[Tensor, "packs _"]
    mean_squares: Sequence[Tensor | None]

    @property
    def tensors(self) -> list[Tensor]:
        tensors = (*self.leaves, *self.mean_squares)
        return [self.hyperparameters, *(tensor for tensor in tensors if tensor is not None)]


class PackedTables:
    """This rank's rows of all packs.

    packs: every table with its optimizer filled in. ranks: those that hold the packs together.
    seed: of initial values and of stochastic rounding. caching: rows are behind a cache; None: all in
    memory. read_only: a file store is not opened for training. device: where fast memory is.
    streams: CUDA streams on which packs are looked up and updated in parallel. threads: those that
    plan. narrow: vectors are looked up for training in bfloat16, and their gradients are, too.

    groups: packs that read equal rows; shards: what this rank holds of each pack; stores: the memory
    of each pack, none where rows are in files; memory: where rows are; dense_rows: those under dense
    optimizers; changed: the rows that training changes, for those who read it.
    """

    def __init__(
        self,
        packs: Sequence[Pack],
        ranks: Ranks,
        *,
        seed: int,
        caching: Caching | None,
        read_only: bool,
        device: Device,
        streams: int,
        threads: Threads,
        narrow: bool = False,
    ) -> None:
        self._narrow = narrow
        rank, num_ranks = ranks.rank, ranks.num_ranks
        self.packs, self._ranks, self._device = tuple(packs), ranks, device
        self.groups = packing.group_packs(packs, rank, num_ranks)
        self._group_of = {p: g for g, group in enumerate(self.groups) for p in group.packs}
        self.shards = tuple(pack.shard(rank, num_ranks) for pack in packs)
        self.streams = Streams(device, streams)
        self.changed = ChangedRows(group.rows for group in self.groups)
        self._initial_values = tuple(_initial_values(shard, seed) for shard in self.shards)
        self._layouts = [values.layout.as_ints() for values in self._initial_values]
        self._of_columns = {  # packs whose optimizer needs all columns, of which this rank has some
            p
            for p, (pack, shard) in enumerate(zip(packs, self.shards, strict=True))
            if isinstance(pack.tables[0].optimizer, RowWiseAdagrad) and shard.dim != pack.dim
        }
        self.dense_rows = DenseRows(self.packs, self.shards, self._layouts, device)
        self._random_keys = [
            ops.RowKeys(device.put(values.first_rows), device.put(values.pieces))
            for values in self._initial_values
        ]
        self.decay_by_count = DecayByCount(self.packs, self.shards, device)
        self.memory: AllInMemory | BehindCache
        if caching is None:
            self.stores = tuple(MemoryStore.begun(values, device) for values in self._initial_values)
            self.cached = CachedTables(Caching(0), (), (), (), (), seed, read_only=True)
            self.memory = AllInMemory(self.groups, self.stores, self._layouts, device)
        else:
            self.stores = self._stores(caching)
            self.cached = CachedTables(
                caching, self.shards, self.groups, self._initial_values, self.stores,
                seed, read_only, device, threads,
            )  # fmt: skip
            self.memory = BehindCache(self.cached.groups, self._layouts, device, self.dense_rows)

    def _stores(self, caching: Caching) -> tuple[MemoryStore, ...]:
        """All rows in host memory; none of those in files."""
        if caching.path is not None:
            return ()
        if self._device.on_host or caching.cache_transfer != "zero_copy":
            return tuple(map(MemoryStore.begun, self._initial_values))
        blocks = [group_block([self._initial_values[p] for p in group.packs]) for group in self.groups]
        for block, _ in blocks:
            self._device.page_lock(block)
        by_pack: dict[int, MemoryStore] = {}
        for group, (_, stores) in zip(self.groups, blocks, strict=True):
            by_pack |= zip(group.packs, stores, strict=True)
        return tuple(by_pack[p] for p in range(len(self.packs)))

    @property
    def num_bytes(self) -> int:
        """Bytes of all records: weights and optimizer state."""
        return sum(group.rows * group.stride for group in self.groups)

    # ---- lookup

    def lookup(self, plan: Plan, by_rows: Collection[int] = ()) -> list[Tensor]:
        """The bags of each pack, [M, D]; of the packs `by_rows` their distinct rows, [U, D]."""
        narrow = self._narrow and torch.is_grad_enabled()
        works = [
            partial(self.rows, p, plan)
            if p in by_rows
            else partial(self.pool, p, plan, narrow and pack.dim >= _LEAST_NARROW)
            for p, pack in enumerate(self.packs)
        ]
        if any(self.memory.rows_of(plan, g).waits for g in range(len(self.groups))):
            return [work() for work in works]
        return self.streams.run_all(works, held_by_streams(plan))

    def pool(
        self, p: int, plan: Plan, narrow: bool = False
    ) -> Float[Tensor, "{plan.packs[p].num_bags} D"]:
        """The bags of pack p, in float32, or in bfloat16."""
        part, rows = plan.packs[p], self._read(p, plan)
        return ops.pool(
            rows.records, rows.layout, rows.slots, part.inverse, part.bag_starts, part.weights, narrow
        )

    def rows(self, p: int, plan: Plan) -> Float32[Tensor, "{plan.packs[p].num_rows} D"]:
        """The distinct rows of pack p, ascending."""
        rows = self._read(p, plan)
        return ops.collect(rows.records, rows.layout, rows.slots)

    def _read(self, p: int, plan: Plan) -> StoredRows:
        """The batch's rows of pack p; those under a dense optimizer catch up, where they are or, where
        they are not trained or have no slots, as copies."""
        g = self._group_of[p]
        where = self.memory.rows_of(plan, g)
        catches_up = p in self.dense_rows
        if catches_up and torch.is_grad_enabled():
            catches_up = not where.catch_up(plan, g, p, self.dense_rows)
        if not catches_up:
            return where.read(plan, g, p)
        rows, records = self.memory.copies(plan, g, p)
        slots = torch.arange(len(rows), device=rows.device)
        self.dense_rows.catch_up(p, records, rows, slots, are_copies=True)
        return StoredRows(self._device.put(records), self._layouts[p], self._device.put(slots))

    def weights_of(self, p: int, rows: Int64[Tensor, "U"]) -> Tensor:
        """The present weights of `rows`, distinct and ascending, as stored, in host memory."""
        return self.memory.weights_of(p, rows)

    def gathered_weights(self, p: int, rows: Int64[Tensor, "u"]) -> tuple[Int64[Tensor, "U"], Tensor]:
        """Collective: on rank 0 the rows that all ranks name, numbered as on one rank, ascending, and
        their present weights [U, D] as stored, in host memory; on others none.

        rows: of this rank, distinct and ascending; by columns those of every rank.
        """
        pack, shard, ranks = self.packs[p], self.shards[p], self._ranks
        if ranks.num_ranks == 1:
            return rows, self.weights_of(p, rows)
        sharding = pack.sharding(ranks.num_ranks)
        if ranks.rank and not sharding.columns:
            rows = rows[rows >= sharding.num_shared]  # which rank 0 has, too
        weights = self.weights_of(p, rows)
        pieces = to_first(ranks, weights.flatten())
        if sharding.columns:
            numbers = rows if ranks.rank == 0 else rows[:0]
            spans = [columns_of(pack.dim, rank, ranks.num_ranks) for rank in range(ranks.num_ranks)]
            parts = [w.view(len(numbers), b - a) for w, (a, b) in zip(pieces, spans, strict=True)]
            return numbers, torch.cat(parts, 1)
        numbers = rows.clone()
        bounds = [(piece.first_row, piece.first_row + piece.num_rows) for piece in shard.slices]
        for piece, span in zip(shard.slices, spans_of(rows, bounds), strict=True):
            first = pack.first_rows[piece.table] + piece.first_id
            numbers[span] = first + (rows[span] - piece.first_row) * piece.id_step
        numbers, order = torch.cat(to_first(ranks, numbers)).sort()
        return numbers, torch.cat(pieces).view(-1, pack.dim)[order]

    def begin(self, plan: Plan) -> None:
        """Gives rows that stand for new keys the first values of these: before they are looked up."""
        for g, new in enumerate(plan.host.new_rows):
            if not len(new.rows):
                continue
            packs = self.groups[g].packs
            first = [self._initial_values[p].of_keys(new.rows, new.keys) for p in packs]
            records = [self.dense_rows.begun(p, of_pack) for p, of_pack in zip(packs, first, strict=True)]
            self.changed.add(g, new.rows)
            self.memory.rows_of(plan, g).begin(plan, g, records)

    # ---- update

    def update(
        self,
        plan: Plan,
        leaves: Sequence[Tensor | None],
        hyperparameters: Float64[Tensor, "{len(leaves)} _"],
    ) -> None:
        """Sums gradients per row and applies each pack's row optimizer, in place.

        leaves: the gradients of each pack's bags, [M, D]; None leaves the pack as it is. On one stream
        those of a pack are read once the packs before it are updated.
        """
        squares = [
            self._mean_squares(p, plan, leaves) if p in self._of_columns else None
            for p in range(len(self.packs))
        ]
        gradients = _Gradients(leaves, hyperparameters, squares)
        self.dense_rows.begin_step(hyperparameters)
        works: list[partial[None]] = []
        for g, group in enumerate(self.groups):
            if all(leaves[p] is None for p in group.packs):
                continue
            where = self._noted(plan, g)
            if self.streams.are_several and not where.waits:
                works += [partial(self._update, gradients, part) for part in where.parts(plan, g)]
            else:
                for part in where.parts(plan, g):
                    self._update(gradients, part)
        if works:
            self.streams.run_all(works, [*gradients.tensors, *held_by_streams(plan)])
        self.dense_rows.end_step()

    def _update(self, gradients: _Gradients, rows: ChangingRows) -> None:
        """Updates rows of a pack where they are."""
        p, part = rows.p, rows.part
        grad, squares = gradients.leaves[p], gradients.mean_squares[p]
        if grad is None:
            return
        if p in self.dense_rows:
            self.dense_rows.update(p, rows.records, part, grad, rows.slots)
            return
        optimizer = _optimizer(self.packs[p])
        num_hyperparameters = 1 + len(optim.hyper_parameters(optimizer, 0))
        rule = ops.RowRule(
            optimizer.kind,
            gradients.hyperparameters[p, :num_hyperparameters],
            self.decay_by_count.factor(p, part.rows),
            None if squares is None else squares[rows.places],
        )
        stored = ops.Records(rows.records, self._layouts[p])
        ops.update(stored, part, grad, rule, self._random_keys[p], rows.slots)

    def _mean_squares(self, p: int, plan: Plan, leaves: Sequence[Tensor | None]) -> Float32[Tensor, "U"]:
        """The mean square of each row's gradient over the columns of all ranks."""
        optimizer, dim = _optimizer(self.packs[p]), self.packs[p].dim
        assert isinstance(optimizer, RowWiseAdagrad)
        grad = leaves[p]
        assert grad is not None, "between ranks there is always a gradient"
        part = plan.packs[p]
        sums = ops.sum_gradients(grad, part.order, part.starts, part.bags, part.weights)  # [U, d]
        if optimizer.weight_decay:
            scale = self.decay_by_count.factor(p, part.rows)
            decay = 1.0 if scale is None else scale[:, None]
            sums += optimizer.weight_decay * decay * self.rows(p, plan)
        return self._ranks.all_reduce((sums * sums).sum(1)).wait() / dim

    def note_update(self, plan: Plan) -> None:
        """Notes which rows and slots change, where a captured step replays `update` itself."""
        for g in range(len(self.groups)):
            self._noted(plan, g)

    def _noted(self, plan: Plan, g: int) -> RowsOfPlan:
        """What has the rows that a plan reads of group g, once these are noted as changed."""
        first = self.groups[g].packs[0]
        self.changed.add(g, plan.host.packs[first].rows)
        where = self.memory.rows_of(plan, g)
        where.note_update(plan, g)
        return where

    # ---- all rows; the pipeline is paused

    def catch_up(self, num_ids: Mapping[str, int] | None = None) -> None:
        """Lets every row under a dense optimizer make the steps that it missed, and forgets these.

        num_ids: see `DenseRows.catch_up_tables`.
        """
        for g in self.dense_rows.catch_up_tables(self.memory, num_ids or {}):
            for span in (
                self.dense_rows.spans(self.groups[g], num_ids or {}) if self.changed.readers else ()
            ):
                self.changed.add(g, torch.arange(span.start, span.stop))

    def weights(self, table: str) -> Float[Tensor, "rows D"]:
        """The weights of a table as stored, where they are in host memory a view of the records, else a
        copy there."""
        p, first, end = self._rows_of(table)
        if self.cached or not self._device.on_host or p in self.dense_rows:
            return torch.cat(list(self.weight_chunks(table)))
        return self.stores[p].views.read(slice(first, end))

    def weight_chunks(self, table: str, num_rows: int | None = None) -> Iterator[Tensor]:
        """The weights of a table, [m, dim] as stored, some rows at a time; see `Embedding`."""
        if self._ranks.num_ranks == 1:
            return (records.read() for records in self.record_chunks(table, num_rows))
        p, first, end = packing.rows_of(self.packs, table)
        assert p not in self.dense_rows, "rows under a dense optimizer are behind"
        sharding = self.packs[p].sharding(self._ranks.num_ranks)
        return (
            self.gathered_weights(p, sharding.local_rows(torch.arange(*span), self._ranks.rank)[0])[1]
            for begin, stop in chunks(end - first if num_rows is None else num_rows)
            for span in [(first + begin, first + stop)]
        )

    def record_chunks(self, table: str, num_rows: int | None = None) -> Iterator[RecordViews]:
        """The records of a table, or of its first `num_rows` ids, up to date, some rows at a time."""
        p, first, end = self._rows_of(table)
        end = end if num_rows is None else first + num_rows
        for begin, stop in chunks(end - first):
            records = self.memory.span(p, first + begin, first + stop)
            if p in self.dense_rows:
                records = records.clone()  # not what is stored
                self.dense_rows.catch_up_all(p, records)
            yield views(records, self._layouts[p])

    def _rows_of(self, table: str) -> tuple[int, int, int]:
        """The pack of a table, its first row there, and the row after its last."""
        assert self._ranks.num_ranks == 1, "a rank has only its share of a table"
        return packing.rows_of(self.packs, table)

    def describe(self) -> str:
        """The packs and their tables as text, and what fast memory holds."""
        groups = [cached.describe(self.packs) for cached in self.cached.groups]
        return "\n".join([packing.describe(self.packs), *groups])

    def close(self) -> None:
        """Closes the file stores, if any; nothing may be looked up afterwards."""
        self.cached.close()


def held_by_streams(plan: Plan) -> list[Tensor]:
    """The memory of a plan that streams hold: the block that all its tensors are views of."""
    return [] if plan.on_host is None else [plan.packs[0].inverse, plan.packs[0].slots]


def _initial_values(shard: RankShard, seed: int) -> InitialValues:
    first = shard.tables[0]
    pieces = [
        [
            _random_key(seed, shard.tables[piece.table].name),
            piece.first_id,
            piece.id_step,
            shard.columns[0],
            first.dim,
        ]
        for piece in shard.slices
    ]
    assert first.optimizer is not None
    present = tuple(
        (piece.first_row, piece.first_row + min(shard.tables[piece.table].reserved or rows, rows))
        for piece in shard.slices
        if (rows := piece.num_rows)
    )
    return InitialValues(
        layout=packing.layout_in(shard),
        first_rows=torch.tensor([*(piece.first_row for piece in shard.slices), shard.rows]),
        pieces=torch.tensor(pieces, dtype=torch.int64).view(-1, 5),
        initializer=first.initializer,
        state=tuple(optim.initial_state(first.optimizer, shard.dim)),
        step=first.optimizer.first_step,
        present=present if any(table.reserved is not None for table in shard.tables) else None,
    )


def _random_key(seed: int, name: str) -> int:
    """The random stream of a table: an int64 from its name and the seed."""
    digest = hashlib.blake2b(f"{seed}:{name}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)


def _optimizer(pack: Pack) -> RowOptimizer:
    optimizer = pack.tables[0].optimizer
    assert optimizer is not None
    return optimizer
