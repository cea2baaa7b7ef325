"""Checks of the core (csrc/check.h) end a process that breaks what they say; other builds have none.

They must also bite: each of `MUTATIONS` breaks one line of the core, and a check finds it as tests run.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests import sanitizers

build = sanitizers.csrc_build()
pytestmark = pytest.mark.skipif(shutil.which(build.COMPILER) is None, reason="needs a C++ compiler")

PROBE = """
import ctypes, sys
probe = ctypes.CDLL(sys.argv[1]).hotrows_probe
print(probe(ctypes.c_int64(7), ctypes.c_int64(int(sys.argv[2]))))
"""


def run_probe(library: Path, holds: int) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", PROBE, str(library), str(holds)]
    return subprocess.run(command, capture_output=True, text=True)


def test_a_condition_that_does_not_hold_ends_the_process(tmp_path):
    build.compile_library([sanitizers.HERE / "probe.cpp"], tmp_path / "probe.so", build.CHECKS)
    assert run_probe(tmp_path / "probe.so", holds=1).stdout == "1\n"
    ended = run_probe(tmp_path / "probe.so", holds=0)
    assert ended.returncode < 0 and not ended.stdout
    assert "probe.cpp:6: CHECK(++evaluated && holds, n) does not hold 7" in ended.stderr


def test_without_the_option_nothing_is_evaluated(tmp_path):
    build.compile_library([sanitizers.HERE / "probe.cpp"], tmp_path / "probe.so", [])
    assert run_probe(tmp_path / "probe.so", holds=0).stdout == "0\n"


@dataclass(frozen=True)
class Mutation:
    """A line of a file of the core that is replaced. sources: what `tests` need, by name."""

    file: str
    line: str
    by: str
    sources: tuple[str, ...]
    tests: tuple[str, ...]


STORE = ("rows", "file_index", "file_fetch", "file_dense")
SLOTS, KEYS, FILES = ("tests/planning/test_slots.py",), ("tests/keys",), ("tests/storage/test_file.py",)
DEFERRED = ("deferred", "planning"), ("tests/ops/test_deferred.py",)
TEXT = ("tests/data/test_vocabulary.py",)
READING = ("text", "canonical", "counts", "vocabulary", "loader", "clusters")
MUTATIONS = (
    Mutation("slots.cpp", "if (listed) --idle_[slot.wanted].live;", "", ("slots",), SLOTS),
    Mutation("slot_lists.h", "end_ = after(end_, 1);", "end_ = after(end_, 2);", ("slots",), SLOTS),
    Mutation("row_table.h", "hole < from && from", "hole <= from && from", ("slots",), SLOTS),
    Mutation("file_index.cpp", "(*entry & mask_) < rest)", "(*entry & mask_) <= rest)", STORE, FILES),
    Mutation("file_fetch.cpp", "last.last = i + 1;", "last.last = i;", STORE, FILES),
    Mutation("file_dense.cpp", "records + i++ * stride", "records + i * stride", STORE, FILES),
    Mutation("keys.cpp", "ahead) num_unread_ -=", "none) num_unread_ -=", ("keys",), KEYS),
    Mutation("keyed_records.h", "      --lines[i].passed;\n", "", ("keys",), KEYS),
    Mutation("key_window.h", "key.first = oldest.next;", "key.first = key.last;", ("keys",), KEYS),
    Mutation("key_order.h", "    --num_items_;\n", "", ("keys",), KEYS),
    Mutation("deferred.cpp", "= static_cast<int32_t>(target.now);", "= 0;", *DEFERRED),
    Mutation("deferred.cpp", "(std::max(kChunk, dim)", "(std::min(kChunk, dim)", *DEFERRED),
    Mutation("table.h", "room_ = size * 5 / 8;", "room_ = size;", READING, TEXT),
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.file)
def test_a_check_finds_a_line_that_is_wrong(mutation, tmp_path):
    sources = shutil.copytree(sanitizers.ROOT / "csrc", tmp_path / "csrc")
    text = (sources / mutation.file).read_text()
    assert text.count(mutation.line) == 1
    (sources / mutation.file).write_text(text.replace(mutation.line, mutation.by))
    core = tmp_path / "core.so"
    names = "machine", "codes", *mutation.sources
    level = list(build.levels_of_machine().values())[-1]
    build.compile_library([sources / f"{name}.cpp" for name in names], core, [*level, *build.CHECKS])
    # What the core says on standard error must get out of a process that it ends.
    pytest = "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--capture=sys"
    done = subprocess.run(
        [sys.executable, *pytest, *mutation.tests],
        env={**os.environ, "HOTROWS_CHECKED_CORE": str(core)},
        cwd=sanitizers.ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode != 0
    assert ") does not hold" in done.stdout + done.stderr, (done.stdout + done.stderr)[-2000:]
