"""Commands that make data and look at it: synth, schema, prepare, describe."""

from __future__ import annotations

import dataclasses
import json
import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hotrows.cli.commands import command
from hotrows.cli.options import POSITIVE, Name, bar, new_table, of_function, print_table
from hotrows.cli.paths import FOLDER, OUT, PICTURE, Suffixed
from hotrows.runtime.remote import named

if TYPE_CHECKING:
    from rich.table import Table

    from hotrows.data import Description, EncodedData


def data_set_names() -> list[str]:
    """The names of the public data sets, which are those of their schemas."""
    from hotrows.data import datasets

    return sorted(datasets.BY_NAME)


_OF_TEXT = "encoding", "decimal", "thousands"  # settings of a schema
_MOST_NOTES = 10  # of a draft that are printed
_SCHEMA = Name(data_set_names, "FILE", lambda text: True)  # `schemas.load` says what is wrong


@command(
    "synth",
    "hotrows synth criteo --rows 1000000 --out raw",
    "hotrows synth criteo --rows 100000 --out small --cardinality-scale 0.01",
    "hotrows synth product --fields 1000 --rows 100000 --out raw",
)
@click.argument("kind", type=click.Choice(["criteo", "product"]))
@of_function("data.datasets.synthetic:synth_criteo", "rows", "out")
@of_function("data.datasets.product:synth_product", num_fields={"spelling": "--fields", "default": None})
@of_function(
    "data.datasets.synthetic:synth_criteo", "seed", cardinality_scale={"type": POSITIVE, "default": None}
)
def synth_command(
    kind: str, rows: int, out: Path, num_fields: int | None, seed: int, cardinality_scale: float | None
) -> None:
    """Make synthetic raw data.

    criteo: rows as skewed and as learnable as Criteo's, in Criteo's raw format. product: rows of many
    fields, ids and lists of ids, with their schema (schema.json) and the settings of a model whose
    vectors are of many dims (wide_deep.json) beside them.
    """
    for of_kind, name, value in (
        ("product", "--fields", num_fields),
        ("criteo", "--cardinality-scale", cardinality_scale),
    ):
        if value is not None and kind != of_kind:
            raise click.UsageError(f"{name} is of synth {of_kind}, not of synth {kind}: leave it out")
    if (path := out / "train.txt").exists():  # as the real ones are named
        raise click.UsageError(f"{path} exists; name another folder, or delete it")
    with bar() as progress:

        def report(done: int, total: int) -> None:
            progress("making samples", done, total)

        if kind == "product":
            from hotrows.data.datasets import product

            path = product.synth_product(
                rows, out, num_fields=num_fields or 200, seed=seed, progress=report
            )
        else:
            from hotrows.data.datasets import synthetic

            scale = 1.0 if cardinality_scale is None else cardinality_scale
            path = synthetic.synth_criteo(rows, out, seed=seed, cardinality_scale=scale, progress=report)
    click.echo(path)


