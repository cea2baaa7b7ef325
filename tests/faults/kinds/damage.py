"""Damaged bytes in every file of data, of runs and of stores: no reader gives another result unasked."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

from tests.faults.trials import Trial, same
from tests.faults.worlds import DESCRIBE, TRAININGS
from tests.fuzz.damage import damaged_json

READERS = ("predict", "eval", "export", "checkpoint merge", "inspect")
_IN_A_STORE = "train in a file store"


def data(trial: Trial) -> str:
    """Prepared data: `describe --verify`, `eval --data` and training on them."""
    world = trial.world
    job = trial.choose.choice(["describe", "describe", "eval", "eval", "train"])
    if job == "train":
        words = [
            w if w != str(trial.world.data) else "data" for w in trial.world.words("train in memory")
        ]
        expected = trial.world.undisturbed("train in memory").result
    elif job == "eval":
        world.put(world.undisturbed("train in memory").folder)
        words = ["eval", "run", "--data", "data", "--json"]
        expected = trial.world.undisturbed("eval").result
    else:
        words = DESCRIBE
        expected = trial.world.described
    shutil.copytree(world.data, trial.here / "data")
    damage(trial, trial.here / "data", lambda: world.other_data)
    ended = trial.run(*words)
    if not ended.is_done:
        return "refused"
    if job == "train":
        same(trial.world.result("train in memory"), expected)
    else:
        same(ended.out, expected)
    return "equal"


def run(trial: Trial) -> str:
    """A finished run, and what reads it."""
    run_of, job = trial.choose.choice(list(TRAININGS)), trial.choose.choice(READERS)
    if run_of == _IN_A_STORE and job.startswith("checkpoint"):
        run_of = "train in memory"
    trial.world.put(trial.world.undisturbed(run_of).folder)
    damage(trial, trial.here / "run", lambda: trial.world.undisturbed(run_of, seed=4).folder / "run")
    if job == "inspect":
        ended = trial.run("checkpoint", "inspect", "run", "--verify", "--json")
        return "equal" if ended.is_done else "refused"
    ended = trial.run(*trial.world.words(job))
    if not ended.is_done:
        return "refused"
    trial.compare(ended, job, run_of)
    return "equal"


def resume(trial: Trial) -> str:
    """A run that was stopped in its middle, and goes on."""
    return _resumed(trial, trial.choose.choice(list(TRAININGS)), "run")


def store(trial: Trial) -> str:
    """A file store whose run was stopped, and goes on, or is read."""
    return _resumed(trial, _IN_A_STORE, "rows")


def _resumed(trial: Trial, training: str, damaged: str) -> str:
    eighth = trial.choose.randint(2, 7)  # stores then have logs and journals of several kinds
    trial.note(f"{training}, stopped after {eighth} eighths of its changes of the disk")
    trial.world.put(trial.world.stopped(training, eighth=eighth))
    stopped = partial(trial.world.stopped, training, seed=4, eighth=eighth)
    damage(trial, trial.here / damaged, lambda: stopped() / damaged)
    ended = trial.command(training).end()
    if not ended.is_done:
        return "refused"
    trial.compare(ended, training, log=False)  # metrics.jsonl is for people
    return "equal"


def damage(trial: Trial, folder: Path, other: Callable[[], Path]) -> None:
    """Damages one file of a folder; other: gives an equal folder of another seed."""
    choose = trial.choose
    files = sorted(file for file in folder.rglob("*") if file.is_file() and file.suffix != ".svg")
    file = choose.choice(files)
    content = file.read_bytes()
    kind = choose.choice(_OF_A_BASE if file.name.startswith("base-") else [*_KINDS])
    if file.suffix == ".json" and choose.random() < 0.7:
        kind = choose.choice(["field", "digit"])
    changed = content
    if kind == "other":
        file_of_other = other() / file.relative_to(folder)
        changed = (
            file_of_other.read_bytes() if file_of_other.exists() else choose.choice(files).read_bytes()
        )
    elif kind == "deleted":
        file.unlink()
        trial.struck(f"{file.relative_to(trial.here)}: deleted")
        return
    else:
        changed = _KINDS[kind](content, choose)
    file.unlink()  # it may be a link to one of the world's
    file.write_bytes(changed)
    trial.struck(f"{file.relative_to(trial.here)}: {kind}, {len(content):,} bytes -> {len(changed):,}")
    if len(content) < 3000 and file.suffix == ".json":
        trial.note(changed.decode(errors="replace"))


def _flipped(content: bytes, choose: random.Random) -> bytes:
    if not content:
        return b"\x01"
    where = choose.randrange(len(content))
    return content[:where] + bytes([content[where] ^ 1 << choose.randrange(8)]) + content[where + 1 :]


def _cut(content: bytes, choose: random.Random) -> bytes:
    return content[: choose.randrange(len(content) + 1)]


def _block(content: bytes, choose: random.Random, with_zeros: bool) -> bytes:
    start = choose.randrange(len(content) + 1)
    size = min(choose.choice([1, 4, 8, 64, 512, 4096]), len(content) - start)
    return (
        content[:start]
        + (bytes(size) if with_zeros else choose.randbytes(size))
        + content[start + size :]
    )


def _longer(content: bytes, choose: random.Random) -> bytes:
    return content + choose.choice([b"\0", b"\n", b"x", content[:100], bytes(4096)])


def _shifted(content: bytes, choose: random.Random) -> bytes:
    start, size = choose.randrange(len(content) + 1), choose.choice([1, 4, 8])
    return content[:start] + content[start + size :]


def _digit(content: bytes, choose: random.Random) -> bytes:
    places = [i for i, byte in enumerate(content) if 48 <= byte < 58]
    if not places:
        return _flipped(content, choose)
    where = choose.choice(places)
    return content[:where] + choose.choice("0123456789").encode() + content[where + 1 :]


def _field(content: bytes, choose: random.Random) -> bytes:
    try:
        return json.dumps(damaged_json(json.loads(content), choose)).encode()
    except ValueError:
        return _digit(content, choose)


# Records in the base of a store have no checksums (docs/reference/formats.md).
_OF_A_BASE = ["cut", "empty", "deleted"]
_KINDS = {
    "flipped": _flipped, "cut": _cut, "zeros": lambda b, c: _block(b, c, True),
    "noise": lambda b, c: _block(b, c, False), "longer": _longer, "shifted": _shifted, "digit": _digit,
    "field": _field, "empty": lambda b, c: b"", "other": None, "deleted": None,
}  # fmt: skip
