"""Which row sits in which slot: the rules one by one, then any trace."""

import dataclasses
from collections import deque
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hotrows.engine.planning import policy as policies
from hotrows.engine.planning.policy import BELADY, LRU, Frequency, Hot, Lookahead, Newest, Policy, Window
from hotrows.engine.planning.slots import SlotMap
from hotrows.train.config import TrainConfig
from tests.reference.slots import ReferenceSlotMap
from tests.support.choice import examples

MAPS = [ReferenceSlotMap, SlotMap]
every_map = pytest.mark.parametrize("kind", MAPS)


@dataclass(frozen=True)
class Returning(Policy):
    """Protects the row that most batches used, chosen before every second one: CONTRIBUTING.md says that
    such a policy is written in one place."""

    kind: ClassVar[str] = "returning"
    counts_rows: ClassVar[bool] = True

    def chooses_anew(self, batch):
        return batch % 2 == 0

    def protected(self, num, most_counted):
        return most_counted(min(num, 1))


def ids(*rows):
    return torch.tensor(rows, dtype=torch.int64)


def replay(slots, batches, give=None):
    """Takes all batches, fed as the map wants them (or `give` more), and returns what came of each."""
    left, taken = deque(batches[slots.num_fed :]), []
    for batch in batches:
        more = give() if give else 0
        while left and (slots.wants() or more > 0):
            more -= not slots.wants()
            slots.feed(ids(*left.popleft()))
        if not left:
            slots.end()
        taken.append(slots.allocate(ids(*sorted(set(batch)))))
    return taken


def moves_of(taken):
    """(rows in, rows out) by batch."""
    return [(t.moves.rows_in.tolist(), t.moves.rows_out.tolist()) for t in taken]


def in_full(taken):
    """All of it, as plain values."""
    moves = taken.moves
    parts = (taken.slots, moves.rows_in, moves.slots_in, moves.rows_out, moves.slots_out)
    return *(part.tolist() for part in parts), moves.bypasses_cache, taken.waits_for


@every_map
def test_free_slots_are_given_out_from_the_lowest(kind):
    slots = kind(4, LRU)
    (first, second) = replay(slots, [(7, 3), (3, 9)])
    assert first.slots.tolist() == [0, 1]
    assert second.slots.tolist() == [0, 2]
    assert moves_of([first, second]) == [([3, 7], []), ([9], [])]
    assert (slots.num_resident, slots.misses, slots.hits) == (3, 3, 1)


@every_map
def test_misses_take_the_slots_of_victims_in_the_order_of_eviction(kind):
    last = replay(kind(4, LRU), [(8, 9), (1, 2), (3, 4)])[-1]
    assert last.moves.rows_out.tolist() == [8, 9]
    assert last.moves.slots_out.tolist() == [0, 1]
    assert dict(zip([3, 4], last.slots.tolist(), strict=True)) == {3: 0, 4: 1}


@every_map
def test_lru_lets_the_oldest_go_and_of_equally_old_ones_the_first(kind):
    taken = replay(kind(3, LRU), [(1, 2, 3), (1,), (4,), (5,)])
    assert moves_of(taken)[2:] == [([4], [2]), ([5], [3])]


@every_map
def test_the_row_whose_next_use_is_farthest_goes_first(kind):
    taken = replay(kind(3, BELADY), [(1,), (2,), (3,), (4,), (1,), (3,), (2,)])
    assert moves_of(taken)[3] == ([4], [2])


@every_map
def test_a_row_without_a_known_use_goes_before_all(kind):
    taken = replay(kind(2, BELADY), [(1,), (2,), (3,), (1,)])
    assert moves_of(taken)[2] == ([3], [2])


@every_map
def test_a_use_beyond_the_window_is_not_known(kind):
    trace = [(1,), (2,), (3,), (2,), (1,)]
    assert moves_of(replay(kind(2, Lookahead(1)), trace))[2] == ([3], [1])  # sees 2, not 1
    assert moves_of(replay(kind(2, Lookahead(2)), trace))[2] == ([3], [1])  # 1 is farther
    assert moves_of(replay(kind(2, Lookahead(0)), [*trace[:3], (1,)]))[2] == ([3], [1])
    assert moves_of(replay(kind(2, Lookahead(1)), [*trace[:3], (1,)]))[2] == ([3], [2])