@command(
    "schema",
    "hotrows schema clicks.csv --out shop.json",
    "hotrows schema clicks.parquet --label bought > shop.json",
    "hotrows schema clicks.parquet --user user_id --history item_id --out shop.json",
)
@click.argument("raw", metavar="FILE")
@of_function(
    "data.raw.draft:draft_schema",
    label={"metavar": "COLUMN"},
    user={"metavar": "COLUMN"},
    histories={"spelling": "--history", "multiple": True, "metavar": "COLUMN"},
)
@of_function("schema:Schema", *_OF_TEXT)
@click.option(
    "--out",
    type=Suffixed(".json", "schemas are written as JSON"),
    help="A file for the schema, NAME.json.  [default: standard output]",
)
def schema_command(
    raw: str,
    label: str | None,
    user: str | None,
    histories: tuple[str, ...],
    out: Path | None,
    **of_text: str,
) -> None:
    """Draft a schema from a file.

    Reads a sample of what `hotrows prepare` reads, and writes a schema that it takes as it is:
    delimiter, header, types, times, lists and label. Prints to standard error what each column is read
    as, why, and three of its values; then what was unsure or left out, the weightiest first. Correct
    the file if it is wrong.
    """
    from hotrows import data
    from hotrows.runtime.atomic_files import STDOUT, write_text

    draft = data.draft_schema(raw, label, user, histories, **of_text)
    head = ("column", "read as", "why", "examples")
    table = new_table(*head, left=head)
    for column in draft.columns:
        name = column.column if column.column.isprintable() else repr(column.column)[1:-1]
        table.add_row(name, column.read_as, column.why, ", ".join(column.examples))
    print_table(table, err=True)
    for note in draft.notes[:_MOST_NOTES]:
        click.echo(f"hotrows: {note}", err=True)
    if (num_more := len(draft.notes) - _MOST_NOTES) > 0:
        click.echo(f"hotrows: {num_more:,} more notes, of less weight: draft_schema(...).notes", err=True)
    if out is None:
        click.echo(draft.to_json(), nl=False)
        return
    write_text(out, draft.to_json())
    if out == STDOUT:
        return
    split = f" --split {draft.split}" if draft.split else ""
    click.echo(f"{named(out)}: {draft.schema}", err=True)
    split += " --events FILE" if histories else ""
    command_line = f"--schema {named(out)}{split} --out enc"
    click.echo(f"next: hotrows prepare {shlex.quote(raw)} {command_line}", err=True)


@command(
    "prepare",
    "hotrows prepare train.txt --schema criteo --split position:0.8 --out enc",
    "hotrows prepare 'day_*.gz' --schema criteo --split position:0.7,0.1,0.2 --out enc",
    "hotrows prepare 's3://bucket/clicks/day=*' --schema shop.json --split time:0.8,0.1,0.1 --out enc",
    "hotrows prepare train.parquet --test test.parquet --schema my_schema.py --out enc",
    "hotrows prepare clicks.parquet --events visits.parquet --schema shop.json --out enc",
    "hotrows prepare tuesday.csv --vocab-from enc --out tuesday",
    "hotrows prepare tuesday.csv --extend-vocab-of enc --out enc2",
    "hotrows prepare --no-rows --schema dynamic.json --out enc",
)
@click.argument("raw", nargs=-1)
@click.option(
    "--schema",
    type=_SCHEMA,
    help="The columns: the name of a public data set, a .json file, or a .py file that defines `schema`.",
)
@of_function(
    "data.encode.prepare:prepare",
    "out",
    "split",
    validation={"multiple": True, "metavar": "RAW"},
    test={"multiple": True, "metavar": "RAW"},
    events={"multiple": True, "metavar": "RAW"},
)
@of_function("data.datasets.schemas:with_min_count", min_count={"required": False})
@of_function(
    "data.datasets.schemas:with_dynamic",
    declared={"spelling": "--dynamic", "multiple": True, "metavar": "FEATURE", "required": False},
)
@of_function(
    "schema:Schema", encoding={"default": None}, decimal={"default": None}, thousands={"default": None}
)
@click.option("--no-rows", is_flag=True, help="Read no RAW: for a stream, if the schema declares all.")
@of_function(
    "data.encode.prepare:prepare",
    "memory",
    "threads",
    "seed",
    "overwrite",
    like={"spelling": "--vocab-from", "old": ("--like",), "type": FOLDER, "metavar": "DATA"},
    extend={"spelling": "--extend-vocab-of", "old": ("--extend",), "type": FOLDER, "metavar": "DATA"},
)
def prepare_command(
    raw: tuple[str, ...],
    schema: str | None,
    out: Path,
    split: str | None,
    min_count: int | None,
    declared: tuple[str, ...],
    no_rows: bool,
    **options: Any,
) -> None:
    """Encode raw files for training.

    RAW is delimited text (with or without a header) or JSON lines, compressed or not, Parquet, Arrow or
    ORC: files, quoted globs, folders, or addresses such as s3://bucket/file; or a table,
    iceberg:NAME@SNAPSHOT or delta:PATH@VERSION. A preparation that was stopped goes on when the same
    command is run again.
    """
    # Check which options go together.
    if no_rows == bool(raw):
        raise click.UsageError("Missing argument 'RAW...'." if not raw else "--no-rows reads no RAW")
    if schema is None and not (options["like"] or options["extend"]):
        raise click.UsageError(
            "say what the columns are: --schema NAME or FILE; `hotrows schema RAW` drafts one"
        )
    of_text = {name: options.pop(name) for name in _OF_TEXT}
    of_text = {name: value for name, value in of_text.items() if value is not None}
    if schema is None and of_text:
        raise click.UsageError(f"--{next(iter(of_text))} goes with --schema: stored data has its own")
    from hotrows.data.datasets import schemas

    # Load the schema, and change it as the options say.
    columns = None if schema is None else schemas.load(schema)
    if columns is not None and min_count is not None:
        columns = schemas.with_min_count(columns, min_count)
    if columns is not None:
        columns = dataclasses.replace(schemas.with_dynamic(columns, declared), **of_text)

    # Prepare, and show what was not seen before.
    def prepare(progress: Callable[..., None]) -> EncodedData:
        from hotrows import data

        if no_rows:
            if columns is None:
                raise ValueError("--no-rows takes its columns from --schema, not from other data")
            return data.prepare_schema(columns, out)
        return data.prepare(raw, columns, out, split=split, progress=progress, **options)

    encoded = prepare_with_bar(prepare, out)
    if options["like"] or options["extend"]:
        print_table(_unseen_table(encoded))


