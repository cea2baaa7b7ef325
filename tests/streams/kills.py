"""Kills a run on a stream again and again, while events are appended, and compares what it has learned.

    python -m tests.streams.kills --kills 30 [--fast-memory 3000 ..]    # further options of hotrows train

Each event must be in one batch that counts, and a run that nobody kills, over the same batches, must end
with the same bits.
"""

import argparse
import dataclasses
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

import hotrows
from hotrows.data.streams import StreamConfig
from hotrows.data.streams.line_log import read_lines
from hotrows.train import Trainer
from hotrows.train.run import folder as run_folder
from tests.support.runs import encode, weights_of, write_rows

COMMAND = [
    *("--batch-size", "64", "--model", "deepfm", "--option", "dim=4", "--option", "hidden=[16]"),
    *("--seed", "3", "--max-wait", "0.05", "--checkpoint-seconds", "0.1", "--no-background-checkpoints"),
    *("--linear-paths", "plain", "--stop-when-idle", "3"),
]


def main():
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--kills", type=int, default=30)
    options.add_argument("--seed", type=int, default=0)
    chosen, further = options.parse_known_args()
    COMMAND.extend(further)
    draw = random.Random(chosen.seed)
    with tempfile.TemporaryDirectory() as folder:
        campaign(Path(folder), chosen.kills, draw)


def campaign(place, kills, draw):
    data = encode(place)
    lines = write_rows(place / "all.csv", rows=3000 * kills, seed=7).read_text().splitlines(keepends=True)
    events, run = place / "events", place / "run"
    events.mkdir()
    written, killed, seen = 1, 0, 0
    for number in range(kills):
        process, until = start(data, events, run), time.monotonic() + 120
        while process.poll() is None and time.monotonic() < until:
            more = lines[written : written + draw.randrange(20)]
            written += len(more)
            with open(events / f"{written // 1000:06}.csv", "a") as file:
                file.write(("" if file.tell() else lines[0]) + "".join(more))
            time.sleep(0.02)
            if seen is not None and trained_by(run) > seen:
                seen, until = None, time.monotonic() + draw.uniform(0, 1)
        process.send_signal(signal.SIGKILL)
        killed += process.wait() == -signal.SIGKILL
        seen = trained_by(run)
        print(
            f"kill {number + 1:,}: {written - 1:,} events written, {seen:,} trained and noted", flush=True
        )
    assert start(data, events, run).wait() == 0
    trained = trained_by(run)
    assert trained == written - 1, (trained, written - 1)

    in_memory = {"fast_memory": None, "store": "memory"}  # which changes no bit
    config = dataclasses.replace(run_folder.read_config(run), **in_memory)
    again = place / "again"
    Trainer(data, config, again).fit_stream(f"folder:{events}", StreamConfig(), repeat=run)
    pairs = list(zip(weights_of(run), weights_of(again), strict=True))
    assert all(torch.equal(a, b) for a, b in pairs)
    print(
        f"{killed:,} kills: {trained:,} events, each trained once; {len(pairs)} tensors equal bit for bit"
    )


def trained_by(run):
    log = run / "stream.jsonl"
    return sum(line["size"] for line in read_lines(log)) if log.exists() else 0


def start(data, events, run):
    command = [sys.executable, "-m", "hotrows", "train", str(data.path), "--run", str(run), *COMMAND]
    command += ["--stream", f"folder:{events}", *(["--resume"] if (run / "config.json").exists() else [])]
    return subprocess.Popen(
        command,
        env={**os.environ, "PYTHONPATH": str(Path(hotrows.__file__).parents[1])},
        stdout=subprocess.DEVNULL,
    )


if __name__ == "__main__":
    main()
