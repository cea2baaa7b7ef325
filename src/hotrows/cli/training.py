"""Commands about models: train, eval, predict, export, doctor."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import torch

from hotrows import data, nn, optim, run_folder
from hotrows.cli.options import BYTES, FILE, FOLDER, MODEL, Taught, bar, name_and_value
from hotrows.config import (
    DENSE_OPTIMIZERS,
    LINEAR_PATHS,
    PRECISIONS,
    SHARDINGS,
    WIRE_DTYPES,
    TrainConfig,
)
from hotrows.data import schemas
from hotrows.device import find
from hotrows.environment import environment
from hotrows.exchange import processes
from hotrows.export import export
from hotrows.measure import device_rates
from hotrows.metrics import Metrics
from hotrows.planning.budget import format_bytes
from hotrows.planning.on_device import PLANNING
from hotrows.schema import TABLE_DTYPES
from hotrows.storage.device_cache import WAYS
from hotrows.train import Progress as TrainProgress
from hotrows.train import Result, Trainer, load_run

_SHOWN_REASONS = 8


@click.command(
    "train",
    cls=Taught,
    epilog="""
    hotrows train enc --model deepfm
    hotrows train enc --model deepfm --epochs 1 --seed 1 --batch-size 512 --run runs/a
    hotrows train enc --model din --option activation=dice --row-option weight_decay=1e-5
    hotrows train enc --model mmoe --label-weight buy=2
    hotrows train enc --model my_model.py:TwoTowers --option dim=32
    hotrows train enc --model dlrm --optimizer rowwise_adagrad --lr 0.03 --precision bfloat16
    hotrows train enc --model dlrm --fast-memory 2GiB --store file:tables --run runs/b
    hotrows train enc --model dlrm --device cuda --fast-memory 40GiB --precision bfloat16
    hotrows train enc --config tuned.json --run runs/a
    hotrows train enc --run runs/a --resume
    hotrows train enc2 --from runs/a --run runs/b
    hotrows train 'train/*.parquet' --schema shop.json --validation val.parquet --run runs/c
    torchrun --nproc-per-node 2 -m hotrows train enc --model dlrm --run-dir runs/d
    """,
)
@click.argument("folder", metavar="DATA", nargs=-1, required=True)
@click.option("--schema", help="Of Parquet files: a .json file, or a .py file that defines it.")
@click.option("--validation", multiple=True, metavar="PARQUET", help="Rows that validate.")
@click.option("--test", multiple=True, metavar="PARQUET", help="Rows that test.")
@click.option("--model", type=MODEL, help="What to train. [dlrm]")
@click.option(
    "--option",
    "options",
    multiple=True,
    metavar="NAME=VALUE",
    help="An argument of the model, such as dim=32 or top=[256,128]; may be repeated.",
)
@click.option(
    "--run",
    "--run-dir",
    "run",
    type=FOLDER,
    help="The run's folder; under torchrun --run-dir, as it takes --run for its own. [runs/MODEL-NUMBER]",
)
@click.option(
    "--config",
    "config_file",
    type=FILE,
    help="Settings to begin with, as tune writes them; what is said here comes first.",
)
@click.option("--resume", is_flag=True, help="Go on with --run, with its settings.")
@click.option("--label", help="Which of several labels to train. [the first]")
@click.option(
    "--label-weight",
    "label_weights",
    multiple=True,
    metavar="LABEL=NUMBER",
    help="Of a label in the loss of a model that learns several. [1]",
)
@click.option(
    "--from",
    "start_from",
    type=FOLDER,
    metavar="RUN",
    help="Begin with what RUN has learned, its model and optimizers.",
)
@click.option("--epochs", type=int, help="How often all rows are read. [1]")
@click.option("--steps", type=int, help="Batches in all, in place of --epochs.")
@click.option("--batch-size", type=int, help="Rows a step. [64 to 8192, by the rows there are]")
@click.option("--optimizer", type=click.Choice(sorted(optim.BY_NAME)), help="Of rows. [adagrad]")
@click.option("--lr", type=float, help="Learning rate of rows.")
@click.option(
    "--row-option",
    "row_options",
    multiple=True,
    metavar="NAME=VALUE",
    help="An argument of the row optimizer, such as weight_decay=1e-6; may be repeated.",
)
@click.option("--dense-optimizer", type=click.Choice(DENSE_OPTIMIZERS), help="[adam]")
@click.option("--dense-lr", type=float, help="Learning rate of the dense part.")
@click.option("--clip-norm", type=float, help="Largest norm of the dense gradients.")
@click.option("--precision", type=click.Choice(PRECISIONS), help="Of the dense part. [float32]")
@click.option("--table-dtype", type=click.Choice(TABLE_DTYPES), help="Of stored rows. [float32]")
@click.option("--seed", type=int, help="Of first values and of the order of rows. [0]")
@click.option("--shuffle/--no-shuffle", default=None, help="Read rows in random order. [shuffle]")
@click.option(
    "--linear-paths", type=click.Choice(LINEAR_PATHS), help="plain: bits as of any run. [auto]"
)
@click.option(
    "--fast-memory", type=BYTES, help="Rows held in memory, such as 2GiB. [all]", metavar="SIZE"
)
@click.option("--store", help="Where all rows live: memory, or file:PATH. [memory]")
@click.option(
    "--policy",
    help="Which rows stay in fast memory: lookahead, lookahead:BATCHES, lru, frequency, hot. "
    "[lookahead]",
)
@click.option(
    "--sharding",
    type=click.Choice(SHARDINGS),
    help="Where the rows of tables are among ranks. [auto]",
)
@click.option("--micro-batches", type=int, help="In how many parts a batch is learned from. [1]")
@click.option(
    "--pack-parts",
    type=int,
    help="Packs that tables of equal attributes are dealt to. [1, behind a cache --planning-threads]",
)
@click.option(
    "--planning-threads",
    type=int,
    help="That plan packs side by side. [1, beside a device all cores but 2, at most 8]",
)
@click.option(
    "--planning",
    type=click.Choice(PLANNING),
    help="Where batches are planned; on a device those of one id a feature, of tables held there. [host]",
)
@click.option(
    "--wire-dtype", type=click.Choice(WIRE_DTYPES), help="Of rows between ranks. [float32]"
)
@click.option("--timeout", type=float, help="Seconds to wait for a rank that is silent. [300]")
@click.option("--device", help="Where fast memory and the model are: cpu, cuda. [cpu]")
@click.option(
    "--way", type=click.Choice(WAYS), help="Of rows between host memory and the device. [direct]"
)
@click.option(
    "--lanes", type=int, help="Of the device, on which packs are worked on side by side. [1]"
)
@click.option("--compile/--no-compile", default=None, help="The model, by torch.compile. [no]")
@click.option("--cuda-graph/--no-cuda-graph", default=None, help="Launch whole steps at once. [no]")
@click.option("--in-flight", type=int, help="Batches that may move rows at once. [4]")
@click.option(
    "--trace", type=FILE, help="Write the times of every stage here, for Perfetto, and a picture."
)
@click.option("--evaluate-every", type=int, help="Steps. [quarters of epoch 1, ends of epochs]")
@click.option("--checkpoint-every", type=int, help="Steps. [at evaluations alone]")
@click.option("--keep-last", type=int, help="Checkpoints that stay beside the best. [1]")
@click.option("--full-every", type=int, help="Checkpoints of which one holds all rows. [1]")
@click.option(
    "--background-checkpoints/--no-background-checkpoints",
    default=None,
    help="Train on while they are written. [background]",
)
@click.option("--warmup-steps", type=int, help="Steps over which learning rates rise. [0]")
@click.option("--decay-factor", type=float, help="What a plateau multiplies the rates with. [0.3]")
@click.option("--decay-patience", type=int, help="Evaluations that make a plateau. [2]")
@click.option("--stop-patience", type=int, help="Evaluations without a better AUC to stop at. [4]")
def train_command(
    folder: tuple[str, ...],
    schema: str | None,
    validation: tuple[str, ...],
    test: tuple[str, ...],
    run: Path | None,
    config_file: Path | None,
    resume: bool,
    trace: Path | None,
    options: tuple[str, ...],
    **given: Any,
) -> None:
    """Train a model on prepared data.

    Under torchrun, every rank holds a share of the tables and reads a share of every batch.

    DATA is a folder that `hotrows prepare` wrote; or, with --schema, Parquet files whose ids are
    numbers already.

    Evaluates on the validation part, keeps the best and the last checkpoint, and reports on the
    test part at the end. Ctrl-C saves; --resume goes on to the same bits.
    """
    if resume and run is None:
        raise click.UsageError("--resume needs the run to go on with: --run FOLDER")
    if resume and config_file is not None:
        raise click.UsageError("--resume goes on with the run's own settings: leave out --config")
    written = None if config_file is None else _read_config(config_file)
    if processes.restarted() and run is not None and (run / "config.json").exists():
        resume = True
    begun = resume and run is not None and (run / "config.json").exists()
    start_from = given["start_from"]
    if begun and run:
        config = run_folder.read_config(run)
    else:
        config = _like_run(start_from) if written is None else written
    given["start_from"] = start_from and str(start_from.resolve())
    config = with_options(config, options, given)
    ranks = processes.start(config.timeout)
    run = run or run_folder.next_folder(Path("runs"), config.model.rpartition(":")[2].lower())
    run = ranks.gather_objects(run)[0]
    encoded = opened(folder, schema, validation, test)
    try:
        with bar() as progress:
            trainer = Trainer(
                encoded,
                config,
                run,
                resume=resume,
                progress=_train_progress(progress) if ranks.rank == 0 else None,
                trace=trace,
                ranks=ranks,
            )
            if ranks.rank == 0:
                _print_reasons(trainer.placing.reasons, run)
            result = trainer.fit()
    except KeyboardInterrupt as stopped:
        again = _again(folder, schema, validation, test)
        raise KeyboardInterrupt(
            f"{stopped or 'interrupted'}; go on with: {again} --run {run} --resume"
        ) from None
    if ranks.rank == 0:
        _print_result(result, run)


def _print_reasons(reasons: Sequence[str], run: Path) -> None:
    """The first of them; the run keeps all."""
    for reason in reasons[:_SHOWN_REASONS]:
        print(reason, file=sys.stderr)
    if len(reasons) > _SHOWN_REASONS:
        left = len(reasons) - _SHOWN_REASONS
        print(f"and {left:,} more in {run / 'placing.json'}", file=sys.stderr)


def _print_result(result: Result, run: Path) -> None:
    for part, metrics in (("validation", result.validation), ("test", result.test)):
        if metrics is not None:
            _print_metrics(part, metrics)
    speed = f"{result.samples_per_second:,.0f} samples/s" if result.samples_per_second else ""
    early = ", stopped early" if result.stopped_early else ""
    click.echo(f"steps       {result.steps:,}, best {result.best_step:,}{early}")
    click.echo(f"throughput  {speed}")
    click.echo(f"run         {run}")
    if (run / "report.png").exists():
        click.echo(f"picture     {run / 'report.png'}")


def _like_run(run: Path | None) -> TrainConfig:
    """A config for what another run has learned: its model and what its rows hold."""
    if run is None:
        return TrainConfig()
    learned = run_folder.read_config(run)
    names = (
        "model", "model_options", "label", "label_weights", "row_optimizer", "dense_optimizer",
        "table_dtype",
    )  # fmt: skip
    return TrainConfig(**{name: getattr(learned, name) for name in names})


def _read_config(path: Path) -> TrainConfig:
    """What tune has written, or a run's config.json."""
    try:
        return TrainConfig.load(path)
    except FileNotFoundError:
        raise ValueError(f"there is no {path}; `hotrows tune` writes one") from None
    except (ValueError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{path} is no training configuration, as `hotrows tune` or a run writes it: {error}"
        ) from None


