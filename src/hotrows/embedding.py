"""Embedding: the tables of a model as one thing, with `plan`, `lookup` and `update`.

    plan = embedding.plan(batch, step)       # ids alone; may run batches ahead, on another thread
    vectors = embedding.lookup(plan)         # one autograd leaf per pack; features are views of it
    loss(model(vectors, batch.dense), batch.labels).backward()
    embedding.update(plan, vectors)          # gradients per row, then the row optimizer, in place

Weights are no `nn.Parameter`s: a step reads and writes only the rows of its batch.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from hotrows import ops, optim
from hotrows.batch import Batch
from hotrows.optim import Adagrad, RowOptimizer
from hotrows.plan import Plan
from hotrows.planning import packing
from hotrows.planning.packing import Pack
from hotrows.planning.planner import Planner
from hotrows.record import layout_of
from hotrows.schema import Table
from hotrows.storage.store import MemoryStore, NewRows


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


class Embedding:
    """The tables of a model, packed.

    tables: what the model declares. optimizer: of the tables that name none.
    seed: of the first values of rows (and of stochastic rounding), keyed by table name and id.
    sequences: features whose vectors stay apart. pooling: `sum` or `mean` by feature.
    """

    def __init__(
        self,
        tables: Sequence[Table],
        *,
        optimizer: RowOptimizer | None = None,
        seed: int = 0,
        sequences: Sequence[str] = (),
        pooling: Mapping[str, str] | None = None,
    ) -> None:
        default = optimizer or Adagrad()
        self.tables = tuple(
            dataclasses.replace(table, optimizer=table.optimizer or default) for table in tables
        )
        self.packs = packing.pack_tables(self.tables, sequences)
        self.seed = seed
        self._planner = Planner(self.packs, pooling)
        self._keys = [
            [_table_key(seed, table.name) for table in pack.tables] for pack in self.packs
        ]
        self.stores = tuple(
            _store(pack, keys) for pack, keys in zip(self.packs, self._keys, strict=True)
        )
        self._first_rows = [torch.tensor(pack.first_rows) for pack in self.packs]
        self._key_tensors = [torch.tensor(keys) for keys in self._keys]

    @property
    def num_bytes(self) -> int:
        """Bytes of all records: weights and optimizer state."""
        return sum(store.num_bytes for store in self.stores)

    def plan(self, batch: Batch, step: int = 0) -> Plan:
        """All that the batch's ids decide. step: how many updates will have been made before it."""
        return self._planner.plan(batch, step)

    def lookup(self, plan: Plan) -> Vectors:
        """The vectors of the plan's batch; leaves require grad where autograd is on."""
        leaves = []
        for store, part in zip(self.stores, plan.packs, strict=True):
            leaf = ops.pool(
                store.records, store.layout.as_ints(), part.slots, part.inverse, part.bag_starts,
                part.weights,
            )  # fmt: skip
            leaves.append(leaf.requires_grad_(torch.is_grad_enabled()))
        return Vectors(self.packs, plan, tuple(leaves))

    def update(self, plan: Plan, vectors: Vectors, lr_scale: float = 1.0) -> None:
        """Sums the leaves' gradients per row and applies each pack's row optimizer, in place.

        lr_scale: what a schedule multiplies every learning rate with. A leaf without a gradient
        (the loss did not use it) leaves its pack as it was.
        """
        for p, (store, part) in enumerate(zip(self.stores, plan.packs, strict=True)):
            grad = vectors.leaves[p].grad
            if grad is None:
                continue
            optimizer = self.packs[p].tables[0].optimizer
            assert optimizer is not None
            ops.update(
                store.records, store.layout.as_ints(), part.slots, part.rows, part.order,
                part.starts, part.bags, part.weights, grad, optimizer.kind,
                optim.hyper_parameters(optimizer, plan.step, lr_scale), plan.step,
                self._first_rows[p], self._key_tensors[p],
            )  # fmt: skip

    def weights(self, table: str) -> Tensor:
        """[rows, dim]: the weights of a table, a view of its records."""
        for pack, store in zip(self.packs, self.stores, strict=True):
            for t, found in enumerate(pack.tables):
                if found.name == table:
                    return store.views.weights[pack.first_rows[t] : pack.first_rows[t + 1]]
        raise KeyError(f"no table {table!r}; tables: {[found.name for found in self.tables]}")

    def describe(self) -> str:
        """The pack assignment as text."""
        return packing.describe(self.packs)


def _store(pack: Pack, keys: Sequence[int]) -> MemoryStore:
    first = pack.tables[0]
    assert first.optimizer is not None
    new = [NewRows(t.rows, key, t.initializer) for t, key in zip(pack.tables, keys, strict=True)]
    return MemoryStore(layout_of(first), new, optim.initial_state(first.optimizer, first.dim))


def _table_key(seed: int, name: str) -> int:
    """The random stream of a table: an int64 from its name and the seed."""
    digest = hashlib.blake2b(f"{seed}:{name}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)
