"""HSTU as a ranker (Zhai et al., ICML 2024): layers over the past, which each candidate reads at its end.

    past   [N, D] -+-> layer -> layer -> ..      once for all candidates of a request
                   |     |        |
    target [B, D] -+-> layer -> layer -> state -+
                                                +-> MLP -> logit
    vectors of all other features, dense -------+

Candidates do not read each other, so that each has the state that it would have as the last element of
its list. Batches hold no times of elements: the bias is that of distances. The paper's ranker also has
the user's actions as elements, and no other features; the MLP over them is that of DIN's authors.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from hotrows.engine.shared_lists import SharedLists
from hotrows.models.interest_model import InterestModel
from hotrows.models.interests import Interest
from hotrows.models.nn.hstu import TransductionLayer
from hotrows.models.nn.jagged_products import Lists
from hotrows.schema import Schema


class HSTU(InterestModel):
    """HSTU (Zhai et al. 2024): layers of pointwise attention over each history, and an MLP on top.

    layers, heads: of `models.nn.hstu.TransductionLayer`.
    length: elements before it that one reads, the latest ones; None: the history's `max_length`, or 100.
    hidden, activation: of the MLP.
    histories: as in `DIN`.

    >>> model = HSTU(data.schema, dim=8)
    >>> sorted({table.name for table in model.tables})
    ['item', 'item.bias', 'user']
    """

    def __init__(
        self,
        schema: Schema,
        dim: int = 16,
        layers: int = 2,
        heads: int = 2,
        length: int | None = None,
        hidden: Sequence[int] = (80, 40),
        activation: str = "dice",
        dropout: float = 0.0,
        histories: Sequence[str | Sequence[str]] | None = None,
    ) -> None:
        super().__init__(schema, dim, histories)
        if layers < 1:
            raise ValueError(f"HSTU needs at least one layer, not layers={layers}")
        longest = {feature.name: feature.max_length for feature in schema.sequences}
        interests = [
            TransducedInterest(
                dim * len(history.targets), layers, heads, length or longest[history.sequences[0]] or 100
            )
            for history in self.histories
        ]
        as_din = {"input_norm": True, "product": True, "target_bias": True}
        self.finish(interests, hidden, activation, dropout, **as_din)


class TransducedInterest(nn.Module):
    """The candidate's state behind its history, after each of `num_layers` layers has read it."""

    def __init__(self, dim: int, num_layers: int, heads: int, length: int) -> None:
        super().__init__()
        self.num_outputs = dim
        self.layers = nn.ModuleList(TransductionLayer(dim, heads, length) for _ in range(num_layers))

    def forward(
        self, target: Tensor, past: Tensor, offsets: Lists | SharedLists, lengths: Tensor | None = None
    ) -> Interest:
        for layer in self.layers[:-1]:
            target, past = layer(target, past, offsets)
        last = self.layers[-1]
        assert isinstance(last, TransductionLayer)
        return last.last(target, past, offsets), None
