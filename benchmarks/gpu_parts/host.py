"""Does a kernel read and write page-locked host memory? Of a lane, and through a view in its middle."""

from functools import partial

import torch

from benchmarks.gpu_parts.part import Findings, Setting
from hotrows import ops
from hotrows.engine.storage.store import empty_records
from hotrows.runtime.device import find

WIDTHS = (528, 516, 20)  # bytes of a row: whole vectors of 16, of 4, and few


def run(findings: Findings, setting: Setting) -> None:
    for width in WIDTHS:
        findings.check_runs(f"rows of {width} bytes", partial(_move, setting, width))
    findings.demand_green()
    findings.add("widths", {"checked": len(WIDTHS)})


def _move(setting: Setting, width: int) -> None:
    num, moved = setting.pick((100_000, 5_000), (200, 50))
    device, rows = find(setting.device), torch.randperm(num)[:moved]
    records = empty_records(num, width)
    records.random_(0, 256)
    device.page_lock(records)
    there, out = device.put(rows), device.empty("move", moved, width)
    mark = device.launch(
        "move", lambda: ops.copy_rows(records, there, out, None), [device.mark()], [there, out]
    )
    device.finish(mark)
    assert torch.equal(out.cpu(), records[rows]), "other bytes were read than are in host memory"
    middle, few = records[num // 2 :], setting.pick(100, 10)
    ops.copy_rows(out[:few], None, middle, device.put(torch.arange(few)))
    device.synchronize()
    assert torch.equal(middle[:few], out[:few].cpu()), "other bytes were written than should be"
