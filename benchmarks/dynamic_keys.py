"""What does a key table cost: a lookup, a byte, a pause?

    python -m benchmarks.dynamic_keys [--keys 1000000 4000000 33800000] [--headers FOLDER]

The native key table of each policy, and maps of others in front of nothing: they look up and insert, keep
no use, evict nothing and cannot be undone. Batches of 8,192 keys, one thread; nanoseconds of the thread's
own time a lookup, of the median batch where nothing is new, else the mean.

    insert  new keys, from none to as many as there are
    hit     live keys, drawn evenly
    zipf    live keys by Zipf 1.05
    mixed   of a full table: 95 % by Zipf, 5 % new keys, each of which evicts one (policies that evict)
    bytes   a live key, the key included; of maps at the end, and at most while they grew
    pause   longest batch while keys are inserted, milliseconds; `usual_pause`: of 99 in 100

Each arm gets memory that this process had before: what a virtual machine gets from its host for the first
time takes milliseconds for 2 MiB.

std::unordered_map and ska::flat_hash_map, which comes with PyTorch, are always there;
ankerl::unordered_dense where --headers has ankerl/unordered_dense.h. With --keys of more than one size
each is measured in the process before the next.
"""

import argparse
import ctypes
import os
import subprocess
import tempfile
import time
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np
import torch
from torch.utils.cpp_extension import include_paths

from benchmarks.harness import conditions, write
from hotrows.dynamic import Dynamic
from hotrows.engine.keys.table import KeyTable

