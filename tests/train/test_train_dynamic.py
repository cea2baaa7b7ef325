"""Runs with dynamic features: no vocabulary pass, interrupted anywhere, the same bits; unknown keys."""

import dataclasses
import json
import random
from contextlib import suppress

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from hotrows.batch import Batch
from hotrows.data import prepare
from hotrows.data.columns.key import keys_of
from hotrows.data.raw.values import RawIds
from hotrows.dynamic import Dynamic
from hotrows.engine import checkpoint
from hotrows.engine.checkpoint import key_state
from hotrows.engine.checkpoint.manifest import chain
from hotrows.engine.distributed.in_process import run as on_threads
from hotrows.engine.keys.partitions import partition_of
from hotrows.schema import Dense, Schema, Sequence, Sparse
from hotrows.serving.export.whole import export
from hotrows.train import Callback, Trainer, load_run
from tests.support.choice import everything
from tests.support.runs import CONFIG, same_bits, write_rows

pytestmark = pytest.mark.usefixtures("one_thread", "no_pictures")

SMALL = dataclasses.replace(CONFIG, batch_size=32, epochs=1, checkpoint_every=4, shuffle=False)
KEYS = Dynamic(capacity=20, evict="lru")


def schema(dynamic=KEYS):
    features = (Dense("n", transform="standard"), Sparse("a", dynamic=dynamic), Sparse("b"))
    return Schema(features, delimiter=",", name="tiny")


@pytest.fixture(scope="module")
def encoded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    raw = write_rows(folder / "raw.csv", 800)
    return prepare([raw], schema(), folder / "enc", split="position:0.6,0.2,0.2")


@pytest.fixture(scope="module")
def whole(encoded, tmp_path_factory):
    run = tmp_path_factory.mktemp("runs") / "whole"
    return run, Trainer(encoded, SMALL, run).fit()


def test_values_are_keys_in_prepared_data(encoded):
    ids = np.concatenate([rows.arrays["ids/a"] for rows in encoded.parts["train"].mapped(0, 480)])
    assert ids.dtype == np.int64 and len(np.unique(ids)) == 30 and encoded.schema.rows_of("a") == 23
    assert encoded.vocabularies["a"].num_distinct == 0
    assert encoded.vocabularies["b"].num_distinct == 30


def test_one_rank_goes_on_with_the_keys_of_two_and_ends_with_those_of_one(encoded, whole, tmp_path):
    def work(ranks):
        with suppress(RuntimeError):
            Trainer(encoded, SMALL, tmp_path / "run", ranks=ranks).fit(callbacks=[Killed(5)])

    on_threads(work, 2)
    Trainer(encoded, SMALL, tmp_path / "run", resume=True).fit()
    keys, expected = (
        load_file(checkpoint.folder_of(run, "last") / "keys.safetensors")
        for run in (tmp_path / "run", whole[0])
    )
    assert keys.keys() == expected.keys()
    assert all(torch.equal(keys[name], value) for name, value in expected.items())
    assert load_run(tmp_path / "run", "last").vectors("a").to_pydict()["value"] == keys["a/keys"].tolist()


def test_increments_have_the_keys_that_changed_and_a_chain_has_exactly_the_live_ones(tmp_path):
    raw = write_rows(tmp_path / "raw.csv", 200)
    dynamic = Dynamic(capacity=25, evict="lru", partitions=2)
    data = prepare([raw], schema(dynamic), tmp_path / "enc", split="position:0.6,0.2,0.2")
    config = dataclasses.replace(SMALL, batch_size=8, checkpoint_every=1, full_every=9, keep_last=12)
    config = dataclasses.replace(config, background_checkpoints=True)

    class Watch(Callback):
        def on_step_end(self, trainer, progress):
            self.states.append(trainer.embedding.dynamic.state())

    watch = Watch()
    watch.states = []
    Trainer(data, config, tmp_path / "run").fit(callbacks=[watch])
    folders = sorted((tmp_path / "run" / "checkpoints").glob("step-*"), key=lambda f: int(f.name[5:]))
    increments = 0
    for folder in folders:
        checkpoints = chain(folder)
        increments += len(checkpoints) > 1
        step = checkpoints[-1][1].step
        state, expected = key_state.read(checkpoints), watch.states[step - 1]
        assert state.keys() == expected.keys()
        assert all(torch.equal(state[name], value) for name, value in expected.items())
        (table,) = checkpoint.key_tables(folder)
        assert table["live"] == sum(len(expected[f"a/{n} of 2/ids"]) for n in (0, 1)) <= 25
    assert increments > 3
    stored = load_file(folders[-2] / "keys.safetensors")
    assert len(stored["a/0 of 2/ids"]) < len(watch.states[-2]["a/0 of 2/ids"]), "a part of them"
    checkpoint.merge(folders[-1], tmp_path / "merged")
    merged = load_file(tmp_path / "merged" / "keys.safetensors")
    assert all(torch.equal(merged[name], value) for name, value in watch.states[-1].items())


