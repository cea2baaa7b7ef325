"""Lists that are padded to one length, and the list ops on them in plain PyTorch.

Training has lists end to end, with offsets. A program that is exported has them padded, as tensors of
fixed rank are what ONNX and `torch.export` take: [B * T, ...] values, the T places of a sample one after
the other, and a `PaddedLists` where the offsets are. Places behind the end of a list hold any finite
numbers; no op lets them into a result of a sample. Layers of `hotrows.models.nn` take either form.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from hotrows.ops.layers.recurrent import share_of


@dataclass(frozen=True)
class PaddedLists:
    """How long each of B lists is, and that their values are padded to T places.

    lengths: [B] int64, from 0 to T; longest: T, at least 1.
    """

    lengths: Tensor
    longest: int

    @property
    def mask(self) -> Tensor:
        """[B, T] bool: the places that hold a value."""
        return torch.arange(self.longest, device=self.lengths.device) < self.lengths[:, None]

    def apart(self, values: Tensor) -> Tensor:
        """[B * T, ...] -> [B, T, ...]."""
        return values.reshape(self.lengths.shape[0], self.longest, *values.shape[1:])

    def of_ones(self) -> PaddedLists:
        """Lists of as many samples, of one value each."""
        return PaddedLists(torch.ones_like(self.lengths), 1)


def softmax(scores: Tensor, lists: PaddedLists) -> Tensor:
    """The softmax over each sample's scores, 0 behind its end: [B * T] -> [B * T]."""
    mask = lists.mask
    shown = lists.apart(scores).masked_fill(~mask, torch.finfo(scores.dtype).min)
    return shown.softmax(1).masked_fill(~mask, 0.0).flatten()


def weighted_sum(weights: Tensor, values: Tensor, lists: PaddedLists) -> Tensor:
    """Each sample's sum of weights[n] values[n]: [B * T], [B * T, D] -> [B, D]."""
    shown = lists.apart(weights).masked_fill(~lists.mask, 0.0)
    return torch.bmm(shown[:, None], lists.apart(values)).squeeze(1)


def dot(queries: Tensor, keys: Tensor, lists: PaddedLists) -> Tensor:
    """The product of each key with its sample's query: [B, D], [B * T, D] -> [B * T]."""
    return torch.bmm(lists.apart(keys), queries[:, :, None]).flatten()


def last(states: Tensor, lists: PaddedLists) -> Tensor:
    """[B, H]: the vector at each sample's last position; zeros where it has none."""
    place = (lists.lengths - 1).clamp(min=0)[:, None, None].expand(-1, 1, states.shape[1])
    states_there = lists.apart(states).gather(1, place).squeeze(1)
    return states_there.masked_fill((lists.lengths == 0)[:, None], 0.0)


def latest(values: Tensor, lists: PaddedLists, length: int) -> tuple[Tensor, Tensor]:
    """[B, length, D] vectors, the last ones of longer lists, zeros behind the last, and their mask."""
    skipped = (lists.lengths - length).clamp(min=0)[:, None]
    place = torch.arange(length, device=skipped.device)
    mask = place < lists.lengths[:, None] - skipped
    source = (place + skipped).clamp(max=lists.longest - 1)[:, :, None].expand(-1, -1, values.shape[1])
    return lists.apart(values).gather(1, source).masked_fill(~mask[:, :, None], 0.0), mask


def target_projection(
    queries: Tensor, keys: Tensor, lists: PaddedLists, weight: Tensor, bias: Tensor
) -> Tensor:
    """weight [q, k, q - k, q * k] + bias for each key: [B, D], [B * T, D] -> [B * T, H].

    With weight = [Q, K, S, P] that is (K - S + P q) k + (Q + S) q + bias: a matrix for each sample.
    """
    of_query, of_key, of_difference, of_product = weight.chunk(4, dim=1)  # [H, D]
    matrices = (of_key - of_difference) + of_product * queries[:, None]  # [B, H, D]
    constant = functional.linear(queries, of_query + of_difference, bias)  # [B, H]
    keys = functional.pad(lists.apart(keys), (0, 1), value=1.0)  # the product adds the constant
    matrices = torch.cat([matrices, constant[:, :, None]], 2)
    return torch.bmm(keys, matrices.transpose(1, 2)).flatten(0, 1)


