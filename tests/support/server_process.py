"""A server process that a test has started."""

import os
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import hotrows


@contextmanager
def served(bundle, *options, **of_process):
    """`hotrows serve` of a bundle: the process, and its port, once it answers."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {**os.environ, "PYTHONPATH": str(Path(hotrows.__file__).parents[1])}
    command = [sys.executable, "-m", "hotrows", "serve", str(bundle), "--port", str(port), *options]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=environment, stderr=pipe, text=True, **of_process) as process:
        try:
            wait_for(f"http://127.0.0.1:{port}/healthz", process)
            yield process, port
        finally:
            process.kill()


def wait_for(url, process):
    """Returns once the server answers at the URL."""
    for _ in range(600):
        try:
            urllib.request.urlopen(url, timeout=10).close()
            return
        except urllib.error.URLError:
            assert process.poll() is None, process.stderr.read()
            threading.Event().wait(0.1)
