"""Preparation by blocks: no byte depends on where they are cut, nor on a task that is done twice.

The tasks run here, one after the other; `test_ray` has a real cluster.
"""

import dataclasses
import functools
import itertools
import shutil
import sys
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest

from hotrows.data import prepare
from hotrows.data.encode import passes
from hotrows.data.encode.cluster import on_ray, tasks
from hotrows.data.encode.cluster.tasks import ClusterWork
from hotrows.data.encode.split import parse_split
from hotrows.data.raw import tables
from hotrows.data.stored import shards
from hotrows.data.stored.shards import ShardWriter
from hotrows.schema import Dense, Label, Schema, Sequence, Sparse, Time
from tests.data.raw import files_of
from tests.support import histories
from tests.support.blocks import Blocks, InlineCluster
from tests.support.ray_rows import table_of

SCHEMA = Schema(
    label=(Label("click"), Label("buy")),
    features=(
        Dense("x", transform="standard"),
        Dense("y", transform="log"),
        Sparse("user", min_count=2, num_unknown=3),
        Sequence("seen", vocabulary="item", max_length=3),
        Sparse("item"),
        Sparse("hour", transform="hour"),
    ),
    time=Time("when", format="unix"),
    group="user",
)
REQUESTS = Schema(
    features=(Sparse("user"), Sequence("seen", vocabulary="item"), Sparse("item")),
    request="request",
    shared=("user", "seen"),
    time=Time("when", format="unix"),
)
CUTS = {"one": [1000], "odd": [1, 0, 333, 0, 0, 64, 602], "many": [63] * 15 + [55]}


def requests_of(num_requests: int = 300) -> pa.Table:
    rng = np.random.default_rng(0)
    sizes = rng.integers(0, 5, size=num_requests)
    return pa.table(
        {
            "request": [f"r{n}" for n in range(num_requests)],
            "when": 1_700_000_000 + rng.integers(90, size=num_requests) * 1000,
            "user": rng.integers(20, size=num_requests),
            "seen": [list(map(str, rng.integers(9, size=3))) for _ in sizes],
            "item": [list(map(str, rng.integers(9, size=k))) for k in sizes],
            "label": [rng.integers(2, size=k).tolist() for k in sizes],
        }
    )


def blocks_of(table: pa.Table, sizes: list[int]) -> Blocks:
    ends = np.cumsum([0, *sizes])
    return Blocks([[table.slice(a, b - a) for a, b in itertools.pairwise(ends)]])


@pytest.fixture(autouse=True)
def inline(monkeypatch):
    monkeypatch.setattr(tables, "_DATASET", (Blocks.__module__, Blocks.__name__))
    monkeypatch.setattr(on_ray, "RayCluster", InlineCluster)
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(get=lambda reference: reference.value))


