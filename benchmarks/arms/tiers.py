"""One way of keeping the tables, trained for a while: `benchmarks.tiers` runs it in its own process."""

import json
import resource
import sys
import time
from contextlib import closing
from pathlib import Path
from statistics import median

import numpy as np
import torch
from torch.nn.functional import binary_cross_entropy_with_logits

import hotrows
from benchmarks.tiers import BATCH, SCHEMA, popular_rows, stream, stride, table_bytes
from benchmarks.workload import CRITEO_KAGGLE, DATA, DLRM_BOTTOM, DLRM_TOP, LEARNING_RATE
from hotrows import models
from hotrows.data import Loader
from hotrows.engine.caching import Caching
from hotrows.engine.embedding import Embedding
from hotrows.engine.planning.policy import Frequency, Hot, Lookahead
from hotrows.engine.stages import start
from hotrows.engine.storage.file_store import FileStore
from hotrows.models.nn import choose_linear_paths, use_linear_paths
from hotrows.runtime import native

POLICIES = {
    "": Lookahead("auto"),
    "two-batch": Lookahead(2),
    "frequency": Frequency(),
    "hot": Hot(torch.empty(0, dtype=torch.int64)),
    "lru": Lookahead(0),
    "lru-serial": Lookahead(0),
    "uncached": Lookahead(0),
}


def main() -> None:
    arm, setting = sys.argv[1], json.loads(sys.argv[2])
    torch.set_num_threads(2)
    torch.manual_seed(0)
    core = native.load()
    if core is not None:
        core.hotrows_keep_freed_memory()
    model = _model(setting)
    arm, _, prepares = arm.partition(":")
    embedding = _embedding(arm, setting, model)
    if prepares:  # makes the files, outside the limit
        embedding.close()
        print("{}")
        return
    loader = Loader(stream(setting["samples"]).parts["train"], BATCH, shuffle=False)
    link = _link(setting) if arm.startswith("link") else None
    if link is not None:
        _slow_down(embedding, link)
    step = _step(model, link)
    serial = arm.endswith("serial")
    if embedding.cached_tables and "uncached" not in arm:
        embedding.cached_tables.warm()
    with closing(
        start(
            embedding,
            enumerate(loader.batches(0)),
            loader.batches(0),
            plan_depth=0 if serial else 2,
            num_known=len(loader),  # as `Trainer` does: next uses come from a file
        )
    ) as runner:
        print(json.dumps(_timed(runner, embedding, step, setting)))
    embedding.close()


def _model(setting: dict):
    dim = setting["dim"]
    return models.build("dlrm", SCHEMA, dim=dim, bottom=DLRM_BOTTOM[:-1], top=DLRM_TOP[:-1])


