"""Embedding: the tables of a model as one thing, with `plan`, `lookup` and `update`.

    plan = embedding.plan(batch, step)       # ids alone; may run batches ahead, on another thread
    vectors = embedding.lookup(plan)         # one autograd leaf per pack; features are views of it
    loss(model(vectors, batch.dense), batch.labels).backward()
    embedding.update(plan, vectors)          # gradients per row, then the row optimizer, in place

Weights are no `nn.Parameter`s: a step reads and writes only the rows of its batch.

With `caching` the rows live in a store, in host memory or in a file, behind a cache of `fast_memory`
bytes. `plan` then makes plans that look through the cache: right for evaluation, and slow. Training
feeds batches ahead and plans moves (`feed`, `plan_moves`), which `hotrows.stages` drives.
"""

from __future__ import annotations

import dataclasses
import hashlib
import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hotrows import ops, optim
from hotrows.batch import Batch
from hotrows.optim import Adagrad, RowOptimizer
from hotrows.plan import PackPlan, Plan
from hotrows.planning import packing
from hotrows.planning.budget import divide
from hotrows.planning.packing import Group, Pack
from hotrows.planning.planner import Planner
from hotrows.planning.policy import Hot, Lookahead, Policy
from hotrows.planning.slots import SlotMap
from hotrows.record import RecordLayout, layout_of, views
from hotrows.schema import Table
from hotrows.storage.cache import CHUNK_ROWS, Cache, chunks
from hotrows.storage.file import FileStore, View
from hotrows.storage.store import FirstValues, HostStore, MemoryStore, Store

log = logging.getLogger("hotrows")

FILE = "file:"
_LEAST_CHUNK = 256  # rows