def test_a_run_with_a_vocabulary_goes_on_with_keys_and_back(tmp_path):
    raw, partitions = write_rows(tmp_path / "raw.csv", 300), 3
    rows = {"n": [1.0, 2.0, 0.5, 4.0], "a": ["w1", "w7", "never", ""], "b": ["w1", "w2", "w3", ""]}

    def data(name, dynamic):
        return prepare([raw], schema(dynamic), tmp_path / name, split="position:0.6,0.2,0.2")

    def begun(of, run, other):
        config = dataclasses.replace(SMALL, start_from=str(tmp_path / other))
        return Trainer(of, config, tmp_path / run)

    static = data("static", None)
    dynamic = data("dynamic", Dynamic(capacity=36, evict="lru", partitions=partitions))
    Trainer(static, SMALL, tmp_path / "first").fit()
    second = begun(dynamic, "second", "first")
    assert second.evaluate("test") == load_run(tmp_path / "first", "best").evaluate(static.parts["test"])
    live = second.embedding.dynamic.growth()["a"]["live"]
    assert live == static.vocabularies["a"].num_distinct > 20
    second.fit()
    third = begun(static, "third", "second")
    assert third.evaluate("test") == load_run(tmp_path / "second", "best").evaluate(dynamic.parts["test"])
    third.fit()
    assert load_run(tmp_path / "third").predict(rows).shape == (4,)

    few = begun(data("few", Dynamic(capacity=10, evict="lru", partitions=partitions)), "few-run", "first")
    ids, keys = few.embedding.dynamic.keys.live("a")
    vectors = load_run(tmp_path / "first", "best").vectors("a").to_pydict()
    order = {int(value): n for n, value in enumerate(map(_key, vectors["value"]))}
    for number, room in enumerate((4, 3, 3)):
        most = [key for key in order if partition_of(torch.tensor(key), 3) == number][:room]
        assert set(most) <= set(keys.tolist()), "the most frequent values of each partition"
    weights = few.embedding.weights("a")[ids]
    expected = torch.tensor(np.stack([vectors["vector"][order[key]] for key in keys.tolist()]))
    assert len(ids) == 10 and torch.equal(weights, expected)
    few.fit()
    dynamic_too = begun(data("again", Dynamic(capacity=40)), "other", "few-run")
    assert dynamic_too.embedding.dynamic.growth()["a"]["live"] == 10


def _key(value):
    size = np.array([len(value)], np.uint32)
    return int(keys_of(RawIds(np.frombuffer(value.encode(), np.uint8), 0 * size, size))[0])


class Killed(Callback):
    """Ends training after a step, without a checkpoint."""

    def __init__(self, steps):
        self.left = steps

    def on_step_end(self, trainer, progress):
        self.left -= 1
        if self.left == 0:
            raise RuntimeError("killed")


@pytest.mark.parametrize("evict", ["lru", "idle:3", "ahead"])
def test_a_run_that_is_killed_after_any_step_ends_with_the_same_bits(tmp_path, evict):
    """With `--all` 200 kills of each policy; many come before the first checkpoint of a process."""
    raw = write_rows(tmp_path / "raw.csv", 400)
    dynamic = Dynamic(
        capacity=18, admit="ahead:2" if evict == "ahead" else "after:2", evict=evict, window=3
    )
    data = prepare([raw], schema(dynamic), tmp_path / "enc", split="position:0.6,0.2,0.2")
    config = dataclasses.replace(SMALL, batch_size=16, checkpoint_every=3, plan_depth=2)
    whole = tmp_path / "whole"
    Trainer(data, config, whole).fit()
    draw, kills, number = random.Random(0), 0, 0
    while kills < (200 if everything() else 3):
        run, number, result = tmp_path / f"run-{number}", number + 1, None
        while result is None:
            try:
                callbacks = [Killed(draw.randint(1, 9))]
                trainer = Trainer(data, config, run, resume=run.exists())
                result = trainer.fit(callbacks=callbacks)
            except RuntimeError:
                kills += 1
        assert same_bits(run, whole)


def test_a_run_predicts_for_keys_that_it_never_saw(encoded, whole):
    predictor = load_run(whole[0])
    live = predictor.vectors("a").to_pydict()
    assert len(live["value"]) == 20
    rows = {"n": [1.0] * 3, "a": ["never", "neither", ""], "b": ["w1"] * 3}
    unseen, other, missing = predictor.predict(rows)
    assert unseen == other != missing, "both read the one unknown row"
    keys = torch.tensor([[live["value"][0], 12345], [3, 3]])
    batch = Batch(("a", "b"), keys.reshape(-1), torch.ones(2, 1))
    known, unknown = torch.cat(list(predictor.predict([batch])))
    assert known != unknown


