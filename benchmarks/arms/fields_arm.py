"""A step of many tables, for a part of a page: `measure` takes a request and returns figures."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from collections.abc import Callable

from benchmarks.arms.arm import peak_rss_mb
from benchmarks.workload import Workload
from benchmarks.workload import measure as measure_steps


def measure(request: dict) -> dict:
    """request: arm (`plain`, `hotrows`, `hotrows-vectors` or `tensorflow`), fields, batch_size, rows of
    each table, threads, windows, warmup: seconds, max_seconds."""
    fields, batch_size = request["fields"], request["batch_size"]
    timing = measure_steps(
        step_of(request["arm"], fields, batch_size, request["rows"], request["threads"]),
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


def step_of(
    arm: str,
    fields: int,
    batch_size: int,
    rows: int,
    threads: int,
    plan: str = "ahead",
    pack_parts: int = 1,
) -> Callable[[int], float | None]:
    """Step k of an arm; each library is imported for its own arm alone."""
    args = Namespace(
        workload=Workload((rows,) * fields, 0, batch_size, num_batches=4),
        model="mlp",
        optimizer="adagrad",
        precision="float32",
        batch_size=batch_size,
        embedding_only=False,
        threads=threads,
        plan=plan,
        pack_parts=pack_parts,
        first_layer="vectors" if arm == "hotrows-vectors" else "rows",
    )
    if arm == "tensorflow":
        from benchmarks.arms import tensorflow

        return tensorflow.step_of(args)
    if arm == "plain":
        from benchmarks.arms import plain_torch

        return plain_torch.step_of(args)
    from benchmarks.arms import hotrows_arm

    return hotrows_arm.make_step(args)


if __name__ == "__main__":
    print(json.dumps(measure(json.loads(sys.argv[1]))))
