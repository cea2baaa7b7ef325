"""A server process that a test has started."""

import threading
import urllib.error
import urllib.request


def wait_for(url, process):
    """Returns once the server answers at the URL."""
    for _ in range(600):
        try:
            urllib.request.urlopen(url, timeout=10).close()
            return
        except urllib.error.URLError:
            assert process.poll() is None, process.stderr.read()
            threading.Event().wait(0.1)
