"""The command tune: the fastest settings here, chosen by short measured runs."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hotrows.cli.commands import command
from hotrows.cli.options import bar, new_table, of_function, option, print_table
from hotrows.cli.paths import OUT
from hotrows.cli.training import (
    COMMON,
    SECTIONS,
    SOURCE_NAMES,
    check_data,
    config_with,
    data_options,
    open_data,
    setting_options,
)
from hotrows.engine.distributed import job
from hotrows.runtime.atomic_files import is_special, write_text
from hotrows.runtime.remote import named
from hotrows.train.config import MAY_CHANGE, TrainConfig

if TYPE_CHECKING:
    from hotrows.tools.tuning.benchmark import Comparison
    from hotrows.tools.tuning.tune import Tuned

# About the life of a run, not about how fast its steps are.
_NOT_OF_A_STEP = ("start_from", "evaluate_every", "checkpoint_every")


@command(
    "tune",
    "hotrows tune enc --model dlrm && hotrows train enc --config tuned.json",
    "hotrows tune enc --model dlrm --fast-memory 2GiB --store file:tables --seconds 300",
    "hotrows tune enc --model dlrm --may-change precision,wire_dtype --config fast.json",
    "torchrun --nproc-per-node 2 -m hotrows tune enc --model dlrm",
    sections=SECTIONS,
    common=("out", "seconds", "may_change", *COMMON),
)
@data_options
@setting_options(leave_out=_NOT_OF_A_STEP)
@option(
    "--config",
    "out",
    type=OUT,
    default=Path("tuned.json"),
    help="A new file for the chosen configuration; measurements go into a file next to it.",
)
@of_function(
    "tools.tuning.tune:tune",
    "seconds",
    may_change={
        "default": "",
        "show_default": False,
        "metavar": "NAMES",
        "help": f"Settings that change results, and may: any of {', '.join(MAY_CHANGE)}, with commas.",
    },
)
def tune_command(out: Path, seconds: float, may_change: str, **options: Any) -> None:
    """Choose the settings that train fastest here.

    Trains the model for short times, settings against the best so far in turn, and takes what is faster
    beyond noise: paths of matrix products, micro-batches, packs, sharding, batches planned ahead and in
    flight, the look ahead, the policy and the split of fast memory. None of them changes what is learned
    but by rounding; with --may-change, those named may. Settings given as options stay as they are.

    In the end the defaults and what was chosen are compared once more; unless it is faster again,
    the defaults are written. Under torchrun, for all ranks together.

    This is about speed. For quality (learning rates, dim, dropout, epochs) search with Optuna, as
    examples/optuna_pruning.py does.
    """
    source = {name: options.pop(name) for name in SOURCE_NAMES}
    may_change_names = [name.strip() for name in may_change.split(",") if name.strip()]
    fixed = [name for name, value in options.items() if value not in (None, ())]
    both = sorted(set(fixed) & set(may_change_names))
    if both:
        raise click.UsageError(f"{both[0]} is given, and stays as it is: do not let it change too")
    with bar() as progress:
        tuned = _tune(
            config_with(TrainConfig(), options),
            source,
            progress,
            seconds=seconds,
            may_change=may_change_names,
            fixed=fixed,
        )
    if job.is_first():
        _print_tuned(tuned)
        _write(tuned, out)


def _tune(
    config: TrainConfig,
    source: Mapping[str, Any],
    progress: Callable[..., None],
    may_change: Collection[str],
    **how: Any,
) -> Tuned:
    """Tunes on all ranks. source: arguments of `open_data`; how: further arguments of `tune`."""
    check_data(**source)
    from hotrows.engine.distributed import machines, process_group
    from hotrows.tools.tuning.tune import check_may_change, tune

    check_may_change(may_change)
    ranks = process_group.start(config.timeout)
    encoded = machines.met(ranks, lambda: open_data(**source))

    def shown(what: str, done: float, total: float) -> None:
        progress("tuning", min(done, total), total, what)

    return tune(
        encoded,
        config,
        may_change=may_change,
        ranks=ranks,
        progress=shown if ranks.rank == 0 else None,
        **how,
    )


def _print_tuned(tuned: Tuned) -> None:
    from hotrows.tools.tuning.tune import shown, verdict

    table = new_table("setting", "from", "to", "changes", left=("setting", "from", "to", "changes"))
    for column in ("samples/s from", "to", "ratio", "middle half"):
        table.add_column(column, justify="right")
    table.add_column("decision")
    for decision in tuned.decisions:
        table.add_row(
            decision.setting.name,
            shown(decision.setting.name, decision.before),
            shown(decision.setting.name, decision.after),
            decision.setting.changes,
            *_figures(decision.comparison),
            verdict(decision),
        )
    print_table(table)
    if tuned.skipped:
        skipped = ", ".join(tuned.skipped)
        click.echo(f"Not tried to the end, as time was over: {skipped}; give more --seconds")
    filled = [tried.comparison.filled for tried in tuned.decisions if tried.comparison]
    least = min((share for share in filled if share is not None), default=1.0)
    if least < 0.9:
        click.echo(
            f"Fast memory was {least:.0%} full when some were measured: a long run may differ; give "
            f"more --seconds"
        )
    click.echo(_summary(tuned))
    click.echo(
        "tuned for speed; for quality (learning rates, dim, dropout) see examples/optuna_pruning.py"
    )


def _summary(tuned: Tuned) -> str:
    if tuned.final is None:
        return "Nothing is faster than the defaults beyond noise: they stay."
    before, after, ratio, half = _figures(tuned.final)
    sentence = (
        f"before {before}, after {after} samples/s, opened anew: {ratio} times (middle half {half}); "
        f"cores {' and '.join(f'{share:.0%}' for share in tuned.final.cores_busy)} busy"
    )
    if not tuned.changes:
        return f"{sentence}\nNot faster beyond noise after all: the defaults stay."
    return f"{sentence}\nchosen: {', '.join(f'{n}={v}' for n, v in tuned.changes.items())}"


def _figures(comparison: Comparison | None) -> tuple[str, str, str, str]:
    """The medians of both speeds and of the ratio, and the quartiles of the ratio."""
    if comparison is None:
        return "–", "–", "–", "–"
    before, after = comparison.speeds
    low, high = comparison.quartiles
    return f"{before:,.0f}", f"{after:,.0f}", f"{comparison.ratio:.3f}", f"{low:.3f}–{high:.3f}"


def _write(tuned: Tuned, out: Path) -> None:
    tuned.config.save(out)
    if is_special(out):
        return
    measurements = out.with_suffix(".measurements.json")
    write_text(measurements, json.dumps(tuned.to_json(), indent=2) + "\n")
    click.echo(f"configuration  {named(out)}: hotrows train ... --config {named(out)}")
    click.echo(f"measurements   {measurements}")
