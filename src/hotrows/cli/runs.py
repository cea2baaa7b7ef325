"""Commands about trained runs: eval, predict, export."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hotrows.cli.commands import QUIET, command, declare, is_set
from hotrows.cli.options import bar, names_of, of_function, option, run_options
from hotrows.cli.paths import FOLDER, OUT, Output
from hotrows.cli.predictions import FORMATS, predictions_to
from hotrows.runtime.atomic_files import STDOUT
from hotrows.runtime.remote import named
from hotrows.runtime.units import format_bytes

if TYPE_CHECKING:
    from hotrows.train.metrics import Metrics


@command("eval", "hotrows eval runs/a", "hotrows eval runs/a --part validation --checkpoint last --json")
@run_options
@of_function("train.loop.predictor:load_run", "device")
@option(
    "--part", type=click.Choice(["train", "validation", "test"]), default="test", help="Part of the data."
)
@click.option("--data", "folder", type=FOLDER, help="The data of the run, if it has moved.")
@click.option(
    "--metrics",
    help="More metrics within groups, such as ndcg@10,hit@5,mrr.  [default: those of the run]",
)
@click.option("--json", "as_json", is_flag=True, help="Print all metrics as JSON.")
def eval_command(
    run: Path, part: str, folder: Path | None, metrics: str | None, as_json: bool, **how: Any
) -> None:
    """Measure a run on held-out data.

    Prints AUC, log loss and calibration of RUN, or the metrics of its kind of label, by default on the
    test part of its data.
    """
    with bar() as progress:
        from hotrows.train import load_run
        from hotrows.train.run import folder as run_folder

        predictor = load_run(run, **how)
        encoded = run_folder.open_data(run, folder)
        if not encoded.parts[part].rows:
            raise ValueError(
                f"the {part} part of {encoded.path} has no samples: choose another --part, "
                f"or prepare the data with another split"
            )
        evaluated = predictor.evaluate(
            encoded.parts[part], lambda done, total: progress("evaluating", done, total), metrics
        )
    if as_json:
        click.echo(json.dumps(evaluated.to_json(), indent=2))
    else:
        print_metrics(part, evaluated)


@command(
    "predict",
    "hotrows predict runs/a test.txt --out probabilities.txt",
    "hotrows predict runs/a new.parquet --out scored.parquet --columns all",
    "hotrows predict runs/a 's3://bucket/new/*.parquet' --out scored.csv --columns user,item",
    "zcat day_23.gz | head -1000 > some.txt && hotrows predict runs/a some.txt",
)
@run_options
@of_function("train.loop.predictor:load_run", "device")
@click.argument("raw", nargs=-1, required=True)
@click.option(
    "--out",
    type=OUT,
    help="FILE.csv, .tsv or .parquet: columns with a header; any other file has a line for each row.  "
    "[default: standard output]",
)
@click.option(
    "--columns",
    metavar="NAMES",
    help="Columns of RAW to write next to the predictions, such as user,item, or all.  [default: none]",
)
@declare(
    "--strict",
    "strict",
    old=("--require-columns",),
    is_flag=True,
    help="Fail if RAW lacks the column of a feature, or if missing or unknown values are far more, or "
    "fewer, than in the training data.",
)
def predict_command(
    run: Path, raw: tuple[str, ...], out: Path | None, columns: str | None, strict: bool, **how: Any
) -> None:
    """Predict the labels of raw samples.

    Prints one probability a line (of a label that is a number, the number) for each sample of RAW, in
    order; of a model with several labels one for each, with tabs between.

    RAW is text or Parquet with the columns that the data was prepared from, in any order if they have
    names; others are ignored. A feature's column that is missing counts as missing values
    and values that training has not seen as unknown. Standard error gets their rates, a warning if these
    are far from the training data's (--strict: an error), and metrics if RAW has labels.
    """
    if columns and out not in (None, STDOUT) and out.suffix.lower() not in FORMATS:
        raise click.UsageError(f"--columns needs --out FILE with {', '.join(FORMATS)}, not {out.name}")
    kept = None if columns == "all" else tuple(filter(None, (columns or "").split(",")))
    with bar() as progress:
        from hotrows.data.raw.files import find_files

        find_files(raw)
        from hotrows.train import load_run
        from hotrows.train.loop import evaluate

        predictor = load_run(run, **how)
        batches = predictor.encoder.encode(raw, columns=kept, require_columns=strict)
        evaluated, done = list[evaluate.Evaluated](), 0
        with predictions_to(out, predictor.prediction_names, beside=kept != ()) as write:
            for batch, logits in predictor.logits(batches):
                write(predictor.predictions(logits), batches.kept.popleft() if kept != () else None)
                if batch.labels is not None:
                    evaluated.append((logits, predictor.targets(batch), batch.groups))
                done += len(logits)
                progress("predicting", done, None)
            if strict and (far := batches.rates.far):
                raise ValueError(f"--strict: {'; '.join(far)}; correct the input, or leave out --strict")
    if not is_set(QUIET):
        click.echo(batches.rates.summary(), err=True)
    if evaluated:
        print_metrics("labels", evaluate.metrics_of(predictor, evaluated), err=True)


@command(
    "export",
    "hotrows export runs/a --out model",
    "hotrows export runs/a --out model --checkpoint last --state",
    "hotrows export runs/a --format onnx --table-dtype int8 --out bundle",
    "hotrows export runs/a --format onnx --precision auto --out bundle",
    "hotrows export runs/a --format onnx --shared user,history --out bundle",
    "hotrows export runs/a --vectors item --out items.npy",
)
@run_options
@of_function(
    "serving.export.whole:export",
    out={"type": Output(path_type=Path), "help": "The new folder for the model; of --vectors a file."},
    format={},
    table_dtype={},
    shared={"default": None},
    precision={"type": click.Choice(["float32", "bfloat16", "int8", "auto"])},
    state={},
)
@click.option(
    "--vectors",
    metavar="FEATURE",
    help="Write the vectors of the values of a feature, and nothing else: --out FILE.npy, .arrow or "
    ".parquet.",
)
def export_command(
    run: Path,
    out: Path,
    format: str,
    table_dtype: str | None,
    shared: str | None,
    precision: str,
    state: bool,
    vectors: str | None,
    **how: Any,
) -> None:
    """Write a trained model as plain files.

    Safetensors and JSON that PyTorch reads without hotrows: the dense part of RUN, and a file of
    weights for each of its tables. With --format onnx or pt2 a bundle, which turns raw rows into scores:
    see `hotrows serve`.
    """
    if vectors is not None:
        if format != "safetensors" or (table_dtype, shared, precision, state) != (
            None,
            None,
            "float32",
            False,
        ):
            raise click.UsageError(
                "--vectors writes vectors alone: without --state and options of bundles"
            )
        _export_vectors(run, out, vectors, **how)
        return
    with bar() as progress:
        from hotrows.serving.export.whole import export

        settings: dict[str, Any] = {
            "format": format,
            "table_dtype": table_dtype,
            "shared": names_of(shared),
            "precision": precision,
            "state": state,
        }
        export(run, out, progress=progress, **settings, **how)
    files = list((out / "tables").iterdir())
    size = format_bytes(sum(file.stat().st_size for file in files))
    program = "model.safetensors" if format == "safetensors" else f"model.{format}"
    click.echo(f"{named(out)}: {program} and {len(files):,} tables, {size}")
    if program != "model.safetensors":
        _print_differences(out, table_dtype or "float32")
        _print_precisions(out, precision)


def _print_differences(out: Path, table_dtype: str) -> None:
    """Prints what a bundle differs by from the run, in tables of fewer bits also on held-out samples."""
    from hotrows.train.metrics import word_of

    fields = json.loads((out / "export.json").read_text())
    largest = max(table["largest_error"] for table in fields["tables"])
    logits = fields["largest_difference"]
    click.echo(f"weights differ by at most {largest:.2g}, logits of random ids by {logits:.2g}")
    if table_dtype == "float32":
        return
    held_out = fields["held_out"]
    for label, values in held_out.get("labels", {}).items():
        click.echo(
            f"{held_out['part']} {label}: {word_of(values['metric'])} {values['bundle']:.6f}, of the run "
            f"{values['run']:.6f}, difference {values['bundle'] - values['run']:+.6f} "
            f"({held_out['rows']:,} samples)"
        )
    if not held_out.get("labels"):
        click.echo("no held-out samples of the run's data were found, so that its metric is not compared")


def _print_precisions(out: Path, wanted: str) -> None:
    """Prints how far scores with each precision are from those with float32, and which the bundle has."""
    if wanted == "float32":
        return
    fields = json.loads((out / "export.json").read_text())
    links = (loss["prediction"] for loss in fields["losses"].values())
    units = dict.fromkeys("probability" if link == "sigmoid" else "standard deviations" for link in links)
    for name, error in list(fields["precisions"].items())[1:]:
        auc = "" if error["auc"] is None else f"AUC by {error['auc']:.2g}, "
        click.echo(
            f"{name}: {error['part']} predictions differ by at most {error['prediction']:.2g} in "
            f"{' or '.join(units)}, {auc}their mean by {error['mean']:.2%} ({error['rows']:,} rows): "
            f"{'holds' if error['holds'] else 'too far'}"
        )
    if not fields["precisions"]:
        click.echo("no attention in the native core, or no held-out rows of the run's data to compare on")
    click.echo(f"precision: {fields['precision']}")


def _export_vectors(run: Path, out: Path, feature: str, **how: Any) -> None:
    OUT.convert(out, None, click.get_current_context())
    from hotrows.train import load_run
    from hotrows.train.loop.vectors import write_vectors

    predictor = load_run(run, **how)
    try:
        table = predictor.vectors(feature)
    finally:
        predictor.embedding.close()
    write_vectors(table, out)
    dim = table.schema.field("vector").type.list_size
    click.echo(f"{named(out)}: {table.num_rows:,} vectors of {dim:,} numbers")


def print_metrics(part: str, metrics: Metrics, err: bool = False) -> None:
    """Prints a line for each label, and one for the mean of several. err: on standard error."""
    from hotrows.train.metrics import base_log_loss

    for label, task in metrics.tasks.items():
        print_metrics(f"{part} {label}", task, err)
    if metrics.tasks:
        part += " mean"
    shown = {name: f"{value:.6f}" for name, value in metrics.shown().items()}
    if "calibration" in shown:
        scaled = f" (scale {metrics.scale:g})" if metrics.scales and not metrics.tasks else ""
        shown["calibration"] = f"{metrics.calibration:.4f}{scaled}"
    if "log loss" in shown and metrics.positive_rate >= 0 and not metrics.tasks:  # not nan
        shown["log loss"] += f" (base rate {base_log_loss(metrics.positive_rate):.6f})"
    numbers = "  ".join(f"{name} {value}" for name, value in shown.items())
    click.echo(f"{part:<11} {numbers}  ({metrics.samples:,} samples)", err=err)