@pytest.mark.parametrize(
    "split",
    [
        "stratified:0.7,0.2,0.1",
        "group:session:0.7,0.2,0.1",  # a column that the schema does not read
        *(
            pytest.param(split, marks=pytest.mark.slow)
            for split in ("fraction:0.7,0.2,0.1", "position:0.8", "time:0.7,0.1,0.2")
        ),
    ],
)
def test_blocks_cut_anywhere_give_the_bytes_of_one_table(split, tmp_path):
    table = table_of().append_column("session", [[row // 7 for row in range(1000)]])
    prepare(table, SCHEMA, tmp_path / "serial", split=split, seed=5)
    for name, sizes in CUTS.items():
        prepare(blocks_of(table, sizes), SCHEMA, tmp_path / name, split=split, seed=5)
        assert files_of(tmp_path / name) == files_of(tmp_path / "serial"), name


def test_shards_of_a_few_rows_are_cut_as_one_machine_cuts_them(tmp_path, monkeypatch):
    table = table_of()
    monkeypatch.setattr(passes, "ShardWriter", functools.partial(ShardWriter, rows=50))
    prepare(table, SCHEMA, tmp_path / "serial")
    monkeypatch.setattr(on_ray, "rows_per_shard", lambda _: 50)
    prepare(blocks_of(table, CUTS["odd"]), SCHEMA, tmp_path / "blocks")
    files = files_of(tmp_path / "serial")
    assert files_of(tmp_path / "blocks") == files
    assert sum(name.startswith("train") for name in files) == 17


def test_shards_of_wide_vectors_have_the_fewer_rows_of_one_machine(tmp_path, monkeypatch):
    """A cluster once wrote half a million rows of them in a shard."""
    table = table_of().append_column("image", [[[0.5, 1.0]] * 1000])
    schema = Schema((Sparse("user"), Dense("image", width=2)), label="click")
    monkeypatch.setattr(shards, "_NUMBERS_PER_SHARD", 600)
    prepare(table, schema, tmp_path / "serial")
    prepare(blocks_of(table, CUTS["odd"]), schema, tmp_path / "blocks")
    files = files_of(tmp_path / "serial")
    assert files_of(tmp_path / "blocks") == files
    assert sum(name.startswith("train") for name in files) == 3


@pytest.mark.slow
@pytest.mark.parametrize("split", ["fraction:0.7,0.2,0.1", "position:0.8", "time:0.7,0.1,0.2"])
def test_requests_across_blocks_and_lists_of_candidates(split, tmp_path):
    lists = requests_of()
    rows = lists.to_pandas().explode(["item", "label"]).dropna(subset="label")
    for name, table in {"lists": lists, "rows": pa.table(rows.reset_index(drop=True))}.items():
        prepare(table, REQUESTS, tmp_path / name, split=split)
        sizes = [5, 8] * 4 + [table.num_rows - 52]
        prepare(blocks_of(table, sizes), REQUESTS, tmp_path / f"{name} in blocks", split=split)
        assert files_of(tmp_path / f"{name} in blocks") == files_of(tmp_path / name), name


def test_a_block_of_requests_without_candidates_ends_no_dataset(tmp_path):
    """A block without samples was once taken for one that cannot be read, and ended in an IndexError."""
    lists = requests_of(30)
    assert 0 in map(len, lists["item"].to_pylist()[:20])
    for name, table in {"one": lists, "blocks": blocks_of(lists, [1] * 30)}.items():
        prepare(table, REQUESTS, tmp_path / name, split="fraction:0.7,0.2,0.1")
    assert files_of(tmp_path / "blocks") == files_of(tmp_path / "one")


@pytest.mark.slow
def test_parts_with_datasets_of_their_own_and_stored_encoders(tmp_path):
    tables = {name: table_of(300, seed) for seed, name in enumerate(("train", "validation", "later"))}
    blocks = {name: blocks_of(table, [100, 77, 123]) for name, table in tables.items()}
    for name, rows in {"serial": tables, "blocks": blocks}.items():
        prepare(rows["train"], SCHEMA, tmp_path / name, validation=[rows["validation"]])
        prepare(rows["later"], None, tmp_path / f"{name}-like", like=tmp_path / name)
        prepare(rows["later"], None, tmp_path / f"{name}-more", extend=tmp_path / name)
    for end in ("", "-like", "-more"):
        assert files_of(tmp_path / f"blocks{end}") == files_of(tmp_path / f"serial{end}")


@pytest.mark.slow
def test_tasks_that_are_done_twice_and_little_memory_change_nothing(tmp_path, monkeypatch):
    table = table_of()
    prepare(table, SCHEMA, tmp_path / "serial")
    monkeypatch.setattr(on_ray, "RayCluster", lambda: InlineCluster(twice=True))
    prepare(blocks_of(table, CUTS["odd"]), SCHEMA, tmp_path / "blocks", memory=1 << 18)
    assert files_of(tmp_path / "blocks") == files_of(tmp_path / "serial")


def test_errors_are_those_of_the_first_bad_row(tmp_path):
    table = table_of().to_pylist()
    table[700]["click"], table[801]["x"], table[900]["when"] = 7, float("inf"), None
    for split in ("fraction:0.8", "stratified:0.8", "time:0.8"):
        with pytest.raises(ValueError, match="the Ray dataset row 700, column 'click': expected a label"):
            prepare(
                blocks_of(pa.Table.from_pylist(table), CUTS["many"]), SCHEMA, tmp_path / "a", split=split
            )
    with pytest.raises(ValueError, match=r"row 60, feature 'user': expected the value of the row before"):
        rows = pa.table({"request": ["a"] * 64, "user": [1] * 60 + [2] * 4, "item": [1] * 64})
        rows = rows.append_column("seen", [[[]] * 64]).append_column("label", [[0, 1] * 32])
        rows = rows.append_column("when", [[0] * 64])
        prepare(blocks_of(rows, [20, 20, 20, 4]), REQUESTS, tmp_path / "a", split="fraction:1,0,0")
    with pytest.raises(ValueError, match="the Ray dataset has no rows"):
        prepare(blocks_of(table_of(), [0]), SCHEMA, tmp_path / "a")
    with pytest.raises(ValueError, match="all rows in Ray datasets or none, found both"):
        prepare(blocks_of(table_of(), [9]), SCHEMA, tmp_path / "a", test=table_of())
    assert not list(tmp_path.iterdir())


def test_blocks_are_kept_where_they_fit_and_made_again_where_not(tmp_path, monkeypatch):
    """The datasets have a third of the memory at most, the first of them first."""
    table = table_of()
    prepare(table, SCHEMA, tmp_path / "serial", test=table)
    for store_bytes, of_test in ((9 * table.nbytes, 1), (5 * table.nbytes, 2), (0, 2)):
        cluster = InlineCluster(store_bytes=store_bytes)
        monkeypatch.setattr(on_ray, "RayCluster", lambda cluster=cluster: cluster)
        datasets = [Blocks([[table.slice(0, 600), table.slice(600)]] * 4) for _ in "ab"]
        prepare(datasets[0], SCHEMA, tmp_path / "blocks", test=datasets[1])
        assert files_of(tmp_path / "blocks") == files_of(tmp_path / "serial")
        executed = [4 - len(dataset.executions) for dataset in datasets]
        assert executed == [2 if store_bytes == 0 else 1, of_test]
        shutil.rmtree(tmp_path / "blocks")


def test_a_dataset_that_is_shuffled_anew_is_refused_unless_it_is_kept(tmp_path, monkeypatch):
    table = table_of()
    other = table.take(np.random.default_rng(1).permutation(1000))
    prepare(Blocks([[table], [other]]), SCHEMA, tmp_path / "kept")
    monkeypatch.setattr(on_ray, "RayCluster", lambda: InlineCluster(store_bytes=0))
    with pytest.raises(ValueError, match="the rows in another order, when it was executed a second time"):
        prepare(Blocks([[table], [other]]), SCHEMA, tmp_path / "a")


def events_and_samples(seed: int = 0) -> tuple[pa.Table, pa.Table]:
    """Samples with a number, of which those of a user are a request, at one time."""
    events, samples = histories.events_and_samples(seed, events=900, samples=400, users=40)
    samples["at"] = samples.groupby("user")["at"].transform("first")
    samples = samples.assign(request=samples["user"], x=samples["item"] / 7.0).sort_values("request")
    return pa.Table.from_pandas(events), pa.Table.from_pandas(samples, preserve_index=False)


WITH_HISTORIES = dataclasses.replace(
    histories.schema(), features=(Dense("x", transform="standard"), *histories.schema().features)
)
OF_REQUESTS = dataclasses.replace(WITH_HISTORIES, request="request", shared=("user", "history", "kinds"))
ODD_CUTS = [100, 0, 7, 93, 200]


@pytest.mark.parametrize(
    ("split", "schema"),
    [
        ("time:0.6,0.2,0.2", WITH_HISTORIES),
        ("position:0.8", OF_REQUESTS),
        *(
            pytest.param(split, schema, marks=pytest.mark.slow)
            for split, schema in [
                ("fraction:0.7,0.2,0.1", WITH_HISTORIES),
                ("stratified:0.7,0.2,0.1", WITH_HISTORIES),
                ("time:5,9", OF_REQUESTS),
            ]
        ),
    ],
)
def test_histories_from_events_are_those_of_one_machine(split, schema, tmp_path, monkeypatch):
    """Events in a dataset or not, tasks done once or twice, little memory: equal bytes, no other file."""
    events, samples = events_and_samples()
    prepare(samples, schema, tmp_path / "serial", events=events, split=split)
    files = files_of(tmp_path / "serial")
    assert "events.shard" in files
    in_blocks = blocks_of(events, [400, 0, 1, 499])
    for number, (twice, some_events) in enumerate([(True, in_blocks), (False, events)]):
        monkeypatch.setattr(on_ray, "RayCluster", lambda twice=twice: InlineCluster(twice))
        out, memory = tmp_path / str(number), 1 << 18 if twice else None
        prepare(blocks_of(samples, ODD_CUTS), schema, out, events=some_events, split=split, memory=memory)
        assert files_of(out) == files
    prepare(samples, schema, tmp_path / "events alone", events=in_blocks, split=split)
    assert files_of(tmp_path / "events alone") == files


def test_events_that_are_shuffled_anew_are_executed_once(tmp_path):
    """Or their values would be those of other users and times."""
    events, samples = events_and_samples()
    other = events.take(np.random.default_rng(1).permutation(900))
    prepare(samples, WITH_HISTORIES, tmp_path / "serial", events=events)
    shuffled = Blocks([[events], [other], [other]])
    prepare(blocks_of(samples, ODD_CUTS), WITH_HISTORIES, tmp_path / "blocks", events=shuffled)
    assert files_of(tmp_path / "blocks") == files_of(tmp_path / "serial")


@pytest.mark.parametrize("how", ["like", pytest.param("extend", marks=pytest.mark.slow)])
def test_stored_encoders_encode_later_events(how, tmp_path):
    events, samples = events_and_samples()
    data = prepare(samples, WITH_HISTORIES, tmp_path / "first", events=events)
    events, samples = events_and_samples(1)
    prepare(samples, None, tmp_path / "serial", events=events, **{how: data.path})
    blocks = blocks_of(samples, ODD_CUTS)
    prepare(blocks, None, tmp_path / "blocks", events=blocks_of(events, [900]), **{how: data.path})
    assert files_of(tmp_path / "blocks") == files_of(tmp_path / "serial")


def test_errors_of_events_and_samples_are_those_of_one_machine(tmp_path):
    events, samples = events_and_samples()
    at = samples["at"].to_pylist()
    no_time = samples.set_column(1, "at", [[*at[:150], None, *at[151:]]])
    others = samples.set_column(0, "user", [[f"u{user}" for user in samples["user"].to_pylist()]])
    nobody = pa.Table.from_pylist(
        [*events.to_pylist()[:7], {"user": None, "at": 1, "item": 2, "kind": 3}]
    )
    for wrong_events, wrong_samples, message in (
        (events, no_time, "the Ray dataset row 150 has no time, which says where its history ends"),
        (
            events,
            others,
            "no sample has a user of the events: column 'user' has '.*' in the events and 'u0'",
        ),
        (nobody, samples, "the Ray dataset row 7 is an event without a user"),
    ):
        blocks = blocks_of(wrong_samples, ODD_CUTS)
        with pytest.raises(ValueError, match=message):
            of_events = blocks_of(wrong_events, [wrong_events.num_rows])
            prepare(blocks, WITH_HISTORIES, tmp_path / "out", events=of_events)
    assert not list(tmp_path.iterdir())


def test_a_machine_that_does_not_see_the_folder_is_named(tmp_path):
    """Where encoders are stored, too, whose files the first task opens."""
    work = ClusterWork("pass", SCHEMA, tmp_path / "elsewhere", 1 << 20, parse_split("fraction:1,0,0"), 0)
    for task in (lambda: tasks.count(work, 0, []), lambda: tasks.encode(work, [])):
        with pytest.raises(ValueError, match="of the cluster does not see the folder .*elsewhere; name"):
            task()