@every_map
def test_a_next_use_known_for_pins_alone_does_not_order_lru(kind):
    # Batch 4 is drained; row 1 is used next by batch 5, which only the pins look at.
    taken = replay(kind(3, LRU, in_flight=2), [(1,), (2,), (3,), (2, 3), (4,), (1,)])
    assert moves_of(taken)[4] == ([4], [1])


@every_map
def test_rows_of_the_batches_in_flight_are_not_evicted(kind):
    trace = [(1,), (2,), (3,), (4,)]
    one, two = (replay(kind(3, Newest(), in_flight=k), trace)[3] for k in (1, 2))
    assert one.moves.rows_out.tolist() == [3]
    assert two.moves.rows_out.tolist() == [2]  # 3 may still be in training
    bare = replay(kind(3, Newest(), in_flight=2, past_pins=0), trace)[3]
    assert bare.moves.rows_out.tolist() == [3]


@every_map
def test_rows_of_the_next_batches_are_not_evicted(kind):
    trace = [(1,), (2,), (3,), (4,), (1,)]
    assert moves_of(replay(kind(3, LRU, in_flight=2), trace))[3] == ([4], [2])
    assert moves_of(replay(kind(3, LRU, in_flight=2, future_pins=0), trace))[3] == ([4], [1])


@every_map
def test_a_batch_that_came_after_the_end_waits_for_those_that_did_not_know_of_it(kind):
    """Of a stream: batch 2 evicts rows 1 and 2, which batch 3, in flight with it, turns out to read."""
    slots = kind(4, LRU, in_flight=2)
    taken = []
    for batch in [(1, 2), (3, 4), (5, 6), (1, 2)]:
        slots.feed(ids(*batch))
        slots.end()  # nothing more has come so far
        taken.append(slots.allocate(ids(*batch)))
    assert [t.moves.rows_out.tolist() for t in taken[2:]] == [[1, 2], [3, 4]]
    assert [t.waits_for for t in taken] == [-1, 0, 1, 2]


@every_map
def test_after_an_end_batches_are_fed_ahead_again_and_only_the_first_waits_longer(kind):
    slots = kind(8, LRU, in_flight=2)
    slots.feed(ids(1))
    slots.end()
    taken = [slots.allocate(ids(1))]
    assert not slots.wants()
    for batch in [(2,), (3,), (4,)]:
        slots.feed(ids(*batch))
        assert slots.wants() == (batch == (2,))
        if slots.num_fed > 2:
            taken.append(slots.allocate(ids(slots.num_fed - 1)))
    assert [t.waits_for for t in taken] == [-1, 0, 0]


@every_map
def test_a_batch_waits_for_the_one_that_shared_the_pipeline_before_it(kind):
    taken = replay(kind(8, LRU, in_flight=3), [(1,)] * 6)
    assert [t.waits_for for t in taken] == [-1, -1, -1, 0, 1, 2]


@every_map
def test_where_pins_leave_too_few_the_pipeline_drains_and_the_next_batch_waits_too(kind):
    taken = replay(kind(4, LRU, in_flight=3), [(1, 2), (3, 4), (5, 6), (5, 6), (5, 6), (5, 6)])
    assert [t.waits_for for t in taken] == [-1, -1, 1, 2, 2, 2]
    assert moves_of(taken)[2] == ([5, 6], [1, 2])


@every_map
@pytest.mark.parametrize(("num_slots", "drained"), [(4, 1), (9, 0), (10, 0)])
def test_with_as_many_slots_as_are_pinned_at_most_no_batch_is_drained(kind, num_slots, drained):
    slots = kind(num_slots, LRU, in_flight=3)
    replay(slots, [(1, 2), (3, 4), (5, 6), (5, 6), (5, 6), (5, 6)])
    assert (slots.num_drained, slots.most_rows, slots.most_pinned) == (drained, 2, 5 * 2)


