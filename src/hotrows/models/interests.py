"""Interests: what a history says of the item at hand, as vectors; each made in the way of a paper.

Each is a module: (target [B, D], past [N, D], offsets [B + 1], lengths [B]) -> (interest
[B, num_outputs], loss). lengths: of the lists, in host memory, None where they are not known there. The
loss is None, or in training a scalar that the model adds to its own.

Where samples of a request share lists, `SharedLists` are in place of offsets, with lengths [R]: what the
target does not enter is then computed once for each request.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from hotrows.engine.shared_lists import SharedLists
from hotrows.models.nn import (
    GRU,
    MLP,
    AttentionalGRU,
    BatchNorm,
    BilinearAttention,
    TargetAttention,
    last_of,
    pool_jagged,
    samples_of,
)
from hotrows.models.nn.jagged_products import Lists, num_real

Interest = tuple[Tensor, Tensor | None]
EVOLUTIONS = ("augru", "augru_code", "agru", "aigru")


class SummedInterest(nn.Module):
    """The history's sum, whatever the target."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.num_outputs = dim

    def forward(
        self, target: Tensor, past: Tensor, offsets: Lists | SharedLists, lengths: Tensor | None = None
    ) -> Interest:
        if isinstance(offsets, SharedLists):
            return offsets.of_samples(pool_jagged(past, offsets.offsets, "sum")), None
        return pool_jagged(past, offsets, "sum"), None


class AttentionInterest(nn.Module):
    """DIN's: the history weighed by its attention to the target.

    hidden, activation, normalize: of `nn.TargetAttention`. project: batch normalisation and a linear
    layer on the weighed sum, as in the authors' code.
    """

    def __init__(
        self,
        dim: int,
        hidden: Sequence[int] = (80, 40),
        activation: str = "sigmoid",
        normalize: bool = True,
        project: bool = False,
    ) -> None:
        super().__init__()
        self.num_outputs = dim
        self.attention = TargetAttention(dim, hidden, activation, normalize)
        self.projection: nn.Module = nn.Identity()
        if project:
            self.projection = nn.Sequential(BatchNorm(dim), MLP((dim, dim)))

    def forward(
        self, target: Tensor, past: Tensor, offsets: Lists | SharedLists, lengths: Tensor | None = None
    ) -> Interest:
        return self.projection(self.attention(target, past, offsets)), None


