"""The sanitizers find what was planted, say nothing of what is right, and nothing of the core."""

import subprocess

import pytest

from tests import sanitizers
from tests.sanitizers import SANITIZERS

PLANTED = {
    "address": {"read_behind": "heap-buffer-overflow"},
    "undefined": {"shift": "shift exponent 64 is too large"},
    "thread": {"sum_of_all": "data race"},
}
PLANTED["both"] = PLANTED["address"] | PLANTED["undefined"]
READING = ("text", "canonical", "counts", "vocabulary", "loader", "machine", "codes")
TRAINING = ("planning", "slots", "rows", "file_*", "interaction", "dropout", "relu")
CALLS = """
import ctypes, sys
library = ctypes.CDLL(sys.argv[1])
for name in sys.argv[3:]:
    print(getattr(library, "hotrows_" + name)(ctypes.c_int64(64), ctypes.c_int64(int(sys.argv[2]))))
"""


@pytest.mark.parametrize("kind", SANITIZERS)
def test_a_planted_fault_is_found_and_its_twin_is_not(kind, tmp_path):
    if reason := sanitizers.why_not(kind):
        pytest.skip(reason)
    library = tmp_path / "planted.so"
    sanitizers.compile_library(kind, [sanitizers.HERE / "planted.cpp"], library)

    def reports(has_fault, *names):
        folder = tmp_path / f"reports-{has_fault}"
        command = sanitizers.command(kind, "-c", CALLS, str(library), str(has_fault), *names)
        environment = sanitizers.environment(kind, folder)
        done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
        return sanitizers.found(folder, done.stderr)

    assert reports(0, *(name for planted in PLANTED.values() for name in planted)) == []
    found = "".join(reports(1, *PLANTED[kind]))
    for said in PLANTED[kind].values():
        assert said in found
    assert "planted.cpp" in found


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["both", "thread"])
def test_nothing_is_found_where_data_is_prepared_and_threads_train(kind, tmp_path):
    """`python -m tests.sanitizers KIND` runs all tests of the core; here one way through it."""
    if reason := sanitizers.why_not(kind):
        pytest.skip(reason)
    trains = kind == "thread"
    sources = READING + TRAINING * trains
    package = sanitizers.copy_package(kind, tmp_path, sources, optimize="-O0")
    command = ["-m", "tests.sanitizers.drive", str(tmp_path), *["train"] * trains]
    done = subprocess.run(
        sanitizers.command(kind, *command),
        env=sanitizers.environment(kind, tmp_path / "reports", package),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert sanitizers.found(tmp_path / "reports", done.stderr) == []
