"""The command train, and what tune shares with it: the options of settings, and the data."""

from __future__ import annotations

import dataclasses
import json
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hotrows import models, optim
from hotrows.cli import config_files, publishing, streams, tracking
from hotrows.cli.commands import QUIET, command, declare, is_set
from hotrows.cli.options import bar, name_and_value, setting_option, with_options
from hotrows.cli.paths import FILE, OUT, TO_TRAIN
from hotrows.cli.runs import print_metrics
from hotrows.engine.distributed import job
from hotrows.runtime.remote import is_url, named, origin_of
from hotrows.runtime.units import format_bytes
from hotrows.table import BITS
from hotrows.train.config import GROUPS, SETTINGS, TrainConfig

if TYPE_CHECKING:
    from hotrows import data
    from hotrows.train.telling.result import Result

# Settings that a run which starts from another takes from it.
_OF_WHAT_IS_TRAINED = (
    *("model", "model_options", "label", "label_weights", "loss", "frozen"),
    *("row_optimizer", "linear_optimizer", "dense_optimizer", "table_dtype"),
)

data_options = with_options(
    click.argument("folder", metavar="DATA", nargs=-1, required=True),
    click.option("--schema", help="Of Parquet files: a .json file, or a .py file that defines it."),
    click.option("--validation", multiple=True, metavar="PARQUET", help="Samples that validate."),
    click.option("--test", multiple=True, metavar="PARQUET", help="Samples that test."),
)
_ROW_BITS = {str(bits): dtype for dtype, bits in BITS.items() if dtype != "float16"}
SOURCE_NAMES = ("folder", "schema", "validation", "test")  # of data_options
_row_options = with_options(
    click.option(
        "--lr",
        type=float,
        help="Learning rate of rows and of the dense part.  [default: that of each optimizer]",
    ),
    setting_option("row_optimizer"),
    click.option("--embedding-lr", type=float, help="Learning rate of rows, in place of --lr."),
    click.option(
        "--row-option",
        "row_options",
        multiple=True,
        metavar="NAME=VALUE",
        help="Argument of the row optimizer, such as weight_decay=1e-6; may be repeated.",
    ),
    click.option(
        "--row-bits",
        type=click.Choice(list(_ROW_BITS)),
        help="Bits of a stored weight: 4 or 8, with a scale for each row, 16 (bfloat16) or 32.",
    ),
)
# The sections of the help of train and tune: the groups of settings, and what else belongs there.
_OF_OUTPUT = ("trace", "trackers", "as_json")
_FURTHER_OPTIONS = {
    "Data and run": (*SOURCE_NAMES, "run", "config_file", "set_texts", "resume", *_OF_OUTPUT),
    "Publishing": ("publish", "publish_every", "publish_table_dtype"),
    "Optimisation": ("lr", "embedding_lr", "row_options", "row_bits"),
}
SECTIONS = {
    title: (*GROUPS.get(title, ()), *_FURTHER_OPTIONS.get(title, ()))
    for title in {**GROUPS, **_FURTHER_OPTIONS}
}
# What the help of train and tune shows where it is not asked for more.
COMMON = (
    *("model", "model_options", "loss", "epochs", "batch_size", "lr", "row_optimizer", "seed"),
    *("run", "resume", "config_file", "set_texts", "start_from"),
    *("fast_memory", "store", "device", "stream"),
)


def setting_options(leave_out: Sequence[str] = ()) -> Callable:
    """Decorates a command with an option for each setting that the command line has, group by group."""
    return with_options(
        *(
            _row_options if name == "row_optimizer" else setting_option(name)
            for names in GROUPS.values()
            for name in names
            if SETTINGS[name].option_name and name not in leave_out
        )
    )


