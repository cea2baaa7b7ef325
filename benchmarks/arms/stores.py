"""One way of keeping records on disk, for `benchmarks.stores`: numpy and the package of the store."""

import json
import mmap
import os
import sqlite3
import sys
import time
from pathlib import Path

import numpy as np

CHECKPOINT_EVERY = 25  # rounds
BULK = 1 << 16  # rows written at once while a table is filled


def main() -> None:
    setting = json.loads(sys.argv[1])
    folder = Path(setting["folder"])
    store = STORES[setting["arm"]](folder, setting["rows"], setting["stride"], setting["fill"])
    figures = fill(store, setting) if setting["fill"] else rounds(store, setting)
    store.close()
    size = sum(file.stat().st_blocks * 512 for file in folder.rglob("*") if file.is_file())
    print(json.dumps(figures | {"disk_gb": size / 1e9}))


def fill(store, setting: dict) -> dict:
    begin = time.perf_counter()
    records = np.random.default_rng(0).integers(0, 256, (BULK, setting["stride"]), dtype=np.uint8)
    for first in range(0, setting["rows"], BULK):
        rows = np.arange(first, min(first + BULK, setting["rows"]))
        store.write(rows, records[: rows.size])
    store.checkpoint()
    return {"seconds": time.perf_counter() - begin}


