"""Files that earlier versions wrote are read: docs/stability.md promises it. `make.py` wrote them."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from hotrows.data import EncodedData
from tests.golden import make

FOLDER = Path(__file__).parent
VERSIONS = sorted(path.name for path in FOLDER.iterdir() if (path / "expected.json").exists())
MOST_BYTES = 300_000  # of a version
CLOSE = {"rtol": 1e-4, "atol": 1e-5}  # machines differ by rounding

pytestmark = [
    pytest.mark.usefixtures("one_thread", "no_pictures"),
    pytest.mark.filterwarnings("ignore:test. log loss"),  # few samples
]


@pytest.fixture(params=VERSIONS)
def golden(request, tmp_path):
    """A copy of the files of a version, and what it said of them."""
    folder = tmp_path / "golden"
    shutil.copytree(FOLDER / request.param, folder)
    return folder, json.loads((folder / "expected.json").read_text())


def test_there_are_files_of_a_version_and_they_are_small():
    assert VERSIONS
    for version in VERSIONS:
        files = [file for file in (FOLDER / version).rglob("*") if file.is_file()]
        assert sum(file.stat().st_size for file in files) <= MOST_BYTES
        for file in files:
            assert not any(word in file.read_bytes() for word in (b"/tmp/", b"/home/", b"/root/")), file
        assert list((FOLDER / version).rglob("pack-*.ids")), "no increment"


def test_data_bundle_delta_and_checkpoint_say_what_they_said(golden):
    folder, expected = golden
    data = EncodedData.open(folder / "data")
    assert {name: part.rows for name, part in data.parts.items()} == expected["rows"]
    found = make.answers(folder)
    np.testing.assert_allclose(found["predicted"], expected["predicted"], **CLOSE)
    np.testing.assert_allclose(found["base"], expected["base"], **CLOSE)
    assert found["newest"]["version"] == expected["newest"]["version"] > 1
    np.testing.assert_allclose(found["newest"]["scores"], expected["newest"]["scores"], **CLOSE)
    assert np.abs(np.subtract(expected["base"], expected["newest"]["scores"])).max() > 0.01


def test_a_run_goes_on(golden):
    folder, expected = golden
    found = make.resumed(folder / "run", folder / "data")
    assert found["steps"] == expected["resumed"]["steps"] > expected["stopped_at"]
    np.testing.assert_allclose(found["log_loss"], expected["resumed"]["log_loss"], rtol=1e-3)
    np.testing.assert_allclose(found["auc"], expected["resumed"]["auc"], atol=0.02)


def test_a_wrong_row_would_be_noticed(golden):
    folder, expected = golden
    table = folder / "published" / "base-0000000001" / "tables" / "user.npy"
    rows = np.load(table)
    np.save(table, rows + 1)
    with pytest.raises((AssertionError, ValueError)):
        np.testing.assert_allclose(make.answers(folder)["base"], expected["base"], **CLOSE)
