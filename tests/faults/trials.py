"""A trial: a job in a folder of its own, disturbed, and started again as a user would."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from hotrows.runtime.atomic_files import part_of
from tests.faults.commands import Command, Ended, Failed
from tests.faults.worlds import TRAININGS, World

_TRIES = 5


@dataclass
class Trial:
    """world: where commands run, in its folder `here`; choose: draws from the trial's seed; num_faults:
    those that struck so far."""

    world: World
    choose: random.Random
    num_faults: int = 0
    notes: list[str] = field(default_factory=list)

    @property
    def here(self) -> Path:
        return self.world.here

    @property
    def saved(self) -> int:
        """The step of the last checkpoint of the run, 0 where there is none."""
        path = self.here / "run" / "checkpoints.json"
        return int(json.loads(path.read_text())["last"].split("-")[1]) if path.exists() else 0

    def note(self, what: object) -> None:
        """Remembers what was done, for the report of a failure."""
        self.notes.append(str(what))

    def struck(self, what: object) -> None:
        self.num_faults += 1
        self.note(what)

    def command(self, job: str, seed: int = 3, **how) -> Command:
        """Starts a job, or resumes its run if that has begun."""
        words = self.world.words(job, seed)
        if job in TRAININGS and (self.here / "run" / "config.json").exists():
            words.append("--resume")
        return Command(self.here, *words, **how)

    def run(self, *words: str, **how) -> Ended:
        """Runs a command to its end."""
        return Command(self.here, *words, **how).end()

    def finish(self, job: str, seed: int = 3) -> Ended:
        """Starts a job until it is done; deletes what is half done where a refusal asks for it."""
        for _ in range(_TRIES):
            ended = self.command(job, seed).end()
            if ended.is_done:
                return ended
            self.note(ended)
            if job not in TRAININGS and (self.here / "out").exists():
                return ended  # was complete before the command was struck
            part = part_of(self.here / "out")
            if not (part.exists() and "delete it" in ended.said):
                raise Failed("lost", f"cannot be gone on with: {ended}")
            shutil.rmtree(part)
        raise Failed("lost", f"not done after {_TRIES} tries: {ended}")

    def finish_and_compare(self, job: str, run_of: str = "train in memory", seed: int = 3) -> str:
        """Brings a job to its end, whose result must be that of the undisturbed one."""
        self.compare(self.finish(job, seed), job, run_of, seed)
        return "equal"

    def compare(
        self, ended: Ended, job: str, run_of: str = "train in memory", seed: int = 3, log: bool = True
    ) -> None:
        """Compares the result of a job that is done with that of the undisturbed one; log: also the
        evaluations that a training has noted."""
        result = ended.out if job == "eval" else self.world.result(job)
        expected = self.world.undisturbed(job, run_of, seed).result
        if not log and job in TRAININGS:
            result, expected = ({**whole, "log": None} for whole in (result, expected))
        same(result, expected)


def same(result: object, expected: object) -> None:
    """Raises Failed where the two differ, and says in what."""
    if result != expected:
        raise Failed("different", "; ".join(list(_differences(result, expected))[:6]))


def _differences(result: object, expected: object, where: str = "") -> Iterator[str]:
    if isinstance(result, dict) and isinstance(expected, dict):
        for name in sorted({*result, *expected}):
            yield from _differences(result.get(name), expected.get(name), f"{where}/{name}")
    elif isinstance(result, list) and isinstance(expected, list) and len(result) == len(expected):
        for number, pair in enumerate(zip(result, expected, strict=True)):
            yield from _differences(*pair, f"{where}/{number}")
    elif result != expected:
        yield f"{where}: expected {str(expected)[:300]}, got {str(result)[:300]}"


Kind = Callable[[Trial], str]  # gives "equal" or "refused"