class EvolvingInterest(nn.Module):
    """DIEN's (Zhou et al., AAAI 2019): a GRU extracts interests, one led by attention evolves them.

    past -> GRU -> states h_t -+-> attention to the target a_t -+-> AUGRU -> its last state
                               +--------------------------------+
    evolution: `augru` (attention scales the update gate), `agru` (is the gate), `aigru` (scales the
        input of a plain GRU), or `augru_code`, where it scales what is kept, as the authors' code.
    attention: hidden sizes of DIN's attention, which reads a projected target (authors' code: 80-40);
        None: bilinear, as the paper.
    reset, gate_bias: of both GRUs: see `nn.GRU`.
    auxiliary: how much the auxiliary loss counts: each state should tell the element that came next
        from one at another place of the batch's histories, in place of items drawn from
        all clicks. On several ranks it is the mean over the elements of each rank's share, weighed by
        the rank's share of samples: not quite the mean over all elements; and the other places are
        the rank's own. `auxiliary_hidden`: sizes of the network that tells (authors' code: 100-50); None:
        the inner product, as the paper.
    sums: whether the history's sum and its product with the target are added, as authors' code.
    """

    def __init__(
        self,
        dim: int,
        evolution: str = "augru",
        attention: Sequence[int] | None = None,
        reset: str = "after",
        gate_bias: float | None = None,
        auxiliary: float = 1.0,
        auxiliary_hidden: Sequence[int] | None = None,
        sums: bool = False,
    ) -> None:
        super().__init__()
        if evolution not in EVOLUTIONS:
            raise ValueError(f"evolution must be one of {', '.join(EVOLUTIONS)}, not {evolution!r}")
        if auxiliary < 0:
            raise ValueError(f"auxiliary must be at least 0, not {auxiliary}")
        self.num_outputs = dim * (3 if sums else 1)
        self.evolution, self.auxiliary, self.sums = evolution, auxiliary, sums
        self.extraction = GRU(dim, dim, reset, gate_bias)
        self.query: nn.Module = nn.Identity()
        self.attention: BilinearAttention | TargetAttention = BilinearAttention(dim, dim)
        if attention is not None:
            self.query = MLP((dim, dim), last_activation="prelu")
            self.attention = TargetAttention(dim, attention, "sigmoid", scale=1.0)
        self.evolving: nn.Module = (
            GRU(dim, dim, reset, gate_bias)
            if evolution == "aigru"
            else AttentionalGRU(dim, dim, evolution, reset, gate_bias)
        )
        self.tells = None if auxiliary_hidden is None else _Tells(dim, auxiliary_hidden)

    def forward(
        self, target: Tensor, past: Tensor, offsets: Lists | SharedLists, lengths: Tensor | None = None
    ) -> Interest:
        shared = offsets if isinstance(offsets, SharedLists) else None
        lists = offsets.offsets if isinstance(offsets, SharedLists) else offsets
        states = self.extraction(past, lists, lengths)
        interest = self._evolved(target, states, offsets, lengths)
        if self.sums:
            total = pool_jagged(past, lists, "sum")
            total = total if shared is None else shared.of_samples(total)
            interest = torch.cat([interest, total, total * target], 1)
        if not self.training or not self.auxiliary:
            return interest, None
        assert isinstance(lists, Tensor), "lists are padded in programs alone, which do not train"
        num_samples = None if shared is None else shared.starts.diff()
        loss = self._auxiliary_loss(states, past, lists, num_samples)
        return interest, loss if self.auxiliary == 1 else self.auxiliary * loss

    def _evolved(
        self, target: Tensor, states: Tensor, offsets: Lists | SharedLists, lengths: Tensor | None
    ) -> Tensor:
        """The last state that attention to each target leads to: [B, D]."""
        weights = self.attention.scores(self.query(target), states, offsets)
        lists: Lists = offsets.sample_offsets if isinstance(offsets, SharedLists) else offsets
        if isinstance(offsets, SharedLists) and lengths is not None:
            lengths = lengths.repeat_interleave(offsets.starts.diff())
        if self.evolution == "aigru":
            states = offsets.repeated(states) if isinstance(offsets, SharedLists) else states
            return last_of(self.evolving(states * weights[:, None], lists, lengths), lists)
        return last_of(self.evolving(states, weights, offsets, lengths), lists)

    def _auxiliary_loss(
        self, states: Tensor, past: Tensor, offsets: Tensor, num_samples: Tensor | None
    ) -> Tensor:
        """The mean cross-entropy of telling what came next, over all elements that have a next; 0
        where none has, and the network runs all the same: other ranks wait for its normalisation.

        num_samples: of shared lists, [R], how many samples each counts for; None: one.
        """
        sample, real = samples_of(offsets, len(past)), num_real(offsets)
        weight = sample[1:] == sample[:-1]
        if real is not None:
            weight, real = weight & (sample[1:] < len(offsets) - 1), real - 1
        if num_samples is not None:  # padding is of a sample behind the last one
            weight = weight * num_samples[sample[1:].clamp(max=len(num_samples) - 1)]
        others = _Shuffled.apply(past[1:], _shuffled(past[1:], offsets))
        ones = functional.softplus(-self._told(states[:-1], past[1:], real))
        zeros = functional.softplus(self._told(states[:-1], others, real))
        return ((ones + zeros) * weight).sum() / weight.sum().clamp(min=1)

    def _told(self, states: Tensor, elements: Tensor, real: Tensor | None) -> Tensor:
        """[M] logits: how well each element goes with the state before it."""
        return (states * elements).sum(1) if self.tells is None else self.tells(states, elements, real)


class _Tells(nn.Module):
    """The authors' auxiliary network: [state, element], normalised -> sigmoid layers -> logit."""

    def __init__(self, dim: int, hidden: Sequence[int]) -> None:
        super().__init__()
        self.norm = BatchNorm(2 * dim)
        self.layers = MLP((2 * dim, *hidden, 1), activation="sigmoid")

    def forward(self, states: Tensor, elements: Tensor, real: Tensor | None = None) -> Tensor:
        return self.layers(self.norm(torch.cat([states, elements], 1), real)).squeeze(1)


def _shuffled(rows: Tensor, offsets: Tensor) -> Tensor:
    """A random order of rows, the elements of lists but the first; padding behind them stays there."""
    if not offsets.is_cuda:
        return torch.randperm(len(rows), device=rows.device)
    keys = torch.rand(len(rows), device=rows.device)
    is_behind = torch.arange(1, len(rows) + 1, device=rows.device) >= offsets[-1:]
    return keys.masked_fill_(is_behind, 1.0).argsort(stable=True)


class _Shuffled(torch.autograd.Function):
    """Rows in another order; being a permutation, its gradient needs no sum."""

    @staticmethod
    def forward(ctx, rows, order):
        ctx.save_for_backward(order)
        return rows[order]

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad):
        (order,) = ctx.saved_tensors
        back = torch.empty_like(grad)
        back[order] = grad
        return back, None
