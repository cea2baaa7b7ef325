"""Every op in plain PyTorch: the specification, the oracle of the tests, and the fallback.

All ops take `layout`, the numbers of `RecordLayout.as_ints()`, where they touch records, and
the fields of a `PackPlan` where they follow one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from hotrows.ops.record import integers, scale_of, views
from hotrows.ops.rows.reference_random import (
    ROUNDING_STREAM,
    piece_of,
    random_bits,
    round_by_bits,
    row_keys,
    unit,
)
from hotrows.ops.rows.reference_slots import feed_rows, rank_slots, take_slots, touch_slots
from hotrows.runtime.shapes import Float, Float32, Int32, Int64, UInt8

__all__ = ["feed_rows", "rank_slots", "take_slots", "touch_slots"]  # beside what is defined here

ROUTE = ("hot", "first_hot", "num_sharing", "first_rank")  # columns of routes, before those of ranks


def resolve(
    ids: Int64[Tensor, "N"],
    offsets: Int64[Tensor, "_"] | None,
    batch_size: int,
    features: Int64[Tensor, "K"],
    first_rows: Int64[Tensor, "K"],
    num_rows: Int64[Tensor, "K"],
    num_columns: int,
    routes: Int64[Tensor, "K _"] | None = None,
) -> tuple[Int64[Tensor, "_"], Int64[Tensor, "_"], Int32[Tensor, "_"], Int64[Tensor, "1"]]:
    """Ids of a batch to rows of a pack, in the order of the lookup's bags.

    ids and offsets [F * B + 1]: as in `Batch`. features: the batch's feature that each vector of a
    sample comes from; the first `num_columns` are pooled per sample, all after them are sequences.
    first_rows, num_rows: of the table each reads. routes: [K, 4 + P], where the rows of that table
    are among P ranks (see `engine.planning.sharding`); None: id i is row first_rows + i.

    Returns rows [N'], -1 for an id outside its table; source [N'] (the position in `ids` of each);
    bag_starts [M + 1]; and bad: the first n whose id is outside, or -1. Where `offsets` is None every
    bag has one id; source and bag_starts are then empty.
    """
    bags = features[:, None] * batch_size + _arange(batch_size, ids)  # [K, B]
    if offsets is None:
        picked = ids[bags]  # [K, B]
        bad = (picked < 0) | (picked >= num_rows[:, None])
        column = _arange(len(features), ids)[:, None]
        rows = _rows_of(picked, bad, first_rows[:, None], routes, column)
        empty = ids.new_empty(0, dtype=torch.int32)
        rows, bad = _by_bag(rows, num_columns), _by_bag(bad, num_columns)
        return rows, ids.new_empty(0, dtype=torch.int64), empty, _first(bad)

    # Else find the place of every id that a bag reads.
    columns = _arange(features.numel(), ids)[:, None].expand(-1, batch_size)  # [K, B]
    starts, lengths = offsets[bags], offsets.diff()[bags]  # [K, B]
    columns, starts, lengths = (_by_bag(t, num_columns) for t in (columns, starts, lengths))  # [K * B]
    total = lengths.cumsum(0)  # [K * B]
    column = columns.repeat_interleave(lengths)  # [N']
    begin = (total - lengths).repeat_interleave(lengths)
    source = _arange(column.numel(), ids) - begin + starts.repeat_interleave(lengths)
    # Turn ids into rows, and say which bags have one.
    picked = ids[source]  # [N']
    bad = (picked < 0) | (picked >= num_rows[column])
    num_pooled = int(lengths[: num_columns * batch_size].sum())
    pooled = total[: num_columns * batch_size]
    single = num_pooled + 1 + _arange(picked.numel() - num_pooled, ids)
    bag_starts = torch.cat([pooled.new_zeros(1), pooled, single])  # [M + 1]
    rows = _rows_of(picked, bad, first_rows[column], routes, column)
    return rows, source, bag_starts.int(), _first(bad)


def unique(
    rows: Int64[Tensor, "N"],
) -> tuple[Int64[Tensor, "U"], Int32[Tensor, "N"], Int32[Tensor, "N"], Int32[Tensor, "U+1"]]:
    """Distinct rows, ascending, and the runs of equal ones: inverse, order, starts as in `PackPlan`.

    No row is negative.

    rows = [7, 3, 7] -> [3, 7], [1, 0, 1], [1, 0, 2], [0, 1, 3]
    """
    distinct, inverse, counts = torch.unique(rows, return_inverse=True, return_counts=True)
    order = torch.sort(rows, stable=True).indices
    starts = rows.new_zeros(distinct.numel() + 1, dtype=torch.int32)
    starts[1:] = counts.cumsum(0)
    return distinct, inverse.int(), order.int(), starts


def unique_of_columns(
    ids: Int64[Tensor, "_"],
    batch_size: int,
    features: Int64[Tensor, "K"],
    first_rows: Int64[Tensor, "K"],
    num_rows: Int64[Tensor, "K"],
) -> tuple[Int64[Tensor, "U"], Int32[Tensor, "N"], Int32[Tensor, "N"], Int32[Tensor, "U+1"], int]:
    """`unique` of the rows that `resolve` finds in K columns of one id a sample; the first bad n or -1.

    num_rows: 2^32 at most.
    """
    rows, _, _, bad = resolve(ids, None, batch_size, features, first_rows, num_rows, features.numel())
    return *unique(rows), int(bad)


def unique_padded(
    rows: Int64[Tensor, "N"], num_rows: int | None = None
) -> tuple[Int64[Tensor, "N"], Int32[Tensor, "N"], Int32[Tensor, "N"], Int32[Tensor, "N+1"]]:
    """Distinct rows and the runs of equal ones, in tensors whose sizes the ids do not decide.

    So a GPU is not waited for. The values are those of `unique`, then padding.

    rows: -1 where there is none (padding): such ids belong to no run. num_rows: all rows are below,
    where known: keys of 32 bits then sort in half the time. Returns distinct, -1 after the last;
    inverse, -1 for padding; order, padding last; starts, after the last run the number of real ids.

    rows = [7, -1, 3, 7] -> [3, 7, -1, -1], [1, -1, 0, 1], [2, 0, 3, 1], [0, 1, 3, 3, 3]
    """
    n, real = rows.numel(), rows >= 0
    real_distinct, real_inverse, _, run_starts = unique(rows[real])  # [U], [R], [U + 1]
    distinct = rows.new_full((n,), -1)
    distinct[: real_distinct.numel()] = real_distinct
    inverse = torch.full_like(rows, -1, dtype=torch.int32)
    inverse[real] = real_inverse
    starts = run_starts.new_full((n + 1,), int(run_starts[-1]))  # [N + 1]
    starts[: run_starts.numel()] = run_starts
    last = torch.where(real, rows, torch.iinfo(torch.int64).max)
    return distinct, inverse, torch.sort(last, stable=True).indices.int(), starts


def pool(
    records: UInt8[Tensor, "C _"],
    layout: list[int],
    slots: Int64[Tensor, "U"],
    inverse: Int32[Tensor, "N"],
    bag_starts: Int32[Tensor, "_"] | None,
    weights: Float[Tensor, "N"] | None,
    narrow: bool = False,
) -> Float[Tensor, "M D"]:
    """The vector of each bag: out[m] = sum over its ids n of weights[n] * row(slots[inverse[n]]).

    An empty bag gives zeros; ids behind the last bag are in none. Where inverse[n] is -1 it is padding
    (`unique_padded`): zeros. The native core is never given any. narrow: sums in float32 are rounded to
    bfloat16.
    """
    if narrow:
        return pool(records, layout, slots, inverse, bag_starts, weights).bfloat16()
    rows = views(records, layout).read(slots[inverse.long().clamp(min=0)]).float()  # [N, D]
    rows = torch.where(inverse[:, None] >= 0, rows, 0)
    if weights is not None:
        rows = rows * weights[:, None]
    if bag_starts is None:
        return rows
    out, bags = rows.new_zeros(bag_starts.numel() - 1, layout[0]), bags_of(bag_starts)
    return out.index_add_(0, bags, rows[: len(bags)])


def collect(
    records: UInt8[Tensor, "C _"], layout: list[int], slots: Int64[Tensor, "U"]
) -> Float32[Tensor, "U D"]:
    """The rows at these slots, in float32."""
    return views(records, layout).read(slots).float()


def bags_of(bag_starts: Int32[Tensor, "_"]) -> Int64[Tensor, "N"]:
    """Starts [M + 1] to the bag of each id."""
    lengths = bag_starts.long().diff()
    return _arange(lengths.numel(), lengths).repeat_interleave(lengths)


def sum_gradients(
    grad: Float[Tensor, "M D"],
    order: Int32[Tensor, "N"],
    starts: Int32[Tensor, "_"],
    bags: Int32[Tensor, "N"] | None,
    weights: Float[Tensor, "N"] | None,
) -> Float[Tensor, "U D"]:
    """The gradient of each distinct row: out[u] = sum over its run of weights[n] * grad[bag of n].

    starts: [U + 1], of any consecutive runs. Summed in the order of the run, so the result is one;
    gradients in bfloat16 in float32.
    """
    grad = grad.float() if grad.dtype == torch.bfloat16 else grad
    n = order[int(starts[0]) : int(starts[-1])].long()
    terms = grad[n if bags is None else bags.long()[n]]  # [N, D]
    if weights is not None:
        terms = terms * weights[n, None]
    out = grad.new_zeros(starts.numel() - 1, grad.shape[1])
    return out.index_add_(0, bags_of(starts), terms)


def update(
    records: UInt8[Tensor, "C _"],
    layout: list[int],
    slots: Int64[Tensor, "U"],
    rows: Int64[Tensor, "U"],
    order: Int32[Tensor, "N"],
    starts: Int32[Tensor, "U+1"],
    bags: Int32[Tensor, "N"] | None,
    weights: Float[Tensor, "N"] | None,
    grad: Float[Tensor, "M D"],
    kind: str,
    hyper: Float[Tensor, "_"],
    first_rows: Int64[Tensor, "{len(pieces)}+1"],
    pieces: Int64[Tensor, "K 5"],
    decay: Float32[Tensor, "U"] | None = None,
    mean_squares: Float32[Tensor, "U"] | None = None,
) -> None:
    """Sums the gradients of equal rows, then applies the row optimizer to their records, in place.

    kind: `RowOptimizer.kind`, of those in `FORMULAS`; hyper: as in `RowRule`.
    first_rows, pieces: of the store, as in `initialize`; with the step they key stochastic rounding.
    decay: what weight_decay is multiplied with; None: 1. mean_squares: of the gradient (decay
    included) over all columns of a row, where the records have only some of them; only row-wise
    optimizers read it.

    Where rows[u] is -1 it is padding: skipped. The native core is never given any.
    """
    stored = views(records, layout)
    step, *numbers = hyper.tolist()
    g = sum_gradients(grad, order, starts, bags, weights)  # [U, D]
    g, rows, slots, decay, mean_squares = _without_padding(g, rows, slots, decay, mean_squares)
    w = stored.read(slots).float()  # [U, D]
    state = stored.state[slots]  # [U, S]
    weight_decay = _float32(numbers[1])
    if weight_decay != 0:
        g = g + (weight_decay if decay is None else weight_decay * decay[:, None]) * w
    steps = None
    if stored.step is not None:
        stored.step[slots] += 1
        steps = stored.step[slots]
    w, state = FORMULAS[kind](w, state, g, numbers, steps, mean_squares)
    if stored.weights.dtype != torch.float32:
        keys = row_keys(rows, first_rows, pieces) ^ ROUNDING_STREAM
        row_pieces = pieces[piece_of(rows, first_rows)]  # [U, 5]
        index = (int(step) * row_pieces[:, 4] + row_pieces[:, 3])[:, None]
        index = index + _arange(layout[0], rows)  # [U, D]
        drawn = random_bits(keys[:, None], index)
        if stored.scale is not None:
            before = stored.scale[slots]
            scale = stored.scale[slots] = scale_of(w, stored.bits, before, unit(drawn).float())
            w = integers(w, scale)
        w = round_by_bits(w, drawn, stored.weights.dtype)
    stored.put(w, slots)
    stored.state[slots] = state


def initialize(
    records: UInt8[Tensor, "R _"],
    layout: list[int],
    rows: Int64[Tensor, "R"],
    first_rows: Int64[Tensor, "{len(pieces)}+1"],
    pieces: Int64[Tensor, "K 5"],
    kind: str,
    scale: float,
    state: list[float],
) -> None:
    """Fills records with new rows: weights from the counter-based generator, the given state.

    rows: the row of the store that each record becomes. A store is made of K pieces of tables:
    first_rows: where each begins and the last ends; pieces: the key of its table, first id, distance
    between ids, first column, and how many columns the table has. Row
    first_rows[p] + k is id first id + k * distance. kind: `uniform`, `normal` or `constant`. A weight
    depends on the key of its table, on its id there and on its column alone.
    """
    records.zero_()  # the gaps between the parts of a record, too: equal rows are equal bytes
    stored = views(records, layout)
    dim = layout[0]
    keys = row_keys(rows, first_rows, pieces)[:, None]  # [R, 1]
    column = pieces[piece_of(rows, first_rows), 3][:, None] + _arange(dim, rows)  # [R, D]
    if kind == "constant":
        weights = torch.full(column.shape, scale, device=rows.device)
    elif kind == "uniform":
        weights = 2 * scale * unit(random_bits(keys, column)) - scale
    elif kind == "normal":
        # Box and Muller 1958: one normal number from two even ones.
        radius = (-2 * (1 - unit(random_bits(keys, 2 * column))).log()).sqrt()
        angle = 2 * math.pi * unit(random_bits(keys, 2 * column + 1))
        weights = scale * radius * angle.cos()
    else:
        raise ValueError(f"unknown initializer {kind!r}")
    stored.write(weights)
    stored.state[:] = torch.tensor(state, dtype=torch.float32, device=records.device)


def copy_rows(
    source: UInt8[Tensor, "_ n"],
    source_rows: Int64[Tensor, "_"] | None,
    target: UInt8[Tensor, "_ n"],
    target_rows: Int64[Tensor, "_"] | None,
) -> None:
    """target[target_rows] = source[source_rows]: rows, or parts of longer ones; None: 0, 1, 2, ..."""
    rows = source if source_rows is None else source[source_rows]
    if target_rows is None:
        target[: len(rows)] = rows
    else:
        target[target_rows] = rows[: len(target_rows)]


def _without_padding(g: Tensor, rows: Tensor, *others: Tensor | None) -> tuple[Any, ...]:
    """Gradients, rows and other values [U] of real rows alone."""
    real = rows >= 0
    return g[real], rows[real], *(None if t is None else t[real] for t in others)


def _arange(stop: int, like: Tensor) -> Tensor:
    """0, 1, 2, ... where `like` is."""
    return torch.arange(stop, device=like.device)


# A formula takes weights w [U, D], state [U, S], the gradient g [U, D], the optimizer's numbers, the
# steps [U] of rows that count them, and the mean squares [U] of g over all columns of a row where these
# are on several ranks; it returns new weights and state.
Formula = Callable[
    [Tensor, Tensor, Tensor, list[float], Tensor | None, Tensor | None], tuple[Tensor, Tensor]
]


def _sgd(w, state, g, numbers, steps, mean_squares):
    return w - _float32(numbers[0]) * g, state


def _adagrad(w, state, g, numbers, steps, mean_squares):
    lr, eps = _float32(numbers[0]), _float32(numbers[2])
    state = state + g * g
    return w - lr * g / (state.sqrt() + eps), state


def _rowwise_adagrad(w, state, g, numbers, steps, mean_squares):
    lr, eps = _float32(numbers[0]), _float32(numbers[2])
    mean_squares = (g * g).mean(1) if mean_squares is None else mean_squares
    state = state + mean_squares[:, None]
    return w - lr / (state.sqrt() + eps) * g, state


def _adam(w, state, g, numbers, steps, mean_squares):
    lr, _, beta1, beta2, eps, correction1, correction2 = numbers
    m, v = state.chunk(2, 1)  # [U, D]
    m = m + _float32(1 - beta1) * (g - m)
    v = v + _float32(1 - beta2) * (g * g - v)
    rate: Tensor | float
    if steps is None:
        rate = _float32(lr * math.sqrt(correction2) / correction1)
    else:
        t = steps.double()[:, None]
        rate = (lr * (1 - beta2**t).sqrt() / (1 - beta1**t)).float()
    return w - rate * m / (v.sqrt() + _float32(eps)), torch.cat([m, v], 1)


def _ftrl(w, state, g, numbers, steps, mean_squares):
    lr, _, l1, l2, beta = (_float32(number) for number in numbers)
    n, z = state.chunk(2, 1)  # [U, D]
    new_n = n + g * g
    z = z + (g - (new_n.sqrt() - n.sqrt()) / lr * w)
    w = (z.sign() * l1 - z) / ((beta + new_n.sqrt()) / lr + l2)
    w = torch.where(z.abs() <= l1, torch.zeros_like(w), w)
    return w, torch.cat([new_n, z], 1)


FORMULAS: dict[str, Formula] = {
    "sgd": _sgd,
    "adagrad": _adagrad,
    "rowwise_adagrad": _rowwise_adagrad,
    "adam": _adam,
    "ftrl": _ftrl,
}


def _float32(number: float) -> float:
    """The number as float32, as the kernels compute with it."""
    return float(torch.tensor(number, dtype=torch.float32))


def _rows_of(
    ids: Tensor, bad: Tensor, first_rows: Tensor, routes: Tensor | None, column: Tensor
) -> Tensor:
    """The row of each id, -1 for bad ones; column: whose route it takes."""
    if routes is None:
        return torch.where(bad, -1, ids + first_rows)
    hot, first_hot, num_sharing, first_rank = routes[:, : len(ROUTE)].unbind(1)
    hot, sharing = hot[column], num_sharing[column]
    j = (ids - hot).clamp(min=0)
    rank = (first_rank[column] + j % sharing) % (routes.shape[1] - len(ROUTE))
    owned = routes[column.expand_as(rank), len(ROUTE) + rank] + j // sharing
    return torch.where(bad, -1, torch.where(ids < hot, first_hot[column] + ids, owned))


def _by_bag(t: Tensor, num_columns: int) -> Tensor:
    """[K, B] to the order of bags: pooled columns sample after sample, then each sequence."""
    return torch.cat([t[:num_columns].t().reshape(-1), t[num_columns:].reshape(-1)])


def _first(bad: Tensor) -> Tensor:
    n = bad.numel()
    places = torch.where(bad, _arange(n, bad), n)
    first = torch.cat([places, places.new_full((1,), n)]).amin(0, keepdim=True)
    return torch.where(first == n, -1, first)
