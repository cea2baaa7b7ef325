"""Bags of rows: every width, dtype, and way of writing bags."""

import pytest
import torch

from hotrows import ops
from hotrows.ops import triton as kernels
from hotrows.ops.record import RecordLayout
from hotrows.ops.rows import reference
from tests.ops.triton.cases import DIMS, DTYPES, new_records, on
from tests.support.row_rules import width


def bags(num_ids):
    """[M + 1] starts: an empty bag at each end, one that holds most ids, some of one id."""
    starts = [0, 0, 3, 4, 5, max(num_ids - 2, 5), num_ids, num_ids]
    return torch.tensor(starts).clamp(max=num_ids).int()


@pytest.mark.pairs
@pytest.mark.parametrize("jagged", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dim", DIMS)
def test_pool_gives_the_bits_of_the_reference(dim, dtype, weighted, jagged, device):
    layout = RecordLayout(width(dim, dtype), dtype, state_width=3)
    slots, inverse = torch.randperm(60)[:20], torch.randint(20, (70,)).int()
    inverse[2::9] = -1  # padding
    weights = torch.rand(70) if weighted else None
    args = (slots, inverse, bags(70) if jagged else None, weights)
    records = new_records(layout)
    expected = reference.pool(records, layout.as_ints(), *args)
    pooled = kernels.pool(records.to(device), layout.as_ints(), *on(device, *args))
    assert torch.equal(pooled.cpu(), expected)


@pytest.mark.parametrize("jagged", [False, True])
def test_narrow_vectors_are_those_in_float32_rounded(jagged, device):
    layout = RecordLayout(5)
    slots, inverse = torch.randperm(60)[:20], torch.randint(-1, 20, (70,)).int()
    args = (slots, inverse, bags(70) if jagged else None, torch.rand(70))
    records = new_records(layout)
    wide = reference.pool(records, layout.as_ints(), *args)
    narrow = kernels.pool(records.to(device), layout.as_ints(), *on(device, *args), True).cpu()
    assert narrow.dtype == torch.bfloat16
    # Triton's interpreter cuts off what a GPU rounds.
    torch.testing.assert_close(narrow, wide.bfloat16(), rtol=2**-7, atol=0)
    assert torch.equal(reference.pool(records, layout.as_ints(), *args, True), wide.bfloat16())


@pytest.mark.parametrize("num_ids", [0, 1])
@pytest.mark.parametrize("jagged", [False, True])
def test_none_and_one(num_ids, jagged, device):
    layout = RecordLayout(4)
    args = (torch.tensor([9]), torch.zeros(num_ids).int(), bags(num_ids) if jagged else None, None)
    records = new_records(layout)
    expected = reference.pool(records, layout.as_ints(), *args)
    pooled = kernels.pool(records.to(device), layout.as_ints(), *on(device, *args))
    assert torch.equal(pooled.cpu(), expected)


def test_where_the_rows_stand_changes_no_bit(device):
    layout = RecordLayout(16)
    records, moved = new_records(layout), torch.randperm(60)
    elsewhere = torch.empty_like(records)
    elsewhere[moved] = records
    slots, inverse = torch.arange(60), torch.randint(0, 60, (50,)).int()
    pooled = [
        kernels.pool(*on(device, stored, layout.as_ints(), places, inverse, bags(50), torch.ones(50)))
        for stored, places in ((records, slots), (elsewhere, moved), (elsewhere, moved))
    ]
    assert torch.equal(pooled[0], pooled[1]) and torch.equal(pooled[1], pooled[2])


def test_records_may_be_parts_of_longer_ones(device):
    layout = RecordLayout(5, "bfloat16")
    wide = torch.zeros(60, layout.stride + 8, dtype=torch.uint8)
    wide[:, 4 : 4 + layout.stride] = new_records(layout)
    part = wide.to(device)[:, 4 : 4 + layout.stride]
    rows = torch.arange(60)
    args = (layout.as_ints(), *on(device, rows, rows.int()), None, None)
    expected = reference.pool(new_records(layout), layout.as_ints(), rows, rows.int(), None, None)
    assert torch.equal(kernels.pool(part, *args).cpu(), expected)


@pytest.mark.gpu
def test_distinct_rows_of_a_device_are_collected_there():
    """The host's core would read their addresses as its own."""
    layout, slots = RecordLayout(8, state_width=1), torch.tensor([3, 0, 7])
    records = new_records(layout)
    rows = ops.collect(records.cuda(), layout.as_ints(), slots.cuda())
    assert torch.equal(rows.cpu(), reference.collect(records, layout.as_ints(), slots))
