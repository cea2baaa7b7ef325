"""One store of `benchmarks.gpu_parts.cache`, and the arms on it in turn: a process that makes it once."""

import gc
import itertools
import json
import sys
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, replace
from statistics import median

import numpy as np
import torch

from benchmarks.arms.gpu_arms import ARMS, Arm
from benchmarks.arms.gpu_runs import InStepRun, PlainRun, Run
from benchmarks.gpu_parts.memory import Memory
from benchmarks.gpu_parts.part import Setting
from benchmarks.gpu_parts.timing import seconds_of, steps_of_a_window, synchronize
from benchmarks.gpu_parts.workloads import OPTIMIZERS, batches_of, dlrm, scattered
from hotrows.batch import Batch
from hotrows.ops.record import layout_of
from hotrows.runtime import native
from hotrows.runtime.device import find

_CHECKED, _CHECKED_SMALL = 8, 4  # steps after which rows are compared; a graph is captured in the fourth
_SHORTEST = 15  # seconds of an arm


def main() -> None:
    request = json.loads(sys.argv[1])
    core = native.load()
    if core is not None:
        core.hotrows_keep_freed_memory()
    deadline = time.monotonic() + request["seconds"]
    setting = Setting(request["device"], request["small"], deadline=deadline)
    for name, figures in measure(request, setting):
        print(json.dumps({"arm": name, "figures": figures}), flush=True)


def measure(request: dict, setting: Setting) -> Iterator[tuple[str, dict]]:
    """Trains arm after arm for a while; the figures of each, or its `error`.

    request: what `cache` says of the store: on_device, arms, num_rows, dim, optimizer, stream (a file)
    and batch_size.
    """
    begin = time.perf_counter()
    try:
        rig = _rig(request, setting)
    except Exception as error:  # the other store may be had
        traceback.print_exc()
        for name in request["arms"]:
            yield name, {"error": f"no store: {type(error).__name__}: {error}".splitlines()[0]}
        return
    seconds = time.perf_counter() - begin
    try:
        for name in request["arms"]:
            if setting.seconds_left < setting.pick(_SHORTEST, 0):
                return
            try:
                figures = _measure(rig, ARMS[name])
            except Exception as error:
                traceback.print_exc()
                figures = {"error": f"{type(error).__name__}: {error}".splitlines()[0]}
            yield name, {**figures, "store_seconds": seconds}
            gc.collect()
            if setting.on_gpu:
                torch.cuda.synchronize()  # raises where the device is of no use any more
                torch.cuda.empty_cache()
    finally:
        rig.memory.close()


