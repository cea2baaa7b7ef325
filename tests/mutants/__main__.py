"""The command: draws mutants, runs the nearest tests of each, and prints those that no test kills."""

from __future__ import annotations

import importlib
import os
import sys
import tempfile
import time
from collections import Counter, defaultdict
from pathlib import Path

import click

from tests.mutants import FOLDERS, Mutant, draw, mutants
from tests.mutants.nearest import NUM_FILES, Nearest
from tests.mutants.trial import OUTCOMES, Trial
from tests.support.scratch import folder_in_memory

ROOT = Path(__file__).parent.parent.parent


@click.command(help=__doc__)
@click.option("--count", type=int, default=20, show_default=True, help="Mutants to draw.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of the draw.")
@click.option("--only", multiple=True, help="A file, folder or line (PATH:LINE). [default: all sources]")
@click.option(
    "--files", type=int, default=NUM_FILES, show_default=True, help="Test files for each source."
)
@click.option("--tests", multiple=True, help="Test files to run. [default: those nearest to the source]")
@click.option("--seconds", type=float, default=300, show_default=True, help="Then the tests hang.")
def main(
    count: int, seed: int, only: tuple[str, ...], files: int, tests: tuple[str, ...], seconds: float
) -> None:
    try:
        drawn = draw(mutants(ROOT, only or FOLDERS), count, seed)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    preload()
    begun, nearest, survivors = time.monotonic(), Nearest(ROOT), list[Mutant]()
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    with tempfile.TemporaryDirectory(dir=folder_in_memory(), prefix="hotrows-mutants-") as folder:
        trial = Trial(ROOT, Path(folder))
        for number, mutant in enumerate(drawn, 1):
            chosen = tests or nearest.tests(mutant.path, files)
            outcome, why = trial.outcome(mutant, chosen, seconds)
            counts[mutant.path][outcome] += 1
            took = f"{number}/{len(drawn)} {time.monotonic() - begun:.0f} s"
            print(f"{took} {outcome}: {mutant} ({why})", flush=True)
            survivors += [mutant] if outcome == "survived" else []
    print(table(counts))
    print(*survivors, f"{len(survivors)} of {len(drawn)} mutants survived", sep="\n")
    sys.exit(1 if survivors else 0)


def table(counts: dict[str, Counter[str]]) -> str:
    """How the mutants of each file, and of all, ended."""
    rows = {**counts, "all": sum(counts.values(), Counter())}
    lines = [f"{'file':44}" + "".join(outcome.rjust(12) for outcome in OUTCOMES)]
    for path, of_file in rows.items():
        lines.append(f"{path:44}" + "".join(str(of_file[outcome]).rjust(12) for outcome in OUTCOMES))
    return "\n".join(lines)


def preload() -> None:
    """Imports what most tests import, once for all forks; nothing of the repository."""
    os.environ.setdefault("TRITON_INTERPRET", "1")
    for name in ("torch", "pytest", "hypothesis", "pandas", "pyarrow"):
        importlib.import_module(name)


if __name__ == "__main__":
    main()
