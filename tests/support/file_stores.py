"""Rows for file stores, with the native core and without, and how they are compared."""

from contextlib import contextmanager, nullcontext

import numpy as np
import pytest
import torch

from hotrows.engine.storage import base_file, log, merging
from tests.reference.records import plain_records

META = {"tables": ["user", "item"]}
ENGINES = [False, True]


def first_values(rows, out):
    out.copy_((rows[:, None] * 31 + torch.arange(out.shape[1]) * 7) % 251)


def new_values(rows, stride, step):
    values = np.array(rows)[:, None] * 13 + np.arange(stride) * 5 + step * 101
    return torch.from_numpy((values % 256).astype(np.uint8))


@contextmanager
def engine(with_core, merge_bytes=None, segment_bytes=None):
    """With or without the native core, and in small portions."""
    with pytest.MonkeyPatch.context() as patch, nullcontext() if with_core else plain_records():
        if merge_bytes:
            patch.setattr(merging, "MERGE_BYTES", merge_bytes)
            patch.setattr(base_file, "PIECE_BYTES", merge_bytes)
            patch.setattr(log, "SEGMENT_BYTES", segment_bytes)
        yield


def read(store, rows):
    rows = torch.as_tensor(rows, dtype=torch.int64)
    out = torch.full((rows.numel(), store.stride), 0xEE, dtype=torch.uint8)
    store.read(rows, out)
    return out


def write(store, rows, step, keeps=False):
    store.write(torch.as_tensor(rows), new_values(rows, store.stride, step), keeps)


def assert_rows(store, steps, without=()):
    """Every row of the store has the bytes of its last step, or its first values."""
    rows = [row for row in range(store.num_rows) if row not in without]
    expected = torch.empty(len(rows), store.stride, dtype=torch.uint8)
    first_values(torch.tensor(rows), expected)
    for i, row in enumerate(rows):
        if row in steps:
            expected[i] = new_values([row], store.stride, steps[row])
    records = read(store, rows)
    bad = [row for row, same in zip(rows, (records == expected).all(1).tolist(), strict=True) if not same]
    assert not bad, f"rows {bad[:10]} differ"
