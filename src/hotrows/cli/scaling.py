"""The command simulate with --ranks: how fast so many ranks would train."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hotrows.cli.options import (
    BYTES,
    NUMBERS,
    new_table,
    option,
    print_table,
    setting_option,
    with_options,
)
from hotrows.costs.machines import MACHINES, Machine
from hotrows.runtime.units import format_bytes

if TYPE_CHECKING:
    from rich.table import Table

    from hotrows.costs.workload import Workload
    from hotrows.tuning.scaling import Prediction

scaling_options = with_options(
    click.option(
        "--ranks",
        type=NUMBERS,
        metavar="N,N,...",
        help="Predict steps on so many ranks instead. DATA may be a well-known job, such as criteo-1tb; "
        "any other name lists them.",
    ),
    option(
        "--machine",
        type=click.Choice(("measured", *MACHINES)),
        default="measured",
        help="Machine of each rank, with --ranks; measured: this one, and --link between ranks.",
    ),
    option(
        "--link",
        type=click.Choice([name for name in MACHINES if name.startswith("cpu")]),
        default="cpu-25g",
        help="Whose network connects ranks of a measured machine.",
    ),
    setting_option("sharding", filled=True, show_default=True, help="With --ranks."),
    click.option("--wire-bytes", type=click.Choice(["2", "4"]), help="Bytes of a number between ranks."),
    setting_option("micro_batches", help="Parts of a step, with --ranks."),
    click.option("--memory", type=BYTES, metavar="SIZE", help="For tables on a rank, with --ranks."),
    click.option("--why", is_flag=True, help="With --ranks: say of each table where it goes, and why."),
)
_OF_TRAINING = ("model", "model_options", "row_optimizer", "table_dtype", "batch_size")
SCALING_NAMES = ("machine", "link", "sharding", "wire_bytes", "micro_batches", "memory", "why")


def predict_and_print(
    folder: Path,
    ranks: Sequence[int],
    work: Mapping[str, Any],
    how: Mapping[str, Any],
    picture: Path | None,
    as_json: bool,
) -> None:
    """Predicts a step on each number of ranks, and prints it.

    folder: prepared data, or the name of a well-known workload. work: model, model_options,
    row_optimizer, table_dtype and batch_size, left open as for `train`. how: the options named by
    `SCALING_NAMES`.
    """
    from hotrows.tuning.scaling import predict_scaling

    prediction = predict_scaling(
        _with_step(_workload(folder, work), work["batch_size"], how),
        _machine(how["machine"], how["link"]),
        ranks,
        sharding=how["sharding"],
        memory=how["memory"],
    )
    _show(prediction, picture, as_json, how["why"])


def _workload(folder: Path, work: Mapping[str, Any]) -> Workload:
    from hotrows import data
    from hotrows.config import TrainConfig
    from hotrows.costs import workload
    from hotrows.train.defaults import settle

    if not folder.exists():
        return workload.named(str(folder))
    encoded = data.EncodedData.open(folder)
    encoded.check_counts("a prediction")
    config = settle(TrainConfig(**{name: work[name] for name in _OF_TRAINING}), encoded)
    assert config.batch_size is not None, "settled"
    return workload.of_data(
        encoded,
        config.model,
        config.model_options,
        row_optimizer=config.row_optimizer,
        table_dtype=config.table_dtype,
        batch_size=config.batch_size,
    )


def _with_step(shape: Workload, batch_size: int | None, how: Mapping[str, Any]) -> Workload:
    """Returns the workload with the sizes that options have set in place of its own."""
    sizes = {
        "batch_size": batch_size,
        "wire_bytes": int(how["wire_bytes"]) if how["wire_bytes"] else None,
        "micro_batches": how["micro_batches"] or 0,  # left open as for `train`
    }
    changes: dict[str, Any] = {name: size for name, size in sizes.items() if size is not None}
    return dataclasses.replace(shape, step=dataclasses.replace(shape.step, **changes))


def _machine(name: str, link: str) -> Machine:
    if name != "measured":
        return MACHINES[name]
    from hotrows.costs.measure_machine import measure_machine

    stated = MACHINES[link]
    name = f"this machine, ranks joined as in {link}"
    return dataclasses.replace(measure_machine(), name=name, outer=stated.outer)


def _show(prediction: Prediction, picture: Path | None, as_json: bool, why: bool) -> None:
    drawn = None
    if picture:
        from hotrows.tuning import pictures

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
    for line in filter(None, (prediction.stages(), prediction.micro_batches())):
        click.echo(line)
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
