"""The command plan: how fast training would be on several ranks."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hotrows.cli.commands import command, declare
from hotrows.cli.options import BYTES, NUMBERS, new_table, option, print_table, setting_option
from hotrows.cli.paths import FOLDER, PICTURE
from hotrows.cli.training import config_with
from hotrows.runtime.units import format_bytes
from hotrows.train.config import TrainConfig
from hotrows.train.costs.machines import MACHINES, Machine

if TYPE_CHECKING:
    from rich.table import Table

    from hotrows.tools.tuning.scaling import Prediction
    from hotrows.train.costs.workload import Workload

_OF_TRAINING = ("model", "model_options", "row_optimizer", "table_dtype", "batch_size")


@command(
    "plan",
    "hotrows plan enc --ranks 1,2,4,8 --machine cpu-25g",
    "hotrows plan criteo-1tb --ranks 1,8,64,128 --machine h100 --picture scale.svg",
)
@click.argument("folder", metavar="DATA", type=FOLDER)
@click.option("--ranks", type=NUMBERS, metavar="N,N,...", required=True, help="Numbers of ranks.")
@option(
    "--machine",
    type=click.Choice(("measured", *MACHINES)),
    default="measured",
    help="Machine of each rank; measured: this one, and --link between ranks.",
)
@option(
    "--link",
    type=click.Choice([name for name in MACHINES if name.startswith("cpu")]),
    default="cpu-25g",
    help="Machine whose network connects ranks of a measured machine.",
)
@setting_option("model")
@setting_option("model_options")
@setting_option("row_optimizer")
@setting_option("table_dtype", filled=True)
@setting_option("batch_size")
@setting_option("sharding", filled=True, show_default=True)
@click.option("--wire-bytes", type=click.Choice(["2", "4"]), help="Bytes of a number between ranks.")
@setting_option("micro_batches")
@click.option("--memory", type=BYTES, metavar="SIZE", help="Memory for tables on a rank.")
@declare("--explain", "why", old=("--why",), is_flag=True, help="Print where each table goes, and why.")
@click.option("--picture", type=PICTURE, help="Draw samples/s over ranks into this SVG.")
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
def plan_command(
    folder: Path, ranks: list[int], picture: Path | None, as_json: bool, why: bool, **options: Any
) -> None:
    """Predict how fast training would be on several ranks.

    A model of costs predicts what a step takes, what limits it and how tables are best placed on ranks,
    on a machine that is measured or stated. Nothing is trained. DATA is prepared data, or a well-known
    job such as criteo-1tb; any other name lists these.
    """
    from hotrows.tools.tuning.scaling import predict_scaling

    prediction = predict_scaling(
        _with_step(_workload(folder, options), options),
        _machine(options["machine"], options["link"]),
        ranks,
        sharding=options["sharding"],
        memory=options["memory"],
    )
    _show(prediction, picture, as_json, why)


def _workload(folder: Path, options: Mapping[str, Any]) -> Workload:
    from hotrows import data
    from hotrows.train.costs import workload
    from hotrows.train.start.defaults import settle

    if not folder.exists():
        return workload.named(str(folder))
    encoded = data.EncodedData.open(folder)
    encoded.check_counts("a prediction")
    config = config_with(TrainConfig(), {name: options[name] for name in _OF_TRAINING})
    return workload.of_data(encoded, settle(config, encoded))


def _with_step(shape: Workload, options: Mapping[str, Any]) -> Workload:
    """Returns the workload with the sizes that options have set in place of its own."""
    sizes = {
        "batch_size": options["batch_size"],
        "wire_bytes": int(options["wire_bytes"]) if options["wire_bytes"] else None,
        "micro_batches": options["micro_batches"],
    }
    changes: dict[str, Any] = {name: size for name, size in sizes.items() if size is not None}
    return dataclasses.replace(shape, step=dataclasses.replace(shape.step, **changes))


def _machine(name: str, link: str) -> Machine:
    if name != "measured":
        return MACHINES[name]
    from hotrows.train.costs.measure_machine import measure_machine

    stated = MACHINES[link]
    name = f"this machine, ranks joined as in {link}"
    return dataclasses.replace(measure_machine(), name=name, outer=stated.outer)


def _show(prediction: Prediction, picture: Path | None, as_json: bool, why: bool) -> None:
    drawn = None
    if picture:
        from hotrows.tools.tuning import pictures

        drawn = pictures.draw_scaling(prediction, picture)
    if as_json:
        click.echo(json.dumps(prediction.to_json(), indent=2))
        return
    print_table(_scaling_table(prediction))
    size = format_bytes(int(prediction.workload.table_bytes))
    click.echo(
        f"{prediction.workload.name} ({prediction.workload.note}): {size} of tables, batch "
        f"{prediction.workload.step.batch_size:,} of all ranks; {prediction.machine.name}."
    )
    click.echo(
        "each: samples of a rank relative to the first line; parts of a step in ms; ahead: planning, "
        "loading or moves of a cache, beside it; held: by the fullest rank"
    )
    for point in prediction.points:
        words = point.refused or point.sharding(prediction.workload.loads)
        click.echo(f"{point.num_ranks:>6,} ranks  {words}")
        for reason in point.choice.reasons if why and point.choice else ():
            click.echo(f"              {reason}")
    if drawn:
        click.echo(f"picture    {drawn}")


def _scaling_table(prediction: Prediction) -> Table:
    parts = ("dense", "gather", "pool", "update", "bytes", "messages", "reduces", "ahead")
    columns = ("ranks", "samples", "each", "step", *parts, "held", "limit")
    table = new_table(*columns, left=("limit",))
    for point in prediction.points:
        cost, share = point.cost, prediction.efficiency(point)
        if cost is None:
            table.add_row(f"{point.num_ranks:,}", *["–"] * 11, "memory")
            continue
        ahead = max(cost.planning, cost.loading, cost.moving)
        reduces = cost.reduce + cost.exposed_reduce
        ms = [cost.seconds, *(cost.parts[name] for name in parts[:6]), reduces, ahead]
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
