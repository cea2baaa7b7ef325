"""DIN, DIEN, CAN and HSTU as one writes them with care in PyTorch alone: padded to the batch's longest.

A batch is sorted by length, the longest first, so that recurrent layers work on a batch that shrinks.
Tables are `nn.Embedding` with sparse gradients, an item table looked up once for target and history.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from benchmarks.samples import Features, Samples


class Batch(NamedTuple):
    """Sorted by length, the longest first."""

    ids: dict[str, Tensor]  # [B] by field
    items: Tensor  # [B + N]: the target's ids, then those of all histories
    places: Tensor  # [N]: where each of the histories' elements stands among [B * L]
    lengths: Tensor  # [B]
    dense: Tensor
    labels: Tensor
    order: Tensor  # [B]: where each sample was


def build(name: str, features: Features, dim: int, **options: Any) -> Padded:
    return Padded(name, features, dim, **options)


def tables(model: Padded) -> dict[str, nn.Parameter]:
    """The tables by name of the field, those of the co-action as FIELD.ROLE."""
    return {name.replace("|", "."): table.weight for name, table in model.tables.items()}


def inputs(features: Features, samples: Samples) -> Batch:
    lengths = np.diff(samples.offsets)
    order = np.argsort(-lengths, kind="stable")
    parts = [samples.history[samples.offsets[b] : samples.offsets[b + 1]] for b in order]
    mask = np.arange(max(lengths[order[0]], 1)) < lengths[order, None]
    ids = dict(zip(features.fields, torch.from_numpy(samples.ids[:, order]), strict=True))
    return Batch(
        ids,
        torch.cat([ids[features.target], torch.from_numpy(np.concatenate(parts))]),
        torch.from_numpy(np.flatnonzero(mask)),
        torch.from_numpy(lengths[order]),
        torch.from_numpy(samples.dense[order]),
        torch.from_numpy(samples.labels[order]),
        torch.from_numpy(order),
    )


def logits(model: Padded, batch: Batch) -> Tensor:
    """[B], in the order of the samples that the batch was made of."""
    outputs = model(batch)
    return torch.empty_like(outputs).index_copy(0, batch.order, outputs)


class Padded(nn.Module):
    """A model with its tables: logits [B] of a sorted batch."""

    def __init__(self, name: str, features: Features, dim: int, **options: Any) -> None:
        super().__init__()
        self.features = features
        self.tables = nn.ModuleDict({field: table(rows, dim) for field, rows in features.rows.items()})
        width = len(features.fields) * dim + features.num_dense
        self.model = {"din": DIN, "dien": DIEN, "can": CAN, "hstu": HSTU}[name](dim, width, **options)
        if isinstance(self.model, CAN):
            rows, sizes = features.rows[features.target], self.model.sizes
            num_weights = sum(a * b for a, b in pairwise(sizes))
            self.tables[f"{features.target}|co_action_weights"] = table(rows, num_weights)
            self.tables[f"{features.target}|co_action_inputs"] = table(rows, sizes[0])

    def forward(self, batch: Batch) -> Tensor:
        fields, target = self.features.fields, self.features.target
        of_target, past = self.tables[target](batch.items).split([len(batch.lengths), len(batch.places)])
        vectors = {
            name: of_target if name == target else self.tables[name](batch.ids[name]) for name in fields
        }
        others = torch.cat([*(vectors[name] for name in fields), batch.dense], 1)
        padded = padded_vectors(past, batch)
        if not isinstance(self.model, CAN):
            return self.model(others, of_target, padded, batch.lengths)
        weights = self.tables[f"{target}|co_action_weights"](batch.ids[target])
        history = batch.items[len(batch.lengths) :]
        values = self.tables[f"{target}|co_action_inputs"](history)
        return self.model(others, padded, weights, padded_vectors(values, batch))


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
    def __init__(
        self, dim: int, width: int, attention: Sequence[int], hidden: Sequence[int], first: str = "concat"
    ) -> None:
        super().__init__()
        self.attention = Attention(dim, attention, first)
        self.top = perceptrons((width + dim, *hidden, 1), nn.ReLU)

    def forward(self, others: Tensor, target: Tensor, past: Tensor, lengths: Tensor) -> Tensor:
        weights = self.attention(target, past, _mask(past, lengths))
        interest = torch.bmm(weights[:, None], past).squeeze(1)
        return self.top(torch.cat([others, interest], 1)).squeeze(1)


class DIEN(nn.Module):
    def __init__(
        self, dim: int, width: int, attention: Sequence[int], hidden: Sequence[int], first: str = "concat"
    ) -> None:
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


class HSTU(nn.Module):
    """Layers over each history with its target as the last element, and an MLP on its state."""

    def __init__(
        self, dim: int, width: int, layers: int, heads: int, length: int, hidden: Sequence[int]
    ) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Transduction(dim, heads, length) for _ in range(layers))
        self.norm = nn.BatchNorm1d(width + 2 * dim)
        self.top = perceptrons((width + 2 * dim, *hidden, 1), nn.ReLU)

    def forward(self, others: Tensor, target: Tensor, past: Tensor, lengths: Tensor) -> Tensor:
        place = lengths[:, None, None].expand(-1, 1, past.shape[2])
        x = nn.functional.pad(past, (0, 0, 0, 1)).scatter(1, place, target[:, None])
        for layer in self.layers:
            x = layer(x)
        state = x.gather(1, place).squeeze(1)
        return self.top(self.norm(torch.cat([others, state, state * target], 1))).squeeze(1)


class Transduction(nn.Module):
    """A layer of HSTU: [B, L, D] -> [B, L, D], causal, so that nothing is masked behind an end."""

    def __init__(self, dim: int, heads: int, length: int) -> None:
        super().__init__()
        self.norm, self.norm_attended = nn.LayerNorm(dim, eps=0.01), nn.LayerNorm(dim, eps=0.01)
        self.inputs, self.output = nn.Linear(dim, 4 * dim), nn.Linear(dim, dim)
        self.distances = nn.Parameter(torch.zeros(heads, length + 1))

    def forward(self, x: Tensor) -> Tensor:
        heads, num_places = self.distances.shape
        gate, *parts = nn.functional.silu(self.inputs(self.norm(x))).chunk(4, 2)
        q, k, v = (part.unflatten(2, (heads, -1)).transpose(1, 2) for part in parts)  # [B, H, L, D / H]
        place = torch.arange(x.shape[1])
        distance = place[:, None] - place
        is_read = (distance >= 0) & (distance < num_places)
        scores = q @ k.transpose(2, 3) + self.distances[:, distance.clamp(0, num_places - 1)]
        weights = nn.functional.silu(scores) * (is_read / num_places)
        attended = (weights @ v).transpose(1, 2).flatten(2)
        return self.output(self.norm_attended(attended) * gate) + x


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

    def forward(self, others: Tensor, past: Tensor, weights: Tensor, inputs: Tensor) -> Tensor:
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


def padded_vectors(values: Tensor, batch: Batch) -> Tensor:
    """[N, D] vectors of the histories as [B, L, D], with zeros behind the last."""
    size, longest = len(batch.lengths), max(int(batch.lengths[0]), 1)
    padded = values.new_zeros(size * longest, values.shape[1]).index_copy(0, batch.places, values)
    return padded.view(size, longest, -1)


def table(rows: int, dim: int) -> nn.Embedding:
    table = nn.Embedding(rows, dim, sparse=True)
    nn.init.uniform_(table.weight, -0.01, 0.01)
    return table
