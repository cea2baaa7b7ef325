"""The command report: runs as one page of HTML."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from hotrows.cli.commands import command
from hotrows.cli.options import FILE, RUN, bar, of_function


@command(
    "report",
    "hotrows report runs/a",
    "hotrows report runs/a runs/b --out a_and_b.html",
    "hotrows report runs/a --slice country --slice hour --part validation",
    "hotrows report runs/a --follow",
)
@click.argument("runs", metavar="RUN...", nargs=-1, required=True, type=RUN)
@click.option("--out", type=FILE, help="The page.  [default: RUN/report.html of the first run]")
@click.option(
    "--follow", is_flag=True, help="While a run is trained, write the page again after every interval."
)
@of_function("report.page:write_report", every={"type": click.FloatRange(0.1, 3600), "default": 10.0})
@of_function(
    "report.assess:Scope",
    slices={"spelling": "--slice", "multiple": True, "metavar": "COLUMN"},
    rows={"type": click.IntRange(0, 1 << 30), "default": 100_000},
    part={},
    seed={},
)
@of_function("report.page:write_report", "folder")
@of_function("train.predictor:load_run", "which", "model", "trust", "device")
def report_command(
    runs: tuple[Path, ...],
    out: Path | None,
    follow: bool,
    every: float,
    slices: tuple[str, ...],
    rows: int,
    part: str | None,
    seed: int,
    folder: Path | None,
    **how: Any,
) -> None:
    """Write a page about runs.

    One HTML file, which needs no network: what was trained on what, curves, metrics with intervals,
    reliability, slices, importance of features, speed, cache, settings, and the command that repeats it.
    Several runs stand side by side, with their differences marked.
    """
    out = out or runs[0] / "report.html"
    with bar() as progress:
        from hotrows.report import Scope, write_report

        scope = Scope(part, rows, slices, seed, how)
        write_report(runs, out, scope, folder=folder, every=every if follow else None, progress=progress)
    click.echo(out)
