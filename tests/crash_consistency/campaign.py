"""Campaign: checks the states that crashes of a recorded scenario may leave, each distinct one once."""

from __future__ import annotations

import shutil
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.crash_consistency.disk import Recording, State
from tests.crash_consistency.recording import run_with_recorder
from tests.crash_consistency.scenarios import SCENARIOS

_SHOWN = 5


@dataclass
class Failure:
    """A state in which a check failed, the calls that were lost, and why it failed."""

    state: State
    lost: list[str]
    reason: str


def record(folders: Mapping[str, Path]) -> None:
    """Runs scenarios, each in a folder, on the files that its preparation makes there."""
    for scenario, folder in folders.items():
        (folder / "root").mkdir(parents=True)
        SCENARIOS[scenario].prepare(folder / "root")
        shutil.copytree(folder / "root", folder / "before")
    words = [str(word) for pair in folders.items() for word in pair]
    run_with_recorder("-m", "tests.crash_consistency.scenarios", *words)


class Campaign:
    """Of `scenario`, as recorded in `folder`. drop: syncs left out, see `Recording`."""

    def __init__(self, scenario: str, folder: Path, drop: str = "") -> None:
        self.scenario, self.check = scenario, SCENARIOS[scenario].check
        log, root, before = (folder / name for name in ("log", "root", "before"))
        self.recording = Recording(log.read_bytes(), root, before, drop)
        self.num_crashes = self.num_states = self.num_checked = 0
        self.failures: list[Failure] = []

    def run(
        self,
        drawn: int = 2,
        every: int = 1,
        seed: int = 0,
        most: int | None = None,
        part: tuple[int, int] = (0, 1),
    ) -> None:
        """Checks the states of a crash after every `every`-th call, and ends after `most` checks or as
        soon as some failed. part: (i, n), the i-th of n parts of the calls, in their order."""
        seen, (i, n) = set(), part
        crashes = range(seed % every, len(self.recording.changes) + 1, every)
        for crash in crashes[len(crashes) * i // n : len(crashes) * (i + 1) // n]:
            said = self.recording.said(crash)
            self.num_crashes += 1
            for state in self.recording.states(crash, drawn, seed):
                self.num_states += 1
                files = self.recording.files(state)
                key = hash((len(said), frozenset(files.items())))
                if key not in seen:
                    seen.add(key)
                    self._check(state, files, said)
                if len(self.failures) == _SHOWN or self.num_checked == most:
                    return

    def summary(self) -> str:
        """Counts, and the failures one by one."""
        lines = [
            f"{self.scenario}: {len(self.recording.changes):,} calls, {self.num_crashes:,} crashes, "
            f"{self.num_states:,} states, {self.num_checked:,} distinct; {len(self.failures)} failed"
        ]
        for failure in self.failures:
            torn = f", torn {failure.state.torn}" if failure.state.torn else ""
            lines += [f"  crash after {failure.state.crash} calls{torn}; lost:"]
            lines += [f"    {call}" for call in failure.lost]
            lines += [f"  {failure.reason}"]
        return "\n".join(lines)

    def _check(self, state: State, files: dict[str, bytes | None], said: list[str]) -> None:
        self.num_checked += 1
        self.recording.put(files)
        try:
            self.check(self.recording.root, said)
        except Exception:
            lost = sorted(set(range(state.crash)) - set(state.applied))
            calls = [self.recording.described(i) for i in lost[-12:]]
            self.failures.append(Failure(state, calls, traceback.format_exc(limit=-3)))
