"""The recorder, a library that is loaded into a process before all else, and what it is asked there."""

from __future__ import annotations

import ctypes
import functools
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

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


def run_with_recorder(*arguments: str) -> None:
    """Runs Python in a process that may record what it changes."""
    environment = {**os.environ, "LD_PRELOAD": str(recorder())}
    subprocess.run([sys.executable, *arguments], check=True, env=environment)


def record_into(root: Path, log: Path) -> None:
    """Records what this process changes below `root` from now on."""
    ctypes.CDLL(None).record_into(os.fsencode(root), os.fsencode(log))


def say(text: str) -> None:
    """Notes in the recording that something is done; a crash after it must not lose it."""
    ctypes.CDLL(None).record_mark(text.encode())
