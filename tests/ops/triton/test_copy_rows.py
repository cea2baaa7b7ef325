"""Whole rows, of any size and alignment, between device and host."""

import pytest
import torch

from hotrows.ops import triton as kernels
from hotrows.ops.rows import reference
from hotrows.ops.triton.copy_rows import _widest, move
from tests.ops.triton.cases import on


@pytest.mark.parametrize("size", [1, 4, 60, 64, 136])
def test_copies_equal_the_reference(size, device):
    source = torch.randint(0, 256, (50, size + 24), dtype=torch.uint8)[:, 8 : 8 + size]
    chosen, to = torch.randperm(50)[:20], torch.randperm(40)[:20]
    for source_rows, target_rows in (
        (chosen, to), (chosen, None), (None, torch.randperm(50)), (None, None), (chosen[:0], None),
    ):  # fmt: skip
        slow = torch.zeros(50, size + 8, dtype=torch.uint8)
        fast = slow.to(device, copy=True)
        kernels.copy_rows(
            *on(device, source, source_rows), fast[:, 4 : 4 + size], *on(device, target_rows)
        )
        reference.copy_rows(source, source_rows, slow[:, 4 : 4 + size], target_rows)
        assert torch.equal(fast.cpu(), slow)


@pytest.mark.parametrize("programs", [1, 3])
@pytest.mark.parametrize("vectors", [1, 33])
def test_a_grid_of_any_size_moves_every_row(programs, vectors, device):
    wide = torch.randint(0, 256, (90, 16 * vectors + 48), dtype=torch.uint8, device=device)
    source = wide[:, 16 : 16 + 16 * vectors]
    rows = torch.randperm(90, device=device)[:70].sort().values
    out = torch.full((70, 16 * vectors), 0xAA, dtype=torch.uint8, device=device)
    move(source, rows, out, None, programs)
    assert torch.equal(out, source[rows])
    expected, new = source.clone(), out.flip(0).contiguous()
    move(new, None, source, rows, programs)
    expected[rows] = new
    assert torch.equal(source, expected)


def test_words_are_as_wide_as_all_addresses_allow():
    def width(size, stride, offset):
        rows = torch.empty(4, stride, dtype=torch.uint8)
        return _widest(rows[:, offset : offset + size], rows[:, :size])[0]

    assert width(64, 128, 16) == 16
    assert width(64, 128, 8) == width(56, 128, 16) == width(64, 136, 8) == 8
    assert width(64, 128, 4) == width(60, 128, 8) == width(64, 132, 8) == 4
    assert width(63, 128, 8) == 1


@pytest.mark.gpu
def test_either_side_may_be_pinned_memory_of_the_host():
    source = torch.randint(0, 256, (500, 64), dtype=torch.uint8).pin_memory()
    rows = torch.randperm(500, device="cuda")[:100]
    arena = torch.zeros(100, 64, dtype=torch.uint8, device="cuda")
    torch.ops.hotrows.copy_rows(source, rows, arena, None)
    assert torch.equal(arena.cpu(), source[rows.cpu()])
    back = torch.zeros(500, 64, dtype=torch.uint8).pin_memory()
    torch.ops.hotrows.copy_rows(arena, None, back, rows)
    torch.cuda.synchronize()
    assert torch.equal(back[rows.cpu()], source[rows.cpu()])
