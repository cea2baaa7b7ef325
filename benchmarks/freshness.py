"""How long is it from the append of an event to a score that has learnt it?

    python -m benchmarks.freshness [--rates 1000,5000,20000] [--seconds 30]

Events of Criteo's shape (13 numbers, 26 ids) are appended to a folder at a rate, a file every 50 ms, as
they would come from a log. `hotrows train --stream` trains on them and publishes, `hotrows serve
--follow` takes up what it publishes, and a client sends a request 20 ms after the last answer. The delay
of the events of a file: from the moment when the file has its name to the first answer by a version that
has trained all of them, as X-Hotrows-Version and the log of the run say. The first third is left out.
Writer, training, server and client share the cores of this machine. Rates that were measured before stay
in the result file, and docs/pictures/freshness.png has all of them.
"""

import argparse
import http.client
import json
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from benchmarks import figures
from benchmarks.harness import ROOT, conditions, stored, write
from benchmarks.serving import ROWS, request_of, schema_of, table_of
from benchmarks.serving_load import wait_for
from hotrows.serving import chain

NOTE = "writer, training, server and client shared the cores of this machine"
AIMS = {"p50_s": 0.3, "p99_s": 1.0}
EVERY, CANDIDATES, PATIENCE = 0.05, 20, 60.0  # seconds between files; rows of a request; seconds


def main(rates: Sequence[int], seconds: float, publish: str, batch: int) -> None:
    import hotrows

    found = stored("freshness").get("figures", {})
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        schema = schema_of("deepfm")
        hotrows.prepare(table_of("deepfm", ROWS, 0), schema, folder / "enc")
        for rate in rates:
            arguments = folder / str(rate), folder / "enc", rate, seconds, publish, batch
            found[str(rate)] = {"seconds": seconds, **measure(*arguments)}
            found = dict(sorted(found.items(), key=lambda item: int(item[0])))
            print(rate, json.dumps(found[str(rate)]), flush=True)
            about = {"model": "deepfm", "publish_every": publish, "batch_size": batch}
            write("freshness", {**about, "note": NOTE, "figures": found, **conditions(1)})
    draw(found)


