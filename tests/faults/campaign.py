"""The campaign: trials of all kinds by seed, a table of how they ended, and the record of it."""

from __future__ import annotations

import json
import random
import shutil
import time
import traceback
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hotrows.runtime.atomic_files import write_json
from tests.faults.commands import Failed, Unreadable
from tests.faults.kinds import KINDS
from tests.faults.trials import Trial
from tests.faults.worlds import World

BAD = ("lost", "different", "hung", "traceback")


@dataclass
class Counts:
    """Trials of one kind: how they ended; faults: those that struck; skipped: this machine cannot."""

    trials: int = 0
    faults: int = 0
    equal: int = 0
    refused: int = 0
    lost: int = 0
    different: int = 0
    hung: int = 0
    traceback: int = 0
    skipped: int = 0
    seconds: float = 0.0

    @property
    def num_bad(self) -> int:
        return sum(getattr(self, name) for name in BAD)

    def add(self, other: Counts) -> None:
        for name, number in asdict(other).items():
            setattr(self, name, round(getattr(self, name) + number, 1))


class Campaign:
    """Trials of `kinds` in `folder`, each drawn from its own seed: `seed`, `seed` + 1, .."""

    def __init__(self, folder: Path, kinds: list[str], seed: int) -> None:
        self.seed, self.world = seed, World(folder)
        self.counts = {kind: Counts() for kind in kinds}

    def run_for(self, minutes: float) -> None:
        """Runs trials for so long; each kind gets its share of the time."""
        end = time.monotonic() + 60 * minutes
        while time.monotonic() < end:
            self.run_one(min(self.counts, key=lambda kind: self.counts[kind].seconds / KINDS[kind][1]))

    def run_each(self, trials: int) -> None:
        for kind in self.counts:
            for _ in range(trials):
                self.run_one(kind)

    def run_one(self, kind: str) -> None:
        counts = self.counts[kind]
        seed = self.seed + counts.trials
        trial = Trial(self.world, random.Random(f"{kind} {seed}"))
        begun, counts.trials = time.monotonic(), counts.trials + 1
        why = ""
        try:
            outcome = KINDS[kind][0](trial)
        except PermissionError as error:
            outcome, why = "skipped", str(error)
        except Unreadable as failed:
            is_damaged = kind.startswith(("damaged", "hostile"))
            outcome, why = "refused" if is_damaged else failed.outcome, str(failed)
        except Failed as failed:
            outcome, why = failed.outcome, str(failed)
        except Exception:
            outcome, why = "lost", traceback.format_exc()
        setattr(counts, outcome, getattr(counts, outcome) + 1)
        counts.faults += trial.num_faults
        counts.seconds = round(counts.seconds + time.monotonic() - begun, 3)
        if outcome in BAD:
            steps = "\n".join(f"  - {note}" for note in trial.notes)
            again = f"python -m tests.faults --kinds {kind!r} --seed {seed} --trials 1"
            print(f"\n{outcome.upper()}: {again}\n{steps}\n{why}", flush=True)
        shutil.rmtree(self.world.here, ignore_errors=True)

    @property
    def num_bad(self) -> int:
        return sum(counts.num_bad for counts in self.counts.values())


def table(counts: dict[str, Counts]) -> str:
    names = list(asdict(Counts()))
    total = Counts()
    for of_kind in counts.values():
        total.add(of_kind)
    rows = [["kind", *names]]
    rows += [
        [kind, *(f"{n:,.1f}" if isinstance(n, float) else f"{n:,}" for n in asdict(of_kind).values())]
        for kind, of_kind in {**counts, "all": total}.items()
        if of_kind.trials or kind == "all"
    ]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join(
        "  ".join(
            [row[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True))]
        )
        for row in rows
    )


def record(path: Path, counts: dict[str, Counts], **fields: Any) -> None:
    """Adds a campaign to those in a file, `fields` and its counts, and sums the counts up by kind."""
    campaigns = json.loads(path.read_text())["campaigns"] if path.exists() else []
    kinds = {kind: asdict(of_kind) for kind, of_kind in counts.items() if of_kind.trials}
    campaigns.append({**fields, "kinds": kinds})
    summed = {kind: asdict(of_kind) for kind, of_kind in sums(campaigns).items()}
    write_json(path, {"campaigns": campaigns, "kinds": summed})


def sums(campaigns: Sequence[dict[str, Any]]) -> dict[str, Counts]:
    """The counts of several campaigns by kind, in the order of `KINDS`."""
    summed = {kind: Counts() for kind in KINDS}
    for campaign in campaigns:
        for kind, counts in campaign["kinds"].items():
            summed[kind].add(Counts(**counts))
    return summed