def _embedding(arm: str, setting: dict, model) -> Embedding:
    kind = {"adagrad": hotrows.Adagrad, "rowwise": hotrows.RowWiseAdagrad}[setting["optimizer"]]
    optimizer = kind(lr=LEARNING_RATE)
    tables = model.tables
    if arm == "memory":
        return Embedding(tables, optimizer=optimizer)
    if arm == "file-mapped":
        return _mapped(tables, optimizer, setting)
    where, _, policy = arm.partition("-")
    budget = int(setting["share"] * table_bytes(setting))
    lookahead = budget // 4
    fast = budget if policy == "" else budget + lookahead  # the same bytes, all of them for rows
    if policy == "uncached":
        fast = stride(setting)
    path = DATA / f"tiers-store-{setting['dim']}-{setting['optimizer']}"
    caching = Caching(
        fast,
        f"file:{path}" if where == "file" else "memory",
        POLICIES[policy],
        in_flight=1 if policy == "lru-serial" else 4,
        lookahead_memory=lookahead,
        hot_ids=_hot_ids(tables, fast // stride(setting)),
    )
    if where != "file":
        return Embedding(tables, optimizer=optimizer, caching=caching)
    embedding = Embedding(tables, optimizer=optimizer, caching=caching)
    fill(embedding)
    return embedding


def fill(embedding: Embedding) -> None:
    """Writes every row, unless it was: no hole is left, and no first value is made later."""
    stores = embedding.cached_tables.files
    for store in stores:
        if not store.generations:
            _write_all(store)
            checkpoint = store.checkpoint()
            store.retain([checkpoint])
            store.merge_now()
    embedding.cached_tables.restore([max(store.generations) for store in stores])


def _write_all(store: FileStore, chunk: int = 1 << 18) -> None:
    for begin in range(0, store.num_rows, chunk):
        rows = torch.arange(begin, min(begin + chunk, store.num_rows))
        records = torch.empty(len(rows), store.stride, dtype=torch.uint8)
        store.read(rows, records)
        store.write(rows, records, keeps=True)


def _mapped(tables, optimizer, setting: dict) -> Embedding:
    """Tables in memory, that memory mapped from a file: the page cache is the cache."""
    from hotrows.engine.storage import store

    path = DATA / f"tiers-mapped-{setting['dim']}-{setting['optimizer']}"
    size = table_bytes(setting)
    new = not path.exists() or path.stat().st_size != size

    def mapped(num_rows: int, width: int, _device=None) -> torch.Tensor:
        path.touch()
        flat = torch.from_file(str(path), shared=True, size=num_rows * width, dtype=torch.uint8)
        return flat.view(num_rows, width)

    store.empty_records = mapped
    if not new:
        store.InitialValues.fill = lambda self, records, rows: None
    return Embedding(tables, optimizer=optimizer)


def _hot_ids(tables, slots: int) -> dict[str, torch.Tensor]:
    """The most popular ids of all tables together, as a profile of the whole stream would find."""
    rows = torch.from_numpy(np.load(popular_rows(), mmap_mode="r")[:slots].astype(np.int64))
    firsts = torch.tensor([0, *CRITEO_KAGGLE]).cumsum(0)
    hot_ids = {}
    for table, first, end in zip(tables, firsts, firsts[1:], strict=False):
        hot_ids[table.name] = rows[(rows >= first) & (rows < end)] - first
    return hot_ids


def _link(setting: dict):
    speed = setting["gigabytes_per_s"] * 1e9

    def link(size: int) -> None:
        time.sleep(size / speed)

    return link


def _slow_down(embedding: Embedding, link) -> None:
    """Lets the rows that a batch moves cross the link before those that come in are inserted."""
    for group in embedding.cached_tables.groups:
        cache, insert = group.cache, group.cache.insert

        def over_the_link(transfer, insert=insert):
            link(transfer.staged.numel() + transfer.leaving.numel())
            return insert(transfer)

        cache.insert = over_the_link


def _step(model, link):
    use_linear_paths(model, choose_linear_paths(model, torch.float32))
    optimizer = torch.optim.Adagrad(model.parameters(), LEARNING_RATE, fused=True)

    def step(embedding, work) -> float:
        if link and work.item.plan.moves[0].bypasses_cache:  # its rows cross the link within the step
            moved = embedding.cached_tables.traffic(work.item.plan)
            link(moved.bytes_in + moved.bytes_out)
        vectors = embedding.lookup(work.item.plan)
        logits = model(vectors, work.item.batch.dense)
        loss = binary_cross_entropy_with_logits(logits.float(), work.item.batch.labels)
        loss.backward()
        embedding.update(work.item.plan, vectors)
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()

    return step


def _timed(runner, embedding, step, setting: dict) -> dict:
    speeds, misses, waited, own_bytes, num_checkpoints = [], [], [], 0, 0
    for _, work in zip(range(setting["warmup"]), runner, strict=False):
        step(embedding, work)
        own_bytes = max(own_bytes, _own_bytes())
    for _ in range(setting["windows"]):
        begin, idle, rows_in = time.perf_counter(), sum(runner.stalled.values()), 0
        for _, work in zip(range(setting["steps"]), runner, strict=False):
            step(embedding, work)
            cached_tables = embedding.cached_tables
            rows_in += cached_tables.traffic(work.item.plan).rows_in if cached_tables else 0
            if cached_tables and cached_tables.requests_checkpoint():
                with runner.paused():
                    cached_tables.retain([cached_tables.checkpoint()])
                num_checkpoints += 1
        seconds = time.perf_counter() - begin
        speeds.append(setting["steps"] * BATCH / seconds)
        misses.append(rows_in / setting["steps"])
        waited.append((sum(runner.stalled.values()) - idle) / seconds)
    return {
        "samples_per_s": median(speeds),
        "lowest": min(speeds),
        "highest": max(speeds),
        "misses_per_batch": median(misses) if embedding.cached_tables else None,
        "waited": median(waited),
        "waited_for": dict(runner.stalled),
        "peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "own_bytes": own_bytes,
        "checkpoints": num_checkpoints,
        "read_bytes": _bytes_read(),
        "versions": {"torch": torch.__version__},
    }


def _own_bytes() -> int:
    """Memory of this process that is no file's."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("RssAnon"))


def _bytes_read() -> int | None:
    """What this process has read from disks so far."""
    path = Path("/proc/self/io")
    lines = path.read_text().splitlines() if path.exists() else []
    return next((int(line.split()[1]) for line in lines if line.startswith("read_bytes")), None)


if __name__ == "__main__":
    main()
