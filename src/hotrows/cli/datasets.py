"""The command about public data sets: data, which lists, downloads and prepares them."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hotrows.cli.commands import command
from hotrows.cli.data import data_set_names, prepare_with_bar
from hotrows.cli.options import Name, bar, new_table, of_function, print_table
from hotrows.cli.paths import HERE, NEW

if TYPE_CHECKING:
    from rich.table import Table

    from hotrows.data import datasets


@command(
    "data",
    "hotrows data",
    "hotrows data adult --out enc",
    "hotrows data movielens_1m --raw ml-1m --download --out enc",
    "hotrows data taobao_ad --raw taobao --out enc --samples taobao-samples",
)
@click.argument("name", required=False, type=Name(data_set_names), metavar="[NAME]")
@of_function("data.datasets.dataset:prepare", raw={"type": HERE, "required": False})
@click.option("--download", is_flag=True, help="Download them into --raw first, or go on with it.")
@click.option("--out", type=NEW, help="A new folder for the encoded data.")
@of_function("data.datasets.dataset:prepare", "samples", "split")
@of_function("data.datasets.schemas:with_min_count", min_count={"required": False})
@of_function("data.datasets.dataset:prepare", "seed")
@of_function("data.encode.prepare:prepare", "memory", "threads")
def data_command(
    name: str | None, raw: Path | None, download: bool, out: Path | None, **options: Any
) -> None:
    """List, download and prepare public data sets.

    Without NAME all data sets are listed; with NAME alone, where its files are. The schema and the
    parts of each are described in docs/reference/data_sets.md.
    """
    from hotrows.data import datasets

    if name is None:
        print_table(_table())
        return
    dataset = datasets.BY_NAME[name]
    if download:
        _download(dataset, raw)
    if out is not None:
        _prepare(dataset, raw, out, **options)
    elif not download:
        _describe(dataset)


def _table() -> Table:
    from hotrows.data import datasets

    columns = ("name", "what", "samples", "size", "licence")
    table = new_table(*columns, left=("name", "what", "size", "licence"))
    for dataset in datasets.ALL:
        table.add_row(dataset.name, dataset.title, f"{dataset.rows:,}", dataset.size, dataset.licence)
    return table


def _describe(dataset: datasets.DataSet) -> None:
    """Where the files are."""
    lines = {
        "title": dataset.title,
        "samples": f"{dataset.rows:,}",
        "size": dataset.size,
        "licence": dataset.licence,
        "page": dataset.home,
        "files": ", ".join(source.file for source in dataset.sources),
    }
    for label, text in lines.items():
        click.echo(f"{label:<9}{text}")
    click.echo(f"{'get it':<9}{_how_to_get(dataset)}")


def _how_to_get(dataset: datasets.DataSet) -> str:
    if dataset.bundled:
        return f"comes with hotrows: hotrows data {dataset.name} --out enc"
    if dataset.sign_in:
        return f"{dataset.sign_in} into DIR; then hotrows data {dataset.name} --raw DIR --out enc"
    return f"hotrows data {dataset.name} --raw DIR --download --out enc"


def _download(dataset: datasets.DataSet, raw: Path | None) -> None:
    if raw is None:
        raise click.UsageError("--download needs the folder for the raw files: --raw DIR")
    from hotrows.data import datasets

    with bar() as progress:
        files = datasets.download(dataset, raw, progress)
    click.echo(f"{raw}: {', '.join(path.name for path in files)}")


def _prepare(
    dataset: datasets.DataSet, raw: Path | None, out: Path, min_count: int | None, **options: Any
) -> None:
    if raw is None and not dataset.bundled:
        raise click.UsageError(
            f"say where the raw files of {dataset.name} are: --raw DIR; hotrows data {dataset.name} "
            f"says where to get them"
        )
    from hotrows.data import datasets
    from hotrows.data.datasets import schemas

    schema = dataset.schema if min_count is None else schemas.with_min_count(dataset.schema, min_count)
    prepare_with_bar(partial(datasets.prepare, dataset, raw, out, schema=schema, **options), out)
