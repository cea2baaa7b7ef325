"""How many rows must be fetched per batch, and what does planning cost? Policies side by side.

    python -m benchmarks.misses [STREAM ...] [--quick]
    python -m benchmarks.misses gpu --device         # the slot map of a device, its ops in plain PyTorch

Planning alone, no row moves. Every policy starts from the same warm cache, the most popular rows;
the second half of the batches counts. `belady` knows the whole future and is the floor. In flight 4
is how training runs: rows of the three batches before and after are pinned; 1 pins none. `--device`
takes the floor from the results of the first form.
"""

import argparse
import json
import time
from collections.abc import Iterator

import numpy as np
import torch

from benchmarks.harness import RESULTS, conditions, write
from benchmarks.streams import STREAMS, Stream
from hotrows.engine.planning.device_slots import DeviceSlots
from hotrows.engine.planning.policy import Frequency, Hot, Lookahead
from hotrows.engine.planning.slots import SlotMap
from hotrows.runtime.device import HOST

SHARES = (0.01, 0.02, 0.05, 0.10)
IN_FLIGHT = (4, 1)
# Several windows, for the last of them.
BATCHES = {"zipf": 2_500, "drift": 2_500, "criteo": 10_000, "gpu": 1_000}
POLICIES = ("belady", "lookahead", "two-batch", "lru", "frequency", "hot")
WINDOWS = ("auto", 64, 256)  # of a map on a device: of the first share in question all, else the first


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("streams", nargs="*", default=list(STREAMS), metavar="STREAM")
    parser.add_argument("--batches", type=int, help="of the stream")
    parser.add_argument("--quick", action="store_true", help="200 batches; nothing is written")
    parser.add_argument("--device", action="store_true", help="slots mapped as a device does")
    args = parser.parse_args()
    torch.set_num_threads(1)
    for name in args.streams:
        num_batches = 200 if args.quick else args.batches or BATCHES[name]
        figures = (measure_on_device if args.device else measure)(STREAMS[name], num_batches)
        if not args.quick:
            setting = {"stream": vars(STREAMS[name]), "batches": num_batches}
            file = f"misses-{name}-device" if args.device else f"misses-{name}"
            write(file, {**conditions(1), **setting, "figures": figures})


def measure(stream: Stream, num_batches: int) -> list[dict]:
    batches = [torch.from_numpy(rows) for rows in stream.batches(num_batches)]
    distinct = [torch.from_numpy(np.unique(rows.numpy())) for rows in batches]
    popular = torch.from_numpy(stream.by_popularity())
    figures = []
    print(f"\n{stream.name}: {stream.rows:,} rows, {len(batches[0]):,} lookups a batch")
    print(f"{'cache':>6} {'flight':>6} {'policy':10} {'misses':>9} {'belady':>7} {'ns':>5} {'window':>7}")
    for share in SHARES:
        for in_flight in IN_FLIGHT:
            floor = None
            for name in POLICIES:
                figure = replay(
                    name, stream, int(stream.rows * share), in_flight, batches, distinct, popular
                )
                floor = floor or figure["misses_per_batch"]
                figure |= {
                    "cache": share,
                    "in_flight": in_flight,
                    "over_belady": figure["misses_per_batch"] / floor,
                }
                figures.append(figure)
                print(
                    f"{share:6.0%} {in_flight:6} {name:10} {figure['misses_per_batch']:9,.1f} "
                    f"{figure['over_belady']:7.3f} {figure['ns_per_lookup']:5.1f} "
                    f"{figure['window'] or '':>7}",
                    flush=True,
                )
    return figures


def measure_on_device(stream: Stream, num_batches: int) -> list[dict]:
    """The misses of a slot map on a device, four batches in flight."""
    distinct = [torch.from_numpy(np.unique(rows)) for rows in stream.batches(num_batches)]
    popular = torch.from_numpy(stream.by_popularity())
    known = json.loads((RESULTS / f"misses-{stream.name}.json").read_text())["figures"]
    figures = []
    for share in reversed(SHARES):
        floor = next(
            f for f in known if (f["policy"], f["cache"], f["in_flight"]) == ("belady", share, 4)
        )
        for window in WINDOWS if share == SHARES[-1] else WINDOWS[:1]:
            slots = DeviceSlots(stream.rows, int(stream.rows * share), Lookahead(window), 4, HOST)
            slots.warm(popular[: slots.num_slots])
            misses = list(planned_on_device(slots, distinct, len(stream.num_rows) * stream.lookups))
            half = len(misses) // 2
            figure = {
                "policy": f"device, window {window}",
                "slots": slots.num_slots,
                "misses_per_batch": (misses[-1] - misses[half - 1]) / (len(misses) - half),
                "window": slots.window,
                "drained": slots.num_drained,
                "cache": share,
                "in_flight": 4,
            }
            figure["over_belady"] = figure["misses_per_batch"] / floor["misses_per_batch"]
            figures.append(figure)
            print(figure, flush=True)
    return figures


def planned_on_device(slots: DeviceSlots, distinct, num_ids: int) -> Iterator[int]:
    """Plans batch after batch as the stages do; yields the rows fetched so far."""
    fed = 0
    for number in range(len(distinct)):
        while fed < len(distinct) and slots.wants(fed - number):
            slots.feed(lambda rows=distinct[fed]: rows)
            fed += 1
        for rows in distinct[number + (3 if number else 0) : number + 4]:
            slots.touch(rows)
        slots.begin()
        rows = distinct[number]
        taken = slots.memory(num_ids)
        slots.take(torch.nn.functional.pad(rows, (0, num_ids - len(rows)), value=-1), taken)
        slots.read(number, taken)
        yield slots.misses


def replay(name, stream, num_slots, in_flight, batches, distinct, popular) -> dict:
    """Plans all batches; `ns_per_lookup` is the thread's own time in the slot map."""
    policy = _policy(name, num_slots, len(distinct[0]), in_flight, popular)
    slots = SlotMap(num_slots, policy, in_flight)
    slots.warm(popular[:num_slots])
    half, misses, windows = len(batches) // 2, [], []
    begin = time.thread_time()
    for so_far in planned(slots, distinct, batches):
        misses.append(so_far)
        windows.append(slots.window)
    seconds = time.thread_time() - begin
    lookups = sum(map(len, batches))
    return {
        "policy": name,
        "slots": num_slots,
        "misses_per_batch": (misses[-1] - misses[half - 1]) / (len(batches) - half),
        "ns_per_lookup": seconds / lookups * 1e9,
        "window": windows[half],
        "metadata_bytes": slots.num_bytes,
    }


def planned(slots, distinct, lookups=None) -> Iterator[int]:
    """Plans batch after batch, fed as far ahead as the map wants; yields the rows fetched so far.

    lookups: what is fed, rows of every batch with repeats; None: the distinct ones.
    """
    ahead = iter(distinct if lookups is None else lookups)
    for rows in distinct:
        while slots.wants():
            fed = next(ahead, None)
            if fed is None:
                slots.end()
            else:
                slots.feed(fed)
        slots.allocate(rows)
        yield slots.misses


def _policy(name, num_slots, num_distinct, in_flight, popular):
    kept = num_slots - min(num_slots // 2, (in_flight + 1) * num_distinct)
    return {
        "belady": lambda: Lookahead(None),
        "lookahead": lambda: Lookahead("auto"),
        "two-batch": lambda: Lookahead(2),
        "lru": lambda: Lookahead(0),
        "frequency": lambda: Frequency(),
        "hot": lambda: Hot(popular[:kept]),
    }[name]()


if __name__ == "__main__":
    main()
