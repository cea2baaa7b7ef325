"""How fast do batches arrive, next to what one would use or write otherwise?

    python -m benchmarks.loader [ARM ...] [--rows N] [--rounds R]

Rows have Criteo's shape: 13 floats, 26 ids of int32 (in as many as 100,000 rows each), a label. All
arms give batches of 8,192 with ids as int64, from files that the system has cached:

    ours-shuffled     Loader over encoded shards, shuffled, on the thread that asks
    ours-stream       the same, loaded ahead on a thread
    ours-in-order     the same without shuffling
    dataloader        torch's DataLoader over a TensorDataset in memory, two workers
    memmap-columns    a loop that indexes one memmap per column with pieces of a random permutation
    memmap-rows       the same over one memmap of ids, row-major, and one of floats
    parquet-ours      Loader over Parquet with row groups of 131,072, shuffled
    parquet-bare      pyarrow reads the same columns and row groups in order, and nothing else
    parquet-ours-1, parquet-bare-1    the same where pyarrow decodes on one thread

Arms run in turn over several rounds, each time in a process of its own; figures are medians.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median

import numpy as np
import torch

from benchmarks.harness import ROOT, conditions, write
from hotrows.batch import Batch
from hotrows.data import EncodedData, Loader, write_encoded
from hotrows.data.load.parquet import open_parquet
from hotrows.schema import Dense, Schema, Sparse

BATCH_SIZE = 8192
ROW_GROUP = 131_072
WIDTHS = (1461, 584, 100_000, 100_000, 306, 24, 12_518, 634, 4, 93_146, 5684, 100_000, 3195, 28,
          14_993, 100_000, 11, 5653, 2173, 4, 100_000, 18, 16, 100_000, 105, 100_000)  # fmt: skip
SCHEMA = Schema(
    features=(
        *(Dense(f"I{i + 1}", transform="none") for i in range(13)),
        *(Sparse(f"C{i + 1}", rows=rows) for i, rows in enumerate(WIDTHS)),
    )
)
COLUMNS = ["label", *(feature.name for feature in SCHEMA.features)]
RATIOS = (
    ("ours-shuffled", "dataloader", "at least 10"),
    ("ours-shuffled", "memmap-columns", "at least 1.5"),
    ("ours-shuffled", "memmap-rows", "at least 1.5"),
    ("parquet-ours", "parquet-bare", "at least 0.77, that is 1.3 times as long"),
    ("parquet-ours-1", "parquet-bare-1", "at least 0.77"),
)


def main() -> None:
    args = _arguments()
    if args.one:
        print(json.dumps(_measured(args.one, Path(args.folder), args.seconds)))
        return
    with tempfile.TemporaryDirectory() as folder:
        make(Path(folder), args.rows)
        rounds: dict[str, list[dict]] = {arm: [] for arm in args.arms or ARMS}
        for number in range(1, args.rounds + 1):
            for arm, seen in rounds.items():
                seen.append(_run(arm, folder, args.seconds))
                print(f"round {number}: {arm}: {seen[-1]['rows_per_s']:,.0f} rows/s", flush=True)
    figures = {
        arm: {"rows_per_s": median(one["rows_per_s"] for one in seen), "rounds": seen}
        for arm, seen in rounds.items()
    }
    ratios = _ratios(rounds)
    for arm, row in figures.items():
        print(f"{arm:16} {row['rows_per_s']:>14,.0f} rows/s")
    for name, entry in ratios.items():
        print(f"{name:34} {entry['ratio']:6.2f}   (aim: {entry['aim']})")
    if not args.quick:
        facts = {"question": "How fast do batches arrive?", "rows": args.rows}
        facts |= {"batch_size": BATCH_SIZE, "row_group": ROW_GROUP, "torch_threads": 1}
        write("loader", facts | conditions(2) | {"arms": figures, "ratios": ratios})


def make(folder: Path, rows: int) -> None:
    """The same rows in every form that an arm reads."""
    import pyarrow
    import pyarrow.parquet

    random = np.random.default_rng(0)
    dense = np.log1p(random.lognormal(2, 1.5, (rows, 13))).astype(np.float32)
    ids = np.stack([(width ** random.random(rows) - 1).astype(np.int32) for width in WIDTHS])
    labels = (random.random(rows) < 0.25).astype(np.uint8)
    batch = Batch(
        features=tuple(feature.name for feature in SCHEMA.id_features),
        ids=torch.from_numpy(ids.reshape(-1).astype(np.int64)),
        dense=torch.from_numpy(dense),
        labels=torch.from_numpy(labels.astype(np.float32)),
    )
    write_encoded(folder / "encoded", SCHEMA, {"train": [batch]})
    for f, column in enumerate(ids):
        np.save(folder / f"C{f}.npy", column)
    for f, column in enumerate(dense.T):
        np.save(folder / f"I{f}.npy", column)
    np.save(folder / "ids.npy", np.ascontiguousarray(ids.T))
    np.save(folder / "dense.npy", dense)
    np.save(folder / "labels.npy", labels)
    values = [labels.astype(np.int8), *(np.ascontiguousarray(column) for column in dense.T), *ids]
    table = pyarrow.table(dict(zip(COLUMNS, values, strict=True)))
    pyarrow.parquet.write_table(table, folder / "rows.parquet", row_group_size=ROW_GROUP)


def ours_shuffled(folder: Path) -> Iterator[int]:
    return _sizes(Loader(_encoded(folder), BATCH_SIZE, shuffle=True).batches(0))


def ours_stream(folder: Path) -> Iterator[int]:
    return _sizes(Loader(_encoded(folder), BATCH_SIZE, shuffle=True).stream(epochs=1))


def ours_in_order(folder: Path) -> Iterator[int]:
    return _sizes(Loader(_encoded(folder), BATCH_SIZE, shuffle=False).batches(0))


def dataloader(folder: Path) -> Iterator[int]:
    ids, dense, labels = (np.load(folder / f"{name}.npy") for name in ("ids", "dense", "labels"))
    tensors = (ids.astype(np.int64), dense, labels.astype(np.float32))
    data = torch.utils.data.TensorDataset(*map(torch.from_numpy, tensors))
    loader = torch.utils.data.DataLoader(data, BATCH_SIZE, shuffle=True, num_workers=2)
    for of_ids, _, _ in loader:
        yield len(of_ids)


def memmap_columns(folder: Path) -> Iterator[int]:
    ids = [np.load(folder / f"C{f}.npy", mmap_mode="r") for f in range(26)]
    dense = [np.load(folder / f"I{f}.npy", mmap_mode="r") for f in range(13)]
    labels = np.load(folder / "labels.npy", mmap_mode="r")
    for index in _random_batches(len(labels)):
        of_ids = np.empty((26, len(index)), np.int64)
        of_dense = np.empty((len(index), 13), np.float32)
        for f, column in enumerate(ids):
            of_ids[f] = column[index]
        for f, column in enumerate(dense):
            of_dense[:, f] = column[index]
        yield len(_tensors(of_ids, of_dense, labels[index].astype(np.float32))[2])


def memmap_rows(folder: Path) -> Iterator[int]:
    ids, dense, labels = (
        np.load(folder / f"{name}.npy", mmap_mode="r") for name in ("ids", "dense", "labels")
    )
    for index in _random_batches(len(labels)):
        arrays = (ids[index].astype(np.int64), dense[index], labels[index].astype(np.float32))
        yield len(_tensors(*arrays)[2])


def parquet_ours(folder: Path, threads: int = 2) -> Iterator[int]:
    _decode_on(threads)
    data = open_parquet(SCHEMA, folder / "rows.parquet")
    return _sizes(Loader(data.parts["train"], BATCH_SIZE, shuffle=True).batches(0))


def parquet_bare(folder: Path, threads: int = 2) -> Iterator[int]:
    import pyarrow.parquet

    _decode_on(threads)
    file = pyarrow.parquet.ParquetFile(folder / "rows.parquet")
    for group in range(file.num_row_groups):
        yield file.read_row_group(group, columns=COLUMNS).num_rows


ARMS: dict[str, Callable[[Path], Iterator[int]]] = {
    "ours-shuffled": ours_shuffled,
    "ours-stream": ours_stream,
    "ours-in-order": ours_in_order,
    "dataloader": dataloader,
    "memmap-columns": memmap_columns,
    "memmap-rows": memmap_rows,
    "parquet-ours": parquet_ours,
    "parquet-bare": parquet_bare,
    "parquet-ours-1": lambda folder: parquet_ours(folder, 1),
    "parquet-bare-1": lambda folder: parquet_bare(folder, 1),
}


def _measured(arm: str, folder: Path, seconds: float) -> dict:
    """Epochs until the time is over; the first, which warms caches, is not counted."""
    torch.set_num_threads(1)
    for _ in _until(ARMS[arm](folder), time.perf_counter() + seconds):
        pass
    begin, rows = time.perf_counter(), 0
    while time.perf_counter() < begin + seconds:
        rows += sum(_until(ARMS[arm](folder), begin + seconds))
    return {"rows_per_s": rows / (time.perf_counter() - begin), "rows": rows}


def _until(sizes: Iterator[int], end: float) -> Iterator[int]:
    """What comes before the time is over."""
    for size in sizes:
        yield size
        if time.perf_counter() > end:
            return


def _encoded(folder: Path):
    return EncodedData.open(folder / "encoded").parts["train"]


def _sizes(batches: Iterator[Batch]) -> Iterator[int]:
    return (batch.size for batch in batches)


def _random_batches(rows: int) -> Iterator[np.ndarray]:
    order = np.random.default_rng(0).permutation(rows)
    return (order[first : first + BATCH_SIZE] for first in range(0, rows, BATCH_SIZE))


def _tensors(*arrays: np.ndarray) -> list[torch.Tensor]:
    return [torch.from_numpy(array) for array in arrays]


def _decode_on(threads: int) -> None:
    import pyarrow

    pyarrow.set_cpu_count(threads)


def _run(arm: str, folder: str, seconds: float) -> dict:
    command = ["-m", "benchmarks.loader", "--one", arm, "--folder", folder]
    done = subprocess.run(
        [sys.executable, *command, "--seconds", str(seconds)],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return json.loads(done.stdout.splitlines()[-1])


def _ratios(rounds: dict[str, list[dict]]) -> dict[str, dict]:
    """The median over the rounds of how much faster one arm was than another of the same round."""
    ratios_found = {}
    for one, other, aim in RATIOS:
        if one in rounds and other in rounds:
            pairs = zip(rounds[one], rounds[other], strict=True)
            ratio = median(a["rows_per_s"] / b["rows_per_s"] for a, b in pairs)
            ratios_found[f"{one} / {other}"] = {"ratio": ratio, "aim": aim}
    return ratios_found


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="How fast do batches arrive?")
    parser.add_argument("arms", nargs="*", metavar="ARM", help=", ".join(ARMS))
    parser.add_argument("--rows", type=int, default=4_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0, help="per arm and round")
    parser.add_argument("--quick", action="store_true", help="one round; nothing is written")
    parser.add_argument("--one", choices=ARMS, help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if unknown := set(args.arms) - set(ARMS):
        parser.error(f"no arm {sorted(unknown)}; there are {', '.join(ARMS)}")
    args.rounds = 1 if args.quick else args.rounds
    return args


if __name__ == "__main__":
    main()
