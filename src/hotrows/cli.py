"""The command line: a thin skin over the Python API, which prints nothing that the API could not.

Results go to standard output, progress and messages to standard error. Exit codes: 0 done,
1 failed, 2 wrong usage, 130 interrupted.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import torch
from rich.console import Console
from rich.logging import RichHandler
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

import hotrows
from hotrows import data, models, nn, optim, report, run_folder
from hotrows.config import DENSE_OPTIMIZERS, LINEAR_PATHS, PRECISIONS, TrainConfig
from hotrows.data import schemas, synth
from hotrows.data.description import Description, describe
from hotrows.data.profile import pays, row_bytes
from hotrows.environment import environment
from hotrows.export import export
from hotrows.metrics import Metrics
from hotrows.planning.budget import format_bytes, parse_bytes
from hotrows.simulate import Simulation, SlowMemory, advise, simulate
from hotrows.train import Progress as TrainProgress
from hotrows.train import Trainer, load_run

FOLDER = click.Path(file_okay=False, path_type=Path)
FILE = click.Path(dir_okay=False, path_type=Path)


class _Bytes(click.ParamType):
    """A size such as 64MiB."""

    name = "size"

    def convert(self, value: Any, param: Any, ctx: Any) -> int:
        try:
            return value if isinstance(value, int) else parse_bytes(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


_BYTES = _Bytes()


@dataclass
class _Session:
    """What holds for one call of the command line."""

    debug: bool = False


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs a command and exits; where it fails, with one line on standard error."""
    session = _Session()
    try:
        cli.main(arguments, prog_name="hotrows", standalone_mode=False, obj=session)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt) as stopped:
        _fail(str(stopped.__cause__ or "") or "interrupted", 130)
    except BrokenPipeError:  # hotrows predict ... | head
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except (ValueError, OSError) as error:
        if session.debug:
            raise
        _fail(str(error), 1)


def _fail(message: str, code: int) -> None:
    print(f"hotrows: {message}", file=sys.stderr)
    sys.exit(code)


