"""The options of `hotrows train --stream`, and training on one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hotrows.cli.commands import declare
from hotrows.cli.options import setting_option, with_options
from hotrows.cli.paths import RUN
from hotrows.data.streams.settings import ONE_RANK, SETTINGS, StreamConfig
from hotrows.data.streams.source import KINDS
from hotrows.engine.distributed import job
from hotrows.runtime.atomic_files import local

if TYPE_CHECKING:
    from hotrows.train.loop.trainer import Trainer
    from hotrows.train.telling.result import Result

stream_options = with_options(
    click.option("--stream", metavar="SOURCE", help=f"Train on events of {KINDS}."),
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
SECTION = {"Streams": ("stream", *SETTINGS, "repeat")}


def stream_fit(options: dict[str, Any], resumed: Path | None) -> Callable[..., Result] | None:
    """Takes the options of streams out of those of the command; returns what trains a trainer given
    `callbacks`, None: no stream.

    resumed: a run; what the options leave out is as it was there.
    """
    source, repeat = options.pop("stream"), options.pop("repeat")
    changes = {name: options.pop(name) for name in SETTINGS}
    changes = {name: value for name, value in changes.items() if value is not None}
    before = _settings_of(resumed)
    source_before = before.pop("source", None)
    source = source or source_before
    if source is None:
        if changes or repeat:
            name = SETTINGS[next(iter(changes))].option_name if changes else "--replay-batches-of"
            raise click.UsageError(f"{name} is of a stream: say which one, --stream SOURCE")
        return None
    if job.is_several():  # before a run begins
        raise ValueError(ONE_RANK)
    if source.startswith("folder:"):
        local(source.removeprefix("folder:"))
    try:
        config = StreamConfig.from_json({**before, **changes})
    except ValueError as error:
        raise click.UsageError(str(error)) from None

    def fit(trainer: Trainer, callbacks: Sequence[Any]) -> Result:
        return trainer.fit_stream(source, config, repeat=repeat, callbacks=callbacks)

    return fit


def _settings_of(resumed: Path | None) -> dict[str, Any]:
    if resumed is None:
        return {}
    from hotrows.train.run.folder import read_stream

    return dict(read_stream(resumed))
