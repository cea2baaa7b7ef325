"""Training on ranks whose wire and slow memory run at stated rates: `measure` takes a request.

One process per rank, each with an equal share of two cores. Rows are in slow memory, behind a cache or
read and written within the step. Every message between ranks takes its turn on the rank's wire, every
row that moves on its link to slow memory; who waits sleeps.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import sys
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any
from unittest import mock

import numpy as np
import torch
from hotrows.distributed import process_group
from hotrows.distributed.dense_gradients import SharedGradients
from hotrows.planning.policy import Frequency
from torch.nn.functional import binary_cross_entropy_with_logits

import hotrows
from benchmarks.arms import hotrows_models, rank_arm
from benchmarks.link import Link, PacedRanks, pace
from benchmarks.samples import Features, Samples, ends_of
from hotrows import models, nn
from hotrows.batch import split
from hotrows.engine import stages
from hotrows.engine.caching import Caching
from hotrows.runtime.machine import peak_memory
from hotrows.runtime.utilization import Utilization

CORES = 2
A_PACK_PER_TABLE = 1 << 20
_ZIPF = 1.05
_STREAM = 24  # batches, again and again


def measure(request: dict) -> dict:
    """Figures of all ranks together.

    request: model, its options, fields, rows of each, dim, history (its mean length, or 0), labels;
    batch_size, ranks, warm_up and steps; micro_batches, pack_parts, cache (a share of the rows; 0: none);
    wire and slow: bytes a second of each rank; latency: seconds of a message.
    """
    places = rank_arm.places(request["ranks"], CORES)
    workers = []
    try:
        for rank, place in enumerate(places):
            workers.append(rank_arm.start(f"rank {rank}", place, _rank, request))
        by_rank = []
        while len(by_rank) < len(workers):
            worker = rank_arm.next_of([w for w in workers if w.name not in dict(by_rank)])
            by_rank.append((worker.name, rank_arm.received(worker)))
    finally:
        rank_arm.stop(workers)
    figures = [figures for _, figures in by_rank]
    slowest = max(one["seconds"] for one in figures)
    means = {name: sum(one[name] for one in figures) / len(figures) for name in figures[0]}
    return {**means, "samples_per_s": request["steps"] * request["batch_size"] / slowest}


def _rank(channel: Connection, request: dict) -> None:
    torch.set_num_threads(CORES // request["ranks"])
    torch.manual_seed(0)
    wire = Link(request["wire"], request["latency"])
    ranks = PacedRanks(process_group.start(timeout=rank_arm.COLLECTIVE_TIMEOUT), wire)
    features, data = _data(request)
    model = hotrows_models.build(request["model"], features, request["dim"], **request["options"])
    hotrows_models.own_no_optimizers(model)
    nn.share_statistics(model, ranks)
    caching = _caching(request, model.tables)
    with contextlib.ExitStack() as stack:
        embedding = hotrows.Embedding.for_model(
            model,
            hotrows_models.schema_of(features),
            optimizer=hotrows.Adagrad(lr=0.01),
            ranks=ranks,
            micro_batches=request["micro_batches"],
            pack_parts=request["pack_parts"],
            caching=caching,
        )
        stack.callback(embedding.close)
        slow = pace(embedding, request["slow"])
        if not request["cache"]:  # rows are read in large pieces
            stack.enter_context(mock.patch("hotrows.engine.read_through._LEAST_CHUNK", 1 << 16))
        mine = [split(batch, ranks.num_ranks)[ranks.rank] for batch in data]
        figures = _train(request, model, embedding, ranks, mine, (wire, slow))
    channel.send(figures)
    channel.recv()  # all stay until the others have ended


def _caching(request: dict, tables: tuple[hotrows.Table, ...]) -> Caching:
    """Fast memory of each rank: its share of the rows with their state, or a row of each table."""
    num_bytes = sum(4 * 2 * table.dim * table.rows for table in tables) // request["ranks"]
    least = sum(4 * 2 * table.dim for table in tables)
    return Caching(max(int(request["cache"] * num_bytes), least), policy=Frequency(20, 20))


def _train(
    request: dict, model: models.Model, embedding: hotrows.Embedding, ranks: PacedRanks,
    mine: list[hotrows.Batch], links: tuple[Link, Link],
) -> dict:  # fmt: skip
    shared, dense = SharedGradients(model, ranks), torch.optim.Adam(model.parameters(), fused=True)
    num_steps, cached = request["warm_up"] + request["steps"], embedding.cached_tables
    assert cached is not None

    def endless() -> Iterator[hotrows.Batch]:
        return itertools.islice(itertools.cycle(mine), num_steps)

    moved, used, begin, before = 0, Utilization(), 0.0, [0.0, 0.0, 0.0]
    runner = stages.start(embedding, enumerate(endless()), endless(), plan_depth=2)
    with contextlib.closing(runner):
        for number, work in enumerate(runner):
            if number == request["warm_up"]:
                ranks.barrier()
                used.begin()
                begin, moved = time.perf_counter(), 0
                before = [*(link.busy_seconds for link in links), ranks.sent.num_bytes]
            plan = work.item.plan
            moved += cached.traffic(plan).rows_in
            parts = split(work.item.batch, max(len(plan.micro_batches), 1))
            for part_number, part in enumerate(parts):
                vectors = embedding.lookup(plan, part_number)
                logits, own = models.logits_and_loss(model(vectors, part.dense))
                loss = binary_cross_entropy_with_logits(logits, part.labels)
                share = plan.micro_batches[part_number].share if plan.micro_batches else 1.0
                last = part_number + 1 == len(parts)
                with shared.summing() if last else contextlib.nullcontext():
                    ((loss if own is None else loss + own) * share).backward()
                if not last:
                    embedding.send_gradients(plan, part_number, vectors)
            embedding.update(plan, vectors)
            dense.step()
            dense.zero_grad()
        ranks.barrier()
        seconds = time.perf_counter() - begin
    after = [*(link.busy_seconds for link in links), ranks.sent.num_bytes]
    wire, slow, sent = (now - then for now, then in zip(after, before, strict=True))
    return {
        "seconds": seconds,
        "wire_busy": wire / seconds,
        "slow_busy": slow / seconds,
        "cores_busy": used.end()["cores_busy"] * request["ranks"],
        "sent_mb": sent / request["steps"] / 1e6,
        "rows_from_slow": moved / request["steps"],
        "peak_mb": (peak_memory() or 0) / 1e6,
    }


def _data(request: dict) -> tuple[Features, list[hotrows.Batch]]:
    rows = {f"f{n}": request["rows"] for n in range(request["fields"])}
    target = f"f{request['fields'] - 1}" if request["history"] else None
    labels = tuple(f"label_{n}" for n in range(request["labels"]))
    features = Features(rows, 4, target, max_length=2 * request["history"], labels=labels)
    return features, [_batch(request, features, number) for number in range(_STREAM)]


def _batch(request: dict, features: Features, number: int) -> hotrows.Batch:
    rng, size = np.random.default_rng([1, number]), request["batch_size"]

    def ids(*shape: int) -> np.ndarray:
        power = 1 - _ZIPF  # the inverse of the continuous law's distribution
        points = ((request["rows"] + 1.0) ** power - 1) * rng.random(shape) + 1
        return np.minimum((points ** (1 / power)).astype(np.int64) - 1, request["rows"] - 1)

    lengths = rng.integers(1, 2 * request["history"], size) if features.target else np.zeros(size, int)
    shape = (size, len(features.labels)) if len(features.labels) > 1 else (size,)
    samples = Samples(
        ids(len(features.rows), size),
        rng.standard_normal((size, features.num_dense)).astype(np.float32),
        (rng.random(shape) < 0.3).astype(np.float32),
        ids(int(lengths.sum())),
        ends_of(lengths),
    )
    return hotrows_models.batch_of(features, samples)


if __name__ == "__main__":
    request: dict[str, Any] = json.loads(sys.argv[1])
    print(json.dumps(measure(request)))
