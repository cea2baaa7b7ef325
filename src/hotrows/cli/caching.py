"""Commands about fast memory and many ranks: profile, regroup, simulate."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from hotrows import data, models, optim, report, shapes
from hotrows.cli.options import (
    BYTES,
    FILE,
    FOLDER,
    MODEL,
    NUMBERS,
    Taught,
    bar,
    name_and_value,
    print_table,
)
from hotrows.data.profile import pays, row_bytes
from hotrows.measure import measure
from hotrows.planning.budget import format_bytes
from hotrows.planning.cost import Machine
from hotrows.planning.machines import MACHINES
from hotrows.planning.sharding_choice import KINDS
from hotrows.scale import Prediction, predict
from hotrows.schema import TABLE_DTYPES
from hotrows.simulate import Simulation, SlowMemory, advise, simulate


def _profile_options(command: Callable) -> Callable:
    """The options that say which rows are hot."""
    options = (
        click.argument("folder", metavar="DATA", type=FOLDER),
        click.option(
            "--fast-memory",
            type=BYTES,
            required=True,
            metavar="SIZE",
            help="What hot rows may take, such as 64MiB.",
        ),
        click.option("--model", type=MODEL, default="dlrm", show_default=True),
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
            "--table-dtype", type=click.Choice(TABLE_DTYPES), default="float32", show_default=True
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


@click.command(
    "profile",
    cls=Taught,
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
    with bar() as progress:
        found = _profiled(data.EncodedData.open(folder), progress, **given)
    worthwhile, reason = pays(found)
    if as_json:
        figures = {**found.to_json(), "pays": worthwhile, "reason": reason}
        click.echo(json.dumps(figures, indent=2))
        return
    print_table(_hot_table(found))
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


@click.command(
    "regroup",
    cls=Taught,
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
    with bar() as progress:
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
    built = models.build(model, encoded.schema, **dict(map(name_and_value, options)))
    tables = [dataclasses.replace(table, dtype=table_dtype) for table in built.tables]
    return data.profile(
        encoded,
        bytes_per_row=row_bytes(tables, encoded.schema, optim.BY_NAME[optimizer]()),
        progress=progress,
        **given,
    )


@click.command(
    "simulate",
    cls=Taught,
    epilog="""
    hotrows simulate enc --fast-memory 64MiB --fast-memory 256MiB
    hotrows simulate enc --batches 1000 --picture curves.png
    hotrows simulate enc --samples-per-second 300000 --reads-per-second 60000
    hotrows simulate enc --ranks 1,2,4,8 --machine cpu-25g
    hotrows simulate criteo-1tb --ranks 1,8,64,128 --machine h100 --picture scale.png
    """,
)
@click.argument("folder", metavar="DATA", type=FOLDER)
@click.option(
    "--ranks",
    type=NUMBERS,
    metavar="N,N,...",
    help=f"Predict steps on so many ranks instead. DATA may be one of {', '.join(shapes.NAMED)}.",
)
@click.option(
    "--machine",
    type=click.Choice(("measured", *MACHINES)),
    default="measured",
    show_default=True,
    help="Of each rank, with --ranks; measured: this one, and --link between ranks.",
)
@click.option(
    "--link",
    type=click.Choice([name for name in MACHINES if name.startswith("cpu")]),
    default="cpu-25g",
    show_default=True,
    help="Whose network connects ranks of a measured machine.",
)
@click.option(
    "--sharding", type=click.Choice(KINDS), default="auto", show_default=True, help="With --ranks."
)
@click.option("--wire-bytes", type=click.Choice(["2", "4"]), help="Of a number between ranks.")
@click.option("--micro-batches", type=click.IntRange(1), help="Slices of a step, with --ranks.")
@click.option("--memory", type=BYTES, metavar="SIZE", help="For tables on a rank, with --ranks.")
@click.option("--why", is_flag=True, help="With --ranks: say of each table where it goes, and why.")
@click.option("--model", type=MODEL, default="dlrm", show_default=True)
@click.option(
    "--option",
    "options",
    multiple=True,
    metavar="NAME=VALUE",
    help="An argument of the model, such as dim=32; may be repeated.",
)
@click.option("--optimizer", type=click.Choice(sorted(optim.BY_NAME)), help="Of rows. [adagrad]")
@click.option(
    "--table-dtype", type=click.Choice(TABLE_DTYPES), default="float32", show_default=True
)
@click.option("--batch-size", type=click.IntRange(1), help="Rows a step. [as train chooses]")
@click.option(
    "--fast-memory",
    type=BYTES,
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
    ranks: list[int] | None,
    machine: str,
    link: str,
    sharding: str,
    wire_bytes: str | None,
    micro_batches: int | None,
    memory: int | None,
    why: bool,
    **given: Any,
) -> None:
    """Say how much fast memory training needs, or, with --ranks, how fast many ranks would be.

    Replays the ids of the training part through caches of several sizes and policies, LRU and
    Bélády's optimum among them; no table is allocated. The first quarter of the batches fills the
    caches and is not counted.

    With --ranks nothing is replayed: a model of costs says what a step takes, what limits it and
    how tables are best dealt over ranks, on a machine that is measured or stated.
    """
    if ranks is not None:
        row_optimizer = optim.BY_NAME[optimizer]() if optimizer else None
        shape = _shape(folder, options, row_optimizer, given)
        shape = _with_step(shape, given["batch_size"], wire_bytes, micro_batches)
        on = _machine(machine, link)
        predicted = predict(shape, on, ranks, sharding=sharding, memory=memory)
        _show(predicted, picture, as_json, why)
        return
    with bar() as progress:
        found = simulate(
            data.EncodedData.open(folder),
            model_options=dict(map(name_and_value, options)),
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
    print_table(_simulation_table(found, speeds))
    click.echo(
        f"{found.rows:,.0f} distinct rows a batch of {found.batch_size:,}, {found.untouched:,.0f} of "
        f"them never read before; means of batches {found.skipped:,} to {found.batches:,}"
    )
    if drawn:
        click.echo(f"picture    {drawn}")
    click.echo(advice.sentence)


def _shape(
    folder: Path, options: Sequence[str], row_optimizer: optim.RowOptimizer | None, given: dict
) -> shapes.Shape:
    """Of prepared data, or of the name of a well-known workload."""
    if not folder.exists() and str(folder) in shapes.NAMED:
        return shapes.named(str(folder))
    return shapes.of_data(
        data.EncodedData.open(folder),
        given["model"],
        dict(map(name_and_value, options)),
        row_optimizer=row_optimizer,
        table_dtype=given["table_dtype"],
    )


def _with_step(
    shape: shapes.Shape, batch_size: int | None, wire_bytes: str | None, micro_batches: int | None
) -> shapes.Shape:
    """With what was asked for in place of the shape's own."""
    asked: dict[str, Any] = {
        "batch_size": batch_size,
        "wire_bytes": int(wire_bytes) if wire_bytes else None,
        "micro_batches": micro_batches,
    }
    named = {name: value for name, value in asked.items() if value is not None}
    return dataclasses.replace(shape, step=dataclasses.replace(shape.step, **named))


