"""Sizes of packs, groups and micro-batches."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotrows.costs.pack_sizes import balance, group, group_capacity, micro_batch_size, volume

volumes = st.lists(st.floats(0, 1e9), min_size=1, max_size=20)


def test_volume_is_ids_times_dims_by_frequency():
    assert volume(1000, [(16, 0.5), (16, 0.1), (64, 0.4)]) == pytest.approx(1000 * (8 + 1.6 + 25.6))


def test_a_pack_far_above_the_mean_is_split_evenly():
    assert balance([1, 1, 10]) == (1, 1, 3)  # the mean is 4
    assert balance([4, 4, 4]) == (1, 1, 1)
    assert balance([1, 1, 10], far_above=3) == (1, 1, 1)
    assert balance([7]) == (1,) and balance([]) == () and balance([0, 0]) == (1, 1)


@given(volumes)
def test_no_part_is_far_above_the_mean(given_volumes):
    mean = sum(given_volumes) / len(given_volumes)
    for size, parts in zip(given_volumes, balance(given_volumes), strict=True):
        assert parts >= 1 and size / parts <= 1.5 * mean * (1 + 1e-9)


def test_a_micro_batch_is_bound_by_its_scarcest_resource():
    bounds = {"memory": 1000.0, "link": 500.0}
    assert micro_batch_size(bounds, {"memory": 3.0, "link": 1.0}) == 333
    assert micro_batch_size(bounds, {"memory": 1.0, "link": 1.0}) == 500
    assert micro_batch_size(bounds, {"memory": 5000.0}) == 1
    assert group_capacity(bounds, {"memory": 4.0, "link": 0.0}) == 250
    with pytest.raises(ValueError, match="no bound on it"):
        micro_batch_size({}, {"memory": 1.0})
    with pytest.raises(ValueError, match="nothing bounds the size"):
        micro_batch_size(bounds, {"memory": 0.0})


def test_packs_fill_groups_in_order():
    assert group([3, 3, 3, 9, 1], capacity=6) == ((0, 1), (2,), (3,), (4,))
    assert group([], capacity=1) == ()


@given(volumes, st.floats(1, 1e9))
def test_groups_hold_every_pack_once_and_no_more_than_fits(given_volumes, capacity):
    groups = group(given_volumes, capacity)
    assert [pack for packs in groups for pack in packs] == list(range(len(given_volumes)))
    for packs in groups:
        assert len(packs) == 1 or sum(given_volumes[pack] for pack in packs) <= capacity
