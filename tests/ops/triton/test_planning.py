"""The ops that plan a batch: rows of ids, distinct rows."""

import pytest
import torch

from hotrows.ops import triton as kernels
from hotrows.ops.rows import reference
from tests.ops.triton.cases import IDS, hot_ids, on


def same(results, expected):
    return all(
        torch.equal(a.cpu(), b) and a.dtype == b.dtype for a, b in zip(results, expected, strict=True)
    )


@pytest.mark.parametrize("num_rows", [None, 60], ids=["64-bit keys", "32-bit keys"])
@pytest.mark.parametrize("ids", IDS.values(), ids=IDS)
def test_unique_padded_equals_the_reference(ids, num_rows, device):
    expected = reference.unique_padded(ids)
    assert same(kernels.unique_padded(ids.to(device), num_rows), expected)


def test_unique_padded_of_wide_rows(device):
    rows = torch.randint(2**61, 2**62, (500,)).repeat(2)
    assert same(kernels.unique_padded(rows.to(device)), reference.unique_padded(rows))


def test_unique_padded_holds_what_unique_finds():
    rows = hot_ids().clamp(min=0)
    distinct, inverse, order, starts = reference.unique(rows)
    padded = reference.unique_padded(rows)
    u = len(distinct)
    assert torch.equal(padded[0][:u], distinct) and (padded[0][u:] == -1).all()
    assert torch.equal(padded[1], inverse) and torch.equal(padded[2], order)
    assert torch.equal(padded[3][: u + 1], starts) and (padded[3][u:] == len(rows)).all()


@pytest.mark.parametrize("num_columns", [0, 2, 4])
@pytest.mark.parametrize("batch_size", [0, 1, 70])
@pytest.mark.parametrize("least", [-1, 0], ids=["some are bad", "all are good"])
def test_resolve_equals_the_reference(least, batch_size, num_columns, device):
    ids = torch.randint(least, 20 + least, (3 * batch_size,))
    tables = torch.tensor([2, 0, 0, 1]), torch.arange(4) * 19, torch.full((4,), 19 - least)
    args = (ids, None, batch_size, *tables, num_columns)
    rows, *others = kernels.resolve(*on(device, *args))
    expected, *expected_others = reference.resolve(*args)
    assert same(others, expected_others)
    good = rows.cpu() >= 0
    assert torch.equal(rows.cpu()[good], expected[good])
    assert int(others[-1]) == (int((~good).nonzero()[0]) if (~good).any() else -1)


def test_resolve_of_several_ids_per_bag_equals_the_reference(device):
    lengths = torch.randint(0, 4, (3 * 9,))
    offsets = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
    ids = torch.randint(0, 19, (int(offsets[-1]),))
    tables = torch.tensor([2, 0, 1]), torch.arange(3) * 19, torch.full((3,), 19)
    args = (ids, offsets, 9, *tables, 2)
    assert same(kernels.resolve(*on(device, *args)), reference.resolve(*args))