@every_map
def test_a_batch_of_more_rows_than_slots_passes_through(kind):
    taken = replay(kind(2, LRU, in_flight=2), [(1, 5), (1, 2, 3), (1, 5)])
    assert taken[1].slots.tolist() == [0, -1, -1]
    assert taken[1].moves.bypasses_cache and moves_of(taken)[1] == ([], [])
    assert [t.waits_for for t in taken] == [-1, 0, 1]
    assert taken[2].slots.tolist() == [0, 1]


@every_map
def test_warm_rows_have_slots_before_the_first_batch_and_the_least_wanted_goes_first(kind):
    slots = kind(3, LRU)
    moves = slots.warm(ids(9, 4, 9, 7, 5))
    assert (moves.rows_in.tolist(), moves.slots_in.tolist()) == ([4, 7, 9], [0, 1, 2])
    taken = replay(slots, [(4,), (1,), (2,)])
    assert moves_of(taken) == [([], []), ([1], [7]), ([2], [9])]


@every_map
def test_rows_that_are_not_hot_pass_the_hot_ones_by(kind):
    slots = kind(4, Hot(ids(1, 2, 3, 4)), in_flight=1)  # half of the slots are a reserve
    taken = replay(slots, [(1, 2), (8, 9), (6,), (3,), (4,)])
    assert moves_of(taken)[2:] == [([6], [8]), ([3], [9]), ([4], [6])]


@every_map
def test_the_most_frequent_rows_are_wanted_once_counted(kind):
    trace = [(1, 2), (1, 2), (3,), (4,), (5,), (6,)]
    lru = moves_of(replay(kind(4, LRU), trace))
    counted = moves_of(replay(kind(4, Frequency(warmup=2, refresh_every=50)), trace))
    assert lru[4:] == [([5], [1]), ([6], [2])]
    assert counted[4:] == [([5], [3]), ([6], [4])]


@every_map
def test_a_policy_that_is_written_in_one_place_protects_its_row(kind):
    trace = [(1, 2), (1,), (3,), (4,), (5,), (6,)]
    lru = moves_of(replay(kind(4, LRU), trace))
    own = moves_of(replay(kind(4, Returning()), trace))
    assert lru[4:] == [([5], [2]), ([6], [1])]
    assert own[4:] == [([5], [2]), ([6], [3])]


@every_map
def test_old_counts_fade_where_there_is_no_more_room(kind):
    slots = kind(64, Frequency(warmup=4, refresh_every=1))  # counts 1,024 rows
    once_hot = [(1, 2)] * 4
    streams = [(3, *range(first, first + 30)) for first in range(100, 9000, 30)]
    taken = replay(slots, once_hot + streams)
    gone = [row for t in taken for row in t.moves.rows_out.tolist()]
    assert {1, 2} <= set(gone) and 3 not in gone


@every_map
def test_the_window_sizes_itself_by_slots_per_miss(kind):
    slots = kind(100, Lookahead(), in_flight=2)
    replay(slots, [tuple(range(i, i + 10)) for i in range(0, 3000, 10)])  # nothing but misses
    assert slots.window == 30
    idle = kind(100, Lookahead())
    replay(idle, [tuple(range(64))] * 500)  # hardly a miss: one in sixteen is reckoned with
    assert 60 < idle.window <= 75


@pytest.mark.parametrize("most_bytes", [None, 1 << 40])
def test_no_window_holds_more_uses_than_the_native_map_numbers(most_bytes):
    window = Window(BELADY, 1000, 1, 4, most_bytes)
    assert window.reaches(10**6, Window.MOST_BYTES - 1) and window.reaches(4, 1 << 40)
    assert not window.reaches(5, Window.MOST_BYTES)
    assert Window.MOST_BYTES < 4 * 2**31


