"""Damaged files of runs, prepared data, checkpoints and stores are refused in a line, or change no bit.

Over a hundred seeded trials, and with `--all` sixty times as many; a failure names the seed of each.
"""

import dataclasses
import json
import shutil

import numpy as np
import pytest
import torch

from hotrows import cli
from hotrows.data import EncodedData, Encoder, Loader, describe, prepare
from hotrows.data.stored import shards
from hotrows.dynamic import Dynamic
from hotrows.engine import checkpoint
from hotrows.engine.distributed.in_process import run as run_ranks
from hotrows.engine.embedding import Embedding
from hotrows.engine.storage.file_store import FileStore
from hotrows.engine.storage.store_view import view_at
from hotrows.optim import Adagrad
from hotrows.serving.export.publisher import Publisher
from hotrows.serving.export.whole import export
from hotrows.serving.version import open_base, versions_in, with_deltas
from hotrows.train import Trainer, load_run
from hotrows.train.run import folder as run_folder
from tests.fuzz.case import Broken
from tests.support.checkpoints import dense, state
from tests.support.clicks import SCHEMA, table
from tests.support.damage import trial
from tests.support.embeddings import batches_of, mixed_tables, placements
from tests.support.embeddings import train as train_embedding
from tests.support.file_stores import META, first_values, read, write
from tests.support.published import contents_of, train_published
from tests.support.runs import CONFIG, schema, write_rows

