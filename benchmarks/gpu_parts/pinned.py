"""Does a kernel move rows between host memory and the device as fast as the link allows?

Records of 64 to 1,024 bytes, at random and in order, three ways: `copy_rows` on page-locked host
memory, read and written by the kernel itself; rows gathered by the CPU into a page-locked block that
is copied (`staged`); and plain copies as the ceiling. Host memory is locked by PyTorch's allocator
(`pinned`) or where it lies (`registered`).
"""

from functools import partial

import torch
from torch import Tensor

from benchmarks.gpu_parts.part import Findings, Setting
from benchmarks.gpu_parts.timing import (
    ceilings,
    page_locked,
    registered,
    seconds_of,
    synchronize,
    timed,
    unlock,
)
from benchmarks.gpu_parts.tuning import sweep
from hotrows import ops
from hotrows.engine.storage.store import empty_records
from hotrows.runtime.device import find

WIDTHS = (64, 128, 256, 512, 516, 1024)  # 516: 128 weights and the state of row-wise Adagrad
MEMORY = {"pinned": page_locked, "registered": registered}


def run(findings: Findings, setting: Setting) -> None:
    size = setting.pick(3 << 30, 1 << 20)
    moved = setting.pick(256 << 20, 1 << 16)
    for kind, allocate in MEMORY.items():
        host = allocate(size, setting)
        try:
            for width in WIDTHS:
                findings.check_runs(
                    f"{kind} memory, rows of {width} bytes",
                    partial(_move_both_ways, setting, _records(host, width)),
                )
        finally:
            if kind == "registered":
                unlock(host, setting)
    findings.check_runs("small tables, locked again and again", partial(_move_in_small_tables, setting))
    findings.demand_green()
    findings.add("ceilings", {f"{name}_gb_s": rate for name, rate in ceilings(setting).items()})
    host = page_locked(size, setting)
    for width in WIDTHS:
        records = _records(host, width)
        for order in ("random", "sequential"):
            rows = _rows(len(records), moved // width, order)
            rates = _kernel_rates(setting, records, rows) | _staged_rates(setting, records, rows)
            findings.add(f"{order}-{width}", {"bytes": width * len(rows), **rates})
    if setting.tune and setting.on_gpu:
        records = _records(host, 516)
        rows = _rows(len(records), moved // 516, "random")
        measured = sweep(("COPY_BYTES", "num_warps"), lambda: _kernel_rates(setting, records, rows))
        for name, rates in measured:
            findings.add(name, rates)


def _records(host: Tensor, width: int) -> Tensor:
    return host[: len(host) // width * width].view(-1, width)


def _rows(num_rows: int, count: int, order: str) -> Tensor:
    """Distinct rows: ascending, as moves are, from anywhere or one after the other."""
    if order == "sequential":
        return torch.arange(count)
    return torch.randperm(num_rows)[:count].sort().values


def _move_both_ways(setting: Setting, host: Tensor) -> None:
    """A kernel reads and writes the very bytes, and no others; far beyond 2 GiB, where there are."""
    tail = slice(max(len(host) - 2000, 0), None)
    first = len(host) - len(host[tail])
    rows = first + torch.randperm(len(host) - first)[:997]
    device_rows = rows.to(setting.device)
    host[tail].random_(0, 256)
    # What a kernel has not written must not look right by chance.
    out = torch.full((len(rows), host.shape[1]), 0xAA, dtype=torch.uint8, device=setting.device)
    ops.copy_rows(host, device_rows, out, None)
    assert torch.equal(out.cpu(), host[rows]), "other bytes were read than are in host memory"
    expected, values = host[tail].clone(), out.flip(0).contiguous()
    ops.copy_rows(values, None, host, device_rows)
    synchronize(setting)
    expected[rows - first] = values.cpu()
    assert torch.equal(host[tail], expected), "other bytes were written than should be"


def _move_in_small_tables(setting: Setting) -> None:
    """As an embedding locks its tables, some of them smaller than a page; then anew, where they lay."""
    device = find(setting.device)
    for turn in range(3):
        tables = [empty_records(5 + turn + n, width) for n in range(4) for width in WIDTHS]
        for records in tables:
            device.page_lock(records)
        for records in tables:
            _move_both_ways(setting, records)


def _kernel_rates(setting: Setting, host: Tensor, rows: Tensor) -> dict[str, float]:
    """GB/s in and out, by a kernel that reads and writes host memory."""
    size, device_rows = len(rows) * host.shape[1], rows.to(setting.device)
    near = torch.empty(len(rows), host.shape[1], dtype=torch.uint8, device=setting.device)
    repeats = setting.pick(5, 1)
    into = timed(lambda: ops.copy_rows(host, device_rows, near, None), setting, repeats=repeats)
    out = timed(lambda: ops.copy_rows(near, None, host, device_rows), setting, repeats=repeats)
    return {"kernel_in_gb_s": size / into.ms / 1e6, "kernel_out_gb_s": size / out.ms / 1e6}


def _staged_rates(setting: Setting, host: Tensor, rows: Tensor) -> dict[str, float]:
    """GB/s in and out, gathered and scattered by the CPU."""
    size = len(rows) * host.shape[1]
    near = torch.empty(len(rows), host.shape[1], dtype=torch.uint8, device=setting.device)
    stage = page_locked(size, setting).view(near.shape)

    def into() -> None:
        ops.copy_rows(host, rows, stage, None)
        near.copy_(stage, non_blocking=True)

    def out() -> None:
        stage.copy_(near)
        ops.copy_rows(stage, None, host, rows)

    fastest = [min(seconds_of(way, setting) for _ in range(5)) for way in (into, out)]
    return {f"staged_{way}_gb_s": size / s / 1e9 for way, s in zip(("in", "out"), fastest, strict=True)}
