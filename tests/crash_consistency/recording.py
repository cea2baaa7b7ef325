"""Runs a scenario in a process of its own, under the recorder."""

from __future__ import annotations

import ctypes
import functools
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.crash_consistency.disk import Recording

_SOURCE = Path(__file__).with_name("record.c")


@functools.cache
def recorder() -> Path | None:
    """The built recorder; None on systems that are not Linux, or have no C compiler."""
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if not sys.platform.startswith("linux") or compiler is None:
        return None
    library = Path(tempfile.mkdtemp(prefix="hotrows-recorder-")) / "record.so"
    subprocess.run([compiler, "-O1", "-shared", "-fPIC", "-o", library, _SOURCE, "-ldl"], check=True)
    return library


def record(scenario: str, folder: Path, drop: str = "") -> Recording:
    """Runs the scenario in `folder`, on the files that its preparation makes there."""
    root, log, before = folder / "root", folder / "log", folder / "before"
    if not log.exists():
        command = [sys.executable, "-m", "tests.crash_consistency.scenarios", scenario, str(root)]
        subprocess.run([*command, "prepare"], check=True)
        shutil.copytree(root, before)
        run_recorded([*command, "act"], root, log)
    return Recording(log.read_bytes(), root, before, drop)


def run_recorded(command: list[str], root: Path, log: Path) -> None:
    """Runs a command, whose changes below `root` go to `log`."""
    recording = {"LD_PRELOAD": str(recorder()), "RECORD_ROOT": str(root), "RECORD_LOG": str(log)}
    subprocess.run(command, check=True, env={**os.environ, **recording})


def say(text: str) -> None:
    """Notes in the recording that something is done; a crash after it must not lose it."""
    ctypes.CDLL(None).record_mark(text.encode())
