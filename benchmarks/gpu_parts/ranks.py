"""Do ranks with a GPU each train what ranks on processors train, how fast do they exchange, and how do
they end?

A process for each GPU there is, joined by NCCL, with Gloo beside it; on a processor two, by Gloo alone.
Each collective must have the bits that it has between processors, one of a rank that is lost must end in
time and in one line, and rows trained on devices must have the bits of rows trained on processors:
sharded in every way, behind a cache, in micro-batches, with 16 bits on the wire. Then
bytes a second of what a step exchanges. `arms.gpu_ranks` is a rank.
"""

import json
import os
import socket
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import torch

import hotrows
from benchmarks.gpu_parts.part import ChecksFailed, Findings, Setting
from benchmarks.harness import ROOT

PATIENCE = 240  # seconds
TIMEOUT = 20  # seconds that a collective may take


def run(findings: Findings, setting: Setting) -> None:
    num = torch.cuda.device_count() if setting.on_gpu else 2
    if num < 2:
        raise ChecksFailed(f"PyTorch sees {num} GPU, and ranks need two or more")
    for work in ("collectives", "rows"):
        name = f"{num} ranks: {work} have the bits of processors"
        findings.check_runs(name, partial(_all, work, num, setting))
    findings.check_runs(f"{num} ranks: one that is lost ends all in a line", lambda: _lost(num, setting))
    findings.demand_green()
    for name, figures in _all("speed", num, setting).items():
        findings.add(name, figures)


def _all(work: str, num: int, setting: Setting) -> dict:
    """What rank 0 has found, once all ranks have ended well."""
    ends = _ranks(work, num, setting)
    for rank, (code, _, err) in enumerate(ends):
        assert code == 0, f"rank {rank} ended with {code}: {err.strip()[-600:]}"
    return json.loads(ends[0][1].splitlines()[-1])


def _lost(num: int, setting: Setting) -> None:
    begun = time.monotonic()
    *others, lost = _ranks("lost", num, setting)
    seconds = time.monotonic() - begun
    assert lost[0] == 9 and seconds < 3 * TIMEOUT + 60, (lost[0], seconds)
    for rank, (code, out, err) in enumerate(others):
        assert code == 1 and out.count("\n") == 1, f"rank {rank}: {code}, {out!r}, {err[-600:]}"


def _ranks(work: str, num: int, setting: Setting) -> list[tuple[int, str, str]]:
    """The exit code and output of each rank."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    meet = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(num)}
    paths = os.pathsep.join([str(Path(hotrows.__file__).parents[1]), str(ROOT)])
    command = [sys.executable, "-m", "benchmarks.arms.gpu_ranks", work, setting.device, str(TIMEOUT)]
    ranks = [
        subprocess.Popen(
            command + ["--small"] * setting.small, cwd=ROOT, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env={**os.environ, **meet, "PYTHONPATH": paths, "RANK": str(rank), "LOCAL_RANK": str(rank),
                 "LOCAL_WORLD_SIZE": str(num)},
        )
        for rank in range(num)
    ]  # fmt: skip
    try:
        written = [rank.communicate(timeout=PATIENCE) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    return [(rank.returncode, *texts) for rank, texts in zip(ranks, written, strict=True)]