def rounds(store, setting: dict) -> dict:
    """Rounds for some seconds, after a warm-up of a fifth of them; seconds and their sums by kind."""
    chance, count = np.random.default_rng(1), setting["per_round"]
    pending: list[tuple[np.ndarray, np.ndarray]] = []
    spent = {"read": [], "write": [], "checkpoint": []}
    end, warm, number = time.perf_counter() + setting["seconds"], setting["seconds"] / 5, 0
    begin, cpu = time.perf_counter(), time.process_time()
    is_warm = False
    while time.perf_counter() < end:
        if not is_warm and time.perf_counter() > begin + warm:
            is_warm, spent = True, {"read": [], "write": [], "checkpoint": []}
            begin, cpu = time.perf_counter(), time.process_time()
        rows = np.unique(chance.integers(0, setting["rows"], count + count // 50))[:count]
        records = timed(spent["read"], lambda rows=rows: store.read(rows))
        assert records.shape == (rows.size, setting["stride"])
        pending.append((rows, records ^ np.uint8(1)))
        if len(pending) > 8:  # evicted some batches later
            timed(spent["write"], lambda: store.write(*pending.pop(0)))
        number += 1
        if number % CHECKPOINT_EVERY == 0:
            timed(spent["checkpoint"], store.checkpoint)
    seconds, cpu = time.perf_counter() - begin, time.process_time() - cpu
    num = len(spent["read"]) * count
    of_round = np.array(spent["read"][: len(spent["write"])]) + np.array(spent["write"])
    return {
        "rounds": len(spent["read"]),
        "rows_per_s": num / seconds,
        "read_us": 1e6 * float(np.median(spent["read"])) / count,
        "write_us": 1e6 * float(np.median(spent["write"])) / count,
        "cpu_us": 1e6 * cpu / num,
        "checkpoint_ms": 1e3 * float(np.median(spent["checkpoint"])) if spent["checkpoint"] else None,
        "slowest_round_ms": 1e3 * float(max(of_round.max(), *spent["checkpoint"], 0)),
    }


def timed(seconds: list[float], call):
    begin = time.perf_counter()
    result = call()
    seconds.append(time.perf_counter() - begin)
    return result


class HotrowsStore:
    def __init__(self, folder: Path, rows: int, stride: int, new: bool) -> None:
        import torch

        from hotrows.storage.file_store import FileStore

        self._torch, self._stride = torch, stride
        arguments = (folder, rows, stride, lambda rows, out: out.zero_(), {})
        if new:
            folder.parent.mkdir(parents=True, exist_ok=True)
            self._store = FileStore.create(*arguments)
        else:
            self._store = FileStore.open(*arguments)
            self._store.restore(max(self._store.generations))

    def read(self, rows):
        out = self._torch.empty(rows.size, self._stride, dtype=self._torch.uint8)
        self._store.read(self._torch.from_numpy(rows), out)
        return out.numpy()

    def write(self, rows, records) -> None:
        self._store.write(self._torch.from_numpy(rows), self._torch.from_numpy(records))

    def checkpoint(self) -> None:
        self._store.retain([self._store.checkpoint()])

    def close(self) -> None:
        self._store.close()


class MappedStore:
    def __init__(self, folder: Path, rows: int, stride: int, new: bool) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        mode = "w+" if new else "r+"
        self._table = np.memmap(folder / "table", np.uint8, mode, shape=(rows, stride))
        if not new:
            self._table._mmap.madvise(mmap.MADV_RANDOM)

    def read(self, rows):
        return self._table[rows]

    def write(self, rows, records) -> None:
        self._table[rows] = records

    def checkpoint(self) -> None:
        self._table.flush()

    def close(self) -> None:
        self._table.flush()


class RocksStore:
    def __init__(self, folder: Path, rows: int, stride: int, new: bool) -> None:
        from rocksdict import AccessType, BlockBasedOptions, Cache, Options, Rdict, WriteBatch

        folder.mkdir(parents=True, exist_ok=True)
        options, table = Options(raw_mode=True), BlockBasedOptions()
        table.set_block_cache(Cache(128 << 20))
        table.set_bloom_filter(10, False)
        options.set_block_based_table_factory(table)
        options.set_write_buffer_size(32 << 20)
        options.set_max_background_jobs(2)
        options.create_if_missing(True)
        options.set_compression_type(_no_compression())
        self._db = Rdict(str(folder), options, access_type=AccessType.read_write())
        self._batch, self._stride = WriteBatch, stride

    def read(self, rows):
        keys = _keys(rows)
        return np.frombuffer(b"".join(self._db[keys]), np.uint8).reshape(rows.size, self._stride)

    def write(self, rows, records) -> None:
        batch = self._batch(raw_mode=True)
        for key, value in zip(_keys(rows), _values(records), strict=True):
            batch.put(key, value)
        self._db.write(batch)

    def checkpoint(self) -> None:
        self._db.flush_wal(True)

    def close(self) -> None:
        self._db.close()


def _no_compression():
    from rocksdict import DBCompressionType

    return DBCompressionType.none()


class LmdbStore:
    def __init__(self, folder: Path, rows: int, stride: int, new: bool) -> None:
        import lmdb

        folder.mkdir(parents=True, exist_ok=True)
        self._env = lmdb.open(str(folder), map_size=1 << 36, readahead=False, sync=True, writemap=False)
        self._stride, self._new, self._txn = stride, new, None

    @property
    def _open(self):
        self._txn = self._txn or self._env.begin(write=True, buffers=True)
        return self._txn

    def read(self, rows):
        with self._open.cursor() as cursor:
            found = cursor.getmulti(_keys(rows))
            return np.frombuffer(b"".join(v for _, v in found), np.uint8).reshape(-1, self._stride)

    def write(self, rows, records) -> None:
        with self._open.cursor() as cursor:
            cursor.putmulti(zip(_keys(rows), _values(records), strict=True), append=self._new)

    def checkpoint(self) -> None:
        if self._txn is not None:
            self._txn.commit()
            self._txn = None

    def close(self) -> None:
        self.checkpoint()
        self._env.close()


class SqliteStore:
    def __init__(self, folder: Path, rows: int, stride: int, new: bool) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._db = sqlite3.connect(folder / "table.db", isolation_level=None)
        self._stride = stride
        for pragma in ("journal_mode=WAL", "synchronous=FULL", "cache_size=-262144", "mmap_size=0"):
            self._db.execute(f"PRAGMA {pragma}").fetchall()
        self._db.execute("CREATE TABLE IF NOT EXISTS rows (id INTEGER PRIMARY KEY, record BLOB)")
        self._db.execute("BEGIN")

    def read(self, rows):
        wanted = "SELECT record FROM rows WHERE id IN (SELECT value FROM json_each(?)) ORDER BY id"
        found = self._db.execute(wanted, (json.dumps(rows.tolist()),))
        return np.frombuffer(b"".join(r for (r,) in found), np.uint8).reshape(-1, self._stride)

    def write(self, rows, records) -> None:
        pairs = zip(rows.tolist(), _values(records), strict=True)
        self._db.executemany("INSERT OR REPLACE INTO rows VALUES (?, ?)", pairs)

    def checkpoint(self) -> None:
        self._db.execute("COMMIT")
        self._db.execute("BEGIN")

    def close(self) -> None:
        self._db.execute("COMMIT")
        self._db.close()


def _keys(rows: np.ndarray) -> list[bytes]:
    data = rows.astype(">u8").tobytes()  # in the order of the rows
    return [data[i : i + 8] for i in range(0, len(data), 8)]


def _values(records: np.ndarray) -> list[bytes]:
    data, size = np.ascontiguousarray(records).tobytes(), records.shape[1]
    return [data[i : i + size] for i in range(0, len(data), size)]


STORES = {
    "hotrows": HotrowsStore,
    "mapped": MappedStore,
    "rocksdb": RocksStore,
    "lmdb": LmdbStore,
    "sqlite": SqliteStore,
}


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "2")
    main()
