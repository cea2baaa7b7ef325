"""An export holds the bits of the run, in files that safetensors reads."""

import dataclasses
import re

import pyarrow as pa
import pytest
import torch
from safetensors.torch import load_file

from hotrows import TrainConfig, cli
from hotrows.data import prepare
from hotrows.dynamic import Dynamic
from hotrows.engine import checkpoint
from hotrows.engine.checkpoint.table_files import export_problems, table_file
from hotrows.engine.embedding import Embedding
from hotrows.engine.storage import cache
from hotrows.optim import FTRL, SGD, Adagrad, DenseAdam, LazyAdam, RowWiseAdagrad
from hotrows.schema import Label, Schema, Sparse
from hotrows.serving import Scorer, bundle
from hotrows.serving.export.publisher import Publisher
from hotrows.serving.export.whole import export
from hotrows.train import Trainer, load_run
from tests.support.exports import assert_exported
from tests.support.runs import CONFIG, schema, write_rows

pytestmark = pytest.mark.usefixtures("one_thread", "no_pictures")

SHORT = dataclasses.replace(CONFIG, steps=6)


@pytest.fixture(scope="module")
def encoded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    raw = write_rows(folder / "raw.csv", 600)
    return prepare([raw], schema(), folder / "enc", split="position:0.6,0.2,0.2")


def trained(encoded, run, **options):
    Trainer(encoded, dataclasses.replace(SHORT, **options), run).fit()
    return run


@pytest.mark.few(3)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "int8", "int4"])
@pytest.mark.parametrize("store", ["all in memory", "memory", "file"])
def test_an_export_reads_back_as_the_run(encoded, tmp_path, monkeypatch, store, dtype):
    options = {"table_dtype": dtype}
    if store != "all in memory":
        options |= {"fast_memory": 40 * 20, "store": "memory"}
    if store == "file":
        options["store"] = f"file:{tmp_path / 'store'}"
    run = trained(encoded, tmp_path / "run", **options)
    monkeypatch.setattr(cache.chunks, "__defaults__", (7,))  # tables of some 30 rows
    assert export(run, tmp_path / "out") == tmp_path / "out"
    found = assert_exported(run, tmp_path / "out")
    assert (found["model"], found["model_options"]) == ("deepfm", CONFIG.model_options)
    assert [f["name"] for f in found["schema"]["features"]] == ["n", "a", "b"]
    assert {(of["role"], *of["features"]) for of in found["tables"]} == {
        (role, feature) for role in ("vector", "linear") for feature in "ab"
    }


def test_a_bundle_of_weights_that_are_not_finite_is_refused(encoded, tmp_path, monkeypatch):
    run = trained(encoded, tmp_path / "run", table_dtype="int4")
    monkeypatch.setattr(Embedding, "weight_chunks", lambda *_: iter([torch.full((3, 4), torch.nan)]))
    with pytest.raises(ValueError, match="no finite numbers: training diverged; export an earlier"):
        export(run, tmp_path / "out", format="onnx")


STATES = {
    SGD(): {},
    Adagrad(): {"sum_of_squares": slice(0, 4)},
    RowWiseAdagrad(): {"sum_of_squares": 0},
    LazyAdam(per_row_step=True): {"first_moment": slice(0, 4), "second_moment": slice(4, 8)},
    FTRL(): {"n": slice(0, 4), "z": slice(4, 8)},
    DenseAdam(): {"first_moment": slice(0, 4), "second_moment": slice(4, 8)},
}


@pytest.mark.few(4)
@pytest.mark.parametrize("store", ["all in memory", "file"])
@pytest.mark.parametrize("optimizer", STATES, ids=str)
def test_with_state_an_export_has_every_number_of_the_optimizers(encoded, tmp_path, optimizer, store):
    in_file = {"fast_memory": 2000, "store": f"file:{tmp_path / 'store'}"} if store == "file" else {}
    run = trained(encoded, tmp_path / "run", row_optimizer=optimizer, **in_file)
    out = export(run, tmp_path / "out", "last", state=True)
    assert not list(export_problems(out / "export.json"))
    saved = checkpoint.folder_of(run, "last") / "trainer.safetensors"
    assert (out / "trainer.safetensors").read_bytes() == saved.read_bytes()
    embedding, tensors = load_run(run, "last").embedding, load_file(out / "tables" / "a.safetensors")
    (records,) = embedding.packed.record_chunks("a")
    has_step = {"step"} if records.step is not None else set()
    assert set(tensors) == {"weight", *STATES[optimizer], *has_step}
    assert torch.equal(tensors["weight"], records.weights)
    for name, columns in STATES[optimizer].items():
        assert torch.equal(tensors[name], records.state[:, columns]) and tensors[name].any(), name
    if has_step:
        assert torch.equal(tensors["step"], records.step) and tensors["step"].max() == 6
    embedding.close()


