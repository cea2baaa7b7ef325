"""A proxy in front of an S3 server that fails: busy answers, stalls, cut bodies and connections.

with bucket() as (proxy, environment): ...        # moto behind a proxy, and what a client needs of it
proxy.rate = 0.3                                  # of the requests fail from now on
"""

import http.client
import logging
import random
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

KINDS = ("503", "reset", "cut", "stall")
_BUSY = b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"


class Proxy(ThreadingHTTPServer):
    """Forwards requests to a server. faults: how many were injected, by kind; num_bytes: of answers."""

    daemon_threads = True

    def __init__(self, target, address="127.0.0.1", seed=0):
        super().__init__((address, 0), _Handler)
        self.target, self.rate, self.kinds, self.stall = target, 0.0, KINDS, 3.0
        self.faults, self.num_bytes, self.random = {}, 0, random.Random(seed)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def fault(self):
        if self.random.random() >= self.rate:
            return None
        kind = self.random.choice(self.kinds)
        self.faults[kind] = self.faults.get(kind, 0) + 1
        return kind

    def handle_error(self, request, client_address):
        pass  # a client that has gone


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def _forward(self):
        body, fault = self._body(), self.server.fault()
        if fault == "503":
            self._answer(503, {"Content-Type": "application/xml"}, _BUSY)
            return
        if fault == "stall":
            time.sleep(self.server.stall)
        if fault in ("reset", "stall"):
            self.close_connection = True
            return
        connection = http.client.HTTPConnection(*self.server.target, timeout=60)
        left_out = ("transfer-encoding", "content-length", "expect", "connection")
        headers = {name: value for name, value in self.headers.items() if name.lower() not in left_out}
        connection.request(self.command, self.path, body, {**headers, "Content-Length": str(len(body))})
        answer = connection.getresponse()
        content = answer.read()
        connection.close()
        kept = {
            n: v for n, v in answer.getheaders() if n.lower() not in ("connection", "transfer-encoding")
        }
        self.server.num_bytes += len(content)
        self._answer(answer.status, kept, content, cut=fault == "cut")

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _forward

    def _body(self):
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        body = b""
        while size := int(self.rfile.readline().split(b";")[0], 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        while self.rfile.readline().strip():
            pass
        return body

    def _answer(self, status, headers, content, cut=False):
        self.send_response(status)
        for name, value in headers.items():
            if name.lower() != "content-length" or self.command == "HEAD":
                self.send_header(name, value)
        if self.command != "HEAD":
            self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content[: len(content) // 2] if cut else content)
        if cut:
            self.close_connection = True

    def log_message(self, *_):
        pass


@contextmanager
def bucket(address="127.0.0.1"):
    """A proxy in front of moto, which has the bucket `bucket`, and the environment for it; skips the test
    where moto or s3fs is missing."""
    pytest.importorskip("s3fs")
    server = pytest.importorskip("moto.server").ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # which prints each request
    server.start()
    try:
        target = server.get_host_and_port()
        connection = http.client.HTTPConnection(*target)
        for method, path in (("POST", "/moto-api/reset"), ("PUT", "/bucket")):  # it has one memory
            connection.request(method, path)
            answer = connection.getresponse()
            assert answer.status == 200, answer.read()
            answer.read()
        proxy = Proxy(target, address)
        yield (
            proxy,
            {
                "AWS_ENDPOINT_URL": f"http://{address}:{proxy.server_port}",
                "AWS_ACCESS_KEY_ID": "key",
                "AWS_SECRET_ACCESS_KEY": "secret",
                "AWS_DEFAULT_REGION": "us-east-1",
            },
        )
        proxy.shutdown()
        proxy.server_close()
    finally:
        server.stop()
