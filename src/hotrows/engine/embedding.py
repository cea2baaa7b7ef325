"""Embedding: the tables of a model as one thing, with `plan`, `lookup` and `update`.

    embedding = Embedding.for_model(model, schema)
    plan = embedding.plan(batch, step)       # ids alone; may run batches ahead, on another thread
    vectors = embedding.lookup(plan)         # one autograd leaf per pack; features are views of it
    loss(model(vectors, batch.dense), batch.labels).backward()
    embedding.update(plan, vectors)          # gradients per row, then the row optimizer, in place

Weights are no `nn.Parameter`s: a step reads and writes only the rows of its batch.

With `caching` the rows are in a store, in host memory or in a file, behind a cache
(`cached_tables`). Such plans look through it: right for evaluation, and slow. For training,
`hotrows.engine.stages` feeds batches ahead and hands out plans whose rows are in slots.

With a `device` fast memory is there: all rows, or the cache. Plans are made on the host and copied
(`to_device`); `hotrows.engine.stages` does it ahead.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from hotrows import optim
from hotrows.batch import Batch
from hotrows.engine import first_layer
from hotrows.engine.caching import Caching
from hotrows.engine.clipping import Clip, clip_factor, count_squares, scaled
from hotrows.engine.distributed.comm import Note, OneRank, Ranks
from hotrows.engine.dynamic_ids import DynamicIds, StaticIds
from hotrows.engine.micro_batches import WIRE_DTYPES, MicroBatches
from hotrows.engine.packed_tables import PackedTables
from hotrows.engine.planning import on_device
from hotrows.engine.planning.on_device import DevicePlanner
from hotrows.engine.planning.packing import pack_tables
from hotrows.engine.planning.planner import Planner
from hotrows.engine.planning.sharding import Placement, uniform
from hotrows.engine.planning.threads import Threads, num_threads
from hotrows.engine.shared_vectors import SharedVectors
from hotrows.engine.vectors import Vectors
from hotrows.ops.plan import Plan
from hotrows.optim import Adagrad, RowOptimizer
from hotrows.runtime.device import HOST, Device, find
from hotrows.runtime.settings import PLANNING, SHARDINGS
from hotrows.runtime.shapes import Float, Float64
from hotrows.runtime.transfer import Uploaded
from hotrows.schema import Schema
from hotrows.table import Cross, Table

log = logging.getLogger("hotrows")


class Declares(Protocol):
    """The tables that a model declares: a `hotrows.models.Model`, as a rule."""

    tables: tuple[Table, ...]
    sequences: tuple[str, ...]
    crosses: tuple[Cross, ...]
    first_layer_roles: tuple[str, ...]


@dataclass(frozen=True)
class Execution:
    """Where rows are and how batches are computed; changes results by rounding at most.

    ranks: the processes that train together (`hotrows.engine.distributed`); None: this one alone. Each
        has a shard of the tables and reads its own samples of every batch; `plan`, `lookup` and `update`
        are then collective, called by all ranks in equal order.
    sharding: where the rows of each table are: `rows`, `tables`, `columns` or `replicated` for all, or
        a `Placement` by table. micro_batches: number of parts in which the model trains on a batch.
    pack_parts: number of packs that tables of equal attributes are dealt to; or one number for each
        set of equal attributes, in order. summed: list features whose vectors are summed on the rank
        that has their rows (`engine.planning.remote_pooling`).
    wire_dtype: of rows and gradients between ranks: `float32`, `bfloat16` or `float16`.
    device: where fast memory is: `cpu`, or `cuda`, of each rank one. streams: CUDA streams on which packs
        are looked up and updated in parallel; with several, a micro-batch is looked up while the
        model trains on the one before.
    first_layer_roles: roles whose vectors the model reads through `Vectors.joined` alone: on the host and
        one rank, a batch that reads its rows often gives it their distinct rows.
    planning_threads: threads that plan groups of packs in parallel; None: 1 on the host, and beside a
        device all cores but two, at most 8. planning: where batches that are trained through the
        stages are planned: on the `host`, or on the `device` where it can; None: where fast memory is.
    narrow_vectors: on one rank, a device looks vectors up in bfloat16, for a model that computes in it.
    """

    ranks: Ranks | None = None
    sharding: str | Mapping[str, Placement] = "rows"
    micro_batches: int = 1
    pack_parts: int | Sequence[int] = 1
    summed: Collection[str] = ()
    wire_dtype: str = "float32"
    device: str | Device = HOST
    streams: int = 1
    first_layer_roles: Collection[str] = ()
    planning_threads: int | None = None
    planning: str | None = None
    narrow_vectors: bool = False

    def __post_init__(self) -> None:
        for name, choices in (("planning", PLANNING), ("wire_dtype", tuple(WIRE_DTYPES))):
            value = getattr(self, name)
            if value not in choices and not (name == "planning" and value is None):
                raise ValueError(f"{name} must be one of {', '.join(choices)}, not {value!r}")

    def placements(self, tables: Sequence[Table]) -> Mapping[str, Placement] | None:
        """Where the rows of each table are, by name; None on one rank, which has them all."""
        if self.ranks is None or self.ranks.num_ranks == 1:
            return None
        if not isinstance(self.sharding, str):
            return self.sharding
        if self.sharding not in SHARDINGS:
            raise ValueError(f"sharding must be one of {', '.join(SHARDINGS)}, not {self.sharding!r}")
        return uniform(self.sharding, tables, self.ranks.num_ranks)


class Embedding:
    """The tables of a model, packed.

    tables: what the model declares.
    optimizer: of the tables that name none (default: Adagrad).
    seed: of the initial values of rows and of stochastic rounding, keyed by table name and id.
    sequences: features whose vectors are not pooled.
    pooling: `sum` or `mean` by feature.
    crosses: features made of the ids of others, which tables read like any.
    dynamic: the key tables of dynamic features; None: all ids are ids.
    caching: rows are behind a cache; None: every row is in memory.
    read_only: a file store is not opened for training: `CachedTables.view` says what is read.
    execution: the fields of `Execution`: ranks, sharding, micro_batches, device and more.

    >>> embedding = hotrows.Embedding([hotrows.Table("user", rows=100, dim=8, features=("user",))])
    >>> batch = hotrows.Batch(("user",), torch.tensor([3, 4, 3]), dense=torch.zeros(3, 0))
    >>> vectors = embedding.lookup(embedding.plan(batch))
    >>> vectors.stack().shape
    torch.Size([3, 1, 8])
    """

    _begun: Plan | None = None  # the last plan whose new rows have their first values

    def __init__(
        self,
        tables: Sequence[Table],
        *,
        optimizer: RowOptimizer | None = None,
        seed: int = 0,
        sequences: Sequence[str] = (),
        pooling: Mapping[str, str] | None = None,
        crosses: Sequence[Cross] = (),
        dynamic: DynamicIds | None = None,
        caching: Caching | None = None,
        read_only: bool = False,
        **execution: Any,
    ) -> None:
        # Where it runs, and the tables as packs.
        run = Execution(**execution)
        self.seed, self.ranks = seed, run.ranks or OneRank()
        self.device = find(run.device) if isinstance(run.device, str) else run.device
        self.dynamic = dynamic or StaticIds()
        is_static = not self.dynamic.vocabularies
        default = optimizer or Adagrad()
        self.tables = tuple(dataclasses.replace(t, optimizer=t.optimizer or default) for t in tables)
        self.packs = pack_tables(self.tables, sequences, run.placements(self.tables), run.pack_parts)
        self.threads = Threads(num_threads(run.planning_threads, self.device.on_host))
        self.planner = Planner(
            self.packs,
            pooling,
            crosses,
            self.ranks.channel("planning"),
            run.micro_batches,
            run.summed,
            self.threads,
            shares=self.device.on_host and is_static,
        )
        self.dynamic.check(self.tables, self.device.on_host or (caching is not None and caching.can_grow))
        self.dynamic.begin(self.planner.ranks, crosses)
        if self.device.on_host:
            run = dataclasses.replace(run, planning="host", narrow_vectors=False)
        plans_there = run.planning != "host"
        self.device_planner = DevicePlanner(self.planner, self.device) if plans_there else None
        if plans_there and caching is not None and is_static:
            caching = dataclasses.replace(caching, map_slots=run.planning or "auto")
        self._warned = run.planning is None
        self.packed = PackedTables(
            self.packs,
            self.ranks,
            seed=seed,
            caching=caching,
            read_only=read_only,
            device=self.device,
            streams=run.streams,
            threads=self.threads,
            narrow=run.narrow_vectors,
        )
        self.groups, self.shards = self.packed.groups, self.packed.shards
        self.stores, self.cached_tables = self.packed.stores, self.packed.cached
        self._may_go_by_rows = first_layer.packs_by_rows(self.packs, run.first_layer_roles, self.device)
        self._micro_batches = MicroBatches(self.packed, self.ranks, self.device, run.wire_dtype)

    @classmethod
    def for_model(
        cls, model: Declares, schema: Schema, *, table_dtype: str | None = None, **settings: Any
    ) -> Embedding:
        """The tables of a model for data of a schema, with all that both declare of them.

        table_dtype: of stored weights, in place of the tables' own. settings: arguments of `Embedding`.
        """
        tables = model.tables
        if table_dtype is not None:
            tables = tuple(table.stored_as(table_dtype) for table in tables)
        dynamic = DynamicIds.of_schema(schema, tables)
        return cls(
            tables,
            sequences=model.sequences,
            crosses=model.crosses,
            pooling=schema.pooling,
            dynamic=dynamic,
            **{"first_layer_roles": model.first_layer_roles, **settings},
        )

    # ---- planning

    @property
    def features(self) -> tuple[str, ...]:
        """The features that a batch must have."""
        read = [name for pack in self.packs for name, _ in pack.columns + pack.sequences]
        crossed = {cross.name: cross.features for cross in self.planner.crosses}
        return tuple(dict.fromkeys(name for n in read for name in crossed.get(n, (n,))))

    def plan(self, batch: Batch, step: int = 0, signals: int = 0) -> Plan:
        """All that the batch's ids decide.
        step: how many updates will have been made before it.

        Where features are dynamic, batches to train on are resolved first (`resolved`); any other is
        planned with the ids that its keys have as of the batches trained.
        Between ranks: collective; each brings its own samples of the batch.
        signals: see `engine.planning.routing.RankSignals`.
        """
        return self.planner.plan(self.dynamic.find(batch), step, signals)

    def resolved(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        """Yields batches to train on, in order, with ids for keys; see `engine.dynamic_ids`."""
        return (batch for _, batch in self.dynamic.resolved(enumerate(batches)))

    def plan_ahead(self, batch: Batch, step: int = 0, signals: int = 0) -> Plan:
        """The plan of a batch to be uploaded: where the device plans, `upload` makes its packs."""
        if not self.plans_on_device(batch):
            return self.plan(batch, step, signals)
        return Plan((), step, batch.size, signals=signals, on_device=True)

    def plans_on_device(self, batch: Batch) -> bool:
        """True if the device finds the rows and runs of such a batch."""
        if self.device_planner is None or (self.cached_tables and not self.cached_tables.maps_on_device):
            return False
        reason = self.dynamic.refusal or self.device_planner.refusal(batch)
        for reader in self.packed.changed.readers:
            reason = f"{reader.purpose} note there which rows have changed"
        if reason is not None and not self._warned:
            self._warned = True
            log.warning("planning='device': rows are found on the host, since %s", reason)
        return reason is None

    def upload(self, batch: Batch, plan: Plan, padded: bool = False) -> Uploaded:
        """Copies to the device what a step reads: (batch, plan), which are there behind a mark.

        Ids stay in host memory. padded: so that tensors of every full batch have equal sizes, or one of
        a few where it has lists.
        """
        if plan.on_device:
            assert self.device_planner is not None
            return self.device_planner.upload(batch, plan)
        sequences = [[name for name, _ in pack.sequences] for pack in self.packs]
        return on_device.upload(self.device, batch, plan, plan.padded(sequences) if padded else plan)

    def to_device(self, batch: Batch, plan: Plan) -> tuple[Batch, Plan]:
        """A batch and its plan on the device, for what the calling thread does next."""
        if self.device.on_host:
            return batch, plan
        copy = self.upload(batch, plan)
        self.device.wait(copy.mark, copy.blocks)
        return copy.value

    # ---- training

    def lookup(self, plan: Plan, micro_batch: int = 0) -> Vectors:
        """The vectors of the plan's batch; leaves require grad where autograd is on.

        A plan without moves looks through the cache, and no row moves meanwhile.
        micro_batch: which of the plan's, where it has several; they are looked up in turn.
        """
        with nullcontext() if plan.moves else self.packed.memory.paused():
            return self._lookup(plan, micro_batch)

    def _lookup(self, plan: Plan, micro_batch: int) -> Vectors:
        if plan.new_rows and plan is not self._begun:
            self._begun = plan
            self.packed.begin(plan)
        grad, part, by_rows = torch.is_grad_enabled(), plan, frozenset[int]()
        if plan.micro_batches:
            part = plan.micro_batches[micro_batch]
            leaves = self._micro_batches.lookup(plan, micro_batch)
        else:
            if plan.requests is None:
                by_rows = frozenset(
                    p for p in self._may_go_by_rows if first_layer.pays(self.packs[p], plan.packs[p])
                )
            leaves = self.packed.lookup(plan, by_rows)
        if part.requests is not None:
            return SharedVectors(self.packs, part, tuple(leaf.requires_grad_(grad) for leaf in leaves))
        return Vectors(self.packs, part, tuple(leaf.requires_grad_(grad) for leaf in leaves), by_rows)

    def send_gradients(self, plan: Plan, micro_batch: int, vectors: Vectors) -> None:
        """Sends the gradients of a micro-batch's vectors to the ranks that have its rows, in order.

        `update` does it for the last one, and for a plan of one micro-batch.
        """
        self._micro_batches.send_gradients(plan, micro_batch, vectors.leaves)

    def hyperparameters(self, step: int, lr_scale: float = 1.0) -> Float64[Tensor, "packs _"]:
        """The step and the numbers of each pack's optimizer, on the device.

        lr_scale: the factor of a schedule for every learning rate.
        """
        rows: list[list[float]] = []
        for p, pack in enumerate(self.packs):
            optimizer = pack.tables[0].optimizer
            assert optimizer is not None
            dense = self.packed.dense_rows
            numbers = optim.hyper_parameters(optimizer, dense.now if p in dense else step, lr_scale)
            rows.append([step, *numbers])
        width = max(map(len, rows), default=0)
        padded = [row + [0.0] * (width - len(row)) for row in rows]
        block = self.device.staging(len(rows), width, dtype=torch.float64)
        block.copy_(torch.tensor(padded, dtype=torch.float64))
        self.packed.dense_rows.numbers = block
        return block.to(self.device.torch, non_blocking=True)

    def update(
        self,
        plan: Plan,
        vectors: Vectors,
        lr_scale: float = 1.0,
        hyperparameters: Float64[Tensor, "packs _"] | None = None,
        clip: Clip | None = None,
    ) -> float:
        """Sums the leaves' gradients per row and applies each pack's row optimizer, in place.

        A leaf without a gradient (the loss did not use it) leaves its pack as it was; between ranks it
        counts as zeros.
        lr_scale: the factor of a schedule for every learning rate.
        hyperparameters: those of the step with this scale, where they are known already.
        clip: the largest norm of the gradients of rows and of the dense part together (`count_squares`
        comes before the first one).

        Returns what the gradients of rows were multiplied with, and those of the dense part are to be.
        """
        if hyperparameters is None:
            hyperparameters = self.hyperparameters(plan.step, lr_scale)
        grads: Sequence[Tensor | None]
        if plan.micro_batches:
            grads = self._micro_batches.gradients(plan, vectors.leaves)
        else:
            grads = [leaf.grad for leaf in vectors.leaves]
            plan = first_layer.planned_by_rows(plan, vectors.by_rows)
        self.dynamic.check_resolved()
        factor = 1.0
        if clip is not None:
            factor = clip_factor(self.packed, plan, grads, clip, self.ranks)
            grads, hyperparameters = scaled(self.packed, grads, hyperparameters, factor)
        self.packed.update(plan, grads, hyperparameters)
        self.dynamic.trained()
        if clip is not None:
            self.packed.dense_rows.share_squares(self.ranks)
        return factor

    @property
    def note(self) -> Note | None:
        """Called with each exchange of rows and gradients between ranks, for a timeline."""
        return self._micro_batches.note

    @note.setter
    def note(self, note: Note | None) -> None:
        self._micro_batches.note = note

    # ---- all rows; the pipeline is paused

    @property
    def num_bytes(self) -> int:
        """Bytes of all records of this rank: weights and optimizer state."""
        return self.packed.num_bytes

    def set_counts(self, counts: Mapping[str, Tensor]) -> None:
        """Sets how often each id of a table occurs in the training data, [rows] by table: what
        `decay_by_count` of an optimizer needs."""
        self.packed.decay_by_count.set_counts(counts)

    def weights(self, table: str) -> Float[Tensor, "rows D"]:
        """The weights of a table as stored, where they are in host memory a view of the records, else a
        copy there, as of integers, which become float32; under a dense optimizer an up-to-date copy. Of
        one rank; with several, see `shards` and `stores`."""
        return self.packed.weights(table)

    def weight_chunks(self, table: str, num_rows: int | None = None) -> Iterator[Tensor]:
        """The weights of a table, or of its first `num_rows` ids, [m, dim] as stored, in host memory. Of
        several ranks collective, chunk by chunk: rank 0 has them, others get empty ones."""
        return self.packed.weight_chunks(table, num_rows)

    def num_rows(self) -> dict[str, int]:
        """By table, the rows that it needs."""
        rows = {table.name: table.rows for table in self.tables}
        return rows | self.dynamic.num_rows(self.tables)

    @property
    def wants_catch_up(self) -> bool:
        """True if `catch_up` would save time: rows under a dense optimizer are up to so many steps behind
        that every batch pays for it."""
        return self.packed.dense_rows.is_due

    def catch_up(self, num_ids: Mapping[str, int] | None = None) -> None:
        """Lets every row under a dense optimizer make the steps that it missed, in one pass over the
        tables of this rank; changes results by rounding at most.

        num_ids: by table, the ids from this one on are new and have missed none; None: there are none.
        """
        self.packed.catch_up(self.num_rows() if num_ids is None else num_ids)
        if num_ids is not None:
            self.packed.dense_rows.forget_squares()
        self.packed.dense_rows.share_squares(self.ranks)

    def count_squares(self) -> None:
        """Prepares for `update` with a clip, where L2 terms count in the norm: one pass over the tables
        of this rank, unless a checkpoint has said what it would find. Collective."""
        self.dynamic.check_squares(self.tables)
        count_squares(self.packed, self.ranks)

    def describe(self) -> str:
        """The packs and their tables as text, and what fast memory holds."""
        return self.packed.describe()

    def close(self) -> None:
        """Ends the threads that plan, and closes file stores; nothing may be looked up afterwards."""
        self.threads.close()
        self.packed.close()