@dataclass(frozen=True)
class Caching:
    """How rows are kept where fast memory does not hold all of them; changes no bit of any result.

    fast_memory: bytes of the records held in fast memory.
    store: where all rows live: `memory`, or `file:PATH`, a folder made when training begins.
    policy: which rows stay. in_flight: how many batches may be on their way at once.
    lookahead_memory: bytes of ids waiting in the window of `Lookahead`; None: a quarter of
        `fast_memory`, 64 MiB at least.
    hot_ids: by table, the ids that the policy `Hot` keeps, the most popular first; under any policy
        the cache begins with them.
    """

    fast_memory: int
    store: str = "memory"
    policy: Policy = Lookahead()  # noqa: RUF009  (frozen)
    in_flight: int = 4
    lookahead_memory: int | None = None
    hot_ids: Mapping[str, Tensor] | None = None

    def __post_init__(self) -> None:
        if self.store != "memory" and not (self.path and str(self.path) != "."):
            raise ValueError(f"store must be 'memory' or 'file:PATH', not {self.store!r}")
        if self.in_flight < 1:
            raise ValueError(f"in_flight must be at least 1, not {self.in_flight}")

    @property
    def path(self) -> Path | None:
        """The folder of a file store."""
        return Path(self.store[len(FILE) :]) if self.store.startswith(FILE) else None

    @property
    def lookahead_bytes(self) -> int:
        if self.lookahead_memory is not None:
            return self.lookahead_memory
        return max(self.fast_memory // 4, 64 << 20)


class Vectors:
    """What a lookup returns: one leaf per pack, [M, D] float32, and the features as views of them."""

    def __init__(self, packs: Sequence[Pack], plan: Plan, leaves: tuple[Tensor, ...]) -> None:
        self.leaves = leaves
        self._packs = packs
        self._plan = plan
        self._columns: dict[int, tuple[Tensor, ...]] = {}

    def __getitem__(self, key: str | tuple[str, str]) -> Tensor:
        """[B, D]: the vectors of a feature, or of (feature, role)."""
        feature, role = (key, "vector") if isinstance(key, str) else key
        p, column = self._find(feature, role)
        if p not in self._columns:
            self._columns[p] = self._pooled(p).unbind(1)
        return self._columns[p][column]

    def stack(self, role: str = "vector", features: Sequence[str] | None = None) -> Tensor:
        """[B, F, D]: the vectors of several features, of all in that role by default.

        A view of the leaf where they stand together in one pack, as they do unless asked for out
        of order.
        """
        if features is None:
            features = [name for pack in self._packs for name, table in pack.columns
                        if pack.tables[table].role == role]  # fmt: skip
        found = [self._find(feature, role) for feature in features]
        if not found:
            raise ValueError(f"no table has the role {role!r}; roles: {self._roles()}")
        p, first = found[0]
        if found == [(p, first + i) for i in range(len(found))]:
            pooled = self._pooled(p)
            # A slice of everything would cost a copy of the gradient on the way back.
            whole = len(found) == pooled.shape[1]
            return pooled if whole else pooled[:, first : first + len(found)]
        return torch.stack([self[feature, role] for feature in features], 1)

    def sequence(self, feature: str, role: str = "vector") -> tuple[Tensor, Tensor]:
        """The vectors of a sequence feature, [N, D], and where each sample's begin, [B + 1]."""
        for p, pack in enumerate(self._packs):
            starts = self._plan.packs[p].sequence_starts
            if starts is not None and (feature, role) in pack.sequence_of:
                begin = starts[feature]
                return self.leaves[p][int(begin[0]) : int(begin[-1])], begin - begin[0]
        raise KeyError(f"no sequence feature {feature!r} with role {role!r} was looked up")

    def _pooled(self, p: int) -> Tensor:
        """The pooled vectors of a pack, [B, F, D]."""
        leaf, size, pack = self.leaves[p], self._plan.batch_size, self._packs[p]
        num_columns = len(pack.columns)
        pooled = leaf[: size * num_columns] if pack.sequences else leaf
        return pooled.view(size, num_columns, leaf.shape[1])

    def _find(self, feature: str, role: str) -> tuple[int, int]:
        for p, pack in enumerate(self._packs):
            column = pack.column_of.get((feature, role))
            if column is not None:
                return p, column
        raise KeyError(f"no table of role {role!r} is read by feature {feature!r}")

    def _roles(self) -> list[str]:
        return sorted({table.role for pack in self._packs for table in pack.tables})


class Moved(NamedTuple):
    """What a batch moved: its distinct rows, those that were not in fast memory, bytes in and out."""

    rows: int = 0
    rows_in: int = 0
    bytes_in: int = 0
    bytes_out: int = 0


class Embedding:
    """The tables of a model, packed.

    tables: what the model declares. optimizer: of the tables that name none.
    seed: of the first values of rows (and of stochastic rounding), keyed by table name and id.
    sequences: features whose vectors stay apart. pooling: `sum` or `mean` by feature.
    caching: behind a cache; None: every row is in memory. read_only: a file store is not opened for
        training: `view` says what is read.
    """

    def __init__(
        self,
        tables: Sequence[Table],
        *,
        optimizer: RowOptimizer | None = None,
        seed: int = 0,
        sequences: Sequence[str] = (),
        pooling: Mapping[str, str] | None = None,
        caching: Caching | None = None,
        read_only: bool = False,
    ) -> None:
        default = optimizer or Adagrad()
        self.tables = tuple(
            dataclasses.replace(table, optimizer=table.optimizer or default) for table in tables
        )
        self.packs = packing.pack_tables(self.tables, sequences)
        self.groups = packing.group_packs(self.packs)
        self.seed = seed
        self.caching = caching
        self._planner = Planner(self.packs, pooling)
        self._first = tuple(_first_values(pack, seed) for pack in self.packs)
        self.stores: tuple[MemoryStore, ...] = ()
        self.files: tuple[FileStore, ...] = ()
        self.caches: tuple[Cache, ...] = ()
        self._slots: tuple[SlotMap, ...] = ()
        slots: list[int] = []
        if caching is not None:  # too little fast memory is refused before a store is made
            slots = (
                [1] * len(self.groups) if read_only else divide(caching.fast_memory, self.groups)
            )
        if caching is None or caching.path is None:
            self.stores = tuple(MemoryStore(first) for first in self._first)
        elif not read_only:
            self.files = tuple(self._open(group, g) for g, group in enumerate(self.groups))
        if caching is not None:
            self.caches = tuple(map(self._cache, self.groups, slots, range(len(slots))))
            self.forget_plans()

    @property
    def num_bytes(self) -> int:
        """Bytes of all records: weights and optimizer state."""
        return sum(group.rows * group.stride for group in self.groups)

    @property
    def fast_bytes(self) -> int:
        """Bytes of the records held in fast memory."""
        return sum(cache.num_bytes for cache in self.caches) if self.caches else self.num_bytes

    # ---- planning

    def plan(self, batch: Batch, step: int = 0) -> Plan:
        """All that the batch's ids decide. step: how many updates will have been made before it."""
        return self._planner.plan(batch, step)

    @property
    def wants(self) -> bool:
        """Whether another batch should be fed before moves are planned."""
        return any(slots.wants() for slots in self._slots)

    def feed(self, batch: Batch) -> None:
        """Shows planning a batch that will come: the next one not shown yet."""
        for slots, rows in zip(self._slots, self._planner.rows(batch), strict=True):
            slots.feed(rows)

    def feed_end(self) -> None:
        """No batch comes after those fed."""
        for slots in self._slots:
            slots.end()

    def plan_moves(self, batch: Batch, step: int) -> Plan:
        """The plan of the next batch, with the rows that it moves; behind a cache alone."""
        plan = self._planner.plan(batch, step)
        taken = [
            slots.take(plan.packs[group.packs[0]].rows)
            for slots, group in zip(self._slots, self.groups, strict=True)
        ]
        packs = list(plan.packs)
        for group, of in zip(self.groups, taken, strict=True):
            for p in group.packs:
                packs[p] = dataclasses.replace(packs[p], slots=of.slots)
        return dataclasses.replace(
            plan,
            packs=tuple(packs),
            moves=tuple(of.moves for of in taken),
            waits_for=max(of.waits_for for of in taken),
        )

    def moved(self, plan: Plan) -> Moved:
        """What a plan moves; rows that pass through come in twice and go out once."""
        total = Counter[str]()
        for group, moves in zip(self.groups, plan.moves or (), strict=False):
            part = plan.packs[group.packs[0]]
            passing = int((part.slots < 0).sum()) if moves.passes_through else 0
            total["rows"] += part.num_rows
            total["rows_in"] += moves.rows_in.numel() + passing
            total["bytes_in"] += (moves.rows_in.numel() + 2 * passing) * group.stride
            total["bytes_out"] += (moves.rows_out.numel() + passing) * group.stride
        return Moved(total["rows"], total["rows_in"], total["bytes_in"], total["bytes_out"])

    @property
    def num_planned(self) -> int:
        """How many batches have been planned with moves since the plans were last forgotten."""
        return self._slots[0].taken if self._slots else 0

    def forget_plans(self) -> None:
        """Empties the caches; batches planned and not trained are forgotten, what they fed too.

        What was not flushed is lost.
        """
        if self.caching is None:
            return
        share = self.caching.lookahead_bytes // len(self.groups)
        for cache in self.caches:
            cache.clear()
        self._slots = tuple(
            SlotMap(
                cache.num_slots,
                self._policy(group),
                self.caching.in_flight,
                lookahead_bytes=share,
            )
            for group, cache in zip(self.groups, self.caches, strict=True)
        )

    def warm(self) -> None:
        """Fills the caches with the hot ids, where there are any; before the first batch is fed."""
        for group, cache, slots in zip(self.groups, self.caches, self._slots, strict=True):
            rows = self._hot_rows(group)
            if rows is not None:
                cache.warm(slots.warm(rows))

    def _policy(self, group: Group) -> Policy:
        assert self.caching is not None
        if not isinstance(self.caching.policy, Hot):
            return self.caching.policy
        rows = self._hot_rows(group)
        if rows is None:
            raise ValueError(
                "policy 'hot' needs to know which rows are hot: train on data that `hotrows "
                "regroup` has laid out, or pass Caching(hot_ids=...)"
            )
        return Hot(rows)

    def _hot_rows(self, group: Group) -> Tensor | None:
        """The rows of a group that are hot."""
        assert self.caching is not None
        if self.caching.hot_ids is None:
            return None
        pack = self.packs[group.packs[0]]
        return torch.cat(
            [
                self.caching.hot_ids[table.name] + first
                for table, first in zip(pack.tables, pack.first_rows, strict=False)
            ]
        )

    # ---- training

    def lookup(self, plan: Plan) -> Vectors:
        """The vectors of the plan's batch; leaves require grad where autograd is on."""
        leaves = [self._lookup(p, plan) for p in range(len(self.packs))]
        grad = torch.is_grad_enabled()
        return Vectors(self.packs, plan, tuple(leaf.requires_grad_(grad) for leaf in leaves))

    def update(self, plan: Plan, vectors: Vectors, lr_scale: float = 1.0) -> None:
        """Sums the leaves' gradients per row and applies each pack's row optimizer, in place.

        lr_scale: what a schedule multiplies every learning rate with. A leaf without a gradient
        (the loss did not use it) leaves its pack as it was.
        """
        for g, group in enumerate(self.groups):
            grads = {p: vectors.leaves[p].grad for p in group.packs}
            if all(grad is None for grad in grads.values()):
                continue
            if self._is_resident(plan, g):
                for p in group.packs:
                    part = plan.packs[p]
                    self._update(p, self._records(p), part, part.slots, plan, grads[p], lr_scale)
                if self.caches:
                    self.caches[g].changed(plan.packs[group.packs[0]].slots)
            else:
                self._update_through(g, plan, grads, lr_scale)

    def _update(
        self, p: int, records: Tensor, part: PackPlan, slots: Tensor, plan: Plan,
        grad: Tensor | None, lr_scale: float,
    ) -> None:  # fmt: skip
        if grad is None:
            return
        optimizer = self.packs[p].tables[0].optimizer
        assert optimizer is not None
        first = self._first[p]
        ops.update(
            records, first.layout.as_ints(), slots, part.rows, part.order, part.starts, part.bags,
            part.weights, grad, optimizer.kind,
            optim.hyper_parameters(optimizer, plan.step, lr_scale), plan.step, first.first_rows,
            first.keys,
        )  # fmt: skip

    def _is_resident(self, plan: Plan, g: int) -> bool:
        """Whether every row of the plan's batch has a slot in group g."""
        if not self.caches:
            return True
        return plan.moves is not None and not plan.moves[g].passes_through

    def _records(self, p: int) -> Tensor:
        """What the slots of a pack's plans name: records in fast memory."""
        if not self.caches:
            return self.stores[p].records
        g, i = self._place(p)
        return self.caches[g].arenas[i]

    def _place(self, p: int) -> tuple[int, int]:
        """The group of a pack, and its place there."""
        for g, group in enumerate(self.groups):
            if p in group.packs:
                return g, group.packs.index(p)
        raise AssertionError(f"pack {p} is in no group")

    def _lookup(self, p: int, plan: Plan) -> Tensor:
        part, layout = plan.packs[p], self._first[p].layout.as_ints()
        records, slots = self._records(p), part.slots
        if not self._is_resident(plan, self._place(p)[0]):
            # Distinct rows, chunk by chunk, then bags from the whole block: the bits of a plain one.
            block = torch.empty(part.num_rows, layout[0])
            for begin, end in chunks(part.num_rows, self._chunk_rows(p)):
                block[begin:end] = self._weights(p, part.rows[begin:end])
            records, layout = block.view(torch.uint8), RecordLayout(layout[0]).as_ints()
            slots = torch.arange(part.num_rows)
        return ops.pool(records, layout, slots, part.inverse, part.bag_starts, part.weights)

    def _update_through(
        self, g: int, plan: Plan, grads: Mapping[int, Tensor | None], lr_scale: float
    ) -> None:
        """Reads rows, updates them and writes them back, chunk by chunk: each row as ever."""
        group, cache = self.groups[g], self.caches[g]
        whole = plan.packs[group.packs[0]]
        for begin, end in chunks(whole.num_rows, self._chunk_rows(group.packs[0])):
            rows = whole.rows[begin:end]
            records, slots = cache.read(rows), torch.arange(end - begin)
            starts = whole.starts[begin : end + 1]
            for p, own in zip(group.packs, records.split(list(group.strides), 1), strict=True):
                part = dataclasses.replace(plan.packs[p], rows=rows, starts=starts)
                self._update(p, own, part, slots, plan, grads[p], lr_scale)
            cache.write(rows, records)

    def _weights(self, p: int, rows: Tensor) -> Tensor:
        """[m, D] float32: the present weights of `rows`, distinct and ascending, behind a cache."""
        g, i = self._place(p)
        own = self.caches[g].read(rows).split(list(self.groups[g].strides), 1)[i]
        each = torch.arange(rows.numel())
        return ops.pool(own, self._first[p].layout.as_ints(), each, each.int(), None, None)

    def _chunk_rows(self, p: int) -> int:
        """How many rows that pass through are held at once: as many as there are slots, about."""
        return min(max(self.caches[self._place(p)[0]].num_slots, _LEAST_CHUNK), CHUNK_ROWS)

    # ---- the stores

    def flush(self) -> None:
        """Writes all trained rows to the store; the pipeline rests."""
        for cache in self.caches:
            cache.flush()

    def weights(self, table: str) -> Tensor:
        """[rows, dim] as stored: the weights of a table: a view of its records, behind a cache a copy."""
        if self.caches:
            return torch.cat(list(self.weight_chunks(table)))
        p, first, end = self._rows_of(table)
        return self.stores[p].views.weights[first:end]

    def weight_chunks(self, table: str) -> Iterator[Tensor]:
        """The weights of a table, [m, dim] as stored, some rows at a time; the pipeline rests."""
        p, first, end = self._rows_of(table)
        g, i = self._place(p)
        for begin, stop in chunks(end - first):
            if self.caches:
                rows = torch.arange(first + begin, first + stop)
                own = self.caches[g].read(rows).split(list(self.groups[g].strides), 1)[i]
                yield views(own, self._first[p].layout.as_ints()).weights
            else:
                yield self.stores[p].views.weights[first + begin : first + stop]

    def _rows_of(self, table: str) -> tuple[int, int, int]:
        """The pack of a table, its first row there, and the row after its last."""
        for p, pack in enumerate(self.packs):
            for t, found in enumerate(pack.tables):
                if found.name == table:
                    return p, pack.first_rows[t], pack.first_rows[t + 1]
        raise KeyError(f"no table {table!r}; tables: {[found.name for found in self.tables]}")

    def describe(self) -> str:
        """The pack assignment as text, and what fast memory holds."""
        lines = [packing.describe(self.packs)]
        for group, cache in zip(self.groups, self.caches, strict=False):
            names = ", ".join(self.packs[p].name for p in group.packs)
            lines.append(
                f"{names}: {cache.num_slots:,} of {group.rows:,} rows in fast memory "
                f"({cache.num_bytes / 2**20:,.1f} of {group.rows * group.stride / 2**20:,.1f} MiB)"
            )
        return "\n".join(lines)

    @property
    def wants_checkpoint(self) -> bool:
        """Whether a file store has gathered so much since its last checkpoint that it wants one."""
        return any(store.wants_checkpoint for store in self.files)

    def checkpoint(self) -> list[int]:
        """Makes the file stores durable as they are; returns the number of each one's checkpoint."""
        self.flush()
        return [store.checkpoint() for store in self.files]

    def retain(self, checkpoints: Sequence[Sequence[int]]) -> None:
        """These checkpoints of the file stores will be asked for again, no other."""
        for store, *generations in zip(self.files, *checkpoints, strict=True):
            store.retain(sorted(set(generations)))

    def restore(self, generations: Sequence[int | None]) -> None:
        """Brings the file stores back to these checkpoints of theirs; None: as they began."""
        for store, generation in zip(self.files, generations, strict=True):
            store.restore(generation)
        self.forget_plans()

    def view(self, generations: Sequence[int]) -> None:
        """Reads the file stores as they were at these checkpoints, and trains no more."""
        self.close()
        at = zip(self.groups, self.caches, generations, strict=True)
        for g, (group, cache, generation) in enumerate(at):
            cache.clear()
            view = FileStore.view_at(*self._file_arguments(group, g), generation)
            cache.store = _ReadOnly(group.stride, view)

    def close(self) -> None:
        """Closes the file stores; nothing may be looked up afterwards."""
        for store in (*self.files, *(cache.store for cache in self.caches)):
            if isinstance(store, FileStore | _ReadOnly):
                store.close()
        self.files = ()

    def _open(self, group: Group, g: int) -> FileStore:
        arguments = self._file_arguments(group, g)
        if arguments[0].exists():
            return FileStore.open(*arguments)
        return FileStore.create(*arguments)

    def _file_arguments(self, group: Group, g: int) -> tuple[Path, int, int, Any, dict]:
        """Where a group's file store is and what it holds, as `FileStore` takes it."""
        assert self.caching is not None and self.caching.path is not None
        tables = [
            {"name": table.name, "rows": table.rows, **self._first[p].layout.to_json()}
            for p in group.packs
            for table in self.packs[p].tables
        ]
        meta = {"seed": self.seed, "tables": tables}
        path = self.caching.path / f"group-{g}"
        return path, group.rows, group.stride, self._fill(group), meta

    def _fill(self, group: Group):
        """Makes records the first ones of their rows: fill(rows, records)."""

        def fill(rows: Tensor, records: Tensor) -> None:
            for p, own in zip(group.packs, records.split(list(group.strides), 1), strict=True):
                self._first[p].fill(own, rows)

        return fill

    def _cache(self, group: Group, num_slots: int, g: int) -> Cache:
        store: Store = _ReadOnly(group.stride)
        if self.files:
            store = self.files[g]
        elif self.stores:
            store = HostStore([self.stores[p] for p in group.packs])
        return Cache(num_slots, group.strides, store)


class _ReadOnly:
    """A file store that is not open for training; source: one of its checkpoints, once it is known."""

    def __init__(self, stride: int, source: View | None = None) -> None:
        self.stride = stride
        self._source = source

    def read(self, rows: Tensor, out: Tensor) -> None:
        if self._source is None:
            raise ValueError("the tables are in a file store: load a checkpoint of the run first")
        self._source.read(rows, out)

    def write(self, rows: Tensor, records: Tensor, keeps: bool = False) -> None:
        raise ValueError("this file store is open for reading alone; train with `Trainer`")

    def close(self) -> None:
        if self._source is not None:
            self._source.close()


def _first_values(pack: Pack, seed: int) -> FirstValues:
    first = pack.tables[0]
    assert first.optimizer is not None
    return FirstValues(
        layout=layout_of(first),
        first_rows=torch.tensor(pack.first_rows),
        keys=torch.tensor([_table_key(seed, table.name) for table in pack.tables]),
        initializer=first.initializer,
        state=tuple(optim.initial_state(first.optimizer, first.dim)),
    )


def _table_key(seed: int, name: str) -> int:
    """The random stream of a table: an int64 from its name and the seed."""
    digest = hashlib.blake2b(f"{seed}:{name}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)
