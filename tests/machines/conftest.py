"""Data, and a cache folder of each test's own."""

import pytest

from hotrows.data import prepare
from tests.support.runs import schema, write_rows


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    raw = write_rows(folder / "raw.csv", 2000)
    return prepare([raw], schema(), folder / "enc", split="position:0.8,0.1,0.1")
