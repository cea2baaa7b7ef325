"""What do host memory, link and device give at full size, apart and together? Before all else.

`lock`: host memory page-locked in chunks, timed; where the system refuses one, all later parts have to
do with less. `region-N`: rows of 528 bytes drawn from N GB, ascending and shuffled, since every row may
miss the tables by which addresses are translated. `width-N`: rows that begin anywhere, at multiples of
16 and of 32 bytes. `both`: rows in and out at once. `beside-N`: rows in by a kernel of N programs while
matrices are multiplied, and what either costs the other; `all` has a program for every few vectors of 16
bytes, and takes the device.
"""

import time
from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor

from benchmarks.gpu_parts.part import Findings, Setting
from benchmarks.gpu_parts.timing import ceilings, lock, seconds_of, timed, unlock
from hotrows import ops
from hotrows.engine.storage.store import empty_records

REGIONS = (3, 16, 80)  # GB
WIDTHS = (512, 516, 528, 544)
PROGRAMS = (8, 16, 24, 64, None)
_ROW = 528
_PAGE = 4096


def run(findings: Findings, setting: Setting) -> bool:
    """Whether all was measured."""
    findings.check_runs("a grid of any size moves the same", partial(_check, setting))
    findings.demand_green()
    memory = empty_records(int(setting.pick(setting.gigabytes * 1e9, 1 << 20)) // _PAGE, _PAGE).view(-1)
    locked: list[Tensor] = []
    try:
        findings.add("lock", _lock_all(setting, memory, locked))
        memory = memory[: sum(map(len, locked))]
        if len(memory):
            findings.add("ceilings", {f"{way}_gb_s": rate for way, rate in ceilings(setting).items()})
            for name, measure in _arms(setting, memory):
                if setting.seconds_left < setting.pick(10, 0):
                    return False
                if not findings.has(name):
                    findings.add(name, measure())
    finally:
        for chunk in locked:
            unlock(chunk, setting)
    return True


def _lock_all(setting: Setting, memory: Tensor, locked: list[Tensor]) -> dict:
    """Writes and locks chunk by chunk, as far as the system lets it."""
    figures: dict = {"gb": 0.0, "touch_seconds": [], "lock_seconds": [], "refused": ""}
    for chunk in memory.split(setting.pick(4 << 30, 1 << 18)):
        begin = time.perf_counter()
        chunk.zero_()
        touched = time.perf_counter()
        try:
            lock(chunk, setting)
        except RuntimeError as error:
            figures["refused"] = str(error)
            break
        locked.append(chunk)
        figures["touch_seconds"].append(touched - begin)
        figures["lock_seconds"].append(time.perf_counter() - touched)
        figures["gb"] += len(chunk) / 1e9
    seconds = sum(figures["touch_seconds"]) + sum(figures["lock_seconds"])
    return {**figures, "gb_s": figures["gb"] / seconds}


def _arms(setting: Setting, memory: Tensor) -> Iterator[tuple[str, Callable[[], dict]]]:
    moved = setting.pick(256 << 20, 1 << 14)
    sizes = {min(int(gb * 1e9), len(memory)) for gb in setting.pick(REGIONS, (0.0002, 0.001))}
    for size in sorted(sizes):
        region = _records(memory[:size], _ROW)
        for order in ("ascending", "shuffled"):
            rows = _drawn(len(region), moved // _ROW, order)
            name = f"region-{size / 1e9:.0f}-{order}" if size >= 1e9 else f"region-{size}-{order}"
            yield name, partial(_rates, setting, region, rows)
    for width in WIDTHS:
        region = _records(memory, width)
        rows = _drawn(len(region), moved // width)
        yield f"width-{width}", partial(_rates, setting, region, rows)
    region = _records(memory, _ROW)
    rows = _drawn(len(region), 2 * moved // _ROW)
    for programs in setting.pick(PROGRAMS, (8, None)):
        name = "all" if programs is None else programs
        yield f"both-{name}", partial(_both, setting, region, rows, programs)
        yield f"beside-{name}", partial(_beside, setting, region, rows[::2], programs)


def _records(memory: Tensor, width: int) -> Tensor:
    return memory[: len(memory) // width * width].view(-1, width)


def _drawn(num_rows: int, count: int, order: str = "ascending") -> Tensor:
    """At most `count` distinct rows from anywhere."""
    rows = torch.randint(num_rows, (count,), generator=torch.Generator().manual_seed(0)).unique()
    return rows if order == "ascending" else rows[torch.randperm(len(rows))]


def _check(setting: Setting) -> None:
    host = empty_records(300, _ROW)
    lock(host.view(-1), setting)
    try:
        host.random_(0, 256, generator=torch.Generator().manual_seed(0))
        rows = _drawn(300, 100)
        near_rows = rows.to(setting.device)
        for programs in (0, 1, 3, None):
            near = torch.zeros(len(rows), _ROW, dtype=torch.uint8, device=setting.device)
            _move(setting, programs, host, near_rows, near, None)
            assert torch.equal(near.cpu(), host[rows]), f"{programs} programs read other bytes"
            before, new = host.clone(), near.flip(0).contiguous()
            _move(setting, programs, new, None, host, near_rows)
            before[rows] = new.cpu()
            assert torch.equal(host, before), f"{programs} programs write other bytes"
    finally:
        unlock(host.view(-1), setting)


def _move(setting: Setting, programs: int | None, *arguments: Tensor | None) -> None:
    """`ops.copy_rows`, with a grid of so many programs; None: one for each tile; 0, or without a GPU: as
    it is."""
    if programs == 0 or not setting.on_gpu:
        ops.copy_rows(*arguments)
        return
    from hotrows.ops.triton import launch
    from hotrows.ops.triton.copy_rows import move

    rows = next(rows for rows in (arguments[1], arguments[3]) if rows is not None)
    size = arguments[0].shape[1] // 16 * len(rows)
    move(*arguments, programs or -(-size // launch.MOVED))


def _rates(setting: Setting, host: Tensor, rows: Tensor, programs: int | None = 0) -> dict:
    """GB/s in and out, each alone."""
    size, near_rows, near = _near(setting, host, rows)
    repeats = setting.pick(5, 1)
    into = timed(lambda: _move(setting, programs, host, near_rows, near, None), setting, repeats=repeats)
    out = timed(lambda: _move(setting, programs, near, None, host, near_rows), setting, repeats=repeats)
    return {"in_gb_s": size / into.ms / 1e6, "out_gb_s": size / out.ms / 1e6}


def _both(setting: Setting, host: Tensor, rows: Tensor, programs: int | None) -> dict:
    """GB/s of both ways together: one half of the rows comes in while the other goes out."""
    halves = [_near(setting, host, rows[n::2]) for n in range(2)]
    (size, into_rows, into), (size_out, out_rows, out) = halves
    repeats = setting.pick(8, 1)

    def both_ways() -> None:
        for _ in range(repeats):
            _on_stream(setting, 0, lambda: _move(setting, programs, host, into_rows, into, None))
            _on_stream(setting, 1, lambda: _move(setting, programs, out, None, host, out_rows))

    both_ways()
    return {"gb_s": repeats * (size + size_out) / seconds_of(both_ways, setting) / 1e9}


def _beside(setting: Setting, host: Tensor, rows: Tensor, programs: int | None) -> dict:
    """Products and rows in, each alone and while the other runs."""
    size, near_rows, near = _near(setting, host, rows)
    side = setting.pick(8192, 16)
    dtype = torch.bfloat16 if setting.on_gpu else torch.float32
    a, b = (torch.randn(side, side, device=setting.device, dtype=dtype) for _ in range(2))
    product = torch.empty_like(a)

    def multiply() -> None:
        torch.mm(a, b, out=product)

    def copy() -> None:
        _move(setting, programs, host, near_rows, near, None)

    num = setting.pick(10, 1)
    alone = [_span(setting, work, num) for work in (multiply, copy)]
    beside = [_span(setting, multiply, num, copy, 2 * num), _span(setting, copy, num, multiply, 10 * num)]
    rates = [size / ms / 1e6 for ms in (alone[1], beside[1])]
    return {
        "product_ms": alone[0], "product_ms_beside": beside[0], "product_slower": beside[0] / alone[0],
        "in_gb_s": rates[0], "in_gb_s_beside": rates[1], "copy_slower": rates[0] / rates[1],
    }  # fmt: skip


def _span(
    setting: Setting,
    work: Callable[[], None],
    num: int,
    other: Callable[[], None] | None = None,
    num_other: int = 0,
) -> float:
    """Milliseconds of one `work`, `num` in a row, while `other` runs on a stream of its own."""
    work(), other() if other else None
    if not setting.on_gpu:
        return 1e3 * seconds_of(work, setting)
    torch.cuda.synchronize()
    for _ in range(num_other):
        _on_stream(setting, 1, other)
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    _on_stream(setting, 0, begin.record)
    for _ in range(num):
        _on_stream(setting, 0, work)
    _on_stream(setting, 0, end.record)
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / num


_streams: list = []


def _on_stream(setting: Setting, number: int, work: Callable[[], object]) -> None:
    """Launches on one of two streams; the first, of training, goes before the second."""
    if not setting.on_gpu:
        work()
        return
    if not _streams:
        _streams.extend([torch.cuda.Stream(priority=-1), torch.cuda.Stream()])
    with torch.cuda.stream(_streams[number]):
        work()


def _near(setting: Setting, host: Tensor, rows: Tensor) -> tuple[int, Tensor, Tensor]:
    """The bytes of these rows, the rows on the device, and as much memory there."""
    near = torch.zeros(len(rows), host.shape[1], dtype=torch.uint8, device=setting.device)
    return near.numel(), rows.to(setting.device), near
