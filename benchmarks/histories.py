"""What does it save to store the events of users once, in place of a list in each sample?

    python -m benchmarks.histories             bytes of shards, events/s of `prepare`, samples/s
    python -m benchmarks.histories --quick     a hundredth of the data; nothing is written
    python -m benchmarks.histories --ray       `prepare` in a process, and on a cluster of Ray

Both arms have the same samples in the same order, and their batches are compared bit by bit. The loader
runs on one thread, window by window in turn. Preparation runs in a process of its own, within 2 GiB of
memory, page cache included, where this machine lets us set limits.
"""

import argparse
import filecmp
import importlib.metadata
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import torch

from benchmarks.harness import conditions, write
from benchmarks.memory_limit import MemoryLimit
from hotrows import Schema, Sequence, Sparse, Time, prepare
from hotrows.data import EncodedData, Loader

QUESTION = __doc__.split("\n")[0]
EVENTS, ITEMS, BATCH_SIZE = (10_000_000, 100_000_000), 200_000, 4096
WINDOWS, LIMIT = 5, 2 << 30
START = 1_700_000_000  # of the times
PREPARED = """
import json, re, sys, time
from benchmarks.histories import rows_of, schema
from hotrows import prepare
folder, arm = sys.argv[1:]
(samples, events), begin = rows_of(folder, arm), time.perf_counter()
prepare(samples, schema(100), f"{folder}/{arm}", events=events)
peak = int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]) << 10
seconds, spent = time.perf_counter() - begin, time.process_time()
print(json.dumps({"seconds": seconds, "seconds_of_cores": spent, "peak_bytes": peak}))
"""


def schema(length: int, by_reference: bool = True) -> Schema:
    """An item and the history of the user, of so many events."""
    column = "item" if by_reference else None
    history = Sequence("history", column, vocabulary="item", max_length=length)
    events = {"user": "user", "histories": ("history",)} if by_reference else {}
    return Schema((Sparse("user"), Sparse("item"), history), label="click", time=Time("at"), **events)


def drawn_items(random: np.random.Generator, size: int) -> np.ndarray:
    return random.zipf(1.2, size) % ITEMS


def rows_of(folder: str, arm: str) -> list:
    """Samples and events: files, or datasets of a cluster of Ray that runs on this machine."""
    files = [f"{folder}/{name}.parquet" for name in ("samples", "events")]
    if arm == "process":
        return files
    import ray.data

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    ray.data.DataContext.get_current().use_datasource_v2 = False  # which keeps no order of files
    return [ray.data.read_parquet(file) for file in files]


