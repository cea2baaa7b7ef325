"""Embedding: the tables of a model as one thing, with `plan`, `lookup` and `update`.

    embedding = Embedding.of(model, schema)
    plan = embedding.plan(batch, step)       # ids alone; may run batches ahead, on another thread
    vectors = embedding.lookup(plan)         # one autograd leaf per pack; features are views of it
    loss(model(vectors, batch.dense), batch.labels).backward()
    embedding.update(plan, vectors)          # gradients per row, then the row optimizer, in place

Weights are no `nn.Parameter`s: a step reads and writes only the rows of its batch.

With `caching` the rows live in a store, in host memory or in a file, behind a cache (`tiers`). Such
plans look through it: right for evaluation, and slow. For training, `hotrows.stages` feeds batches
ahead and hands out plans whose rows are in place.

With a `device` fast memory is there: all rows, or the cache. Plans are made on the host and copied
(`upload`); `hotrows.stages` does it ahead.
"""

from __future__ import annotations

import dataclasses
import hashlib
import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor

from hotrows import ops, optim
from hotrows.batch import Batch
from hotrows.device import HOST, Device, find
from hotrows.lanes import Begun, Lanes
from hotrows.optim import Adagrad, RowOptimizer, RowWiseAdagrad
from hotrows.passing import Passing
from hotrows.piece import Shard
from hotrows.plan import PackPlan, Plan
from hotrows.planning import packing
from hotrows.planning.on_device import PLANNING, DevicePlanner
from hotrows.planning.packing import Pack
from hotrows.planning.planner import Planner
from hotrows.planning.sharding import KINDS, Placement, uniform
from hotrows.planning.threads import Threads, num_threads
from hotrows.ranks import Note, OneRank, Ranks
from hotrows.record import RecordLayout, views
from hotrows.schema import Cross, Schema, Table
from hotrows.storage.cache import chunks
from hotrows.storage.store import FirstValues, MemoryStore
from hotrows.tiers import Caching, Tiers
from hotrows.traffic import Traffic
from hotrows.upload import Uploaded, upload
from hotrows.vectors import Vectors

log = logging.getLogger("hotrows")


class Declares(Protocol):
    """What a model says of its tables: a `hotrows.models.Model`, as a rule."""

    tables: tuple[Table, ...]
    sequences: tuple[str, ...]
    crosses: tuple[Cross, ...]


