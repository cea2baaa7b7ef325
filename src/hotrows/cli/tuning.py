"""The command tune: the fastest settings here, chosen by short measured runs, or those of the best
metric, chosen by trials."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hotrows.cli.commands import command
from hotrows.cli.options import POSITIVE, Name, bar, new_table, of_function, option, print_table
from hotrows.cli.paths import HERE, OUT
from hotrows.cli.runs import print_metrics
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
from hotrows.runtime.atomic_files import shown as shown_path
from hotrows.runtime.remote import named
from hotrows.train.config import MAY_CHANGE, TrainConfig

if TYPE_CHECKING:
    from hotrows.tools.tuning.benchmark import Comparison
    from hotrows.tools.tuning.search import Found
    from hotrows.tools.tuning.tune import Tuned

# About the life of a run, not about how fast its steps are.
_NOT_OF_A_STEP = ("start_from", "evaluate_every", "checkpoint_every", "shares")
_METRICS = ("auc", "logloss", "gauc", "rmse", "mae", "r2", "poisson_deviance", "mrr", "ndcg")
_GOAL = Name(lambda: ("speed", *_METRICS), "ndcg@K|hit@K", lambda text: "@" in text)


@command(
    "tune",
    "hotrows tune enc --model dlrm && hotrows train enc --config tuned.json",
    "hotrows tune enc --for auc --minutes 30 && hotrows train enc --config tuned.json",
    "hotrows tune enc --for logloss --model deepfm --raw 'day_*.gz' --run runs/search",
    "hotrows tune enc --model dlrm --fast-memory 2GiB --store file:tables --seconds 300",
    "hotrows tune enc --model dlrm --may-change precision,wire_dtype --config fast.json",
    "torchrun --nproc-per-node 2 -m hotrows tune enc --model dlrm",
    sections=SECTIONS,
    common=("goal", "minutes", "trials", "raw", "out", "may_change", *COMMON),
)
@data_options
@option(
    "--for", "goal", type=_GOAL, default="speed", help="Tune speed, or a metric of the validation part."
)
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
    seconds={"default": None, "help": "Time for all.  [default: 120; of a metric 1800]"},
    may_change={
        "default": "",
        "show_default": False,
        "metavar": "NAMES",
        "help": f"Settings that change results, and may: any of {', '.join(MAY_CHANGE)}, with commas.",
    },
)
@click.option("--minutes", type=POSITIVE, help="The time in minutes, in place of --seconds.")
@of_function(
    "tools.tuning.search:search",
    "trials",
    run={"type": HERE, "default": None, "help": "Folder of the search.  [default: runs/tune-METRIC]"},
    raw={
        "multiple": True,
        "metavar": "RAW",
        "default": (),
        "help": "Files that DATA was prepared from, to choose min_count (also --validation, --test).",
    },
)
def tune_command(
    out: Path,
    goal: str,
    seconds: float | None,
    minutes: float | None,
    may_change: str,
    trials: int | None,
    run: Path | None,
    raw: tuple[str, ...],
    **options: Any,
) -> None:
    """Choose the settings that train fastest here, or predict best.

    With --for auc, or another metric, trains whole runs by Optuna and keeps the best on the validation
    part: model, learning rates, dim, dropout, crosses, with --raw min_count. Run again to continue.

    For speed, trains for short times and takes what is faster beyond noise: micro-batches, packs,
    sharding, batches planned ahead and in flight, the look ahead, the policy and the split of fast
    memory. They change nothing but rounding; with --may-change, those named may. In the end the defaults
    are compared once more, and written unless slower. Under torchrun, for all ranks together.

    Settings given as options stay as they are.
    """
    if seconds and minutes:
        raise click.UsageError("--seconds and --minutes are both the time: give one of the two")
    seconds = 60 * minutes if minutes else seconds
    of_quality = {"--trials": trials, "--run": run, "--raw": raw}
    for name, value in (of_quality if goal == "speed" else {"--may-change": may_change}).items():
        if value:
            raise click.UsageError(f"{name} goes with --for {'auc' if goal == 'speed' else 'speed'}")
    source = {name: options.pop(name) for name in SOURCE_NAMES}
    if goal != "speed":
        metric = "log_loss" if goal == "logloss" else goal
        how = {"metric": metric, "run": run or Path("runs", f"tune-{metric}"), "trials": trials}
        with bar() as progress:
            config = config_with(TrainConfig(), options)
            chosen = _search(config, source, raw, progress, seconds=seconds or 1800.0, **how)
        _print_found(chosen, out)
        return
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
            seconds=seconds or 120.0,
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


def _search(
    config: TrainConfig,
    source: dict[str, Any],
    raw: Sequence[str],
    progress: Callable[..., None],
    **how: Any,
) -> Found:
    """Searches for quality. source: arguments of `open_data`; how: further arguments of `search`."""
    files = {"raw": raw, "validation": source["validation"], "test": source["test"]} if raw else {}
    source |= {"validation": (), "test": ()} if raw else {}
    check_data(**source)
    from hotrows.tools.tuning.search import search

    def show(what: str, done: float, total: float) -> None:
        progress("searching", done, total, what)

    return search(open_data(**source), config, raw=files, progress=show, **how)


def _print_found(chosen: Found, out: Path) -> None:
    """Prints the trials and the test of the best one, and writes its config."""
    names = list(dict.fromkeys(name for trial in chosen.trials for name in trial.params))
    table = new_table("trial", chosen.metric, "±", *names, "seconds", left=("model",))
    table.add_column("note")
    for trial in chosen.trials:
        attrs, note = trial.user_attrs, trial.user_attrs["note"]
        score = (
            "–" if note else f"{trial.value:.4f}",
            f"{attrs['error']:.4f}" if "error" in attrs else "–",
        )
        values = [_shown_choice(name, trial.params.get(name, "–")) for name in names]
        table.add_row(str(attrs["turn"]), *score, *values, f"{attrs['seconds']:.1f}", note)
    print_table(table)
    best, first = chosen.trials[0], min(chosen.trials, key=lambda trial: trial.number)
    of_first = first.user_attrs["note"] or f"{first.value:.4f}"
    click.echo(f"validation     {chosen.metric} {best.value:.4f}; of the defaults {of_first}")
    if chosen.test is not None:
        print_metrics("test", chosen.test)
    click.echo(f"run            {shown_path(chosen.run)}")
    chosen.config.save(out)
    if not is_special(out):
        data = shown_path(chosen.data)
        click.echo(f"configuration  {named(out)}: hotrows train {data} --config {named(out)}")


def _shown_choice(name: str, value: Any) -> str:
    """A value that a search chose, for people; rates are times the default."""
    if name == "min_count" and value == 0:
        return "as it is"
    times = "×" if name in ("lr", "dense_lr") and value != "–" else ""
    return f"{times}{value:.3g}" if isinstance(value, float) else str(value)


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
    click.echo("tuned for speed; for quality: --for auc")


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