def _again(
    given: tuple[str, ...], schema: str | None, validation: Sequence[str], test: Sequence[str]
) -> str:
    """The command that reads the same data again."""
    words = ["hotrows", "train", *given, *(["--schema", schema] if schema else [])]
    for name, places in (("--validation", validation), ("--test", test)):
        words += [word for place in places for word in (name, place)]
    return shlex.join(words)


def opened(
    given: tuple[str, ...], schema: str | None, validation: Sequence[str], test: Sequence[str]
) -> data.EncodedData:
    """Prepared data, or the Parquet files that a schema describes."""
    if schema is not None:
        return data.open_parquet(schemas.load(schema), given, validation, test)
    if validation or test:
        raise click.UsageError("--validation and --test are of Parquet files: give their --schema")
    if len(given) != 1:
        raise click.UsageError(f"expected one folder of prepared data, not {len(given)} arguments")
    return data.EncodedData.open(given[0])


@click.command(
    "eval",
    cls=Taught,
    epilog="""
    hotrows eval runs/a
    hotrows eval runs/a --part validation --checkpoint last --json
    """,
)
@click.argument("run", type=FOLDER)
@click.option("--part", type=click.Choice(["train", "validation", "test"]), default="test")
@click.option("--checkpoint", "which", type=click.Choice(["best", "last"]), default="best")
@click.option("--data", "folder", type=FOLDER, help="The data, where it has moved.")
@click.option("--json", "as_json", is_flag=True, help="Print all metrics as JSON.")
def eval_command(run: Path, part: str, which: str, folder: Path | None, as_json: bool) -> None:
    """Measure a run on held-out data.

    Prints AUC, log loss and calibration of RUN, by default on the test part of its data.
    """
    encoded = run_folder.open_data(run, folder)
    predictor = load_run(run, which)
    with bar() as progress:
        metrics = predictor.evaluate(
            encoded.parts[part], lambda done, total: progress("evaluating", done, total)
        )
    if as_json:
        click.echo(json.dumps(metrics.to_json(), indent=2))
    else:
        _print_metrics(part, metrics)


