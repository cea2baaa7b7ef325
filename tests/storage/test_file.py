"""The store on disk equals a dictionary with versions, whatever the order of what is done to it."""

import errno
import json
import os
import random
import resource
import subprocess
import sys
import textwrap
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hotrows import native
from hotrows.storage import file as file_module
from hotrows.storage.file import FileStore
from hotrows.storage.log import Disk, Fetcher, RecordFile

META = {"tables": ["user", "item"]}
ENGINES = [False, pytest.param(True, marks=pytest.mark.skipif(not native.load(), reason="no core"))]


def first_values(rows, out):
    out.copy_((rows[:, None] * 31 + torch.arange(out.shape[1]) * 7) % 251)


def new_values(rows, stride, step):
    values = np.array(rows)[:, None] * 13 + np.arange(stride) * 5 + step * 101
    return torch.from_numpy((values % 256).astype(np.uint8))


@contextmanager
def engine(with_core, merge_bytes=None, segment_bytes=None):
    """With or without the native core, and in small portions."""
    with pytest.MonkeyPatch.context() as patch:
        if not with_core:
            patch.setattr(native, "load", lambda: None)
        if merge_bytes:
            patch.setattr(file_module, "MERGE_BYTES", merge_bytes)
            patch.setattr(file_module, "SEGMENT_BYTES", segment_bytes)
        yield


@pytest.fixture(params=ENGINES, ids=["plain", "core"])
def with_core(request):
    with engine(request.param):
        yield request.param


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
    found = read(store, rows)
    bad = [row for row, same in zip(rows, (found == expected).all(1).tolist(), strict=True) if not same]
    assert not bad, f"rows {bad[:10]} differ"


class Played:
    """A store and the dictionary that it must equal: the step that wrote each row last."""

    def __init__(self, path, num_rows, stride):
        self.arguments = (path, num_rows, stride, first_values, META)
        self.store = FileStore.create(*self.arguments)
        self.steps, self.held, self.versions = {}, set(), {}
        self.last, self.best, self.step, self.num_rows = None, None, 0, num_rows

    def act(self, action, chance):
        getattr(self, action)(chance)

    def write(self, chance, keeps=False):
        self.step += 1
        rows = sorted(chance.sample(range(self.num_rows), chance.randint(1, self.num_rows)))
        write(self.store, rows, self.step, keeps)
        self.steps |= dict.fromkeys(rows, self.step)
        self.held = self.held | set(rows) if keeps else self.held - set(rows)

    def flush(self, chance):
        self.write(chance, keeps=True)

    def check(self, chance):
        assert_rows(self.store, self.steps, self.held)

    def checkpoint(self, chance):
        self.last = self.store.checkpoint()
        self.versions[self.last] = dict(self.steps)
        assert self.last in self.store.generations

    def retain(self, chance):
        if self.last is None:
            return
        if self.best not in self.versions or chance.random() < 0.4:
            self.best = self.last
        self.store.retain({self.best, self.last})
        self.versions = {g: self.versions[g] for g in {self.best, self.last}}

    def merge(self, chance):
        self.store.merge_now()

    def restore(self, chance):
        generation = chance.choice([None, *self.versions])
        self.store.restore(generation)
        self.steps = dict(self.versions.get(generation, {}))
        known = -1 if generation is None else generation
        self.versions = {g: steps for g, steps in self.versions.items() if g <= known}
        self.last, self.held = max(self.versions, default=None), set()

    def reopen(self, chance):
        self.store.close(merge=chance.random() < 0.5)
        self.store = FileStore.open(*self.arguments)
        self.restore(chance)

    def view(self, chance):
        assert self.store.generations == sorted(self.versions)
        for generation, steps in self.versions.items():
            with self.store.view(generation) as view:
                assert_rows(view, steps)


ACTIONS = [
    *["write"] * 5, *["flush"] * 2, *["check"] * 3, *["checkpoint"] * 4, *["retain"] * 4,
    *["merge"] * 3, "restore", "reopen", "view", "view",
]  # fmt: skip


@pytest.mark.parametrize("with_core", ENGINES)
@settings(max_examples=60, deadline=None)
@given(
    stride=st.integers(1, 175).map(lambda n: 4 * n),
    num_rows=st.integers(1, 300),
    actions=st.lists(st.sampled_from(ACTIONS), min_size=5, max_size=40),
    seed=st.integers(0, 2**32),
    merge_bytes=st.sampled_from([1, 5000, 1 << 25]),
)
def test_any_sequence_equals_a_dictionary_with_versions(
    tmp_path_factory, with_core, stride, num_rows, actions, seed, merge_bytes
):
    chance = random.Random(seed)
    with engine(with_core, merge_bytes, max(merge_bytes, 3000)):
        played = Played(tmp_path_factory.mktemp("play") / "store", num_rows, stride)
        try:
            for action in [*actions, "check", "view"]:
                played.act(action, chance)
        finally:
            played.store.close(merge=False)


@pytest.mark.skipif(not native.load(), reason="no core")
@pytest.mark.parametrize("first", [True, False])
def test_the_core_and_plain_python_open_each_others_folders(tmp_path, first):
    chance = random.Random(1)
    with engine(first, 5000, 3000):
        played = Played(tmp_path / "store", 200, 68)
    for number in range(12):
        with engine(first == (number % 2 == 0), 5000, 3000):
            played.store.close(merge=False)
            played.store = FileStore.open(*played.arguments)
            played.restore(chance)
            for action in ["check", "view", "write", "flush", "checkpoint", "retain", "write",
                           "checkpoint", "retain", "merge", "view", "check"]:  # fmt: skip
                played.act(action, chance)
    played.store.close()