def pointwise_attention(
    queries: Tensor, keys: Tensor, lists: PaddedLists, bias: Tensor, causal: bool
) -> Tensor:
    """See `ops.layers.hstu`; queries: [B * T, W] of the elements, or [B, W], one behind each list."""
    heads, num_places = bias.shape
    k, v = lists.apart(keys).unflatten(2, (2, heads, -1)).permute(2, 3, 0, 1, 4)  # [H, B, T, D]
    if causal:
        q = lists.apart(queries).unflatten(2, (heads, -1)).permute(2, 0, 1, 3)  # [H, B, T, D]
        shown = _by_distance(bias, lists.longest)[:, None]
        weights = functional.silu(q @ k.transpose(2, 3) + shown).tril().triu(1 - num_places)
    else:
        q = queries.unflatten(1, (heads, 1, -1)).transpose(0, 1)  # [H, B, 1, D]
        distance = lists.lengths[:, None] - torch.arange(lists.longest, device=queries.device)
        is_read = (distance >= 1) & (distance < num_places)  # [B, T]
        shown = bias.t()[distance.clamp(0, num_places - 1)].permute(2, 0, 1)[:, :, None]
        weights = functional.silu(q @ k.transpose(2, 3) + shown)
        v = v * is_read[:, :, None].to(v.dtype)
    out = (weights @ v).permute(1, 2, 0, 3)  # [B, T or 1, H, D]
    return out.flatten(2).flatten(0, 1) / num_places


def _by_distance(bias: Tensor, length: int) -> Tensor:
    """bias [H, P] of distances -> [H, T, T]: that of i - j at (i, j), where j <= i < j + P.

    A row of T + 1, that of distances T to 0, is repeated T times; read on from its end in rows of T, each
    row begins one distance later.
    """
    heads, num_places = bias.shape
    distances = (length - torch.arange(length + 1, device=bias.device)).clamp(max=num_places - 1)
    rows = bias.index_select(1, distances)[:, None].expand(heads, length, length + 1).flatten(1)
    return rows[:, length:].unflatten(1, (length, length))


def co_action(
    weights: Tensor,
    inputs: Tensor,
    lists: PaddedLists,
    sizes: Sequence[int],
    orders: int,
    shared_orders: bool,
) -> Tensor:
    """Each sample's own network over powers of its list's vectors, summed over the list; see
    `ops.layers.co_action`."""
    pairs = list(itertools.pairwise(sizes))
    num_copies = 1 if shared_orders else orders
    parts = iter(weights.split([i * o for i, o in pairs] * num_copies, 1))
    matrices = [[next(parts).unflatten(1, pair) for pair in pairs] for _ in range(num_copies)]
    first, outputs = lists.apart(inputs), []
    for order in range(orders):
        x = first ** (order + 1)  # [B, T, sizes[0]]
        for place, matrix in enumerate(matrices[0 if shared_orders else order]):
            x = torch.bmm(x, matrix)
            x = x if place == len(pairs) - 1 else torch.tanh(x)
            outputs.append(x)
    return torch.cat(outputs, 2).masked_fill(~lists.mask[:, :, None], 0.0).sum(1)


def recurrent(
    parts: Tensor,
    attention: Tensor | None,
    lists: PaddedLists,
    weight: Tensor,
    bias: Tensor,
    kind: str,
    reset: str,
) -> Tensor:
    """The state of each position, [B * T, H], from zeros in front of each sample's first.

    parts: [B * T, 3H]; the formulas are in `ops.layers.recurrent`. A state behind the end of a list
    follows from what stands there, and no state before it does.
    """
    from torch._higher_order_ops.scan import scan

    size = weight.shape[1]

    def step(h: Tensor, now: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        x_r, x_z, x_n = now[0].chunk(3, 1)  # [B, H]
        if reset == "after":
            of_r, of_z, of_n = functional.linear(h, weight, bias).chunk(3, 1)
        else:
            of_r, of_z = functional.linear(h, weight[: 2 * size], bias[: 2 * size]).chunk(2, 1)
        r, z = torch.sigmoid(x_r + of_r), torch.sigmoid(x_z + of_z)
        if reset == "after":
            n = torch.tanh(x_n + r * of_n)
        else:
            n = torch.tanh(x_n + functional.linear(r * h, weight[2 * size :], bias[2 * size :]))
        new = h + share_of(kind, z, now[1] if len(now) > 1 else None) * (n - h)
        return new, new.clone()

    steps = [lists.apart(parts).transpose(0, 1)]  # [T, B, 3H]
    if attention is not None:
        steps.append(lists.apart(attention).t()[:, :, None])  # [T, B, 1]
    start = parts.new_zeros(lists.lengths.shape[0], size)
    _, states = scan(step, start, tuple(steps))
    return states.transpose(0, 1).flatten(0, 1)
