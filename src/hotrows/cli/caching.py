"""Commands about fast memory: profile, regroup, simulate."""

from __future__ import annotations

import dataclasses
import json
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hotrows import models, optim
from hotrows.cli.commands import command, declare
from hotrows.cli.options import (
    BYTES,
    POSITIVE,
    bar,
    name_and_value,
    new_table,
    of_function,
    print_table,
    setting_option,
    with_options,
)
from hotrows.cli.paths import FOLDER, PICTURE
from hotrows.cli.training import config_with
from hotrows.dynamic import Dynamic
from hotrows.runtime.atomic_files import local
from hotrows.runtime.remote import named
from hotrows.runtime.units import format_bytes
from hotrows.tools.tuning.advice import SlowMemory, advise
from hotrows.train.config import TrainConfig

if TYPE_CHECKING:
    from rich.table import Table

    from hotrows import data
    from hotrows.tools.tuning.cache_simulation import Simulation

_OF_TRAINING = (
    *("model", "model_options", "row_optimizer", "table_dtype"),
    *("batch_size", "in_flight", "seed", "order"),
)

# Which rows are hot.
_profile_options = with_options(
    click.argument("folder", metavar="DATA", type=FOLDER),
    setting_option("fast_memory", required=True, help="Bytes that hot rows may take, such as 64MiB."),
    setting_option("model"),
    setting_option("model_options"),
    setting_option(
        "row_optimizer",
        default="adagrad",
        show_default=True,
        help="Optimizer of rows; its state takes fast memory too.",
    ),
    setting_option("table_dtype", filled=True),
    of_function("data.hot_cold.profile:profile", "sample", "confidence", "seed"),
)


@command(
    "profile",
    "hotrows profile enc --fast-memory 64MiB",
    "hotrows profile enc --fast-memory 1GiB --model deepfm --option dim=32 --optimizer adam",
)
@_profile_options
@click.option("--json", "as_json", is_flag=True, help="Print all figures as JSON.")
def profile_command(folder: Path, as_json: bool, **sampling: Any) -> None:
    """Find the hot rows of prepared data.

    Chooses the rows that fast memory should hold by their accesses in a sample of DATA, and
    measures on another sample how many lookups they serve, and how many samples need no other row.
    """
    with bar() as progress:
        from hotrows import data

        profile = _profile(data.EncodedData.open(folder), progress, **sampling)
        from hotrows.data.hot_cold import pays

    worthwhile, reason = pays(profile)
    if as_json:
        figures = {**profile.to_json(), "pays": worthwhile, "reason": reason}
        click.echo(json.dumps(figures, indent=2))
        return
    print_table(_hot_table(profile))
    click.echo(f"hot rows         {profile.hot_rows:,}, {format_bytes(profile.bytes)}")
    click.echo(f"hot lookups      {profile.lookups} at {100 * profile.confidence:g} % confidence")
    click.echo(f"all-hot samples  {profile.samples}")
    click.echo(reason)


def _hot_table(profile: data.Profile) -> Table:
    columns = ("vocabulary", "rows", "hot rows", "bytes", "share of lookups")
    table = new_table(*columns, left=("vocabulary",))
    for vocabulary in profile.vocabularies:
        hot = (f"{vocabulary.hot_rows:,}", format_bytes(vocabulary.bytes), str(vocabulary.lookups))
        table.add_row(vocabulary.name, f"{vocabulary.rows:,}", *hot)
    return table


@command(
    "regroup",
    "hotrows regroup enc --out enc-hot --fast-memory 64MiB",
    "hotrows train enc-hot --model dlrm",
)
@_profile_options
@of_function("data.hot_cold.regroup:regroup", "out", "force")
def regroup_command(folder: Path, out: Path, force: bool, **sampling: Any) -> None:
    """Lay out data in hot and cold samples.

    Profiles DATA and writes it anew: first the samples that read hot rows alone, then the others,
    so that most batches train without slow memory. Refused where too few samples are all-hot.
    """
    with bar() as progress:
        from hotrows import data

        encoded = data.EncodedData.open(folder)
        profile = _profile(encoded, progress, **sampling)
        from hotrows.data.hot_cold import hot_and_cold

        regrouped = data.regroup(encoded, profile, out, force=force, progress=progress)
    rows, hot = regrouped.parts["train"].rows, hot_and_cold(regrouped)[0].rows
    click.echo(
        f"{named(out)}: {hot:,} all-hot and {rows - hot:,} cold training samples ({hot / rows:.1%} hot)"
    )


def _profile(encoded: data.EncodedData, progress: Callable[..., None], **sampling: Any) -> data.Profile:
    """The profile for the tables of a model; sampling: the options of `_profile_options`."""
    from hotrows import data
    from hotrows.data.hot_cold import row_bytes

    options = dict(map(name_and_value, sampling.pop("model_options")))
    model = sampling.pop("model") or models.default_name(encoded.schema)
    built = models.build(model, encoded.schema, **options)
    dtype, optimizer = sampling.pop("table_dtype"), optim.BY_NAME[sampling.pop("row_optimizer")]()
    tables = [dataclasses.replace(table, dtype=dtype) for table in built.tables]
    num_bytes = row_bytes(tables, encoded.schema, optimizer)
    return data.profile(encoded, bytes_per_row=num_bytes, progress=progress, **sampling)


