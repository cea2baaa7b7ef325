"""The slot map of a device: its op in plain PyTorch beside a small model, and what it guarantees."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hotrows.engine.planning.device_slots import DeviceSlots, refusal
from hotrows.engine.planning.policy import BELADY, LRU, Frequency, Lookahead
from hotrows.engine.planning.slots import SlotMap
from hotrows.ops.rows.reference_slots import FREE, SEARCHED
from hotrows.runtime.device import HOST
from tests.support.choice import examples


class Model:
    """The specification: dicts and lists, one batch at a time."""

    def __init__(self, num_slots, in_flight):
        self.k, self.row_of, self.used = in_flight, [None] * num_slots, [FREE] * num_slots
        self.coming, self.ranking, self.num_unneeded, self.place = {}, [], 0, 0

    def feed(self, batch, rows):
        self.coming.update(dict.fromkeys(rows, batch))

    def touch(self, batch, rows):
        for slot, row in enumerate(self.row_of):
            self.used[slot] = batch if row in rows else self.used[slot]

    def rank(self, batch):
        def order(slot):
            if self.kept(slot, batch):
                return 1, 0, 0, slot
            return 0, self.needed(slot, batch), self.used[slot], slot

        self.ranking, self.place = sorted(range(len(self.row_of)), key=order), 0
        self.num_unneeded = sum(not any(order(slot)[:2]) for slot in self.ranking)

    def kept(self, slot, batch):
        return self.used[slot] > max(batch - self.k, -1)

    def needed(self, slot, batch):
        return self.coming.get(self.row_of[slot], -1) >= batch

    def take(self, batch, rows, num_ids):
        for slot, row in enumerate(self.row_of):
            self.used[slot] = batch if row in rows else self.used[slot]
        missing, size = [row for row in rows if row not in self.row_of], len(self.ranking)
        searched = range(self.place, self.place + min(SEARCHED * num_ids, size))
        vacant = [
            place for place in searched
            if place < size and not self.kept(slot := self.ranking[place], batch)
            and not (self.needed(slot, batch) and place < self.num_unneeded)
        ]  # fmt: skip
        if drained := len(vacant) < len(missing):
            vacant = [place for place in searched if self.used[self.ranking[place % size]] != batch]
        if len(vacant) < len(missing):
            return None
        vacant = vacant[: len(missing)]
        self.place = min(vacant[-1] + 1, size) if vacant else self.place
        slots = [self.ranking[place % size] for place in vacant]
        out = [(self.row_of[slot], slot) for slot in slots if self.row_of[slot] is not None]
        for row, slot in zip(missing, slots, strict=True):
            self.row_of[slot], self.used[slot] = row, batch
        places = [self.row_of.index(row) for row in rows]
        return places, list(zip(missing, slots, strict=True)), out, drained


def replay(num_rows, num_slots, in_flight, batches, window, num_ids):
    """Feeds and takes batch after batch, by `DeviceSlots` on the host; yields what it gives."""
    slots = DeviceSlots(num_rows, num_slots, Lookahead(window), in_flight, HOST)
    for t, rows in enumerate(batches):
        for b in range(0 if t == 0 else t + window, min(t + window + 1, len(batches))):
            slots.feed(lambda b=b: batches[b])
        for b in range(0 if t == 0 else t + in_flight - 1, min(t + in_flight, len(batches))):
            slots.touch(batches[b])
        slots.begin()
        taken = slots.memory(num_ids)
        slots.take(torch.nn.functional.pad(rows, (0, num_ids - len(rows)), value=-1), taken)
        yield slots, taken, slots.read(t, taken)


def pairs(rows, slots):
    return list(zip(rows.tolist(), slots.tolist(), strict=True))


def some_batches(seed, num_rows, num_ids, count=30):
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.rand(count, num_ids, generator=generator) ** 2 * num_rows
    return [ids.long().unique() for ids in drawn]


cases = st.tuples(
    st.integers(0, 10**6), st.integers(1, 40), st.integers(1, 80), st.integers(1, 5), st.integers(0, 9)
)


@settings(max_examples=examples(12), deadline=None)
@given(cases)
def test_the_op_does_what_the_model_does(case):
    seed, num_ids, num_slots, in_flight, window = case
    batches, model = some_batches(seed, 60, num_ids), Model(num_slots, in_flight)
    window = max(window, in_flight - 1)
    ranked, since = 0, 0
    fed = touched = 0
    for t, (_, taken, counted) in enumerate(replay(60, num_slots, in_flight, batches, window, num_ids)):
        num_rows, moves = counted.num_rows, counted.moves
        while fed <= min(t + window, len(batches) - 1):
            model.feed(fed, batches[fed].tolist())
            fed += 1
        while touched <= min(t + in_flight - 1, len(batches) - 1):
            model.touch(touched, batches[touched].tolist())
            touched += 1
        since += num_ids
        if t == 0 or t >= ranked + 16 or since + num_ids > num_slots:
            model.rank(t)
            ranked, since = t, num_ids
        expected = model.take(t, batches[t].tolist(), num_ids)
        assert num_rows == len(batches[t]) and moves.bypasses_cache == (expected is None)
        assert bool((taken.slots[num_rows:] == 0).all())
        if expected is not None:
            places, rows_in, rows_out, drained = expected
            assert counted.is_drained == drained
            assert taken.slots[:num_rows].tolist() == places
            assert pairs(moves.rows_in, moves.slots_in) == rows_in
            assert pairs(moves.rows_out, moves.slots_out) == rows_out


@settings(max_examples=examples(12), deadline=None)
@given(cases)
def test_no_row_of_a_batch_in_flight_loses_its_slot(case):
    seed, num_ids, num_slots, in_flight, window = case
    batches, row_of = some_batches(seed, 60, num_ids), {}
    for t, (_, taken, counted) in enumerate(
        replay(60, num_slots, in_flight, batches, max(window, in_flight - 1), num_ids)
    ):
        num_rows, moves = counted.num_rows, counted.moves
        apart = 1 if counted.is_drained else in_flight
        near = batches[max(t - apart + 1, 0) : t + apart]
        assert not set(moves.rows_out.tolist()) & set(torch.cat(near).tolist())
        for row, slot in pairs(moves.rows_out, moves.slots_out):
            assert row_of.pop(slot) == row
        for row, slot in pairs(moves.rows_in, moves.slots_in):
            assert slot not in row_of and row not in row_of.values()
            row_of[slot] = row
        if not moves.bypasses_cache:
            assert [row_of[slot] for slot in taken.slots[:num_rows].tolist()] == batches[t].tolist()


def test_without_a_window_it_misses_as_lru_on_the_host_does():
    batches, host = some_batches(1, 400, 30, 200), SlotMap(200, LRU, 2)
    *_, (slots, _, _) = replay(400, 200, 2, batches, 1, 30)
    for rows in batches:
        host.feed(rows)
    host.end()
    for rows in batches:
        host.allocate(rows)
    assert slots.num_drained == 0 and host.misses <= slots.misses * 1.1 <= host.misses * 1.2


def test_a_window_brings_misses_near_to_the_optimum():
    batches = some_batches(2, 2000, 12, 500)
    misses = {}
    for window in (1, 16, 64):
        *_, (slots, _, _) = replay(2000, 500, 2, batches, window, 12)
        misses[window] = slots.misses
    best = SlotMap(500, BELADY, 2)
    for rows in batches:
        best.feed(rows)
    best.end()
    for rows in batches:
        best.allocate(rows)
    assert misses[64] < misses[16] < misses[1] and misses[64] < 1.3 * best.misses


def test_warm_rows_are_there_and_the_least_wanted_goes_first():
    slots = DeviceSlots(20, 4, LRU, 1, HOST)
    moves = slots.warm(torch.tensor([9, 3, 9, 7, 5, 11]))
    assert moves.rows_in.tolist() == [3, 5, 7, 9] and slots.num_resident == 4
    slots.touch(torch.tensor([3, 8]))
    slots.begin()
    taken = slots.memory(2)
    slots.take(torch.tensor([3, 8]), taken)
    moves = slots.read(0, taken).moves
    assert taken.slots.tolist() == [0, 1] and moves.rows_out.tolist() == [5]


def test_what_a_device_does_not_map():
    assert refusal(LRU, [100], [10], 1000) is None
    assert "policy" in refusal(Frequency(), [100], [10], 1000)
    assert "policy" in refusal(BELADY, [100], [10], 1000)
    assert "2^31" in refusal(LRU, [2**31], [10], 2**40)
    assert "lookahead_memory" in refusal(LRU, [1 << 20], [10], 1000)


def test_a_batch_without_rows_moves_none():
    none = torch.empty(0, dtype=torch.int64)
    *_, (slots, _, counted) = replay(5, 2, 1, [torch.tensor([1]), none], 0, 1)
    assert counted.num_rows == 0 and not len(counted.moves.rows_in) and slots.misses == 1


def test_a_group_of_which_a_rank_has_no_row_moves_none():
    """So of a table by columns that has fewer columns than there are ranks."""
    none = torch.empty(0, dtype=torch.int64)
    slots = DeviceSlots(0, 1, Lookahead(4), 3, HOST)
    for batch in range(3):
        slots.feed(lambda: none)
        slots.touch(none)
        slots.begin()
        taken = slots.memory(0)
        slots.take(none, taken)
        counted = slots.read(batch, taken)
        assert counted.num_rows == 0 and not counted.is_drained
        assert all(len(t) == 0 for t in (counted.moves.rows_in, counted.moves.rows_out))
