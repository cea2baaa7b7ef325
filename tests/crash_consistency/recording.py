"""Plays scenarios in processes of their own, under the recorder."""

from __future__ import annotations

import atexit
import ctypes
import functools
import json
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
    """Plays the scenario in `folder`, on the files that its preparation makes there.

    `after` is a copy of what it leaves.
    """
    from tests.crash_consistency.scenarios import SCENARIOS

    root, log, before = folder / "root", folder / "log", folder / "before"
    if not log.exists():
        root.mkdir(parents=True, exist_ok=True)
        SCENARIOS[scenario].prepare(root)
        shutil.copytree(root, before)
        player = _player()
        print(json.dumps([scenario, str(root), str(log)]), file=player.stdin, flush=True)
        assert player.stdout.readline() == "0\n", f"scenario {scenario} failed"
        shutil.copytree(root, folder / "after")
    return Recording(log.read_bytes(), root, before, drop)


@functools.cache
def _player() -> subprocess.Popen[str]:
    """A process under the recorder that plays scenarios, each in a fork of it."""
    command, preload = [sys.executable, "-m", "tests.crash_consistency.scenarios"], str(recorder())
    player = subprocess.Popen(
        command, env={**os.environ, "LD_PRELOAD": preload}, text=True, stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )  # fmt: skip
    atexit.register(player.communicate)  # it ends where its input does
    return player


def run_recorded(command: list[str], root: Path, log: Path) -> None:
    """Runs a command, whose changes below `root` go to `log`."""
    recording = {"LD_PRELOAD": str(recorder()), "RECORD_ROOT": str(root), "RECORD_LOG": str(log)}
    subprocess.run(command, check=True, env={**os.environ, **recording})


def say(text: str) -> None:
    """Notes in the recording that something is done; a crash after it must not lose it."""
    ctypes.CDLL(None).record_mark(text.encode())


def record_here(root: str, log: str) -> None:
    """From now on this process is recorded, if it runs under the recorder."""
    ctypes.CDLL(None).record_into(root.encode(), log.encode())
