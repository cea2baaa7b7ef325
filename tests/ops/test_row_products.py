"""A product of distinct rows equals that of the vectors that a batch is made of."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from hotrows import Adagrad, Table, ops
from hotrows.ops.layers.row_products import JoinedRows, RowReads, pooled_reference
from hotrows.ops.record import layout_of, views

ROWS = 9  # of each feature's table


def reads(
    num_features: int, batch_size: int, lists: bool, weighted: bool, seed: int = 0
) -> tuple[RowReads, int]:
    """Random ids, bag after bag as `resolve` numbers them, and how many distinct rows they are."""
    generator = torch.Generator().manual_seed(seed)
    num_bags = num_features * batch_size
    lengths = (
        torch.randint(0, 4, (num_bags,), generator=generator) if lists else torch.ones(num_bags).long()
    )
    bags = torch.arange(num_bags).repeat_interleave(lengths)
    ids = torch.randint(ROWS, (len(bags),), generator=generator) * (bags % 5 > 0)  # row 0 is frequent
    rows, _, order, starts = ops.unique(ids + ROWS * (bags % num_features))
    bounds = torch.searchsorted(rows, torch.arange(num_features + 1) * ROWS)
    weights = torch.rand(len(bags), generator=generator) if weighted else None
    return RowReads(bounds, starts, order, bags.int() if lists else None, weights, batch_size), len(rows)


def result(rows: Tensor, dense: Tensor, weight: Tensor, read: RowReads, by_rows: bool) -> list[Tensor]:
    """The product and all gradients of a loss of it."""
    leaves = [
        rows.clone().requires_grad_(),
        dense.clone().requires_grad_(),
        weight.clone().requires_grad_(),
    ]
    if by_rows:
        y = JoinedRows([(leaves[0], read), (leaves[1], None)]).product(leaves[2])
    else:
        y = torch.cat([pooled_reference(leaves[0], read), leaves[1]], 1) @ leaves[2].t()
    (y * torch.linspace(-1, 1, y.numel()).view_as(y)).sum().backward()
    return [y.detach(), *(leaf.grad for leaf in leaves)]


@pytest.mark.parametrize("dim,width", [(1, 1), (5, 7), (16, 64), (16, 65), (40, 100)])
@pytest.mark.parametrize("lists,weighted", [(False, False), (True, False), (True, True)])
@pytest.mark.parametrize("num_features,batch_size", [(1, 1), (3, 70), (70, 20)])
def test_products_and_gradients_are_those_of_the_vectors(
    dim: int, width: int, lists: bool, weighted: bool, num_features: int, batch_size: int
) -> None:
    read, num_rows = reads(num_features, batch_size, lists, weighted)
    rows, dense = torch.randn(num_rows, dim), torch.randn(batch_size, 3)
    weight = torch.randn(width, num_features * dim + 3)
    arguments = rows, dense, weight, read
    for got, expected in zip(result(*arguments, True), result(*arguments, False), strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)


def test_a_batch_without_ids_has_the_product_of_its_dense_values() -> None:
    none = torch.empty(0, dtype=torch.int32)
    read = RowReads(
        torch.zeros(3, dtype=torch.int64), torch.zeros(1, dtype=torch.int32), none, none, None, 2
    )
    values, weight = torch.tensor([[5.0], [6.0]]), torch.tensor([[1.0, 2.0, 10.0]])
    product = JoinedRows([(torch.empty(0, 1), read), (values, None)]).product(weight)
    assert product.tolist() == [[50.0], [60.0]]


def test_the_number_of_threads_changes_no_bit() -> None:
    read, num_rows = reads(40, 90, lists=True, weighted=True)
    rows, dense, weight = torch.randn(num_rows, 16), torch.randn(90, 2), torch.randn(33, 642)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one = result(rows, dense, weight, read, True)
        torch.set_num_threads(3)
        three = result(rows, dense, weight, read, True)
    finally:
        torch.set_num_threads(threads)
    assert all(map(torch.equal, one, three))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("dim", [1, 5, 16])
def test_rows_are_collected_as_they_are_stored(dtype: str, dim: int) -> None:
    table = Table("t", ROWS, dim, ("t",), dtype=dtype, optimizer=Adagrad())
    layout = layout_of(table).as_ints()
    records = torch.zeros(ROWS, layout_of(table).stride, dtype=torch.uint8)
    weights = views(records, layout).weights
    weights.copy_(torch.randn(ROWS, dim))
    slots = torch.tensor([0, 3, 8])
    assert torch.equal(ops.collect(records, layout, slots), weights[slots].float())
