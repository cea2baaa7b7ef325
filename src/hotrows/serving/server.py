"""The server: scores over HTTP, of JSON and Arrow bodies.

    POST /score      rows -> {"labels": ["click"], "scores": [0.12, 0.07]}
    GET  /healthz    200 while requests are taken
    GET  /metrics    counts and times, as Prometheus reads them

A JSON body is a list of rows, an object of columns each, or {"rows": [...], "shared": {...}}, where
`shared` has the columns that all rows have in common. An Arrow body is an IPC stream, of type
application/vnd.apache.arrow.stream; so is its answer, a column a label.

A wrong request is answered by one line that says what was expected, as {"detail": "..."}: 400 no JSON or
Arrow, 413 too large, 415 another type, 422 rows that cannot be scored; and 503, with Retry-After, where
the server has more to do than it can.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import signal
import struct
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from hotrows import json_file
from hotrows.data.raw.arrow import pyarrow
from hotrows.serving.arrow_size import decompressed_size, repeated_size
from hotrows.serving.metrics_page import ServerMetrics
from hotrows.serving.requests import Request
from hotrows.serving.scorer import Scorer
from hotrows.serving.scoring_thread import Overloaded, Scored, ScoringThread

log = logging.getLogger("hotrows")

ARROW = "application/vnd.apache.arrow.stream"
VERSION = "X-Hotrows-Version"


@dataclass(frozen=True)
class Limits:
    """What a request may be, and how many may wait.

    body: bytes; rows: of one request; places: its rows times the longest sequence, to which the program
    pads all; seconds: from arrival to scores; waiting: requests that wait for the program.
    """

    body: int = 8 << 20
    rows: int = 5000
    seconds: float = 2.0
    waiting: int = 256
    places: int = 1 << 22


class _Refused(Exception):
    """A request that is answered by a status and a line."""

    def __init__(self, status: int, line: str) -> None:
        super().__init__(line)
        self.status = status


def application(scorer: Scorer, limits: Limits = Limits()) -> Any:
    """The application, for any ASGI server."""
    try:
        from fastapi import FastAPI
    except ImportError:
        raise ValueError("the server needs FastAPI and uvicorn: pip install 'hotrows[serving]'") from None
    server = _Server(scorer, limits)

    @asynccontextmanager
    async def lifespan(app: Any) -> AsyncIterator[None]:
        yield
        await asyncio.to_thread(server.thread.close, limits.seconds)  # then nobody waits for scores

    app = FastAPI(title="hotrows", lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None)
    app.add_route("/score", server.score, methods=["POST"])
    app.add_route("/healthz", server.health, methods=["GET"])
    app.add_route("/metrics", server.metrics, methods=["GET"])
    return app


def serve(scorer: Scorer, host: str, port: int, limits: Limits) -> None:
    """Serves until SIGINT or SIGTERM; requests that were taken are then answered before it returns.

    Call it from the main thread, which gets the signals.
    """
    try:
        import uvicorn
    except ImportError:
        raise ValueError("the server needs FastAPI and uvicorn: pip install 'hotrows[serving]'") from None
    # uvicorn repeats the signal that ended it: SIGTERM by default would end this process there.
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with suppress(KeyboardInterrupt):
            uvicorn.run(
                application(scorer, limits),
                host=host,
                port=port,
                log_level="warning",
                access_log=False,
                timeout_graceful_shutdown=math.ceil(limits.seconds) + 1,
            )
    finally:
        signal.signal(signal.SIGTERM, before)


class _Server:
    def __init__(self, scorer: Scorer, limits: Limits) -> None:
        self._scorer, self._limits = scorer, limits
        self._metrics = ServerMetrics()
        self.thread = ScoringThread(scorer, limits.waiting)

    async def score(self, request: Any) -> Any:
        from starlette.responses import Response

        begin, scores = time.monotonic(), np.zeros(0, np.float32)
        headers: dict[str, str] = {}
        try:
            is_arrow, scored = await self._scores(request, begin + self._limits.seconds)
            scores = scored.scores
            status, kind = 200, ARROW if is_arrow else "application/json"
            headers = {VERSION: str(scored.version)} if scored.version else {}
            content = self._arrow(scores) if is_arrow else self._json(scores)
        except _Refused as refused:
            status, kind = refused.status, "application/json"
            content = json.dumps({"detail": str(refused)}).encode()
            headers = {"Retry-After": "1"} if status == 503 else {}
        self._metrics.count(status, time.monotonic() - begin, len(scores))
        return Response(content, status, headers, kind)

    async def health(self, request: Any) -> Any:
        from starlette.responses import JSONResponse

        labels, is_ok = list(self._scorer.labels), self.thread.is_alive
        version = self._scorer.version
        fields: dict[str, Any] = {"bundle": version.bundle.path.name, "labels": labels}
        fields |= {"version": version.number} if version.number else {}
        status = "ok" if is_ok else "the thread that scores has ended; start the server again"
        return JSONResponse({"status": status, **fields}, 200 if is_ok else 503)

    async def metrics(self, request: Any) -> Any:
        from starlette.responses import PlainTextResponse

        page = self._metrics.page(self.thread.waiting, self.thread.groups, self._scorer.follower)
        return PlainTextResponse(page, media_type="text/plain; version=0.0.4")

    async def _scores(self, request: Any, deadline: float) -> tuple[bool, Scored]:
        """Whether the body is Arrow, and the scores of its rows."""
        kind = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
        if kind not in ("application/json", ARROW):
            raise _Refused(415, f"expected a body of application/json or {ARROW}, found {kind[:60]!r}")
        is_arrow = kind == ARROW
        try:
            left = deadline - time.monotonic()
            return is_arrow, await asyncio.wait_for(self._computed(request, is_arrow, deadline), left)
        except asyncio.TimeoutError:
            raise _Refused(503, f"no score after {self._limits.seconds:g} s; come back later") from None
        except Overloaded as overloaded:
            raise _Refused(503, str(overloaded)) from None
        except ValueError as error:
            raise _Refused(422, " ".join(str(error).split())[:500]) from None
        except _Refused:
            raise
        except Exception as error:
            if type(error).__name__ == "ClientDisconnect":
                raise _Refused(400, "the body ends early") from None
            log.error("a request could not be scored: %s", _line_of(error))
            raise _Refused(500, "the request could not be scored; the server's log says why") from None

    async def _computed(self, request: Any, is_arrow: bool, deadline: float) -> Scored:
        encode = self._encoding(await self._body(request), is_arrow)
        return await asyncio.wrap_future(self.thread.submit(encode, deadline))

    async def _body(self, request: Any) -> bytes:
        most, parts, size = self._limits.body, [], 0
        length = request.headers.get("content-length", "0")
        if length.isdecimal() and int(length[:20]) > most:
            raise _Refused(413, f"expected a body of at most {most:,} bytes, found {int(length[:20]):,}")
        async for part in request.stream():
            size += len(part)
            if size > most:
                raise _Refused(413, f"expected a body of at most {most:,} bytes, found more")
            parts.append(part)
        return b"".join(parts)

    def _encoding(self, body: bytes, is_arrow: bool) -> Callable[[], list[Request]]:
        """What makes a request of a body, on the thread that scores."""

        def encode() -> list[Request]:
            rows, shared = _arrow_rows(body, self._limits.body) if is_arrow else _json_rows(body)
            if not 0 < len(rows) <= self._limits.rows:
                status = 413 if len(rows) else 422
                raise _Refused(status, f"expected 1 to {self._limits.rows:,} rows, found {len(rows):,}")
            if is_arrow:
                self._scorer.requests.check_names(rows.column_names)
            requests = self._scorer.requests.encode(rows, shared)
            places = sum(map(self._scorer.places_of, requests))
            if places > self._limits.places:
                raise _Refused(
                    413,
                    f"expected at most {self._limits.places:,} rows times values of the longest list, "
                    f"{places:,} came; send fewer rows, or shorter lists",
                )
            return requests

        return encode

    def _json(self, scores: np.ndarray) -> bytes:
        return json.dumps({"labels": list(self._scorer.labels), "scores": scores.tolist()}).encode()

    def _arrow(self, scores: np.ndarray) -> bytes:
        pa = pyarrow()
        columns = scores.reshape(len(scores), -1).T
        table = pa.table(dict(zip(self._scorer.labels, map(np.ascontiguousarray, columns), strict=True)))
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        return sink.getvalue().to_pybytes()


def _json_rows(body: bytes) -> tuple[Any, Mapping[str, Any] | None]:
    try:
        content = json_file.parse(body)
    except ValueError as error:
        raise _Refused(400, f"the body is no JSON: {error}"[:300]) from None
    if isinstance(content, dict):
        if set(content) - {"rows", "shared"} or "rows" not in content:
            raise _Refused(422, "expected a list of rows, or an object of rows and shared")
        content, shared = content["rows"], content.get("shared") or {}
    else:
        shared = {}
    if not isinstance(content, list) or not isinstance(shared, dict):
        raise _Refused(422, "expected a list of rows, an object of columns each, and shared as an object")
    return content, shared


def _arrow_rows(body: bytes, most: int) -> tuple[Any, None]:
    """The rows of an Arrow stream; most: bytes that its buffers may have once they are decompressed."""
    pa = pyarrow()
    try:
        if (size := decompressed_size(body)) > most:
            raise _Refused(413, f"expected at most {most:,} bytes once decompressed, found {size:,}")
        table = pa.ipc.open_stream(pa.py_buffer(body)).read_all()
        table.validate(full=True)  # offsets of a hostile body may point anywhere
    except (pa.ArrowException, OSError, ValueError, struct.error) as error:
        raise _Refused(
            400, f"the body is no Arrow stream: {' '.join(str(error).split())[:200]}"
        ) from None
    if (size := sum(map(repeated_size, table.columns))) > most:
        raise _Refused(413, f"expected at most {most:,} bytes of text in all rows, found {size:,}")
    return table, None


def _line_of(error: Exception) -> str:
    """An error that is a mistake of the program's own, in one line: kind, message, where."""
    trace, where = error.__traceback__, "unknown"
    while trace is not None:
        where, trace = f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}", trace.tb_next
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]} ({where})"