@click.command(
    "predict",
    cls=Taught,
    epilog="""
    hotrows predict runs/a test.txt --out probabilities.txt
    hotrows predict runs/a 's3://bucket/new/*.parquet' --out probabilities.txt
    zcat day_23.gz | head -1000 > some.txt && hotrows predict runs/a some.txt
    """,
)
@click.argument("run", type=FOLDER)
@click.argument("raw", nargs=-1, required=True)
@click.option("--out", type=FILE, help="Standard output by default.")
@click.option("--checkpoint", "which", type=click.Choice(["best", "last"]), default="best")
def predict_command(run: Path, raw: tuple[str, ...], out: Path | None, which: str) -> None:
    """Predict the clicks of raw rows.

    Prints one probability a line for each row of RAW, in order; of a model with several labels one
    for each, with tabs between.

    RAW is text or Parquet with the columns that the data was prepared from, in any order where they
    have names; others are ignored. Labels may be missing. A feature's column that is missing counts as
    missing values, and values that training has not seen are read as unknown.
    """
    predictor = load_run(run, which)
    batches = run_folder.open_encoder(run).encode(raw)
    with _lines_to(out) as write, bar() as progress:
        done = 0
        for probabilities in predictor.predict(batches):
            write("".join(f"{_line(p)}\n" for p in probabilities.tolist()))
            done += len(probabilities)
            progress("predicting", done, None)


