"""A layer of HSTU, the hierarchical sequential transduction unit (Zhai et al., ICML 2024).

    x -> norm -> linear -> SiLU -> U, Q, K, V
    y = linear(norm(A V) * U) + x,    A = silu(Q K^T + bias of distances and of intervals) / P

Elements of a list read those before them and themselves. Candidates behind a list read all of it and
themselves, not each other, so the list's states do not depend on them: they are computed once for all of
its candidates (the paper's M-FALCON).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from hotrows.engine.shared_lists import SharedLists
from hotrows.models.nn.jagged_products import Lists, widened
from hotrows.models.nn.mlp import MLP
from hotrows.ops.layers import hstu, padded
from hotrows.ops.layers.padded import PaddedLists

Times = tuple[Tensor, Tensor]


class TransductionLayer(nn.Module):
    """A layer of HSTU: candidates [B, D], past [N, D] and lists -> both, [B, D] and [N, D].

    heads: of the attention, each D / heads wide.
    length: elements before it that one reads, the latest ones. P is length + 1, so that a value depends
        on its own list alone, not on the longest of the batch.
    by_time: also learns a bias by the time between two elements; `times` are then of candidates, [B], and
        of elements, [N], int64 in seconds.
    lists: offsets [B + 1], or `SharedLists` of several candidates each.

    >>> layer = TransductionLayer(dim=8)
    >>> [x.shape for x in layer(torch.zeros(2, 8), torch.zeros(5, 8), torch.tensor([0, 2, 5]))]
    [torch.Size([2, 8]), torch.Size([5, 8])]
    """

    def __init__(self, dim: int, heads: int = 2, length: int = 50, by_time: bool = False) -> None:
        super().__init__()
        if heads < 1 or dim % heads or length < 1:
            raise ValueError(
                f"HSTU needs heads that divide the width of an element, {dim}, and a length of at "
                f"least 1, not heads={heads} and length={length}"
            )
        # Vectors begin near 0, and those of rare ids stay there: a small epsilon would make noise of them
        # as loud as what is known. A short list's sum stays small, too.
        self.norm, self.norm_attended = (nn.LayerNorm(dim, eps=0.01) for _ in range(2))
        self.to_gates = MLP((dim, 2 * dim))  # U and Q
        self.to_keys = MLP((dim, 2 * dim))  # K and V
        self.to_output = MLP((dim, dim))
        for parameter in self.to_output.parameters():  # a layer begins as its input
            nn.init.zeros_(parameter)
        self.distances = nn.Parameter(torch.zeros(heads, length + 1))
        self.intervals = nn.Parameter(torch.zeros(heads, hstu.INTERVALS)) if by_time else None

    def forward(
        self, candidates: Tensor, past: Tensor, lists: Lists | SharedLists, times: Times | None = None
    ) -> tuple[Tensor, Tensor]:
        x, keys = self._keys(past)
        candidates = self._candidates(candidates, keys, lists, times)
        gate, queries = self._gates(x)
        times = None if times is None else (times[1], times[1])
        attended = self._attention(queries, keys, lists, times, causal=True)
        return candidates, self._output(attended, gate, past)

    def last(
        self, candidates: Tensor, past: Tensor, lists: Lists | SharedLists, times: Times | None = None
    ) -> Tensor:
        """The candidates alone, of which the past is nobody's input any more."""
        return self._candidates(candidates, self._keys(past)[1], lists, times)

    def _keys(self, past: Tensor) -> tuple[Tensor, Tensor]:
        x = self.norm(past)
        return x, widened(functional.silu(self.to_keys(x)))

    def _gates(self, x: Tensor) -> tuple[Tensor, Tensor]:
        gate, queries = widened(functional.silu(self.to_gates(x))).chunk(2, 1)
        return gate, queries

    def _candidates(
        self, candidates: Tensor, keys: Tensor, lists: Lists | SharedLists, times: Times | None
    ) -> Tensor:
        x, itself = self._keys(candidates)
        gate, queries = self._gates(x)
        heads, num_places = self.distances.shape
        k, v = itself.unflatten(1, (2, heads, -1)).unbind(1)  # [B, H, D]
        score = (queries.unflatten(1, (heads, -1)) * k).sum(2) + self.distances[:, 0]
        if self.intervals is not None:
            score = score + self.intervals[:, 0]
        of_itself = (functional.silu(score) / num_places)[..., None] * v
        attended = self._attention(queries, keys, lists, times, causal=False) + of_itself.flatten(1)
        return self._output(attended, gate, candidates)

    def _attention(
        self, queries: Tensor, keys: Tensor, lists: Lists | SharedLists, times: Times | None, causal: bool
    ) -> Tensor:
        expected = (
            None if self.intervals is None else [(len(queries), torch.int64), (len(keys), torch.int64)]
        )
        if (None if times is None else [(len(t), t.dtype) for t in times]) != expected:
            raise ValueError(
                "times, int64 of each candidate and element, go with by_time=True: give both or none"
            )
        if isinstance(lists, PaddedLists):
            return padded.pointwise_attention(queries, keys, lists, self.distances, causal)
        if isinstance(lists, SharedLists):
            offsets, starts = lists.offsets, lists.starts
        else:
            offsets, starts = lists, torch.arange(len(queries) + 1, device=queries.device)
        return _PointwiseAttention.apply(
            queries, keys, None if causal else starts, offsets, self.distances,
            *(times or (None, None)), self.intervals,
        )  # fmt: skip

    def _output(self, attended: Tensor, gate: Tensor, x: Tensor) -> Tensor:
        return self.to_output(self.norm_attended(attended) * gate) + x


class _PointwiseAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, *inputs):
        ctx.save_for_backward(*inputs)
        with torch.autocast(inputs[0].device.type, enabled=False):
            return hstu.pointwise_attention(*inputs)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad):
        with torch.autocast(grad.device.type, enabled=False):
            grads = hstu.pointwise_attention_backward(grad, *ctx.saved_tensors)
        return *grads[:2], None, None, grads[2], None, None, grads[3]
