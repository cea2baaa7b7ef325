"""One arm of `benchmarks.gpu_parts.cache`, which runs it in a process of its own."""

import contextlib
import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from statistics import median

import numpy as np
import torch

from benchmarks.gpu_parts.part import Setting
from benchmarks.gpu_parts.timing import synchronize
from benchmarks.gpu_parts.workloads import OPTIMIZERS, Training, batches_of, dlrm, embedding_of, scattered
from hotrows.engine.caching import CacheTraffic, Caching
from hotrows.engine.stages import start
from hotrows.planning.policy import Hot, Lookahead
from hotrows.planning.threads import num_threads
from hotrows.record import layout_of
from hotrows.runtime import native

_EVERY = 2  # steps whose loss is kept

POLICIES = {
    "lookahead": Lookahead("auto"),
    "two-batch": Lookahead(2),
    "lru": Lookahead(0),
    "hot": Hot(torch.empty(0, dtype=torch.int64)),
    "uncached": Lookahead(0),
}


def main() -> None:
    request = json.loads(sys.argv[1])
    core = native.load()
    if core is not None:
        core.hotrows_keep_freed_memory()
    print(json.dumps(measure(request, Setting(request["device"], request["small"]))))


def measure(request: dict, setting: Setting) -> dict:
    """Trains for a while; speed, misses and what crossed the link.

    asked: what `cache` says of the arm: num_rows, dim, optimizer, share, policy, planning, stream (a
    file), batch_size, warmup, windows and steps.
    """
    stream = np.load(request["stream"], mmap_mode="r")
    model = dlrm(request["num_rows"], request["dim"], setting.device, setting.small)
    begin = time.perf_counter()
    parts = num_threads(None, setting.device == "cpu")  # as `Trainer` deals tables behind a cache
    caching = _caching(request, model, stream, parts)
    embedding = embedding_of(
        model.tables, request["optimizer"], setting.device, caching,
        pack_parts=parts if caching else 1, planning=request["planning"],
    )  # fmt: skip
    if embedding.cached_tables and request["policy"] != "uncached":
        embedding.cached_tables.warm()
    seconds_to_make = time.perf_counter() - begin
    training = Training(model, embedding, setting.device)
    near, far = (batches_of(stream, request["batch_size"]) for _ in range(2))
    with contextlib.closing(start(embedding, enumerate(near), far if caching else None)) as runner:
        figures = _timed(runner, embedding, training, request, setting)
    return {**figures, "seconds_to_make": seconds_to_make, "record_bytes": embedding.num_bytes}


def _caching(request: dict, model, stream: np.ndarray, parts: int) -> Caching | None:
    if request["share"] is None:
        return None
    optimizer = OPTIMIZERS[request["optimizer"]]()
    stride = layout_of(replace(model.tables[0], optimizer=optimizer)).stride
    slots = max(int(request["share"] * sum(request["num_rows"])), 1)
    if request["policy"] == "uncached":
        slots = parts  # the least there can be
    hot = _hot_ids(request, model.tables, stream, slots)
    return Caching(slots * stride, "memory", POLICIES[request["policy"]], hot_ids=hot)


def _hot_ids(request: dict, tables, stream: np.ndarray, slots: int) -> dict[str, torch.Tensor]:
    """The ids that a cache begins with: by the law they are drawn from, or as a profile counts them."""
    if Path(request["stream"]).name.startswith("gpu-zipf"):
        of_each = slots // len(tables)
        return {
            table.name: scattered(torch.arange(min(of_each, table.rows)), table.rows) for table in tables
        }
    counted = stream[:, : stream.shape[1] // 4]
    counts = [np.bincount(ids, minlength=table.rows) for ids, table in zip(counted, tables, strict=True)]
    firsts = np.cumsum([0, *(len(count) for count in counts)])
    everything = np.concatenate(counts)
    rows = np.flatnonzero(everything)
    rows = rows[np.argsort(-everything[rows], kind="stable")[:slots]]
    return {
        table.name: torch.from_numpy(rows[(rows >= first) & (rows < end)] - first)
        for table, first, end in zip(tables, firsts, firsts[1:], strict=False)
    }


def _timed(runner, embedding, training: Training, request: dict, setting: Setting) -> dict:
    """Windows of steps once the cache is as it stays."""
    losses: dict[int, torch.Tensor] = {}

    def train(num_steps: int) -> list:
        """The plans of so many steps; of fewer where the stream ends."""
        plans = []
        for _, work in zip(range(num_steps), runner, strict=False):
            losses[work.number + 1] = training.step(work)
            plans.append(work.item.plan)
        return plans

    train(request["warmup"])
    speeds, waited, moved = [], [], []
    for _ in range(request["windows"]):
        synchronize(setting)
        begin, idle = time.perf_counter(), sum(runner.stalled.values())
        plans = train(request["steps"])
        synchronize(setting)
        seconds = time.perf_counter() - begin
        assert len(plans) == request["steps"], "the stream is too short"
        speeds.append(len(plans) * request["batch_size"] / seconds)
        waited.append((sum(runner.stalled.values()) - idle) / seconds)
        moved += [embedding.cached_tables.traffic(plan) for plan in plans if embedding.cached_tables]
    figures = {
        "samples_per_s": median(speeds),
        "lowest": min(speeds),
        "highest": max(speeds),
        "ms": 1e3 * request["batch_size"] / median(speeds),
        "waited": median(waited),
        "waited_for": dict(runner.stalled),
        "losses": {str(step): loss.item() for step, loss in losses.items() if step % _EVERY == 0},
    }
    if moved:
        total, num = sum(moved, CacheTraffic()), len(moved)
        figures |= {
            "rows": total.rows / num,
            "misses": total.rows_in / num,
            "hit_rate": 1 - total.rows_in / total.rows,
            "mb_in": total.bytes_in / num / 1e6,
            "mb_out": total.bytes_out / num / 1e6,
        }
    if setting.on_gpu:
        figures["device_gb"] = torch.cuda.max_memory_allocated() / 1e9
    return figures


if __name__ == "__main__":
    main()
