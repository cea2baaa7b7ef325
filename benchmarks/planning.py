"""What does planning cost, and what do threads save of it?

    python -m benchmarks.planning [policies] [memory] [threads] [ranks]

A cache of a tenth of the rows that begins with the most popular ones; a look ahead resolves and feeds
every batch once more. `policies`: every part of planning on one thread, for every policy; the stream
of `benchmarks.tiers` (26 fields, 33.8 M rows, batches of 8,192); nanoseconds of the thread's own time
per lookup. `memory`: look ahead on that stream at some sizes of records, each with its bound of the
look ahead: what planning has allocated, and its nanoseconds. `threads`: batches of a GPU, 1.7 M lookups
of 26 equal tables by Zipf 1.05, in as many packs as threads; medians of the caller's own time and that
of the longest of its threads, which is what goes by where no core is missing; `elapsed` is what went
by, more where the machine was busy. `ranks`: one rank among many, whose partners send it what it sends
them, so that no other one need be there; 26 tables in two packs, ids dealt over all ranks, a batch of
65,536 of all ranks together: milliseconds of the thread's own time, and of them those for routing:
requests, messages made and read, the rows to serve.
"""

import argparse
import os
import time
from dataclasses import replace
from statistics import median
from unittest import mock

import numpy as np
import torch

from benchmarks.gpu_parts.workloads import batches_of, scattered, zipf_stream
from benchmarks.harness import conditions, write
from benchmarks.tiers import BATCH, SCHEMA, popular_rows, stream
from hotrows import Table, models
from hotrows.batch import split
from hotrows.data import Loader
from hotrows.distributed.comm import Arrived, OneRank
from hotrows.engine.caching import Caching
from hotrows.optim import Adagrad
from hotrows.planning import packing
from hotrows.planning import planner as planner_module
from hotrows.planning.planner import Planner
from hotrows.planning.policy import Frequency, Hot, Lookahead
from hotrows.planning.sharding import by_rows
from hotrows.planning.slots import NativeSlotMap
from hotrows.planning.threads import Threads
from hotrows.train.step_trainer import keep_freed_memory

# of vectors, and bytes of a record: without state in bfloat16 and float32, with Adagrad's
RECORDS = ((4, 8), (4, 32), (16, 64), (16, 128), (64, 256), (64, 512), (128, 512), (128, 1024))
PARTS = ("load", "plan", "look", "feed", "take")
FIELDS, GPU_BATCH, WINDOW = 26, 65_536, 32


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("which", nargs="*", default=["policies", "threads"])
    parser.add_argument("--samples", type=int, default=6_000_000)
    parser.add_argument("--batches", type=int, default=200, help="timed, after as many of warm-up")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rows", type=int, default=1_000_000, help="of each table of `threads`, `ranks`")
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 8, 64, 256, 1024])
    parser.add_argument("--note", default="", help="of `ranks`: what was measured, in the results' name")
    args = parser.parse_args()
    torch.set_num_threads(1)
    if "policies" in args.which:
        _policies_side_by_side(args)
    if "memory" in args.which:
        _sizes_side_by_side(args)
    if "threads" in args.which:
        _threads_side_by_side(args)
    if "ranks" in args.which:
        _ranks_side_by_side(args)


def _policies_side_by_side(args) -> None:
    part = stream(args.samples).parts["train"]
    popular = torch.from_numpy(np.load(popular_rows()).astype(np.int64))
    figures, memory = {}, {}
    keep_freed_memory()  # as training does
    print(f"{'policy':10}" + "".join(f"{name:>8}" for name in (*PARTS, "all")) + "   ns a lookup")
    for name, policy in _policies(popular).items():
        figures[name], memory[name] = _measure(policy, part, popular, args.batches)
        print(f"{name:10}" + "".join(f"{ns:8.1f}" for ns in figures[name].values()), flush=True)
    setting = {"batches": args.batches, "samples": args.samples}
    facts = {**conditions(1), "setting": setting, "ns_per_lookup": figures, "memory": memory}
    write("planning", facts)


def _policies(popular):
    return {
        "lookahead": Lookahead("auto"),
        "two-batch": Lookahead(2),
        "lru": Lookahead(0),
        "frequency": Frequency(),
        "hot": Hot(popular[: 3 << 20]),
    }


