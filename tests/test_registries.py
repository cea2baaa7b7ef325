"""A kind that is added is in the lists that tests run over: where one lacks it, this test says which."""

from importlib import import_module

import pytest

from hotrows import models, optim
from hotrows.engine.planning import policy

DENSE = {name for name, kind in optim.BY_NAME.items() if hasattr(kind, "deferred")}
LAZY = set(optim.BY_NAME) - DENSE


@pytest.mark.parametrize(
    ("known", "place", "listed"),
    [
        (LAZY, "tests.ops.test_ops", "OPTIMIZERS"),
        (LAZY, "tests.ops.triton.cases", "OPTIMIZERS"),
        (LAZY, "tests.engine.test_caching", "OPTIMIZERS"),
        (LAZY, "tests.checkpoint.test_checkpoint_ranks", "OPTIMIZERS"),
        (LAZY, "tests.checkpoint.test_checkpoint_convert", "OPTIMIZERS"),
        (DENSE, "tests.engine.test_dense_rows", "OPTIMIZERS"),
        (set(policy._KINDS), "tests.support.cached", "POLICIES"),
        (set(models.BY_NAME), "tests.models.looked_up", "SMALL"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_every_kind_is_in_the_lists_of_tests(known, place, listed):
    """A row optimizer was tested behind caches, on ranks and in columns only if somebody remembered."""
    names = {getattr(one, "kind", one) for one in getattr(import_module(place), listed)}
    assert not known - names, f"{place} lacks {sorted(known - names)}"
