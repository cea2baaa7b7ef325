"""Errors of differences of AUC between two models."""

import numpy as np
import pytest
from benchmarks.paired import auc_of, difference, error_of, placed


def test_shares_of_samples_in_order_average_to_auc():
    labels = np.array([0, 1, 0, 1])
    shares = placed(np.array([0.1, 0.2, 0.2, 0.3]), labels)
    assert shares.tolist() == [1, 0.75, 0.75, 1] and auc_of(np.arange(4), labels) == 0.75


@pytest.mark.parametrize("is_one_test", [False, True])
def test_the_error_of_a_difference_is_that_of_a_bootstrap(is_one_test):
    rng = np.random.default_rng(0)
    labels = (rng.random(2000) < 0.3).astype(int)
    first, second = labels + rng.normal(0, 1, (2, 2000)) + rng.normal(0, 1, 2000)
    drawn = rng.integers(0, 2000, (200, 2000))
    apart = [
        auc_of(first[chosen], labels[chosen]) - auc_of(second[chosen], labels[chosen]) for chosen in drawn
    ]
    figures = difference([first] * 2, [second] * 2, [labels] * 2, is_one_test)
    assert figures["auc"] == pytest.approx(auc_of(first, labels) - auc_of(second, labels), abs=1e-5)
    assert figures["error"] * (1 if is_one_test else 2**0.5) == pytest.approx(np.std(apart), rel=0.15)
    assert error_of(placed(first, labels), labels) > figures["error"]