def _sizes_side_by_side(args) -> None:
    part = stream(args.samples).parts["train"]
    popular = torch.from_numpy(np.load(popular_rows()).astype(np.int64))
    keep_freed_memory()
    columns = ("dim", "record", "window", "row B", "use B", "all MiB", "share", "ns")
    print("".join(f"{name:>9}" for name in columns))
    figures = []
    for dim, record in RECORDS:
        spent, held = _measure(Lookahead("auto"), part, popular, args.batches // 2, dim, record)
        fast_memory = held["num_slots"] * record
        each = {
            "bytes_per_known_row": held["known_rows"] / (held["resident"] + held["known"]),
            "bytes_per_use": held["uses_bytes"] / held["uses"],
            "share_of_fast_memory": held["bytes"] / fast_memory,
        }
        figures.append({"dim": dim, "record_bytes": record, **each, "ns": spent["all"], **held})
        row = dim, record, held["window"], *each.values()
        print(f"{dim:9}{record:9}{held['window']:9}{row[3]:9.1f}{row[4]:9.2f}", end="")
        print(f"{held['bytes'] / 2**20:9.0f}{row[5]:9.2f}{spent['all']:9.1f}", flush=True)
    setting = {"batches": args.batches // 2, "samples": args.samples}
    write("planning-memory", {**conditions(1), "setting": setting, "records": figures})


def _measure(
    policy, part, popular, batches: int, dim: int = 16, record: int = 128
) -> tuple[dict[str, float], dict[str, float]]:
    """Nanoseconds a lookup of each part, and what the map of rows holds and takes in the end."""
    tables = models.build("dlrm", SCHEMA, dim=dim).tables
    packs = packing.pack_tables([replace(table, optimizer=Adagrad()) for table in tables])
    planner, num_slots = Planner(packs), packs[0].rows // 10
    rows = packs[0].rows
    bound = Caching(num_slots * record).lookahead_bytes
    slots = NativeSlotMap(num_slots, policy, 4, lookahead_bytes=bound, num_rows=rows)
    slots.warm(popular[:num_slots])
    near, far = (Loader(part, BATCH, shuffle=False).batches(0) for _ in range(2))
    spent = dict.fromkeys(PARTS, 0.0)

    def timed(name, call):
        begin = time.thread_time()
        result = call()
        spent[name] += time.thread_time() - begin
        return result

    for number in range(2 * batches):
        if number == batches:
            spent = dict.fromkeys(PARTS, 0.0)
        batch = timed("load", lambda: next(near))
        while slots.wants():
            coming = timed("load", lambda: next(far, None))
            if coming is None:
                slots.end()
                break
            (rows,) = timed("look", lambda coming=coming: planner.rows(coming))
            timed("feed", lambda rows=rows: slots.feed(rows))
        plan = timed("plan", lambda batch=batch: planner.plan(batch))
        timed("take", lambda plan=plan: slots.allocate(plan.packs[0].rows))
    lookups = batches * BATCH * len(SCHEMA.sparse)
    nanoseconds = {name: seconds / lookups * 1e9 for name, seconds in spent.items()}
    resident, uses, known = slots._sizes()
    of_parts = slots.bytes_by_part()
    of_parts["uses_bytes"] = of_parts.pop("uses")
    memory = {"resident": resident, "uses": uses, "known": known, "bytes": slots.num_bytes}
    memory |= {"num_slots": num_slots, "window": slots.num_fed - slots.num_allocated, **of_parts}
    return nanoseconds | {"all": sum(nanoseconds.values())}, memory


# ---- threads


def _threads_side_by_side(args) -> None:
    keep_freed_memory()  # as training does
    num_rows, num_batches = ([args.rows] * FIELDS, WINDOW + 16)  # nothing comes round within the window
    batches = list(batches_of(zipf_stream(num_rows, num_batches * GPU_BATCH, "cpu"), GPU_BATCH))
    figures = {}
    names = (*PARTS[1:], "all", "elapsed")
    print(f"{'threads':10}" + "".join(f"{name:>8}" for name in names) + "   ns a lookup")
    for num in args.threads:
        figures[num] = _Planning(num, batches, args.rows).measure()
        print(f"{num:<10}" + "".join(f"{ns:8.1f}" for ns in figures[num].values()), flush=True)
    setting = {"rows": args.rows, "batch": GPU_BATCH, "fields": FIELDS, "window": WINDOW}
    facts = {**conditions(max(args.threads)), "setting": setting, "load": os.getloadavg()}
    write("planning-threads", {**facts, "ns_per_lookup": figures})


class _Timed(Threads):
    """longest: seconds of its own that the longest task of each call has taken, in all."""

    longest = 0.0

    def map(self, work, items):
        def timed(item):
            begin = time.thread_time()
            return work(item), time.thread_time() - begin

        timed_results = super().map(timed, items)
        if self.num > 1:  # else it is the caller's
            self.longest += max(seconds for _, seconds in timed_results)
        return [result for result, _ in timed_results]


class _Planning:
    """Batches planned and looked ahead at, round and round."""

    def __init__(self, num: int, batches: list, rows: int) -> None:
        self._batches, self._threads = batches, _Timed(num)
        names = batches[0].features
        tables = [Table(name, rows, 128, (name,), optimizer=Adagrad()) for name in names]
        packs = packing.pack_tables(tables, parts=num)
        self._planner = Planner(packs, threads=self._threads)
        self._maps = [
            NativeSlotMap(pack.rows // 10, Lookahead(WINDOW), 4, num_rows=pack.rows) for pack in packs
        ]
        hot = scattered(torch.arange(rows // 10), rows)
        for pack, slots in zip(packs, self._maps, strict=True):
            slots.warm(torch.cat([hot + first for first in pack.first_rows[:-1]]))
        self._fed, self._spent = 0, {name: [] for name in (*PARTS[1:], "elapsed")}

    def measure(self) -> dict[str, float]:
        for number in range(2 * len(self._batches)):
            if number == len(self._batches):
                self._spent = {name: [] for name in self._spent}
            begin = time.perf_counter()
            self._one(number)
            self._spent["elapsed"].append(time.perf_counter() - begin)
        lookups = self._batches[0].ids.numel()
        nanoseconds = {name: 1e9 * median(seconds) / lookups for name, seconds in self._spent.items()}
        elapsed = nanoseconds.pop("elapsed")
        return nanoseconds | {"all": sum(nanoseconds.values()), "elapsed": elapsed}

    def _one(self, number: int) -> None:
        maps = self._maps
        while maps[0].wants():
            self._look_ahead()
        batch = self._batches[number % len(self._batches)]
        parts = self._timed("plan", lambda: self._planner.plan(batch)).packs
        self._timed("take", lambda: self._each(lambda g: maps[g].allocate(parts[g].rows)))

    def _look_ahead(self) -> None:
        batch = self._batches[self._fed % len(self._batches)]
        self._fed += 1
        rows = self._timed("look", lambda: self._planner.rows(batch))
        self._timed("feed", lambda: self._each(lambda g: self._maps[g].feed(rows[g])))

    def _each(self, work) -> None:
        self._threads.map(work, range(len(self._maps)))

    def _timed(self, name, call):
        begin, before = time.thread_time(), self._threads.longest
        result = call()
        caller_seconds = time.thread_time() - begin
        self._spent[name].append(caller_seconds + self._threads.longest - before)
        return result


# ---- ranks


class _Mirror(OneRank):
    """A rank whose partners send it what it sends them."""

    def __init__(self, num_ranks: int) -> None:
        self.num_ranks = num_ranks

    def all_to_all(self, rows, sent, received, relayed=()):
        assert list(sent) == list(received)
        return Arrived(rows)


def _ranks_side_by_side(args) -> None:
    keep_freed_memory()
    stream = list(batches_of(zipf_stream([args.rows] * FIELDS, 8 * GPU_BATCH, "cpu"), GPU_BATCH))
    figures = {}
    print(f"{'ranks':10}{'plan':>8}{'routing':>9}   ms of the thread, median of 24 batches")
    for num_ranks in args.ranks:
        figures[num_ranks] = _on_one_of(num_ranks, stream, args.rows)
        plan, routing = figures[num_ranks].values()
        print(f"{num_ranks:<10}{plan:8.2f}{routing:9.2f}", flush=True)
    setting = {"rows": args.rows, "batch of all ranks": GPU_BATCH, "fields": FIELDS, "packs": 2}
    facts = {**conditions(1), "setting": setting, "load": os.getloadavg(), "ms": figures}
    write(f"planning-ranks{args.note}", facts)


def _on_one_of(num_ranks: int, stream: list, rows: int) -> dict[str, float]:
    names = stream[0].features
    sharding = [by_rows(num_ranks, t % num_ranks) for t in range(FIELDS)]
    tables = [
        Table(name, rows, 128 if t % 2 else 64, (name,), optimizer=Adagrad())
        for t, name in enumerate(names)
    ]
    packs = packing.pack_tables(tables, (), dict(zip(names, sharding, strict=True)))
    planner = Planner(packs, ranks=_Mirror(num_ranks))
    spent, route = {"plan": [], "routing": []}, planner_module.route

    def timed(name, call, *arguments):
        begin = time.thread_time()
        result = call(*arguments)
        spent[name].append(1e3 * (time.thread_time() - begin))
        return result

    mine = [split(batch, num_ranks)[0] for batch in stream]
    with mock.patch.object(planner_module, "route", lambda *a: timed("routing", route, *a)):
        for number in range(3 + 24):
            if number == 3:
                spent["plan"].clear(), spent["routing"].clear()
            timed("plan", planner.plan, mine[number % len(mine)])
    return {name: median(values) for name, values in spent.items()}


if __name__ == "__main__":
    main()