def _machine(name: str, link: str) -> Machine:
    if name != "measured":
        return MACHINES[name]
    stated = MACHINES[link]
    name = f"this machine, ranks joined as in {link}"
    return dataclasses.replace(measure(), name=name, outer=stated.outer)


def _show(found: Prediction, picture: Path | None, as_json: bool, why: bool) -> None:
    drawn = report.draw_scaling(found, picture) if picture else None
    if as_json:
        click.echo(json.dumps(found.to_json(), indent=2))
        return
    print_table(_scaling_table(found))
    size = format_bytes(int(found.shape.table_bytes))
    click.echo(
        f"{found.shape.name} ({found.shape.note}): {size} of tables, batch "
        f"{found.shape.step.batch_size:,} of all ranks; {found.machine.name}."
    )
    click.echo(
        "each: samples of a rank relative to the first line; parts of a step in ms; ahead: planning, "
        "loading or moves of a cache, beside it; held: by the fullest rank"
    )
    for point in found.points:
        words = point.refused or point.sharding(found.shape.loads)
        click.echo(f"{point.num_ranks:>6,} ranks  {words}")
        for reason in point.choice.reasons if why and point.choice else ():
            click.echo(f"              {reason}")
    if drawn:
        click.echo(f"picture    {drawn}")


def _scaling_table(found: Prediction) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    parts = ("dense", "gather", "pool", "update", "bytes", "messages", "reduces", "ahead")
    for column in ("ranks", "samples", "each", "step", *parts, "held", "limit"):
        table.add_column(column, justify="left" if column == "limit" else "right")
    for point in found.points:
        cost, share = point.cost, found.efficiency(point)
        if cost is None:
            table.add_row(f"{point.num_ranks:,}", *["–"] * 11, "memory")
            continue
        of = cost.parts
        ahead = max(cost.planning, cost.loading, cost.moving)
        reduces = cost.reduce + cost.exposed_reduce
        ms = [cost.seconds, *(of[name] for name in parts[:6]), reduces, ahead]
        table.add_row(
            f"{point.num_ranks:,}",
            _short(cost.samples_per_second),
            f"{share:.0%}",
            *(_short(seconds * 1e3) for seconds in ms),
            format_bytes(int(cost.held)),
            cost.limit,
        )
    return table


def _short(value: float) -> str:
    """Three digits: 0.0123, 45.6, 1,234, 12.3M."""
    if value >= 1e5:
        return f"{value / 1e6:.3g}M"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


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
