"""TBSM, the time-based sequence model (Ishkhanov et al. 2020): a DLRM at each step of the past.

    element n of the history, its place in time, all else -> DLRM -> z_n [M], on the unit sphere
    item at hand, now, all else ----------------------------> DLRM -> w [M], on the unit sphere
    scores a_n = z_n . A^T A w -> MLP over the places -> weights -> context, the sum of weight * z_n
    [context, w] -> MLP -> logit

The authors' code (github.com/facebookresearch/tbsm) is followed: one DLRM for all steps, whose layers
all end in ReLU; the MLP over the places ends in a sigmoid. There a short history is filled up with the
item of id 0; here its places are empty and add nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from hotrows.models import tables
from hotrows.models.dense_input import DenseInput
from hotrows.models.histories import History, histories_of
from hotrows.models.model import Model
from hotrows.models.nn import MLP, DotInteraction
from hotrows.models.nn.jagged import ages_in_lists, copied_to_lists, latest_at_end
from hotrows.models.nn.jagged_products import widened
from hotrows.models.vectors import LookedUpVectors
from hotrows.schema import Schema

INNER = ("semidefinite", "indefinite", "dot")


class TBSM(Model):
    """TBSM (Ishkhanov et al. 2020): a DLRM at each step of the past, and attention over the steps.

    bottom, top: of the DLRM at each step; `dim` follows behind bottom, top's last size is that of z.

    inner: the product of z and w: `semidefinite` (z A^T A w), `indefinite` (z A w) or `dot`.
    length: places of the past, the latest elements of longer histories.
    attention: hidden layers of the MLP over the places; empty: the scores themselves are the weights.
    hidden: of the MLP on [context, w].
    history: the sequences of the past, joined element by element;
        None: all that share their vocabulary with a feature.

    >>> model = TBSM(data.schema, dim=8)
    >>> sorted({table.name for table in model.tables})
    ['item', 'user']
    """

    def __init__(
        self,
        schema: Schema,
        dim: int = 16,
        bottom: Sequence[int] = (),
        top: Sequence[int] = (15, 15),
        inner: str = "semidefinite",
        length: int = 20,
        attention: Sequence[int] = (15, 15),
        hidden: Sequence[int] = (60,),
        history: Sequence[str] | None = None,
    ) -> None:
        super().__init__()
        tables.check(schema, "TBSM", ids=True)
        if inner not in INNER:
            raise ValueError(f"inner must be one of {', '.join(INNER)}, not {inner!r}")
        if length < 1 or not top:
            raise ValueError(
                f"TBSM needs a length of at least 1 and layers in top, not {length} and {top!r}"
            )
        self.history = _joined(histories_of(schema, None if history is None else [history], "TBSM"))
        self.sequences = self.history.sequences
        apart = {*self.history.targets, *self.history.sequences}
        self.others = tuple(f.name for f in schema.id_features if f.name not in apart)
        self.tables = tables.vector_tables(schema, dim)
        self.dim, self.length, self.inner = dim, length, inner
        num_vectors = len(self.others) + len(self.history.targets)
        num_pairs = DotInteraction.num_outputs(num_vectors, dim)
        self.inputs = DenseInput(schema, dim)
        self.bottom = MLP((1 + self.inputs.width, *bottom, dim), last_activation="relu")
        self.interaction = DotInteraction()
        self.top = MLP((num_pairs, *top), last_activation="relu")
        size = top[-1]
        if inner != "dot":
            self.product = nn.Parameter(torch.randn(size, size) / math.sqrt(size))  # A
        self.attention: nn.Module = nn.Identity()
        if attention:
            self.attention = MLP((length, *attention, length), last_activation="sigmoid")
        self.head = MLP((2 * size, *hidden, 1))

    def forward(self, vectors: LookedUpVectors, dense: Tensor) -> Tensor:
        dense = self.inputs(dense)
        target = self.history.target(vectors)  # [B, T D]
        past, lists, _ = self.history.past(vectors)  # [N, T D]
        num = past.shape[0]
        others = [vectors.stack("vector", self.others).flatten(1)] if self.others else []
        around = torch.cat([dense, *others], 1)  # [B, d + O D]
        ages = ages_in_lists(lists, num)
        places = (self.length - 1 - ages).clamp(min=0).to(dense.dtype)
        steps = self._steps(
            torch.cat([places, dense.new_full((dense.shape[0],), self.length)])[:, None],
            torch.cat([copied_to_lists(around, lists, num), around]),
            torch.cat([past, target]),
            dense.shape[1],
        )
        history = latest_at_end(steps[:num], lists, self.length)  # [B, L, M]
        now = steps.narrow(0, num, dense.shape[0])  # [B, M]; of B samples in exports, not of a difference
        scores = torch.bmm(history, self._query(now)[:, :, None]).squeeze(2)
        context = torch.bmm(self.attention(scores)[:, None], history).squeeze(1)
        return self.head(torch.cat([widened(context), now], 1)).squeeze(1).float()

    def _query(self, now: Tensor) -> Tensor:
        """The factor of steps: A^T A w, A w or w."""
        if self.inner == "dot":
            return now
        query = functional.linear(now, self.product)
        return query @ self.product if self.inner == "semidefinite" else query

    def _steps(self, places: Tensor, around: Tensor, items: Tensor, num_dense: int) -> Tensor:
        """Returns z of each step, [S, M], given its place [S, 1], all else at it, dense values first, and
        the vectors of its elements."""
        bottom = self.bottom(torch.cat([places / (self.length + 1), around[:, :num_dense]], 1))
        vectors = torch.cat([around[:, num_dense:], items], 1).unflatten(1, (-1, self.dim))
        return functional.normalize(widened(self.top(self.interaction(bottom, vectors))), dim=1)


def _joined(histories: Sequence[History]) -> History:
    """One history of the elements of all."""
    return History(
        tuple(name for history in histories for name in history.targets),
        tuple(name for history in histories for name in history.sequences),
    )
