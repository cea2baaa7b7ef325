"""Faults of all kinds, drawn by seed: python -m tests.faults --minutes 10

Each trial disturbs commands as users type them (kills them, fills their disk, damages their files, ..),
starts them again as a user would, and ends in one of these ways: the result is equal, to the last bit, to
that of an undisturbed one; refused, in one line that says why; or, and this is a failure, lost, different
without a word, hung, or ended by a traceback. A failure prints the command that repeats it.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from pathlib import Path

import click
from benchmarks.harness import conditions

from tests.faults import commands
from tests.faults.campaign import Campaign, record, table
from tests.faults.kinds import KINDS


@click.command(help=__doc__)
@click.option("--minutes", type=float, default=2, show_default=True, help="How long.")
@click.option("--trials", type=int, help="So many of each kind, in place of --minutes.")
@click.option("--kinds", help=f"With commas: {', '.join(KINDS)}. [all]")
@click.option("--seed", type=int, default=0, show_default=True, help="Of the first trial of each kind.")
@click.option("--record", "file", type=click.Path(path_type=Path), help="Add the campaign to this JSON.")
def main(minutes: float, trials: int | None, kinds: str | None, seed: int, file: Path | None) -> None:
    chosen = [kind.strip() for kind in kinds.split(",")] if kinds else list(KINDS)
    unknown = sorted(set(chosen) - set(KINDS))
    if unknown:
        raise click.UsageError(f"no kind {unknown[0]!r}; there are {', '.join(KINDS)}")
    now = conditions(threads=1)
    commands.preload(publishes=not {"publishing", "live"}.isdisjoint(chosen))
    begun = time.monotonic()
    folder = Path(tempfile.mkdtemp(dir=_memory(), prefix="hotrows-faults-"))
    folder.chmod(0o755)  # some commands run as another user
    try:
        campaign = Campaign(folder, chosen, seed)
        if trials is None:
            campaign.run_for(minutes)
        else:
            campaign.run_each(trials)
    finally:
        shutil.rmtree(folder)
    print(f"\n{table(campaign.counts)}")
    if file is not None:
        took = round((time.monotonic() - begun) / 60, 1)
        record(file, campaign.counts, seed=seed, minutes=took, environment=now)
    sys.exit(1 if campaign.num_bad else 0)


def _memory() -> str | None:
    """A folder in memory, where there is one: thousands of trials need no disk."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


if __name__ == "__main__":
    main()
