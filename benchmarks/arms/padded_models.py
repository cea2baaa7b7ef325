"""DIN, DIEN and CAN as one writes them with care in PyTorch alone: padded to the batch's longest.

A batch is sorted by length, the longest first, so that recurrent layers work on a batch that shrinks.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence


def perceptrons(sizes: Sequence[int], activation: type[nn.Module]) -> nn.Sequential:
    """Linear layers with the activation between them."""
    layers: list[nn.Module] = []
    for size, after in pairwise(sizes):
        layers += [nn.Linear(size, after), activation()]
    return nn.Sequential(*layers[:-1])


class Attention(nn.Module):
    """softmax over the history of MLP([q, k, q - k, q * k]): [B, L].

    first: `concat` makes that input; `decomposed` never does, since its first layer is
    Wk' k + Wp (q * k) + Wq' q, with the last term once per sample.
    """

    def __init__(self, dim: int, hidden: Sequence[int], first: str) -> None:
        super().__init__()
        self.first = first
        self.layers = perceptrons((4 * dim, *hidden, 1), nn.Sigmoid)

    def forward(self, query: Tensor, keys: Tensor, mask: Tensor) -> Tensor:
        size, length, dim = keys.shape
        query = query[:, None]  # [B, 1, D]
        if self.first == "concat":
            queries = query.expand_as(keys)
            x = torch.cat([queries, keys, queries - keys, queries * keys], 2)
            scores = self.layers(x.view(-1, 4 * dim)).view(size, length)
        else:
            linear = self.layers[0]
            of_query, of_key, of_difference, of_product = linear.weight.split(dim, 1)
            x = torch.cat([keys, query * keys], 2).view(-1, 2 * dim)
            x = x @ torch.cat([of_key - of_difference, of_product], 1).t()
            once = nn.functional.linear(query, of_query + of_difference, linear.bias)
            x = (x.view(size, length, -1) + once).view(size * length, -1)
            scores = self.layers[1:](x).view(size, length)
        return scores.masked_fill(~mask, -torch.inf).softmax(1)


class AttentionalGRU(nn.Module):
    """AUGRU over a packed batch: the last states [B, H]."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.inputs, self.states = nn.Linear(dim, 3 * dim), nn.Linear(dim, 3 * dim)

    def forward(self, packed: PackedSequence, attention: PackedSequence) -> Tensor:
        sizes = packed.batch_sizes.tolist()
        inputs = self.inputs(packed.data).split(sizes)
        attention = attention.data[:, None].split(sizes)
        h = packed.data.new_zeros(sizes[0], packed.data.shape[1])
        finished = []
        for x, a in zip(inputs, attention, strict=True):
            if len(x) < len(h):
                finished.append(h[len(x) :])
                h = h[: len(x)]
            x_reset, x_update, x_new = x.chunk(3, 1)
            h_reset, h_update, h_new = self.states(h).chunk(3, 1)
            new = torch.tanh(torch.addcmul(x_new, torch.sigmoid(x_reset + h_reset), h_new))
            h = torch.lerp(h, new, a * torch.sigmoid(x_update + h_update))
        return torch.cat([h, *reversed(finished)])


class DIN(nn.Module):
    def __init__(self, dim: int, width: int, attention: Sequence[int], hidden, first: str) -> None:
        super().__init__()
        self.attention = Attention(dim, attention, first)
        self.top = perceptrons((width + dim, *hidden, 1), nn.ReLU)

    def forward(self, others: Tensor, target: Tensor, past: Tensor, lengths: Tensor) -> Tensor:
        weights = self.attention(target, past, _mask(past, lengths))
        interest = torch.bmm(weights[:, None], past).squeeze(1)
        return self.top(torch.cat([others, interest], 1)).squeeze(1)


class DIEN(nn.Module):
    def __init__(self, dim: int, width: int, attention: Sequence[int], hidden, first: str) -> None:
        super().__init__()
        self.extraction = nn.GRU(dim, dim, batch_first=True)
        self.attention = Attention(dim, attention, first)
        self.evolution = AttentionalGRU(dim)
        self.top = perceptrons((width + dim, *hidden, 1), nn.ReLU)

    def forward(self, others: Tensor, target: Tensor, past: Tensor, lengths: Tensor) -> Tensor:
        packed = pack_padded_sequence(past, lengths, batch_first=True)
        states, _ = self.extraction(packed)
        padded, _ = pad_packed_sequence(states, batch_first=True)
        weights = self.attention(target, padded, _mask(past, lengths))
        weights = pack_padded_sequence(weights, lengths, batch_first=True)
        interest = self.evolution(states, weights)
        return self.top(torch.cat([others, interest], 1)).squeeze(1)


class CAN(nn.Module):
    """One co-action, of the target and its history; the history itself is summed."""

    def __init__(
        self, dim: int, width: int, sizes: Sequence[int], orders: int, hidden: Sequence[int]
    ) -> None:
        super().__init__()
        self.sizes, self.orders = tuple(sizes), orders
        width += dim + orders * sum(sizes[1:])
        self.norm = nn.BatchNorm1d(width)
        self.top = perceptrons((width, *hidden, 1), nn.PReLU)

    def forward(
        self, others: Tensor, past: Tensor, lengths: Tensor, weights: Tensor, inputs: Tensor
    ) -> Tensor:
        """past, inputs: zeros behind the last; so nothing is masked, for tanh(0) is 0."""
        pairs = list(pairwise(self.sizes))
        matrices = weights.split([a * b for a, b in pairs], 1)
        outputs = []
        for order in range(1, self.orders + 1):
            x = inputs**order
            for n, (matrix, pair) in enumerate(zip(matrices, pairs, strict=True)):
                x = torch.bmm(x, matrix.view(-1, *pair))
                x = torch.tanh(x) if n < len(pairs) - 1 else x
                outputs.append(x.sum(1))
        x = torch.cat([others, past.sum(1), *outputs], 1)
        return self.top(self.norm(x)).squeeze(1)


def _mask(past: Tensor, lengths: Tensor) -> Tensor:
    return torch.arange(past.shape[1]) < lengths[:, None]