def test_the_window_grows_by_four_batches_at_most():
    window, sizes = Window(Lookahead(), 1000, 1, 0), []
    for _ in range(5):
        sizes.append(window.batches)
        window.after(10, 10)
    assert sizes == [1, 5, 9, 13, 17]


@every_map
def test_look_ahead_stays_within_its_bytes_but_for_the_pins(kind):
    slots = kind(8, BELADY, in_flight=2, lookahead_bytes=170)
    fed = 0
    while slots.wants():
        slots.feed(ids(fed, fed + 1))
        fed += 2
    assert slots.num_fed == 5  # 34 bytes a batch
    tight = kind(8, BELADY, in_flight=2, lookahead_bytes=0)
    while tight.wants():
        tight.feed(ids(1))
    assert tight.num_fed == 2


@every_map
def test_feeding_asks_for_what_pins_and_window_need_until_the_end(kind):
    for policy, in_flight, num_fed in ((LRU, 1, 1), (LRU, 3, 3), (Lookahead(5), 3, 6)):
        slots = kind(8, policy, in_flight)
        while slots.wants():
            slots.feed(ids(1))
        assert slots.num_fed == num_fed
        slots.allocate(ids(1))
        assert slots.wants()
        slots.end()
        assert not slots.wants()
        slots.feed(ids(1))
        slots.end()
        assert slots.num_fed == num_fed + 1


@every_map
def test_taking_past_what_was_fed_or_other_rows_is_an_error_of_ours(kind):
    slots = kind(8, LRU, in_flight=2)
    slots.feed(ids(1))
    with pytest.raises(RuntimeError, match=r"needs those up to 1 fed, or end\(\)"):
        slots.allocate(ids(1))
    slots.end()
    with pytest.raises(RuntimeError, match=r"other rows"):
        slots.allocate(ids(2))


@every_map
def test_an_empty_batch_is_a_batch(kind):
    taken = replay(kind(2, LRU), [(), (1,), ()])
    assert [t.slots.tolist() for t in taken] == [[], [0], []]


def test_policies_are_read_from_text_and_json():
    texts = {"lookahead": Lookahead(), "lookahead:200": Lookahead(200), "lru": LRU}
    texts |= {"frequency": Frequency(), "frequency:100,50": Frequency(100, 50)}
    for text, policy in texts.items():
        assert policies.parse(text) == policy
        assert policies.from_json(policies.to_json(policy)) == policy
    assert isinstance(policies.parse("hot"), Hot)
    assert policies.from_json(policies.to_json(BELADY)) == BELADY
    assert policies.to_json(Hot(ids(1))) == {"kind": "hot"}
    for wrong in ("lookahead:", "lookahead:-1", "lookahead:1,2", "frequency:3", "lru:1", "mru"):
        with pytest.raises(ValueError, match=f"policy must be .*, not '{wrong}'"):
            policies.parse(wrong)
    with pytest.raises(ValueError, match="policy must be one of"):
        policies.from_json({"kind": "mru"})


def test_a_kind_of_policy_is_read_by_its_fields_and_named(monkeypatch):
    """Wherever the forms of policies stand: the text, the message, the help."""
    assert set(policies.forms()) == {
        *("lookahead", "lookahead:WINDOW", "lru", "hot"), "frequency", "frequency:WARMUP,REFRESH_EVERY"
    }  # fmt: skip
    (field,) = (field for field in dataclasses.fields(TrainConfig) if field.name == "policy")
    assert all(form in field.metadata["setting"].help for form in policies.forms() if ":" not in form)
    monkeypatch.setitem(policies._KINDS, "returning", Returning)
    assert policies.parse("returning") == Returning() and "returning" in policies.forms()


few_rows = st.integers(0, 9) | st.integers(0, 40)


def traces_of(rows):
    return st.lists(st.lists(rows, max_size=12).map(tuple), min_size=1, max_size=40)