def test_state_is_not_for_bundles(tmp_path):
    with pytest.raises(ValueError, match="state is written in format safetensors, not in onnx"):
        export(tmp_path / "run", tmp_path / "out", format="onnx", state=True)


def test_a_file_store_is_never_read_whole(encoded, tmp_path, monkeypatch):
    run = trained(encoded, tmp_path / "run", fast_memory=800, store=f"file:{tmp_path / 'store'}")
    monkeypatch.setattr(cache.chunks, "__defaults__", (7,))
    sizes, read = [], cache.Cache.read
    monkeypatch.setattr(cache.Cache, "read", lambda *a: sizes.append(len(a[1])) or read(*a))
    seen = []
    export(run, tmp_path / "out", progress=lambda *told: seen.append(told))
    assert max(sizes) == 7
    assert seen[-1] == ("exporting", sum(sizes), sum(sizes))


def test_the_last_checkpoint_can_be_exported_too(encoded, tmp_path):
    run = trained(encoded, tmp_path / "run", evaluate_every=3, row_optimizer=None, dense_lr=3.0)
    pointer = checkpoint.pointed(run)
    export(run, tmp_path / "last", "last")
    assert assert_exported(run, tmp_path / "last", "last")["checkpoint"] == "last"
    export(run, tmp_path / "best")
    same = all(
        (tmp_path / "best" / file).read_bytes() == (tmp_path / "last" / file).read_bytes()
        for file in ("model.safetensors", "tables/a.safetensors")
    )
    assert same == (pointer.best == pointer.last)


NAMES = [
    "../a b", "c/d", "..", ".", "nul\0x", "CON", "lpt1.x", "User", "user", "a" * 300, "a" * 300 + "/",
    " x ", "\u7528\u6237\u8fc7\u53bb\u4e09\u5341\u5929" * 9, "\u00e9" * 60,
]  # fmt: skip


def test_a_table_may_have_any_name():
    """From 28 Chinese characters on, a name was too long for a file once it was percent-encoded."""
    assert table_file("../a b", NAMES) == "tables/..%2Fa b.safetensors"
    for file_of in (table_file, bundle.table_file, bundle.keys_file):
        files = [file_of(name, NAMES).lower() for name in [*NAMES, "\ud800"]]
        assert len(set(files)) == len(files)  # where case is ignored, too
        for file in files:
            folder, _, name = file.partition("/")
            assert folder in ("tables", "keys") and "/" not in name and len(name) < 143 and name.isascii()
            assert not re.match(r"(con|nul|lpt1)[ .]", name) and "\0" not in name
    assert len(table_file(NAMES[-2])) < 143


@pytest.mark.usefixtures("one_registry")
def test_columns_of_any_name_are_exported_and_published(tmp_path):
    features = [
        Sparse(name, dynamic=Dynamic()) if name.lower() == "user" else Sparse(name) for name in NAMES
    ]
    schema = Schema((*features,), label=Label("y"))
    columns = {name: [f"{(i * 7) % (3 + n)}" for i in range(96)] for n, name in enumerate(NAMES)}
    data = prepare(
        pa.table({"y": [0, 1] * 48, **columns}), schema, tmp_path / "enc", split="position:0.7"
    )
    publisher = Publisher(tmp_path / "to", "1b", base_every=2)
    config = TrainConfig(model="lr", steps=4, batch_size=16, linear_paths="plain")
    Trainer(data, config, tmp_path / "run").fit(callbacks=[publisher])
    weights = export(tmp_path / "run", tmp_path / "weights", "last")
    assert not list(export_problems(weights / "export.json"))
    served = Scorer(export(tmp_path / "run", tmp_path / "bundle", "last", format="onnx"), verify=True)
    followed, rows = Scorer.watch(tmp_path / "to", every=None), [dict.fromkeys(NAMES, "1"), {}]
    assert followed.version.number > 1
    assert followed.logits(rows).tobytes() == served.logits(rows).tobytes()


def test_what_exists_is_not_overwritten_and_nothing_half_is_left(encoded, tmp_path, monkeypatch):
    run, out = trained(encoded, tmp_path / "run"), tmp_path / "out"
    out.mkdir()
    (out / "mine").write_text("")
    with pytest.raises(ValueError, match="exists and is no empty folder"):
        export(run, out)
    with pytest.raises(ValueError, match="checkpoint must be 'last' or 'best', not 'first'"):
        export(run, tmp_path / "new", "first")
    with pytest.raises(ValueError, match="nothing does not exist"):
        export(tmp_path / "nothing", tmp_path / "new")
    monkeypatch.setattr("hotrows.serving.export.whole._bytes_of", lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        export(run, tmp_path / "new")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "run"]


def test_the_command_says_what_it_wrote(encoded, tmp_path, capsys):
    run = trained(encoded, tmp_path / "run")
    cli.main(["export", str(run), "--out", str(tmp_path / "out")])
    said = capsys.readouterr().out
    assert said.startswith(f"{tmp_path / 'out'}: ") and "4 tables" in said
    assert_exported(run, tmp_path / "out")