BATCH, LOOKUPS = 8192, 200 * 8192
MAPS = ("std::unordered_map", "ska::flat_hash_map", "ankerl::map", "ankerl::segmented_map")
HKV = {  # billions of keys a second, 1,048,576 a call: github.com/NVIDIA-Merlin/HierarchicalKV, README
    "gpu": "NVIDIA A100-SXM4-80GB",
    "dim 64, 67 M rows, load 0.75, all in HBM": {"insert": 0.767, "find": 0.823},
    "dim 64, 134 M rows, load 0.75, half in host memory": {"insert": 0.106, "find": 0.101},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--keys", type=int, nargs="+", default=[1_000_000, 4_000_000, 33_800_000])
    parser.add_argument("--headers", type=Path, help="folder with ankerl/unordered_dense.h")
    parser.add_argument("--only", nargs="+", help="names of arms (default: all)")
    args = parser.parse_args()
    torch.set_num_threads(1)
    library = _build(args.headers)
    figures: dict[str, dict] = {}
    for num_keys in args.keys:
        figures[f"{num_keys:,}"] = measured = {}
        for name, make in _arms(library, num_keys).items():
            if args.only and name not in args.only:
                continue
            measured[name] = _measure(make(), num_keys)
            shown = "  ".join(f"{what} {value:,.1f}" for what, value in measured[name].items())
            print(f"{num_keys:>11,}  {name:<22} {shown}", flush=True)
        setting = {"batch": BATCH, "lookups": LOOKUPS, "load_average": os.getloadavg()}
        facts = {"setting": setting, "published_elsewhere": {"HierarchicalKV": HKV}}
        write("dynamic-keys", {**conditions(1), **facts, "ns_per_lookup": figures})


def _arms(library, num_keys: int) -> dict:
    policies = {
        "none": Dynamic(),
        "lru": Dynamic(capacity=num_keys, evict="lru"),
        "lfu": Dynamic(capacity=num_keys, evict="lfu:1000"),
        "ahead": Dynamic(capacity=num_keys, evict="ahead", window=16),
        "idle": Dynamic(evict="idle:1000000"),
    }
    arms = {
        f"hotrows {name}": lambda dynamic=dynamic: _Ours(dynamic) for name, dynamic in policies.items()
    }
    for kind, name in enumerate(MAPS):
        arms[name] = partial(_Map, library, kind)
    return arms


class _Ours:
    def __init__(self, dynamic: Dynamic) -> None:
        self.table = KeyTable(dynamic)
        self.evicts = dynamic.capacity is not None
        self.window = dynamic.batches_ahead

    def resolve(self, keys) -> None:
        """Resolves a batch that is known as long ahead as the table wants."""
        self.table.resolve(keys)
        self.table.trained()

    def num_bytes(self) -> int:
        return self.table.num_bytes


class _Map:
    evicts, window = False, 0

    def __init__(self, library, kind: int) -> None:
        self.library = library
        self.map = ctypes.c_void_p(library.map_new(ctypes.c_int64(kind)))
        self.ids = torch.empty(BATCH, dtype=torch.int64)
        self.is_there = self.map.value is not None

    def resolve(self, keys) -> None:
        pointers = [ctypes.c_void_p(part.data_ptr()) for part in (keys, self.ids)]
        self.library.map_resolve(self.map, pointers[0], ctypes.c_int64(keys.numel()), pointers[1])

    def num_bytes(self) -> int:
        return self.library.map_num_bytes()

    def __del__(self) -> None:
        self.library.map_free(self.map)


def _measure(arm, num_keys: int) -> dict[str, float]:
    if isinstance(arm, _Map) and not arm.is_there:
        return {}
    np.ones(12 * num_keys, np.int32)  # touched and given back
    keys = _scattered(np.arange(num_keys))
    keys = keys[: len(keys) // BATCH * BATCH]
    figures, most = {}, 0.0
    times = []
    for begin in range(0, len(keys), BATCH):
        times.append(_timed(arm, [keys[begin : begin + BATCH]])[0])
        if begin // BATCH % 64 == 0 and begin > len(keys) // 4:
            most = max(most, arm.num_bytes() / (begin + BATCH))
    figures["insert"] = sum(times) / len(keys)
    figures["pause"], figures["usual_pause"] = max(times) / 1e6, np.percentile(times, 99) / 1e6
    generator = np.random.default_rng(3)
    drawn = generator.integers(0, len(keys), LOOKUPS)
    popular = _zipf(generator.random(LOOKUPS), len(keys))
    figures["hit"] = median(_timed(arm, _batches(keys[drawn]))) / BATCH
    figures["zipf"] = median(_timed(arm, _batches(keys[popular]))) / BATCH
    figures["bytes"] = arm.num_bytes() / len(keys)
    figures["most_bytes"] = max(most, figures["bytes"])
    if arm.evicts:
        mixed = keys[popular].copy()
        new = generator.random(LOOKUPS) < 0.05
        mixed[new] = _scattered(np.arange(new.sum()) + num_keys)
        times = _timed(arm, _batches(mixed))
        figures["mixed"] = sum(times) / LOOKUPS
        figures["mixed_pause"] = max(times) / 1e6
    return {name: round(value, 2) for name, value in figures.items()}


def _batches(keys) -> list:
    return [keys[begin : begin + BATCH] for begin in range(0, len(keys), BATCH)]


def _timed(arm, batches: list) -> list[int]:
    """Nanoseconds of the thread's own time for each batch, feeding included."""
    batches = [torch.from_numpy(np.ascontiguousarray(batch)) for batch in batches]
    left, times = iter(batches), []
    for batch in batches:
        start = time.thread_time_ns()
        while arm.window and (arm.table.wants() or arm.table.num_fed == arm.table.num_resolved):
            ahead = next(left, None)
            arm.table.end() if ahead is None else arm.table.feed(ahead)
        arm.resolve(batch)
        times.append(time.thread_time_ns() - start)
    return times


def _zipf(uniform, num_keys: int, exponent: float = 1.05) -> np.ndarray:
    """Ranks from 0, by Zipf up to num_keys: the inverse of its continuous form."""
    power = 1 - exponent
    ranks = ((num_keys**power - 1) * uniform + 1) ** (1 / power)
    return np.clip(ranks.astype(np.int64) - 1, 0, num_keys - 1)


def _scattered(numbers) -> np.ndarray:
    """Distinct int64 that look random: what a hash of text would be."""
    x = numbers.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    return ((x ^ (x >> np.uint64(32))) * np.uint64(0xD6E8FEB86659FD93)).view(np.int64)


def _build(headers: Path | None):
    """The maps of others, compiled as the native core is."""
    folders = [*include_paths(), *([headers] if headers else [])]
    target = Path(tempfile.mkdtemp()) / "maps.so"
    source = Path(__file__).parent / "arms" / "maps.cpp"
    flags = [
        "-std=c++17",
        "-O3",
        "-march=native",
        "-fPIC",
        "-shared",
        *(f"-I{folder}" for folder in folders),
    ]
    subprocess.run([os.environ.get("CXX", "g++"), *flags, str(source), "-o", str(target)], check=True)
    library = ctypes.CDLL(str(target))
    library.map_new.restype = ctypes.c_void_p
    library.map_num_bytes.restype = ctypes.c_int64
    return library


if __name__ == "__main__":
    main()
