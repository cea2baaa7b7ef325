"""Folders that hold what nobody expects: foreign files, links, folders for files, unreadable ones."""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path

from tests.faults.kinds.damage import READERS
from tests.faults.trials import Trial
from tests.faults.worlds import TRAININGS

_NOBODY = 65534
_FOREIGN = ("notes.txt", ".DS_Store", "step-7", "step-7.part", "x.part", "lock", "group-9", "log-77")


def folder(trial: Trial) -> str:
    """One hostile thing in data, run or store; then a command that reads or goes on."""
    choose = trial.choose
    training = choose.choice(list(TRAININGS))
    job = choose.choice([training, training, *READERS[:-1]])
    if job.startswith("checkpoint") and training == "train in a file store":
        training = "train in memory"
    trial.note(f"{job}, on {training}")
    world = trial.world
    world.put(world.stopped(training) if job in TRAININGS else world.undisturbed(training).folder)
    kept = _make_hostile(trial)
    ended = trial.command(job, before=_as_nobody).end()
    if kept is not None:
        assert kept.read_text() == "not yours", f"{kept} was changed"
    if not ended.is_done:
        return "refused"
    trial.compare(ended, job, training, log=False)  # metrics.jsonl is for people, and may be struck
    return "equal"


def _make_hostile(trial: Trial) -> Path | None:
    """Gives the foreign file that must stay, if one was added."""
    choose = trial.choose
    os.chmod(trial.here, 0o777)
    for path in trial.here.rglob("*"):
        os.chmod(path, 0o777 if path.is_dir() else 0o666)
    everything = sorted(trial.here.rglob("*"))
    if choose.random() < 0.3:
        parent = choose.choice([path for path in everything if path.is_dir()])
        path = parent / choose.choice(_FOREIGN)
        if path.exists():
            return None
        if choose.random() < 0.5:
            path.mkdir()
            trial.struck(f"{path.relative_to(trial.here)}: a foreign folder")
            return None
        path.write_text("not yours")
        os.chmod(path, 0o666)
        trial.struck(f"{path.relative_to(trial.here)}: a foreign file")
        return path if "checkpoints" not in path.parts and path.name == "notes.txt" else None
    path = choose.choice(everything)
    was = "folder" if path.is_dir() else "file"
    becomes = choose.choice(["folder", "file", "loop", "dangling", "unreadable", "unwritable", "null"])
    trial.struck(f"{path.relative_to(trial.here)}: a {was} becomes {becomes}")
    if becomes in ("unreadable", "unwritable"):
        os.chmod(path, 0 if becomes == "unreadable" else 0o555)
        return None
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    if becomes == "folder":
        path.mkdir()
        os.chmod(path, 0o777)
    elif becomes == "file":
        path.write_bytes(b"")
        os.chmod(path, 0o666)
    else:
        path.symlink_to({"loop": path.name, "dangling": "nowhere/at/all", "null": "/dev/null"}[becomes])
    return None


def _as_nobody() -> None:
    """As a user whom permissions hold."""
    if os.geteuid() == 0:
        with contextlib.suppress(PermissionError):
            os.setgroups([])
            os.setgid(_NOBODY)
            os.setuid(_NOBODY)
