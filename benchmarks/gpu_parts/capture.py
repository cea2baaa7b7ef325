"""What does a capture that fails leave behind? The stream, random numbers and the allocator as before."""

import torch

from benchmarks.gpu_parts.part import Findings, Setting
from hotrows.runtime.device import find


def run(findings: Findings, setting: Setting) -> None:
    device = find(setting.device)
    if not setting.on_gpu:
        findings.check("work is done at once", device.capture(lambda: torch.ones(1))().item() == 1)
        findings.add("after a refused capture", {"left_out": "there is no GPU"})
        return
    with device.ahead_of_lanes():
        stream, x = torch.cuda.current_stream(), torch.ones(1 << 10, device=setting.device)
        findings.check("a capture that reads a value is refused", _is_refused(device, x))
        findings.check("the stream is as before", torch.cuda.current_stream() == stream)
        findings.check_runs("the cache of memory can be emptied", torch.cuda.empty_cache)
        findings.check_runs("random numbers are drawn", lambda: torch.rand(2, device=setting.device))
        with device.noting_waits() as places:
            x[0].item()
        findings.check("where a step waits is known beforehand", len(places) == 1, str(places))
        launch = findings.check_runs("a capture works", lambda: device.capture(lambda: x * 2))
        if launch is not None:
            findings.check("and a graph is launched", launch()[0].item() == 2)
        reserved = _blocks(device, setting)
        findings.check("memory of other lanes is reused", reserved < 2, f"{reserved:.1f} GiB more")
    findings.demand_green()
    findings.add("after a refused capture", {"more_gib": reserved})


def _is_refused(device, x: torch.Tensor) -> bool:
    try:
        device.capture(lambda: x.sum() * x[0].item())
    except RuntimeError:
        return True
    return False


def _blocks(device, setting: Setting) -> float:
    """GiB that 200 blocks of 64 MiB take, of which there is one at a time."""
    before = torch.cuda.memory_reserved()
    for _ in range(200):
        block = device.empty("upload", setting.pick(64 << 20, 64))
        device.wait(device.launch("upload", block.zero_, holds=[block]), [block])
        del block
    torch.cuda.synchronize()
    return (torch.cuda.memory_reserved() - before) / 2**30