class _Taught(click.Command):
    """A command whose examples keep their lines."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if self.epilog:
            with formatter.section("Examples"):
                for line in self.epilog.strip().splitlines():
                    formatter.write(f"  {line.strip()}\n")


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(hotrows.__version__, prog_name="hotrows")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
@click.pass_obj
def cli(session: _Session, debug: bool) -> None:
    """Trains click-through-rate models with large embedding tables.

    \b
    The whole way, on synthetic data:
      hotrows synth criteo --rows 1000000 --out raw
      hotrows prepare raw/train.txt --schema criteo --out enc
      hotrows describe enc
      hotrows train enc --model dlrm --run runs/a
      hotrows eval runs/a
      hotrows predict runs/a raw/train.txt --out probabilities.txt
    """
    session.debug = debug
    handler = RichHandler(console=_messages(), show_time=False, show_level=False, show_path=False)
    log = logging.getLogger("hotrows")
    log.handlers = [handler]
    log.setLevel(logging.INFO)


@cli.command(
    "synth",
    cls=_Taught,
    epilog="""
    hotrows synth criteo --rows 1000000 --out raw
    hotrows synth criteo --rows 100000 --out small --cardinality-scale 0.01
    """,
)
@click.argument("kind", type=click.Choice(["criteo"]))
@click.option("--rows", type=click.IntRange(1), required=True, help="How many rows.")
@click.option("--out", type=FOLDER, required=True, help="Where train.txt goes.")
@click.option("--seed", type=int, default=0, show_default=True, help="Another seed, other rows.")
@click.option(
    "--cardinality-scale",
    type=float,
    default=1.0,
    show_default=True,
    help="Multiplies how many values each field can take.",
)
def synth_command(kind: str, rows: int, out: Path, seed: int, cardinality_scale: float) -> None:
    """Make synthetic raw data.

    Rows as skewed and as learnable as Criteo's, in Criteo's raw format.
    """
    with _bar() as progress:
        path = synth.synth_criteo(
            rows,
            out,
            seed=seed,
            cardinality_scale=cardinality_scale,
            progress=lambda done, total: progress("making rows", done, total),
        )
    click.echo(path)


@cli.command(
    "prepare",
    cls=_Taught,
    epilog="""
    hotrows prepare train.txt --schema criteo --split position:0.8 --out enc
    hotrows prepare day_*.gz --schema criteo --split position:0.7,0.1,0.2 --out enc
    hotrows prepare clicks.csv --schema my_schema.py --out enc
    """,
)
@click.argument("raw", type=FILE, nargs=-1, required=True)
@click.option(
    "--schema",
    required=True,
    help=f"What the columns are: {', '.join(schemas.BY_NAME)}, a .json file, or a .py file that "
    "defines `schema`.",
)
@click.option("--out", type=FOLDER, required=True, help="A new folder for the encoded data.")
@click.option(
    "--split",
    default="fraction:0.8,0.1,0.1",
    show_default=True,
    help="Training, validation and test: fraction:A,B,C draws rows at random, position:A,B,C takes "
    "them in order; position:A takes validation from the end of the first A.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Of a split by fraction.")
@click.option("--threads", type=click.IntRange(1), help="All cores by default.")
def prepare_command(
    raw: tuple[Path, ...], schema: str, out: Path, split: str, seed: int, threads: int | None
) -> None:
    """Encode raw files for training.

    RAW is delimited text, plain or .gz, with or without a header, as the schema says.
    """
    with _bar() as progress:
        encoded = data.prepare(
            raw,
            schemas.load(schema),
            out,
            split=split,
            seed=seed,
            threads=threads,
            progress=progress,
        )
    rows = ", ".join(f"{part.rows:,} {name}" for name, part in encoded.parts.items())
    click.echo(f"{out}: {rows}")


@cli.command(
    "describe",
    cls=_Taught,
    epilog="""
    hotrows describe enc
    hotrows describe enc --picture skew.png
    """,
)
@click.argument("folder", metavar="DATA", type=FOLDER)
@click.option("--picture", type=FILE, help="Draw the skew into this PNG. [DATA/skew.png]")
@click.option("--dim", type=click.IntRange(1), default=16, show_default=True, help="Of the tables.")
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
def describe_command(folder: Path, picture: Path | None, dim: int, as_json: bool) -> None:
    """Show the size and skew of prepared data."""
    found = describe(data.EncodedData.open(folder), dim)
    drawn = report.draw_skew(found, picture or folder / "skew.png")
    if as_json:
        click.echo(json.dumps(found.to_json(), indent=2))
        return
    for name, part in found.parts.items():
        rate = "" if part.click_rate is None else f", {part.click_rate:.2%} clicks"
        click.echo(f"{name:<11}{part.rows:>14,} rows{rate}")
    click.echo(f"{'tables':<11}{found.table_bytes / 2**20:>14,.1f} MiB at dim {found.dim}, float32")
    Console(width=None if sys.stdout.isatty() else 120).print(_vocabulary_table(found))
    if drawn:
        click.echo(f"picture    {drawn}")


def _vocabulary_table(found: Description) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    columns = ("field", "rows", "seen", "missing", "unknown in test", "top row", "hottest 1 %")
    for column in (*columns, "zipf", "MiB"):
        table.add_column(column, justify="left" if column == "field" else "right")
    fields = {field.name: field for field in found.fields}
    for used in found.vocabularies:
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


def _profile_options(command: Callable) -> Callable:
    """The options that say which rows are hot."""
    options = (
        click.argument("folder", metavar="DATA", type=FOLDER),
        click.option(
            "--fast-memory",
            type=_BYTES,
            required=True,
            metavar="SIZE",
            help="What hot rows may take, such as 64MiB.",
        ),
        click.option(
            "--model", type=click.Choice(sorted(models.BY_NAME)), default="dlrm", show_default=True
        ),
        click.option(
            "--option",
            "options",
            multiple=True,
            metavar="NAME=VALUE",
            help="An argument of the model, such as dim=32; may be repeated.",
        ),
        click.option(
            "--optimizer",
            type=click.Choice(sorted(optim.BY_NAME)),
            default="adagrad",
            show_default=True,
            help="Of rows; its state takes fast memory too.",
        ),
        click.option(
            "--table-dtype", type=click.Choice(PRECISIONS), default="float32", show_default=True
        ),
        click.option(
            "--sample",
            type=float,
            default=0.05,
            show_default=True,
            help="The share of training rows that is counted; as much again is measured.",
        ),
        click.option(
            "--confidence", type=float, default=0.999, show_default=True, help="Of intervals."
        ),
        click.option("--seed", type=int, default=0, show_default=True, help="Of the samples."),
    )
    for option in reversed(options):
        command = option(command)
    return command


@cli.command(
    "profile",
    cls=_Taught,
    epilog="""
    hotrows profile enc --fast-memory 64MiB
    hotrows profile enc --fast-memory 1GiB --model deepfm --option dim=32 --optimizer adam
    """,
)
@_profile_options
@click.option("--json", "as_json", is_flag=True, help="Print all figures as JSON.")
def profile_command(folder: Path, as_json: bool, **given: Any) -> None:
    """Find the hot rows of prepared data.

    Chooses the rows that fast memory should hold by their accesses in a sample of DATA, and
    measures on another sample how many lookups they serve, and how many samples need no other row.
    """
    with _bar() as progress:
        found = _profiled(data.EncodedData.open(folder), progress, **given)
    worthwhile, reason = pays(found)
    if as_json:
        figures = {**found.to_json(), "pays": worthwhile, "reason": reason}
        click.echo(json.dumps(figures, indent=2))
        return
    Console(width=None if sys.stdout.isatty() else 120).print(_hot_table(found))
    click.echo(f"hot rows         {found.hot_rows:,}, {format_bytes(found.bytes)}")
    click.echo(f"hot lookups      {found.lookups} at {100 * found.confidence:g} % confidence")
    click.echo(f"all-hot samples  {found.samples}")
    click.echo(reason)


def _hot_table(found: data.Profile) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in ("vocabulary", "rows", "hot rows", "bytes", "share of lookups"):
        table.add_column(column, justify="left" if column == "vocabulary" else "right")
    for of in found.vocabularies:
        hot = (f"{of.hot_rows:,}", format_bytes(of.bytes), str(of.lookups))
        table.add_row(of.name, f"{of.rows:,}", *hot)
    return table


@cli.command(
    "regroup",
    cls=_Taught,
    epilog="""
    hotrows regroup enc --out enc-hot --fast-memory 64MiB
    hotrows train enc-hot --model dlrm
    """,
)
@_profile_options
@click.option("--out", type=FOLDER, required=True, help="A new folder for the regrouped data.")
@click.option("--force", is_flag=True, help="Even where it would not pay.")
def regroup_command(folder: Path, out: Path, force: bool, **given: Any) -> None:
    """Lay out data in hot and cold rows.

    Profiles DATA and writes it anew: first the samples that read hot rows alone, then the others,
    so that most batches train without slow memory. Refused where too few samples are all-hot.
    """
    encoded = data.EncodedData.open(folder)
    with _bar() as progress:
        found = _profiled(encoded, progress, **given)
        regrouped = data.regroup(encoded, found, out, force=force, progress=progress)
    hot, cold = regrouped.hot_and_cold()
    share = hot.rows / (hot.rows + cold.rows)
    click.echo(
        f"{out}: {hot.rows:,} all-hot and {cold.rows:,} cold training rows ({share:.1%} hot)"
    )


def _profiled(
    encoded: data.EncodedData,
    progress: Callable[..., None],
    *,
    model: str,
    options: Sequence[str],
    optimizer: str,
    table_dtype: str,
    **given: Any,
) -> data.Profile:
    """The profile for the tables of a model."""
    built = models.build(model, encoded.schema, **dict(map(_option, options)))
    tables = [dataclasses.replace(table, dtype=table_dtype) for table in built.tables]  # type: ignore
    return data.profile(
        encoded,
        bytes_per_row=row_bytes(tables, encoded.schema, optim.BY_NAME[optimizer]()),
        progress=progress,
        **given,
    )


@cli.command(
    "simulate",
    cls=_Taught,
    epilog="""
    hotrows simulate enc --fast-memory 64MiB --fast-memory 256MiB
    hotrows simulate enc --batches 1000 --picture curves.png
    hotrows simulate enc --samples-per-second 300000 --reads-per-second 60000
    """,
)
@click.argument("folder", metavar="DATA", type=FOLDER)
@click.option(
    "--model", type=click.Choice(sorted(models.BY_NAME)), default="dlrm", show_default=True
)
@click.option(
    "--option",
    "options",
    multiple=True,
    metavar="NAME=VALUE",
    help="An argument of the model, such as dim=32; may be repeated.",
)
@click.option("--optimizer", type=click.Choice(sorted(optim.BY_NAME)), help="Of rows. [adagrad]")
@click.option("--table-dtype", type=click.Choice(PRECISIONS), default="float32", show_default=True)
@click.option("--batch-size", type=click.IntRange(1), help="Rows a step. [as train chooses]")
@click.option(
    "--fast-memory",
    type=_BYTES,
    multiple=True,
    metavar="SIZE",
    help="Such as 64MiB; may be repeated. [1, 2, 5, 10, 20 and 50 % of the tables]",
)
@click.option("--batches", type=click.IntRange(1), help="How many are replayed. [an epoch]")
@click.option("--in-flight", type=click.IntRange(1), default=1, show_default=True)
@click.option("--seed", type=int, default=0, show_default=True, help="Of the order of rows.")
@click.option("--samples-per-second", type=float, help="Of training with all rows in memory.")
@click.option(
    "--reads-per-second",
    type=float,
    default=SlowMemory.reads_per_second,
    show_default=True,
    help="Rows that slow memory reads at random.",
)
@click.option(
    "--bytes-per-second",
    type=float,
    default=SlowMemory.bytes_per_second,
    show_default=True,
    help="What slow memory writes in sequence.",
)
@click.option("--writes-per-second", type=float, help="Rows, where they are written at random.")
@click.option("--picture", type=FILE, help="Draw misses over fast memory into this PNG.")
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
def simulate_command(
    folder: Path,
    options: tuple[str, ...],
    optimizer: str | None,
    samples_per_second: float | None,
    reads_per_second: float,
    bytes_per_second: float,
    writes_per_second: float | None,
    picture: Path | None,
    as_json: bool,
    **given: Any,
) -> None:
    """Say how much fast memory training needs.

    Replays the ids of the training part through caches of several sizes and policies, LRU and
    Bélády's optimum among them; no table is allocated. The first quarter of the batches fills the
    caches and is not counted.
    """
    with _bar() as progress:
        found = simulate(
            data.EncodedData.open(folder),
            model_options=dict(map(_option, options)),
            row_optimizer=optim.BY_NAME[optimizer]() if optimizer else None,
            progress=progress,
            **given,
        )
    slow = SlowMemory(reads_per_second, bytes_per_second, writes_per_second)
    advice = advise(found, samples_per_second=samples_per_second, slow=slow)
    drawn = report.draw_curves(found, picture, advice.knee) if picture else None
    if as_json:
        figures = {**found.to_json(), "advice": dataclasses.asdict(advice)}
        click.echo(json.dumps(figures, indent=2))
        return
    speeds = {
        policy: advise(found, policy, samples_per_second=samples_per_second, slow=slow).speeds
        for policy in found.policies
    }
    Console(width=None if sys.stdout.isatty() else 120).print(_simulation_table(found, speeds))
    click.echo(
        f"{found.rows:,.0f} distinct rows a batch of {found.batch_size:,}, {found.untouched:,.0f} of "
        f"them never read before; means of batches {found.skipped:,} to {found.batches:,}"
    )
    if drawn:
        click.echo(f"picture    {drawn}")
    click.echo(advice.sentence)


def _simulation_table(found: Simulation, speeds: dict[str, dict[int, float] | None]) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    columns = ("policy", "fast memory", "of all rows", "lookups hit", "rows hit", "misses")
    for column in (*columns, "MiB read", "MiB written", "speed"):
        if column != "speed" or any(speeds.values()):
            table.add_column(column, justify="left" if column == "policy" else "right")
    for of in found.measured:
        speed = speeds[of.policy]
        table.add_row(
            of.policy,
            format_bytes(of.fast_memory),
            f"{of.share:.1%}",
            f"{of.lookups_hit:.2%}",
            f"{of.rows_hit:.1%}",
            f"{of.misses:,.0f}",
            f"{of.bytes_read / 2**20:,.2f}",
            f"{of.bytes_written / 2**20:,.2f}",
            *([f"{speed[of.fast_memory]:.0%}"] if speed else []),
        )
    return table


@cli.command(
    "train",
    cls=_Taught,
    epilog="""
    hotrows train enc --model deepfm
    hotrows train enc --model deepfm --epochs 1 --seed 1 --batch-size 512 --run runs/a
    hotrows train enc --model dlrm --optimizer rowwise_adagrad --lr 0.03 --precision bfloat16
    hotrows train enc --model dlrm --fast-memory 2GiB --store file:tables --run runs/b
    hotrows train enc --run runs/a --resume
    """,
)
@click.argument("folder", metavar="DATA", type=FOLDER)
@click.option("--model", type=click.Choice(sorted(models.BY_NAME)), help="What to train. [dlrm]")
@click.option(
    "--option",
    "options",
    multiple=True,
    metavar="NAME=VALUE",
    help="An argument of the model, such as dim=32 or top=[256,128]; may be repeated.",
)
@click.option("--run", type=FOLDER, help="The run's folder. [runs/MODEL-NUMBER]")
@click.option("--resume", is_flag=True, help="Go on with --run, with its settings.")
@click.option("--epochs", type=int, help="How often all rows are read. [1]")
@click.option("--steps", type=int, help="Batches in all, in place of --epochs.")
@click.option("--batch-size", type=int, help="Rows a step. [64 to 8192, by the rows there are]")
@click.option("--optimizer", type=click.Choice(sorted(optim.BY_NAME)), help="Of rows. [adagrad]")
@click.option("--lr", type=float, help="Learning rate of rows.")
@click.option("--dense-optimizer", type=click.Choice(DENSE_OPTIMIZERS), help="[adam]")
@click.option("--dense-lr", type=float, help="Learning rate of the dense part.")
@click.option("--clip-norm", type=float, help="Largest norm of the dense gradients.")
@click.option("--precision", type=click.Choice(PRECISIONS), help="Of the dense part. [float32]")
@click.option("--table-dtype", type=click.Choice(PRECISIONS), help="Of stored rows. [float32]")
@click.option("--seed", type=int, help="Of first values and of the order of rows. [0]")
@click.option("--shuffle/--no-shuffle", default=None, help="Read rows in random order. [shuffle]")
@click.option(
    "--linear-paths", type=click.Choice(LINEAR_PATHS), help="plain: bits as of any run. [auto]"
)
@click.option(
    "--fast-memory", type=_BYTES, help="Rows held in memory, such as 2GiB. [all]", metavar="SIZE"
)
@click.option("--store", help="Where all rows live: memory, or file:PATH. [memory]")
@click.option(
    "--policy",
    help="Which rows stay in fast memory: lookahead, lookahead:BATCHES, lru, frequency, hot. "
    "[lookahead]",
)
@click.option("--in-flight", type=int, help="Batches that may move rows at once. [4]")
@click.option(
    "--trace", type=FILE, help="Write the times of every stage here, for Perfetto, and a picture."
)
@click.option("--evaluate-every", type=int, help="Steps. [quarters of epoch 1, ends of epochs]")
@click.option("--checkpoint-every", type=int, help="Steps. [at evaluations alone]")
@click.option("--warmup-steps", type=int, help="Steps over which learning rates rise. [0]")
@click.option("--decay-factor", type=float, help="What a plateau multiplies the rates with. [0.3]")
@click.option("--decay-patience", type=int, help="Evaluations that make a plateau. [2]")
@click.option("--stop-patience", type=int, help="Evaluations without a better AUC to stop at. [4]")
def train_command(
    folder: Path,
    run: Path | None,
    resume: bool,
    trace: Path | None,
    options: tuple[str, ...],
    **given: Any,
) -> None:
    """Train a model on prepared data.

    Evaluates on the validation part, keeps the best and the last checkpoint, and reports on the
    test part at the end. Ctrl-C saves; --resume goes on to the same bits.
    """
    if resume and run is None:
        raise click.UsageError("--resume needs the run to go on with: --run FOLDER")
    begun = resume and run is not None and (run / "config.json").exists()
    config = run_folder.read_config(run) if begun and run else TrainConfig()
    config = _with_options(config, options, given)
    run = run or run_folder.next_folder(Path("runs"), config.model)
    encoded = data.EncodedData.open(folder)
    try:
        with _bar() as progress:
            trainer = Trainer(
                encoded,
                config,
                run,
                resume=resume,
                progress=_train_progress(progress),
                trace=trace,
            )
            result = trainer.fit()
    except KeyboardInterrupt as stopped:
        raise KeyboardInterrupt(
            f"{stopped or 'interrupted'}; go on with: hotrows train {folder} --run {run} --resume"
        ) from None
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


@cli.command(
    "eval",
    cls=_Taught,
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
    with _bar() as progress:
        metrics = predictor.evaluate(
            encoded.parts[part], lambda done, total: progress("evaluating", done, total)
        )
    if as_json:
        click.echo(json.dumps(metrics.to_json(), indent=2))
    else:
        _print_metrics(part, metrics)


@cli.command(
    "predict",
    cls=_Taught,
    epilog="""
    hotrows predict runs/a test.txt --out probabilities.txt
    zcat day_23.gz | head -1000 > some.txt && hotrows predict runs/a some.txt
    """,
)
@click.argument("run", type=FOLDER)
@click.argument("raw", type=FILE)
@click.option("--out", type=FILE, help="Standard output by default.")
@click.option("--checkpoint", "which", type=click.Choice(["best", "last"]), default="best")
def predict_command(run: Path, raw: Path, out: Path | None, which: str) -> None:
    """Predict the clicks of raw rows.

    Prints one probability a line for each row of RAW, in order.

    RAW is laid out as the rows the data was prepared from; its label column may be missing. Values
    that training has not seen are read as unknown.
    """
    predictor = load_run(run, which)
    batches = run_folder.open_encoder(run).encode(raw)
    with _lines_to(out) as write, _bar() as progress:
        done = 0
        for probabilities in predictor.predict(batches):
            write("".join(f"{p:.7g}\n" for p in probabilities.tolist()))
            done += len(probabilities)
            progress("predicting", done, None)


@cli.command(
    "export",
    cls=_Taught,
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
    with _bar() as progress:
        export(run, out, which, progress=progress)
    files = list((out / "tables").iterdir())
    size = format_bytes(sum(file.stat().st_size for file in files))
    click.echo(f"{out}: model.safetensors and {len(files):,} tables, {size}")


@cli.command("doctor", cls=_Taught, epilog="hotrows doctor\nhotrows doctor --batch-size 2048")
@click.option("--batch-size", type=click.IntRange(1), default=8192, show_default=True)
def doctor_command(batch_size: int) -> None:
    """Show what was found on this machine.

    Cores, memory, native core, PyTorch, GPU, and the fastest path of each linear layer, measured.
    """
    found = environment()
    for name, value in found.items():
        click.echo(f"{name.replace('_', ' '):<12} {'none' if value is None else value}")
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


def _with_options(config: TrainConfig, options: Sequence[str], given: dict) -> TrainConfig:
    """The config with what was said on the command line."""
    said = {name: value for name, value in given.items() if value is not None}
    kind, lr = said.pop("optimizer", None), said.pop("lr", None)
    if kind is not None:
        said["row_optimizer"] = optim.BY_NAME[kind]()
    if lr is not None:
        base = said.get("row_optimizer") or config.row_optimizer or optim.Adagrad()
        said["row_optimizer"] = dataclasses.replace(base, lr=lr)
    if options:
        said["model_options"] = {**config.model_options, **dict(map(_option, options))}
    return dataclasses.replace(config, **said)


def _option(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals:
        raise click.UsageError(f"--option must be NAME=VALUE, such as dim=32, not {text!r}")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def _print_metrics(part: str, metrics: Metrics) -> None:
    click.echo(
        f"{part:<11} AUC {metrics.auc:.6f}  log loss {metrics.log_loss:.6f}  "
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


@contextmanager
def _bar() -> Iterator[Callable[..., None]]:
    """progress(stage, done, total, note): a bar on a terminal, nothing elsewhere."""
    columns = (
        TextColumn("{task.description:<12}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f} %"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )
    console = _messages()
    hidden = not console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=hidden) as bar:
        tasks: dict[str, Any] = {}

        def progress(stage: str, done: int, total: int | None, note: str = "") -> None:
            if stage not in tasks:
                for earlier in tasks.values():
                    bar.update(earlier, visible=False)
                tasks[stage] = bar.add_task(stage, total=total, note=note)
            bar.update(tasks[stage], completed=done, total=total, note=note, visible=True)

        yield progress


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


def _messages() -> Console:
    return Console(stderr=True, highlight=False)
