"""`hotrows serve` under more load than it can take, hostile bodies among it: it sheds, and goes on."""

import http.client
import json
import signal
import socket
import threading
import urllib.request
from collections import Counter
from contextlib import closing

import pytest

from tests.support.server_process import served

pytestmark = pytest.mark.usefixtures("one_thread", "no_pictures")

CLIENTS, REQUESTS, WAITING = 24, 16, 2
ROWS = json.dumps([{"user": number} for number in range(400)]).encode()
HOSTILE = {  # bodies, and what is answered where there is room for them
    b"": 400,
    b"{": 400,
    b"[" * 5000: 400,
    b"\xff\xfe\x00": 400,
    b"[]": 422,
    b'{"rows": 7}': 422,
    b'[{"user": {}}]': 422,
    b'[{"usr": 3}]': 422,
}
TORN = (
    b"POST /score HTTP/1.1\r\nhost: a\r\ncontent-length: 9000\r\n\r\n[{",
    b"POST /score HTTP/1.1\r\nhost: a\r\ncontent-length: 99999999999999999999\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 40,
    b"GET /healthz",
)


def client(port, number, answers):
    """Sends rows and hostile bodies over one connection, and beside it requests that end early."""
    hostile = list(HOSTILE)
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
        for turn in range(REQUESTS):
            body = hostile[(number + turn) % len(hostile)] if turn % 4 == 3 else ROWS
            connection.request("POST", "/score", body, {"content-type": "application/json"})
            answer = connection.getresponse()
            answers.append((body, answer.status, answer.headers["retry-after"], answer.read()))
            with socket.create_connection(("127.0.0.1", port), timeout=60) as torn:
                torn.sendall(TORN[(number + turn) % len(TORN)])


@pytest.fixture
def server(din_bundle):
    """A server where few may wait, and its port."""
    with served(din_bundle, "--max-queue", str(WAITING), "--timeout", "30") as (process, port):
        yield process, port


def test_overload_and_hostile_bodies_are_answered_and_the_server_stays(server):
    process, port = server
    answers = []
    threads = [threading.Thread(target=client, args=(port, n, answers)) for n in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert len(answers) == CLIENTS * REQUESTS
    for body, status, retry_after, content in answers:
        assert status in (503, HOSTILE.get(body, 200)), content
        if status == 200:
            assert len(json.loads(content)["scores"]) == 400
        else:
            assert "\n" not in json.loads(content)["detail"] and (retry_after == "1") == (status == 503)
    counts = Counter(status for _, status, _, _ in answers)
    assert counts[200] > 0 and counts[503] > 0, counts

    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as page:
        lines = page.read().decode().splitlines()
    assert "hotrows_requests_waiting 0" in lines
    for status in (200, 503):
        assert f'hotrows_requests_total{{status="{status}"}} {counts[status]}' in lines
    runs = next(int(line.split()[1]) for line in lines if line.startswith("hotrows_program_runs_total"))
    assert runs < counts[200]  # requests that wait are computed together

    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0
    assert "Traceback" not in process.stderr.read()
