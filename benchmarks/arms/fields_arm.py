"""A step of many tables, for a part of a page: `measure` takes a request and returns figures."""

from __future__ import annotations

import json
import sys
from argparse import Namespace

from benchmarks.arms import hotrows_arm, plain_torch
from benchmarks.arms.arm import peak_rss_mb
from benchmarks.workload import Workload
from benchmarks.workload import measure as measure_steps


def measure(request: dict) -> dict:
    """request: arm (`plain`, `hotrows` or `hotrows-vectors`), fields, batch_size, rows of each table,
    threads, windows, warmup: seconds, max_seconds."""
    fields, batch_size = request["fields"], request["batch_size"]
    workload = Workload((request["rows"],) * fields, 0, batch_size, num_batches=4)
    args = Namespace(
        workload=workload,
        model="mlp",
        optimizer="adagrad",
        precision="float32",
        batch_size=batch_size,
        embedding_only=False,
        threads=request["threads"],
        plan="ahead",
        first_layer="vectors" if request["arm"] == "hotrows-vectors" else "rows",
    )
    step = plain_torch.step_of(args) if request["arm"] == "plain" else hotrows_arm.make_step(args)
    timing = measure_steps(
        step,
        windows=request["windows"],
        warmup_seconds=request["warmup"],
        max_seconds=request["max_seconds"],
    )
    return {
        "samples_per_s": batch_size / timing.median,
        "ms": timing.median * 1e3,
        "ms_lowest": timing.lowest * 1e3,
        "ms_highest": timing.highest * 1e3,
        "other_cores": timing.other_cores,
        "peak_rss_mb": peak_rss_mb(),
    }


if __name__ == "__main__":
    print(json.dumps(measure(json.loads(sys.argv[1]))))
