"""How many requests a second does `hotrows serve` answer over loopback, and what under overload?

    python -m benchmarks.serving make FOLDER deepfm         once
    python -m benchmarks.serving_load FOLDER                half a minute
    python -m benchmarks.serving_load FOLDER beside         two minutes
    python -m benchmarks.serving_load FOLDER then --tree TREE --bundles FOLDER      three minutes

A DeepFM of `benchmarks.serving`, one user and 100 candidates a request, as JSON. Connections that stay
open send one request after the other, 6 s each: 1, 4 and 16 of them; then 64 at a server where 8 requests
may wait, and once more with every fourth body hostile. Server and clients share the machine's cores.

`beside`: one connection sends requests of 10 candidates, alone, and beside 300 connections that send half
a header and a client that sends the largest legal bodies of JSON one after the other, from a process of
its own; five times in turn.

`then`: 16 connections, at a server of this tree and at one of another commit's, which has a built core
and made its own bundles with its `benchmarks.serving make`; three times in turn. Each connection asks for
one user, of HSTU also with a cache of users.
"""

import argparse
import http.client
import json
import multiprocessing
import os
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.harness import ROOT, conditions, write
from benchmarks.serving import request_of

SECONDS, CANDIDATES, MOST_TO_START = 5, 100, 60
COMPARED, TURNS, CACHE = ("deepfm", "din-1000", "hstu-1000"), 3, ("--user-cache", "256MiB")
IDLE, REPEATS, FEW = 300, 5, 10
HOSTILE = (b"", b"{", b"[" * 100_000, b'{"rows": 7}', b'[{"C0": {}}]', b"\xff\xfe", b'[{"no": 1}]', b"[]")


def main(folder: Path) -> None:
    bundle, figures = folder / "deepfm" / "float32", {}
    for connections, waiting, hostile in ((1, 256, 0), (4, 256, 0), (16, 256, 0), (64, 8, 0), (64, 8, 4)):
        name = f"{connections} connections, {waiting} may wait"
        name += f", every {hostile}th body hostile" if hostile else ""
        figures[name] = under_load(bundle, connections, waiting, hostile)
        print(name, figures[name], flush=True)
    note = "server and clients shared the cores of this machine"
    write("serving_load", {"candidates": CANDIDATES, "note": note, "figures": figures, **conditions(1)})


def then(folder: Path, tree: Path, bundles: Path) -> None:
    figures: dict[str, dict[str, list[dict]]] = {}
    for turn in range(TURNS):
        for model in COMPARED:
            arms = {"then": (bundles, tree, ()), "now": (folder, ROOT, ())}
            arms |= {"now, known users": (folder, ROOT, CACHE)} if model == "hstu-1000" else {}
            for name, (place, code, options) in list(arms.items())[:: 1 if turn % 2 else -1]:
                run = under_load(place / model / "float32", 16, 256, 0, code, options)
                figures.setdefault(model, {}).setdefault(name, []).append(run)
                print(model, name, run, flush=True)
    rates = {
        m: {n: [r["scored_per_second"] for r in runs] for n, runs in figures[m].items()} for m in figures
    }
    medians = {
        model: {
            name: {
                "scored_per_second": float(np.median(rate)),
                "p99_ms": float(np.median([run["p99_ms"] for run in figures[model][name]])),
                "times": round(float(np.median(np.divide(rate, arms["then"]))), 2),
            }
            for name, rate in arms.items()
        }
        for model, arms in rates.items()
    }
    print(json.dumps(medians, indent=1))
    command = ["git", "-C", str(tree), "rev-parse", "HEAD"]
    commit = subprocess.check_output(command, text=True).strip()
    load = {"candidates": CANDIDATES, "connections": 16, "load_average": os.getloadavg()}
    runs = {"medians": medians, "runs": figures}
    write("serving_then", {**load, "commit_then": commit, **runs, **conditions(1)})


def under_load(
    bundle: Path,
    connections: int,
    waiting: int,
    hostile: int,
    tree: Path = ROOT,
    options: Sequence[str] = (),
) -> dict:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "hotrows", "serve", str(bundle), "--port", str(port)]
    command += ["--most-waiting", str(waiting), *options]
    code = os.environ | {"PYTHONPATH": str(tree / "src")}
    server = subprocess.Popen(command, stderr=subprocess.DEVNULL, env=code)
    try:
        wait_for(port)
        statuses, seconds = Counter[int](), list[float]()
        end = time.monotonic() + SECONDS
        clients = [
            threading.Thread(
                target=send, args=(port, number, end, statuses, seconds, hostile, bundle.parent.name)
            )
            for number in range(connections)
        ]
        for client in clients:
            client.start()
        for client in clients:
            client.join()
        runs = metric(port, "hotrows_program_runs_total")
    finally:
        server.terminate()
        ended = server.wait()
    return {
        "answers_by_status": dict(statuses),
        "scored_per_second": round(statuses[200] / SECONDS, 1),
        "requests_per_run_of_the_program": round(statuses[200] / runs, 2),
        **{f"p{q}_ms": round(1e3 * float(np.percentile(seconds, q)), 1) for q in (50, 99)},
        "exit_code": ended,
    }


