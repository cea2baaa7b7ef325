"""The commands about checkpoints: inspect, merge, export."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from hotrows import checkpoint
from hotrows.cli.options import FOLDER, Taught, bar, print_table
from hotrows.planning.budget import format_bytes

_WHICH = click.option(
    "--checkpoint", "which", type=click.Choice(["best", "last"]), default="last", show_default=True,
    help="Of a run.",
)  # fmt: skip


@click.group("checkpoint")
def checkpoint_group() -> None:
    """Inspect, merge and export checkpoints.

    PLACE is the folder of a checkpoint, or of a run.
    """


@checkpoint_group.command(
    "inspect",
    cls=Taught,
    epilog="""
    hotrows checkpoint inspect runs/a
    hotrows checkpoint inspect runs/a/checkpoints/step-1200 --verify
    """,
)
@click.argument("place", type=FOLDER)
@_WHICH
@click.option("--verify", is_flag=True, help="Read all of it and compare the checksums.")
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
def inspect_command(place: Path, which: str, verify: bool, as_json: bool) -> None:
    """Show what a checkpoint holds.

    Its step, how many ranks wrote it, what it is made on, and its tables; of a run also which
    checkpoints there are.
    """
    folder = _folder(place, which)
    found = checkpoint.summary(folder, verify)
    of_run = [] if folder == place else checkpoint.checkpoints_of(place)
    if as_json:
        click.echo(json.dumps({**found, "checkpoints": of_run} if of_run else found, indent=2))
        return
    if of_run:
        print_table(_checkpoints(of_run))
        click.echo()
    for label, text in _lines(found).items():
        click.echo(f"{label:<9}{text}")
    if found["tables"]:
        click.echo()
        print_table(_tables(found["tables"]))


@checkpoint_group.command(
    "merge", cls=Taught, epilog="hotrows checkpoint merge runs/a/checkpoints/step-1200 whole"
)
@click.argument("place", type=FOLDER)
@click.argument("out", type=FOLDER)
@_WHICH
def merge_command(place: Path, out: Path, which: str) -> None:
    """Make one full checkpoint of one rank.

    Joins the parts of all ranks, and an increment with all that it is made on, in the new folder OUT.
    """
    with bar() as progress:
        checkpoint.merge(_folder(place, which), out, progress)
    click.echo(f"{out}: {_size(out)}")


@checkpoint_group.command(
    "export",
    cls=Taught,
    epilog="""
    hotrows checkpoint export runs/a tables
    hotrows checkpoint export runs/a/checkpoints/step-1200 tables --state
    """,
)
@click.argument("place", type=FOLDER)
@click.argument("out", type=FOLDER)
@_WHICH
@click.option("--state", is_flag=True, help="The optimizers' state too.")
def export_command(place: Path, out: Path, which: str, state: bool) -> None:
    """Write a checkpoint as safetensors and JSON.

    Needs no run: a file of weights for each table, and the dense part as it is, in the new folder
    OUT. `hotrows export` writes a model with its schema.
    """
    with bar() as progress:
        checkpoint.export_tables(_folder(place, which), out, state, progress)
    click.echo(f"{out}: {len(list((out / 'tables').iterdir())):,} tables, {_size(out)}")


def _folder(place: Path, which: str) -> Path:
    """The checkpoint that is meant."""
    if (place / "checkpoints.json").exists():
        return checkpoint.folder_of(place, which)
    return place


def _size(folder: Path) -> str:
    return format_bytes(sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()))


def _lines(found: dict[str, Any]) -> dict[str, str]:
    files = f"{len(found['files']):,} files, {format_bytes(found['bytes'])}"
    lines = {
        "name": found["name"],
        "step": f"{found['step']:,}",
        "ranks": f"{found['ranks']:,}",
        "kind": f"rows changed since {', '.join(found['made_on'])}" if found["base"] else "full",
        "files": f"{files}, {'checksums are right' if found['verified'] else 'sizes are right'}",
    }
    if found["stores"]:
        lines["rows"] = f"in file stores, at their checkpoints {found['stores']}"
    return lines


def _tables(tables: list[dict[str, Any]]) -> Table:
    shown = Table(box=None, header_style="bold", pad_edge=False)
    for column in ("table", "rows", "dim", "dtype", "optimizer", "rows here", "pieces", "size"):
        left = column in ("table", "dtype", "optimizer")
        shown.add_column(column, justify="left" if left else "right")
    for of in tables:
        numbers = (f"{of['rows_here']:,}", f"{of['pieces']:,}", format_bytes(of["bytes"]))
        shown.add_row(
            of["name"], f"{of['rows']:,}", f"{of['dim']:,}", of["dtype"], of["optimizer"], *numbers
        )
    return shown


def _checkpoints(found: list[dict[str, Any]]) -> Table:
    shown = Table(box=None, header_style="bold", pad_edge=False)
    for column in ("checkpoint", "step", "size", "made on", "is"):
        shown.add_column(column, justify="right" if column in ("step", "size") else "left")
    for of in found:
        roles = ", ".join(of["roles"])
        shown.add_row(
            of["name"], f"{of['step']:,}", format_bytes(of["bytes"]), of["base"] or "", roles
        )
    return shown