def test_an_export_has_keys_beside_rows(encoded, whole, tmp_path):
    export(whole[0], tmp_path / "out", "last")
    table = load_file(tmp_path / "out" / "tables" / "a.safetensors")
    state = load_file(checkpoint.folder_of(whole[0], "last") / "keys.safetensors")
    assert torch.equal(table["keys"], state["a/keys"]) and torch.equal(table["ids"], state["a/ids"])
    assert table["weight"].shape == (23, 4)
    checkpoint.merge(checkpoint.folder_of(whole[0], "last"), tmp_path / "merged")
    merged = load_file(tmp_path / "merged" / "keys.safetensors")
    assert torch.equal(merged["a/keys"], state["a/keys"])


def test_lists_and_sequences_share_the_keys_of_a_feature(tmp_path):
    rng = np.random.default_rng(0)
    rows = {
        "label": rng.integers(0, 2, 300).tolist(),
        "item": rng.integers(-20, 20, 300).tolist(),
        "history": [rng.integers(-20, 20, n).tolist() for n in rng.integers(0, 5, 300)],
    }
    of = Schema(
        features=(Sparse("item", dynamic=KEYS), Sequence("history", vocabulary="item", dynamic=KEYS))
    )
    data = prepare(rows, of, tmp_path / "enc", split="position:0.8,0.2,0")
    assert {
        int(k) for part in data.parts["train"].mapped(0, 240) for k in part.arrays["ids/history"]
    } <= set(range(-20, 20))
    config = dataclasses.replace(SMALL, model="din", model_options={"dim": 4, "hidden": [8]})
    trainer = Trainer(data, config, tmp_path / "run")
    trainer.fit()
    keys = trainer.embedding.dynamic.state()["item/keys"]
    assert len(keys) == 20 and set(keys.tolist()) <= set(range(-20, 20))


def test_what_cannot_be_done_with_dynamic_features_is_said(encoded, tmp_path):
    from hotrows.data import profile

    with pytest.raises(ValueError, match="needs the counts of ids, and feature 'a' .* is dynamic"):
        profile(encoded, bytes_per_row={"a": 4, "b": 4}, fast_memory=100)
    pretrained = tmp_path / "vectors.npy"
    np.save(pretrained, np.zeros((3, 4), np.float32))
    config = dataclasses.replace(SMALL, pretrained={"a": str(pretrained)})
    with pytest.raises(ValueError, match="'a' is read by dynamic features"):
        Trainer(encoded, config, tmp_path / "run")
    with pytest.raises(ValueError, match="num_unknown"):
        Sparse("a", dynamic=KEYS, num_unknown=0)


def test_static_schemas_are_written_as_before(encoded):
    fields = json.loads(dataclasses.replace(encoded.schema).to_json())
    assert [("dynamic" in f) for f in fields["features"]] == [False, True, False]
    assert Schema.from_json(encoded.schema.to_json()) == encoded.schema


def test_the_growth_of_tables_is_logged_and_shown(whole, capsys):
    from hotrows import cli

    def shown_by(*arguments):
        with suppress(SystemExit):
            cli.main(["tables", str(whole[0]), *arguments])
        return capsys.readouterr().out

    lines = [json.loads(line) for line in (whole[0] / "metrics.jsonl").read_text().splitlines()]
    growth = [line["keys"]["a"] for line in lines if line["kind"] == "train"][-1]
    assert growth["live"] == growth["rows"] == 20 == growth["admitted"] - growth["evicted"]
    shown = json.loads(shown_by("--json"))
    assert [table["name"] for table in shown["tables"]] == ["a", "b", "a.linear", "b.linear"]
    (keys,) = shown["keys"]
    assert keys["ages"] == sorted(keys["ages"]) and keys["ages"][0] == 0
    assert {name: keys[name] for name in growth} == growth
    assert keys["load"] == 1 and keys["bytes"] > 20 * 3 * 8
    assert "oldest" in shown_by()


def test_features_are_made_dynamic_on_the_command_line():
    from hotrows.data.datasets import schemas

    dynamic = schemas.with_dynamic(schemas.criteo, ["C1 capacity=100 evict=lfu:5", "C2"])
    declared = {feature.name: feature.dynamic for feature in dynamic.id_features}
    assert declared["C1"] == Dynamic(100, evict="lfu:5") and declared["C2"] == Dynamic()
    assert declared["C3"] is None
    for text in ("none", "C1 rows=3", "C1 capacity=many", "C1 capacity=5 evict=never"):
        with pytest.raises(ValueError, match="dynamic"):
            schemas.with_dynamic(schemas.criteo, [text])
