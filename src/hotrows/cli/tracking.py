"""The option of `hotrows train --tracker`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

NAMES = ("mlflow", "wandb")  # of hotrows.tools.trackers, which imports PyTorch

tracker_option = click.option(
    "--tracker",
    "trackers",
    type=click.Choice(NAMES),
    multiple=True,
    help="Log the run there, as the variables of its own library say (MLFLOW_TRACKING_URI, WANDB_MODE); "
    "may be repeated.",
)


def trackers(names: Sequence[str]) -> list[Any]:
    """Returns the callbacks that log a run."""
    if not names:
        return []
    from hotrows.tools.trackers import BY_NAME

    return [BY_NAME[name]() for name in dict.fromkeys(names)]


def words(callbacks: Sequence[Any]) -> list[str]:
    """Returns the options that make these callbacks again."""
    names = [one.name for one in callbacks if getattr(one, "name", None) in NAMES]
    return [word for name in names for word in ("--tracker", name)]