NARROW = 2**32 - 1  # up to so many rows, the native map numbers them by 32 bits
traces = traces_of(few_rows | st.integers(0, 2**40))
narrow_traces = traces_of(few_rows | st.integers(0, NARROW - 1))
counting = st.builds(Frequency, st.integers(0, 5), st.integers(1, 6))
hot = st.lists(st.integers(0, 40), max_size=20, unique=True).map(lambda rows: Hot(ids(*rows)))
windows = st.one_of(st.integers(0, 12), st.sampled_from(["auto", None]))
any_policy = st.one_of(windows.map(Lookahead), counting, hot, st.just(Newest()), st.just(Returning()))


@st.composite
def cases(draw):
    """A map's arguments, a trace, and rows to warm up with or None."""
    options = {"in_flight": draw(st.integers(1, 5))}
    for name, values in (("past_pins", (0, 3)), ("future_pins", (0, 3))):
        if draw(st.booleans()) and draw(st.booleans()):
            options[name] = draw(st.integers(*values))
    options["lookahead_bytes"] = draw(st.none() | st.integers(0, 2000))
    warm = draw(st.none() | st.lists(st.integers(0, 40), max_size=20))
    options["num_rows"] = draw(st.sampled_from([None, NARROW]))
    trace = draw(traces if options["num_rows"] is None else narrow_traces)
    return (draw(st.integers(1, 24)), draw(any_policy)), options, trace, warm


@settings(max_examples=examples(600), deadline=None)
@given(cases(), st.randoms(use_true_random=False))
def test_the_native_map_equals_the_reference_on_any_trace(case, random):
    (arguments, options, trace, warm), seed = case, random.randrange(2**30)
    ends = []
    for kind in (ReferenceSlotMap, SlotMap):
        random.seed(seed)
        slots = kind(*arguments, **options)
        results = []
        if warm is not None:
            for batch in trace[: random.randrange(4)]:  # rows may be known before they come in
                slots.feed(ids(*batch))
            moves = slots.warm(ids(*warm))
            results.append((moves.rows_in.tolist(), moves.slots_in.tolist()))
        taken = replay(slots, trace, lambda: random.choice((0, 0, 1, 3, 50)))
        results += [in_full(t) for t in taken]
        counters = (slots.num_fed, slots.num_allocated, slots.hits, slots.misses, slots.num_resident)
        ends.append((results, counters, slots.window))
    assert ends[0] == ends[1]


@pytest.mark.parametrize(
    "policy", [LRU, Lookahead(), BELADY, Frequency(3, 2), Hot(torch.arange(90)), Newest()]
)
@pytest.mark.parametrize("num_rows", [None, 9000])
def test_the_native_map_equals_the_reference_past_the_first_sizes_of_its_tables(policy, num_rows):
    draws = torch.rand(150, 300).pow(-1.2).long().clamp(max=8000) + torch.arange(150)[:, None] * 3
    trace = [tuple(batch) for batch in draws.tolist()]
    reference, slots = ReferenceSlotMap(450, policy, 2), SlotMap(450, policy, 2, num_rows=num_rows)
    assert [*map(in_full, replay(slots, trace))] == [*map(in_full, replay(reference, trace))]
    assert slots.num_resident == 450 and slots.num_bytes > 450 * 32


def test_the_native_map_ranks_rows_by_counts_of_any_size():
    policy = Frequency(1200, 10)
    often = [(*range(j % 3 + 1), 10 + j % 50) for j in range(1200)]  # 0 in all, 1 in 800, 2 in 400
    trace = [*often, *((100 + j, 200 + j) for j in range(40))]
    for num_slots in (3, 5, 12):
        reference, slots = ReferenceSlotMap(num_slots, policy), SlotMap(num_slots, policy)
        assert [*map(in_full, replay(slots, trace))] == [*map(in_full, replay(reference, trace))]


