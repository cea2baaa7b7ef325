"""Vectors: the result of a lookup, one autograd leaf per pack and the features as views of them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from hotrows.engine import first_layer
from hotrows.ops.layers.row_products import JoinedRows, RowReads
from hotrows.ops.plan import Plan
from hotrows.runtime.shapes import Float, Int64

if TYPE_CHECKING:
    from hotrows.engine.planning.packing import Pack
    from hotrows.engine.shared_lists import SharedLists


class Vectors:
    """The vectors of a batch, by feature and role.

    leaves: one per pack, [M, D] float32, in the order of the plan's packs. A leaf with sequences is
    split once, so that its gradient is put together at once.
    by_rows: packs whose leaf is the distinct rows of the batch, [U, D]; `joined` alone reads them.
    requests: the vectors of what samples of a request share (`SharedVectors`); None: nothing is shared.

    >>> embedding = hotrows.Embedding([hotrows.Table("user", rows=100, dim=8, features=("user",))])
    >>> batch = hotrows.Batch(("user",), torch.tensor([3, 4, 3]), dense=torch.zeros(3, 0))
    >>> embedding.lookup(embedding.plan(batch))["user"].shape
    torch.Size([3, 8])
    """

    requests: Vectors | None = None

    def __init__(
        self, packs: Sequence[Pack], plan: Plan, leaves: tuple[Tensor, ...], by_rows: Collection[int] = ()
    ) -> None:
        self.leaves = leaves
        self.packs = packs
        self.by_rows = by_rows
        self._plan = plan
        self._on_host = plan.host
        self._columns: dict[int, tuple[Tensor, ...]] = {}
        self._parts: dict[int, tuple[Tensor, ...]] = {}
        self._offsets: dict[str, Tensor] = {}

    def __getitem__(self, key: str | tuple[str, str]) -> Float[Tensor, "B D"]:
        """The vectors of a feature, or of (feature, role)."""
        feature, role = (key, "vector") if isinstance(key, str) else key
        p, column = self._find(feature, role)
        if p not in self._columns:
            pooled = self._pooled(p)
            trains = pooled.requires_grad and not torch.compiler.is_compiling()
            if not (trains and self.packs[p].sequences):  # whose leaf is split into columns, too
                self._columns[p] = _Columns.apply(pooled) if trains else pooled.unbind(1)
        return self._columns[p][column]

    def stack(
        self, role: str = "vector", features: Sequence[str] | None = None
    ) -> Float[Tensor, "B F D"]:
        """The vectors of several features, of all in that role by default.

        A view of the leaf where they are side by side in one pack; a copy where features come in
        another order, or their tables are in several packs.
        """
        if features is None:
            columns = ((name, pack.tables[t]) for pack in self.packs for name, t in pack.columns)
            features = [name for name, table in columns if table.role == role]
        places = [self._find(feature, role) for feature in features]
        if not self.packs:  # of data whose features are all dense
            return torch.zeros(self._plan.batch_size, 0, 0)
        if not places:
            roles = sorted({table.role for pack in self.packs for table in pack.tables})
            raise ValueError(f"no table has the role {role!r}; roles: {roles}")
        parts = [self._columns_of(*span) for span in _spans(places)]
        return parts[0] if len(parts) == 1 else torch.cat(parts, 1)

    def joined(
        self, dense: Float[Tensor, "B d"], role: str = "vector"
    ) -> Float[Tensor, "B W"] | JoinedRows:
        """All vectors of a role, of any dims, and the dense values side by side: what an `MLP` reads.

        In the order of the packs. Where a pack was looked up by its distinct rows, a `JoinedRows`.
        """
        parts: list[tuple[Tensor, RowReads | None]] = []
        for p, pack in enumerate(self.packs):
            mine = [c for c, (_, table) in enumerate(pack.columns) if pack.tables[table].role == role]
            if p in self.by_rows:
                parts.append((self.leaves[p], first_layer.reads_of(pack, self._plan, p)))
            elif mine:
                spans = _spans([(p, column) for column in mine])
                parts += [(self._columns_of(*span).flatten(1), None) for span in spans]
        if dense.shape[1] or not parts:
            parts.append((dense, None))
        if any(reads is not None for _, reads in parts):
            return JoinedRows(parts)
        return parts[0][0] if len(parts) == 1 else torch.cat([values for values, _ in parts], 1)

    def _columns_of(self, p: int, first: int, end: int) -> Tensor:
        """[B, F, D]: consecutive vectors of a pack."""
        pooled = self._pooled(p)
        # A slice of everything would cost a copy of the gradient on the way back.
        return pooled if (first, end) == (0, pooled.shape[1]) else pooled[:, first:end]

    def sequence(
        self, feature: str, role: str = "vector"
    ) -> tuple[Float[Tensor, "N D"], Int64[Tensor, "{self._plan.batch_size}+1"]]:
        """The vectors of a sequence feature, and where each sample's begin. On a device zeros may follow
        the last sample's (`Model.takes_padding`)."""
        for p, pack in enumerate(self.packs):
            starts = self._plan.packs[p].sequence_starts
            if starts is not None and (feature, role) in pack.sequence_of:
                part = self._split(p)[1 + pack.sequence_of[feature, role]]
                return part, self._offsets.setdefault(feature, starts[feature])  # in every pack the same
        raise LookupError(f"no sequence feature {feature!r} with role {role!r} was looked up")

    def shared_lists(
        self, feature: str, role: str = "vector"
    ) -> tuple[Float[Tensor, "N D"], SharedLists] | None:
        """The vectors of a sequence feature that samples of a request share, once for each request, and
        whose lists they are; None: every sample has a list of its own."""
        return None

    def lengths(self, feature: str) -> Int64[Tensor, "B"]:
        """How many elements each sample has in a sequence feature, in host memory."""
        for pack in self._on_host.packs:
            if pack.sequence_starts is not None and feature in pack.sequence_starts:
                return pack.sequence_starts[feature].diff().cpu()
        raise LookupError(f"no sequence feature {feature!r} was looked up")

    def _pooled(self, p: int) -> Float[Tensor, "B F D"]:
        """The pooled vectors of a pack."""
        leaf, pack = self.leaves[p], self.packs[p]
        if p in self.by_rows:
            role = pack.tables[0].role
            raise ValueError(
                f"the model names role {role!r} in `first_layer_roles`, and so reads it through "
                f"vectors.joined alone; take it from there to read its vectors otherwise"
            )
        return self._split(p)[0] if pack.sequences else leaf.view(self._shape_of_pooled(p))

    def _shape_of_pooled(self, p: int) -> tuple[int, int, int]:
        return self._plan.batch_size, len(self.packs[p].columns), self.leaves[p].shape[1]

    def _split(self, p: int) -> tuple[Tensor, ...]:
        """A pack's leaf: what is pooled, [B, F, D], then each sequence."""
        if p not in self._parts:
            starts, padded = self._on_host.packs[p].sequence_starts, self._plan.packs[p].sequence_sizes
            assert starts is not None
            leaf, shape = self.leaves[p], self._shape_of_pooled(p)
            sizes = list(padded or [int(starts[name][-1]) for name, _ in self.packs[p].sequences])
            sizes.insert(0, shape[0] * shape[1])
            if leaf.requires_grad and not torch.compiler.is_compiling():
                pooled, *parts = _Parts.apply(leaf, shape, sizes)
                self._columns[p] = tuple(parts[: shape[1]])
                self._parts[p] = pooled, *parts[shape[1] :]
            else:
                pooled, *sequences = leaf.split(sizes)
                self._parts[p] = pooled.view(shape), *sequences
        return self._parts[p]

    def _find(self, feature: str, role: str) -> tuple[int, int]:
        for p, pack in enumerate(self.packs):
            column = pack.column_of.get((feature, role))
            if column is not None:
                return p, column
        raise LookupError(f"no table of role {role!r} is read by feature {feature!r}")


