"""How fast is training when the device holds a tenth of the tables, next to all of them?

DLRM (dim 128, bottom 512-256-128, top 1024-1024-512-256-1, batch 65,536) on records of `--gigabytes`,
weights and optimizer state. `benchmarks.arms.gpu_arms` has the arms. Those with all rows on the device
run in one process, those with a cache there in another, which makes and locks the records once. Caches
begin with the hottest rows, so misses are steady at once.

`of_best` is the speed over that of the fastest arm with all rows on the device, captured and compiled
ones and plain PyTorch included. A cache changes no bit of a row: the rows that the first 8 steps read
must have equal bits in all arms but those that compile the model or are PyTorch's, whose losses and
changes must be equal but for rounding.
"""

import json
import math
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from benchmarks.arms import gpu_cache
from benchmarks.arms.gpu_arms import ARMS, ON_DEVICE, ON_HOST, REFERENCES
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
from hotrows.ops.record import RecordLayout

_SHORTEST = 60  # seconds of a store: filling it and one arm
BATCHES = 178  # 8 are checked; the others come round again
EXACT = ("whole", "whole-there", "whole-graph")  # the bits that all must have
# Law of the ids, optimizer, arms; the most telling first.
ORDER = (
    ("zipf", "rowwise", tuple(ARMS)),
    ("criteo", "rowwise", ("whole-graph", "whole-compiled", *ON_HOST)),
    ("zipf", "adam", ("whole-graph", "whole-compiled", "10%", "5%", "2%", "1%")),
    ("zipf", "sgd", ("whole-graph", "whole-compiled", "10%")),
)
SMALL_ORDER = (ORDER[0], ("criteo", "adam", ("whole-graph", "10%")))


def run(findings: Findings, setting: Setting) -> bool:
    """Whether all arms are measured; one that went wrong has no figures, and the others go on."""
    complete = True
    try:
        for law, optimizer, arms in setting.pick(ORDER, SMALL_ORDER):
            for on_device in (True, False):
                prefix = f"{law}-{optimizer}-"
                of_store = ON_DEVICE if on_device else ON_HOST
                left = [arm for arm in arms if arm in of_store and not _is_done(findings, prefix + arm)]
                for arm, figures in _measured(setting, law, optimizer, on_device, left):
                    _note(findings, prefix + arm, figures)
                complete = complete and all(_is_done(findings, prefix + arm) for arm in left)
        return complete
    finally:
        _compare(findings)


def _is_done(findings: Findings, name: str) -> bool:
    return findings.has(name) or f"{name}: runs" in findings.checks


def _note(findings: Findings, name: str, figures: dict) -> None:
    if "error" in figures:
        findings.check(f"{name}: runs", False, figures["error"], name)
    else:
        findings.add(name, figures)


def _compare(findings: Findings) -> None:
    """Takes arms away whose results are wrong, and holds the others against the best with all rows."""
    references: dict[str, str] = {}
    for law, optimizer, arms in ORDER:
        prefix = f"{law}-{optimizer}-"
        exact = next((findings.arms[prefix + arm] for arm in EXACT if findings.has(prefix + arm)), None)
        for arm in arms if exact else ():
            name = prefix + arm
            if findings.has(name):
                wrong = differs(findings.arms[name], exact, ARMS[arm].exact)
                if not findings.check(f"{name}: the rows of all on the device", not wrong, wrong, name):
                    del findings.arms[name]
        known = [prefix + arm for arm in REFERENCES if findings.has(prefix + arm)]
        if known:
            best = max(known, key=lambda name: findings.arms[name]["samples_per_s"])
            references |= {prefix + arm: best for arm in arms if arm != "step-alone"}
    findings.compare("of_best", "samples_per_s", references)


def differs(figures: dict, expected: dict, exact: bool) -> str:
    """How the rows differ after as many steps; nothing where they are as they should be."""
    if exact:
        losses = [f["losses"][-1] for f in (figures, expected)]
        same = figures["bits"] == expected["bits"]
        return "" if same else f"other bits; a loss of {losses[0]}, that of the reference is {losses[1]}"
    for what, tolerance in (("losses", 5e-3), ("change", 5e-2)):
        value, other = (f[what][-1] if what == "losses" else f[what] for f in (figures, expected))
        if not math.isclose(value, other, rel_tol=tolerance):
            return f"{what}: {value}, not {other}"
    return ""


def _measured(
    setting: Setting, law: str, optimizer: str, on_device: bool, arms: list[str]
) -> Iterator[tuple[str, dict]]:
    """The figures of arms on one store; fewer where the time of this run is over."""
    if not arms:
        return
    dim, batch_size = setting.pick(128, 8), setting.pick(65_536, 256)
    stride = RecordLayout(dim, state_width=OPTIMIZERS[optimizer]().state_width(dim)).stride
    num_bytes = setting.pick(setting.gigabytes * 1e9, 2e6)
    num_rows = {"zipf": equal_tables, "criteo": criteo_tables}[law](num_bytes, stride)
    request = {
        "device": setting.device, "small": setting.small, "on_device": on_device, "law": law,
        "num_rows": num_rows, "dim": dim, "optimizer": optimizer, "batch_size": batch_size,
        "stream": str(_stream(setting, law, num_rows, batch_size)),
    }  # fmt: skip
    left = list(arms)
    while left and setting.seconds_left > setting.pick(_SHORTEST, 0):
        num, store = len(left), {**request, "arms": tuple(left)}
        of_store = gpu_cache.measure(store, setting) if setting.small else _in_a_process(store, setting)
        for arm, figures in of_store:
            left.remove(arm)
            yield arm, figures
        if len(left) == num:  # the time is over, or nothing works
            return


def _in_a_process(request: dict, setting: Setting) -> Iterator[tuple[str, dict]]:
    """The arms that a process of its own has measured until the time of this run is over."""
    seconds = setting.seconds_left
    request = {**request, "seconds": seconds - 5}
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.arms.gpu_cache", json.dumps(request)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        timer = threading.Timer(seconds, process.kill)
        timer.start()
        try:
            for line in process.stdout:
                if line.startswith('{"arm"'):
                    found = json.loads(line)
                    yield found["arm"], found["figures"]
        finally:
            timer.cancel()
            process.kill()


def _stream(setting: Setting, law: str, num_rows: list[int], batch_size: int) -> Path:
    """The file of a stream, [26, N] int32; made once for all arms that have these tables."""
    count = setting.pick(BATCHES, 8) * batch_size
    path = DATA / f"gpu-{law}-{sum(num_rows)}-{count}.npy"
    if not path.exists():
        stream = (
            zipf_stream(num_rows, count, setting.device)
            if law == "zipf"
            else criteo_stream(num_rows, count)
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        np.save(path, stream)
        if setting.on_gpu:
            torch.cuda.empty_cache()  # arms are processes of their own that need all of the device
    return path
