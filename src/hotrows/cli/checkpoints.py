"""Commands about checkpoints: inspect, merge, tables."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hotrows.cli.commands import command
from hotrows.cli.options import bar, new_table, of_function, print_table
from hotrows.cli.paths import FOLDER, NEW, PICTURE
from hotrows.runtime.atomic_files import files_below
from hotrows.runtime.remote import named
from hotrows.runtime.units import format_bytes

if TYPE_CHECKING:
    from rich.table import Table

_WHICH = of_function("train.loop.predictor:load_run", which={"default": "last"})


@click.group("checkpoint")
def checkpoint_group() -> None:
    """Inspect and merge checkpoints.

    PLACE is the folder of a checkpoint, or of a run.
    """


@command(
    "inspect",
    "hotrows checkpoint inspect runs/a",
    "hotrows checkpoint inspect runs/a/checkpoints/step-1200 --verify",
    group=checkpoint_group,
)
@click.argument("place", type=FOLDER)
@_WHICH
@click.option("--verify", is_flag=True, help="Read all of it, and name each damaged file.")
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
def inspect_command(place: Path, which: str, verify: bool, as_json: bool) -> None:
    """Show what a checkpoint holds.

    Its step, how many ranks wrote it, its bases, and its tables; of a run also which
    checkpoints there are. --verify prints a line for each damaged file, of its bases too,
    and ends with exit code 1 where there are any; PLACE may then be the folder of an export as well.
    """
    from hotrows.engine import checkpoint

    folder = _folder(place, which)
    if verify:
        if damaged := checkpoint.problems(folder):
            click.echo("\n".join(damaged), err=True)
            sys.exit(1)
        if not (folder / "manifest.json").exists():
            click.echo(f"{folder}: checksums are right")
            return
    summary = {**checkpoint.summary(folder), "verified": verify}
    of_run = [] if folder == place else checkpoint.checkpoints_of(place)
    if as_json:
        click.echo(json.dumps({**summary, "checkpoints": of_run} if of_run else summary, indent=2))
        return
    if of_run:
        print_table(_checkpoints(of_run))
        click.echo()
    for label, text in _lines(summary).items():
        click.echo(f"{label:<9}{text}")
    if summary["tables"]:
        click.echo()
        print_table(_tables(summary["tables"]))


@command(
    "merge",
    "hotrows checkpoint merge runs/a/checkpoints/step-1200 whole",
    "hotrows checkpoint merge published bundle --version 31",
    group=checkpoint_group,
)
@click.argument("place", type=FOLDER)
@click.argument("out", type=NEW)
@_WHICH
@of_function("serving.merging:merge", number={"spelling": "--version"}, trust={})
def merge_command(place: Path, out: Path, which: str, number: int | None, trust: bool) -> None:
    """Make one full checkpoint of one rank, or one bundle.

    Joins the parts of all ranks, and an increment with all its bases, in the new folder OUT. Of
    PLACE to which `hotrows train --publish` writes: a base and the deltas after it, into a bundle.
    """
    with bar() as progress:
        from hotrows.engine import checkpoint
        from hotrows.serving import chain, merging

        if number is not None or chain.look(place).newest:
            merged = merging.merge(place, out, number, progress, trust)
            click.echo(f"{named(out)}: version {merged.number:,}, {_size(out)}")
            return
        checkpoint.merge(_folder(place, which), out, progress)
    click.echo(f"{named(out)}: {_size(out)}")


@command("tables", "hotrows tables runs/a --dims", "hotrows tables runs/a --picture keys.svg")
@click.argument("place", metavar="RUN", type=FOLDER)
@_WHICH
@click.option("--dims", is_flag=True, help="Say how many of its dims each table uses; reads all rows.")
@click.option("--picture", type=PICTURE, help="Draw births and deaths of keys over steps into this SVG.")
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
def tables_command(place: Path, which: str, dims: bool, picture: Path | None, as_json: bool) -> None:
    """Show the tables of a run, and its keys.

    Of each table its rows and bytes; of dynamic features the keys that have a row, how many got and lost
    one so far, how many found no room or wait to be admitted, the share of rows used so far that has a
    key, the size of all that is known of keys, and their age: the batches since they were last read.

    Dims that a table uses: the sum of its singular values over the largest. Where that is far below its
    dim, a smaller dim may do as well.
    """
    from hotrows.engine import checkpoint

    folder = _folder(place, which)
    tables, keys = checkpoint.summary(folder)["tables"], checkpoint.key_tables(folder)
    if dims:
        used = checkpoint.dims_used(folder)
        tables = [{**table, "dims_used": round(used[table["name"]], 2)} for table in tables]
    drawn = None
    if picture is not None:
        from hotrows.train.telling import pictures

        drawn = pictures.draw_keys(place, picture)
    if as_json:
        click.echo(json.dumps({"tables": tables, "keys": keys}, indent=2))
        return
    if tables:
        print_table(_tables(tables))
    if keys:
        click.echo()
        print_table(_keys(keys))
    if drawn:
        click.echo(drawn)


def _keys(key_tables: list[dict[str, Any]]) -> Table:
    counts = ("live", "rows", "admitted", "evicted", "refused", "waiting")
    ages = ("youngest", "median age", "90 %", "oldest")
    shown = new_table("keys", *counts, "load", "size", *ages, left=("keys",))
    for table in key_tables:
        size = f"{table['load']:.0%}", format_bytes(table["bytes"])
        numbers = [f"{number:,}" for number in (*(table[name] for name in counts), *table["ages"])]
        shown.add_row(table["name"], *numbers[: len(counts)], *size, *numbers[len(counts) :])
    return shown


def _folder(place: Path, which: str) -> Path:
    """The checkpoint that is meant."""
    from hotrows.engine import checkpoint

    if (place / "checkpoints.json").exists():
        return checkpoint.folder_of(place, which)
    return place


def _size(folder: Path) -> str:
    return format_bytes(sum(size for _, size in files_below(folder)))


def _lines(summary: dict[str, Any]) -> dict[str, str]:
    files = f"{len(summary['files']):,} files, {format_bytes(summary['bytes'])}"
    lines = {
        "name": summary["name"],
        "step": f"{summary['step']:,}",
        "ranks": f"{summary['ranks']:,}",
        "kind": f"rows changed since {', '.join(summary['bases'])}" if summary["base"] else "full",
        "files": f"{files}, {'checksums are right' if summary['verified'] else 'sizes are right'}",
    }
    if summary["stores"]:
        lines["rows"] = f"in file stores, at their checkpoints {summary['stores']}"
    return lines


def _tables(tables: list[dict[str, Any]]) -> Table:
    columns = ["table", "rows", "dim", "dtype", "optimizer", "rows here", "pieces", "size"]
    columns += ["dims used"] if "dims_used" in tables[0] else []
    shown = new_table(*columns, left=("table", "dtype", "optimizer"))
    for table in tables:
        shown.add_row(
            table["name"],
            f"{table['rows']:,}",
            f"{table['dim']:,}",
            table["dtype"],
            table["optimizer"],
            f"{table['rows_here']:,}",
            f"{table['pieces']:,}",
            format_bytes(table["bytes"]),
            *([f"{table['dims_used']:.1f}"] if "dims_used" in table else []),
        )
    return shown


def _checkpoints(summaries: list[dict[str, Any]]) -> Table:
    columns = ("checkpoint", "step", "size", "base", "is")
    shown = new_table(*columns, left=("checkpoint", "base", "is"))
    for saved in summaries:
        step, size = f"{saved['step']:,}", format_bytes(saved["bytes"])
        shown.add_row(saved["name"], step, size, saved["base"] or "", ", ".join(saved["roles"]))
    return shown
