"""How long does a request take where tables are ten times as large as the memory of the process?

    python -m benchmarks.serving_tenfold make FOLDER [MODEL ...]       the bundles, once; minutes
    python -m benchmarks.serving_tenfold measure FOLDER [MODEL ...]    memory cgroups: as root, on Linux

Tables have the rows of Criteo Kaggle's 26 fields (DIN: as many items), divided by --scale, dim 16,
float32; DeepFM and DLRM read 13 numbers and 26 ids, DIN a user, an item and a history of 50. A request
is one user and 500 candidates: half of the columns are the user's, for DIN all but the item. Values are
drawn by Zipf's law. `prepare` gives frequent ones the first rows, up to --known of each column; all
others are hashed to the rest of the rows. A process on one core, without PyTorch, whose memory with its
page cache is limited to a tenth of the tables, scores requests that it has not seen: once as ever, and
once where pages are not read ahead of their use. They come from the disk of this machine, whose random
reads of 4 KiB are measured first.
"""

import argparse
import dataclasses
import json
import os
import resource
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np

from benchmarks.memory_limit import MemoryLimit
from benchmarks.serving import CANDIDATES
from benchmarks.workload import CRITEO_KAGGLE

MODELS = ("deepfm", "dlrm", "din")
SKEWS = (1.05, 1.2)
PAST = 100  # elements of DIN's history
SHAPES = {"din": f"din-{PAST}"}  # names of benchmarks.serving
WARM, REQUESTS = 40, 100
SHARE = 10  # tables to memory
CHUNK = 1 << 18


