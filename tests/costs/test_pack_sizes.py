"""Into how many parts packs are split."""

from hypothesis import given
from hypothesis import strategies as st

from hotrows.train.costs.placement import balance


def test_a_pack_far_above_the_mean_is_split_evenly():
    assert balance([1, 1, 10]) == (1, 1, 3)  # the mean is 4
    assert balance([4, 4, 4]) == (1, 1, 1)
    assert balance([7]) == (1,) and balance([]) == () and balance([0, 0]) == (1, 1)


@given(st.lists(st.floats(0, 1e9), min_size=1, max_size=20))
def test_no_part_is_far_above_the_mean(volumes):
    mean = sum(volumes) / len(volumes)
    for size, parts in zip(volumes, balance(volumes), strict=True):
        assert parts >= 1 and size / parts <= 1.5 * mean * (1 + 1e-9)