@command(
    "simulate",
    "hotrows simulate enc --fast-memory 64MiB --fast-memory 256MiB",
    "hotrows simulate enc --batches 1000 --picture curves.svg",
    "hotrows simulate enc --samples-per-second 300000 --reads-per-second 60000",
    "hotrows simulate enc --order reuse",
    "hotrows simulate enc --rows-budget 64MiB",
    "hotrows simulate enc --store file --disk measured --target-samples-per-second 40000",
)
@click.argument("folder", metavar="DATA", type=FOLDER)
@setting_option("model")
@setting_option("model_options")
@setting_option("row_optimizer")
@setting_option("table_dtype", filled=True)
@setting_option("batch_size")
@setting_option(
    "fast_memory",
    multiple=True,
    help="Fast memory, such as 64MiB; may be repeated."
    "  [default: 1, 2, 5, 10, 20 and 50 % of the tables]",
)
@of_function(
    "tools.tuning.cache_simulation:simulate", "batches", rows_budget={"type": BYTES, "metavar": "SIZE"}
)
@setting_option("in_flight", filled=True)
@setting_option("seed", filled=True, show_default=True, help="Seed of the order of samples.")
@setting_option("order", filled=True)
@click.option(
    "--samples-per-second", type=POSITIVE, help="The speed of training with all rows in memory."
)
@click.option(
    "--store", metavar="file|file:PATH", help="Take a file store, in PATH, as slow memory; with --disk."
)
@click.option(
    "--disk",
    type=click.Choice(("measured",)),
    help="Measure the disk of --store, and training in memory, and predict the speed of training.",
)
@declare(
    "--target-samples-per-second",
    "wanted",
    old=("--wanted",),
    type=POSITIVE,
    help="Print the smallest size of fast memory for this speed.",
)
@of_function(
    "tools.tuning.advice:SlowMemory",
    reads_per_second={"type": POSITIVE},
    bytes_per_second={"type": POSITIVE},
    writes_per_second={"type": POSITIVE},
)
@click.option("--picture", type=PICTURE, help="Draw misses over fast memory into this SVG.")
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
def simulate_command(folder: Path, picture: Path | None, as_json: bool, **options: Any) -> None:
    """Predict how much fast memory training needs.

    Replays the ids of the training part through caches of several sizes and policies, LRU and
    Bélády's optimum among them; no table is allocated. The first quarter of the batches fills the
    caches and is not counted.
    """
    speed = {"samples_per_second": options.pop("samples_per_second")}
    rates = ("reads_per_second", "bytes_per_second", "writes_per_second")
    speed["slow"] = SlowMemory(**{name: options.pop(name) for name in rates})
    store, disk, wanted = (options.pop(name) for name in ("store", "disk", "wanted"))
    place = _folder_of(store, disk)
    if wanted is not None and disk is None and speed["samples_per_second"] is None:
        raise click.UsageError(
            "--target-samples-per-second needs --disk measured, or --samples-per-second"
        )
    config = config_with(TrainConfig(), {name: options.pop(name) for name in _OF_TRAINING})
    # Measure the place if asked, and replay the batches.
    with bar() as progress:
        from hotrows import data

        encoded = data.EncodedData.open(folder)
        from hotrows.tools.tuning.cache_simulation import simulate

        if place is not None:
            from hotrows.tools.tuning.measured_speed import measured_speed

            measured, slow = measured_speed(encoded, config, place, speed["samples_per_second"])
            speed = {"samples_per_second": measured, "slow": slow}
        simulation = simulate(encoded, config, progress=progress, in_file=place is not None, **options)
    advice = advise(simulation, **speed)
    drawn = None
    if picture:
        from hotrows.tools.tuning import pictures

        drawn = pictures.draw_curves(simulation, picture, advice.knee)
    # Print the answer, and then the figures behind it.
    if as_json:
        figures = {**simulation.to_json(), "advice": dataclasses.asdict(advice)}
        click.echo(json.dumps(figures, indent=2))
        return
    _say(advice.sentence)
    if wanted is not None:
        _say(advice.cheapest(wanted))
    print_table(_simulation_table(simulation, speed, advice.samples_per_second))
    for policy in simulation.policies:
        click.echo(f"{policy:<12} {_POLICIES.get(policy, '')}".rstrip())
    _print_words(simulation)
    if drawn:
        click.echo(f"picture    {drawn}")
    if place is not None:
        disk = speed["slow"].disk
        _say(
            f"predicted from {speed['samples_per_second']:,.0f} samples/s in memory; measured at "
            f"{place.resolve()}: reads of {disk.reads_per_second:,.0f} rows/s, writes of "
            f"{disk.bytes_per_second / 1e6:,.0f} MB/s"
        )


