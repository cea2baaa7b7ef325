"""Prepared data, and events like those that it was prepared from."""

import pytest

from tests.support.runs import encode, write_rows


@pytest.fixture(scope="package")
def data(tmp_path_factory):
    return encode(tmp_path_factory.mktemp("prepared"))


@pytest.fixture(scope="package")
def lines(tmp_path_factory):
    """A header, and 900 lines of events."""
    path = write_rows(tmp_path_factory.mktemp("events") / "events.csv", rows=900, seed=7)
    return path.read_text().splitlines(keepends=True)


@pytest.fixture(autouse=True)
def quick(no_pictures, one_thread):
    """Small steps on one thread, and no picture of a run."""
