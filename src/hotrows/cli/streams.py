"""The options of `hotrows train --stream`, and training on one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hotrows.cli.commands import declare
from hotrows.cli.options import setting_option, with_options
from hotrows.cli.paths import RUN
from hotrows.data.streams.settings import SETTINGS, StreamConfig
from hotrows.data.streams.source import KINDS
from hotrows.losses import FakeNegative
from hotrows.runtime.atomic_files import local

if TYPE_CHECKING:
    from hotrows.train.loop.trainer import Trainer
    from hotrows.train.telling.result import Result

stream_options = with_options(
    click.option("--stream", metavar="SOURCE", help=f"Train on events of {KINDS}."),
    click.option(
        "--labels",
        metavar="SOURCE",
        help="Labels that come later than their impressions, by --join-on: a stream as --stream.",
    ),
    *(setting_option(name, settings=SETTINGS) for name in SETTINGS),
    declare(
        "--replay-batches-of",
        "repeat",
        old=("--repeat",),
        type=RUN,
        metavar="RUN",
        help="Make the batches of this run again, of the same events.",
    ),
)
SECTION = {"Streams": ("stream", "labels", *SETTINGS, "repeat")}


def stream_fit(options: dict[str, Any], resumed: Path | None) -> Callable[..., Result] | None:
    """Takes the options of streams out of those of the command; returns what trains a trainer given
    `callbacks`, None: no stream.

    resumed: a run; what the options leave out is as it was there.
    """
    source, labels, repeat = (options.pop(name) for name in ("stream", "labels", "repeat"))
    changes = {name: options.pop(name) for name in SETTINGS}
    changes = {name: value for name, value in changes.items() if value is not None}
    before = _settings_of(resumed)
    source, labels = source or before.pop("source", None), labels or before.pop("labels", None)
    before = {name: value for name, value in before.items() if name in SETTINGS}
    if source is None:
        if changes or labels or repeat:
            name = "--labels" if labels else "--replay-batches-of"
            name = SETTINGS[next(iter(changes))].option_name if changes else name
            raise click.UsageError(f"{name} is of a stream: say which one, --stream SOURCE")
        return None
    for text in (source, labels or ""):
        if text.startswith("folder:"):
            local(text.removeprefix("folder:"))
    if labels and changes.get("delayed_labels") == "weight":
        options["loss"] = options["loss"] or FakeNegative.name
    try:
        config = StreamConfig.from_json({**before, **changes})
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    if (labels is None) != (config.join_on is None):
        raise click.UsageError("labels that come later: give --labels and --join-on, or neither")

    def fit(trainer: Trainer, callbacks: Sequence[Any]) -> Result:
        how = {"labels": labels, "repeat": repeat, "callbacks": callbacks}
        return trainer.fit_stream(source, config, **how)

    return fit


def _settings_of(resumed: Path | None) -> dict[str, Any]:
    if resumed is None:
        return {}
    from hotrows.train.run.folder import read_stream

    return dict(read_stream(resumed))
