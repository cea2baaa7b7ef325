"""Connections of the server: each has a deadline, so that no client holds one by doing nothing.

    a header     --most-seconds from its first byte, or from the beginning of the connection
    a request    twice as long: to be answered, and for the client to read answers before it
    its answer   --most-seconds, until the client has read it and sent what is left of its body
    in between   --most-idle

Where there are too many, the one is closed that has waited longest for its client: first those that never
sent a request, then those with half of one, then idle ones. Only where all others wait for the server is
the new one refused.
"""

from __future__ import annotations

import asyncio
import errno
import functools
import logging
import math
import os
import resource
import signal
import socket
import time
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

if TYPE_CHECKING:
    from hotrows.serving.server import Limits

log = logging.getLogger("hotrows")

_AT_ONCE, _QUEUE = 64, 2048  # connections that are accepted in a row, and that the system keeps meanwhile
_OTHER_FILES = 32  # that may be opened later
_READ = 64 << 10  # bytes that are read of a connection in turn with others
_HEADER = 64 << 10  # bytes of a header
_PIPELINED = 8  # requests that may be sent before the answer to the first
_PIECES, _PIECE = 4096, 64  # pieces of a chunked body that may be smaller than so many bytes
_QUIET = 60.0  # seconds between two messages of one kind
_FULL = (
    b"HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\nretry-after: 1\r\n"
    b"content-type: application/json\r\ncontent-length: %d\r\n\r\n%s"
)
_FULL_DETAIL = b'{"detail": "the server has more connections than it can take; come back later"}'


