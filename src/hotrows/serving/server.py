"""The server: scores over HTTP, of JSON and Arrow bodies.

    POST /score          rows -> {"labels": ["click"], "scores": [0.12, 0.07]}
    GET  /schema         the fields of a request, with an example
    GET  /openapi.json   all of this, as OpenAPI describes it
    GET  /healthz        200 while requests are taken, 503 once the server is to end
    GET  /metrics        counts and times, as Prometheus reads them

A JSON body is a list of rows, an object of columns each, or {"rows": [...], "shared": {...}}, where
`shared` has the columns that all rows have in common. With /score?contributions=true the answer, which is
then JSON, also has for each row what each field adds to the score, see `Scorer.contributions`. An Arrow
body is an IPC stream, of type application/vnd.apache.arrow.stream; so is its answer, a column a label.

A wrong request is answered by one line that says what was expected, as {"detail": "..."}: 400 no JSON or
Arrow, 408 a body that does not arrive, 413 too large, 415 another type or encoding, 422 rows that cannot
be scored; and 503, with Retry-After, where the server has more to do than it can.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from hotrows.runtime.arrow import pa
from hotrows.runtime.extras import needs
from hotrows.runtime.suggestions import one_line
from hotrows.serving.bodies import (
    Refused,
    arrow_tables,
    check_lists,
    check_places,
    json_tables,
    size_in_memory,
    words_of,
)
from hotrows.serving.description import openapi_of, schema_of
from hotrows.serving.json_process import JsonProcess
from hotrows.serving.limits import Limits
from hotrows.serving.metrics_page import ServerMetrics
from hotrows.serving.requests import Request
from hotrows.serving.scorer import Scorer, differences
from hotrows.serving.scoring_thread import Overloaded, Scored, ScoringThread

log = logging.getLogger("hotrows")
_T = TypeVar("_T")

ARROW = "application/vnd.apache.arrow.stream"
VERSION = "X-Hotrows-Version"
_APART = 64 << 10  # bytes of a body of JSON that a process of its own reads
_LARGE = 256 << 10  # bytes of a body that is read and scored apart from smaller ones
_FREE = 64 << 10  # bytes of each body that do not count in those of all: small ones are always taken
_UNITS = {"sigmoid": "log odds", "exp": "log"}  # of contributions, by the link of a label
_PACKAGES = "starlette", "uvicorn", "httptools"


def application(scorer: Scorer, limits: Limits | None = None) -> Any:
    """The application, for any ASGI server.

    Limits of connections, of headers and of the time that a client takes to read are those of `serve`.
    """
    return _application(_Server(scorer, limits or Limits()))


def serve(scorer: Scorer, host: str, port: int, limits: Limits) -> None:
    """Serves until SIGINT or SIGTERM; requests that were taken are then answered before it returns.

    Call it from the main thread, which gets the signals.
    """
    with needs("the server", *_PACKAGES):
        from hotrows.serving.connections import run
    server = _Server(scorer, limits)
    for process in server.readers:
        process.start()
    run(_application(server), host, port, limits, server.end)


def _application(server: _Server) -> Any:
    with needs("the server", *_PACKAGES):
        from starlette.applications import Starlette
        from starlette.exceptions import HTTPException
        from starlette.routing import Route

    @asynccontextmanager
    async def lifespan(app: Any) -> AsyncIterator[None]:
        yield
        await asyncio.to_thread(server.close)  # then nobody waits for scores

    routes = [
        Route("/score", server.score, methods=["POST"]),
        Route("/", server.start, methods=["GET"]),
        Route("/schema", server.schema, methods=["GET"]),
        Route("/openapi.json", server.openapi, methods=["GET"]),
        Route("/healthz", server.health, methods=["GET"]),
        Route("/metrics", server.metrics, methods=["GET"]),
    ]
    return Starlette(routes=routes, lifespan=lifespan, exception_handlers={HTTPException: _no_route})


async def _no_route(request: Any, error: Any) -> Any:
    from starlette.responses import JSONResponse

    return JSONResponse({"detail": error.detail}, error.status_code, error.headers)


@dataclass
class _Body:
    """The body of a request as it arrives, in the end one part. size: its bytes."""

    parts: list[bytes] = field(default_factory=list)
    size: int = 0

    @property
    def counted(self) -> int:
        """Its bytes that count in those of all bodies."""
        return max(0, self.size - _FREE)

    def add(self, part: bytes) -> None:
        self.parts.append(part)
        self.size += len(part)


@dataclass(frozen=True)
class _Answer:
    """The scores of a request. groups: the requests that they are of, where they are to be explained:
    those of the body first."""

    scored: Scored
    groups: dict[str, list[Request]]

    @property
    def rows(self) -> int:
        """The rows of the body."""
        return sum(r.size for r in self.groups[""]) if self.groups else len(self.scored.scores)

    def contributions(self) -> dict[str, Any]:
        calibration = self.scored.version.calibration
        adds = differences(self.groups, calibration.calibrated(self.scored.outputs))
        columns = zip(*(values.tolist() for values in adds.values()), strict=True)
        links = (loss.link for loss in calibration.losses.values())
        return {
            "units": [_UNITS.get(link, "score") for link in links],
            "contributions": [dict(zip(adds, values, strict=True)) for values in columns],
        }


class _Server:
    """The state that routes share: the threads that score, and the bytes of all bodies under way."""

    def __init__(self, scorer: Scorer, limits: Limits) -> None:
        self._scorer, self._limits = scorer, limits
        self._metrics = ServerMetrics()
        self._bytes, self._ends = 0, False
        self.readers = [JsonProcess(limits.rows, scorer.requests.names) for _ in range(2)]
        self.large = ScoringThread(scorer, limits.waiting)
        self.thread = ScoringThread(scorer, limits.waiting, self.large)

    def end(self) -> None:
        """From now on /healthz answers 503, and connections end with their answers."""
        self._ends = True

    def close(self) -> None:
        for thread in (self.thread, self.large):  # in the order in which requests go through them
            thread.close(self._limits.seconds)
        for process in self.readers:
            process.close()

    async def score(self, request: Any) -> Any:
        from starlette.responses import Response

        begin, scores = time.monotonic(), np.zeros(0, np.float32)
        headers: dict[str, str] = {}
        try:
            is_explained = _is_explained(request.query_params)
            is_arrow, answer = await self._scores(request, begin + self._limits.seconds, is_explained)
            scores, number = answer.scored.scores[: answer.rows], answer.scored.version.number
            status, kind = 200, ARROW if is_arrow and not is_explained else "application/json"
            headers = {VERSION: str(number)} if number else {}
            content = self._arrow(scores) if kind == ARROW else self._json(scores, answer)
        except Refused as refused:
            status, kind = refused.status, "application/json"
            content = json.dumps({"detail": str(refused)}).encode()
            headers = {"Retry-After": "1"} if status == 503 else {}
            headers |= {"Accept-Encoding": "identity"} if status == 415 else {}
        self._metrics.count(status, time.monotonic() - begin, len(scores))
        return Response(content, status, headers | self._connection, kind)

    async def start(self, request: Any) -> Any:
        from starlette.responses import JSONResponse

        known = {"score": "POST /score", "schema": "GET /schema", "openapi": "GET /openapi.json"}
        known |= {"health": "GET /healthz", "metrics": "GET /metrics"}
        return JSONResponse({"labels": list(self._scorer.labels), **known}, 200, self._connection)

    async def schema(self, request: Any) -> Any:
        from starlette.responses import JSONResponse

        return JSONResponse(schema_of(self._scorer), 200, self._connection)

    async def openapi(self, request: Any) -> Any:
        from starlette.responses import JSONResponse

        return JSONResponse(openapi_of(self._scorer, self._limits.rows), 200, self._connection)

    async def health(self, request: Any) -> Any:
        from starlette.responses import JSONResponse

        labels, is_ok = list(self._scorer.labels), self.thread.is_alive and self.large.is_alive
        version = self._scorer.version
        fields: dict[str, Any] = {"bundle": version.bundle.path.name, "labels": labels}
        fields |= {"version": version.number} if version.number else {}
        status = "ok" if is_ok else "a thread that scores has ended; start the server again"
        status = "the server is about to end" if self._ends else status
        is_taking = is_ok and not self._ends
        return JSONResponse({"status": status, **fields}, 200 if is_taking else 503, self._connection)

    async def metrics(self, request: Any) -> Any:
        from starlette.responses import PlainTextResponse

        waiting, groups = self.thread.waiting + self.large.waiting, self.thread.groups + self.large.groups
        values = self._scorer.requests.value_counts.by_feature()
        short, follower = self._scorer.short_lists.count, self._scorer.follower
        page = self._metrics.page(waiting, groups, values, short, follower, self._scorer.user_cache)
        return PlainTextResponse(page, 200, self._connection, media_type="text/plain; version=0.0.4")

    @property
    def _connection(self) -> dict[str, str]:
        return {"Connection": "close"} if self._ends else {}

    async def _scores(self, request: Any, deadline: float, is_explained: bool) -> tuple[bool, _Answer]:
        """Reads the body and scores its rows: returns True if it is Arrow, and the scores."""
        from starlette.requests import ClientDisconnect

        is_arrow, body, begun = _is_arrow(request.headers), _Body(), False
        try:
            await _until(deadline, self._receive(request, body))
            begun = True
            submitted = self._submitted(body, is_arrow, deadline, is_explained)
            return is_arrow, await _until(deadline, submitted)
        except asyncio.TimeoutError:
            status, what = (503, "score") if begun else (408, "whole body")
            line = f"no {what} after {self._limits.seconds:g} s; come back later"
            raise Refused(status, line) from None
        except Overloaded as overloaded:
            raise Refused(503, str(overloaded)) from None
        except ValueError as error:
            raise Refused(422, words_of(error)) from None
        except Refused:
            raise
        except ClientDisconnect:
            raise Refused(400, "the body ends early") from None
        except Exception as error:
            log.error("a request could not be scored: %s", _line_of(error))
            raise Refused(500, "the request could not be scored; the server's log says why") from None
        finally:
            self._bytes -= body.counted
            body.parts.clear()  # a thread may still hold them

    async def _receive(self, request: Any, body: _Body) -> None:
        most = self._limits.body
        length = request.headers.get("content-length", "0")
        if length.isdecimal() and int(length[:20]) > most:
            raise Refused(413, f"expected a body of at most {most:,} bytes, found {int(length[:20]):,}")
        async for part in request.stream():
            before = body.counted
            body.add(part)
            self._bytes += body.counted - before
            if body.size > most:
                raise Refused(413, f"expected a body of at most {most:,} bytes, found more")
            if body.counted and self._bytes > self._limits.bodies:
                raise Refused(503, "the server has more bodies than it can hold; come back later")
        body.parts[:] = [b"".join(body.parts)]

    async def _submitted(
        self, body: _Body, is_arrow: bool, deadline: float, is_explained: bool
    ) -> _Answer:
        is_large = body.size > _LARGE or (is_arrow and size_in_memory(body.parts[0]) > _LARGE)
        thread = self.large if is_large else self.thread
        tables = None
        if body.size > _APART and not is_arrow:
            tables = await asyncio.wrap_future(self.readers[is_large].submit(body.parts, deadline))
        groups: dict[str, list[Request]] = {}
        encode = self._encoding(body.parts, is_arrow, tables, groups if is_explained else None)
        scored = await asyncio.wrap_future(thread.submit(encode, deadline))
        return _Answer(scored, groups)

    def _encoding(
        self,
        parts: list[bytes],
        is_arrow: bool,
        tables: tuple[Any, Any] | None,
        groups: dict[str, list[Request]] | None,
    ) -> Callable[[], list[Request]]:
        """Returns what makes a request, on a thread that scores. parts: the body; tables: made
        of it before; groups: is filled in with requests that explain the scores (None: none are made)."""
        limits, names = self._limits, self._scorer.requests.names

        def encode() -> list[Request]:
            if tables is not None:
                rows, shared = tables
            elif is_arrow:
                rows, shared = arrow_tables(parts.pop(), limits.body, limits.rows, names)
            else:
                rows, shared = json_tables(parts.pop(), limits.rows, names)
            check_lists(rows, limits.places)
            encoded = self._scorer.requests.encode(rows, shared)
            if groups is not None:
                groups.update(self._scorer.explained(encoded))
                if (computed := len(rows) * len(groups)) > limits.rows:
                    line = f"expected at most {limits.rows:,} rows times fields with contributions"
                    raise Refused(413, f"{line}, found {computed:,}; send fewer rows")
                encoded = [request for group in groups.values() for request in group]
            check_places(sum(map(self._scorer.places_of, encoded)), limits.places)
            return encoded

        return encode

    def _json(self, scores: np.ndarray, answer: _Answer) -> bytes:
        content = {"labels": list(self._scorer.labels), "scores": scores.tolist()}
        if answer.groups:
            content |= answer.contributions()
        return json.dumps(content).encode()

    def _arrow(self, scores: np.ndarray) -> bytes:
        columns = scores.reshape(len(scores), -1).T
        table = pa.table(dict(zip(self._scorer.labels, map(np.ascontiguousarray, columns), strict=True)))
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        return sink.getvalue().to_pybytes()


def _is_arrow(headers: Any) -> bool:
    """True if a body is Arrow, False if it is JSON; other ones are refused."""
    encoding = ", ".join(headers.getlist("content-encoding")).strip().lower()
    if encoding not in ("identity", ""):
        line = "expected a body without Content-Encoding (compress the buffers of an Arrow stream)"
        raise Refused(415, f"{line}, found {encoding[:60]!r}")
    kind = headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    if kind not in ("application/json", ARROW):
        raise Refused(415, f"expected Content-Type: application/json or {ARROW}, found {kind[:60]!r}")
    return kind == ARROW


def _is_explained(query: Any) -> bool:
    """True if the answer is to have contributions; what else a query may say is refused."""
    words = {"true": True, "1": True, "false": False, "0": False}
    for name, value in query.multi_items():
        if name != "contributions" or value.lower() not in words:
            raise Refused(422, f"expected ?contributions=true or false, found {f'{name}={value}'[:60]!r}")
    return words[query.get("contributions", "false").lower()]


async def _until(deadline: float, work: Coroutine[Any, Any, _T]) -> _T:
    return await asyncio.wait_for(work, deadline - time.monotonic())


def _line_of(error: Exception) -> str:
    """An error that is a mistake of the program's own, in one line: kind, message, where."""
    trace, where = error.__traceback__, "unknown"
    while trace is not None:
        where, trace = f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}", trace.tb_next
    return f"{type(error).__name__}: {one_line(error)} ({where})"