class _Columns(torch.autograd.Function):
    """`unbind(1)` whose backward makes no zeros for the columns that a model does not read by name."""

    @staticmethod
    def forward(ctx: Any, pooled: Tensor) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.shape = pooled.shape
        return pooled.unbind(1)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> Tensor | None:
        read = {column: grad for column, grad in enumerate(grads) if grad is not None}
        if not read:
            return None
        if len(grads) == 1:
            return read[0][:, None]
        if len(read) == len(grads):
            return torch.stack(list(read.values()), 1)
        out = next(iter(read.values())).new_zeros(ctx.shape)
        for column, grad in read.items():
            out[:, column] = grad
        return out


class _Parts(torch.autograd.Function):
    """All columns of a leaf, [B, F, D], each of them, [B, D], and each sequence, [N, D].

    Backward puts the leaf's gradient together in one piece of memory, each part where it lies.
    """

    @staticmethod
    def forward(
        ctx: Any, leaf: Tensor, shape: tuple[int, int, int], sizes: list[int]
    ) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.shape, ctx.sizes = shape, sizes
        pooled, *sequences = leaf.split(sizes)
        return pooled.view(shape), *pooled.view(shape).unbind(1), *sequences

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, None, None]:
        some = next((grad for grad in grads if grad is not None), None)
        if some is None or (len(grads) == 2 and not ctx.shape[1]):  # one sequence, and nothing else
            return grads[-1], None, None
        leaf = some.new_empty(sum(ctx.sizes), ctx.shape[2])
        pooled, *sequences = leaf.split(ctx.sizes)
        pooled, of_all, of_columns = pooled.view(ctx.shape), grads[0], grads[1 : 1 + ctx.shape[1]]
        read = [grad for grad in of_columns if grad is not None]
        if of_all is None and read and len(read) == len(of_columns):
            torch.stack(read, 1, out=pooled)
        else:
            _write(pooled, of_all)
            for column, grad in zip(pooled.unbind(1), of_columns, strict=True):
                if grad is not None:
                    column.add_(grad)
        for part, grad in zip(sequences, grads[1 + ctx.shape[1] :], strict=True):
            _write(part, grad)
        return leaf, None, None


def _write(part: Tensor, grad: Tensor | None) -> None:
    if part.numel():
        part.zero_() if grad is None else part.copy_(grad)


def of_leaves(packs: Sequence[Pack], leaves: tuple[Tensor, ...], batch_size: int) -> Vectors:
    """The vectors of packs without sequences, which need no more of a plan than the number of samples."""
    return Vectors(packs, Plan(packs=(), step=0, batch_size=batch_size), leaves)


def _spans(columns: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int, int]]:
    """(pack, column) in order as (pack, first column, end).

    (0, 3), (0, 4), (1, 0)  ->  (0, 3, 5), (1, 0, 1)
    """
    begin = 0
    for end in range(1, len(columns) + 1):
        p, first = columns[begin]
        if end == len(columns) or columns[end] != (p, first + end - begin):
            yield p, first, first + end - begin
            begin = end
