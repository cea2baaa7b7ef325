"""Sizes of packs, groups and micro-batches."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotrows.train.costs.pack_sizes import balance, micro_batch_size, parts_of, volume

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
    assert micro_batch_size(bounds, {"memory": 4.0, "link": 0.0}) == 250
    with pytest.raises(ValueError, match="no bound on it"):
        micro_batch_size({}, {"memory": 1.0})
    with pytest.raises(ValueError, match="nothing bounds the size"):
        micro_batch_size(bounds, {"memory": 0.0})


def test_packs_have_parts_of_about_an_equal_share_of_the_volume():
    assert parts_of([10], 4, [26]) == (4,) and parts_of([10], 4, [3]) == (3,)
    assert parts_of([9, 1], 2, [5, 5]) == (2, 1) and parts_of([5, 5], 4, [9, 9]) == (2, 2)
    assert parts_of([0, 0], 2, [1, 1]) == (1, 1) and parts_of([], 2, []) == ()
    assert parts_of([3, 7], 1, [9, 9]) == (1, 1)
