"""Marks of tests that a version of a package decides."""

from importlib.metadata import version

import pytest

suggests = pytest.mark.skipif(
    tuple(map(int, version("click").split(".")[:2])) < (8, 4), reason="click 8.4 suggests names"
)
