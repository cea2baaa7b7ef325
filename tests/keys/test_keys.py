"""Key tables: the rules one by one, then any trace."""

import json
from collections import deque

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import hotrows
from hotrows.dynamic import Dynamic
from hotrows.engine.keys.table import COUNTERS, MOST_COUNTED, KeyTable
from tests.reference.keys import ReferenceKeyTable
from tests.support.choice import examples

LEAST, MOST = -(2**63), 2**63 - 1
KINDS = [ReferenceKeyTable, KeyTable]
every_kind = pytest.mark.parametrize("kind", KINDS)


def ints(*numbers):
    return torch.tensor(numbers, dtype=torch.int64)


def replay(table, batches, times=None, *, stop=None, in_flight=0, more=0):
    """Resolves batches up to `stop`, fed as the table wants them and `more` besides; what came of each.

    The last `in_flight` batches are not trained.
    """
    left, out = deque(batches[table.num_fed :]), []
    for number in range(table.num_resolved, len(batches) if stop is None else stop):
        while left and (table.wants() or (more and table.num_fed <= number + more)):
            table.feed(ints(*left.popleft()))
        if not left:
            table.end()
        out.append(table.resolve(ints(*batches[number]), times[number] if times else None))
        if table.num_resolved - table.num_trained > in_flight:
            table.trained()
    return out


def in_full(resolved):
    parts = (resolved.ids, resolved.born, resolved.born_keys, resolved.died, resolved.died_keys)
    return [part.tolist() for part in parts]


def plain(state):
    return {name: part.tolist() for name, part in state.items()}


def live(table):
    """{key: id} as of the batches trained."""
    state = table.state()
    return dict(zip(state["keys"].tolist(), state["ids"].tolist(), strict=True))


def died(resolved):
    return [r.died_keys.tolist() for r in resolved]


@every_kind
def test_new_keys_get_the_lowest_ids_by_ascending_hash(kind):
    table = kind(Dynamic(), num_unknown=2)
    first, second = replay(table, [(5, 7, 5), (5, 9)])
    assert in_full(first) == [[5, 4, 5], [4, 5], [7, 5], [], []]
    assert in_full(second) == [[5, 6], [6], [9], [], []]
    assert (table.num_live, table.num_rows) == (3, 7)


@every_kind
def test_every_int64_is_a_key(kind):
    keys = (0, LEAST, 1, MOST, -1, -2)  # by hash
    resolved = replay(kind(Dynamic()), [keys, keys])
    assert resolved[0].born_keys.tolist() == list(keys)
    assert resolved[1].ids.tolist() == [3, 4, 5, 6, 7, 8]


@every_kind
def test_lru_evicts_the_key_read_longest_ago_and_its_id_is_used_again(kind):
    table = kind(Dynamic(capacity=2, evict="lru"))
    resolved = replay(table, [(1,), (2,), (1,), (8,), (9,)])
    assert died(resolved) == [[], [], [], [2], [1]]
    assert [r.ids.tolist() for r in resolved] == [[3], [4], [3], [4], [3]]
    assert (table.num_live, table.num_rows, table.growth()["evicted"]) == (2, 5, 2)


@every_kind
def test_of_keys_last_read_together_lru_evicts_the_one_of_the_lowest_id(kind):
    assert died(replay(kind(Dynamic(capacity=3, evict="lru")), [(9, 1, 5), (7, 8)])) == [[], [1, 9]]


@every_kind
def test_a_batch_evicts_no_key_that_it_reads_and_keys_without_room_are_unknown(kind):
    table = kind(Dynamic(capacity=2, evict="lru"), num_unknown=1)
    resolved = replay(table, [(1, 2), (2, 5, 6, 5), (3, 4, 5, 6)])
    assert in_full(resolved[1]) == [[4, 3, 2, 3], [3], [5], [3], [1]]
    assert in_full(resolved[2]) == [[4, 2, 3, 2], [4], [3], [4], [2]]
    assert table.growth()["refused"] == 1 + 2


