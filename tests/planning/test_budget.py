"""How fast memory is written and divided."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotrows.engine.planning.packing import Group
from hotrows.engine.planning.slot_budget import divide
from hotrows.runtime.settings import SPLITS
from hotrows.runtime.units import format_bytes, parse_bytes


def group(rows, stride, lookups=1):
    return Group(packs=(0,), rows=rows, strides=(stride,), lookups=lookups)


@pytest.mark.parametrize(
    ("text", "size"),
    [("1000000", 10**6), ("64MiB", 2**26), ("2 gib", 2**31), ("1.5KiB", 1536), ("3MB", 3 * 10**6)],
)
def test_sizes_are_read_with_and_without_a_unit(text, size):
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "MiB", "-1", "1 MiB 2", "10%", "1e9", "5 parsecs"])
def test_what_is_no_size_is_refused(text):
    with pytest.raises(ValueError, match=r"such as 64MiB, 1.5GB or 1000000, not "):
        parse_bytes(text)


def test_sizes_are_written_to_be_read():
    sizes = (12, 2**26, 3 * 2**29, 2**40)
    assert [format_bytes(n) for n in sizes] == ["12 bytes", "64 MiB", "1.5 GiB", "1 TiB"]


def test_bytes_are_shared_by_what_a_sample_reads():
    assert divide(1000, [group(10**6, 10, lookups=3), group(10**6, 10)]) == [75, 25]
    assert divide(1000, [group(10**6, 30), group(10**6, 10)]) == [25, 25]


def test_bytes_are_shared_by_rows_or_evenly_where_asked():
    groups = [group(3000, 10, lookups=9), group(1000, 10)]
    assert divide(4000, groups, "reads") == [360, 40]
    assert divide(4000, groups, "rows") == [300, 100]
    assert divide(4000, groups, "even") == [200, 200]


def test_what_a_small_group_cannot_use_goes_on_to_the_others():
    assert divide(1000, [group(5, 10), group(10**6, 10), group(10**6, 10)]) == [5, 48, 47]
    assert divide(10**9, [group(5, 10), group(7, 10)]) == [5, 7]


def test_every_group_has_a_slot_or_the_least_is_named():
    assert divide(1004, [group(9, 4, lookups=1000), group(9, 1000)]) == [1, 1]
    with pytest.raises(ValueError, match=r"every group of tables, 1,004 bytes at least"):
        divide(1003, [group(9, 4), group(9, 1000)])


groups = st.builds(group, st.integers(1, 500), st.integers(1, 60), st.integers(1, 30))


@given(st.lists(groups, min_size=1, max_size=6), st.integers(0, 50_000), st.sampled_from(SPLITS))
def test_the_budget_is_kept_and_used_up(groups, extra, split):
    fast_memory = sum(g.stride for g in groups) + extra
    slots = divide(fast_memory, groups, split)
    used = sum(n * g.stride for n, g in zip(slots, groups, strict=True))
    assert used <= fast_memory
    for n, g in zip(slots, groups, strict=True):
        assert 1 <= n <= g.rows
        assert n == g.rows or fast_memory - used < g.stride
