"""Every op in plain PyTorch: the specification, the oracle of the tests, and the fallback.

All ops take `layout`, the six numbers of `RecordLayout.as_ints()`, where they touch records, and
the fields of a `PackPlan` where they follow one.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from hotrows.record import views

_GOLDEN = 0x9E3779B97F4A7C15 - (1 << 64)
_MIX = (0xBF58476D1CE4E5B9 - (1 << 64), 0x94D049BB133111EB - (1 << 64))
ROUNDING_STREAM = 0x6A09E667F3BCC908
"""What sets the random bits of stochastic rounding apart from those of initialization."""


def resolve(
    ids: Tensor,
    offsets: Tensor | None,
    batch_size: int,
    features: Tensor,
    first_rows: Tensor,
    num_rows: Tensor,
    num_columns: int,
    routes: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Ids of a batch to rows of a pack, in the order of the lookup's bags.

    ids: [N] and offsets: [F * B + 1] as in `Batch`. features: [K] the batch's feature that each
    vector of a sample comes from; the first `num_columns` are pooled per sample, the others are
    sequences. first_rows, num_rows: [K] of the table each reads. routes: [K, 4 + P] int64, where the
    rows of that table are among P ranks (see `planning.sharding`); None: id i is row first_rows + i.

    Returns rows [N'] int64, source [N'] int64 (the position in `ids` of each), bag_starts [M + 1]
    int32, and bad [1]: the first n whose id lies outside its table, or -1. Where `offsets` is None
    every bag has one id; source and bag_starts are then empty.
    """
    bags = features[:, None] * batch_size + _arange(batch_size, ids)  # [K, B]
    if offsets is None:
        picked = ids[bags]
        bad = (picked < 0) | (picked >= num_rows[:, None])
        column = _arange(len(features), ids)[:, None]
        rows = _rows_of(picked, bad, first_rows[:, None], routes, column)
        empty = ids.new_empty(0, dtype=torch.int32)
        rows, bad = _by_bag(rows, num_columns), _by_bag(bad, num_columns)
        return rows, ids.new_empty(0, dtype=torch.int64), empty, _first(bad)

    columns = _arange(features.numel(), ids)[:, None].expand(-1, batch_size)  # [K, B]
    starts, lengths = offsets[bags], offsets.diff()[bags]
    columns, starts, lengths = (_by_bag(t, num_columns) for t in (columns, starts, lengths))
    total = lengths.cumsum(0)
    column = columns.repeat_interleave(lengths)
    begin = (total - lengths).repeat_interleave(lengths)
    source = _arange(column.numel(), ids) - begin + starts.repeat_interleave(lengths)
    picked = ids[source]
    bad = (picked < 0) | (picked >= num_rows[column])
    num_pooled = int(lengths[: num_columns * batch_size].sum())
    pooled = total[: num_columns * batch_size]
    single = num_pooled + 1 + _arange(picked.numel() - num_pooled, ids)
    bag_starts = torch.cat([pooled.new_zeros(1), pooled, single])
    rows = _rows_of(picked, bad, first_rows[column], routes, column)
    return rows, source, bag_starts.int(), _first(bad)