# What each policy is, behind its name in 80 columns.
_POLICIES = {
    "lookahead": "knows the batches to come, and evicts what is used last: training",
    "frequency": "keeps the rows that the batches so far read most often",
    "hot": "keeps the rows that were most frequent at the start: a static cache",
    "two batches": "looks ahead by two batches, as ScratchPipe does",
    "lru": "evicts the row that was not read for longest: most other caches",
    "belady": "knows all batches: no policy misses fewer rows",
}


def _say(text: str) -> None:
    """Prints a sentence in lines of 80 columns."""
    click.echo(textwrap.fill(text, 80, break_long_words=False, break_on_hyphens=False))  # paths


def _print_words(simulation: Simulation) -> None:
    """Prints rows of a batch, rows that are pinned, and what an order saves."""
    _say(
        f"means of batches {simulation.skipped:,} to {simulation.batches:,} of {simulation.batch_size:,} "
        f"samples: {simulation.rows:,.0f} distinct rows, {simulation.untouched:,.0f} of them never read "
        f"before; {simulation.in_flight} batches in flight pin at most {simulation.pinned_rows:,} "
        f"({format_bytes(simulation.pinned_bytes)}), and wait for one another if fewer fit"
    )
    if (owned := simulation.owned) is not None:
        shares = ", ".join(f"{format_bytes(n)} {100 * s:.1f} %" for n, s in owned.shares.items())
        enough = format_bytes(owned.enough)
        least = (
            enough
            if owned.min_count is None
            else f"prepare --min-count {owned.min_count} (rows of {enough})"
        )
        _say(f"lookups that can own a row, by bytes of all rows: {shares}; {least} loses less than 1 %")
    if simulation.rows_budget is not None:
        _say(f"for {format_bytes(simulation.rows_budget)} of all rows, write into the schema:")
        for name, dynamic in simulation.capacities.items():
            fields = {
                key: n for key, n in dataclasses.asdict(dynamic).items() if n != getattr(Dynamic, key)
            }
            click.echo(f'  {name}: "dynamic": {json.dumps(fields)}')
    if simulation.shuffled is not None:
        print_table(_order_table(simulation, simulation.shuffled))
        _say(
            f"order {simulation.order}: a batch reads {simulation.distinct_rows:.2f} times the distinct "
            f"rows of one of a plain shuffle; the lower, the more alike are its samples"
        )


def _folder_of(store: str | None, disk: str | None) -> Path | None:
    """The folder whose disk is to be measured."""
    if (store is None) != (disk is None):
        raise click.UsageError("--store file and --disk measured belong together")
    if store is None:
        return None
    kind, _, path = store.partition(":")
    if kind != "file":
        raise click.UsageError(f"--store must be file or file:PATH, not {store!r}")
    folder = local(path or ".")
    while not folder.is_dir():  # the store is made later
        folder = folder.parent
    return folder


def _order_table(simulation: Simulation, shuffled: Simulation) -> Table:
    """The rows that an order saves of those that Bélády's optimum reads of a plain shuffle."""
    policy = simulation.policies[0]
    columns = ("fast memory", "of all rows", f"rows read, {simulation.order}, {policy}")
    table = new_table(*columns, "shuffle, belady", "times fewer")
    pairs = zip(simulation.results(policy), shuffled.results("belady"), strict=True)
    for cache, plain in pairs:
        fewer = f"{plain.reads / cache.reads:.2f}" if cache.reads else "-"
        reads = (f"{cache.reads:,.0f}", f"{plain.reads:,.0f}", fewer)
        table.add_row(format_bytes(cache.fast_memory), f"{cache.share:.1%}", *reads)
    return table


def _simulation_table(simulation: Simulation, speed: dict[str, Any], in_memory: float | None) -> Table:
    speeds = {policy: advise(simulation, policy, **speed).speeds for policy in simulation.policies}
    has_speeds = any(speeds.values())
    columns = ("policy", "fast memory", "of rows", "rows hit", "MiB read", "written")
    last = ("speed", "samples/s") if has_speeds else ("lookups", "misses")
    table = new_table(*columns, *last, left=("policy",))
    for cache in simulation.measured:
        share = speeds[cache.policy]  # of the speed in memory
        if share and in_memory:
            last = f"{share[cache.fast_memory]:.0%}", f"{share[cache.fast_memory] * in_memory:,.0f}"
        else:
            last = f"{cache.lookups_hit:.2%}", f"{cache.misses:,.0f}"
        table.add_row(
            cache.policy,
            format_bytes(cache.fast_memory),
            f"{cache.share:.1%}",
            f"{cache.rows_hit:.1%}",
            f"{cache.bytes_read / 2**20:,.2f}",
            f"{cache.bytes_written / 2**20:,.2f}",
            *last,
        )
    return table
