"""Tiers of tests by measured time: the first answers in minutes, the second is for what a change touches.

A test whose slowest case took more than LONG seconds, in the median of the runs that tests/times.json
was written from (`python -m tests.times`), is of the second tier: `--touched` runs those that are near to
what has changed, `--all` every one. So a new test is of the first tier until it was measured.
"""

import json
import os
import subprocess
from functools import cache
from pathlib import Path

from tests.mutants.nearest import Nearest

ROOT = Path(__file__).parents[2]
TIMES = ROOT / "tests" / "times.json"
WITH_LONG = "HOTROWS_TEST_LONG"  # also in processes that tests start
TOUCHED = "HOTROWS_TEST_TOUCHED"  # the commit from which on changes count, where no other branch says it
only_touched = False  # of this process: `--touched`
LONG = 1.0
NEAR = 8  # test files for each file that changed
# What any test may depend on.
EVERYWHERE = ("pyproject.toml", "constraints.txt", "CMakeLists.txt", "tests/conftest.py", "tasks.py")
BEFORE = 20  # commits, where no other branch says what is new


@cache
def long_tests():
    """The tests of the second tier, by the path of their file and their name."""
    times = json.loads(TIMES.read_text()) if TIMES.exists() else {}
    return {test for test, (_, slowest) in times.items() if slowest > LONG}


def is_long(item):
    return item.nodeid.partition("[")[0] in long_tests()


@cache
def touched():
    """The test files that are near to what changed; None: all, as nobody can say what changed."""
    base = _base()
    changed = base and _git("diff", "--name-only", base)
    if changed is None or any(path in EVERYWHERE for path in changed.split()):
        return None
    nearest = Nearest(ROOT)
    known = {*nearest.modules.values()}
    files = set()
    for path in changed.split():
        if path in known or (path.startswith("csrc") and (ROOT / path).suffix in (".cpp", ".h")):
            files.update(nearest.tests(path, NEAR) if (ROOT / path).exists() else ())
        if path in known and Path(path).name.startswith("test_"):
            files.add(path)
    return files


def is_touched(item):
    files = touched()
    return files is None or item.nodeid.partition("::")[0] in files


def _base():
    main, head = _git("merge-base", "HEAD", "origin/main"), _git("rev-parse", "HEAD")
    if main and main != head:
        return main.strip()
    return os.environ.get(TOUCHED) or _git("rev-parse", "--verify", "--quiet", f"HEAD~{BEFORE}")


def _git(*command):
    """What git prints; None if it fails or is not there."""
    try:
        done = subprocess.run(["git", *command], cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()