@every_kind
def test_without_eviction_keys_beyond_the_capacity_are_unknown(kind):
    table = kind(Dynamic(capacity=2))
    resolved = replay(table, [(1, 2, 3), (3, 2)])
    assert [r.ids.tolist() for r in resolved] == [[4, 2, 3], [3, 2]]
    assert died(resolved) == [[], []] and table.growth()["refused"] == 2


@every_kind
def test_idle_keys_lose_their_rows_until_the_table_is_empty(kind):
    table = kind(Dynamic(evict="idle:2"))
    resolved = replay(table, [(1, 2), (1,), (), (), (2,)])
    assert died(resolved) == [[], [], [2], [1], []]
    assert resolved[-1].ids.tolist() == [3] and table.num_live == 1 and table.num_rows == 5


@every_kind
def test_event_time_never_runs_back(kind):
    """A batch of late events counts as read at the largest time so far."""
    table = kind(Dynamic(evict="time:10"))
    batches = [(1,), (2,), (3,), (4,), (2,), (5,), (6,)]
    resolved = replay(table, batches, times=[100, 105, 50, 110, 110, 114, 123])
    assert died(resolved) == [[], [], [], [1], [], [], [4, 2, 3]]


@every_kind
def test_event_times_may_be_the_least_and_the_largest(kind):
    table = kind(Dynamic(evict="time:5"))
    resolved = replay(table, [(1,), (2,), (3,), (4,)], times=[LEAST, LEAST + 4, MOST, None])
    assert died(resolved) == [[], [], [1, 2], []]


@every_kind
def test_lfu_evicts_the_key_with_the_fewest_reads(kind):
    table = kind(Dynamic(capacity=3, evict="lfu"))
    assert died(replay(table, [(1, 1, 1, 2, 2, 3), (3, 3), (9,)])) == [[], [], [2]]


@every_kind
def test_reads_weigh_half_after_a_half_life(kind):
    batches = [(1,) * 5, (2,) * 3, (), (), (2,), (9,)]
    assert died(replay(kind(Dynamic(capacity=2, evict="lfu")), batches))[-1] == [2]
    assert died(replay(kind(Dynamic(capacity=2, evict="lfu:2")), batches))[-1] == [1]


