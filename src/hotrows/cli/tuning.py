"""The command tune: the fastest settings here, chosen by short measured runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from hotrows.cli import training
from hotrows.cli.options import FILE, Taught, bar, print_table
from hotrows.config import TrainConfig
from hotrows.exchange import processes
from hotrows.trials import Comparison
from hotrows.tune import MAY_CHANGE, Tuned, check_may_change, shown, tune, verdict

# Options of train that are about the life of a run, not about how fast its steps are.
_OF_A_RUN = (
    "run", "resume", "trace", "config_file", "start_from", "evaluate_every", "checkpoint_every",
)  # fmt: skip


@click.command(
    "tune",
    cls=Taught,
    epilog="""
    hotrows tune enc --model dlrm && hotrows train enc --config tuned.json
    hotrows tune enc --model dlrm --fast-memory 2GiB --store file:tables --seconds 300
    hotrows tune enc --model dlrm --may-change precision,wire_dtype --config fast.json
    torchrun --nproc-per-node 2 -m hotrows tune enc --model dlrm
    """,
)
@click.option(
    "--config",
    "out",
    type=FILE,
    default=Path("tuned.json"),
    show_default=True,
    help="A new file for the chosen configuration; measurements go beside it.",
)
@click.option("--seconds", type=float, default=120.0, show_default=True, help="For all, about.")
@click.option(
    "--may-change",
    default="",
    metavar="NAMES",
    help=f"Settings that change results, and may: any of {', '.join(MAY_CHANGE)}, with commas.",
)
def tune_command(
    folder: tuple[str, ...],
    schema: str | None,
    validation: tuple[str, ...],
    test: tuple[str, ...],
    options: tuple[str, ...],
    out: Path,
    seconds: float,
    may_change: str,
    **given: Any,
) -> None:
    """Choose the settings that train fastest here.

    Trains the model for short times, settings against the best so far in turn, and takes what is
    faster beyond noise: paths of matrix products, micro-batches, packs, sharding, batches planned
    ahead and in flight, the look ahead, the policy and the split of fast memory. None of them changes
    what is learned but by rounding; with --may-change, those named may. Settings given as options
    stay as they are.

    In the end the defaults and what was chosen are compared once more; unless it is faster again,
    the defaults are written. Under torchrun, for all ranks together.
    """
    may_change_names = [name.strip() for name in may_change.split(",") if name.strip()]
    check_may_change(may_change_names)
    if not seconds > 0:
        raise click.UsageError(f"--seconds must be above 0, not {seconds}")
    if out.exists():
        raise click.UsageError(f"{out} exists already: name another file, or delete it")
    said = [name for name, value in given.items() if value not in (None, ())]
    both = sorted(set(said) & set(may_change_names))
    if both:
        raise click.UsageError(f"{both[0]} is given, and stays as it is: do not let it change too")
    ranks = processes.start(given["timeout"] or processes.TIMEOUT)
    config = training.with_options(TrainConfig(), options, given)
    encoded = training.opened(folder, schema, validation, test)
    with bar() as progress:
        found = tune(
            encoded,
            config,
            seconds=seconds,
            may_change=may_change_names,
            fixed=said,
            ranks=ranks,
            progress=(lambda what, done, of: progress("tuning", min(done, of), of, what))
            if ranks.rank == 0
            else None,
        )
    if ranks.rank == 0:
        _print_tuned(found)
        _write(found, out)


# The model, its data and how it is trained are said as they are to train.
tune_command.params[:0] = [
    param for param in training.train_command.params if param.name not in _OF_A_RUN
]


def _print_tuned(found: Tuned) -> None:
    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in ("setting", "from", "to", "changes"):
        table.add_column(column)
    for column in ("samples/s from", "to", "ratio", "middle half"):
        table.add_column(column, justify="right")
    table.add_column("decision")
    for of in found.decisions:
        table.add_row(
            of.knob.name, shown(of.knob, of.before), shown(of.knob, of.after), of.knob.changes,
            *_figures(of.comparison), verdict(of),
        )  # fmt: skip
    print_table(table)
    if found.skipped:
        skipped = ", ".join(found.skipped)
        click.echo(f"Not tried to the end, as time was over: {skipped}; give more --seconds")
    filled = [of.comparison.filled for of in found.decisions if of.comparison]
    least = min((share for share in filled if share is not None), default=1.0)
    if least < 0.9:
        click.echo(
            f"Fast memory was {least:.0%} full when some were measured: a long run may differ; give "
            f"more --seconds"
        )
    click.echo(_summary(found))


def _summary(found: Tuned) -> str:
    if found.final is None:
        return "Nothing is faster than the defaults beyond noise: they stay."
    before, after, ratio, half = _figures(found.final)
    sentence = (
        f"before {before}, after {after} samples/s, opened anew: {ratio} times (middle half {half})"
    )
    if not found.changes:
        return f"{sentence}\nNot faster beyond noise after all: the defaults stay."
    return f"{sentence}\nchosen: {', '.join(f'{n}={v}' for n, v in found.changes.items())}"


def _figures(found: Comparison | None) -> tuple[str, str, str, str]:
    """Medians of both, of the ratio, and between what its middle half lies."""
    if found is None:
        return "–", "–", "–", "–"
    before, after = found.speeds
    low, high = found.quartiles
    return f"{before:,.0f}", f"{after:,.0f}", f"{found.ratio:.3f}", f"{low:.3f}–{high:.3f}"


def _write(found: Tuned, out: Path) -> None:
    measurements = out.with_suffix(".measurements.json")
    measurements.write_text(json.dumps(found.to_json(), indent=2) + "\n")
    found.config.save(out)
    click.echo(f"configuration  {out}: hotrows train ... --config {out}")
    click.echo(f"measurements   {measurements}")
