"""All states of the scenarios, a line per scenario: python -m tests.crash_consistency [SCENARIO ...]"""

from __future__ import annotations

import tempfile
from pathlib import Path

import click

from tests.crash_consistency.campaign import Campaign, record
from tests.crash_consistency.scenarios import SCENARIOS
from tests.support.scratch import folder_in_memory


@click.command(help=__doc__)
@click.argument("scenarios", nargs=-1, type=click.Choice(list(SCENARIOS)))
@click.option("--drawn", default=8, show_default=True, help="Drawn sets of lost calls for every crash.")
@click.option("--every", default=1, show_default=True, help="Crash after one of so many calls.")
@click.option("--seed", default=0, show_default=True, help="Of the draws.")
@click.option("--part", default=(1, 1), type=(int, int), help="I N: the I-th of N parts of the calls.")
@click.option("--drop", type=click.Choice(["files", "folders"]), help="Leave out syncs; must be found.")
def main(
    scenarios: tuple[str, ...], drawn: int, every: int, seed: int, part: tuple[int, int], drop: str | None
) -> None:
    failed = False
    for name in scenarios or SCENARIOS:
        with tempfile.TemporaryDirectory(dir=folder_in_memory()) as folder:
            record({name: Path(folder, name)})
            campaign = Campaign(name, Path(folder, name), drop or "")
            campaign.run(drawn=drawn, every=every, seed=seed, part=(part[0] - 1, part[1]))
            print(campaign.summary(), flush=True)
            failed |= bool(campaign.failures)
    raise SystemExit(int(failed))


if __name__ == "__main__":
    main()
