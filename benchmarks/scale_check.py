"""How far is the predicted step on 1, 2 and 4 ranks from the one that is measured?

    python -m benchmarks.scale_check                    # results/scale_check.json; about ten minutes
    python -m benchmarks.scale_check --ranks 1 2 --quick

DLRM at Criteo Kaggle's sizes (26 tables, 33.8 M rows of dim 16, Adagrad), ids by Zipf's law of exponent
1.05, ids standing by falling frequency, a global batch of 8,192, ranks joined by Gloo over the loopback
interface, one thread each. What is predicted is measured in no other way than this:

    rates   one rank alone, while the others wait: `hotrows.train.costs.measure_machine`; and for products
            the forward and backward pass of the model on a rank's share of the batch, its vectors there
    links   all ranks together: fitted to all-to-alls and all-reduces of several sizes

Ranks share cores. With P ranks on C cores a rank does C / P of what it does alone, where P > C; links are
measured under these conditions already. Where no core is free (P >= C), planning ahead runs beside
nothing, so it is predicted as a part of the step. `together` stands beside: rates that all ranks
measured at once, so that they share cores and memory as training does, and no division by C / P.
"""

from __future__ import annotations

import argparse
import dataclasses
import multiprocessing
import os
import socket
import time

import numpy as np
import torch
from torch.nn.functional import binary_cross_entropy_with_logits

import hotrows
from benchmarks.harness import conditions, write
from benchmarks.workload import CRITEO_KAGGLE, DIM, DLRM_BOTTOM, DLRM_TOP
from hotrows import models
from hotrows.batch import split
from hotrows.engine.distributed import process_group
from hotrows.engine.distributed.dense_gradients import SharedGradients
from hotrows.engine.pipeline.prefetch import prefetch
from hotrows.engine.planning.sharding import Placement, uniform
from hotrows.models.nn import choose_linear_paths, use_linear_paths
from hotrows.runtime import native
from hotrows.train.costs import measure_machine, workload
from hotrows.train.costs.choose_sharding import choose_sharding
from hotrows.train.costs.step_cost import Machine, StepCost, step_cost

QUESTION = __doc__.split("\n")[0]
SHAPE = workload.named("criteo-kaggle")
BATCH_SIZE = SHAPE.step.batch_size
NAMES = tuple(load.name for load in SHAPE.loads)
NUM_BATCHES = 12
PARTS = ("plan", "lookup", "dense", "update")
PATIENCE = 600  # seconds for everything on one number of ranks


def main() -> None:
    parser = argparse.ArgumentParser(description=QUESTION)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--sharding", nargs="+", default=["rows", "tables", "auto"])
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--quick", action="store_true", help="few steps; nothing is written")
    args = parser.parse_args()
    steps = 10 if args.quick else args.steps
    rows = []
    for num_ranks in args.ranks:
        rows += _on_ranks(num_ranks, args.sharding if num_ranks > 1 else ["rows"], steps)
        for row in rows[-len(args.sharding) if num_ranks > 1 else -1 :]:
            print(_line(row), flush=True)
    if not args.quick:
        facts = {"question": QUESTION, **conditions(1), "batch_size": BATCH_SIZE, "steps": steps}
        write("scale_check", {**facts, "rows": rows})


def _line(row: dict) -> str:
    parts = ", ".join(
        f"{name} {row['measured'][name] * 1e3:.1f} ({row['alone'][name] * 1e3:.1f})" for name in PARTS
    )
    return (
        f"{row['num_ranks']} ranks, {row['sharding']}: {row['measured']['step'] * 1e3:.1f} ms, predicted "
        f"{row['alone']['step'] * 1e3:.1f} ({row['error']:+.0%}), from rates of all at once "
        f"{row['together']['step'] * 1e3:.1f} ({row['error_together']:+.0%}); {parts}"
    )