def unique(rows: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Distinct rows and the runs of equal ones.

    rows: [N] int64, none negative. Returns distinct [U] ascending, inverse [N] int32, order [N]
    int32 and starts [U + 1] int32 as in `PackPlan`.

    rows = [7, 3, 7] -> [3, 7], [1, 0, 1], [1, 0, 2], [0, 1, 3]
    """
    distinct, inverse, counts = torch.unique(rows, return_inverse=True, return_counts=True)
    order = torch.sort(rows, stable=True).indices
    starts = rows.new_zeros(distinct.numel() + 1, dtype=torch.int32)
    starts[1:] = counts.cumsum(0)
    return distinct, inverse.int(), order.int(), starts


def pool(
    records: Tensor,
    layout: list[int],
    slots: Tensor,
    inverse: Tensor,
    bag_starts: Tensor | None,
    weights: Tensor | None,
) -> Tensor:
    """The vector of each bag: out[m] = sum over its ids n of weights[n] * row(slots[inverse[n]]).

    records: [C, stride] uint8. Returns [M, D] float32; an empty bag gives zeros.
    """
    rows = views(records, layout).weights[slots[inverse.long()]].float()  # [N, D]
    if weights is not None:
        rows = rows * weights[:, None]
    if bag_starts is None:
        return rows
    out = rows.new_zeros(bag_starts.numel() - 1, layout[0])
    return out.index_add_(0, bags_of(bag_starts), rows)


def bags_of(bag_starts: Tensor) -> Tensor:
    """[M + 1] starts to the bag of each id, [N] int64."""
    lengths = bag_starts.long().diff()
    return _arange(lengths.numel(), lengths).repeat_interleave(lengths)


def sum_gradients(
    grad: Tensor, order: Tensor, starts: Tensor, bags: Tensor | None, weights: Tensor | None
) -> Tensor:
    """The gradient of each distinct row: out[u] = sum over its run of weights[n] * grad[bag of n].

    grad: [M, D] float32; starts: [U + 1], of any consecutive runs. Returns [U, D]. Summed in the
    order of the run, so the result is one.
    """
    n = order[int(starts[0]) : int(starts[-1])].long()
    terms = grad[n if bags is None else bags.long()[n]]
    if weights is not None:
        terms = terms * weights[n, None]
    out = grad.new_zeros(starts.numel() - 1, grad.shape[1])
    return out.index_add_(0, bags_of(starts), terms)


def update(
    records: Tensor,
    layout: list[int],
    slots: Tensor,
    rows: Tensor,
    order: Tensor,
    starts: Tensor,
    bags: Tensor | None,
    weights: Tensor | None,
    grad: Tensor,
    kind: str,
    hyper: Tensor,
    first_rows: Tensor,
    pieces: Tensor,
    decay: Tensor | None = None,
    mean_squares: Tensor | None = None,
) -> None:
    """Sums the gradients of equal rows, then applies the row optimizer to their records, in place.

    kind, hyper: `RowOptimizer.kind` and `optim.hyper_tensor`; the formulas stand in `optim`.
    first_rows: [K + 1], pieces: [K, 5] of the store, as in `initialize`; with the step they key
    stochastic rounding. decay: [U] float32, what weight_decay is multiplied with; None: 1.
    mean_squares: [U] float32, of the gradient (decay included) over all columns of a row, where the
    records have only some of them; only row-wise optimizers read it.

    Where rows[u] is -1 it is padding: skipped. The native core is never given any.
    """
    stored = views(records, layout)
    step, *numbers = hyper.tolist()
    g = sum_gradients(grad, order, starts, bags, weights)
    g, rows, slots, decay, mean_squares = _without_padding(g, rows, slots, decay, mean_squares)
    w = stored.weights[slots].float()
    state = stored.state[slots]
    lr, weight_decay = _float32(numbers[0]), _float32(numbers[1])
    if weight_decay != 0 and kind != "ftrl":
        g = g + (weight_decay if decay is None else weight_decay * decay[:, None]) * w
    if kind == "sgd":
        w = w - lr * g
    elif kind == "adagrad":
        state = state + g * g
        w = w - lr * g / (state.sqrt() + _float32(numbers[2]))
    elif kind == "rowwise_adagrad":
        own = (g * g).mean(1) if mean_squares is None else mean_squares
        state = state + own[:, None]
        w = w - lr / (state.sqrt() + _float32(numbers[2])) * g
    elif kind == "adam":
        w, state = _adam(w, state, g, numbers, stored.step, slots)
    elif kind == "ftrl":
        w, state = _ftrl(w, state, g, numbers)
    else:
        raise ValueError(f"unknown row optimizer {kind!r}")
    if stored.weights.dtype == torch.bfloat16:
        row_keys = _row_keys(rows, first_rows, pieces) ^ (ROUNDING_STREAM)
        of = pieces[_piece_of(rows, first_rows)]
        index = (int(step) * of[:, 4] + of[:, 3])[:, None] + _arange(layout[0], of)
        bits = random_bits(row_keys[:, None], index)
        stored.weights[slots] = _round_to_bfloat16(w, bits)
    else:
        stored.weights[slots] = w
    stored.state[slots] = state


def initialize(
    records: Tensor,
    layout: list[int],
    rows: Tensor,
    first_rows: Tensor,
    pieces: Tensor,
    kind: str,
    scale: float,
    state: list[float],
) -> None:
    """Fills records with new rows: weights from the counter-based generator, the given state.

    rows: [R] int64, the row of the store that each record becomes. A store is made of K pieces of
    tables: first_rows: [K + 1], where each begins and the last ends; pieces: [K, 5] int64: the key of
    its table, first id, distance between ids, first column, and how many columns the table has. Row
    first_rows[p] + k is id first id + k * distance. kind: `uniform`, `normal` or `constant`. A weight
    depends on the key of its table, on its id there and on its column alone.
    """
    stored = views(records, layout)
    dim = layout[0]
    row_keys = _row_keys(rows, first_rows, pieces)[:, None]
    column = pieces[_piece_of(rows, first_rows), 3][:, None] + _arange(dim, rows)
    if kind == "constant":
        stored.weights[:] = scale
    elif kind == "uniform":
        unit = _unit(random_bits(row_keys, column))
        stored.weights[:] = (2 * scale * unit - scale).to(stored.weights.dtype)
    elif kind == "normal":
        # Box and Muller 1958: one normal number from two even ones.
        radius = (-2 * (1 - _unit(random_bits(row_keys, 2 * column))).log()).sqrt()
        angle = 2 * math.pi * _unit(random_bits(row_keys, 2 * column + 1))
        stored.weights[:] = (scale * radius * angle.cos()).to(stored.weights.dtype)
    else:
        raise ValueError(f"unknown initializer {kind!r}")
    stored.state[:] = torch.tensor(state, dtype=torch.float32, device=records.device)
    if stored.step is not None:
        stored.step[:] = 0


def copy_rows(
    source: Tensor, source_rows: Tensor | None, target: Tensor, target_rows: Tensor | None
) -> None:
    """target[target_rows] = source[source_rows]: whole rows; None stands for 0, 1, 2, ...

    source: [R, n], target: [R', n] uint8; their rows may be parts of longer ones.
    """
    rows = source if source_rows is None else source[source_rows]
    if target_rows is None:
        target[: len(rows)] = rows
    else:
        target[target_rows] = rows[: len(target_rows)]


def mix64(x: Tensor | int) -> Tensor:
    """The finalizer of splitmix64 (Steele, Lea, Flood 2014), on int64 as 64 plain bits."""
    x = torch.as_tensor(x)
    x = (x ^ _shift(x, 30)) * _MIX[0]
    x = (x ^ _shift(x, 27)) * _MIX[1]
    return x ^ _shift(x, 31)


def random_bits(key: Tensor, index: Tensor) -> Tensor:
    """The 64 random bits of element `index` of the stream `key`."""
    return mix64(key + (index + 1) * _GOLDEN)


def _without_padding(g: Tensor, rows: Tensor, *others: Tensor | None) -> tuple[Any, ...]:
    """The gradients, rows and others [U] of real rows."""
    real = rows >= 0
    return g[real], rows[real], *(None if of is None else of[real] for of in others)


def _arange(stop: int, like: Tensor) -> Tensor:
    """0, 1, 2, ... where `like` is."""
    return torch.arange(stop, device=like.device)


def _adam(w: Tensor, state: Tensor, g: Tensor, numbers: list[float], steps: Tensor | None, slots):
    lr, _, beta1, beta2, eps, correction1, correction2 = numbers
    dim = w.shape[1]
    m, v = state[:, :dim], state[:, dim:]
    m = m + _float32(1 - beta1) * (g - m)
    v = v + _float32(1 - beta2) * (g * g - v)
    if steps is None:
        rate = _float32(lr * math.sqrt(correction2) / correction1)
    else:
        steps[slots] += 1
        t = steps[slots].double()[:, None]
        rate = (lr * (1 - beta2**t).sqrt() / (1 - beta1**t)).float()
    w = w - rate * m / (v.sqrt() + _float32(eps))
    return w, torch.cat([m, v], 1)


def _ftrl(w: Tensor, state: Tensor, g: Tensor, numbers: list[float]):
    lr, _, l1, l2, beta = (_float32(number) for number in numbers)
    dim = w.shape[1]
    n, z = state[:, :dim], state[:, dim:]
    new_n = n + g * g
    z = z + (g - (new_n.sqrt() - n.sqrt()) / lr * w)
    w = (z.sign() * l1 - z) / ((beta + new_n.sqrt()) / lr + l2)
    w = torch.where(z.abs() <= l1, torch.zeros_like(w), w)
    return w, torch.cat([new_n, z], 1)


def _row_keys(rows: Tensor, first_rows: Tensor, pieces: Tensor) -> Tensor:
    """The random stream of each row: of its table's key and its id there."""
    place = _piece_of(rows, first_rows)
    key, first_id, id_step = pieces[place, 0], pieces[place, 1], pieces[place, 2]
    return mix64(key ^ mix64(first_id + (rows - first_rows[place]) * id_step))


def _piece_of(rows: Tensor, first_rows: Tensor) -> Tensor:
    return torch.searchsorted(first_rows, rows, right=True) - 1


def _round_to_bfloat16(x: Tensor, bits: Tensor) -> Tensor:
    """Rounds up with the probability of the part cut off, so that the mean is x."""
    whole = x.contiguous().view(torch.int32)
    finite = (whole & 0x7F800000) != 0x7F800000
    noise = torch.where(finite, _shift(bits, 48).int(), 0)
    return ((whole + noise) & -65536).view(torch.float32).bfloat16()


def _unit(bits: Tensor) -> Tensor:
    """64 random bits to a float64 in [0, 1), from the upper 24 of them."""
    return _shift(bits, 40).double() * 2.0**-24


def _shift(x: Tensor, by: int) -> Tensor:
    """x >> by without the sign."""
    return (x >> by) & ((1 << (64 - by)) - 1)


def _float32(number: float) -> float:
    """What the kernel computes with: the number as float32."""
    return float(torch.tensor(number, dtype=torch.float32))


def _rows_of(
    ids: Tensor, bad: Tensor, first_rows: Tensor, routes: Tensor | None, column: Tensor
) -> Tensor:
    """The row of each id; column: whose route it takes. Bad ids get some row or other."""
    if routes is None:
        return ids + first_rows
    hot, first_hot, num_sharing, first_rank = routes[:, :4].unbind(1)
    hot, sharing = hot[column], num_sharing[column]
    j = (ids - hot).clamp(min=0)
    rank = (first_rank[column] + j % sharing) % (routes.shape[1] - 4)
    owned = routes[column.expand_as(rank), 4 + rank] + j // sharing
    return torch.where(bad, 0, torch.where(ids < hot, first_hot[column] + ids, owned))


def _by_bag(t: Tensor, num_columns: int) -> Tensor:
    """[K, B] to the order of bags: pooled columns sample after sample, then each sequence."""
    return torch.cat([t[:num_columns].t().reshape(-1), t[num_columns:].reshape(-1)])


def _first(bad: Tensor) -> Tensor:
    found = bad.nonzero()
    return found[0] if found.numel() else found.new_full((1,), -1)
