"""The options of `hotrows train --publish`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from hotrows.cli.options import names_of, of_function, with_options

publish_options = with_options(
    click.option(
        "--publish",
        metavar="FOLDER",
        help="Write versions of the model there, or to a URL, for hotrows serve --follow.",
    ),
    of_function(
        "serving.export.publisher:Publisher",
        prefix="publish_",
        every={"metavar": "SECONDSs|BATCHESb"},
        table_dtype={"spelling": "--publish-dtype"},
        shared={"default": None},
        precision={"type": click.Choice(["float32", "bfloat16", "int8"])},
    ),
)
_NAMES = ("publish", "publish_every", "publish_table_dtype", "publish_shared", "publish_precision")
SECTION = {"Publishing": _NAMES}


def publishers(options: dict[str, Any]) -> list[Any]:
    """Takes the options of publishing out of those of the command; returns the callback that publishes,
    where there is something to publish to."""
    to, every, dtype, shared, precision = (options.pop(name) for name in _NAMES)
    if to is None:
        return []
    from hotrows.serving.export.publisher import Publisher

    return [Publisher(to, every, table_dtype=dtype, shared=names_of(shared), precision=precision)]


def words(callbacks: Sequence[Any]) -> list[str]:
    """Returns the options that make these callbacks again."""
    options: list[str] = []
    for one in (callback for callback in callbacks if hasattr(callback, "form")):
        form, shared = one.form, ",".join(one.form.shared)
        values = {"": one.to, "every": one.every, "dtype": form.table_dtype, "shared": shared}
        values["precision"] = form.precision
        for name, value in values.items():
            options += [f"--publish-{name}".rstrip("-"), str(value)] if value != "" else []
    return options
