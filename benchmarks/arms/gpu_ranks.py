"""One rank of the part `ranks` of benchmarks.gpu: what it checks, or measures, with its GPU.

RANK=0 WORLD_SIZE=2 .. python -m benchmarks.arms.gpu_ranks rows cuda 20
"""

import argparse
import itertools
import json
import os
import time
from contextlib import closing
from functools import partial

import torch

from hotrows import Adagrad, Batch, Embedding, RowWiseAdagrad, Table
from hotrows.batch import split
from hotrows.engine import stages
from hotrows.engine.caching import Caching
from hotrows.engine.distributed import process_group
from hotrows.engine.distributed.comm import Ranks
from hotrows.engine.distributed.job import RankLost
from hotrows.engine.planning.sharding import Placement
from hotrows.runtime.device import Device, find

FEATURES = ("a", "b", "c")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("work", choices=["collectives", "rows", "lost", "speed"])
    parser.add_argument("device")
    parser.add_argument("timeout", type=float)
    parser.add_argument("--small", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    device, ranks = find(args.device), process_group.start(args.timeout)
    found = {
        "collectives": _collectives, "rows": _rows, "lost": _lost, "speed": _speed,
    }[args.work](ranks, device, args.small)  # fmt: skip
    ranks.barrier()
    print(json.dumps(found), flush=True)


def _collectives(ranks: Ranks, device: Device, small: bool) -> dict:
    num = ranks.num_ranks
    counts = torch.randint(0, 9, (num, num), generator=torch.Generator().manual_seed(0))
    counts[0, -1] = 0
    for table in (counts, counts * 0):
        sent, received = table[ranks.rank].tolist(), table[:, ranks.rank].tolist()
        for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.int32):
            rows = (torch.arange(sum(sent) * 3).view(-1, 3) + 1000 * ranks.rank).to(dtype)
            expected = ranks.all_to_all(rows, sent, received).wait()
            found = ranks.all_to_all(device.put(rows), sent, received).wait()
            assert torch.equal(found.cpu(), expected), dtype
    values = torch.arange(100.0) + ranks.rank
    total = values * num + sum(range(num)) - num * ranks.rank
    assert torch.equal(ranks.all_reduce(device.put(values.clone())).wait().cpu(), total)
    gathered = ranks.channel("statistics").all_gather(device.put(values)).wait().cpu()
    assert torch.equal(gathered[:, 0], torch.arange(float(num)))
    return {}


def _tables(optimizer) -> list[Table]:
    return [
        Table("a", 4000, 16, ("a",), optimizer=optimizer),
        Table("b", 900, 8, ("b", "c"), optimizer=optimizer),
    ]


def _batches(num: int, size: int) -> list[Batch]:
    random = torch.Generator().manual_seed(0)
    rows = (4000, 900, 900)
    columns = [[torch.randint(0, n, (size,), generator=random) for n in rows] for _ in range(num)]
    return [Batch(FEATURES, torch.cat(ids), torch.zeros(size, 1)) for ids in columns]


def _rows(ranks: Ranks, device: Device, small: bool) -> dict:
    hot = {"a": Placement(500, ranks.num_ranks), "b": Placement(100, ranks.num_ranks)}
    shardings = ("rows", hot) if small else ("rows", "tables", "columns", "replicated", hot)
    caches = (None, Caching(fast_memory=120_000, in_flight=3))
    ways = itertools.product((1, 3), ("float32", "bfloat16"))
    settings = itertools.product(shardings, caches, [(1, "float32"), (3, "bfloat16")] if small else ways)
    for sharding, caching, (micro_batches, wire) in settings:
        execution = {"sharding": sharding, "micro_batches": micro_batches, "wire_dtype": wire}
        optimizer = Adagrad(lr=0.05) if caching else RowWiseAdagrad(lr=0.05)
        expected = _trained(ranks, "cpu", optimizer, caching=caching, **execution)
        found = _trained(ranks, device.name, optimizer, caching=caching, **execution)
        assert all(map(torch.equal, found, expected)), (execution, bool(caching))
    return {}


def _trained(ranks: Ranks, device: str, optimizer, **execution) -> list[torch.Tensor]:
    """This rank's records, after steps whose gradients are multiples of 1/16, summed in any order."""
    embedding = Embedding(_tables(optimizer), seed=3, ranks=ranks, device=device, **execution)
    batches = [(n, split(b, ranks.num_ranks)[ranks.rank]) for n, b in enumerate(_batches(6, 600))]
    with closing(stages.start(embedding, iter(batches), plan_depth=2)) as runner:
        for work in runner:
            plan, num = work.item.plan, execution["micro_batches"]
            for s in range(num):
                vectors = embedding.lookup(plan, s)
                for leaf in vectors.leaves:
                    leaf.grad = ((leaf.detach() * 64).round() + 3) / 16
                if s < num - 1:
                    embedding.send_gradients(plan, s, vectors)
            embedding.update(plan, vectors)
    if embedding.cached_tables:
        embedding.cached_tables.flush()
    records = [store.records.cpu().clone() for store in embedding.stores]
    embedding.close()
    return records


def _lost(ranks: Ranks, device: Device, small: bool) -> dict:
    """The last rank ends in the midst of exchanges; never returns."""
    even = [1 << 12] * ranks.num_ranks
    rows = device.put(torch.ones(sum(even)))
    try:
        for n in itertools.count():
            if n == 20 and ranks.rank == ranks.num_ranks - 1:
                os._exit(9)
            ranks.all_to_all(rows, even, even).wait()
            device.finish(device.mark())
    except RankLost as error:
        print(error, flush=True)
    os._exit(1)


def _speed(ranks: Ranks, device: Device, small: bool) -> dict:
    """Milliseconds and bytes out of a rank a second: median of repeats, each of the slowest rank."""
    figures, num = {}, ranks.num_ranks
    for megabytes in (1,) if small else (1, 16, 64):
        block = device.put(torch.ones((megabytes << 20) // 4 // num * num))
        even = [len(block) // num] * num
        collectives = {"all-reduce": (2, lambda b=block: ranks.all_reduce(b))}
        collectives["all-to-all"] = 1, partial(ranks.all_to_all, block, even, even)
        for name, (times, collective) in collectives.items():
            seconds = _slowest(ranks, device, collective)
            rate = times * block.nbytes * (num - 1) / num / seconds / 1e9
            figures[f"{name}, {megabytes} MiB"] = {"ms": 1e3 * seconds, "gb_s": rate}
    return figures


def _slowest(ranks: Ranks, device: Device, collective, repeats: int = 11) -> float:
    times = []
    for _ in range(repeats + 2):
        device.synchronize()
        ranks.barrier()
        begin = time.perf_counter()
        collective().wait()
        device.synchronize()
        times.append(max(ranks.gather_objects(time.perf_counter() - begin)))
    return sorted(times[2:])[repeats // 2]


if __name__ == "__main__":
    main()
