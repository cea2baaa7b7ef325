"""The command about public data sets: data, which lists, downloads and prepares them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from rich.table import Table

from hotrows.cli.options import BYTES, FOLDER, Taught, bar, print_table
from hotrows.data import schemas, sets


@click.command(
    "data",
    cls=Taught,
    epilog="""
    hotrows data
    hotrows data adult --out enc
    hotrows data movielens_1m --raw ml-1m --download --out enc
    hotrows data taobao_ad --raw taobao --out enc --samples taobao-samples
    """,
)
@click.argument("name", required=False, type=click.Choice(sorted(sets.BY_NAME)), metavar="[NAME]")
@click.option("--raw", type=FOLDER, help="The folder of the raw files.")
@click.option("--download", is_flag=True, help="Download them into --raw first, or go on with it.")
@click.option("--out", type=FOLDER, help="A new folder for the encoded data.")
@click.option("--samples", type=FOLDER, help="Keep the samples that are built, as Parquet, here.")
@click.option("--split", help="As in prepare, where the data set comes as one part.")
@click.option("--min-count", type=click.IntRange(1), help="Of all features. [the schema's]")
@click.option("--seed", type=int, default=0, show_default=True, help="Of all that is drawn.")
@click.option(
    "--memory", type=BYTES, metavar="SIZE", help="As in prepare; builders take what they need."
)
@click.option("--threads", type=click.IntRange(1), help="As in prepare. [all cores]")
def data_command(
    name: str | None, raw: Path | None, download: bool, out: Path | None, **given: Any
) -> None:
    """List, download and prepare public data sets.

    Without NAME all data sets are listed; with NAME alone, where its files are. The schema and the
    parts of each are described in docs/datasets.
    """
    if name is None:
        print_table(_table())
        return
    of = sets.BY_NAME[name]
    if download:
        _download(of, raw)
    if out is not None:
        _prepare(of, raw, out, **given)
    elif not download:
        _describe(of)


def _table() -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in ("name", "what", "rows", "size", "licence"):
        table.add_column(column, justify="right" if column == "rows" else "left")
    for of in sets.ALL:
        table.add_row(of.name, of.title, f"{of.rows:,}", of.size, of.licence)
    return table


def _describe(of: sets.DataSet) -> None:
    """Where the files are."""
    lines = {
        "title": of.title,
        "rows": f"{of.rows:,}",
        "size": of.size,
        "licence": of.licence,
        "page": of.home,
        "files": ", ".join(source.file for source in of.sources),
    }
    for label, text in lines.items():
        click.echo(f"{label:<9}{text}")
    click.echo(f"{'get it':<9}{_how_to_get(of)}")


def _how_to_get(of: sets.DataSet) -> str:
    if of.bundled:
        return f"comes with hotrows: hotrows data {of.name} --out enc"
    if of.sign_in:
        return f"{of.sign_in} into DIR; then hotrows data {of.name} --raw DIR --out enc"
    return f"hotrows data {of.name} --raw DIR --download --out enc"


def _download(of: sets.DataSet, raw: Path | None) -> None:
    if raw is None:
        raise click.UsageError("--download needs the folder for the raw files: --raw DIR")
    with bar() as progress:
        files = sets.download(of, raw, progress)
    click.echo(f"{raw}: {', '.join(path.name for path in files)}")


def _prepare(
    of: sets.DataSet, raw: Path | None, out: Path, min_count: int | None, **given: Any
) -> None:
    if raw is None and not of.bundled:
        raise click.UsageError(
            f"say where the raw files of {of.name} are: --raw DIR; hotrows data {of.name} says where "
            f"to get them"
        )
    schema = of.schema if min_count is None else schemas.with_min_count(of.schema, min_count)
    try:
        with bar() as progress:
            encoded = sets.prepare(of, raw, out, schema=schema, progress=progress, **given)
    except KeyboardInterrupt:
        raise KeyboardInterrupt("interrupted; the same command goes on where it stopped") from None
    rows = ", ".join(f"{part.rows:,} {part_name}" for part_name, part in encoded.parts.items())
    click.echo(f"{out}: {rows}")