def _on_ranks(num_ranks: int, shardings: list[str], steps: int) -> list[dict]:
    """Starts ranks, waits for what rank 0 found, and lets none outlive this."""
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    port = _free_port()
    workers = [
        spawn.Process(target=_work, args=(rank, num_ranks, port, shardings, steps, theirs))
        for rank in range(num_ranks)
    ]
    try:
        for worker in workers:
            worker.start()
        end = time.monotonic() + PATIENCE
        while not ours.poll(1.0):
            failed = [w.exitcode for w in workers if w.exitcode]
            if failed or time.monotonic() > end:
                raise RuntimeError(f"{num_ranks} ranks: exit codes {failed or 'none'}, no result")
        return ours.recv()
    finally:
        for worker in workers:
            worker.join(5)
            if worker.is_alive():
                worker.kill()


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def _work(rank: int, num_ranks: int, port: int, shardings: list[str], steps: int, channel) -> None:
    os.environ |= {
        "RANK": str(rank),
        "WORLD_SIZE": str(num_ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    torch.set_num_threads(1)
    core = native.load()
    if core is not None:
        core.hotrows_keep_freed_memory()
    ranks = process_group.start(timeout=PATIENCE)
    batches = _batches()
    alone, together = _machines(ranks, batches[0])
    comparisons = []
    for sharding in shardings:
        placements = _placements(sharding, alone, num_ranks)
        measured = _measured(ranks, placements, batches, steps)
        comparisons.append(_compared(num_ranks, sharding, placements, measured, alone, together))
    if rank == 0:
        channel.send(comparisons)
    ranks.barrier()


def _batches() -> list[hotrows.Batch]:
    """Global batches, the same on all ranks; id 0 is the most frequent one."""
    rng = np.random.default_rng(0)
    size = BATCH_SIZE * NUM_BATCHES
    ids = np.empty((len(CRITEO_KAGGLE), size), np.int64)
    for field, rows in enumerate(CRITEO_KAGGLE):
        cumulated = np.cumsum(np.arange(1.0, rows + 1) ** -workload.ZIPF)
        ids[field] = np.searchsorted(cumulated, rng.random(size) * cumulated[-1]).clip(0, rows - 1)
    dense = torch.from_numpy(np.log1p(rng.exponential(10.0, (size, 13))).astype(np.float32))
    labels = torch.from_numpy((rng.random(size) < 0.25).astype(np.float32))
    parts = [slice(n * BATCH_SIZE, (n + 1) * BATCH_SIZE) for n in range(NUM_BATCHES)]
    return [
        hotrows.Batch(NAMES, torch.from_numpy(ids[:, p].copy()).reshape(-1), dense[p], labels[p])
        for p in parts
    ]


def _model(most_rows: int | None = None) -> models.Model:
    sparse = tuple(
        hotrows.Sparse(name, rows=min(rows, most_rows or rows))
        for name, rows in zip(NAMES, CRITEO_KAGGLE, strict=True)
    )
    schema = hotrows.Schema((*(hotrows.Dense(f"I{n}") for n in range(13)), *sparse))
    torch.manual_seed(0)
    return models.build("dlrm", schema, dim=DIM, bottom=DLRM_BOTTOM[:-1], top=DLRM_TOP[:-1])


def _machines(ranks, batch: hotrows.Batch) -> tuple[Machine, Machine]:
    """Rates of one rank alone, crowded by arithmetic, and of all at once; links of all together."""
    share = split(batch, ranks.num_ranks)[ranks.rank]
    alone = _rates(share) if ranks.rank == 0 else None
    alone = ranks.gather_objects(alone)[0]
    together = ranks.gather_objects(_rates(share))[0] if ranks.num_ranks > 1 else alone
    alone = alone.shared_by(max(1.0, ranks.num_ranks / _cores()))
    if ranks.num_ranks == 1:
        return alone, together
    link, reducing = measure_machine.links(ranks)
    links = {"inner": link, "reducing": reducing, "ranks_per_node": ranks.num_ranks}
    return dataclasses.replace(alone, **links), dataclasses.replace(together, **links)


def _rates(share: hotrows.Batch) -> Machine:
    machine = measure_machine.measure_machine()
    seconds = _dense_seconds(share)
    return dataclasses.replace(machine, flops=share.size * SHAPE.step.flops_per_sample / seconds)


def _dense_seconds(share: hotrows.Batch) -> float:
    """Of forward and backward with vectors at hand, the best of twelve: tables have few rows."""
    model = _model(most_rows=3)
    embedding = hotrows.Embedding(model.tables, optimizer=hotrows.SGD())
    use_linear_paths(model, choose_linear_paths(model))
    few = dataclasses.replace(share, ids=share.ids % 3)
    vectors = embedding.lookup(embedding.plan(few))
    times = []
    for _ in range(12):
        begin = time.perf_counter()
        loss = binary_cross_entropy_with_logits(model(vectors, share.dense), share.labels)
        loss.backward()
        times.append(time.perf_counter() - begin)
        model.zero_grad()
        for leaf in vectors.leaves:
            leaf.grad = None
    return min(times)


def _placements(sharding: str, machine: Machine, num_ranks: int) -> dict[str, Placement]:
    model = _model()
    if sharding != "auto":
        sharding_by_table = uniform(sharding, model.tables, num_ranks)
        return {table.features[0]: sharding_by_table[table.name] for table in model.tables}
    chosen = choose_sharding(SHAPE.loads, machine, num_ranks, SHAPE.step)
    return dict(zip(NAMES, chosen.placements, strict=True))


def _measured(ranks, placements: dict[str, Placement], batches: list, steps: int) -> dict:
    """Medians over steps: parts in turn, means over ranks; and whole steps, planned ahead."""
    model = _model()
    by_table = {table.name: placements[table.features[0]] for table in model.tables}
    sharding = {"sharding": by_table, "ranks": ranks} if ranks.num_ranks > 1 else {}
    embedding = hotrows.Embedding(model.tables, optimizer=hotrows.Adagrad(), **sharding)
    mine = [split(batch, ranks.num_ranks)[ranks.rank] for batch in batches]
    use_linear_paths(model, ranks.gather_objects(choose_linear_paths(model))[0])
    dense = torch.optim.Adam(model.parameters(), fused=True)
    shared = SharedGradients(model, ranks)

    def train(plan, batch: hotrows.Batch, times: list[float]) -> None:
        vectors = embedding.lookup(plan)
        times.append(time.perf_counter())
        loss = binary_cross_entropy_with_logits(model(vectors, batch.dense), batch.labels)
        with shared.summing():
            (loss * plan.share).backward()
        dense.step()
        dense.zero_grad()
        times.append(time.perf_counter())
        embedding.update(plan, vectors)
        times.append(time.perf_counter())

    parts = []
    for k in range(steps + 5):
        ranks.barrier()
        times = [time.perf_counter()]
        plan = embedding.plan(mine[k % len(mine)], k)
        times.append(time.perf_counter())
        train(plan, mine[k % len(mine)], times)
        parts.append(np.diff(times))
    step_seconds = []
    numbers = range(steps + 5)  # no rank plans a batch that another does not
    planned = prefetch(
        ((embedding.plan(mine[k % len(mine)], k), mine[k % len(mine)]) for k in numbers), depth=2
    )
    for _ in numbers:
        begin = time.perf_counter()
        train(*next(planned), [])
        step_seconds.append(time.perf_counter() - begin)
    ranks.barrier()
    everywhere = ranks.gather_objects((np.array(parts[5:]), np.array(step_seconds[5:])))
    of_parts = np.median(np.mean([part_times for part_times, _ in everywhere], 0), 0)
    steps_of = np.median(np.mean([step_times for _, step_times in everywhere], 0))
    return dict(zip(PARTS, of_parts.tolist(), strict=True)) | {"step": float(steps_of)}


def _compared(
    num_ranks: int, sharding: str, placements: dict, measured: dict, alone: Machine, together: Machine
) -> dict:
    places = [placements[name] if num_ranks > 1 else Placement() for name in NAMES]
    figures = {}
    for name, machine in (("alone", alone), ("together", together)):
        cost = step_cost(machine, SHAPE.loads, places, num_ranks, SHAPE.step)
        figures[name] = _predicted(cost)
        figures[f"machine_{name}"] = dataclasses.asdict(machine)
    return {
        "num_ranks": num_ranks,
        "sharding": sharding,
        "cores": _cores(),
        "measured": measured,
        **figures,
        "error": figures["alone"]["step"] / measured["step"] - 1,
        "error_together": figures["together"]["step"] / measured["step"] - 1,
        "placements": [dataclasses.asdict(place) for place in places],
    }


def _predicted(cost: StepCost) -> dict[str, float]:
    """Seconds by what is timed: of the pooling and of the exchange, half is the lookup's."""
    half = (cost.exchange + cost.pool) / 2
    free = cost.num_ranks < _cores()
    return {
        "plan": cost.planning,
        "lookup": cost.gather + half,
        "dense": cost.dense + cost.exposed_reduce,
        "update": cost.update + half + cost.reduce,
        "step": max(cost.critical, cost.planning) if free else cost.critical + cost.planning,
    }


def _cores() -> int:
    return len(os.sched_getaffinity(0))


if __name__ == "__main__":
    main()