def write_rows(folder: Path, events: int, samples: int) -> None:
    """Events in order of time, a hundred of each user on average."""
    random = np.random.default_rng(0)
    for name, rows in (("events", events), ("samples", samples)):
        columns = {
            "user": random.integers(0, events // 100, rows),
            "at": START + np.sort(random.integers(0, 10_000_000, rows)),
            "item": drawn_items(random, rows),
            "click": random.integers(0, 2, rows),
        }
        pa.parquet.write_table(pa.table(columns), folder / f"{name}.parquet")
        del columns


def prepared_in(folder: Path, arm: str, **how: Any) -> dict:
    """Figures of a preparation in a process of its own."""
    command = [sys.executable, "-c", PREPARED, str(folder), arm]
    done = subprocess.run(command, capture_output=True, text=True, check=True, **how)
    return json.loads(done.stdout.splitlines()[-1])


def measured_preparation(folder: Path, events: int) -> dict:
    """A sample for every tenth event."""
    write_rows(folder, events, events // 10)
    group = MemoryLimit("histories", LIMIT)
    result = prepared_in(folder, "process", preexec_fn=group.enter)
    shutil.rmtree(folder / "process")
    return {
        "events": events,
        "samples": events // 10,
        "limit": LIMIT if group.holds else None,
        "events_per_s": events / result["seconds"],
        "events_per_s_of_a_core": events / result["seconds_of_cores"],
        **result,
    }


def both(folder: Path, length: int, users: int, samples_per_user: int) -> dict[str, EncodedData]:
    """Data of full histories: users have twice as many events, and samples are after the first half."""
    random = np.random.default_rng(length)
    per_user = 2 * length
    items = drawn_items(random, users * per_user)
    user = random.permutation(np.repeat(np.arange(users), samples_per_user))
    place = random.integers(length, per_user, len(user))
    events = {
        "user": np.repeat(np.arange(users), per_user),
        "at": START + np.tile(np.arange(per_user), users),
        "item": items,
    }
    samples = {
        "user": user,
        "at": START + place,
        "item": drawn_items(random, len(user)),
        "click": random.integers(0, 2, len(user)),
    }
    first = user * per_user + place - length
    values = items[(first[:, None] + np.arange(length)).reshape(-1)]
    ends = np.arange(0, len(values) + 1, length, dtype=np.int32)
    lists = {"history": pa.ListArray.from_arrays(pa.array(ends), pa.array(values))}
    how = {"split": "fraction:1,0,0"}
    return {
        "once": prepare(samples, schema(length), folder / "once", events=events, **how),
        "copied": prepare(pa.table(samples | lists), schema(length, False), folder / "copied", **how),
    }


def shard_bytes(data: EncodedData) -> int:
    return sum(path.stat().st_size for path in data.path.glob("*.shard"))


def seconds_of(data: EncodedData, epoch: int, clock: Callable[[], float], shuffle: bool) -> float:
    begin = clock()
    for _ in Loader(data.parts["train"], BATCH_SIZE, shuffle=shuffle, seed=1).batches(epoch):
        pass
    return clock() - begin


def measured_loading(arms: dict[str, EncodedData]) -> dict:
    """Samples/s of a core, by its seconds, which other programs do not lengthen."""
    for shuffle in (False, True):
        loaders = (
            Loader(arm.parts["train"], BATCH_SIZE, shuffle=shuffle).batches(0) for arm in arms.values()
        )
        for one, other in zip(*loaders, strict=True):
            assert torch.equal(one.ids, other.ids) and torch.equal(one.offsets, other.offsets)
    rows, result = arms["once"].parts["train"].rows, {}
    for order, shuffle in (("in order", False), ("shuffled", True)):
        seconds: dict[str, list[float]] = {name: [] for name in arms}
        for epoch in range(1 + WINDOWS):
            for name, data in arms.items():
                seconds[name].append(seconds_of(data, epoch, time.process_time, shuffle))
        result[order] = {name: rows / median(spent[1:]) for name, spent in seconds.items()}
    return result


def sizes_of(arms: dict[str, EncodedData]) -> dict:
    num = {name: shard_bytes(data) for name, data in arms.items()}
    return {
        "samples": arms["once"].parts["train"].rows,
        "bytes": num,
        "times_smaller": num["copied"] / num["once"],
    }


def compare_with_ray(rounds: int = 3) -> None:
    size = {"events": 1_000_000, "samples": 200_000}
    arms: dict[str, list[dict]] = {"process": [], "ray": []}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_rows(folder, **size)
        for _ in range(rounds):
            for arm, figures in arms.items():
                figures.append(prepared_in(folder, arm))
            files = sorted(path.name for path in (folder / "process").iterdir())
            _, different, absent = filecmp.cmpfiles(folder / "process", folder / "ray", files, False)
            assert not different and not absent, (different, absent)
            for arm in arms:
                shutil.rmtree(folder / arm)
    ratio = median(a["seconds"] / b["seconds"] for a, b in zip(*arms.values(), strict=True))
    facts = {"question": QUESTION, **size, "ray": importlib.metadata.version("ray")}
    write("histories-ray", facts | conditions(2) | {"ray_over_process": ratio, "arms": arms})
    print(json.dumps(arms, indent=1), f"Ray has {ratio:.2f}x the speed of one process")


def main() -> None:
    parser = argparse.ArgumentParser(description=QUESTION)
    parser.add_argument(
        "--quick", action="store_true", help="a hundredth of the data; nothing is written"
    )
    parser.add_argument("--ray", action="store_true", help="one process and a cluster of Ray")
    args = parser.parse_args()
    if args.ray:
        compare_with_ray()
        return
    quick, measured_on = args.quick, conditions(1)
    torch.set_num_threads(1)
    users = 100 if quick else 10_000
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        cases = {
            "100 events, 20 samples of a user": (100, users, 20),
            "1,000 events, 20 samples of a user": (1000, users // 100, 20),
            "1,000 events, 1,000 samples of a user": (1000, max(users // 500, 2), 1000),
        }
        sizes: dict[str, dict] = {}
        loading: dict[str, dict] = {}
        for number, (case, shape) in enumerate(cases.items()):
            (folder / str(number)).mkdir()
            arms = both(folder / str(number), *shape)
            sizes[case] = sizes_of(arms)
            if number == 0:
                loading = measured_loading(arms)
        preparation = {
            f"{events // 10**6} million events": measured_preparation(
                folder, events // (100 if quick else 1)
            )
            for events in EVENTS
        }
    result = {
        "question": QUESTION,
        **measured_on,
        "shards": sizes,
        "loader_samples_per_s_of_a_core": loading,
        "preparation": preparation,
    }
    print(json.dumps(result, indent=1))
    if not quick:
        write("histories", result)


if __name__ == "__main__":
    main()
