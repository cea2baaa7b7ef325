"""The command serve: scores over HTTP."""

from __future__ import annotations

from pathlib import Path

import click

from hotrows.cli.options import BYTES, COUNT, FOLDER, POSITIVE, THREADS, command


@command(
    "serve",
    "hotrows serve bundle --port 8000",
    "hotrows serve bundle --host 0.0.0.0 --threads 4 --most-rows 2000 --most-seconds 0.5",
)
@click.argument("bundle", type=FOLDER)
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen at.")
@click.option("--port", type=click.IntRange(0, 65535), default=8000, show_default=True)
@click.option(
    "--threads", type=THREADS, default=1, show_default=True, help="Of encoding and the program."
)
@click.option("--most-rows", type=COUNT, default=5000, show_default=True, help="Of one request.")
@click.option(
    "--most-bytes", type=BYTES, default="8MiB", show_default=True, help="Of the body of a request."
)
@click.option(
    "--most-seconds", type=POSITIVE, default=2.0, show_default=True, help="That a request may take."
)
@click.option(
    "--most-waiting", type=COUNT, default=256, show_default=True, help="Requests that may wait."
)
@click.option(
    "--trust", is_flag=True, help="Open a program in pt2, whose reader runs what the file says."
)
def serve_command(
    bundle: Path,
    host: str,
    port: int,
    threads: int,
    most_rows: int,
    most_bytes: int,
    most_seconds: float,
    most_waiting: int,
    trust: bool,
) -> None:
    """Serve the scores of a bundle over HTTP.

    POST /score takes rows as JSON, or as an Arrow stream; GET /healthz and GET /metrics say how the
    server is. A request too many is answered 503 at once. SIGTERM and Ctrl-C end it once the requests
    that were taken are answered. `hotrows export --format onnx` writes a BUNDLE.
    """
    from hotrows.serving.scorer import Scorer
    from hotrows.serving.server import Limits, serve

    scorer = Scorer(bundle, threads=threads, trust=trust)
    scorer.logits([{}])  # the first one takes longest
    click.echo(f"{bundle}: {', '.join(scorer.labels)} at http://{host}:{port}/score", err=True)
    serve(scorer, host, port, Limits(most_bytes, most_rows, most_seconds, most_waiting))
