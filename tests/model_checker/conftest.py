"""The model needs a C++ compiler; without one its tests are skipped, and say so."""

import pytest

from tests.model_checker import explorer


@pytest.fixture(autouse=True)
def compiled():
    if (reason := explorer.missing()) is not None:
        pytest.skip(reason)
