"""Logs larger than memory, cut by user: all rows of a user are in one bucket.

A first pass over the log appends every row to the bucket of its user's hash. Then the buckets are read
one by one; memory holds one bucket, a 64th of the log.

    log  ->  bucket-00 ... bucket-63  ->  histories of the users of one bucket  ->  samples
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from hotrows.data.datasets.dataset import Progress
from hotrows.data.datasets.tables import integers

NUM_BUCKETS = 64


def bucket_of(users: np.ndarray, num_buckets: int) -> np.ndarray:
    """Returns the bucket of each user: the high bits of a multiplicative hash."""
    mixed = users.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    return ((mixed >> np.uint64(32)) % np.uint64(num_buckets)).astype(np.int64)


def partition(
    blocks: Iterable[Any],
    user: str,
    folder: Path,
    stage: str,
    progress: Progress | None,
    num_buckets: int = NUM_BUCKETS,
) -> list[Path]:
    """Cuts blocks (Arrow tables) by their column `user` into Arrow files in `folder`."""
    import pyarrow as pa

    folder.mkdir(parents=True)
    paths = [folder / f"bucket-{i:02}.arrow" for i in range(num_buckets)]
    done = 0
    with ExitStack() as files:
        writers: list[Any] = []
        for block in blocks:
            if not writers:
                writers = [files.enter_context(pa.ipc.new_stream(path, block.schema)) for path in paths]
            bucket = bucket_of(integers(block[user]), num_buckets)
            order = np.argsort(bucket, kind="stable")
            ordered = block.take(order)
            ends = np.searchsorted(bucket[order], np.arange(num_buckets + 1))
            for i in np.flatnonzero(np.diff(ends)).tolist():
                writers[i].write_table(ordered.slice(ends[i], ends[i + 1] - ends[i]))
            done += len(block)
            if progress:
                progress(stage, done, None)
    return paths


def read_bucket(path: Path) -> Any:
    """Reads the rows of a bucket, in the order of the log."""
    import pyarrow as pa

    with pa.ipc.open_stream(path) as reader:
        return reader.read_all().combine_chunks()
