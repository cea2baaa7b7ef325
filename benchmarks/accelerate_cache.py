"""How fast does an accelerated model train whose tables are ten times as large as fast memory?

    python -m benchmarks.accelerate_cache [--quick]

One plain model (26 tables of dim 16 at a tenth of Criteo's sizes, an MLP, dense Adam), a process per arm:
in memory; behind a cache of a tenth of the records, with `lookahead` and without; rows in host memory
or in files.
"""

import argparse
import itertools
import json
import subprocess
import sys
import tempfile
import time
from statistics import median

import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits

import hotrows
from benchmarks import workload
from benchmarks.harness import conditions, write

RECORD = (3 * workload.DIM + 1) * 4  # bytes: weights, two moments, the steps it has been through
ARMS = {  # store, whether it looks ahead
    "in memory": (None, False),
    "host memory, ahead": ("memory", True),
    "host memory": ("memory", False),
    "file, ahead": ("file", True),
    "file": ("file", False),
}
SHARE = 0.1


class Model(nn.Module):
    def __init__(self, num_rows: tuple[int, ...], num_dense: int) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(rows, workload.DIM) for rows in num_rows)
        widths = (len(num_rows) * workload.DIM + num_dense, 400, 400)
        layers = [
            layer
            for wide, narrow in itertools.pairwise(widths)
            for layer in (nn.Linear(wide, narrow), nn.ReLU())
        ]
        self.mlp = nn.Sequential(*layers, nn.Linear(widths[-1], 1))

    def forward(self, ids: torch.Tensor, dense: torch.Tensor) -> torch.Tensor:
        vectors = [table(ids[f]) for f, table in enumerate(self.tables)]
        return self.mlp(torch.cat([*vectors, dense], 1)).squeeze(1)


def run(arm: str, num_steps: int, folder: str) -> dict:
    """Steps of one arm: the median, and the mean over all, in milliseconds."""
    store, looks_ahead = ARMS[arm]
    load = workload.WORKLOADS["criteo-tenth"]
    torch.manual_seed(0)
    torch.set_num_threads(2)
    model = Model(load.num_rows, load.num_dense)
    optimizer = torch.optim.Adam(model.parameters())
    options = {}
    if store is not None:
        options["fast_memory"] = int(SHARE * sum(load.num_rows) * RECORD)
        options["store"] = "memory" if store == "memory" else f"file:{folder}/tables"
    hotrows.accelerate(model, optimizer, **options)
    data = workload.batches(load, load.batch_size)
    batches = [tuple(map(torch.from_numpy, (batch.ids, batch.dense, batch.labels))) for batch in data]
    loader = [batches[k % len(batches)] for k in range(num_steps)]
    seconds, begin = [], time.perf_counter()
    for ids, dense, labels in hotrows.lookahead(loader, model) if looks_ahead else loader:
        optimizer.zero_grad()
        binary_cross_entropy_with_logits(model(ids, dense), labels).backward()
        optimizer.step()
        now = time.perf_counter()
        seconds.append(now - begin)
        begin = now
    timed = seconds[len(seconds) // 4 :]  # the rest warms the cache up
    return {"ms": median(timed) * 1e3, "mean_ms": sum(timed) / len(timed) * 1e3, "steps": len(timed)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few steps; nothing is written")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--arm", choices=ARMS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    num_steps = 40 if args.quick else 200
    if args.arm:
        with tempfile.TemporaryDirectory(dir=workload.DATA) as folder:
            print(json.dumps(run(args.arm, num_steps, folder)))
        return
    rounds: dict[str, list[dict]] = {arm: [] for arm in ARMS}
    for _ in range(1 if args.quick else args.rounds):
        for arm in ARMS:
            command = [sys.executable, "-W", "ignore", "-m", "benchmarks.accelerate_cache"]
            command += ["--arm", arm, *["--quick"] * args.quick]
            said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            rounds[arm].append(json.loads(said.splitlines()[-1]))
    arms = {}
    for arm, results in rounds.items():
        ms = median(result["mean_ms"] for result in results)
        arms[arm] = {"mean_ms": ms, "rounds": results}
        arms[arm]["of_memory"] = arms["in memory"]["mean_ms"] / ms
        print(f"{arm:20} {ms:7.1f} ms a step, {arms[arm]['of_memory']:.2f} of the speed in memory")
    if not args.quick:
        share = {"question": __doc__.splitlines()[0], "fast_memory": SHARE}
        write("accelerate_cache", {**share, **conditions(2), "arms": arms})


if __name__ == "__main__":
    main()