def prepare_with_bar(prepare: Callable[..., EncodedData], out: Path) -> EncodedData:
    """Calls `prepare`, which writes into the folder `out`, with a progress bar; prints its samples."""
    try:
        with bar() as progress:
            encoded = prepare(progress=progress)
    except KeyboardInterrupt:
        raise KeyboardInterrupt("interrupted; the same command goes on where it stopped") from None
    rows = ", ".join(f"{part.rows:,} {name}" for name, part in encoded.parts.items())
    click.echo(f"{named(out)}: {rows}")
    return encoded


def _unseen_table(encoded: EncodedData) -> Table:
    """How many ids of each feature the vocabularies do not hold, and how many values are missing."""
    from hotrows.data import ValueRates

    table = new_table("feature", "ids", "unseen", "share", "missing", left=("feature",))
    rates = ValueRates.of_parts(encoded.parts.values(), ())
    for feature in encoded.schema.id_features:
        counts = rates.features[feature.name]
        shares = [f"{counts.rate(kind):.2%}" for kind in ("unknown", "missing")]
        table.add_row(feature.name, f"{counts.values:,}", f"{counts.unknown:,}", *shares)
    return table


@command(
    "describe",
    "hotrows describe enc",
    "hotrows describe enc --html data.html",
    "hotrows describe enc --picture skew.svg",
)
@click.argument("folder", metavar="DATA", type=FOLDER)
@click.option("--picture", type=PICTURE, help="Draw the skew into this SVG.  [default: DATA/skew.svg]")
@click.option("--html", type=OUT, help="Write all of it as a page into this file.")
@of_function("data.description:describe", "dim")
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
@click.option("--verify", is_flag=True, help="Read all of it, and name each damaged file.")
def describe_command(
    folder: Path, picture: Path | None, html: Path | None, dim: int, as_json: bool, verify: bool
) -> None:
    """Show the size and skew of prepared data, and its numbers.

    Prints a line for each damaged file instead, with exit code 1, where there are any: headers are always
    compared with their checksums, all bytes with --verify.
    """
    # Name damaged files, and nothing else where there are any.
    with bar():
        from hotrows import data

        encoded = data.EncodedData.open(folder)
        if damaged := list(encoded.problems(sections=verify)):
            click.echo("\n".join(damaged), err=True)
            sys.exit(1)
        from hotrows.train.telling import pictures

        description = data.describe(encoded, dim)
        if html is not None:
            from hotrows.tools.report import write_description

            write_description(encoded, description, html)
        draws = picture is not None or html is None
        drawn = pictures.draw_skew(description, picture or folder / "skew.svg") if draws else None
    # Print sizes, then vocabularies and numbers, then what is odd in them.
    if as_json:
        click.echo(json.dumps(description.to_json(), indent=2))
        return
    for name, part in description.parts.items():
        rates = [
            f", {rate:.2%} {label}" for label, rate in part.positive_rates.items() if rate is not None
        ]
        click.echo(f"{name:<11}{part.rows:>14,} samples{''.join(rates)}")
    size = f"{description.table_bytes / 2**20:,.1f}"
    click.echo(f"{'tables':<11}{size:>14} MiB at dim {description.dim}, float32")
    print_table(_vocabulary_table(description))
    if description.dense:
        print_table(_dense_table(description))
    for line in (*_oddities(description), *(f"odd: {line}" for line in description.oddities)):
        click.echo(line)
    if verify:
        click.echo("checksums  are right")
    if drawn:
        click.echo(f"picture    {drawn}")
    if html is not None:
        click.echo(f"page       {html}")


