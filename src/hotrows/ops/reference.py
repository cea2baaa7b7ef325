"""Every op in plain PyTorch: the specification, the oracle of the tests, and the fallback.

All ops take `layout`, the numbers of `RecordLayout.as_ints()`, where they touch records, and
the fields of a `PackPlan` where they follow one.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from hotrows.ops.reference_random import (
    ROUNDING_STREAM,
    piece_of,
    random_bits,
    round_by_bits,
    row_keys,
    unit,
)
from hotrows.record import views


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

    Returns rows [N'] int64, -1 for an id outside its table; source [N'] int64 (the position in `ids`
    of each); bag_starts [M + 1] int32; and bad [1]: the first n whose id is outside, or -1. Where
    `offsets` is None every bag has one id; source and bag_starts are then empty.
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


def unique_padded(
    rows: Tensor, num_rows: int | None = None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """As `unique`, in tensors whose sizes the ids do not decide, so that nobody waits for a count.

    rows: [N] int64, -1 where there is none (padding): such ids belong to no run. num_rows: all rows
    are below, where known: keys of 32 bits then sort in half the time. Returns distinct [N], -1 after
    the last; inverse [N] int32, -1 for padding; order [N] int32, padding last; starts [N + 1] int32,
    after the last run the number of real ids.

    rows = [7, -1, 3, 7] -> [3, 7, -1, -1], [1, -1, 0, 1], [2, 0, 3, 1], [0, 1, 3, 3, 3]
    """
    n, real = rows.numel(), rows >= 0
    found, of_real, _, run_starts = unique(rows[real])
    distinct = rows.new_full((n,), -1)
    distinct[: found.numel()] = found
    inverse = torch.full_like(rows, -1, dtype=torch.int32)
    inverse[real] = of_real
    starts = run_starts.new_full((n + 1,), int(run_starts[-1]))
    starts[: run_starts.numel()] = run_starts
    last = torch.where(real, rows, torch.iinfo(torch.int64).max)
    return distinct, inverse, torch.sort(last, stable=True).indices.int(), starts


def find_slots(held_rows: Tensor, held_slots: Tensor, rows: Tensor) -> Tensor:
    """The slot of each row, or -1 where it has none: [m] int64.

    held_rows: [C] int64 ascending, the rows that have slots; held_slots: [C] int64, theirs.
    rows: [m] int64; -1 (padding) has none.

    held_rows = [3, 7], held_slots = [1, 0], rows = [7, 5, -1] -> [0, -1, -1]
    """
    if not held_rows.numel():
        return torch.full_like(rows, -1)
    place = torch.searchsorted(held_rows, rows).clamp(max=held_rows.numel() - 1)
    return torch.where((held_rows[place] == rows) & (rows >= 0), held_slots[place], -1)


def pool(
    records: Tensor,
    layout: list[int],
    slots: Tensor,
    inverse: Tensor,
    bag_starts: Tensor | None,
    weights: Tensor | None,
) -> Tensor:
    """The vector of each bag: out[m] = sum over its ids n of weights[n] * row(slots[inverse[n]]).

    records: [C, stride] uint8. Returns [M, D] float32; an empty bag gives zeros. Where inverse[n] is
    -1 it is padding (`unique_padded`): zeros. The native core is never given any.
    """
    rows = views(records, layout).weights[slots[inverse.long().clamp(min=0)]].float()  # [N, D]
    rows = torch.where(inverse[:, None] >= 0, rows, 0)
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
    if stored.weights.dtype != torch.float32:
        keys = row_keys(rows, first_rows, pieces) ^ ROUNDING_STREAM
        of = pieces[piece_of(rows, first_rows)]
        index = (int(step) * of[:, 4] + of[:, 3])[:, None] + _arange(layout[0], of)
        w = round_by_bits(w, random_bits(keys[:, None], index), stored.weights.dtype)
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
    records.zero_()  # what stands between the parts of a record, too: equal rows are equal bytes
    stored = views(records, layout)
    dim = layout[0]
    keys = row_keys(rows, first_rows, pieces)[:, None]
    column = pieces[piece_of(rows, first_rows), 3][:, None] + _arange(dim, rows)
    if kind == "constant":
        stored.weights[:] = scale
    elif kind == "uniform":
        drawn = unit(random_bits(keys, column))
        stored.weights[:] = (2 * scale * drawn - scale).to(stored.weights.dtype)
    elif kind == "normal":
        # Box and Muller 1958: one normal number from two even ones.
        radius = (-2 * (1 - unit(random_bits(keys, 2 * column))).log()).sqrt()
        angle = 2 * math.pi * unit(random_bits(keys, 2 * column + 1))
        stored.weights[:] = (scale * radius * angle.cos()).to(stored.weights.dtype)
    else:
        raise ValueError(f"unknown initializer {kind!r}")
    stored.state[:] = torch.tensor(state, dtype=torch.float32, device=records.device)


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
    rate: Tensor | float
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


def _float32(number: float) -> float:
    """What the kernel computes with: the number as float32."""
    return float(torch.tensor(number, dtype=torch.float32))


def _rows_of(
    ids: Tensor, bad: Tensor, first_rows: Tensor, routes: Tensor | None, column: Tensor
) -> Tensor:
    """The row of each id, -1 for bad ones; column: whose route it takes."""
    if routes is None:
        return torch.where(bad, -1, ids + first_rows)
    hot, first_hot, num_sharing, first_rank = routes[:, :4].unbind(1)
    hot, sharing = hot[column], num_sharing[column]
    j = (ids - hot).clamp(min=0)
    rank = (first_rank[column] + j % sharing) % (routes.shape[1] - 4)
    owned = routes[column.expand_as(rank), 4 + rank] + j // sharing
    return torch.where(bad, -1, torch.where(ids < hot, first_hot[column] + ids, owned))


def _by_bag(t: Tensor, num_columns: int) -> Tensor:
    """[K, B] to the order of bags: pooled columns sample after sample, then each sequence."""
    return torch.cat([t[:num_columns].t().reshape(-1), t[num_columns:].reshape(-1)])


def _first(bad: Tensor) -> Tensor:
    n = bad.numel()
    places = torch.where(bad, _arange(n, bad), n)
    first = torch.cat([places, places.new_full((1,), n)]).amin(0, keepdim=True)
    return torch.where(first == n, -1, first)