class Embedding:
    """The tables of a model, packed.

    tables: what the model declares. optimizer: of the tables that name none.
    seed: of the first values of rows (and of stochastic rounding), keyed by table name and id.
    sequences: features whose vectors stay apart. pooling: `sum` or `mean` by feature.
    crosses: features made of the ids of others, which tables read like any.
    caching: behind a cache; None: every row is in memory. read_only: a file store is not opened for
        training: `tiers.view` says what is read.
    ranks: the processes that train together (`hotrows.exchange`); None: this one alone. Each holds a
        shard of the tables and reads its own samples of every batch; `plan`, `lookup` and `update`
        are then collective, called by all ranks in the same order.
    sharding: where the rows of each table are: `rows`, `tables`, `columns` or `replicated` for all, or a
        `Placement` by table. num_slices: in how many parts the model learns from a batch.
    pack_parts: in how many packs tables of equal attributes are dealt. summed: list features whose
        vectors are summed where their rows are (`planning.summing`).
    wire_dtype: of rows and gradients between ranks: `float32`, `bfloat16` or `float16`.
    device: where fast memory is: `cpu`, or `cuda`, of one rank. lanes: of a device, on how many packs
        are looked up and updated side by side; with several, a slice is looked up while the model
        learns from the one before. planning_threads: that plan groups of packs side by side, as
        `pack_parts` deals them; None: `planning.threads.num_threads`. planning: of what is trained by
        the stages: on the `host`, or on the `device` where it can be.
    """

    def __init__(
        self,
        tables: Sequence[Table],
        *,
        optimizer: RowOptimizer | None = None,
        seed: int = 0,
        sequences: Sequence[str] = (),
        pooling: Mapping[str, str] | None = None,
        crosses: Sequence[Cross] = (),
        caching: Caching | None = None,
        read_only: bool = False,
        ranks: Ranks | None = None,
        sharding: str | Mapping[str, Placement] = "rows",
        num_slices: int = 1,
        pack_parts: int | Sequence[int] = 1,
        summed: Collection[str] = (),
        wire_dtype: str = "float32",
        device: str | Device = HOST,
        lanes: int = 1,
        planning_threads: int | None = None,
        planning: str = "host",
    ) -> None:
        default = optimizer or Adagrad()
        self.tables = tuple(
            dataclasses.replace(table, optimizer=table.optimizer or default) for table in tables
        )
        self.ranks = ranks or OneRank()
        self.device = find(device) if isinstance(device, str) else device
        if self.ranks.num_ranks > 1 and not self.device.on_host:
            raise ValueError(
                f"{self.ranks.num_ranks} ranks train together on processors alone so far: leave out "
                f"device={self.device.name!r}, or start one rank"
            )
        self._lanes = Lanes(self.device, lanes)
        self._ahead: tuple[Plan, int, Begun] | None = None  # the slice that is being looked up
        rank, num_ranks = self.ranks.rank, self.ranks.num_ranks
        placements = _placements(sharding, self.tables, num_ranks)
        self.packs = packing.pack_tables(self.tables, sequences, placements, pack_parts)
        self.groups = packing.group_packs(self.packs, rank, num_ranks)
        self.shards = tuple(pack.shard(rank, num_ranks) for pack in self.packs)
        self.seed = seed
        channel = self.ranks.channel("planning")
        self.threads = Threads(num_threads(planning_threads, self.device.on_host))
        self._planner = Planner(
            self.packs, pooling, crosses, channel, num_slices, summed, self.threads
        )
        if planning not in PLANNING:
            raise ValueError(f"planning must be one of {', '.join(PLANNING)}, not {planning!r}")
        self._there: DevicePlanner | None = None
        if planning == "device" and not self.device.on_host:
            self._there = DevicePlanner(self._planner, self.device)
        self._told = False
        self._traffic: Traffic | None = None
        self._wire = _wire(wire_dtype)
        self._widths = tuple(_widths(pack, num_ranks) for pack in self.packs)
        self.note: Note | None = None
        self._first = tuple(_first_values(shard, seed) for shard in self.shards)
        self._keys = tuple(
            (self.device.put(of.first_rows), self.device.put(of.pieces)) for of in self._first
        )
        self.stores = self._memory(caching)
        self.touched: tuple[Tensor, ...] = ()
        self._decay: dict[int, Tensor] = {}  # by pack: what the weight decay of each row is times
        self.tiers: Tiers | None = None
        self._passing: Passing | None = None  # behind a cache
        if caching is not None:
            self.tiers = Tiers(
                caching, self.shards, self.groups, self._first, self.stores, seed, read_only,
                self.device, self.threads,
            )  # fmt: skip
            layouts = [first.layout for first in self._first]
            self._passing = Passing(self.tiers.caches, self.groups, layouts, self.device)

    @classmethod
    def of(
        cls, model: Declares, schema: Schema, *, table_dtype: str | None = None, **rest: Any
    ) -> Embedding:
        """The tables of a model for data of a schema, with all that both say of them.

        table_dtype: of stored weights, in place of what the tables say. rest: as above.
        """
        tables = model.tables
        if table_dtype is not None:
            tables = tuple(dataclasses.replace(table, dtype=table_dtype) for table in tables)
        return cls(
            tables,
            sequences=model.sequences,
            crosses=model.crosses,
            pooling=schema.pooling,
            **rest,
        )

    def _memory(self, caching: Caching | None) -> tuple[MemoryStore, ...]:
        """What holds every row: on the device, or in host memory behind its cache; none in files."""
        if caching is None:
            return tuple(MemoryStore(first, self.device) for first in self._first)
        if caching.path is not None:
            return ()
        stores = tuple(map(MemoryStore, self._first))
        if caching.way == "direct":
            for store in stores:
                self.device.page_lock(store.records)
        return stores

    @property
    def num_bytes(self) -> int:
        """Bytes of all records: weights and optimizer state."""
        return sum(group.rows * group.stride for group in self.groups)

    @property
    def needs_counts(self) -> bool:
        """Whether an optimizer decays by count, so that `set_counts` comes before `update`."""
        return any(_decays_by_count(pack) for pack in self.packs)

    def set_counts(self, counts: Mapping[str, Tensor]) -> None:
        """How often each id of a table stands in the training data: [rows] by table."""
        for p, pack in enumerate(self.packs):
            if _decays_by_count(pack):
                absent = [table.name for table in pack.tables if table.name not in counts]
                if absent:
                    raise ValueError(f"decay_by_count: there are no counts of table {absent[0]!r}")
                pieces = self.shards[p].pieces
                of_pack = torch.cat(
                    [counts[pack.tables[piece.table].name][_slice(piece.ids)] for piece in pieces]
                )
                self._decay[p] = self.device.put(1 / of_pack.clamp(min=1).float())

    # ---- planning

    def plan(self, batch: Batch, step: int = 0, wishes: int = 0) -> Plan:
        """All that the batch's ids decide. step: how many updates will have been made before it.

        Between ranks: collective; each brings its own samples of the batch. wishes: see
        `planning.routing`.
        """
        return self._planner.plan(batch, step, wishes)

    def plan_ahead(self, batch: Batch, step: int = 0, wishes: int = 0) -> Plan:
        """The same; where the device makes plans, all but the packs, which `upload` adds."""
        if self._there is None or not self._plans_there(batch):
            return self.plan(batch, step, wishes)
        return Plan((), step, batch.size, wishes=wishes)

    def _plans_there(self, batch: Batch) -> bool:
        assert self._there is not None
        reason = self._there.refusal(batch)
        if self.tiers:
            reason = "slots of a cache are mapped there"
        elif self.touched:
            reason = "increments of checkpoints note there which rows have changed (full_every)"
        if reason is not None and not self._told:
            self._told = True
            log.warning("planning='device': batches are planned on the host, since %s", reason)
        return reason is None

    def rows(self, batch: Batch) -> list[Tensor]:
        """The rows that a batch reads, [N] with repeats, for each group: what `tiers` is fed."""
        return self._planner.rows(batch)

    def rows_of(self, plan: Plan) -> list[Tensor]:
        """The distinct rows that a plan reads, for each group: the same, of several ranks."""
        return self._planner.rows_of(plan)

    def upload(self, batch: Batch, plan: Plan, padded: bool = False) -> Uploaded:
        """(batch, plan) with what a step reads of them on the device, once the mark is passed.

        Ids stay in host memory, and so do groups, which only metrics ask for. padded: with rows that
        are none, so that the tensors of every whole batch have the same sizes.
        """
        if self._there is not None and not plan.packs:
            return self._upload_ids(self._there, batch, plan)
        sent = upload(self.device, (_read(batch), plan.padded() if padded else plan))
        read, here = sent.value
        here = dataclasses.replace(
            here,
            on_host=plan,
            slices=tuple(
                dataclasses.replace(of, on_host=on_host)
                for of, on_host in zip(here.slices, plan.slices, strict=True)
            ),
        )
        return dataclasses.replace(sent, value=(_with(batch, read), here))

    def _upload_ids(self, there: DevicePlanner, batch: Batch, plan: Plan) -> Uploaded:
        sent = upload(self.device, (_read(batch), batch.ids))
        read, ids = sent.value
        planned = there.plan(batch, ids, sent.mark)
        here = dataclasses.replace(plan, packs=planned.packs)
        blocks = *sent.blocks, *planned.blocks
        return Uploaded((_with(batch, read), here), blocks, planned.mark, planned.check)

    def here(self, batch: Batch, plan: Plan) -> tuple[Batch, Plan]:
        """The same on the device, ready for what the calling thread does next."""
        if self.device.on_host:
            return batch, plan
        sent = self.upload(batch, plan)
        self.device.wait(sent.mark, sent.blocks)
        return sent.value

    @property
    def features(self) -> tuple[str, ...]:
        """The features that a batch must have."""
        read = dict.fromkeys(
            name for pack in self.packs for name, _ in pack.columns + pack.sequences
        )
        made = {cross.name: cross.of for cross in self._planner.crosses}
        return tuple(dict.fromkeys(of for name in read for of in made.get(name, (name,))))

    @property
    def routes(self) -> bool:
        """Whether rows travel: between ranks, or slice by slice."""
        return self._planner.routes

    @property
    def planning(self) -> Ranks:
        """The channel on which ranks plan."""
        return self._planner.ranks

    # ---- training

    def lookup(self, plan: Plan, part: int = 0) -> Vectors:
        """The vectors of the plan's batch; leaves require grad where autograd is on.

        part: which of the plan's slices, where it has several; they are looked up in turn.
        """
        grad = torch.is_grad_enabled()
        if not plan.slices:
            works = [partial(self._lookup, p, plan) for p in range(len(self.packs))]
            if all(self._is_resident(plan, g) for g in range(len(self.groups))):
                leaves = self._lanes.each(works, _read_by(plan))
            else:  # the host reads rows from the store, and waits for every lane as it does
                leaves = [work() for work in works]
            return Vectors(self.packs, plan, tuple(leaf.requires_grad_(grad) for leaf in leaves))
        if self._traffic is None or self._traffic.plan is not plan:
            self._traffic = Traffic(
                plan,
                self._widths,
                lambda p: self._lookup(p, plan),
                self.ranks,
                self._wire,
                self.note,
            )
        leaves = self._slice(plan, part)
        if self._lanes.are_several and part + 1 < len(plan.slices):
            begun = self._lanes.begin(self._slice_works(plan, part + 1), _read_by(plan))
            self._ahead = plan, part + 1, begun
        own = plan.slices[part]
        return Vectors(self.packs, own, tuple(leaf.requires_grad_(grad) for leaf in leaves))

    def _slice(self, plan: Plan, part: int) -> list[Tensor]:
        """The leaves of a slice, looked up now unless they are on their way."""
        begun, self._ahead = self._ahead, None
        if begun is not None and begun[0] is plan and begun[1] == part:
            return begun[2].wait(self.device)
        return self._lanes.each(self._slice_works(plan, part), _read_by(plan))

    def _slice_works(self, plan: Plan, part: int) -> list[Callable[[], Tensor]]:
        assert self._traffic is not None
        found = self._traffic.rows(part)
        return [
            partial(_pooled, rows, of)
            for rows, of in zip(found, plan.slices[part].packs, strict=True)
        ]

    def give_back(self, plan: Plan, part: int, vectors: Vectors) -> None:
        """Sends the gradients of a slice's vectors to where its rows are, slice after slice.

        `update` does it for the last one, and for a plan of one slice.
        """
        assert self._traffic is not None and self._traffic.plan is plan, "look it up first"
        self._traffic.give_back(part, [
            _per_row(leaf, of) for leaf, of in zip(vectors.leaves, plan.slices[part].packs, strict=True)
        ])  # fmt: skip

    def numbers(self, step: int, lr_scale: float = 1.0) -> Tensor:
        """[packs, 1 + H] float64 in host memory, page-locked: what `update` computes with."""
        rows = [
            [step, *optim.hyper_parameters(_optimizer(pack), step, lr_scale)] for pack in self.packs
        ]
        width = max(map(len, rows))
        found = self.device.staging(len(rows), width, dtype=torch.float64)
        padded = [row + [0.0] * (width - len(row)) for row in rows]
        return found.copy_(torch.tensor(padded, dtype=torch.float64))

    def numbers_here(self, step: int, lr_scale: float = 1.0) -> Tensor:
        """The same on the device, before what the calling thread launches next."""
        return self.numbers(step, lr_scale).to(self.device.torch, non_blocking=True)

    def update(
        self, plan: Plan, vectors: Vectors, lr_scale: float = 1.0, numbers: Tensor | None = None
    ) -> None:
        """Sums the leaves' gradients per row and applies each pack's row optimizer, in place.

        lr_scale: what a schedule multiplies every learning rate with. A leaf without a gradient
        (the loss did not use it) leaves its pack as it was; between ranks it counts as zeros.
        numbers: those of the step, on the device, where they are known already.
        """
        if numbers is None:
            numbers = self.numbers_here(plan.step, lr_scale)
        grads = self._gradients(plan, vectors)
        squares = {p: self._mean_squares(p, plan, grads[p]) for p in range(len(self.packs))}
        for g, group in enumerate(self.groups):
            if all(grads[p] is None for p in group.packs):
                continue
            self._note_update(plan, g)
            if not self._is_resident(plan, g):
                assert self._passing is not None
                self._passing.update(g, plan, partial(self._update_some, grads, numbers, squares))
        self._lanes.each(
            [
                partial(
                    self._update, p, self._records(p), plan.packs[p], plan.packs[p].slots, grads[p],
                    numbers, squares[p],
                )
                for g, group in enumerate(self.groups)
                if self._is_resident(plan, g)
                for p in group.packs
            ],
            [numbers, *_read_by(plan), *(of for of in (*grads, *squares.values()) if of is not None)],
        )  # fmt: skip

    def note_update(self, plan: Plan) -> None:
        """What `update` remembers, where a captured step makes its changes in its place."""
        for g in range(len(self.groups)):
            self._note_update(plan, g)

    def _note_update(self, plan: Plan, g: int) -> None:
        part = plan.host.packs[self.groups[g].packs[0]]
        if self.touched:
            self.touched[g][part.rows] = True
        if self.tiers and self._is_resident(plan, g):
            self.tiers.caches[g].changed(part.slots)

    def note_touched(self) -> None:
        """From here on `touched` says for each group which rows of this rank are updated: [rows]."""
        self.touched = tuple(torch.zeros(group.rows, dtype=torch.bool) for group in self.groups)

    def _gradients(self, plan: Plan, vectors: Vectors) -> list[Tensor | None]:
        """By pack, the gradients of what its plan looked up."""
        if not plan.slices:
            return [leaf.grad for leaf in vectors.leaves]
        assert self._traffic is not None and self._traffic.plan is plan, "look it up first"
        if not self._traffic.all_given_back:
            self.give_back(plan, len(plan.slices) - 1, vectors)
        traffic, self._traffic = self._traffic, None
        return [traffic.gradients(p) for p in range(len(self.packs))]

    def _update(
        self, p: int, records: Tensor, part: PackPlan, slots: Tensor, grad: Tensor | None,
        numbers: Tensor, squares: Tensor | None,
    ) -> None:  # fmt: skip
        if grad is None:
            return
        if p not in self._decay and _decays_by_count(self.packs[p]):
            raise ValueError("decay_by_count needs the counts of ids: call set_counts first")
        decay = self._decay[p][part.rows] if p in self._decay else None
        optimizer = _optimizer(self.packs[p])
        own = numbers[p, : 1 + len(optim.hyper_parameters(optimizer, 0))]
        ops.update(
            records, self._first[p].layout.as_ints(), slots, part.rows, part.order, part.starts,
            part.bags, part.weights, grad, optimizer.kind, own, *self._keys[p], decay, squares,
        )  # fmt: skip

    def _update_some(
        self, grads: Sequence[Tensor | None], numbers: Tensor,
        squares: Mapping[int, Tensor | None], p: int, records: Tensor, part: PackPlan,
        slots: Tensor, rows: slice,
    ) -> None:  # fmt: skip
        """The rows of a plan at places `rows`, with their records at hand (`passing`)."""
        whole = squares[p]
        of_rows = None if whole is None else whole[rows]
        self._update(p, records, part, slots, grads[p], numbers, of_rows)

    def _mean_squares(self, p: int, plan: Plan, grad: Tensor | None) -> Tensor | None:
        """[U]: of each row's gradient over all columns, where this rank has some of them and the
        optimizer wants to know; else None."""
        optimizer, whole = self.packs[p].tables[0].optimizer, self.packs[p].dim
        if not isinstance(optimizer, RowWiseAdagrad) or self.shards[p].dim == whole:
            return None
        assert grad is not None, "between ranks there is always a gradient"
        part = plan.packs[p]
        sums = ops.sum_gradients(grad, part.order, part.starts, part.bags, part.weights)
        if optimizer.weight_decay:
            decay = self._decay[p][part.rows][:, None] if p in self._decay else 1.0
            each = torch.arange(part.num_rows, dtype=torch.int32, device=part.rows.device)
            only = dataclasses.replace(part, inverse=each, bag_starts=None, weights=None)
            packs = [only if q == p else of for q, of in enumerate(plan.packs)]
            weights = self._lookup(p, dataclasses.replace(plan, packs=tuple(packs)))
            sums += optimizer.weight_decay * decay * weights
        return self.ranks.all_reduce((sums * sums).sum(1)).wait() / whole

    def _is_resident(self, plan: Plan, g: int) -> bool:
        """Whether every row of the plan's batch has a slot in group g."""
        if self.tiers is None:
            return True
        return plan.moves is not None and not plan.moves[g].passes_through

    def _records(self, p: int) -> Tensor:
        """What the slots of a pack's plans name: records in fast memory."""
        if self.tiers is None:
            return self.stores[p].records
        g, i = self._place(p)
        return self.tiers.caches[g].arenas[i]

    def _place(self, p: int) -> tuple[int, int]:
        """The group of a pack, and its place there."""
        for g, group in enumerate(self.groups):
            if p in group.packs:
                return g, group.packs.index(p)
        raise AssertionError(f"pack {p} is in no group")

    def _lookup(self, p: int, plan: Plan) -> Tensor:
        part, layout = plan.packs[p], self._first[p].layout.as_ints()
        if self._is_resident(plan, self._place(p)[0]):
            records, slots = self._records(p), part.slots
        else:
            assert self._passing is not None
            records, layout, slots = self._passing.looked_up(p, plan)
        return ops.pool(records, layout, slots, part.inverse, part.bag_starts, part.weights)

    # ---- all rows

    def weights(self, table: str) -> Tensor:
        """[rows, dim] as stored: the weights of a table: a view of its records, behind a cache or on
        a device a copy in host memory.

        Of the whole table; between ranks see `shards` and `stores`.
        """
        if self.tiers or not self.device.on_host:
            return torch.cat(list(self.weight_chunks(table)))
        p, first, end = self._rows_of(table)
        return self.stores[p].views.weights[first:end]

    def weight_chunks(self, table: str) -> Iterator[Tensor]:
        """The weights of a table, [m, dim] as stored, some rows at a time; the pipeline rests."""
        p, first, end = self._rows_of(table)
        for begin, stop in chunks(end - first):
            if self._passing:
                own = self._passing.own(p, torch.arange(first + begin, first + stop))
                yield views(own, self._first[p].layout.as_ints()).weights
            else:
                own = self.stores[p].copy_out(first + begin, first + stop)
                yield views(own, self._first[p].layout.as_ints()).weights

    def present_weights(self, p: int) -> Tensor:
        """[rows, d] float32: the weights of all rows that this rank holds of a pack; the pipeline
        rests."""
        if self._passing:
            return self._passing.weights(p, torch.arange(self.shards[p].rows))
        return self.stores[p].views.weights.float().cpu()

    def _rows_of(self, table: str) -> tuple[int, int, int]:
        """The pack of a table, its first row there, and the row after its last."""
        assert self.ranks.num_ranks == 1, "a rank has only its share of a table"
        for p, pack in enumerate(self.packs):
            for t, found in enumerate(pack.tables):
                if found.name == table:
                    return p, pack.first_rows[t], pack.first_rows[t + 1]
        raise KeyError(f"no table {table!r}; tables: {[found.name for found in self.tables]}")

    def describe(self) -> str:
        """The pack assignment as text, and what fast memory holds."""
        lines = [packing.describe(self.packs)]
        for group, cache in zip(self.groups, self.tiers.caches if self.tiers else (), strict=False):
            names = ", ".join(self.packs[p].name for p in group.packs)
            lines.append(
                f"{names}: {cache.num_slots:,} of {group.rows:,} rows in fast memory "
                f"({cache.num_bytes / 2**20:,.1f} of {group.rows * group.stride / 2**20:,.1f} MiB)"
            )
        return "\n".join(lines)

    def close(self) -> None:
        """Closes the file stores, where there are any, and ends the threads of planning; nothing may be
        looked up afterwards."""
        self.threads.close()
        if self.tiers:
            self.tiers.close()


