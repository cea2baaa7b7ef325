"""CAN, the Co-Action Network (Bian et al., WSDM 2022): an item's own small network reads the past.

    target id   -> 160 numbers: the weights of an MLP 16-8-4 -+-> co-action, summed over the history -+
    history ids -> 16 numbers each, their powers ------------+                                       |
    interest, pooled or as DIN or DIEN has it; all other vectors, dense values ---------------> MLP -+

Every pair of a feature that gives weights and one that feeds them has a co-action; all pairs of a
batch are computed as one. The authors' code (github.com/CAN-Paper/Co-Action-Network) is followed:
weights are shared by the powers (the paper also has them independent: `shared_orders`), tanh follows
all layers but the last, and the MLP is 200-80 with PReLU on a normalised input.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from hotrows.models import tables
from hotrows.models.interest_model import InterestModel
from hotrows.models.interests import AttentionInterest, EvolvingInterest, SummedInterest
from hotrows.models.nn import CoAction
from hotrows.models.nn.jagged_products import Lists
from hotrows.models.vectors import LookedUpVectors
from hotrows.ops.layers.padded import PaddedLists
from hotrows.schema import Schema
from hotrows.table import Uniform

WEIGHTS = "co_action_weights"
INPUTS = "co_action_inputs"
BASES: dict[str, Callable[[int], nn.Module]] = {
    "pooled": SummedInterest,
    "din": AttentionInterest,
    "dien": EvolvingInterest,
}


class CAN(InterestModel):
    """Co-action network (Bian et al. 2022): weights from one feature's id for a small network on another.

    sizes: of the small network.
    orders: how many powers of its input it reads.

    pairs: (feature that gives the weights, feature or sequence that feeds them); None: the target and
    each sequence of every history.
    base: `pooled` (the history's sum, as the authors), `din` or `dien`.

    >>> model = CAN(data.schema, dim=8)
    >>> sorted({table.name for table in model.tables})
    ['item', 'item.co_action_inputs', 'item.co_action_weights', 'user']
    """

    def __init__(
        self,
        schema: Schema,
        dim: int = 16,
        base: str = "pooled",
        sizes: Sequence[int] = (16, 8, 4),
        orders: int = 3,
        shared_orders: bool = True,
        pairs: Sequence[Sequence[str]] | None = None,
        hidden: Sequence[int] = (200, 80),
        activation: str = "prelu",
        dropout: float = 0.0,
        histories: Sequence[str | Sequence[str]] | None = None,
    ) -> None:
        super().__init__(schema, dim, histories)
        if base not in BASES:
            raise ValueError(f"base must be one of {', '.join(BASES)}, not {base!r}")
        self.pairs = self._checked(pairs)
        self.co_action = CoAction(sizes, orders, shared_orders)
        givers, feeds = (list(dict.fromkeys(names)) for names in zip(*self.pairs, strict=True))
        num_weights = CoAction.num_parameters(sizes, orders, shared_orders)
        self.tables += tables.tables_of(schema, givers, num_weights, WEIGHTS, Uniform(0.1))
        self.tables += tables.tables_of(schema, feeds, sizes[0], INPUTS, Uniform(0.1))
        interests = [BASES[base](dim * len(history.targets)) for history in self.histories]
        more = len(self.pairs) * CoAction.num_outputs(sizes, orders)
        self.finish(interests, hidden, activation, dropout, input_norm=True, more=more)

    def more(self, vectors: LookedUpVectors) -> list[Tensor]:
        weights = [vectors[giver, WEIGHTS] for giver, _ in self.pairs]
        feeds = [self._feed(vectors, name) for _, name in self.pairs]
        # Padding has no place within lists that are laid end to end.
        if len(feeds) == 1 or isinstance(feeds[0][1], PaddedLists) or weights[0].is_cuda:
            pairs = zip(weights, feeds, strict=True)
            return [self.co_action(of_pair, *feed) for of_pair, feed in pairs]
        begins = itertools.accumulate((len(values) for values, _ in feeds[:-1]), initial=0)
        starts = [lists for _, lists in feeds if isinstance(lists, Tensor)]
        offsets = [first + begin for first, begin in zip(starts, begins, strict=True)]
        ends = [first[:-1] for first in offsets[:-1]]  # the next one's first is their last
        inputs = torch.cat([values for values, _ in feeds])
        together = self.co_action(torch.cat(weights), inputs, torch.cat([*ends, offsets[-1]]))
        return list(together.chunk(len(self.pairs)))

    def _feed(self, vectors: LookedUpVectors, name: str) -> tuple[Tensor, Lists]:
        if name in self.sequences:
            return vectors.sequence(name, INPUTS)
        values = vectors[name, INPUTS]
        lists = vectors.sequence(self.sequences[0])[1]
        if isinstance(lists, PaddedLists):
            return values, lists.of_ones()
        return values, torch.arange(len(values) + 1, device=values.device)

    def _checked(self, pairs: Sequence[Sequence[str]] | None) -> tuple[tuple[str, str], ...]:
        if pairs is None:
            return tuple(
                pair for h in self.histories for pair in zip(h.targets, h.sequences, strict=True)
            )
        feeds = (*self.others, *self.sequences)
        wrong = [p for p in pairs if len(p) != 2 or p[0] not in self.others or p[1] not in feeds]
        if wrong or not pairs:
            refused = wrong[0] if wrong else pairs
            raise ValueError(
                f"CAN's pairs are of a feature that gives weights ({', '.join(self.others)}) and one "
                f"that feeds them (also {', '.join(self.sequences)}), not {refused!r}"
            )
        return tuple((giver, feed) for giver, feed in pairs)