def sizes_of(model: str, scale: int) -> tuple[int, ...]:
    if model == "din":
        return (50_000 // scale, sum(CRITEO_KAGGLE) // scale)
    return tuple(max(size // scale, 3) for size in CRITEO_KAGGLE)


def drawn(random: np.random.Generator, size: int, count: int, skew: float) -> np.ndarray:
    """Numbers below `size` by Zipf's law, the smallest most often."""
    points = random.random(count)
    power = (1 - points * (1 - (size + 1.0) ** (1 - skew))) ** (1 / (1 - skew))
    return np.minimum(power.astype(np.int64) - 1, size - 1)


def make(folder: Path, scale: int, known: int, chosen: list[str]) -> None:
    import hotrows
    from benchmarks.serving import schema_of, shared_of
    from hotrows.data import EncodedData
    from hotrows.optim import SGD
    from hotrows.serving.export.whole import export

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "scale.json").write_text(json.dumps({"scale": scale, "known": known}))
    for data_of, models in (("deepfm", ("deepfm", "dlrm")), ("din", ("din",))):
        raw, enc = folder / f"{data_of}.parquet", folder / f"{data_of}-enc"
        models = tuple(model for model in models if model in (chosen or MODELS))
        if models and not enc.exists():
            write_rows(raw, data_of, scale, known)
            schema = with_hashed(schema_of(SHAPES.get(data_of, data_of)), data_of, scale, known)
            hotrows.prepare([raw], schema, enc, split="position:0.999")
            raw.unlink()
        for model in models:
            if (folder / model).exists():
                continue
            config = hotrows.TrainConfig(
                model=model, steps=20, batch_size=1024, row_optimizer=SGD(lr=0.1), linear_paths="plain"
            )
            run = folder / f"{model}-run"
            hotrows.Trainer(EncodedData.open(enc), config, run).fit()
            export(run, folder / model, format="onnx", shared=shared_of(SHAPES.get(model, model)))
            subprocess.run(["rm", "-r", str(run)], check=True)
            print(model, "made", flush=True)


def with_hashed(schema, model: str, scale: int, known: int):
    """A schema whose columns hash the values that `prepare` does not see to rows of their own."""
    sizes = sizes_of(model, scale)
    by_name = dict(zip(("user", "item"), sizes, strict=True)) if model == "din" else {}
    by_name |= {} if model == "din" else {f"C{n}": size for n, size in enumerate(sizes)}
    by_name |= {"history": by_name["item"]} if model == "din" else {}
    features = [
        dataclasses.replace(f, num_unknown=max(by_name[f.name] - known, 1)) if f.name in by_name else f
        for f in schema.features
    ]
    return dataclasses.replace(schema, features=tuple(features))


def write_rows(path: Path, model: str, scale: int, known: int) -> None:
    """Rows in which every known value is there once, and frequent ones more often."""
    import pyarrow as pa
    from pyarrow import parquet

    random, writer = np.random.default_rng(0), None
    sizes = tuple(min(size, known) for size in sizes_of(model, scale))
    largest = sizes[1] // PAST if model == "din" else max(sizes)
    num_rows = largest + largest // 8
    for first in range(0, num_rows, CHUNK):
        count = min(CHUNK, num_rows - first)
        columns = {"click": (random.random(count) < 0.25).astype(np.int8)}
        if model == "din":
            history = values(random, sizes[1], first * PAST, count * PAST)
            offsets = np.arange(count + 1, dtype=np.int32) * PAST
            columns |= {
                "age": random.normal(40, 9, count),
                "user": values(random, sizes[0], first, count),
                "item": drawn(random, sizes[1], count, SKEWS[0]),
                "history": pa.ListArray.from_arrays(offsets, pa.array(history)),
            }
        else:
            columns |= {f"I{n}": random.exponential(3, count).round(2) for n in range(13)}
            columns |= {f"C{n}": values(random, size, first, count) for n, size in enumerate(sizes)}
        table = pa.table(columns)
        writer = writer or parquet.ParquetWriter(path, table.schema)
        writer.write_table(table)
    assert writer is not None
    writer.close()


def values(random: np.random.Generator, size: int, first: int, count: int) -> np.ndarray:
    """The values of some rows of a column: each once, in turn, then by Zipf's law."""
    once = np.arange(first, min(first + count, size))
    return np.concatenate([once, drawn(random, size, count - len(once), SKEWS[0])])


def measure(folder: Path, chosen: list[str]) -> None:
    from benchmarks.harness import conditions, stored, write

    made, earlier = json.loads((folder / "scale.json").read_text()), stored("serving_tenfold")
    result = earlier["figures"] if earlier.items() >= made.items() else {}
    files = (folder / (chosen or MODELS)[0] / "tables").iterdir()
    result["disk"] = disk(max(files, key=lambda file: file.stat().st_size))
    print(result["disk"], flush=True)
    sizes = {"candidates": CANDIDATES, "past": PAST, "requests": REQUESTS, "warm_up": WARM, **made}
    for model in chosen or MODELS:
        size = sum(file.stat().st_size for file in (folder / model / "tables").iterdir())
        others = sum(file.stat().st_size for file in (folder / model / "encoders").rglob("*.*"))
        limit = size // SHARE
        result[model] = {"table_bytes": size, "encoder_bytes": others, "memory_limit": limit}
        for skew, ahead in ((SKEWS[0], True), (SKEWS[0], False), (SKEWS[1], True)):
            name = f"Zipf {skew}" + ("" if ahead else ", nothing read ahead")
            result[model][name] = figures = score_within(limit, model, folder, skew, ahead)
            print(model, name, json.dumps(figures), flush=True)
            write("serving_tenfold", {**sizes, "figures": result, **conditions(1)})


def score_within(limit: int, model: str, folder: Path, skew: float, ahead: bool) -> dict:
    """The figures of a process of its own, within so many bytes."""
    group = MemoryLimit("serving", limit)
    how = [str(folder), model, str(skew), *(["ahead"] if ahead else [])]
    command = [sys.executable, "-m", "benchmarks.serving_tenfold", "score", *how]
    done = subprocess.run(command, capture_output=True, text=True, preexec_fn=group.enter)
    if done.returncode:
        return {"error": (done.stderr.strip().splitlines() or [f"exit {done.returncode}"])[-1]}
    return json.loads(done.stdout) | {"limited_by_cgroup": group.holds}


def disk(path: Path, seconds: float = 1.5) -> dict:
    """Random reads of 4 KiB from a large file, past the page cache: by one thread, and by 32."""
    os.sync()
    figures = {}
    for threads in (1, 32):
        with open(path, "rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
            pages, counts = path.stat().st_size >> 12, []
            end = time.monotonic() + seconds

            def read(seed: int, number: int = file.fileno(), pages=pages, counts=counts, end=end) -> None:
                random, count = np.random.default_rng(seed), 0
                while time.monotonic() < end:
                    os.pread(number, 4096, int(random.integers(pages)) << 12)
                    count += 1
                counts.append(count)

            readers = [threading.Thread(target=read, args=(seed,)) for seed in range(threads)]
            for reader in readers:
                reader.start()
            for reader in readers:
                reader.join()
        figures[f"reads_per_second_{threads}"] = round(sum(counts) / seconds)
    return figures


def score(folder: Path, model: str, skew: float, ahead: bool) -> None:
    """In a process of its own: the times of a bundle, as JSON. ahead: read pages ahead of their use."""
    sys.modules["torch"] = None  # type: ignore[assignment]
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    begin = time.perf_counter()
    from hotrows.serving import Scorer

    scorer = Scorer(folder / model, memory=0)
    opened = time.perf_counter() - begin
    for table in () if ahead else scorer.version.tables.values():
        table.read_ahead = lambda ids: None  # type: ignore[method-assign]
    scale = json.loads((folder / "scale.json").read_text())["scale"]
    random, seconds, cpu = np.random.default_rng(1), [], []
    faults = 0
    for number in range(WARM + REQUESTS):
        rows, shared = request_of(model, random, sizes_of(model, scale), skew)
        if number == WARM:
            faults = resource.getrusage(resource.RUSAGE_SELF).ru_majflt
        now, used = time.perf_counter(), time.thread_time()
        scorer.score(rows, shared)
        seconds.append(time.perf_counter() - now)
        cpu.append(time.thread_time() - used)
        if number == 0:
            first = opened + seconds[0]
    usage = resource.getrusage(resource.RUSAGE_SELF)
    figures = {
        "import_and_first_score_s": round(first, 3),
        **{f"p{q}_ms": round(1e3 * float(np.percentile(seconds[WARM:], q)), 2) for q in (50, 90, 99)},
        "p50_cpu_ms": round(1e3 * float(np.median(cpu[WARM:])), 2),
        "major_faults_per_request": round((usage.ru_majflt - faults) / REQUESTS, 1),
        "peak_memory_mib": usage.ru_maxrss >> 10,
    }
    print(json.dumps(figures))


def request_of(model: str, random: np.random.Generator, sizes: tuple[int, ...], skew: float):
    """Candidates as an Arrow table, and what is shared: of Criteo's shape every other column."""
    import pyarrow as pa

    if model == "din":
        past = drawn(random, sizes[1], PAST, skew).tolist()
        shared = {"age": 37.0, "user": int(drawn(random, sizes[0], 1, skew)[0]), "history": past}
        return pa.table({"item": drawn(random, sizes[1], CANDIDATES, skew)}), shared
    columns = {f"I{n}": random.exponential(3, CANDIDATES).round(2) for n in range(13)}
    columns |= {f"C{n}": drawn(random, size, CANDIDATES, skew) for n, size in enumerate(sizes)}
    names = list(columns)[::2]
    shared = {name: columns.pop(name)[0].item() for name in names}
    return pa.table(columns), shared


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("make", "measure", "score"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("rest", nargs="*")
    parser.add_argument("--scale", type=int, default=1, help="Rows are divided by it.")
    parser.add_argument("--known", type=int, default=200_000, help="Values of a column in the data.")
    given = parser.parse_args()
    if given.what == "score":
        score(given.folder, given.rest[0], float(given.rest[1]), given.rest[2:] == ["ahead"])
    elif given.what == "make":
        make(given.folder, given.scale, given.known, given.rest)
    else:
        measure(given.folder, given.rest)


if __name__ == "__main__":
    main()