def _read(batch: Batch) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """What a step reads of a batch beside its plan."""
    return batch.dense, batch.labels, batch.sample_weights


def _with(batch: Batch, read: tuple[Tensor, Tensor | None, Tensor | None]) -> Batch:
    dense, labels, weights = read
    return dataclasses.replace(batch, dense=dense, labels=labels, sample_weights=weights)


def _first_values(shard: Shard, seed: int) -> FirstValues:
    first = shard.tables[0]
    assert first.optimizer is not None
    layout = packing.layout_in(shard)
    pieces = [
        [_table_key(seed, shard.tables[of.table].name), of.first_id, of.id_step, shard.columns[0],
         first.dim]
        for of in shard.pieces
    ]  # fmt: skip
    return FirstValues(
        layout=layout,
        first_rows=torch.tensor([*(of.first_row for of in shard.pieces), shard.rows]),
        pieces=torch.tensor(pieces, dtype=torch.int64).view(-1, 5),
        initializer=first.initializer,
        state=tuple(optim.initial_state(first.optimizer, shard.dim)),
    )


def _placements(
    sharding: str | Mapping[str, Placement], tables: Sequence[Table], num_ranks: int
) -> Mapping[str, Placement] | None:
    """Where the rows of each table are, by name; None on one rank: here."""
    if num_ranks == 1:
        return None
    if not isinstance(sharding, str):
        return sharding
    if sharding not in KINDS:
        raise ValueError(f"sharding must be one of {', '.join(KINDS)}, not {sharding!r}")
    return uniform(sharding, tables, num_ranks)