def measure(
    folder: Path, data: Path, rate: int, seconds: float, publish: str, batch: int
) -> dict[str, float | int]:
    events, run, published = (folder / name for name in ("events", "run", "published"))
    events.mkdir(parents=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    hotrows = [sys.executable, "-m", "hotrows"]
    train = [
        *hotrows, "train", str(data), "--model", "deepfm", "--run", str(run), "--batch-size", str(batch),
        "--stream", f"folder:{events}", "--max-wait", str(EVERY), "--stream-queue", "1",
        "--publish", str(published), "--publish-every", publish, "--linear-paths", "plain",
    ]  # fmt: skip
    serve = [*hotrows, "serve", "--follow", str(published), "--port", str(port)]
    with ExitStack() as stack:
        said = stack.enter_context(open(folder / "said", "w"))
        trainer = stack.enter_context(_process(train, said))
        while not any(published.glob("base-*[0-9]")):
            assert trainer.poll() is None, (folder / "said").read_text()[-3000:]
            time.sleep(0.1)
        stack.enter_context(_process(serve, said))
        wait_for(port)
        answers = Answers(port, published)
        appended = append(events, rate, seconds)
        num_events = appended[-1][0]
        deadline = time.monotonic() + PATIENCE
        while trained_by(answers, run)[1][-1:] < [num_events] and time.monotonic() < deadline:
            time.sleep(0.5)
        answers.close()
        times, trained = trained_by(answers, run)
    return delays(appended, times, trained, seconds) | {"requests": answers.count}


@contextmanager
def _process(command: list[str], said: IO[str]) -> Iterator[subprocess.Popen]:
    with subprocess.Popen(command, stdout=said, stderr=said) as process:
        try:
            yield process
        finally:
            process.terminate()


class Answers:
    """Sends requests, one after the other, and notes when each version answered first."""

    def __init__(self, port: int, published: Path) -> None:
        self._published = published
        self.first: dict[int, tuple[float, int]] = {}  # by version: the moment, and its step
        self.count, self._ends = 0, False
        self._thread = threading.Thread(target=self._send, args=(port,))
        self._thread.start()

    def close(self) -> None:
        self._ends = True
        self._thread.join()

    def _send(self, port: int) -> None:
        table, shared = request_of("deepfm", 0)
        rows = table.slice(0, CANDIDATES).to_pylist()
        body = json.dumps({"rows": rows, "shared": shared}).encode()
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        while not self._ends:
            connection.request("POST", "/score", body, {"content-type": "application/json"})
            answer = connection.getresponse()
            answer.read()
            if answer.status == 200:
                self._note(int(answer.headers["X-Hotrows-Version"]), time.time())
                self.count += 1
            time.sleep(0.02)

    def _note(self, number: int, moment: float) -> None:
        if number not in self.first:
            step = chain.head_of(chain.look(self._published), number).step
            self.first[number] = moment, step


def append(events: Path, rate: int, seconds: float) -> list[tuple[int, float]]:
    """Appends files at a rate; returns, for each, the events so far and the moment of its name."""
    stock, size = table_of("deepfm", ROWS, 1), max(1, round(rate * EVERY))
    appended: list[tuple[int, float]] = []
    begin, number = time.time(), 0
    while time.time() - begin < seconds:
        first = number * size % max(1, len(stock) - size)
        part = events / f"{number:08}.parquet.tmp"
        parquet.write_table(pa.Table.slice(stock, first, size), part)
        time.sleep(max(0.0, begin + number * EVERY - time.time()))
        part.rename(events / f"{number:08}.parquet")
        number += 1
        appended.append((number * size, time.time()))
    return appended


def trained_by(answers: Answers, run: Path) -> tuple[list[float], list[int]]:
    """When versions answered first, ascending, and how many events each had trained."""
    sizes = [json.loads(line)["size"] for line in (run / "stream.jsonl").read_text().splitlines()]
    so_far = np.concatenate([[0], np.cumsum(sizes)])
    times = [moment for moment, _ in answers.first.values()]
    return times, [int(so_far[min(step, len(so_far) - 1)]) for _, step in answers.first.values()]


def delays(
    appended: list[tuple[int, float]], times: list[float], trained: list[int], seconds: float
) -> dict[str, float | int]:
    """Percentiles of the delay of events, and how many events a second were appended and trained."""
    begin = appended[0][1]
    places = np.searchsorted(trained, [count for count, _ in appended])  # the first that has them all
    pairs = [
        (times[place] - moment if place < len(times) else np.inf, moment)
        for place, (_, moment) in zip(places, appended, strict=True)
    ]
    counted = np.array([delay for delay, moment in pairs if moment - begin > seconds / 3])
    took = appended[-1][1] - begin
    return {
        **{f"p{q}_s": round(float(np.percentile(counted, q)), 3) for q in (50, 90, 99)},
        "appended_per_second": round(appended[-1][0] / took),
        "trained": trained[-1] if trained else 0,
        "appended": appended[-1][0],
        "versions_seen": len(times),
    }


def draw(found: dict[str, dict]) -> None:
    """The curve of rate against delay."""
    figure = figures.new_figure(6.4, 4.4)
    if figure is None:
        return
    with figures.style():
        axes = figure.subplots()
        rates = [int(rate) for rate in found]
        for name, color, above in (("p99_s", figures.ORANGE, 7), ("p50_s", figures.BLUE, -16)):
            delays = [found[rate][name] for rate in found]
            axes.plot(rates, delays, "o-", color=color, linewidth=2, label=f"{name[1:3]}th percentile")
            axes.axhline(AIMS[name], color=color, linewidth=1, linestyle=":")
            for place in zip(rates, delays, strict=True):
                axes.annotate(
                    f"{place[1]:.2f}", place, (0, above), textcoords="offset points", ha="center"
                )
        axes.set(xscale="log", yscale="log", xlabel="events appended a second")
        axes.margins(0.1, 0.16)
        axes.set_xticks(rates, [f"{rate:,}" for rate in rates])
        axes.set_ylabel("seconds until a score has learnt an event")
        for set_formatter in (axes.yaxis.set_major_formatter, axes.yaxis.set_minor_formatter):
            set_formatter("{x:g}")
        axes.legend(loc="upper right", bbox_to_anchor=(1, 0.85))
        figures.set_title(figure, "From append to served score", "two cores for all; dotted: the aims")
        figures.save(figure, ROOT / "docs" / "pictures" / "freshness.png")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rates", default="1000,5000,20000", help="events a second, with commas between")
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--publish-every", default="0.1s")
    parser.add_argument("--batch-size", type=int, default=2048)
    given = parser.parse_args()
    main([int(r) for r in given.rates.split(",")], given.seconds, given.publish_every, given.batch_size)
