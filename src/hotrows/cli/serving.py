"""The commands serve, scores over HTTP, and versions, of a model that is published."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import click

from hotrows.cli.commands import command
from hotrows.cli.options import BYTES, COUNT, POSITIVE, new_table, of_function, option, print_table
from hotrows.cli.paths import FOLDER
from hotrows.runtime.units import format_bytes


@command(
    "serve",
    "hotrows serve bundle --port 8000",
    "hotrows serve bundle --host 0.0.0.0 --threads 4 --max-rows 2000 --timeout 0.5",
    "hotrows serve --follow published",
)
@click.argument("bundle", type=FOLDER, required=False)
@click.option(
    "--follow",
    metavar="FOLDER",
    help="Serve the newest version in this folder, or at this URL, as training publishes them.",
)
@option("--host", default="127.0.0.1", help="The address to listen at.")
@option("--port", type=click.IntRange(0, 65535), default=8000, help="The port to listen at.")
@of_function("serving.scorer:Scorer", "threads", user_cache={"type": BYTES, "metavar": "SIZE"})
@of_function(
    "serving.limits:Limits",
    prefix="most_",
    rows={"spelling": "--max-rows", "old": ("--most-rows",)},
    body={"spelling": "--max-body-size", "old": ("--most-bytes",), "type": BYTES, "default": "8MiB"},
    seconds={"spelling": "--timeout", "old": ("--most-seconds",)},
    waiting={"spelling": "--max-queue", "old": ("--most-waiting",)},
    places={"spelling": "--max-places", "old": ("--most-places",)},
    bodies={"spelling": "--max-bodies", "old": ("--most-bodies",), "type": BYTES, "default": "64MiB"},
    connections={"spelling": "--max-connections", "old": ("--most-connections",)},
    idle={"spelling": "--idle-timeout", "old": ("--most-idle",), "type": POSITIVE},
)
@of_function("serving.limits:Limits", drain={"type": click.FloatRange(0)})
@of_function(
    "serving.scorer:Scorer",
    *("require_all", "verify", "trust"),
    extra_fields={"type": click.Choice(["refuse", "ignore"])},
)
def serve_command(
    bundle: Path | None,
    follow: str | None,
    host: str,
    port: int,
    threads: int,
    drain: float,
    verify: bool,
    trust: bool,
    extra_fields: Literal["refuse", "ignore"],
    require_all: bool,
    user_cache: int | None,
    **most: Any,
) -> None:
    """Serve the scores of a bundle over HTTP.

    POST /score accepts rows as JSON, or as an Arrow stream. GET /schema returns the fields of a request
    with an example, GET /openapi.json a description for tools. A request too many is answered 503 at
    once. SIGTERM and Ctrl-C end it once the requests that were taken are answered. `hotrows export
    --format onnx` writes a BUNDLE, `hotrows train --publish` the versions to --follow: newer ones are
    taken up while it serves; the header X-Hotrows-Version of an answer names the one that computed it.
    """
    # Check which options go together.
    from hotrows.serving.scorer import Scorer
    from hotrows.serving.server import Limits, serve

    if (bundle is None) == (follow is None):
        raise click.UsageError("give a BUNDLE, or the versions to --follow")
    if verify and follow is not None:
        raise click.UsageError("--verify is of a BUNDLE; versions to --follow are compared as they come")
    fields: dict[str, Any] = {"extra_fields": extra_fields, "require_all": require_all}
    fields["user_cache"] = user_cache
    if follow is not None:
        scorer = Scorer.watch(follow, threads=threads, trust=trust, **fields)
    else:
        assert bundle is not None
        scorer = Scorer(bundle, threads=threads, trust=trust, verify=verify, **fields)
    scorer.warm_up()
    # Serve until a signal.
    limits = Limits(drain=drain, **{name.removeprefix("most_"): value for name, value in most.items()})
    what = f"{bundle}" if follow is None else f"{follow}, version {scorer.version.number:,}"
    click.echo(f"{what}: {', '.join(scorer.labels)} at http://{host}:{port}/score", err=True)
    try:
        serve(scorer, host, port, limits)
    finally:
        scorer.close()


@command(
    "versions",
    "hotrows versions published",
    "hotrows versions published --pin 31",
    "hotrows versions published --unpin",
)
@click.argument("folder", metavar="FOLDER")
@click.option("--pin", type=COUNT, help="Make all that follow go to this version, and stay.")
@click.option("--unpin", is_flag=True, help="Make all that follow go to the newest version again.")
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
def versions_command(folder: str, pin: int | None, unpin: bool, as_json: bool) -> None:
    """Show the versions of a published model, or go back to one.

    FOLDER is where `hotrows train --publish` writes, or a URL. Versions before the last two bases are
    deleted as training goes on, but for what a pinned one needs.
    """
    from hotrows.serving import chain
    from hotrows.serving.places import Mirror
    from hotrows.serving.version import versions_in

    if pin is not None and unpin:
        raise click.UsageError("give --pin or --unpin, not both")
    mirror = Mirror.open(folder)
    path = mirror.folder if mirror else Path(folder)
    if mirror:
        mirror.pull()
    versions_in(path)
    if pin is not None or unpin:
        if mirror:
            mirror.pin(pin)
        else:
            chain.pin(path, pin)
    versions = list(chain.describe(path))
    if as_json:
        click.echo(json.dumps(versions, indent=2))
        return
    shown = new_table("version", "step", "age", "size", "is", left=("is",))
    for one in versions:
        kinds = ", ".join([*one["kinds"], *(["pinned"] if one["pinned"] else [])])
        age, size = f"{one['age']:,.0f} s", format_bytes(one["bytes"])
        shown.add_row(f"{one['version']:,}", f"{one['step']:,}", age, size, kinds)
    print_table(shown)