@pytest.mark.parametrize(("num_rows", "row_bytes"), [(2_000_000, 8), (None, 16)])
def test_the_native_map_takes_8_bytes_a_known_row_in_its_table_and_4_a_use(num_rows, row_bytes):
    slots = SlotMap(50_000, BELADY, num_rows=num_rows)
    batches = [torch.arange(0, 1_500_000, step) for step in (3, 5, 2, 15)]  # 1.65 million uses
    for batch in batches:
        slots.feed(batch)
    slots.end()
    held, known = slots.bytes_by_part(), len(torch.cat(batches).unique())
    assert row_bytes * known < held["known_rows"] <= row_bytes * known * 5 / 3
    num_uses = sum(map(len, batches))
    assert 4 * num_uses <= held["uses"] <= 4 * num_uses + (4 << 20)
    for batch in batches:  # all uses are found again, in their order
        slots.allocate(batch)
    assert slots._sizes() == [0, 0, 0] and slots.bytes_by_part()["uses"] <= 4 << 20


@settings(max_examples=examples(150), deadline=None)
@given(cases(), st.randoms(use_true_random=False))
def test_feeding_earlier_than_wanted_changes_nothing(case, random):
    arguments, options, trace, _ = case
    plain, early = (
        [in_full(t) for t in replay(SlotMap(*arguments, **options), trace, give)]
        for give in (None, lambda: random.randrange(8))
    )
    assert plain == early


@settings(max_examples=examples(200), deadline=None)
@given(cases())
def test_a_slot_holds_one_row_and_what_is_in_flight_stays(case):
    (num_slots, policy), options, trace, _ = case
    in_flight = options["in_flight"]
    slots = SlotMap(num_slots, policy, in_flight)
    held, last_wait = {}, -1
    batches = [sorted(set(batch)) for batch in trace]
    for j, taken in enumerate(replay(slots, trace)):
        out = taken.moves.rows_out.tolist()
        for row, slot in zip(out, taken.moves.slots_out.tolist(), strict=True):
            assert held.pop(row) == slot
        moved_in = (taken.moves.rows_in.tolist(), taken.moves.slots_in.tolist())
        held.update(zip(*moved_in, strict=True))
        assert len(set(held.values())) == len(held) and all(s < num_slots for s in held.values())
        assert taken.slots.tolist() == [held.get(row, -1) for row in batches[j]]
        assert (-1 in taken.slots.tolist()) == (len(batches[j]) > num_slots)
        assert taken.waits_for >= max(last_wait, j - in_flight, -1) and taken.waits_for < j
        last_wait = taken.waits_for
        first = max(last_wait + 1, 0)  # those before it have left the pipeline
        in_use = {row for batch in batches[first : j + 1] for row in batch}
        assert not in_use & set(out)
        if last_wait <= j - in_flight:
            assert not {row for batch in batches[j : j + in_flight] for row in batch} & set(out)


@settings(max_examples=examples(150), deadline=None)
@given(st.integers(1, 16), traces, st.lists(any_policy, min_size=1, max_size=4))
def test_no_policy_misses_less_than_belady(num_slots, trace, others):
    trace = [tuple(sorted(set(batch)))[:num_slots] for batch in trace]
    misses = []
    for policy in (BELADY, *others):
        slots = SlotMap(num_slots, policy)
        replay(slots, trace)
        misses.append(slots.misses)
    assert misses[0] == min(misses)


@settings(max_examples=examples(150), deadline=None)
@given(st.integers(1, 16), traces)
def test_an_infinite_window_is_textbook_belady(num_slots, trace):
    trace = [tuple(sorted(set(batch)))[:num_slots] for batch in trace]
    slots = SlotMap(num_slots, BELADY)
    replay(slots, trace)
    assert slots.misses == textbook_belady(num_slots, trace)


def textbook_belady(num_slots, trace):
    """Misses of Bélády's algorithm, the next use of each row found by reading on."""
    cache, misses = set(), 0
    for j, batch in enumerate(trace):
        new = set(batch) - cache
        misses += len(new)

        def next_use(row, j=j):
            return next((b for b in range(j + 1, len(trace)) if row in trace[b]), len(trace))

        num_out = max(len(cache) + len(new) - num_slots, 0)
        cache -= set(sorted(cache - set(batch), key=next_use, reverse=True)[:num_out])
        cache |= new
    return misses
