"""The base of DIN, DIEN and CAN: histories, the vectors of all else, and an MLP on top."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from hotrows.models import tables
from hotrows.models.dense_input import DenseInput
from hotrows.models.histories import histories_of
from hotrows.models.model import Model
from hotrows.models.nn import MLP, BatchNorm
from hotrows.models.vectors import LookedUpVectors
from hotrows.schema import Schema
from hotrows.table import Constant

BIAS = "bias"


class InterestModel(Model):
    """A model of an interest per history, to be finished by `finish` in a subclass's `__init__`.

    histories: as `histories_of` takes them.
    """

    takes_padding = True

    def __init__(self, schema: Schema, dim: int, histories: Sequence[str | Sequence[str]] | None) -> None:
        super().__init__()
        tables.check(schema, type(self).__name__, ids=True)
        self.histories = histories_of(schema, histories, type(self).__name__)
        self.sequences = tuple(dict.fromkeys(n for h in self.histories for n in h.sequences))
        self.others = tuple(f.name for f in schema.id_features if f.name not in self.sequences)
        self.tables = tables.vector_tables(schema, dim)
        self._schema, self._dim = schema, dim

    def finish(
        self,
        interests: Sequence[nn.Module],
        hidden: Sequence[int],
        activation: str,
        dropout: float,
        *,
        input_norm: bool = False,
        product: bool = False,
        target_bias: bool = False,
        more: int = 0,
    ) -> None:
        """interests: one per history, as in `interests`. more: further inputs of the MLP.

        input_norm: batch normalisation of the MLP's input; product: interest * target is part of it;
        target_bias: a bias per target id is added to the logit.
        """
        schema, dim = self._schema, self._dim
        self.interests = nn.ModuleList(interests)
        self.product, self.target_bias = product, target_bias
        self.inputs = DenseInput(schema, dim)
        width = len(self.others) * dim + self.inputs.width + more
        for history, interest in zip(self.histories, interests, strict=True):
            assert isinstance(interest.num_outputs, int)
            width += interest.num_outputs + (len(history.targets) * dim if product else 0)
        self.norm: nn.Module = BatchNorm(width) if input_norm else nn.Identity()
        self.top = MLP((width, *hidden, 1), activation=activation, dropout=dropout)
        if target_bias:
            targets = [name for history in self.histories for name in history.targets]
            self.tables += tables.tables_of(schema, targets, 1, BIAS, initializer=Constant(0.0))

    def forward(self, vectors: LookedUpVectors, dense: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        parts = [vectors.stack("vector", self.others).flatten(1), self.inputs(dense)]
        losses = []
        for history, interest in zip(self.histories, self.interests, strict=True):
            target = history.target(vectors)
            values, loss = interest(target, *(history.shared_past(vectors) or history.past(vectors)))
            parts += [values, values * target] if self.product else [values]
            losses += [] if loss is None else [loss]
        parts += self.more(vectors)
        logits = self.top(self.norm(torch.cat(parts, 1))).squeeze(1).float()
        if self.target_bias:
            logits = logits + vectors.stack(BIAS).sum((1, 2))
        if not losses:
            return logits
        return logits, losses[0] if len(losses) == 1 else torch.stack(losses).sum()

    def more(self, vectors: LookedUpVectors) -> list[Tensor]:
        """Further inputs of the MLP, [B, K] each."""
        return []