@command(
    "train",
    "hotrows train enc --model deepfm",
    "hotrows train enc --run runs/a --resume",
    "hotrows train enc --model dlrm --fast-memory 2GiB --store file:tables --run runs/b",
    "hotrows train 'train/*.parquet' --schema shop.json --validation val.parquet --run runs/c",
    "hotrows train enc --model deepfm --epochs 1 --seed 1 --batch-size 512 --run runs/a",
    "hotrows train enc --model din --option activation=dice --row-option weight_decay=1e-5",
    "hotrows train enc --model mmoe --label-weight buy=2",
    "hotrows train ratings --loss huber:2 --metrics ndcg@10,mrr",
    "hotrows train enc --pretrained item=vectors.parquet --frozen item",
    "hotrows train enc --model my_model.py:TwoTowers --option dim=32",
    "hotrows train enc --model dlrm --optimizer rowwise_adagrad --embedding-lr 0.03 --precision bfloat16",
    "hotrows train enc --model dlrm --device cuda --fast-memory 40GiB --precision bfloat16",
    "hotrows train enc --config tuned.json --run runs/a",
    "hotrows train enc --config runs/a/config.json --set model_options.dim=32 --seed 2 --run runs/a2",
    "hotrows train enc2 --init-from runs/a --run runs/b",
    "hotrows train enc --init-from runs/a --run runs/live --stream folder:clicks --max-wait 0.2",
    "hotrows train enc --run runs/live --stream kafka://localhost:9092/clicks --alarm-calibration "
    "0.8,1.25",
    "hotrows train enc --model dlrm --publish published --publish-every 1s",
    "hotrows train enc --tracker mlflow --run runs/a",
    "torchrun --nproc-per-node 2 -m hotrows train enc --model dlrm --run-dir runs/d",
    "torchrun --nproc-per-node 2 -m hotrows train enc --stream folder:clicks --run-dir runs/e",
    sections={**SECTIONS, **streams.SECTION, **publishing.SECTION},
    common=COMMON,
)
@data_options
@click.option(
    "--run",
    "--run-dir",
    "run",
    type=TO_TRAIN,
    help="Folder or URL of the run; under torchrun --run-dir.  [default: runs/MODEL-NUMBER]",
)
@click.option(
    "--config",
    "config_file",
    type=FILE,
    help="Settings to begin with: a file of JSON, TOML or YAML, or a recipe (rmc1, rmc2, rmc3).",
)
@click.option(
    "--set",
    "set_texts",
    multiple=True,
    metavar="NAME=VALUE",
    help="Change a setting of --config, such as model_options.dim=32; may be repeated.",
)
@click.option("--resume", is_flag=True, help="Resume the run in --run, with its settings.")
@declare(
    "--trust-code",
    "trust",
    old=("--trust",),
    is_flag=True,
    help="Run the code that the run, or --config, names.",
)
@click.option(
    "--trace", type=OUT, help="Write the times of every stage here, for Perfetto, and a picture."
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@tracking.tracker_option
@streams.stream_options
@publishing.publish_options
@setting_options()
def train_command(
    run: Path | str | None,
    config_file: Path | None,
    set_texts: tuple[str, ...],
    resume: bool,
    trust: bool,
    trace: Path | None,
    trackers: tuple[str, ...],
    as_json: bool,
    **options: Any,
) -> None:
    """Train a model on prepared data.

    DATA is a folder that `hotrows prepare` wrote or, with --schema, Parquet files of numbered ids. The
    run keeps its best and its last checkpoint. Ctrl-C saves, and --resume continues.
    torchrun starts several ranks, which share tables and batches.
    """
    # Go on with a run, where asked or where the job was started again.
    source = {name: options.pop(name) for name in SOURCE_NAMES}
    if resume and run is None:
        raise click.UsageError("--resume needs the run to go on with: --run FOLDER")
    if resume and config_file is not None:
        raise click.UsageError("--resume goes on with the run's own settings: leave out --config")
    folder = None if run is None else _copy_of(run, options["scratch"])
    exists = folder is not None and (folder / "config.json").exists()
    resume = resume or (exists and job.restarted())
    with bar() as progress:
        resumed = folder if resume and exists else None
        fit = streams.stream_fit(options, resumed)
        callbacks = [*publishing.publishers(options), *tracking.trackers(trackers)]
        config, read = _first_config(resumed, config_file, set_texts, options["start_from"])
        options["model"] = models.confirmed(config.model, read, options["model"], trust)
        if options["start_from"] is not None:
            options["start_from"] = str(options["start_from"].resolve())
        config = config_with(config, options)
        if fit is not None:  # a stream is read once
            config = dataclasses.replace(config, epochs=config.epochs or 1)
        folder, result = _train(
            config, folder, source, progress, fit, callbacks=callbacks, resume=resume, trace=trace
        )
    if job.is_first() and as_json:
        click.echo(json.dumps({**result.to_json(), "run": named(folder)}, indent=2))
    elif job.is_first():
        _print_result(result, folder, is_stream=fit is not None)


def _train(
    config: TrainConfig,
    run: Path | None,
    source: Mapping[str, Any],
    progress: Callable[..., None],
    fit: Callable[..., Result] | None,
    callbacks: Sequence[Any],
    **how: Any,
) -> tuple[Path, Result]:
    """Trains on all ranks; returns the run's folder, and how it ended.

    source: arguments of `open_data`. fit: trains (default: on the data), given the trainer and
    `callbacks`. how: further arguments of `Trainer`.
    """
    check_data(**source)
    from hotrows.engine.distributed import machines, process_group
    from hotrows.train.loop.trainer import Trainer
    from hotrows.train.run import folder as run_folder
    from hotrows.train.run.signals import Interrupted
    from hotrows.train.telling.reports import shown_by

    ranks = process_group.start(config.timeout)
    encoded = machines.met(ranks, lambda: open_data(**source, cache=config.data_cache))
    model = config.model or models.default_name(encoded.schema, config.label)
    of_first = ranks.gather_objects(run or run_folder.next_folder(model))[0]
    run = run if run and origin_of(run) else of_first
    shown = shown_by(progress) if ranks.rank == 0 and not is_set(QUIET) else None
    try:
        trainer = Trainer(encoded, config, run, progress=shown, ranks=ranks, **how)
        fit = fit or Trainer.fit
        result = fit(trainer, callbacks=callbacks)
        return run, result
    except KeyboardInterrupt as stopped:
        code = ["--model", model] if ":" in model else []
        words = publishing.words(callbacks) + tracking.words(callbacks)
        option = "--run-dir" if job.is_several() else "--run"
        words = [option, named(run), "--resume", *code, *words]
        again = f"{_command_line(**source)} {shlex.join(words)}"
        error = Interrupted(f"{str(stopped) or 'interrupted'}; go on with: {again}")
        error.exit_code = getattr(stopped, "exit_code", error.exit_code)
        raise error from None


def _copy_of(run: Path | str, scratch: str | None) -> Path:
    """The folder of a run; of a URL this rank's copy of it."""
    if not is_url(run):
        return Path(run)
    from hotrows.engine.checkpoint.fetch import opened

    return opened(run, job.rank(), scratch)


def config_with(config: TrainConfig, options: Mapping[str, Any]) -> TrainConfig:
    """Returns the config with the options that the command line has set, which are not None."""
    try:
        return _changed(config, options)
    except ValueError as error:
        raise click.UsageError(str(error)) from None


def _changed(config: TrainConfig, options: Mapping[str, Any]) -> TrainConfig:
    changes = {name: value for name, value in options.items() if value is not None}
    dtype = _ROW_BITS.get(changes.pop("row_bits", ""))
    if dtype is not None and changes.setdefault("table_dtype", dtype) != dtype:
        raise ValueError("--row-bits and --table-dtype name different formats; give one of the two")
    kind, lr = changes.pop("row_optimizer", None), changes.pop("lr", None)
    row_lr = changes.pop("embedding_lr", lr)
    row_changes = _pairs(changes.pop("row_options", ()), "--row-option", "weight_decay=1e-6")
    row_changes |= {} if row_lr is None else {"lr": row_lr}
    if lr is not None:
        changes.setdefault("dense_lr", lr)
    if kind is not None or row_changes:
        base = optim.BY_NAME[kind]() if kind else config.row_optimizer or optim.Adagrad()
        changes |= {"row_optimizer": optim.replaced(base, row_changes), "linear_optimizer": None}
    weights = _pairs(changes.pop("label_weights", ()), "--label-weight", "buy=2")
    changes["label_weights"] = {**config.label_weights, **weights}
    changes["pretrained"] = {
        **config.pretrained,
        **{
            name: str(file)
            for name, file in _pairs(
                changes.pop("pretrained", ()), "--pretrained", "item=vectors.parquet"
            ).items()
        },
    }
    model_options = _pairs(changes.pop("model_options", ()), "--option", "dim=32")
    changes["model_options"] = {**config.model_options, **model_options}
    return dataclasses.replace(config, **changes)


def _pairs(texts: Sequence[str], option: str, such_as: str) -> dict[str, Any]:
    return dict(name_and_value(text, option, such_as) for text in texts)


def _first_config(
    resumed: Path | None, file: Path | None, set_texts: Sequence[str], start_from: Path | None
) -> tuple[TrainConfig, Path]:
    """The config that options change, and its file: of the resumed run, --config, --init-from, or the
    default.

    Of a run to start from, its model and what its rows hold are taken. set_texts: changes of it.
    """
    if file is not None:
        return config_files.read(file, set_texts), file
    config, earlier = TrainConfig(), resumed or start_from
    if earlier is not None:
        from hotrows.train.run import folder as run_folder

        config = run_folder.read_config(earlier)
    if resumed is None and start_from is not None:
        config = TrainConfig(**{name: getattr(config, name) for name in _OF_WHAT_IS_TRAINED})
    return config_files.changed(config, set_texts), (earlier or Path()) / "config.json"


def _command_line(
    folder: Sequence[str], schema: str | None, validation: Sequence[str], test: Sequence[str]
) -> str:
    """The command that trains on these data."""
    words = [*job.command(), "train", *folder, *(["--schema", schema] if schema else [])]
    for name, paths in (("--validation", validation), ("--test", test)):
        words += [word for path in paths for word in (name, path)]
    return shlex.join(words)


def open_data(
    folder: Sequence[str],
    schema: str | None,
    validation: Sequence[str],
    test: Sequence[str],
    cache: int | None = None,
) -> data.EncodedData:
    """Opens prepared data, or the Parquet files that a schema describes. cache: of data at a URL."""
    from hotrows import data

    if schema is None:
        return data.EncodedData.open(folder[0], cache)
    from hotrows.data.datasets import schemas

    return data.open_parquet(schemas.load(schema), folder, validation, test)


def check_data(
    folder: Sequence[str], schema: str | None, validation: Sequence[str], test: Sequence[str]
) -> None:
    """Raises what is wrong with arguments of `open_data`, and with a path, before PyTorch is imported."""
    if schema is not None:
        return
    if validation or test:
        raise click.UsageError("--validation and --test are of Parquet files: give their --schema")
    if len(folder) != 1:
        raise click.UsageError(f"expected one folder of prepared data, not {len(folder)} arguments")
    if not is_url(folder[0]):
        from hotrows.data.stored.encoded import read_manifest

        read_manifest(Path(folder[0]))


def _utilization(run: Path) -> Iterator[str]:
    """Yields how busy the machine was in training, where that was noted."""
    from hotrows.train.telling.metrics_log import read_metrics, utilization

    used = utilization([line for line in read_metrics(run) if line["kind"] == "train"])
    if not used:
        return
    machine, memory = used.pop("machine_busy", None), used.pop("peak_memory_bytes", None)
    of_all = "" if machine is None else f", {machine:.0%} with all programs"
    peak = "" if memory is None else f"; peak memory {format_bytes(int(memory))}"
    yield f"cores       {used.pop('cores_busy'):.0%} busy with training{of_all}{peak}"
    stages = ", ".join(f"{stage} {share:.0%}" for stage, share in used.items())
    yield f"stages      {stages} of the time, side by side"


def _labels(run: Path) -> Iterator[str]:
    """Yields how labels were joined, in a stream whose labels come later."""
    from hotrows.data.streams.state import LabelState
    from hotrows.train.telling.metrics_log import read_metrics

    windows = [line for line in read_metrics(run) if line["kind"] == "window"]
    if windows and "labels" in windows[-1]:
        yield f"labels      {LabelState(**windows[-1]['labels'])}"
        yield f"untrained   {windows[-1]['untrained']:,} impressions wait for labels"


def _print_result(result: Result, run: Path, is_stream: bool) -> None:
    validation = "last window" if is_stream else "validation"
    for part, metrics in ((validation, result.validation), ("test", result.test)):
        if metrics is not None:
            print_metrics(part, metrics)
    early = ", stopped early" if result.stopped_early else ""
    click.echo(f"steps       {result.steps:,}, best at {result.best_step:,}{early}")
    if result.samples_per_second:
        click.echo(f"throughput  {result.samples_per_second:,.0f} samples/s")
    else:
        click.echo("throughput  none: there was nothing left to train")
    for line in (*_labels(run), *_utilization(run)):
        click.echo(line)
    click.echo(f"run         {named(run)}")
    if not origin_of(run) and (run / "report.svg").exists():
        click.echo(f"picture     {run / 'report.svg'}")
