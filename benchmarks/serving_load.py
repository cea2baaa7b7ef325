"""How many requests a second does `hotrows serve` answer over loopback, and what under overload?

    python -m benchmarks.serving_load

A DeepFM of the shape of `benchmarks.serving`, one user and 100 candidates a request, as JSON.
Connections that stay open send one request after the other, 8 s each: 1, 4 and 16 of them, then 64 at a
server where 8 requests may wait. Server and clients share the cores of this machine.
"""

import http.client
import json
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

import numpy as np

from benchmarks.harness import conditions, write
from benchmarks.serving import ROWS, request_of, schema_of, table_of

SECONDS, CANDIDATES = 8, 100


def main() -> None:
    import hotrows
    from hotrows.train.export import export

    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        data = hotrows.prepare(table_of("deepfm", ROWS // 4, 0), schema_of("deepfm"), folder / "enc")
        config = hotrows.TrainConfig(model="deepfm", steps=10)
        hotrows.Trainer(data, config, folder / "run").fit()
        bundle = export(folder / "run", folder / "bundle", format="onnx")
        figures = {}
        for connections, waiting in ((1, 256), (4, 256), (16, 256), (64, 8)):
            name = f"{connections} connections, {waiting} may wait"
            figures[name] = under_load(bundle, connections, waiting)
            print(name, figures[name])
    note = "server and clients shared the cores of this machine"
    write("serving_load", {"candidates": CANDIDATES, "note": note, "figures": figures, **conditions(1)})


def under_load(bundle: Path, connections: int, waiting: int) -> dict:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "hotrows", "serve", str(bundle), "--port", str(port)]
    server = subprocess.Popen([*command, "--most-waiting", str(waiting)], stderr=subprocess.DEVNULL)
    try:
        wait_for(port)
        statuses, seconds = Counter[int](), list[float]()
        end = time.monotonic() + SECONDS
        clients = [
            threading.Thread(target=send, args=(port, number, end, statuses, seconds))
            for number in range(connections)
        ]
        for client in clients:
            client.start()
        for client in clients:
            client.join()
    finally:
        server.terminate()
        ended = server.wait()
    return {
        "answers_by_status": dict(statuses),
        "scored_per_second": round(statuses[200] / SECONDS, 1),
        **{f"p{q}_ms": round(1e3 * float(np.percentile(seconds, q)), 1) for q in (50, 99)},
        "exit_code": ended,
    }


def send(port: int, number: int, end: float, statuses: Counter, seconds: list[float]) -> None:
    """Sends requests until `end`; of those that are scored, it notes the seconds."""
    table, shared = request_of("deepfm", number)
    rows = table.slice(0, CANDIDATES).to_pylist()
    body = json.dumps({"rows": rows, "shared": shared}).encode()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    while time.monotonic() < end:
        begin = time.perf_counter()
        connection.request("POST", "/score", body, {"content-type": "application/json"})
        answer = connection.getresponse()
        answer.read()
        statuses[answer.status] += 1
        if answer.status == 200:
            seconds.append(time.perf_counter() - begin)
        else:
            time.sleep(0.01)


def wait_for(port: int) -> None:
    while True:
        try:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
            connection.request("GET", "/healthz")
            assert connection.getresponse().status == 200
            return
        except OSError:
            time.sleep(0.1)


if __name__ == "__main__":
    main()
