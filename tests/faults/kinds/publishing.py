"""Training that publishes, and who follows it, killed at any moment.

A training writes checkpoints, deltas and bases; two processes follow the folder, which is all that they
share. One of the three is killed and started again as a user would, several times. Whatever a follower
ever had, and what each version in the folder is, must be what an undisturbed run has after so many
batches: all of it, of one step (nothing lost, nothing twice, no torn version). A follower never goes back
while it lives, and the last version is the last step's.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from hotrows.serving import chain
from hotrows.serving.export.publisher import Publisher
from hotrows.serving.follower import Follower
from hotrows.serving.version import version_at
from tests.faults import commands
from tests.faults.commands import Failed
from tests.faults.trials import Trial
from tests.support.published import contents_of, is_of, train_published, undisturbed

STEPS = 150
_LONGEST = 0.7  # seconds between two kills


def publishing(trial: Trial) -> str:
    """SIGKILL at random moments to a training that publishes, and to two who follow it."""
    data, expected = _world(trial.world.folder / "publishing")
    to, run = trial.here / "to", trial.here / "run"
    trial.here.mkdir(exist_ok=True)
    every, base_every = trial.choose.choice(["1b", "2b", "5b", "0.02s"]), trial.choose.choice([2, 4, 9])
    trial.note(f"published every {every}, a base every {base_every}")
    trainer = Process(
        trial.here / "said",
        lambda: train_published(data, run, STEPS, Publisher(to, every, base_every=base_every)),
    )
    logs = [trial.here / "a.log", trial.here / "b.log"]
    followers = [Process(log.with_suffix(".said"), lambda log=log: _follow(to, log)) for log in logs]
    kills = trial.choose.randint(1, 8)
    patience = commands.Patience()
    try:
        while not trainer.has_ended:
            if patience.is_over:
                raise Failed("hung", trainer.stacks)
            time.sleep(trial.choose.uniform(0, _LONGEST))
            victim = trial.choose.choice([trainer, trainer, *followers])
            if trial.num_faults < kills and victim.kill():
                trial.struck(f"killed {'training' if victim is trainer else 'one who follows'}")
                victim.begin()
        for process in (trainer, *followers):
            if process.has_ended and process.code:
                raise Failed("traceback", process.text)
    finally:
        for process in (trainer, *followers):
            process.kill()
    for log in logs:
        _check_log(log, expected)
    last = commands.computed(_last, to)
    if last["step"] != STEPS or not is_of(last["contents"], expected[str(STEPS)]):
        raise Failed("different", f"the last version is of step {last['step']}")
    if left := [path.name for path in to.iterdir() if path.suffix in (".part", ".gone")]:
        raise Failed("lost", f"{left} are left behind")
    return "equal"


def _world(folder: Path) -> tuple[Path, dict[str, dict[str, int]]]:
    """Data, and what an undisturbed run has after each step; made once."""
    data, sums = folder / "enc", folder / "expected.json"
    if not sums.exists():
        folder.mkdir()
        sums.write_text(json.dumps(commands.computed(undisturbed, data, folder / "run", STEPS)))
    return data, json.loads(sums.read_text())


def _follow(to: Path, log: Path) -> None:
    """Follows, and notes each version that it has, until it is killed."""
    follower, number = None, 0
    with open(log, "a") as file:
        while True:
            try:
                if follower is None:
                    follower = Follower(to, every=None)
                follower.look()
            except ValueError as error:
                if "has no versions" not in str(error):
                    file.write(json.dumps({"problem": str(error)}) + "\n")
                    file.flush()
            version = follower and follower.version
            if version and version.number != number:
                assert version.head is not None
                fields = {"from": number, "number": version.number, "step": version.head.step}
                file.write(json.dumps({**fields, "contents": contents_of(version)}) + "\n")
                file.flush()
                number = version.number
            time.sleep(0.002)


class Process:
    """A function in a process of its own, which says in a file what it fails with."""

    def __init__(self, said: Path, function: Callable[[], object]) -> None:
        self._said, self._function = said, function
        self.begin()

    def begin(self) -> None:
        self.code: int | None = None
        self.pid = commands._fork()
        if self.pid:
            return
        code = 1
        try:
            out = os.open(self._said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            for stream in (1, 2):
                os.dup2(out, stream)
            faulthandler.register(signal.SIGUSR1, file=2, all_threads=True)
            torch.set_num_threads(1)
            self._function()
            code = 0
        except BaseException as error:
            os.write(2, f"{type(error).__name__}: {error}\n".encode())
        os._exit(code)

    @property
    def text(self) -> str:
        return self._said.read_text()[-3000:]

    @property
    def has_ended(self) -> bool:
        if self.code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.code = os.waitstatus_to_exitcode(status) if pid else None
        return self.code is not None

    @property
    def stacks(self) -> str:
        """Where each thread is, of a process that should have ended, behind what it has said."""
        if not self.has_ended:
            os.kill(self.pid, signal.SIGUSR1)
            time.sleep(1)
        return f"{self._said.name}, code {self.code}:\n{self._said.read_text()[-9000:]}"

    def kill(self) -> bool:
        """Whether it was alive."""
        if self.has_ended:
            return False
        os.kill(self.pid, signal.SIGKILL)
        self.code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return True


def _last(to: Path) -> dict[str, Any]:
    """The last version, once it is known that all of the folder can be made."""
    found = chain.look(to)
    for number in range(found.bases[0], found.newest):
        version_at(to, number)
    version = version_at(to)
    assert version.head is not None
    return {"step": version.head.step, "contents": contents_of(version)}


def _check_log(log: Path, expected: dict[str, dict[str, int]]) -> None:
    lines = log.read_text().split("\n")[:-1] if log.exists() else []
    for line in lines:
        try:
            fields = json.loads(line)
        except ValueError:
            continue  # it was killed as it wrote
        if "problem" in fields:
            raise Failed("lost", f"one who follows was refused: {fields['problem']}")
        if fields["number"] <= fields["from"]:
            raise Failed("different", f"went back from version {fields['from']} to {fields['number']}")
        if not is_of(fields["contents"], expected[str(fields["step"])]):
            raise Failed("different", f"version {fields['number']} is not that of step {fields['step']}")
