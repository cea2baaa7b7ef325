"""A process that reads bodies of JSON, so that a large one does not hold up the server.

Python makes objects of JSON while it holds its global lock, up to seconds for some MB. The process does it
elsewhere, and sends back Arrow, which the server takes without a copy.

    to it      its limits, once; then bodies             each message: int64 of its size, then so many bytes
    from it    b"ok": sizes and streams of rows and shared; else a status and a line
"""

from __future__ import annotations

import gc
import json
import os
import struct
import subprocess
import sys
import threading
import time
from dataclasses import asdict
from typing import IO, Any

from hotrows.data.raw.arrow import pyarrow
from hotrows.serving.bodies import Refused, json_tables
from hotrows.serving.requests import Names

_SIZE = struct.Struct("<q")


class JsonProcess:
    """Reads bodies as `json_tables` does, one after the other; call it from one thread.

    The process begins with the first body, or `start`, and again after one that was given up.
    """

    def __init__(self, most_rows: int, names: Names) -> None:
        self._settings = json.dumps({"most_rows": most_rows, "names": asdict(names)}).encode()
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        if self._process is not None and self._process.poll() is None:
            return
        code = f"import sys; sys.path[:] = {sys.path!r}; from {__name__} import main; main()"
        command = [sys.executable, "-c", code]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, start_new_session=True)
        _send(self._process.stdin, self._settings)

    def tables(self, body: bytes, deadline: float) -> tuple[Any, Any]:
        """The tables of a body; deadline: of `time.monotonic`, when the process is ended."""
        self.start()
        process = self._process
        assert process is not None
        alarm = threading.Timer(max(0.0, deadline - time.monotonic()), process.kill)
        alarm.start()
        try:
            _send(process.stdin, body)
            status, *streams = _received(process.stdout), *(_received(process.stdout) for _ in range(2))
        except (OSError, EOFError):
            self.close()
            raise Refused(503, "the body could not be read in time; send fewer rows") from None
        finally:
            alarm.cancel()
        if status != b"ok":
            raise Refused(int(status), streams[0].decode())
        rows, shared = (pyarrow().ipc.open_stream(stream).read_all() for stream in streams)
        return rows, shared

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None


def main() -> None:
    """Reads bodies from the standard input until it ends."""
    requests, answers = os.fdopen(0, "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what is printed is no answer
    settings = json.loads(_received(requests))
    names = Names(**{name: tuple(value) for name, value in settings["names"].items()})
    gc.disable()  # millions of new objects are no reason to look for cycles
    while True:
        try:
            body = _received(requests)
        except EOFError:
            return
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
        status, line = 422, " ".join(str(error).split())[:500]
    return str(status).encode(), line.encode("utf-8", "backslashreplace"), b""


def _stream_of(table: Any) -> bytes:
    sink = pyarrow().BufferOutputStream()
    with pyarrow().ipc.new_stream(sink, table.schema) as writer:
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