@click.command(
    "export",
    cls=Taught,
    epilog="""
    hotrows export runs/a --out model
    hotrows export runs/a --out model --checkpoint last
    """,
)
@click.argument("run", type=FOLDER)
@click.option("--out", type=FOLDER, required=True, help="A new folder for the model.")
@click.option("--checkpoint", "which", type=click.Choice(["best", "last"]), default="best")
def export_command(run: Path, out: Path, which: str) -> None:
    """Write a trained model as plain files.

    Safetensors and JSON that PyTorch reads without hotrows: the dense part of RUN, and a file of
    weights for each of its tables.
    """
    with bar() as progress:
        export(run, out, which, progress=progress)
    files = list((out / "tables").iterdir())
    size = format_bytes(sum(file.stat().st_size for file in files))
    click.echo(f"{out}: model.safetensors and {len(files):,} tables, {size}")


@click.command("doctor", cls=Taught, epilog="hotrows doctor\nhotrows doctor --batch-size 2048")
@click.option("--batch-size", type=click.IntRange(1), default=8192, show_default=True)
def doctor_command(batch_size: int) -> None:
    """Show what was found on this machine.

    Cores, memory, native core, PyTorch, GPU with its memory and how fast it is read, and the fastest
    path of each linear layer, measured.
    """
    found = environment()
    for name, value in found.items():
        click.echo(f"{name.replace('_', ' '):<16} {'none' if value is None else value}")
    if found["gpu"] is not None:
        click.echo("\ndevice, measured, in GB/s:")
        for name, rate in device_rates(find("cuda")).items():
            click.echo(f"  {name:<36} {rate / 1e9:,.1f}")
    click.echo(f"\nlinear paths of DLRM's layers at batch {batch_size:,}, measured:")
    for product, path in measured_paths(batch_size).items():
        click.echo(f"  {product:<36} {path}")