def _oddities(description: Description) -> Iterator[str]:
    """Lengths of lists, fields that go together, and fields that drift, a line each."""
    from hotrows.data.description import STABLE

    for ids in description.lists:
        middle, high, top = ids.quantiles.values()
        yield (
            f"list {ids.name}: {ids.mean:.1f} ids a sample, half at most {middle}, 90 % {high}, "
            f"99 % {top}, longest {ids.longest:,}, {ids.empty:.1%} empty"
        )
    for names in description.missing_together:
        yield f"missing together: {', '.join(names)}"
    for one, other in description.same:
        yield f"say the same: {one} and {other}; one of them would do"
    for part in ("validation", "test"):
        shifted = {name: by_part.get(part, 0.0) for name, by_part in description.drift.items()}
        worst = sorted(shifted, key=shifted.__getitem__, reverse=True)[:5]
        shown = [f"{name} {shifted[name]:.2f}" for name in worst if shifted[name] > STABLE]
        if shown:
            yield f"drift in {part}: {', '.join(shown)} (PSI; up to {STABLE} is stable)"


def _dense_table(description: Description) -> Table:
    """Numbers of dense columns in the training part."""
    from hotrows.data.description import DENSE_QUANTILES, quantile_name
    from hotrows.runtime.pages.numbers import number

    columns = map(quantile_name, DENSE_QUANTILES)
    table = new_table("number", "count", "missing", "mean", "std", *columns, left=("number",))
    fields = {field.name: field for field in description.fields}
    for used in description.dense:
        numbers = [used.mean, used.deviation, *(used.quantiles.get(share) for share in DENSE_QUANTILES)]
        missing = f"{fields[used.name].missing['train']:.1%}"
        table.add_row(used.name, f"{used.count:,}", missing, *map(number, numbers))
    return table


def _vocabulary_table(description: Description) -> Table:
    columns = ("field", "rows", "seen", "missing", "unknown in test", "top row", "hottest 1 %")
    table = new_table(*columns, "zipf", "MiB", left=("field",))
    fields = {field.name: field for field in description.fields}
    for used in description.vocabularies:
        first = fields[used.features[0]]
        unknown = (first.unknown or {}).get("test")
        table.add_row(
            used.name,
            f"{used.rows:,}",
            f"{used.num_distinct:,}",
            f"{first.missing['train']:.1%}",
            "" if unknown is None else f"{unknown:.1%}",
            f"{used.top:.1%}",
            f"{used.hottest[0.01]:.1%}",
            "" if used.zipf is None else f"{used.zipf:.2f}",
            f"{used.table_bytes / 2**20:,.1f}",
        )
    return table
