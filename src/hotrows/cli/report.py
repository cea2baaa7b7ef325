"""Commands that look into runs: report, one page of HTML, and contributions, a single row."""

from __future__ import annotations

import json
from collections.abc import Mapping, Set
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hotrows.cli.commands import command
from hotrows.cli.options import bar, new_table, of_function, print_table, run_options
from hotrows.cli.paths import FOLDER, OUT, RUN
from hotrows.runtime.remote import origin_of
from hotrows.schema import TIME_TRANSFORMS

if TYPE_CHECKING:
    from hotrows.tools.report.contributions import Example

_NAMED, _LEAST = 3, 0.005  # features in a sentence, and the least that one adds
_READ = 20_000  # rows of which those are drawn that one is compared with


@command(
    "report",
    "hotrows report runs/a",
    "hotrows report runs/a runs/lr --out beside_lr.html",
    "hotrows report runs/a --slice country --slice hour --part validation",
    "hotrows report runs/a --follow",
)
@click.argument("runs", metavar="RUN...", nargs=-1, required=True, type=RUN)
@click.option("--out", type=OUT, help="The page.  [default: RUN/report.html of the first run]")
@click.option(
    "--follow", is_flag=True, help="While a run is trained, write the page again after every interval."
)
@of_function(
    "tools.report.page:write_report", every={"type": click.FloatRange(0.1, 3600), "default": 10.0}
)
@of_function(
    "tools.report.assess:Scope",
    slices={"spelling": "--slice", "multiple": True, "metavar": "COLUMN"},
    rows={"type": click.IntRange(0, 1 << 30), "default": 100_000},
    part={},
    seed={},
)
@of_function("tools.report.page:write_report", "folder")
@of_function("train.loop.predictor:load_run", "which", "model", "trust", "device")
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
    copies = [url for run in runs if (url := origin_of(run))]
    if copies and (out is None or follow):
        problem = "cannot be followed" if follow else "has no folder for the page: give --out FILE"
        raise click.UsageError(f"{copies[0]} {problem}")
    out = out or runs[0] / "report.html"
    with bar() as progress:
        from hotrows.tools.report import Scope, write_report

        scope = Scope(part, rows, slices, seed, how)
        write_report(runs, out, scope, folder=folder, every=every if follow else None, progress=progress)
    click.echo(out)


@command("contributions", "hotrows contributions runs/a new.csv --row 3")
@run_options
@of_function("train.loop.predictor:load_run", "device")
@click.argument("raw", nargs=-1, required=True)
@click.option("--row", type=click.IntRange(1), default=1, show_default=True, help="Its number in RAW.")
@click.option(
    "--others",
    type=click.IntRange(1, 100_000),
    default=500,
    show_default=True,
    help="Rows of the validation part that it is compared with.",
)
@click.option("--data", "folder", type=FOLDER, help="The data of the run, if it has moved.")
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
def contributions_command(
    run: Path, raw: tuple[str, ...], row: int, others: int, folder: Path | None, as_json: bool, **how: Any
) -> None:
    """Show what each feature adds to the prediction of a row.

    For each feature: how much lower the log odds (of a label that is a number, the number) are on average
    where the feature has the values of other rows. That is exact for lr, whose features add up; of other
    models, and under focal loss, the last line has what features say together.
    """
    with bar():
        from hotrows.tools.report.contributions import contributions, example
        from hotrows.tools.report.slices import Slicer
        from hotrows.train import load_run
        from hotrows.train.run import folder as run_folder
        from hotrows.train.telling.row_sample import rows_of, sample_of

        predictor = load_run(run, **how)
        data = run_folder.open_data(run, folder)
        part = data.parts["validation"] if data.parts["validation"].rows else data.parts["train"]
        batches, first = predictor.encoder.encode(raw, columns=None), 0
        for batch in batches:
            kept = batches.kept.popleft()
            if row <= first + batch.size:
                break
            first += batch.size
        else:
            raise ValueError(f"--row {row:,}: {', '.join(raw)} has {first:,} rows")
        names = [feature.name for feature in data.schema.id_features]
        rows = rows_of([batch.expanded(names)], names, batch.size)
        compared = sample_of(part, max(others, _READ), seed=0, by_groups=False).drawn(others)
        explained = contributions(predictor, rows, row - first - 1, compared)
        slicer = Slicer(rows, data, run_folder.raw_values(run))
    values = {name: kept.column(name)[row - first - 1].as_py() for name in kept.column_names}
    columns = {feature.name: data.schema.column_of(feature) for feature in data.schema.features}
    clocks = {f.name for f in data.schema.sparse if f.transform in TIME_TRANSFORMS}

    def value_of(feature: str) -> str:
        if feature in clocks:
            return slicer.value(feature, row - first - 1)
        return str(values.get(columns[feature], "absent"))

    example_row = example(predictor, f"row {row:,}", explained, value_of)
    if as_json:
        click.echo(json.dumps(_json(example_row, explained.left_over), indent=2))
        return
    _show(example_row, explained.left_over, {feature.name for feature in data.schema.sequences})


def _show(example_row: Example, left_over: Mapping[str, float], histories: Set[str]) -> None:
    """Prints what a row's values add; of a history that is cut the end, where the newest are."""

    def short(features: str, value: str, most: int) -> str:
        if len(value) <= most:
            return value
        is_history = not histories.isdisjoint(features.split(" + "))
        return f"…{value[1 - most :]}" if is_history else f"{value[: most - 1]}…"

    shown = new_table("feature", "value", *(f"adds to {label}" for label in left_over), left=("value",))
    for features, value, adds in example_row.adds:
        shown.add_row(features, short(features, value, 40), *map(_signed, adds.values()))
    shown.add_row("together", "", *map(_signed, left_over.values()))
    for label, (prediction, typical, unit) in example_row.predictions.items():
        click.echo(f"{label}: {prediction:.4g}, of a typical row {typical:.4g}; features add {unit}")
        for verb, sign in (("raised", 1), ("lowered", -1)):
            most = [one for one in example_row.adds if sign * one[2][label] > _LEAST]
            most.sort(key=lambda one: -abs(one[2][label]))
            named = [f"{n} = {short(n, v, 20)} ({_signed(by[label])})" for n, v, by in most[:_NAMED]]
            click.echo(f"  {verb} most by {', '.join(named)}" if most else f"  {verb} by nothing")
    print_table(shown)


def _json(example_row: Example, left_over: Mapping[str, float]) -> dict[str, Any]:
    """What a row's values add, for programs."""
    return {
        label: {
            "prediction": prediction,
            "typical_prediction": typical,
            "unit": unit,
            "adds": [
                {"features": names.split(" + "), "value": value, "adds": adds[label]}
                for names, value, adds in example_row.adds
            ],
            "together": left_over[label],
        }
        for label, (prediction, typical, unit) in example_row.predictions.items()
    }


def _signed(number: float) -> str:
    return f"{round(number, 4) + 0.0:+.4f}"  # 0 has no minus
