"""A step of a model on one rank: `measure` takes a request and returns figures."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable

import numpy as np
import torch
from hotrows.nn import choose_linear_paths, use_linear_paths

import hotrows
from benchmarks.arms import hotrows_models, plain_models
from benchmarks.arms.arm import peak_rss_mb
from benchmarks.arms.malloc import keep_freed_memory
from benchmarks.samples import Features, Samples, ends_of, random_lengths
from benchmarks.workload import measure as measure_steps

_ZIPF = 1.05
_BATCHES = 8  # are cycled
_ROW_LR, _DENSE_LR = 0.01, 1e-3


def measure(request: dict) -> dict:
    """request: arm (`hotrows` or `plain`), model, its options, rows of each field, dim, batch_size,
    history (its mean length, or 0), labels, threads, windows, warmup: seconds, max_seconds."""
    torch.set_num_threads(request["threads"])
    torch.manual_seed(0)
    keep_freed_memory()
    rows = {f"f{n}": num for n, num in enumerate(request["rows"])}
    features = Features(
        rows,
        4,
        f"f{len(rows) - 1}" if request["history"] else None,
        max_length=5 * request["history"] // 2,
        labels=tuple(f"label_{n}" for n in range(request["labels"])),
    )
    data = [_samples(request, features, number) for number in range(_BATCHES)]
    step_of = {"hotrows": _hotrows, "plain": _plain}[request["arm"]]
    timing = measure_steps(
        step_of(request, features, data),
        windows=request["windows"],
        warmup_seconds=request["warmup"],
        max_seconds=request["max_seconds"],
    )
    return {
        "samples_per_s": request["batch_size"] / timing.median,
        "ms": timing.median * 1e3,
        "other_cores": timing.other_cores,
        "peak_rss_mb": peak_rss_mb(),
    }


def _hotrows(request: dict, features: Features, data: list[Samples]) -> Callable[[int], float]:
    model = hotrows_models.build(request["model"], features, request["dim"], **request["options"])
    embedding = hotrows_models.embedding_of(model, features, hotrows.Adagrad(lr=_ROW_LR))
    use_linear_paths(model, choose_linear_paths(model))
    batches = [hotrows_models.batch_of(features, samples) for samples in data]
    return hotrows_models.training_step(model, embedding, batches, _DENSE_LR)


def _plain(request: dict, features: Features, data: list[Samples]) -> Callable[[int], float]:
    size, options = request["batch_size"], request["options"]
    model = plain_models.build(request["model"], features, request["dim"], size, options)
    batches = [model.inputs(samples) for samples in data]
    rows = torch.optim.Adagrad(model.tables, _ROW_LR)
    dense = torch.optim.Adam(model.layers, _DENSE_LR, fused=True)

    def step(k: int) -> float:
        loss = model.loss(batches[k % len(batches)])
        loss.backward()
        for optimizer in (rows, dense):
            optimizer.step()
            optimizer.zero_grad()
        return loss.item()

    return step


def _samples(request: dict, features: Features, number: int) -> Samples:
    rng, size = np.random.default_rng([1, number]), request["batch_size"]

    def ids(rows: np.ndarray, num: int) -> np.ndarray:
        power = 1 - _ZIPF  # the inverse of the continuous law's distribution
        points = ((rows + 1.0) ** power - 1) * rng.random((len(rows), num)) + 1
        return np.minimum((points ** (1 / power)).astype(np.int64) - 1, rows - 1)

    rows = np.array(request["rows"])[:, None]
    lengths = np.zeros(size, int)
    if request["history"]:
        lengths = random_lengths(rng, size, request["history"], features.max_length)
    labels = rng.random((size, request["labels"]) if request["labels"] > 1 else size) < 0.3
    return Samples(
        ids(rows, size),
        rng.standard_normal((size, features.num_dense)).astype(np.float32),
        labels.astype(np.float32),
        ids(rows[-1:], int(lengths.sum()))[0],
        ends_of(lengths),
    )


if __name__ == "__main__":
    print(json.dumps(measure(json.loads(sys.argv[1]))))
