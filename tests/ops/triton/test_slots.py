"""The slot map of a cache: what batch after batch does to it, and what each batch is told."""

import pytest
import torch
from torch.nn.functional import pad

from hotrows.ops import triton as kernels
from hotrows.ops.rows import reference
from hotrows.ops.rows.reference_slots import FREE
from hotrows.ops.triton import launch

NUM_ROWS = 90


def new_map(num_slots, device):
    """A map of which a few slots are filled, as a warm start does."""
    slot_of, coming = (torch.full((NUM_ROWS,), -1, dtype=torch.int32) for _ in range(2))
    row_of = torch.full((num_slots,), -1, dtype=torch.int32)
    last_use = torch.full((num_slots,), FREE, dtype=torch.int32)
    warm = torch.arange(min(num_slots, 5))
    row_of[warm], slot_of[7 * warm], last_use[warm] = 7 * warm.int(), warm.int(), -1 - warm.int()
    ranking, progress = torch.zeros(num_slots, dtype=torch.int32), torch.tensor([0, 0, len(warm)])
    return [t.to(device) for t in (slot_of, row_of, last_use, coming, ranking, progress)]


def replay(ops, num_slots, in_flight, batches, device="cpu", window=3):
    """All state and results of planning these batches with the kernels or the reference."""
    state = new_map(num_slots, device)
    slot_of, _, last_use, coming, *_ = state
    for t, rows in enumerate(batches):
        for b in range(0 if t == 0 else t + window, min(t + window + 1, len(batches))):
            ops.feed_rows(coming, batches[b].repeat(2).to(device), b)
        for b in range(0 if t == 0 else t + in_flight - 1, min(t + in_flight, len(batches))):
            ops.touch_slots(slot_of, last_use, batches[b].to(device), b)
        if t % 2 == 0:
            ops.rank_slots(*state[1:], t, in_flight)
        slots, counts = (torch.zeros(n, dtype=torch.int64, device=device) for n in (len(rows), 4))
        moves = torch.zeros(4, len(rows), dtype=torch.int64, device=device)
        ops.take_slots(*state, rows.to(device), t, in_flight, slots, moves, counts)
        yield [t.cpu().clone() for t in (*state, slots, moves, counts)]


@pytest.mark.parametrize(("num_slots", "in_flight"), [(8, 1), (40, 2), (90, 3)])
def test_a_device_maps_slots_as_the_reference_does(num_slots, in_flight, device, monkeypatch):
    monkeypatch.setattr(launch, "LANES", 32)  # several programs, of a thread for each lane
    monkeypatch.setitem(launch.OPTIONS, "num_warps", 1)
    generator = torch.Generator().manual_seed(num_slots)
    batches = [
        pad(torch.randint(NUM_ROWS, (20,), generator=generator).unique(), (0, 20), value=-1)
        for _ in range(7)
    ]
    batches[3] = batches[3][:0]
    got = replay(kernels, num_slots, in_flight, batches, device)
    cases = set()
    for one, other in zip(got, replay(reference, num_slots, in_flight, batches), strict=True):
        assert all(map(torch.equal, one, other))
        rows, misses, num_out, bypasses = one[-1].tolist()
        cases |= {"bypass"} if bypasses else {"hits"} if misses < rows else set()
        cases |= {"evicts"} if num_out else set()
    assert cases >= {8: {"bypass"}, 40: {"hits", "evicts"}, 90: {"hits"}}[num_slots]