class Connection(HttpToolsProtocol):
    """A connection, which ends where its client lets it wait."""

    def __init__(self, limits: Limits, most: int, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._limits, self._most = limits, most
        self._since, self._is_read = time.monotonic(), False
        self._alarm: asyncio.TimerHandle | None = None
        self._in_header, self._header_bytes, self._small_pieces, self._left_over = False, 0, 0, 0

    @property
    def waits_for_client(self) -> int:
        """0: the server is at work for it; else how much it would be missed, the least first."""
        if self.cycle is None:
            return 1
        if self.cycle.response_complete:
            return 3
        return 2 if self.cycle.more_body else 0

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        transport.max_size = _READ
        self._expect(self._limits.seconds)
        if len(self.connections) > self._most:
            self._make_room()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._alarm is not None:
            self._alarm.cancel()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._header_bytes += len(data)
        if self._in_header and self._header_bytes > _HEADER and not self.transport.is_closing():
            self.send_400_response(f"expected a header of at most {_HEADER:,} bytes")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_header, self._header_bytes, self._small_pieces, self._left_over = True, 0, 0, 0
        if self._is_idle:
            self._expect(self._limits.seconds)

    def on_headers_complete(self) -> None:
        self._in_header = False
        if len(self.pipeline) >= _PIPELINED:
            raise ValueError("too many requests before the answer to the first")
        is_first = self._is_idle
        super().on_headers_complete()
        if is_first:
            self._expect(2 * self._limits.seconds + 1)

    def on_body(self, body: bytes) -> None:
        self._small_pieces += len(body) < _PIECE
        if self.cycle.response_complete:
            self._left_over += len(body)
        if self._small_pieces > _PIECES or self._left_over > self._limits.body:
            raise ValueError("a body in too many pieces, or one that nobody reads")
        super().on_body(body)

    def on_message_complete(self) -> None:
        self.cycle.more_body = False  # also of a request that was answered before
        super().on_message_complete()

    def on_response_complete(self) -> None:
        is_pipelined = bool(self.pipeline)
        super().on_response_complete()
        self._expect(self._limits.seconds * (1 + is_pipelined) + is_pipelined)

    @property
    def _is_idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _expect(self, seconds: float) -> None:
        """Sets the deadline of what the connection does now."""
        if self._alarm is not None:
            self._alarm.cancel()
        self._since, self._is_read = time.monotonic(), False
        self._alarm = self.loop.call_later(seconds, self._late)

    def _late(self) -> None:
        """Ends the connection; one whose answer was read stays until it has been idle for too long."""
        is_answered = self.cycle is not None and self._is_idle and not self.cycle.more_body
        is_read = is_answered and not self._in_header and not self.transport.get_write_buffer_size()
        left = self._limits.idle - self._limits.seconds
        if is_read and not self._is_read and not self.transport.is_closing() and left > 0:
            self._is_read, self._alarm = True, self.loop.call_later(left, self._late)
        else:
            self.transport.abort()

    def _make_room(self) -> None:
        waiting = [c for c in self.connections if c is not self and c.waits_for_client]
        if waiting:
            oldest = min(waiting, key=lambda one: (one.waits_for_client, one._since))
            self.connections.discard(oldest)
            oldest.transport.abort()
        else:
            self.transport.write(_FULL % (len(_FULL_DETAIL), _FULL_DETAIL))
            self.transport.close()


class Server(uvicorn.Server):
    """Serves until a signal: SIGINT ends it, SIGTERM does after `drain` seconds; a second one at once.

    end: is called at the first signal. In the end requests that were taken are answered.
    """

    def __init__(self, config: uvicorn.Config, end: Callable[[], None], drain: float) -> None:
        super().__init__(config)
        self._end, self._drain, self._end_at = end, drain, math.inf
        self._quiet_until = 0.0

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        is_first, now = self._end_at == math.inf, time.monotonic()
        self.force_exit = self.should_exit and sig == signal.SIGINT
        self._end_at = now + self._drain if is_first and sig == signal.SIGTERM else now
        self._end()

    async def on_tick(self, counter: int) -> bool:
        self.should_exit |= time.monotonic() >= self._end_at
        return await super().on_tick(counter)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        asyncio.get_running_loop().set_exception_handler(self._failed)
        await super().startup(sockets)
        for listening in sockets or ():
            listening.listen(_QUEUE)

    def _failed(self, loop: asyncio.AbstractEventLoop, problem: dict[str, Any]) -> None:
        """Logs what went wrong beside requests: that no file can be opened, once a minute."""
        error = problem.get("exception")
        if not isinstance(error, OSError) or error.errno not in (errno.EMFILE, errno.ENFILE):
            loop.default_exception_handler(problem)
        elif time.monotonic() >= self._quiet_until:
            self._quiet_until = time.monotonic() + _QUIET
            log.error("no connection can be accepted: %s; raise `ulimit -n`", error.strerror)


def run(app: Any, host: str, port: int, limits: Limits, end: Callable[[], None]) -> None:
    """Serves an application; see `Server`."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listening = socket.create_server((host, port), family=family)
    except OSError as error:
        raise ValueError(
            f"no connections can be taken at {host}:{port}: {error.strerror}; give another --host or --port"
        ) from None
    config = uvicorn.Config(
        app,
        http=functools.partial(Connection, limits, most_connections(limits.connections)),
        loop="asyncio",
        ws="none",
        log_level="error",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        backlog=_AT_ONCE,
        timeout_keep_alive=limits.idle,
        timeout_graceful_shutdown=math.ceil(limits.seconds) + 1,
    )
    Server(config, end, limits.drain).run([listening])


def most_connections(wanted: int) -> int:
    """How many connections there may be, fewer than wanted where the process may not open so many files."""
    free = os.open(os.devnull, os.O_RDONLY)  # the least number that is free
    os.close(free)
    others = free + _OTHER_FILES + _AT_ONCE
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted + others:
        soft = wanted + others if hard == resource.RLIM_INFINITY else min(wanted + others, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        if soft < wanted + others:
            most = max(soft - others, 1)
            log.warning(
                "at most %d connections at once, not %d, as this process may open %d files; raise "
                "`ulimit -n`, or lower --most-connections",
                *(most, wanted, soft),
            )
            return most
    return wanted