@dataclass
class Rig:
    """What all arms of a store share. ids: of each table, those that the checked steps read."""

    setting: Setting
    request: dict
    stream: np.ndarray
    batches: list[Batch]
    ids: list[torch.Tensor]
    memory: Memory

    def model(self) -> torch.nn.Module:
        num_rows, dim = self.request["num_rows"], self.request["dim"]
        return dlrm(num_rows, dim, find(self.setting.device).torch, self.setting.small)

    def hot_ids(self, slots: int) -> list[torch.Tensor]:
        """The most popular ids of each table, so many together: by Zipf's law, or as they are counted."""
        num_rows = self.request["num_rows"]
        if self.request["law"] == "zipf":
            of_each = slots // len(num_rows)
            return [scattered(torch.arange(min(of_each, rows)), rows) for rows in num_rows]
        counted = self.stream[:, : self.stream.shape[1] // 4]
        counts = [np.bincount(ids, minlength=rows) for ids, rows in zip(counted, num_rows, strict=True)]
        firsts = np.cumsum([0, *num_rows])
        everything = np.concatenate(counts)
        rows = np.flatnonzero(everything)
        rows = rows[np.argsort(-everything[rows], kind="stable")[:slots]]
        of_tables = [
            rows[(rows >= first) & (rows < end)] - first for first, end in itertools.pairwise(firsts)
        ]
        return [torch.from_numpy(ids) for ids in of_tables]


def _rig(request: dict, setting: Setting) -> Rig:
    """The stream as batches in host memory, ids as int64, and the memory of all records."""
    stream, size = np.load(request["stream"], mmap_mode="c"), request["batch_size"]
    batches = list(batches_of(stream, size))
    if setting.on_gpu:
        batches = [batch.pin_memory() for batch in batches]
    checked = stream[:, : setting.pick(_CHECKED, _CHECKED_SMALL) * size]
    ids = [torch.from_numpy(np.unique(of_table).astype(np.int64)) for of_table in checked]
    table = dlrm([10], request["dim"], "cpu", small=True).tables[0]
    layout = layout_of(replace(table, optimizer=OPTIMIZERS[request["optimizer"]]()))
    memory = Memory(sum(request["num_rows"]), layout, request["on_device"], setting)
    return Rig(setting, request, stream, batches, ids, memory)


def _measure(rig: Rig, arm: Arm) -> dict:
    if rig.setting.on_gpu:
        torch.cuda.reset_peak_memory_stats()
    begin = time.perf_counter()
    if rig.request["on_device"]:
        rig.memory.block.zero_()  # what one arm leaves may be no number where another looks
    run = {"plain": PlainRun, "in-step": InStepRun}.get(arm.kind, Run)(rig, arm)
    run.restore()
    num = rig.setting.pick(_CHECKED, _CHECKED_SMALL)
    with run.steps(rig.batches[:num]) as steps:
        losses = [loss.item() for loss in steps]
    figures = {"losses": losses, **run.state()}
    rest = rig.batches[num:]
    if arm.kind == "hot-cold":
        figures |= _hot_and_cold(rig, run)
    else:
        figures |= _timed(rig, run, rest)
    if rig.setting.on_gpu:
        figures["device_gb"] = torch.cuda.max_memory_allocated() / 1e9
    return {"what": arm.what, **figures, "seconds": time.perf_counter() - begin}


def _timed(rig: Rig, run: Run, batches: list[Batch]) -> dict:
    """Windows of a second or more, once the cache is as it stays."""
    setting, size = rig.setting, rig.request["batch_size"]
    with run.steps(batches, forever=True) as steps:

        def train(num: int) -> None:
            for _ in itertools.islice(steps, num):
                pass

        train(setting.pick(20, 1))
        few = setting.pick(10, 1)
        num = steps_of_a_window(seconds_of(lambda: train(few), setting) / few, setting)
        speeds, waited = [], []
        run.count()
        for _ in range(setting.pick(3, 1)):
            synchronize(setting)
            idle = sum(run.stalled.values())
            seconds = seconds_of(lambda: train(num), setting)
            speeds.append(num * size / seconds)
            waited.append((sum(run.stalled.values()) - idle) / seconds)
        moved = run.counted()
    return {
        "samples_per_s": median(speeds), "lowest": min(speeds), "highest": max(speeds),
        "ms": 1e3 * size / median(speeds), "steps": num * len(speeds), "waited": median(waited),
        "waited_for": dict(run.stalled), **moved,
    }  # fmt: skip


def _hot_and_cold(rig: Rig, run: Run) -> dict:
    """Samples whose ids are all hot make batches of their own, as in FAE, and so do all others.

    `samples_per_s` is that of a sample of either kind, by their shares. Where the hot samples fill no
    batch, it is that of the others.
    """
    hot = np.ones(rig.stream.shape[1], bool)
    for ids, rows, popular in zip(rig.stream, rig.request["num_rows"], run.hot_ids, strict=True):
        is_hot = np.zeros(rows, bool)
        is_hot[popular.numpy()] = True
        hot &= is_hot[ids]
    size, seconds, figures = rig.request["batch_size"], 0.0, {"hot_share": float(hot.mean())}
    kinds = {"cold": ~hot, "hot": hot} if hot.sum() >= size else {"cold": ~hot}
    for kind, chosen in kinds.items():
        columns = np.flatnonzero(chosen)[: len(rig.batches) * size]
        found = _timed(rig, run, list(batches_of(rig.stream[:, columns], size)))
        figures |= found if kind == "cold" else {"hot_samples_per_s": found["samples_per_s"]}
        share = float(chosen.mean()) if len(kinds) == 2 else 1.0
        seconds += share / found["samples_per_s"]
    return {**figures, "cold_samples_per_s": figures["samples_per_s"], "samples_per_s": 1 / seconds}


if __name__ == "__main__":
    main()