def _widths(pack: Pack, num_ranks: int) -> list[int]:
    """How many columns of a pack's rows each rank holds."""
    return [pack.shard(rank, num_ranks).dim for rank in range(num_ranks)]


def _wire(dtype: str) -> torch.dtype | None:
    kinds = {"float32": None, "bfloat16": torch.bfloat16, "float16": torch.float16}
    if dtype not in kinds:
        raise ValueError(f"wire_dtype must be one of {', '.join(kinds)}, not {dtype!r}")
    return kinds[dtype]


def _pooled(rows: Tensor, part: PackPlan) -> Tensor:
    """[M, D]: the bags of a slice, from its rows [A, D] in order."""
    records = rows.contiguous().view(torch.uint8)
    layout, each = (
        RecordLayout(rows.shape[1]).as_ints(),
        torch.arange(len(rows), device=rows.device),
    )
    return ops.pool(records, layout, each, part.inverse, part.bag_starts, part.weights)


def _per_row(leaf: Tensor, part: PackPlan) -> Tensor:
    """[A, D]: the gradients of a slice's rows, in order."""
    grad = torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
    return ops.sum_gradients(grad, part.order, part.starts, part.bags, part.weights)


def _optimizer(pack: Pack) -> RowOptimizer:
    optimizer = pack.tables[0].optimizer
    assert optimizer is not None
    return optimizer


def _read_by(plan: Plan) -> list[Tensor]:
    """What lanes hold of a plan: the block that all its tensors are views of."""
    return [] if plan.on_host is None else [plan.packs[0].inverse]


def _slice(ids: range) -> slice:
    return slice(ids.start, ids.stop, ids.step)


def _decays_by_count(pack: Pack) -> bool:
    return getattr(pack.tables[0].optimizer, "decay_by_count", False)


def _table_key(seed: int, name: str) -> int:
    """The random stream of a table: an int64 from its name and the seed."""
    digest = hashlib.blake2b(f"{seed}:{name}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)
