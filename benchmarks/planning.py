"""What does planning cost, part by part and policy by policy?

    python -m benchmarks.planning

The stream of `benchmarks.tiers` (26 fields, 33.8 M rows, batches of 8,192), on one thread; nanoseconds of
the thread's own time per lookup. A cache of a tenth of the rows begins with the most popular ones; a look
ahead resolves and feeds every batch once more.
"""

import argparse
import time
from dataclasses import replace

import numpy as np
import torch

from benchmarks.harness import conditions, write
from benchmarks.tiers import BATCH, SCHEMA, popular_rows, stream
from hotrows import models
from hotrows.data import Loader
from hotrows.engine.caching import Caching
from hotrows.engine.planning import packing
from hotrows.engine.planning.planner import Planner
from hotrows.engine.planning.policy import Frequency, Hot, Lookahead
from hotrows.engine.planning.slots import SlotMap
from hotrows.optim import Adagrad
from hotrows.train.loop.step_trainer import keep_freed_memory

PARTS = ("load", "plan", "look", "feed", "take")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=6_000_000)
    parser.add_argument("--batches", type=int, default=200, help="timed, after as many of warm-up")
    args = parser.parse_args()
    torch.set_num_threads(1)
    _policies_side_by_side(args)


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


def _measure(
    policy, part, popular, batches: int, dim: int = 16, record: int = 128
) -> tuple[dict[str, float], dict[str, float]]:
    """Nanoseconds a lookup of each part, and what the map of rows holds and takes in the end."""
    tables = models.build("dlrm", SCHEMA, dim=dim).tables
    packs = packing.pack_tables([replace(table, optimizer=Adagrad()) for table in tables])
    planner, num_slots = Planner(packs), packs[0].rows // 10
    rows = packs[0].rows
    bound = Caching(num_slots * record).lookahead_bytes
    slots = SlotMap(num_slots, policy, 4, lookahead_bytes=bound, num_rows=rows)
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


if __name__ == "__main__":
    main()
