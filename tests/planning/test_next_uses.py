"""Next uses found in files are those of the batches; a map that is told of them is the optimum."""

import itertools
import os

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hotrows.engine.planning.next_uses import NextUses
from hotrows.engine.planning.policy import BELADY, LRU, Lookahead
from hotrows.engine.planning.slots import NEVER, SlotMap
from tests.reference.slots import ReferenceSlotMap
from tests.support.choice import examples


def ids(*rows):
    return torch.tensor(rows, dtype=torch.int64)


def in_full(taken):
    """All of it, as plain values."""
    moves = taken.moves
    parts = (taken.slots, moves.rows_in, moves.slots_in, moves.rows_out, moves.slots_out)
    return *(part.tolist() for part in parts), moves.bypasses_cache, taken.waits_for


def plain_next_uses(batches):
    """By batch, the next batch that uses each of its distinct rows, ascending."""
    coming, found = {}, []
    for number in reversed(range(len(batches))):
        rows = sorted(set(batches[number]))
        found.append([coming.get(row, NEVER) for row in rows])
        coming |= dict.fromkeys(rows, number)
    return found[::-1], coming


@settings(max_examples=examples(60), deadline=None)
@given(
    st.sampled_from([5, 256, 70_000, 1 << 32]),
    st.lists(st.lists(st.integers(0, 2**32 - 1), max_size=30), min_size=1, max_size=30),
    st.integers(1, 40),
)
def test_next_uses_are_those_of_the_batches(tmp_path_factory, num_rows, batches, among):
    batches = [[row % num_rows if row % 3 else row % min(among, num_rows) for row in b] for b in batches]
    uses = NextUses(tmp_path_factory.mktemp("uses") / "next", num_rows)
    for batch in batches:
        uses.add(ids(*batch))
    found, first_uses = plain_next_uses(batches)
    asked = sorted({*first_uses, 0, num_rows - 1})
    assert uses.finish(ids(*asked)).tolist() == [first_uses.get(row, NEVER) for row in asked]
    for number, expected in enumerate(found):
        assert uses.of_batch(number, len(expected)).tolist() == expected
    assert uses.of_batch(0, len(found[0]) + 1) is None
    assert not os.listdir(uses.path.parent)


def test_many_uses_go_through_files(tmp_path):
    chance = torch.Generator().manual_seed(0)
    batches = [torch.randint(0, 100_000, (6000,), generator=chance) for _ in range(200)]
    uses = NextUses(tmp_path / "next", 100_000)
    for batch in batches:
        uses.add(batch)
    assert uses.num_batches == 200 and uses.num_bytes > 0.5 * 8 * uses.num_uses
    uses.finish(ids())
    expected, _ = plain_next_uses([batch.tolist() for batch in batches])
    for number in (0, 1, 3, 4, 199, 100, 7):  # in any order, if need be
        assert uses.of_batch(number, len(expected[number])).tolist() == expected[number]


def test_a_folder_that_takes_no_file_is_named(tmp_path):
    with pytest.raises(OSError, match="no file can be made there for the next uses of rows"):
        NextUses(tmp_path / "missing" / "next", 10)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_full_disk_is_an_error_that_names_the_file(tmp_path):
    (tmp_path / "next.uses").symlink_to("/dev/full")
    uses = NextUses(tmp_path / "next", 10)
    with pytest.raises(OSError, match="next: next uses of rows: No space left"):
        for _ in range(10_000):
            uses.add(torch.arange(10))


def told(kind, batches, num_slots, in_flight, wrong=frozenset(), num_rows=None):
    """What a map does that is told of next uses; of batches in `wrong` it is told of none."""
    slots = kind(num_slots, Lookahead(), in_flight, hinted=True, num_rows=num_rows)
    left, taken = list(batches), []
    next_uses, _ = plain_next_uses(batches)
    for number, batch in enumerate(batches):
        while left and slots.wants():
            slots.feed(ids(*left.pop(0)))
        if not left:
            slots.end()
        hints = None if number in wrong else torch.tensor(next_uses[number], dtype=torch.int32)
        taken.append(slots.allocate(ids(*sorted(set(batch))), hints))
    return slots, taken


@settings(max_examples=examples(300), deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 30), max_size=10), min_size=1, max_size=40),
    st.integers(1, 24),
    st.integers(1, 4),
    st.sets(st.integers(0, 40)),
    st.sampled_from([None, 1000]),
)
def test_the_native_map_equals_the_reference(batches, num_slots, in_flight, wrong, num_rows):
    (_, expected), (slots, taken) = (
        told(kind, batches, num_slots, in_flight, wrong, num_rows) for kind in (ReferenceSlotMap, SlotMap)
    )
    assert [*map(in_full, taken)] == [*map(in_full, expected)]
    residents = {row for rows in batches for row in rows} & set(slots.residents().tolist())
    assert sorted(residents) == slots.residents().tolist()


def trace_of(num_batches, seed=0):
    draws = torch.rand(num_batches, 300, generator=torch.Generator().manual_seed(seed)).pow(-1.2)
    return [tuple(batch) for batch in draws.long().clamp(max=8000).tolist()]


def test_misses_are_those_of_the_optimum():
    batches = trace_of(200)
    best, lru = (SlotMap(450, policy, num_rows=9000) for policy in (BELADY, LRU))
    for slots in (best, lru):
        for batch in batches if slots is best else ():
            slots.feed(ids(*batch))
        slots.end()
        for batch in batches:
            slots.allocate(ids(*sorted(set(batch))))
    slots, _ = told(SlotMap, batches, 450, 1)
    assert slots.misses == best.misses < lru.misses


@pytest.mark.parametrize("kind", [ReferenceSlotMap, SlotMap])
def test_rows_in_slots_are_told_of_their_first_use_in_the_next_range(kind):
    slots = kind(3, Lookahead(), hinted=True)
    none = torch.full((1,), NEVER, dtype=torch.int32)
    for row in (1, 2, 3):
        slots.allocate(ids(row), none)
    assert slots.residents().tolist() == [1, 2, 3]
    slots.hint(ids(1, 2, 3), torch.tensor([5, 9, 6], dtype=torch.int32))
    assert slots.allocate(ids(4), none).moves.rows_out.tolist() == [2]
    assert slots.allocate(ids(5), none).moves.rows_out.tolist() == [4]


def test_a_wrong_hint_is_as_none_once_it_is_behind():
    """No row is lost to eviction, whatever was said of it."""
    chance = torch.Generator().manual_seed(3)
    slots = SlotMap(40, Lookahead(), 2, hinted=True)
    batches = [torch.randint(0, 200, (8,), generator=chance).unique() for _ in range(300)]
    coming = itertools.chain(batches)
    for batch in batches:
        while slots.wants():
            following = next(coming, None)
            slots.end() if following is None else slots.feed(following)
        hints = torch.randint(0, 400, (len(batch),), generator=chance, dtype=torch.int32)
        taken = slots.allocate(batch, hints)
        assert taken.slots.unique().numel() == len(batch)
    assert slots.num_resident == 40
