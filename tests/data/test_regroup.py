"""Regrouped data: every row once, the all-hot ones first, all else as it was."""

import json
import os
import sys

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hotrows import cli
from hotrows.batch import Batch
from hotrows.data import EncodedData, Loader, Profile, describe, profile, regroup, write_encoded
from hotrows.data.hot_cold import hot_and_cold, is_regrouped, pays
from hotrows.data.stored.shards import ShardWriter
from hotrows.schema import Dense, Schema, Sparse
from tests.data.encoded_rows import EVERYTHING, batch_of, samples, write_rows
from tests.data.raw import files_of, read
from tests.support.choice import examples

BYTES = {"a": 64, "b": 64}
SCHEMA = Schema(
    features=(Dense("number"), Sparse("a", rows=20_000), Sparse("b", rows=70_000)), name="regrouped"
)


def encoded(folder, rows, seed=0, schema=SCHEMA):
    """Data whose dense value is the number of the row."""

    def batch(rows):
        random = torch.Generator().manual_seed(seed)
        ids = (20_000 ** torch.rand(2 * rows, generator=random)).long()
        numbers = torch.arange(rows).float()
        return Batch(("a", "b"), ids, numbers[:, None], (numbers % 3 == 0).float())

    return write_encoded(folder, schema, {"train": [batch(rows)], "test": [batch(30)]})


@pytest.fixture
def data(tmp_path):
    return encoded(tmp_path / "enc", 3000)


@pytest.fixture
def hot_profile(data):
    """A profile by which about half of the samples are all-hot."""
    return profile(data, bytes_per_row=BYTES, fast_memory=64 * 1200, sample=0.5)


@pytest.fixture(autouse=True)
def small_shards(monkeypatch):
    monkeypatch.setattr(ShardWriter.__init__, "__defaults__", (700,))
    monkeypatch.setattr(sys.modules["hotrows.data.hot_cold.regroup"], "_CHUNK_ROWS", 256)


def test_every_row_stands_once_and_in_order(data, hot_profile, tmp_path):
    regrouped = regroup(data, hot_profile, tmp_path / "hot")
    ids, dense, labels = read(data)
    is_hot = np.isin(ids[0], hot_profile.hot["a"]) & np.isin(ids[1], hot_profile.hot["b"])
    order = np.concatenate([np.flatnonzero(is_hot), np.flatnonzero(~is_hot)])
    assert 0.2 < is_hot.mean() < 0.9
    for now, before in zip(read(regrouped), (ids.T, dense, labels), strict=True):
        assert np.array_equal(now.T if now.shape == ids.shape else now, before[order])
    hot, cold = hot_and_cold(regrouped)
    assert hot_and_cold(regrouped)[0].rows == hot.rows == is_hot.sum()
    assert hot.rows + cold.rows == regrouped.parts["train"].rows == 3000
    assert hot.clicks == (labels[is_hot].sum(),)
    assert cold.clicks == (labels[~is_hot].sum(),)
    assert regrouped.parts["train"].clicks == data.parts["train"].clicks
    assert [shard.file[:4] for shard in hot.shards] == ["hot-"] * len(hot.shards)
    assert regrouped.parts["train"].shards == hot.shards + cold.shards
    assert len(cold.shards) > 1