def beside(folder: Path) -> None:
    figures: dict[str, list[dict]] = {"alone": [], "beside": []}
    for _ in range(REPEATS):
        for name, runs in figures.items():
            runs.append(small_requests(folder / "deepfm" / "float32", name == "beside"))
            print(name, runs[-1], flush=True)
    medians = {
        name: {key: float(np.median([run[key] for run in runs])) for key in ("p50_ms", "p99_ms")}
        for name, runs in figures.items()
    }
    note = "server and clients shared the cores of this machine with other work"
    sizes = {"candidates": FEW, "idle_connections": IDLE, "body_bytes": len(largest_body())}
    write("serving_beside", {**sizes, "note": note, "medians": medians, "runs": figures, **conditions(1)})


def small_requests(bundle: Path, is_beside: bool) -> dict:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "hotrows", "serve", str(bundle), "--port", str(port), "--drain", "0"]
    server = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        wait_for(port)
        kept = [socket.create_connection(("127.0.0.1", port)) for _ in range(IDLE if is_beside else 0)]
        for connection in kept:
            connection.sendall(b"GET /healthz HT")
        sender = multiprocessing.Process(target=send_largest, args=(port,), daemon=True)
        if is_beside:
            sender.start()
        time.sleep(2)
        statuses, seconds = Counter[int](), list[float]()
        send(port, 0, time.monotonic() + SECONDS, statuses, seconds, 0, candidates=FEW)
        memory = peak_memory(server.pid)
        if is_beside:
            sender.kill()
    finally:
        server.terminate()
        server.wait()
    return {
        "answers_by_status": dict(statuses),
        **{f"p{q}_ms": round(1e3 * float(np.percentile(seconds, q)), 1) for q in (50, 99)},
        "peak_mib_of_server_and_readers": memory,
    }


def send_largest(port: int) -> None:
    body = largest_body()
    while True:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        connection.request("POST", "/score", body, {"content-type": "application/json"})
        connection.getresponse().read()


def largest_body() -> bytes:
    """As many rows and bytes as a request may have."""
    rows = request_of("deepfm", 0)[0].slice(0, 1).to_pylist() * 5000
    return json.dumps(rows).encode().ljust(8 << 20)


def peak_memory(process: int) -> list[int]:
    tasks = Path(f"/proc/{process}/task").iterdir()
    children = [number for task in tasks for number in (task / "children").read_text().split()]
    texts = [Path(f"/proc/{number}/status").read_text() for number in (process, *children)]
    return [int(text.split("VmHWM:")[1].split()[0]) >> 10 for text in texts]


def send(
    port: int,
    number: int,
    end: float,
    statuses: Counter,
    seconds: list[float],
    hostile: int,
    model: str = "deepfm",
    candidates: int = CANDIDATES,
) -> None:
    """Sends requests until `end`; of those that are scored, it notes the seconds.

    hostile: every how many-th body is one of HOSTILE; 0: none.
    """
    table, shared = request_of(model, number)
    rows = table.slice(0, candidates).to_pylist()
    body = json.dumps({"rows": rows, "shared": shared}).encode()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    count = 0
    while time.monotonic() < end:
        count += 1
        is_hostile = hostile and count % hostile == 0
        sent = HOSTILE[count // hostile % len(HOSTILE)] if is_hostile else body
        begin = time.perf_counter()
        connection.request("POST", "/score", sent, {"content-type": "application/json"})
        answer = connection.getresponse()
        answer.read()
        statuses[answer.status] += 1
        if answer.status == 200:
            seconds.append(time.perf_counter() - begin)
        elif answer.status == 503:
            time.sleep(0.01)


def metric(port: int, name: str) -> float:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as page:
        lines = page.read().decode().splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(f"{name} "))


def wait_for(port: int) -> None:
    end = time.monotonic() + MOST_TO_START
    while True:
        try:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
            connection.request("GET", "/healthz")
            assert connection.getresponse().status == 200
            return
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.1)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("what", nargs="?", choices=("load", "beside", "then"), default="load")
    parser.add_argument("--tree", type=Path, help="of another commit")
    parser.add_argument("--bundles", type=Path, help="of that tree")
    given = parser.parse_args()
    if given.what == "then":
        then(given.folder, given.tree, given.bundles)
    else:
        {"load": main, "beside": beside}[given.what](given.folder)
