"""Connections of the server: each has a deadline, so that no client holds one by doing nothing.

    a header     --timeout from its first byte, or from the beginning of the connection
    a request    twice as long: to be answered, and for the client to read answers before it
    its answer   --timeout, until the client has read it and sent what is left of its body
    in between   --idle-timeout

If there are too many, the one is closed that has waited longest for its client: before a request, within
one, or idle. The new one is refused only if all others wait for the server.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import functools
import logging
import math
import os
import resource
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from hotrows.serving.limits import Limits

log = logging.getLogger("hotrows")

_AT_ONCE, _QUEUE = 16, 2048  # connections that are accepted in a row, and that the system keeps meanwhile
_OTHER_FILES = 32  # that may be opened later
_READ = 64 << 10  # bytes that are read of a connection in turn with others
_HEADER, _LINES = 32 << 10, 200  # bytes of a header, and its lines
_PIPELINED = 8  # requests that may be sent before the answer to the first
_PIECES, _PIECE = 4096, 64  # pieces of a chunked body that may be smaller than so many bytes
_QUIET = 60.0  # seconds between two messages of one kind
_FULL = (
    b"HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\nretry-after: 1\r\n"
    b"content-type: application/json\r\ncontent-length: %d\r\n\r\n%s"
)
_FULL_DETAIL = b'{"detail": "the server has more connections than it can take; come back later"}'


class Connection(HttpToolsProtocol):
    """A connection, which ends where its client lets it wait.

    most: connections there may be; waiting: those that wait for their clients, the longest first.
    """

    def __init__(
        self, limits: Limits, most: int, waiting: dict[Connection, None], **arguments: Any
    ) -> None:
        super().__init__(**arguments)
        self._limits, self._most, self._waiting = limits, most, waiting
        self._alarm: asyncio.TimerHandle | None = None
        self._is_read = False
        self._in_header, self._header_bytes, self._small_pieces, self._left_over = False, 0, 0, 0

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        transport.max_size = _READ
        # asyncio does so only for sockets that it made; an answer in two parts takes 40 ms more without.
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._expect(self._limits.seconds)
        if len(self.connections) > self._most:
            self._make_room()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._waiting.pop(self, None)
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

    def on_header(self, name: bytes, value: bytes) -> None:
        super().on_header(name, value)
        if len(self.headers) > _LINES:
            raise ValueError("a header of too many lines")

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
        if not self._is_idle:
            self._waiting.pop(self, None)

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
        self._alarm, self._is_read = self.loop.call_later(seconds, self._late), False
        self._waiting.pop(self, None)
        if self._is_idle or self.cycle.more_body:
            self._waiting[self] = None

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
        longest = next(iter(self._waiting))
        if longest is self:
            self.transport.write(_FULL % (len(_FULL_DETAIL), _FULL_DETAIL))
            self.transport.close()
        else:
            del self._waiting[longest]
            self.connections.discard(longest)
            longest.transport.abort()


class Server(uvicorn.Server):
    """Serves until a signal: SIGINT ends it, SIGTERM or SIGHUP (a closed terminal, but under nohup) does
    after `drain` seconds; a second one at once.

    end: is called at the first signal. In the end requests that were taken are answered.
    """

    def __init__(self, config: uvicorn.Config, end: Callable[[], None], drain: float) -> None:
        super().__init__(config)
        self._end, self._drain, self._end_at = end, drain, math.inf
        self._quiet_until = 0.0

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        is_first, now = self._end_at == math.inf, time.monotonic()
        self.force_exit = self.should_exit and sig == signal.SIGINT
        self._end_at = now + self._drain if is_first and sig != signal.SIGINT else now
        self._end()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        before = signal.getsignal(signal.SIGHUP)
        is_caught = before == signal.SIG_DFL and threading.current_thread() is threading.main_thread()
        with super().capture_signals():
            if is_caught:
                signal.signal(signal.SIGHUP, self.handle_exit)
            yield
        if is_caught:
            signal.signal(signal.SIGHUP, before)

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
            f"nothing can listen at {host}:{port}: {error.strerror}; give another --host or --port"
        ) from None
    connection: Any = functools.partial(Connection, limits, most_connections(limits.connections), {})
    idle: Any = limits.idle  # a fraction will do
    config = uvicorn.Config(
        app,
        http=connection,
        loop="asyncio",
        ws="none",
        log_level="error",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        backlog=_AT_ONCE,
        timeout_keep_alive=idle,
        timeout_graceful_shutdown=math.ceil(limits.seconds) + 1,
    )
    Server(config, end, limits.drain).run([listening])


def most_connections(wanted: int) -> int:
    """How many connections there may be: fewer than wanted if the process may not open so many files."""
    free = os.open(os.devnull, os.O_RDONLY)  # the least number that is free
    os.close(free)
    others = free + _OTHER_FILES + 3 * _AT_ONCE  # accepted, begun, and closed to make room
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted + others:
        soft = wanted + others if hard == resource.RLIM_INFINITY else min(wanted + others, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        if soft < wanted + others:
            most = max(soft - others, 1)
            log.warning(
                "at most %d connections at once, not %d, as this process may open %d files; raise "
                "`ulimit -n`, or lower --max-connections",
                *(most, wanted, soft),
            )
            return most
    return wanted
