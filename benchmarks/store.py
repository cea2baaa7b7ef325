"""How fast do rows come from a table on disk and go back to it, and what does a checkpoint cost?

    python -m benchmarks.store [--gib 4] [--strides 128 512] [--folder /tmp]
    python -m benchmarks.store depths [--gib 2]    # how many reads should be in flight?

A table is written whole, then read as a cache in front of it reads: some thousand random rows at a
time, ascending. Beside it stand the two plain ways, through the system's page cache, which is
emptied of the table before each. `depths`: random records of a file, read directly, a call at a
time, with 1 to 256 requests in flight, by io_uring and by as many threads; and what `Fetcher` does by
default.
"""

import argparse
import os
import shutil
import tempfile
import time
from pathlib import Path
from statistics import median

import numpy as np
import torch

from benchmarks.harness import conditions, write
from hotrows.engine.storage.disk_io import RecordFile
from hotrows.engine.storage.file_store import FileStore
from hotrows.engine.storage.record_io import Fetcher, alignment

ROWS_PER_CALL = 4000
BULK_ROWS = 1 << 16
DEPTHS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
QUESTION = "How fast do rows come from a table on disk and go back to it?"


def main() -> None:
    parser = argparse.ArgumentParser(description=QUESTION)
    parser.add_argument("which", nargs="?", choices=("store", "depths"), default="store")
    parser.add_argument("--gib", type=float, default=4, help="size of the table")
    parser.add_argument("--strides", type=int, nargs="+", default=[128, 512])
    parser.add_argument("--calls", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", default="/tmp")
    parser.add_argument("--quick", action="store_true", help="a small table; nothing is written")
    args = parser.parse_args()
    if args.quick:
        args.gib, args.calls, args.rounds = 0.25, 10, 1
    if args.which == "depths":
        _depths_side_by_side(args)
        return
    figures, load = {}, os.getloadavg()[0]
    for stride in args.strides:
        folder = Path(tempfile.mkdtemp(dir=args.folder))
        try:
            figures[f"stride {stride}"] = measure(folder / "store", stride, args)
        finally:
            shutil.rmtree(folder)
    if not args.quick:
        facts = {"question": QUESTION, "gib": args.gib, "rows_per_call": ROWS_PER_CALL}
        facts["load_before"] = load  # of the whole machine: figures of a busy one say little
        write("store", facts | conditions(1) | {"arms": figures})


def measure(path: Path, stride: int, args: argparse.Namespace) -> dict:
    num_rows = int(args.gib * 2**30) // stride
    store = FileStore.create(path, num_rows, stride, lambda rows, out: out.zero_(), {})
    draw = Draw(num_rows, stride)
    figures = {"fill": fill(store, draw)}
    print(f"stride {stride}: fill: {show(figures['fill'])}", flush=True)
    base, first = store._base.path, store._form.records_at
    ring, threads = store._reader, Fetcher(stride, ring=False)
    arms = {
        "read": lambda: read(store, draw, ring),
        "read with threads": lambda: read(store, draw, threads),
        "pread per row": lambda: pread_per_row(base, first, draw),
        "numpy.memmap": lambda: memory_map(base, first, draw),
        "append": lambda: append(store, draw),
    }
    for name, call in arms.items():
        rounds = []
        for _ in range(args.rounds):
            drop_from_memory(base)
            rounds.append(timed(call, args.calls, args.calls * ROWS_PER_CALL))
        figures[name] = {key: median(one[key] for one in rounds) for key in rounds[0]}
        print(f"stride {stride}: {name}: {show(figures[name])}", flush=True)
    figures["cycle"] = cycle(store, draw)
    print(f"stride {stride}: cycle: {show(figures['cycle'])}", flush=True)
    store.close()
    return figures


class Draw:
    """Rows and records to read and write."""

    def __init__(self, num_rows: int, stride: int) -> None:
        self.num_rows, self.chance = num_rows, np.random.default_rng(0)
        self.records = torch.randint(0, 256, (BULK_ROWS, stride), dtype=torch.uint8)
        self.out = torch.empty(ROWS_PER_CALL, stride, dtype=torch.uint8)

    def rows(self) -> torch.Tensor:
        """ROWS_PER_CALL random rows, ascending."""
        rows = np.unique(self.chance.integers(0, self.num_rows, 2 * ROWS_PER_CALL))
        rows = np.sort(self.chance.permutation(rows)[:ROWS_PER_CALL])
        return torch.from_numpy(rows)


def fill(store: FileStore, draw: Draw) -> dict:
    """Writes the table in a few generations, each merged; figures of the whole and of merging."""
    begin, merging = time.perf_counter(), 0.0
    size = store.num_rows * store.stride
    for quarter in np.array_split(np.arange(store.num_rows), 4):
        for i in range(0, quarter.size, BULK_ROWS):
            rows = torch.from_numpy(quarter[i : i + BULK_ROWS])
            store.write(rows, draw.records[: rows.numel()], keeps=True)
        generation = store.checkpoint()
        start = time.perf_counter()
        store.retain([generation])
        store.merge_now()
        merging += time.perf_counter() - start
    seconds = time.perf_counter() - begin
    return {"mb_per_s": size / seconds / 1e6, "merge_mb_per_s": size / merging / 1e6}


def read(store: FileStore, draw: Draw, reader: Fetcher) -> None:
    store._reader = reader
    store.read(draw.rows(), draw.out)


def pread_per_row(base: Path, first: int, draw: Draw) -> None:
    fd, out = os.open(base, os.O_RDONLY), draw.out.numpy()
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
    stride = out.shape[1]
    for i, row in enumerate(draw.rows().tolist()):
        out[i] = np.frombuffer(os.pread(fd, stride, first + row * stride), np.uint8)
    os.close(fd)


def memory_map(base: Path, first: int, draw: Draw) -> None:
    shape = (draw.num_rows, draw.out.shape[1])
    table = np.memmap(base, np.uint8, "r", first, shape)
    draw.out.numpy()[:] = table[draw.rows().numpy()]


def append(store: FileStore, draw: Draw) -> None:
    store.write(draw.rows(), draw.records[:ROWS_PER_CALL])


def cycle(store: FileStore, draw: Draw) -> dict:
    """From one checkpoint to the next: a log of the usual length, closed, merged while rows are read."""
    store.retain([store.checkpoint()])
    store.merge_now()
    while not store.wants_checkpoint:
        append(store, draw)
    num_records = store._logs[0].num_records
    begin = time.perf_counter()
    generation = store.checkpoint()
    closed = time.perf_counter()
    store.retain([generation])
    retained = time.perf_counter()
    before, calls = store.counters, 0
    while store._merger.is_running:
        read(store, draw, store._reader)
        calls += 1
    merged = time.perf_counter()
    moved = {name: store.counters[name] - count for name, count in before.items()}
    seconds = merged - retained
    return {
        "records": num_records,
        "checkpoint_ms": (closed - begin) * 1e3,
        "retain_ms": (retained - closed) * 1e3,
        "merge_s": seconds,
        "merge_written_mb_per_s": moved["bytes_written"] / seconds / 1e6,
        "rows_read_per_s_meanwhile": calls * ROWS_PER_CALL / seconds,
    }


# ---- depths


def _depths_side_by_side(args: argparse.Namespace) -> None:
    stride, load = args.strides[0], os.getloadavg()[0]
    num_rows = int(args.gib * 2**30) // stride
    folder = Path(tempfile.mkdtemp(dir=args.folder))
    figures: dict[str, dict] = {}
    try:
        path = folder / "records"
        draw = Draw(num_rows, stride)
        with path.open("wb") as file:
            for _ in range(0, num_rows, BULK_ROWS):
                file.write(draw.records.numpy().tobytes())
        file = RecordFile(path, stride, alignment(path), os.O_RDONLY)
        os.sync()
        for ring in (True, False):
            for depth in (*DEPTHS, None):
                name = f"{'io_uring' if ring else 'threads'}, {depth or 'default'}"
                figures[name] = _at_depth(file, draw, Fetcher(stride, ring, depth), args.rounds)
                print(f"{name}: {show(figures[name])}", flush=True)
    finally:
        shutil.rmtree(folder)
    if not args.quick:
        facts = {"question": "How many reads should be in flight?", "gib": args.gib, "stride": stride}
        facts |= {"rows_per_call": ROWS_PER_CALL, "direct": file.align > 1, "load_before": load}
        write("store-depths", facts | conditions(1) | {"arms": figures})


def _at_depth(file: RecordFile, draw: Draw, fetcher: Fetcher, rounds: int) -> dict:
    targets, out = np.arange(ROWS_PER_CALL), draw.out.numpy()

    def call():
        fetcher.fetch(file, draw.rows().numpy() * file.stride, targets, out)

    call()
    measured = [timed(call, 2, 2 * ROWS_PER_CALL) for _ in range(rounds)]
    return {key: median(one[key] for one in measured) for key in measured[0]}


def timed(call, calls: int, num_rows: int) -> dict:
    begin, used = time.perf_counter(), time.process_time()
    for _ in range(calls):
        call()
    seconds, used = time.perf_counter() - begin, time.process_time() - used
    return {"rows_per_s": num_rows / seconds, "cpu_us_per_row": used / num_rows * 1e6}


def drop_from_memory(file: Path) -> None:
    fd = os.open(file, os.O_RDONLY)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)


def show(figures: dict) -> str:
    return ", ".join(f"{name} {value:,.1f}" for name, value in figures.items())


if __name__ == "__main__":
    main()
