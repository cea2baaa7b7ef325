"""How fast is training when the device holds a tenth of the tables, next to all of them?

DLRM (dim 128, bottom 512-256-128, top 1024-1024-512-256-1, batch 65,536) on records of `--gigabytes`,
weights and optimizer state. `whole` has them all on the device; every other arm has them in host
memory, and on the device the share in its name: one after the other, each in a process of its own, for
the machine holds the records once. Caches begin with the hottest rows, so misses are steady at once.
At 10 % stand beside the look ahead: `hot` (never changes), `lru`, `two-batch` (ScratchPipe's window)
and `uncached`, where each batch's rows are read from host memory and written back within the step.
`whole-there` is `whole` with plans made on the device.

A cache changes no bit of a row: every arm must have the loss of `whole` after as many steps, but for
what the dense part's products round.
"""

import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np

from benchmarks.arms import gpu_cache
from benchmarks.gpu_parts.part import Findings, Setting
from benchmarks.gpu_parts.workloads import (
    OPTIMIZERS,
    criteo_stream,
    criteo_tables,
    equal_tables,
    zipf_stream,
)
from benchmarks.harness import ROOT
from benchmarks.workload import DATA
from hotrows.record import RecordLayout

_LONGEST, _SHORTEST = 180, 75  # seconds of one arm: locking 80 GB of memory is a good part of it
SHARES = {"10%": 0.10, "5%": 0.05, "2%": 0.02, "1%": 0.01}
BESIDE = ("two-batch", "lru", "hot", "uncached")
WHOLE = ("whole", "whole-there")
SMALLER = ("5%", "2%", "1%")
# Stream, optimizer and arms; the most telling first.
ORDER = (
    ("zipf", "rowwise", ("whole", "10%", "whole-there")),
    ("zipf", "sgd", ("whole", "10%")),
    ("zipf", "rowwise", (*SMALLER, "lru", "uncached", "two-batch", "hot")),
    ("zipf", "sgd", SMALLER),
    ("criteo", "rowwise", ("whole", *SHARES, *BESIDE)),
    ("criteo", "sgd", ("whole", *SHARES)),
    ("zipf", "adam", ("whole", *SHARES)),
    ("criteo", "adam", ("whole", "10%")),
)


def run(findings: Findings, setting: Setting) -> bool:
    """Whether all arms are measured; one that went wrong has no figures, and the others go on."""
    for stream, optimizer, arms in ORDER:
        for arm in arms:
            name = f"{stream}-{optimizer}-{arm}"
            if findings.has(name):
                continue
            if setting.seconds_left < setting.pick(_SHORTEST, 0):
                return False
            figures = _measure(setting, stream, optimizer, arm)
            if figures is None:
                return False
            whole_table = findings.arms.get(f"{stream}-{optimizer}-whole", figures)
            wrong = figures.get("error") or _differs(figures["losses"], whole_table["losses"])
            if findings.check(f"{name}: the loss of `whole`", not wrong, wrong, name):
                figures["of_whole"] = figures["samples_per_s"] / whole_table["samples_per_s"]
                findings.add(name, figures)
    return True


def _differs(losses: dict[str, float], expected: dict[str, float]) -> str:
    """How the losses after as many steps differ; nothing where they are equal but for rounding."""
    step = max(losses.keys() & expected.keys(), key=int)
    if math.isclose(losses[step], expected[step], rel_tol=1e-2):
        return ""
    return f"after {step} steps {losses[step]}, not {expected[step]}"


def _measure(setting: Setting, stream: str, optimizer: str, arm: str) -> dict | None:
    """The figures of an arm, or its error; None where the time of this run is over."""
    dim, batch_size = setting.pick(128, 8), setting.pick(65_536, 256)
    stride = RecordLayout(dim, state_width=OPTIMIZERS[optimizer]().state_width(dim)).stride
    num_bytes = setting.pick(setting.gigabytes * 1e9, 2e6)
    num_rows = {"zipf": equal_tables, "criteo": criteo_tables}[stream](num_bytes, stride)
    slow = arm == "uncached"
    request = {
        "device": setting.device, "small": setting.small, "num_rows": num_rows, "dim": dim,
        "optimizer": optimizer, "batch_size": batch_size,
        "stream": str(_stream(setting, stream, num_rows, batch_size)),
        "share": None if arm in WHOLE else SHARES.get(arm, 0.10),
        "planning": "device" if arm == "whole-there" else "host",
        "policy": arm if arm in BESIDE else "lookahead",
        "warmup": setting.pick(10 if slow else 40, 2), "windows": setting.pick(3 if slow else 5, 2),
        "steps": setting.pick(3 if slow else 12, 2),
    }  # fmt: skip
    return gpu_cache.measure(request, setting) if setting.small else _in_a_process(request, setting)


def _in_a_process(request: dict, setting: Setting) -> dict | None:
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.arms.gpu_cache", json.dumps(request)]
    limit = min(_LONGEST, setting.seconds_left)
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=limit)
    except subprocess.TimeoutExpired:
        return {"error": f"took more than {limit:.0f} s"} if limit == _LONGEST else None
    if done.returncode:
        print(done.stderr[-2000:])
        return {"error": (done.stderr.strip().splitlines() or [f"exit {done.returncode}"])[-1]}
    return json.loads(done.stdout.splitlines()[-1])


def _stream(setting: Setting, name: str, num_rows: list[int], batch_size: int) -> Path:
    """The file of a stream, [26, N] int32; made once for all arms that have these tables.

    400 batches: 100 are trained, and the widest window looks some 300 ahead.
    """
    count = setting.pick(400, 12) * batch_size
    path = DATA / f"gpu-{name}-{sum(num_rows)}-{count}.npy"
    if not path.exists():
        stream = (
            zipf_stream(num_rows, count, setting.device)
            if name == "zipf"
            else criteo_stream(num_rows, count)
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        np.save(path, stream)
    return path