def measured_paths(batch_size: int) -> dict[str, str]:
    """The fastest path of each product of DLRM's larger layers, in both precisions."""
    model = torch.nn.Sequential(torch.nn.Linear(512, 256), torch.nn.Linear(367, 512))
    return {
        product: path
        for precision in PRECISIONS
        for product, path in nn.choose_linear_paths(
            model, batch_size, getattr(torch, precision)
        ).items()
    }


def _line(probability: float | list[float]) -> str:
    """As predict prints it."""
    if isinstance(probability, list):
        return "\t".join(map(_line, probability))
    return f"{probability:.7g}"


def with_options(config: TrainConfig, options: Sequence[str], given: dict) -> TrainConfig:
    """The config with what was said on the command line."""
    said = {name: value for name, value in given.items() if value is not None}
    kind, lr = said.pop("optimizer", None), said.pop("lr", None)
    changes = _row_options(said.pop("row_options")) | ({} if lr is None else {"lr": lr})
    if kind is not None or changes:
        base = optim.BY_NAME[kind]() if kind else config.row_optimizer or optim.Adagrad()
        said["row_optimizer"] = optim.replaced(base, changes)
    weights = [
        name_and_value(text, "--label-weight", "buy=2") for text in said.pop("label_weights")
    ]
    if weights:
        said["label_weights"] = {**config.label_weights, **dict(weights)}
    if options:
        said["model_options"] = {**config.model_options, **dict(map(name_and_value, options))}
    return dataclasses.replace(config, **said)


def _row_options(given: Sequence[str]) -> dict[str, Any]:
    return dict(name_and_value(text, "--row-option", "weight_decay=1e-6") for text in given)


def _print_metrics(part: str, metrics: Metrics) -> None:
    for label, of in metrics.tasks.items():
        _print_metrics(f"{part} {label}", of)
    if metrics.tasks:
        part += " mean"
    grouped = "" if math.isnan(metrics.gauc) else f"gAUC {metrics.gauc:.6f}  "
    click.echo(
        f"{part:<11} AUC {metrics.auc:.6f}  {grouped}log loss {metrics.log_loss:.6f}  "
        f"calibration {metrics.calibration:.4f}  ({metrics.samples:,} rows)"
    )


@contextmanager
def _lines_to(out: Path | None) -> Iterator[Callable[[str], Any]]:
    """Writes to standard output, or aside and renamed when all went well."""
    if out is None:
        yield sys.stdout.write
        sys.stdout.flush()
        return
    part = out.with_name(out.name + ".part")
    try:
        with open(part, "w") as file:
            yield file.write
        os.replace(part, out)
    finally:
        part.unlink(missing_ok=True)


def _train_progress(progress: Callable[..., None]) -> Callable[[TrainProgress], None]:
    """Shows a bar, and a line per evaluation that stays."""

    def show(now: TrainProgress) -> None:
        note = ""
        if now.loss is not None and now.samples_per_second is not None:
            note = f"loss {now.loss:.4f}  {now.samples_per_second:,.0f} samples/s"
        if now.hit_rate is not None:
            note += f"  hits {now.hit_rate:.1%}  in {_megabytes(now.bytes_in)}"
            note += f"  out {_megabytes(now.bytes_out)}"
        if now.waited is not None and now.waited > 0.01:
            note += f"  waits {now.waited:.0%} ({now.waited_for})"
        progress("evaluating" if now.stage == "evaluate" else "training", now.done, now.total, note)
        if now.validation is not None:
            found = now.validation
            print(
                f"step {now.done:,} of {now.total:,}: validation AUC {found.auc:.6f}, "
                f"log loss {found.log_loss:.6f}",
                file=sys.stderr,
            )

    return show


def _megabytes(per_second: float | None) -> str:
    return f"{(per_second or 0) / 1e6:,.1f} MB/s"