ROWS, STRIDE = 4000, 64


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A folder with prepared data of several shards, a run on it, and raw rows."""
    return run_in(tmp_path_factory.mktemp("whole"))


@pytest.fixture(scope="module")
def key_runs(tmp_path_factory):
    """A run with a dynamic feature, whose keys come and go."""
    return run_in(
        tmp_path_factory.mktemp("whole"),
        full_every=3,
        dynamic=Dynamic(capacity=18, admit="after:2", evict="lru", partitions=2),
    )


def run_in(folder, full_every=CONFIG.full_every, **options):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shards.ShardWriter.__init__, "__defaults__", (300,))
        raw = write_rows(folder / "raw.csv")
        data = prepare([raw], schema(**options), folder / "enc", split="position:0.6,0.2,0.2")
    config = dataclasses.replace(CONFIG, keep_last=3, epochs=1, full_every=full_every)
    Trainer(data, config, folder / "run").fit()
    for path in (folder / "run").iterdir():
        if path.name.startswith("events") or path.suffix == ".svg":
            path.unlink()
    lines = (folder / "raw.csv").read_text().splitlines()[:80]
    (folder / "raw.csv").write_text("\n".join(lines) + "\n")
    return folder


def predictions(folder):
    """The probabilities that two checkpoints of the run predict for raw rows."""
    results = []
    for which in ("best", "last"):
        predictor = load_run(folder / "run", which)
        batches = run_folder.open_encoder(folder / "run").encode(folder / "raw.csv")
        results += [p.numpy().tobytes() for p in predictor.predict(batches)]
    return results


def resumed(folder):
    """What a run that is resumed has before its next step."""
    run = folder / "run"
    config = dataclasses.replace(run_folder.read_config(run), epochs=2)
    trainer = Trainer(EncodedData.open(folder / "enc"), config, run, resume=True)
    batch = next(trainer.steps.batches.after(trainer.state))[1]
    return (
        trainer.state, trainer.config, trainer.total_steps,
        [store.records.numpy().tobytes() for store in trainer.embedding.stores],
        [value.numpy().tobytes() for value in trainer.model.state_dict().values()],
        [v.numpy().tobytes() for v in tensors(trainer.steps.dense_optimizer.state_dict())],
        trainer.recommender.random.states[0].numpy().tobytes(), batch.ids.numpy().tobytes(),
    )  # fmt: skip


def with_keys(folder):
    """Predictions, what a run that is resumed has, and the keys of all checkpoints."""
    last = checkpoint.folder_of(folder / "run", "last")
    return predictions(folder), resumed(folder), checkpoint.key_tables(last)


def tensors(optimizer):
    states = sorted(optimizer["state"].items())
    return [v for _, of in states for _, v in sorted(of.items()) if isinstance(v, torch.Tensor)]


def epochs(folder):
    """All batches of an epoch of each part, and an encoded batch."""
    data = EncodedData.open(folder / "enc")
    parts = [(data.parts["train"], True), (data.parts["train"], False), (data.parts["test"], False)]
    batches = [b for part, shuffle in parts for b in Loader(part, 64, shuffle=shuffle).batches(0)]
    batches += Encoder.open(folder / "enc", threads=1).encode(folder / "raw.csv")
    arrays = [array for b in batches for array in (b.ids, b.dense, b.labels)]
    return data.fingerprint, b"".join(array.numpy().tobytes() for array in arrays)


def described(folder):
    data = EncodedData.open(folder / "enc")
    data.check()
    return describe(data).to_json()


def store_of(method, folder):
    return method(folder / "store", ROWS, STRIDE, first_values, META, 1000)


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    """A file store with merged generations, of which an old one is retained, and a log."""
    folder = tmp_path_factory.mktemp("whole")
    choose = np.random.default_rng(0)
    with store_of(FileStore.create, folder) as store:
        for step in range(4):
            write(store, np.sort(choose.choice(ROWS, 500, replace=False)), step)
            store.checkpoint()
            if step in (0, 2):
                store.retain([1, step + 1])
                store.merge_now()
    assert {"base-1", "base-3", "log-4"} <= {path.name for path in (folder / "store").iterdir()}
    return folder


def restored(folder):
    """The rows of the newest checkpoint, those of an old one as they were, and those after going back."""
    rows = []
    with view_at(folder / "store", ROWS, STRIDE, first_values, META, 1) as view:
        out = torch.empty(ROWS, STRIDE, dtype=torch.uint8)
        view.read(torch.arange(ROWS), out)
        rows.append(out.numpy().tobytes())
    for generation in (4, 1):
        with store_of(FileStore.open, folder) as store:
            store.restore(generation)
            rows.append(read(store, range(ROWS)).numpy().tobytes())
    return rows


TABLES = mixed_tables(Adagrad())


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """A run whose checkpoints three ranks have written, with rows on all of them and increments."""
    folder = tmp_path_factory.mktemp("whole")

    def work(ranks):
        embedding = Embedding(TABLES, seed=3, ranks=ranks, sharding=placements("mixed", 3))
        writer = checkpoint.Writer(folder / "run", embedding, dense(), full_every=3, keep_last=3)
        for step, batch in enumerate(batches_of("single", 2, 6)):
            writer.save(state(step))
            train_embedding(embedding, [batch])
        writer.wait()

    run_ranks(work, 3)
    assert checkpoint.read_manifest(checkpoint.folder_of(folder / "run", "last")).base, "an increment"
    return folder


def resharded(folder):
    """The rows that one rank and those that three read, the loaded state, and the parameters."""

    def work(ranks, name):
        model = dense()
        embedding = Embedding(TABLES, ranks=ranks, sharding=placements(name, ranks.num_ranks))
        loaded = checkpoint.load(checkpoint.folder_of(folder / "run", "last"), embedding, model)
        rows = [store.records.numpy().tobytes() for store in embedding.stores]
        return rows, loaded.step, loaded.fields, model.weight.tolist()

    return run_ranks(lambda ranks: work(ranks, "rows"), 1), checkpoint.checkpoints_of(folder / "run")


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """Versions of a model: bases, and deltas behind them."""
    folder = tmp_path_factory.mktemp("whole")
    prepare(table(400), SCHEMA, folder / "enc", split="position:0.8")
    publisher = Publisher(folder / "to", "2b", base_every=3)
    train_published(folder / "enc", folder / "run", 16, publisher)
    return folder


def versions(folder):
    """The contents of the first and the last version that are there, and where each delta leads."""
    chain = versions_in(folder / "to")
    results = []
    for number in (chain.bases[0], chain.newest):
        base, deltas = chain.way(0, number)
        version = with_deltas(open_base(chain.folder, base, verify=True), chain.folder, deltas)
        results.append((version.number, version.head.step, contents_of(version)))
    return results


# ---- targets: what reads them, which files of the folder, and how often in CI


def files_of(folder, *patterns):
    return sorted(
        {str(p.relative_to(folder)) for one in patterns for p in folder.glob(one) if p.is_file()}
    )


USED = ("run/*.json", "run/encoders/*", "run/checkpoints/**/*")
TARGETS = {
    "predict": ("runs", predictions, USED, 27),
    "resume": ("runs", resumed, (*USED, "enc/data.json", "run/metrics.jsonl"), 18),
    "data": ("runs", epochs, ("enc/*",), 27),
    "describe": ("runs", described, ("enc/*",), 12),
    "store": ("stores", restored, ("store/store.json", "store/log-*"), 40),
    "ranks": ("ranks", resharded, ("run/**/*",), 40),
    "keys": ("key_runs", with_keys, USED, 10),
    "versions": ("published", versions, ("to/**/*",), 14),
}


@pytest.mark.parametrize(
    "target", [pytest.param(t, marks=[pytest.mark.slow] * (t in ("keys", "versions"))) for t in TARGETS]
)
def test_a_damaged_file_is_refused_in_a_line_or_changes_nothing(target, tmp_path, request):
    fixture, action, patterns, num_trials = TARGETS[target]
    whole = request.getfixturevalue(fixture)
    shutil.copytree(whole, tmp_path / "case")
    expected, names = action(tmp_path / "case"), files_of(whole, *patterns)
    counts = {"same": 0, "refused": 0, "forged": 0}
    broken = []
    for number in range(num_trials * (60 if request.config.getoption("--all") else 1)):
        try:
            counts[trial(whole, tmp_path / "case", names, action, expected, f"{target} {number}")] += 1
        except Broken as error:
            broken.append(str(error))
    assert not broken, "\n".join(broken)
    assert counts["refused"] > num_trials // 4, counts


# ---- checksums themselves


def test_files_of_a_run_that_are_edited_need_no_checksum(tmp_path, request):
    fixture, action, _, _ = TARGETS["resume"]
    whole = request.getfixturevalue(fixture)
    expected = action(shutil.copytree(whole, tmp_path / "whole"))
    edited = shutil.copytree(whole, tmp_path / "edited")
    for name in ("config", "schema", "choices", "checkpoints"):
        path = edited / "run" / f"{name}.json"
        fields = json.loads(path.read_text())
        del fields["format"], fields["crc32"]
        path.write_text(json.dumps(fields))
    assert action(edited) == expected


ALL_READ = {
    "predict": ("config", "schema", "data", "choices", "checkpoints", "encoders/data"),
    "resume": ("config", "choices", "checkpoints", "placing"),
    "data": ("../enc/data",),
    "store": ("../store/store",),
    "ranks": ("checkpoints", "checkpoints/step-0/manifest", "checkpoints/step-1/manifest"),
}


@pytest.mark.parametrize("target, name", [(t, name) for t in ALL_READ for name in ALL_READ[t]])
def test_a_checksum_is_missed_where_it_is_left_out(target, name, tmp_path, request):
    fixture, action, _, _ = TARGETS[target]
    case = shutil.copytree(request.getfixturevalue(fixture), tmp_path / "case")
    path = (case / "run" / f"{name}.json").resolve() if ".." not in name else case / f"{name[3:]}.json"
    fields = json.loads(path.read_text())
    del fields["crc32"]
    path.write_text(json.dumps(fields))
    with pytest.raises(
        ValueError,
        match=rf"{path.name} (is damaged|cannot be read): .*(checksum is missing|base checkpoint)",
    ):
        action(case)


def test_commands_name_every_damaged_file(runs, tmp_path, capsys):
    case = shutil.copytree(runs, tmp_path / "case")
    last, enc = checkpoint.folder_of(case / "run", "last"), case / "enc"
    export(case / "run", case / "model")
    commands = {
        f"checkpoint inspect {case / 'run'} --verify": [
            last / "pack-0.records",
            last / "model.safetensors",
        ],
        f"checkpoint inspect {case / 'model'} --verify": [case / "model" / "model.safetensors"],
        f"describe {enc} --verify": [enc / "train-00001.shard", enc / "vocabulary-00001.values"],
    }
    for command, damaged in commands.items():
        status, said = said_by(capsys, command)
        assert (status, "checksums are right" in said.replace("  ", " ")) == (0, True), said
        for path in damaged:
            content = bytearray(path.read_bytes())
            content[-70] ^= 1
            path.write_bytes(content)
        status, said = said_by(capsys, command)
        assert status == 1
        named = [line.split(":")[0].split(" ")[0] for line in said.splitlines()]
        assert sorted(named) == sorted(map(str, damaged))
        assert all("damaged" in line for line in said.splitlines())


def said_by(capsys, command):
    code = 0
    try:
        cli.main(command.split())
    except SystemExit as exited:
        code = exited.code or 0
    said = capsys.readouterr()
    return code, said.err if code else said.out


def test_training_compares_every_byte_of_its_data_in_the_first_epoch(runs, tmp_path):
    case = shutil.copytree(runs, tmp_path / "case")
    path = case / "enc" / "train-00002.shard"
    content = bytearray(path.read_bytes())
    content[-70] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"train-00002.shard: section '.*' is damaged \(crc32"):
        Trainer(EncodedData.open(case / "enc"), CONFIG, case / "again").fit()
