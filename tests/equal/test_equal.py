"""Random ways of training, beside the plain one."""

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.equal.machine import Equalities
from tests.support.choice import examples

pytestmark = pytest.mark.usefixtures("one_thread", "no_pictures")


def test_any_way_of_training_ends_with_the_bits_of_the_plain_one(tmp_path_factory):
    Equalities.folder = tmp_path_factory.mktemp("equal")
    how = settings(
        max_examples=examples(60, 20),
        stateful_step_count=4,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(Equalities, settings=how)
