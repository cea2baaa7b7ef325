"""A process that reads bodies of JSON, so that a large one does not hold up the server.

Python makes objects of JSON while it holds its global lock, up to seconds for some MB. The process does
it elsewhere, and sends back Arrow, which the server takes without a copy.

    a message        int64 of its size, then so many bytes
    to the process   its settings; then bodies
    from it          nothing, once it can read; then three of each body: b"ok", a stream of the rows, one
                     of what they share; or the status of a refusal, its line, and nothing
"""

from __future__ import annotations

import gc
import json
import os
import select
import struct
import subprocess
import sys
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict
from typing import IO, Any

from hotrows.runtime.arrow import pa
from hotrows.serving.bodies import Refused, json_tables, words_of
from hotrows.serving.requests import Names

_SIZE = struct.Struct("<q")
_LATE = "the body could not be read in time; send fewer rows, or come back later"


class JsonProcess:
    """Reads bodies as `json_tables` does, one after the other.

    The process begins with the first body, or `start`, and again after one that was given up. The first
    body does not wait for it: this process reads that one.
    """

    def __init__(self, most_rows: int, names: Names) -> None:
        self._thread = ThreadPoolExecutor(1, "hotrows reading")
        self._most_rows, self._names = most_rows, names
        self._process: subprocess.Popen[bytes] | None = None
        self._is_up = False  # whether the process can read

    def start(self) -> None:
        """Begins to start the process."""
        self._thread.submit(self._start)

    def submit(self, parts: list[bytes], deadline: float) -> Future[tuple[Any, Any]]:
        """The tables of a body, to come. parts: the body, which is taken out of it; deadline: of
        `time.monotonic`, when the process is ended."""
        return self._thread.submit(self._tables, parts, deadline)

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)
        self._kill()

    def _start(self) -> None:
        if self._process is not None and self._process.poll() is None:
            return
        self._kill()
        code = f"import sys; sys.path[:] = {sys.path!r}; from {__name__} import main; main()"
        command = [sys.executable, "-c", code]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, start_new_session=True)
        self._is_up = False
        settings = {"most_rows": self._most_rows, "names": asdict(self._names)}
        _send(self._process.stdin, json.dumps(settings).encode())

    def _tables(self, parts: list[bytes], deadline: float) -> tuple[Any, Any]:
        if (left := deadline - time.monotonic()) < 0:
            raise Refused(503, _LATE)
        is_first = self._process is None
        self._start()
        if is_first:
            return _tables_of(_answer(parts.pop(), self._most_rows, self._names))
        process = self._process
        assert process is not None and process.stdout is not None
        if not self._is_up and not select.select([process.stdout], [], [], left)[0]:
            raise Refused(503, _LATE)  # it goes on starting: ended by each body, it would never be up
        alarm = threading.Timer(left, process.kill)
        alarm.start()
        try:
            self._is_up = self._is_up or not _received(process.stdout)
            _send(process.stdin, parts.pop())
            answer = _received(process.stdout), _received(process.stdout), _received(process.stdout)
        except (OSError, EOFError):
            self._kill()
            raise Refused(503, _LATE) from None
        finally:
            alarm.cancel()
        return _tables_of(answer)

    def _kill(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                assert pipe is not None
                with suppress(OSError):
                    pipe.close()


def main() -> None:
    """Reads bodies from the standard input until it ends, as it does with the server."""
    with suppress(EOFError, BrokenPipeError):
        _read_bodies()
    os._exit(0)  # without what could not be sent


def _read_bodies() -> None:
    requests, answers = os.fdopen(0, "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what is printed is no answer
    settings = json.loads(_received(requests))
    names = Names(**settings["names"])
    _answer(b"[{}]", 1, names)  # loads what is needed, which takes seconds
    _send(answers, b"")
    gc.disable()  # millions of new objects are no reason to look for cycles
    while True:
        body = _received(requests)
        for message in _answer(body, settings["most_rows"], names):
            _send(answers, message)
        del body
        gc.collect()


def _answer(body: bytes, most_rows: int, names: Names) -> tuple[bytes, bytes, bytes]:
    try:
        rows, shared = (_stream_of(table) for table in json_tables(body, most_rows, names))
        return b"ok", rows, shared
    except Refused as refused:
        status, line = refused.status, str(refused)
    except ValueError as error:
        status, line = 422, words_of(error)
    return str(status).encode(), line.encode("utf-8", "backslashreplace"), b""


def _tables_of(answer: tuple[bytes, bytes, bytes]) -> tuple[Any, Any]:
    status, *streams = answer
    if status != b"ok":
        raise Refused(int(status), streams[0].decode("utf-8", "replace"))
    rows, shared = (pa.ipc.open_stream(stream).read_all() for stream in streams)
    return rows, shared


def _stream_of(table: Any) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


def _send(pipe: IO[bytes] | None, message: bytes) -> None:
    assert pipe is not None
    pipe.write(_SIZE.pack(len(message)))
    pipe.write(message)
    pipe.flush()


def _received(pipe: IO[bytes] | None) -> bytes:
    assert pipe is not None
    (size,) = _SIZE.unpack(_read(pipe, _SIZE.size))
    return _read(pipe, size)


def _read(pipe: IO[bytes], size: int) -> bytes:
    content = pipe.read(size)
    if len(content) < size:
        raise EOFError
    return content