@settings(
    deadline=None, max_examples=examples(25), suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(rows=st.integers(2, 2000), seed=st.integers(0, 99), budget=st.integers(0, 2000))
def test_any_profile_parts_the_rows(tmp_path_factory, rows, seed, budget):
    folder = tmp_path_factory.mktemp("any")
    data = encoded(folder / "enc", rows, seed)
    hot_profile = profile(data, bytes_per_row=BYTES, fast_memory=64 * budget + 1, seed=seed)
    regrouped = regroup(data, hot_profile, folder / "hot", force=True)
    _, (numbers,), _ = (column.T for column in read(regrouped))
    assert sorted(numbers) == list(range(rows))
    halves = np.split(numbers, [hot_and_cold(regrouped)[0].rows])
    assert all((np.diff(half) > 0).all() for half in halves)


def test_lists_labels_weights_and_groups_move_with_their_row(tmp_path, monkeypatch):
    data = write_rows(tmp_path / "enc", EVERYTHING, batch_of(EVERYTHING, 1500), 700, monkeypatch)
    sizes = dict.fromkeys(("one", "many", "sequence", "two"), 8)
    hot_profile = profile(data, bytes_per_row=sizes, fast_memory=8 * 40_000, sample=0.5)
    regrouped = regroup(data, hot_profile, tmp_path / "hot", force=True)
    columns = regrouped.parts["train"].columns.ids
    hot = [set(hot_profile.hot[column.name].tolist()) for column in columns]

    def rows_of(part):
        (batch,) = Loader(part, 1500, shuffle=False).batches(0)
        return samples(batch)

    before = rows_of(data.parts["train"])
    is_hot = [all(hot[f].issuperset(one) for f, one in enumerate(ids)) for ids, *_ in before]
    assert 10 < sum(is_hot) < 1490
    expected = [row for row, hot_row in zip(before, is_hot, strict=True) if hot_row]
    expected += [row for row, hot_row in zip(before, is_hot, strict=True) if not hot_row]
    assert rows_of(regrouped.parts["train"]) == expected


def test_all_else_stays(data, hot_profile, tmp_path):
    regrouped = regroup(data, hot_profile, tmp_path / "hot")
    assert regrouped.fingerprint == data.fingerprint
    assert regrouped.schema == data.schema
    assert regrouped.parts["test"].shards == data.parts["test"].shards
    assert describe(regrouped) == describe(data)
    before, now = files_of(data.path), files_of(regrouped.path)
    kept = [name for name in before if name.startswith(("test", "vocabulary"))]
    assert all(now[name] == before[name] for name in kept)
    assert len(kept) == 3
    regrouped.check()
    assert Profile.from_data(regrouped).to_json() == hot_profile.to_json()
    assert not is_regrouped(data)


def test_files_are_copied_where_links_are_not_possible(data, hot_profile, tmp_path, monkeypatch):
    linked = files_of(regroup(data, hot_profile, tmp_path / "linked").path)

    def refuse(source, target):
        raise OSError("another file system")

    monkeypatch.setattr(os, "link", refuse)
    assert files_of(regroup(data, hot_profile, tmp_path / "copied").path) == linked


def test_an_interrupted_run_leaves_nothing(data, hot_profile, tmp_path):
    def interrupt(stage, done, total):
        if done > 1000:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        regroup(data, hot_profile, tmp_path / "hot", progress=interrupt)
    assert [path.name for path in tmp_path.iterdir()] == ["enc"]


def test_progress_ends_at_the_last_row(data, hot_profile, tmp_path):
    calls = []
    regroup(data, hot_profile, tmp_path / "hot", progress=lambda *now: calls.append(now))
    assert calls[-1] == ("regrouping", 3000, 3000)
    assert [done for _, done, _ in calls] == sorted(done for _, done, _ in calls)


def test_what_does_not_pay_is_refused_unless_forced(data, tmp_path):
    hot_profile = profile(data, bytes_per_row=BYTES, fast_memory=64, sample=0.5)
    assert not pays(hot_profile)[0]
    with pytest.raises(ValueError, match="would not pay: 0.0 %.* or regroup anyway with force"):
        regroup(data, hot_profile, tmp_path / "hot")
    regrouped = regroup(data, hot_profile, tmp_path / "hot", force=True)
    assert hot_and_cold(regrouped)[0].rows == 0
    assert np.array_equal(read(regrouped)[1], read(data)[1])


def test_wrong_data_is_refused(data, hot_profile, tmp_path):
    regrouped = regroup(data, hot_profile, tmp_path / "hot")
    with pytest.raises(ValueError, match=r"hot is regrouped already \([\d,]+ of 3,000 training"):
        regroup(regrouped, hot_profile, tmp_path / "again")
    with pytest.raises(ValueError, match="exists and is no empty folder"):
        regroup(data, hot_profile, tmp_path / "hot")
    larger = SCHEMA.with_rows({"a": 20_000, "b": 80_000})
    other = encoded(tmp_path / "other", 3000, schema=larger)
    with pytest.raises(ValueError, match="the profile is of other data than"):
        regroup(other, hot_profile, tmp_path / "third")
    with pytest.raises(ValueError, match="is not regrouped into hot and cold samples; do so with"):
        hot_and_cold(data)


def test_the_commands(data, tmp_path, capsys):
    def hotrows(*arguments):
        with pytest.raises(SystemExit) as left:
            cli.main([str(argument) for argument in arguments])
            raise SystemExit(0)
        return left.value.code, capsys.readouterr()

    options = ("--model", "dlrm", "--fast-memory", "75KiB", "--option", "dim=8", "--sample", "0.5")
    code, said = hotrows("profile", data.path, *options, "--json")
    figures = json.loads(said.out)
    assert figures["bytes"] == 64 * figures["hot_rows"] <= 75 << 10
    assert figures["pays"]
    code, said = hotrows("profile", data.path, *options)
    assert code == 0
    assert f"hot rows         {figures['hot_rows']:,}, " in said.out
    assert said.out.splitlines()[-1] == figures["reason"]
    code, said = hotrows("regroup", data.path, "--out", tmp_path / "hot", *options)
    regrouped = EncodedData.open(tmp_path / "hot")
    cold = 3000 - hot_and_cold(regrouped)[0].rows
    assert f"{hot_and_cold(regrouped)[0].rows:,} all-hot and {cold:,} cold training samples" in said.out
    code, said = hotrows("regroup", data.path, "--out", tmp_path / "hot", *options)
    assert (code, said.out) == (1, "")
    assert "exists and is no empty folder" in said.err
    code, said = hotrows("profile", data.path, "--fast-memory", "much")
    assert code == 2
    assert "a size must be a number of bytes" in said.err
