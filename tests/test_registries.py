"""A kind that is added is in the lists that tests run over: where one lacks it, this test says which."""

import pytest

from hotrows import models, optim
from hotrows.engine.planning import policy
from tests.checkpoint import test_checkpoint_convert, test_checkpoint_ranks
from tests.engine import test_caching, test_dense_rows
from tests.models.looked_up import SMALL
from tests.ops import test_ops
from tests.ops.triton import cases
from tests.support.cached import POLICIES

DENSE = {name for name, kind in optim.BY_NAME.items() if hasattr(kind, "deferred")}
LAZY = set(optim.BY_NAME) - DENSE


@pytest.mark.parametrize(
    ("known", "place", "listed"),
    [
        (LAZY, "tests/ops/test_ops.py", test_ops.OPTIMIZERS),
        (LAZY, "tests/ops/triton/cases.py", cases.OPTIMIZERS),
        (LAZY, "tests/engine/test_caching.py", test_caching.OPTIMIZERS),
        (LAZY, "tests/checkpoint/test_checkpoint_ranks.py", test_checkpoint_ranks.OPTIMIZERS),
        (LAZY, "tests/checkpoint/test_checkpoint_convert.py", test_checkpoint_convert.OPTIMIZERS),
        (DENSE, "tests/engine/test_dense_rows.py", test_dense_rows.OPTIMIZERS),
        (set(policy._KINDS), "tests/support/cached.py", POLICIES),
        (set(models.BY_NAME), "tests/models/looked_up.py", SMALL),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_every_kind_is_in_the_lists_of_tests(known, place, listed):
    """A row optimizer was tested behind caches, on ranks and in columns only if somebody remembered."""
    names = {getattr(one, "kind", one) for one in listed}
    assert not known - names, f"{place} lacks {sorted(known - names)}"