@pytest.mark.parametrize("half_life", [1, 3, 7])
def test_reads_of_keys_that_a_table_begins_with_halve_alike(half_life):
    """These were last read in batches below 0."""
    dynamic, numbers = Dynamic(capacity=12, evict=f"lfu:{half_life}"), torch.arange(12)
    batches = [(100 + n, n % 12, n * n % 12, 100 + n // 2) for n in range(30)]
    ends = []
    for kind in KINDS:
        table = kind(dynamic)
        state = table.state() | {"keys": numbers, "ids": 3 + numbers, "last_use": -1 - numbers}
        state["counts"] = 16 * (1 + numbers % 3)
        state["counters"][2:4] = 12
        table.load(state)
        ends.append([in_full(resolved) for resolved in replay(table, batches)])
    assert ends[0] == ends[1]


@every_kind
def test_counts_saturate(kind):
    table = kind(Dynamic(capacity=2, evict="lfu"))
    replay(table, [(1, 2, 2)])
    state = table.state()
    state["counts"][:] = ints(MOST_COUNTED - 40, MOST_COUNTED)
    table.load(state)
    table.resolve(ints(1, 1, 1, 2))
    table.trained()
    assert table.state()["counts"].tolist() == [MOST_COUNTED, MOST_COUNTED]


@every_kind
def test_looking_forward_evicts_what_is_not_read_then_what_is_read_last(kind):
    batches = [(1,), (2,), (3,), (8,), (2,), (9,), (1,), (2,)]
    table = kind(Dynamic(capacity=3, evict="ahead", window=8))
    assert died(replay(table, batches)) == [[], [], [], [3], [], [8], [], []]
    fewer = kind(Dynamic(capacity=2, evict="ahead", window=8))
    assert died(replay(fewer, [(1,), (2,), (3,), (2,), (1,)])) == [[], [], [1], [], [3]]


@every_kind
def test_looking_forward_ends_with_the_window(kind):
    batches = [(1,), (2,), (3,), (4,), (5,), (1,)]
    assert died(replay(kind(Dynamic(capacity=2, evict="ahead", window=3)), batches))[2] == [2]
    assert died(replay(kind(Dynamic(capacity=2, evict="ahead", window=2)), batches))[2] == [1]


@every_kind
def test_after_the_end_batches_come_one_by_one(kind):
    table = kind(Dynamic(capacity=2, evict="ahead", window=3))
    replay(table, [(1, 2)])
    assert table.resolve(ints(3)).died_keys.tolist() == [1]


@every_kind
def test_a_batch_that_is_fed_after_the_end_has_others_fed_ahead_again(kind):
    table = kind(Dynamic(capacity=2, evict="ahead", window=3))
    replay(table, [(1, 2)])
    assert not table.wants()
    table.feed(ints(3))
    assert table.wants()


@every_kind
def test_admission_after_reads_counts_occurrences(kind):
    table = kind(Dynamic(admit="after:3"))
    resolved = replay(table, [(1, 1, 2), (2, 1), (2,), (1,)])
    assert [r.ids.tolist() for r in resolved] == [[2, 2, 2], [2, 3], [4], [3]]


@every_kind
def test_a_key_that_comes_back_is_admitted_as_a_new_one(kind):
    table = kind(Dynamic(capacity=1, admit="after:2", evict="lru"))
    resolved = replay(table, [(1, 1), (2, 2), (1,), (1,)])
    assert [r.born_keys.tolist() for r in resolved] == [[1], [2], [], [1]]


@every_kind
def test_a_sketch_counts_the_last_reads_and_few_of_other_keys(kind):
    table = kind(Dynamic(admit="after:3,sketch", capacity=2048))
    keys = list(range(500))
    resolved = replay(table, [keys, keys, keys])
    assert resolved[0].born.numel() == 0 and resolved[1].born.numel() < 500 / 8
    assert table.num_live == 500


@every_kind
def test_a_frequent_key_takes_the_row_of_one_read_less_often_lately(kind):
    """Keys 1 and 2 fill the table. A third one must have been read more often than the one that goes."""
    table = kind(Dynamic(capacity=2, admit="frequent:1", evict="lfu"))
    batches = [[1, 1, 1, 2, 2, 3], [3], [3, 4], [2, 4]]
    replay(table, batches, stop=2)
    assert live(table) == {1: 3, 2: 4}  # 3 was read twice, as 2 was
    replay(table, batches, stop=3)
    assert live(table) == {1: 3, 3: 4} and table.growth()["evicted"] == 1
    replay(table, batches)
    assert live(table) == {1: 3, 3: 4}  # 2 was read three times in all, as 3 and 1 were


@every_kind
def test_of_several_frequent_keys_the_most_frequent_get_rows(kind):
    table = kind(Dynamic(capacity=2, admit="frequent:1", evict="lfu"))
    batches = [[1, 2], [3, 3, 4, 4, 4, 4, 5, 5, 5], [3, 3, 6, 6, 6, 6]]
    replay(table, batches, stop=2)
    assert live(table).keys() == {4, 5}
    replay(table, batches)
    assert live(table).keys() in ({4, 3}, {4, 6})  # both were read four times: the hash decides


@every_kind
def test_a_sketch_forgets(kind):
    dynamic = Dynamic(admit="after:2,sketch", capacity=1024)
    for between, admitted in ((400, 1), (1200, 0)):
        table = kind(dynamic)
        replay(table, [(MOST,), range(between), ()], stop=2)
        assert (MOST in table.resolve(ints(MOST)).born_keys) == admitted
        table.trained()
        assert int(table.state()["sketch"].sum()) <= 4 * 2 * 512


@every_kind
def test_admission_by_probability_depends_on_the_key_alone(kind):
    keys = list(range(-1000, 1000))
    admitted = replay(kind(Dynamic(admit="probability:0.2")), [keys])[0].born_keys.tolist()
    again = replay(kind(Dynamic(admit="probability:0.2")), [keys[::-1], keys])[0].born_keys.tolist()
    assert sorted(admitted) == sorted(again) and 320 < len(admitted) < 480
    assert replay(kind(Dynamic(admit="probability:1")), [keys])[0].born.numel() == len(keys)


@every_kind
def test_a_key_that_will_be_read_often_is_admitted_at_its_first_read(kind):
    table = kind(Dynamic(admit="ahead:3", window=2))
    resolved = replay(table, [(1, 2), (2, 1), (1, 3, 3, 3), (2,), (2,), (2,)])
    assert [r.born_keys.tolist() for r in resolved] == [[1], [], [3], [2], [], []]


@every_kind
def test_unknown_ids_are_spread_by_hash(kind):
    table = kind(Dynamic(), num_unknown=8)
    ids = table.find(torch.arange(4000))
    assert ids.min() == 2 and ids.max() == 9 and ids.bincount()[2:].min() > 400


@every_kind
def test_find_and_state_are_those_of_the_batches_trained(kind):
    table = kind(Dynamic(capacity=2, evict="lru"))
    replay(table, [(1, 2)])
    before = plain(table.state())
    table.resolve(ints(3, 4))
    table.resolve(ints(1, 3))
    assert table.find(ints(1, 2, 3, 4)).tolist() == [3, 4, 2, 2] and plain(table.state()) == before
    table.trained()
    assert table.find(ints(1, 2, 3, 4)).tolist() == [2, 2, 3, 4]
    table.trained()
    assert table.find(ints(1, 2, 3, 4)).tolist() == [4, 2, 3, 2]


@every_kind
def test_a_state_is_refused_where_it_does_not_fit(kind):
    table = kind(Dynamic(), num_unknown=2)
    replay(table, [(1, 2, 3)])
    with pytest.raises(ValueError, match="3 keys are live, .* capacity of 2 rows .* capacity=3 or more"):
        kind(Dynamic(capacity=2), num_unknown=2).load(table.state())
    with pytest.raises(ValueError, match="num_unknown=2, not 1"):
        kind(Dynamic()).load(table.state())
    for name, part, problem in [
        ("ids", ints(4, 6, 5), "ids do not rise from 4 to 6"),
        ("ids", ints(3, 4, 5), "ids do not rise from 4 to 6"),
        ("ids", ints(4, 5, (1 << 32) + 3), "ids do not rise from 4 to 6"),
        ("ids", ints(4, 5), "keys, ids, last_use, counts are not equally many"),
        ("keys", ints(1, 2, 3).int(), "expected numbers of 64 bits of keys"),
        ("last_use", None, "expected numbers of 64 bits of keys"),
        ("last_use", ints(0, 0, 7), "a key was read after the 1 batches"),
        ("counters", ints(1, 2, 3, 9, 0, 0, 0, 0), "9 keys got 3 rows, 0 lost theirs, and 3 are live"),
        ("counters", ints(1, 2, 1 << 40, 3, 0, 0, 0, 0), "3 keys got 1,099,511,627,776 rows"),
        ("counters", ints(1, 2, 3), "expected counts of batches"),
        ("counts", ints(0, 0, -1), "reads were miscounted"),
        ("sketch", torch.zeros(2, 4), "expected two sketches"),
    ]:
        state = {other: value for other, value in table.state().items() if other != name}
        with pytest.raises(ValueError, match=f"the saved keys are damaged: {problem}"):
            table.load(state if part is None else state | {name: part})
    assert live(table) == {3: 4, 1: 5, 2: 6}


KEYS = [-1, 0, 1, MOST, LEAST, *range(10, 40)]
BATCHES = st.lists(st.lists(st.sampled_from(KEYS), max_size=12), min_size=1, max_size=25)
ADMITS = ["first", "after:2", "after:3", "after:3,sketch", "probability:0.6", "ahead:1", "ahead:3"]
CAPPED = ["none", "lru", "lfu", "lfu:3", "ahead", "idle:3", "time:7"]


@st.composite
def dynamics(draw):
    capacity = draw(st.sampled_from([None, 1, 2, 5, 17]))
    evict = draw(st.sampled_from(CAPPED if capacity else ["none", "idle:1", "idle:4", "time:7"]))
    window = draw(st.integers(1, 6))
    contests = ["frequent:1", "frequent:2", "frequent:2,16"] if evict.startswith("lfu") else []
    admit = draw(st.sampled_from(ADMITS + contests))
    return Dynamic(capacity=capacity, admit=admit, evict=evict, window=window)


@st.composite
def traces(draw):
    batches = draw(BATCHES)
    times = draw(st.lists(st.integers(-5, 40), min_size=len(batches), max_size=len(batches)))
    return batches, times


@every_kind
@given(dynamic=dynamics(), trace=traces(), num_unknown=st.integers(1, 3))
@settings(deadline=None, max_examples=examples(20))
def test_what_is_reported_is_what_changes(kind, dynamic, trace, num_unknown):
    table, rows = kind(dynamic, num_unknown), {}
    batches, times = trace
    for batch, resolved in zip(batches, replay(table, batches, times), strict=True):
        before = dict(rows)
        for key, row in zip(resolved.died_keys.tolist(), resolved.died.tolist(), strict=True):
            assert rows.pop(key) == row and key not in batch
        for key, row in zip(resolved.born_keys.tolist(), resolved.born.tolist(), strict=True):
            assert key not in before and row not in rows.values() and key in batch
            rows[key] = row
        assert resolved.born.tolist() == sorted(resolved.born.tolist())
        assert resolved.died.tolist() == sorted(resolved.died.tolist())
        ids = resolved.ids.tolist()
        assert all(id == rows.get(key, id) for key, id in zip(batch, ids, strict=True))
        assert all(2 <= id < 2 + num_unknown or key in rows for key, id in zip(batch, ids, strict=True))
        assert dynamic.capacity is None or len(rows) <= dynamic.capacity
    assert live(table) == rows and table.num_live == len(rows)


@every_kind
@given(dynamic=dynamics(), trace=traces(), stop=st.integers(0, 25), in_flight=st.integers(0, 4))
@settings(deadline=None, max_examples=examples(25))
def test_resuming_equals_going_on(kind, dynamic, trace, stop, in_flight):
    """Batches in flight are undone exactly, and it does not matter how early keys are fed."""
    batches, times = trace
    straight, stopped, resumed = kind(dynamic), kind(dynamic), kind(dynamic)
    expected = [in_full(resolved) for resolved in replay(straight, batches, times)]

    first = replay(
        stopped, batches, times, stop=min(stop, len(batches)), in_flight=in_flight, more=in_flight
    )
    assert [in_full(resolved) for resolved in first] == expected[: len(first)]

    resumed.load(stopped.state())
    rest = replay(resumed, batches, times)
    assert [in_full(resolved) for resolved in rest] == expected[stopped.num_trained :]
    assert plain(resumed.state()) == plain(straight.state())


@every_kind
@given(dynamic=dynamics(), trace=traces(), in_flight=st.integers(1, 4))
@settings(deadline=None, max_examples=examples(15))
def test_keys_are_found_as_of_the_batches_trained(kind, dynamic, trace, in_flight):
    table = kind(dynamic)
    replay(table, *trace, in_flight=in_flight)
    expected = live(table)
    ids = table.find(ints(*KEYS)).tolist()
    assert {key: id for key, id in zip(KEYS, ids, strict=True) if id >= table.first_id} == expected


@every_kind
@given(dynamic=dynamics(), trace=traces(), draw=st.randoms(use_true_random=False))
@settings(deadline=None, max_examples=examples(15))
def test_in_which_order_a_batch_lists_its_keys_does_not_matter(kind, dynamic, trace, draw):
    batches, times = trace
    shuffled = [draw.sample(batch, len(batch)) for batch in batches]
    listed, other = kind(dynamic), kind(dynamic)
    resolved = zip(replay(listed, batches, times), replay(other, shuffled, times), strict=True)
    assert all(in_full(a)[1:] == in_full(b)[1:] for a, b in resolved)
    assert plain(listed.state()) == plain(other.state())


@given(dynamic=dynamics(), trace=traces(), num_unknown=st.integers(1, 3), in_flight=st.integers(0, 4))
@settings(deadline=None, max_examples=examples(60))
def test_the_native_table_equals_the_reference(dynamic, trace, num_unknown, in_flight):
    reference, fast = ReferenceKeyTable(dynamic, num_unknown), KeyTable(dynamic, num_unknown)
    expected, real = (replay(table, *trace, in_flight=in_flight) for table in (reference, fast))
    assert [in_full(resolved) for resolved in real] == [in_full(resolved) for resolved in expected]
    assert plain(fast.state()) == plain(reference.state())
    assert fast.growth() == reference.growth()


LARGE = [
    Dynamic(capacity=5000, evict="lru"),
    Dynamic(capacity=2500, evict="lfu:5", admit="after:2"),
    Dynamic(capacity=1000, evict="lfu", admit="after:2,sketch"),
    Dynamic(capacity=500, evict="lfu:3", admit="frequent:1"),
    Dynamic(capacity=5000, evict="ahead", window=4),
    Dynamic(evict="idle:8"),
    Dynamic(evict="time:300", admit="probability:0.5"),
]


@pytest.mark.few(3)
@pytest.mark.parametrize("dynamic", LARGE, ids=lambda d: f"{d.evict} {d.admit} {d.capacity}")
def test_a_native_table_that_grows_and_turns_over_equals_the_reference(dynamic):
    """Enough keys that lines move, samples bound the order, and sketches turn."""
    generator = torch.Generator().manual_seed(5)
    reference, fast = ReferenceKeyTable(dynamic), KeyTable(dynamic)
    batches = []
    for number in range(24):
        popular = (torch.rand(300, generator=generator) ** 4 * 9000).long()
        fresh = torch.randint(0, 12_000, (500,), generator=generator) + 1000 * number
        batches.append([*popular.tolist(), *fresh.tolist()])
    times = [50 * number - 400 * (number % 7 == 0) for number in range(24)]
    expected, real = (replay(table, batches, times, in_flight=2) for table in (reference, fast))
    assert [in_full(resolved) for resolved in real] == [in_full(resolved) for resolved in expected]
    assert plain(fast.state()) == plain(reference.state()) and fast.growth()["evicted"] > 100
    resumed = KeyTable(dynamic)
    resumed.load(reference.state())
    assert plain(resumed.state()) == plain(reference.state())


@pytest.mark.parametrize("admit", ["first", "after:2,sketch", "ahead:1"])
@pytest.mark.parametrize("evict", ["lru", "lfu:4", "ahead", "idle:3", "time:40"])
def test_with_a_capacity_a_stream_of_any_length_takes_no_more_memory(evict, admit):
    """Keys of ten capacities, each read in two batches; the first two capacities fill the table."""
    capacity, size = 20_000, 4_000
    table = KeyTable(Dynamic(capacity=capacity, evict=evict, admit=admit, window=2))
    keys = torch.randperm(10 * capacity, generator=torch.Generator().manual_seed(0)) * 0x9E3779B97F4A7C1
    batches = [keys[max(begin - size, 0) : begin + size] for begin in range(0, len(keys), size)]
    bytes_ = []
    for number, batch in enumerate(batches):
        while table.wants() and table.num_fed < len(batches):
            table.feed(batches[table.num_fed])
        if table.num_fed == len(batches):
            table.end()
        table.resolve(batch, 10 * number)
        table.trained()
        bytes_.append(table.num_bytes)
    filled = 2 * capacity // size
    assert max(bytes_[filled:]) <= 1.05 * max(bytes_[:filled])
    assert table.num_live <= capacity and table.growth()["evicted"] > 7 * capacity


def test_keys_of_one_home_find_room():
    """Hashes can be inverted: keys may be chosen that all stand in the last line, and run past it."""
    keys = [unmixed(2**64 - 1 - n * 2**8) for n in range(4000)][::-1]
    table = KeyTable(Dynamic())
    assert replay(table, [keys])[0].ids.tolist() == list(range(3, 4003))
    assert table.find(ints(*keys)).tolist() == list(range(3, 4003))


def unmixed(hashed):
    """The key whose `mix64` is `hashed`, as an int64."""
    mask, x = 2**64 - 1, hashed
    for shift, factor in ((31, 0x94D049BB133111EB), (27, 0xBF58476D1CE4E5B9), (30, 1)):
        y = x
        while (more := x ^ (y >> shift)) != y:
            y = more
        x = y * pow(factor, -1, 2**64) & mask
    return x - 2**64 if x >= 2**63 else x


def test_counters_are_named():
    table = ReferenceKeyTable(Dynamic())
    assert table.state()["counters"].numel() == len(COUNTERS)


@pytest.mark.parametrize(
    "wrong, message",
    [
        ({"capacity": 0}, "capacity of dynamic ids must be from 1 to 2,147,483,647 rows, .* not 0"),
        ({"capacity": "10"}, "capacity of dynamic ids must be a whole number, not '10'"),
        ({"capacity": True}, "capacity of dynamic ids must be a whole number, not True"),
        ({"admit": "sometimes"}, "admit of dynamic ids must be 'first', .* not 'sometimes'"),
        ({"admit": "after:0"}, "admit of dynamic ids must be"),
        ({"admit": "after:300,sketch"}, "a sketch counts up to 255 reads"),
        ({"admit": "frequent:1", "evict": "lru", "capacity": 9}, "admit='frequent:1' needs evict='lfu'"),
        ({"admit": "probability:1.5"}, "a probability is above 0 and at most 1"),
        ({"admit": 3}, "admit of dynamic ids must be a text, not 3"),
        ({"evict": "lru"}, "evict='lru' needs capacity=ROWS: without one nothing is evicted"),
        ({"evict": "idle"}, "evict of dynamic ids must be 'none', .* not 'idle'"),
        ({"window": 0}, "window of dynamic ids must be from 1"),
        ({"partitions": 0}, "partitions of dynamic ids must be from 1 to 4,096, .* not 0"),
        ({"partitions": 4, "capacity": 3}, "not more than the capacity, not 4"),
    ],
)
def test_what_cannot_be_declared(wrong, message):
    with pytest.raises(ValueError, match=message) as error:
        Dynamic(**wrong)
    assert "\n" not in str(error.value)


def test_a_schema_is_stored_as_it_was_when_rows_could_be_declared_kept():
    """`keep` was refused by all that trains; it stays null in files, whose fingerprints hold."""
    schema = hotrows.Schema((hotrows.Sparse("user", dynamic=hotrows.Dynamic(capacity=9)),), label="y")
    fields = json.loads(schema.to_json())["features"][0]["dynamic"]
    assert list(fields) == ["capacity", "admit", "evict", "keep", "window"] and fields["keep"] is None
    assert hotrows.Schema.from_json(schema.to_json()) == schema
    with pytest.raises(ValueError, match="keep"):
        hotrows.Schema.from_json(schema.to_json().replace('"keep": null', '"keep": "file:rows"'))
