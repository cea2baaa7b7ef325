"""A Redis server of a test's own, on a free port."""

import shutil
import socket
import subprocess
import time

import pytest


class RedisServer:
    """Runs `redis-server` until `stop`; skips the test where it, or the client, is not installed."""

    def __init__(self, folder):
        redis = pytest.importorskip("redis", reason="needs the Python package redis")
        if shutil.which("redis-server") is None:
            pytest.skip("needs the command redis-server")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        command = ["redis-server", "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(folder)]
        self._process = subprocess.Popen([*command, "--save", ""], stdout=subprocess.DEVNULL)
        self.client = redis.Redis(port=self.port)
        until = time.monotonic() + 60
        while True:
            try:
                self.client.ping()
                return
            except redis.ConnectionError:
                assert time.monotonic() < until and self._process.poll() is None
                time.sleep(0.02)

    def stop(self):
        self.client.close()
        self._process.kill()
        self._process.wait()
