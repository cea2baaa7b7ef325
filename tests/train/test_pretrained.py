"""Pretrained tables: what files give which rows, wherever rows are."""

import dataclasses
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from pyarrow import feather, orc
from safetensors.numpy import save_file

from hotrows import data
from hotrows.engine.distributed.in_process import run
from hotrows.optim import Adagrad
from hotrows.schema import FIRST_UNKNOWN, Schema, Sequence, Sparse
from hotrows.train import Trainer, load_run
from hotrows.train.config import TrainConfig
from hotrows.train.loop.vectors import write_vectors
from tests.support.runs import same_bits

DIM = 4
CONFIG = TrainConfig(
    model="fm",
    model_options={"dim": DIM},
    batch_size=64,
    row_optimizer=Adagrad(lr=0.1),
    linear_paths="plain",
)
ITEMS = ["red", "blue", "2.0", "7", "black"]  # 2.0 and 2 are one value


@pytest.fixture(autouse=True)
def quick(no_pictures, threads):
    threads(1)


@pytest.fixture(scope="module")
def encoded(tmp_path_factory):
    rng = np.random.default_rng(0)
    rows = pa.table(
        {
            "label": rng.integers(2, size=300),
            "item": [ITEMS[i] for i in rng.integers(5, size=300)],
            "seen": [[ITEMS[i] for i in rng.integers(5, size=2)] for _ in range(300)],
            "user": rng.integers(9, size=300),
        }
    )
    features = (Sparse("item", num_unknown=2), Sparse("user"))
    features += (Sequence("seen", vocabulary="item", num_unknown=2),)
    folder = tmp_path_factory.mktemp("d") / "enc"
    return data.prepare(rows, Schema(features), folder, split="fraction:0.8,0.1,0.1")


@pytest.fixture(scope="module")
def vectors():
    return np.random.default_rng(1).normal(size=(4, DIM)).astype(np.float32)


VALUES = ["blue", "unheard of", "2", "red"]


@pytest.fixture
def file(tmp_path, vectors):
    table = pa.table({"name": VALUES, "vector": list(vectors)})
    pq.write_table(table, tmp_path / "items.parquet")
    return tmp_path / "items.parquet"


def id_of(encoded, value, feature="item"):
    row = pa.table({"item": ["red"], "user": [0], "seen": [[]]}).to_pydict()
    batch = next(data.Encoder.open(encoded.path).encode(pa.table({**row, feature: [value]})))
    return batch.ids[batch.features.index(feature)].item()


def weights_at_first(encoded, run, name="item", **changes):
    """The weights of a table before the first step, and what was said of it."""
    trainer = Trainer(encoded, dataclasses.replace(CONFIG, **changes), run)
    coverage = list(map(str, trainer.checkpoints.coverage))
    weights = trainer.embedding.weights(name).clone()
    trainer.embedding.close()
    return weights, coverage


def test_rows_of_the_file_have_its_vectors_and_others_their_own(encoded, file, vectors, tmp_path):
    plain, said = weights_at_first(encoded, tmp_path / "plain")
    assert said == []
    found, said = weights_at_first(encoded, tmp_path / "run", pretrained={"item": str(file)})
    for value, vector in zip(VALUES, vectors, strict=True):
        if value != "unheard of":
            row = id_of(encoded, value)
            assert torch.equal(found[row], torch.from_numpy(vector)), value
            plain[row] = found[row]
    assert torch.equal(found, plain)
    rows = FIRST_UNKNOWN + 2 + 5
    assert said == [
        f"item: 3 of {rows} rows from items.parquet; 1 of its values are not in the vocabulary"
    ]


@pytest.mark.parametrize(("dtype", "most"), [("int8", 127), ("int4", 7)])
def test_rows_of_integers_are_rounded_to_the_nearest(encoded, file, vectors, tmp_path, dtype, most):
    changes = {"pretrained": {"item": str(file)}, "table_dtype": dtype}
    found, _ = weights_at_first(encoded, tmp_path / "run", **changes)
    for value, vector in zip(VALUES, torch.from_numpy(vectors), strict=True):
        if value != "unheard of":
            error = (found[id_of(encoded, value)] - vector).abs().max()
            assert 0 < error <= vector.abs().max() / most


def test_every_format_gives_the_same(encoded, file, vectors, tmp_path):
    """By whole numbers, which all formats can have: users 0 to 3."""
    np.save(tmp_path / "u.npy", vectors)
    save_file({"values": np.arange(4), "vectors": vectors}, tmp_path / "u.safetensors")
    lists = pa.array(vectors.tolist(), pa.list_(pa.float64()))
    fixed = pa.FixedSizeListArray.from_arrays(vectors.reshape(-1), DIM)
    pq.write_table(pa.table({"v": lists, "user": ["0", "1", "2", "3"]}), tmp_path / "u.parquet")
    feather.write_feather(
        pa.table({"user": [0.0, 1.0, 2.0, 3.0], "v": fixed}), tmp_path / "u.arrow", compression="zstd"
    )
    orc.write_table(pa.table({"user": [0, 1, 2, 3], "v": lists}), tmp_path / "u.orc")
    found = [
        weights_at_first(encoded, tmp_path / end, "user", pretrained={"user": str(tmp_path / f"u.{end}")})
        for end in ("npy", "safetensors", "parquet", "arrow", "orc")
    ]
    assert torch.equal(found[0][0][id_of(encoded, 3, "user")], torch.from_numpy(vectors[3]))
    for weights, said in found[1:]:
        assert torch.equal(weights, found[0][0])
        assert said[0].startswith("user: 4 of 12 rows from")


def test_vectors_of_another_run_are_read_as_they_were_written(encoded, tmp_path):
    Trainer(encoded, dataclasses.replace(CONFIG, steps=2), tmp_path / "first").fit()
    table = load_run(tmp_path / "first").vectors("item")
    ids, vectors = table["id"].to_pylist(), torch.tensor(table["vector"].to_pylist())
    for end in ("npy", "arrow", "parquet"):
        write_vectors(table, tmp_path / f"v.{end}")
        files = {"item": str(tmp_path / f"v.{end}")}
        found, _ = weights_at_first(encoded, tmp_path / end, pretrained=files)
        assert torch.equal(found[ids], vectors), end


@pytest.mark.parametrize("store", ["memory", "file"])
def test_behind_a_cache_and_in_a_file_training_has_the_same_bits(encoded, file, tmp_path, store):
    config = dataclasses.replace(CONFIG, pretrained={"item": str(file)}, frozen="user")
    Trainer(encoded, config, tmp_path / "memory").fit()
    place = {"store": f"file:{tmp_path / 'store'}"} if store == "file" else {}
    cached = dataclasses.replace(config, fast_memory=20_000, policy="lru", **place)
    Trainer(encoded, cached, tmp_path / "cached").fit()
    one, other = load_run(tmp_path / "memory"), load_run(tmp_path / "cached")
    for table in one.embedding.tables:
        assert torch.equal(one.embedding.weights(table.name), other.embedding.weights(table.name))
    other.embedding.close()


@pytest.mark.parametrize("sharding", ["rows", "columns"])
def test_ranks_begin_with_the_same_rows(encoded, file, tmp_path, sharding):
    config = dataclasses.replace(CONFIG, pretrained={"item": str(file)}, sharding=sharding)
    expected, _ = weights_at_first(encoded, tmp_path / "alone", pretrained={"item": str(file)})

    def begin(ranks):
        checkpoints = Trainer(encoded, config, tmp_path / "ranks", ranks=ranks).checkpoints
        checkpoints.save()
        checkpoints.writer.close()
        return len(checkpoints.coverage)

    assert run(begin, 2) == [1, 1]
    assert torch.equal(load_run(tmp_path / "ranks", "last").embedding.weights("item"), expected)


def test_frozen_rows_stay_without_state_and_others_learn(encoded, file, tmp_path):
    config = dataclasses.replace(CONFIG, pretrained={"item": str(file)}, frozen="item", epochs=2)
    first, _ = weights_at_first(
        encoded, tmp_path / "first", pretrained={"item": str(file)}, frozen="item"
    )
    Trainer(encoded, config, tmp_path / "run").fit()
    predictor = load_run(tmp_path / "run")
    assert torch.equal(predictor.embedding.weights("item"), first)
    frozen = next(table for table in predictor.embedding.tables if table.name == "item")
    assert frozen.optimizer.state_width(DIM) == 0
    plain, _ = weights_at_first(encoded, tmp_path / "plain", "item.linear")
    assert not torch.equal(predictor.embedding.weights("item.linear"), plain)


def test_resuming_needs_the_file_no_more(encoded, file, tmp_path):
    copy = tmp_path / "copy.parquet"
    shutil.copy(file, copy)
    config = dataclasses.replace(CONFIG, pretrained={"seen": str(copy)}, epochs=2)  # shares item's rows
    Trainer(encoded, config, tmp_path / "whole").fit()
    Trainer(encoded, dataclasses.replace(config, epochs=1), tmp_path / "run").fit()
    copy.unlink()
    Trainer(encoded, config, tmp_path / "run", resume=True).fit()
    assert same_bits(tmp_path / "whole", tmp_path / "run")


def test_ids_of_data_without_values_are_the_values(vectors, tmp_path):
    rows = pa.table({"label": [0, 1] * 40, "item": list(range(8)) * 10})
    pq.write_table(rows, tmp_path / "rows.parquet")
    straight = data.open_parquet(Schema((Sparse("item", rows=8),)), tmp_path / "rows.parquet")
    np.save(tmp_path / "v.npy", vectors)
    found, said = weights_at_first(
        straight, tmp_path / "run", pretrained={"item": str(tmp_path / "v.npy")}
    )
    assert torch.equal(found[:4], torch.from_numpy(vectors))
    assert said == ["item: 4 of 8 rows from v.npy"]


def bad_files(folder, vectors):
    """Files by name, with what is said of each."""
    lists = list(vectors)
    half = [*lists[:3], None]
    yield "dup.parquet", pa.table({"v": ["2", "red", "x", "2.0"], "w": lists}), "'2' is in rows 0 and 3"
    yield (
        "two.parquet",
        pa.table({"a": VALUES, "b": VALUES, "w": lists}),
        "a column of values and a column",
    )
    yield "none.parquet", pa.table({"a": VALUES, "w": half}), "row 3, column 'w': expected a list of 4"
    yield "dim.parquet", pa.table({"a": VALUES, "w": [v[:3] for v in lists]}), "vectors of 3 numbers, and"
    whole = [[1, 2, 3, 4]] * 4
    yield "int.parquet", pa.table({"a": VALUES, "w": whole}), "expected vectors of floats"
    inf = [[1.0, 2.0, 3.0, 1e300]] * 4
    yield "inf.parquet", pa.table({"a": VALUES, "w": inf}), "'blue' has a number that float32 cannot hold"
    yield "one.npy", np.zeros(4, np.float32), "expected vectors of floats"
    yield "object.npy", np.array([None]), "is no npy file of numbers"
    yield "weight.safetensors", {"weight": vectors}, r"expected the tensors values, .*begin with that run"
    yield "text.txt", b"blue,1,2,3,4\n", "is no npy, safetensors, Parquet, Arrow or ORC file"
    yield "cut.parquet", b"PAR1" + b"x" * 20, "is no whole Parquet file .*; write it again"
    yield "empty.parquet", pa.table({"a": VALUES, "w": lists})[:0], "a column of lists .*, found no row"
    yield "absent.npy", None, "there is no such file of pretrained values"


def test_files_that_do_not_fit_are_refused_in_a_line(encoded, vectors, tmp_path):
    for name, content, message in bad_files(tmp_path, vectors):
        path = tmp_path / name
        if isinstance(content, pa.Table):
            pq.write_table(content, path)
        elif isinstance(content, np.ndarray):
            np.save(path, content, allow_pickle=True)
        elif isinstance(content, dict):
            save_file(content, path)
        elif content is not None:
            path.write_bytes(content)
        config = dataclasses.replace(CONFIG, pretrained={"item": str(path)})
        with pytest.raises(ValueError, match=message) as refused:
            Trainer(encoded, config, tmp_path / "run")
        assert str(path) in str(refused.value) and "\n" not in str(refused.value)


def test_names_that_are_no_tables_are_refused(encoded, file, tmp_path):
    message = "no table of the model has the name 'itme'; did you mean 'item'"
    for change in ({"pretrained": {"itme": str(file)}}, {"frozen": "itme"}):
        with pytest.raises(ValueError, match=message):
            Trainer(encoded, dataclasses.replace(CONFIG, **change), tmp_path / "run")
    twice = {"item": str(file), "seen": str(file)}
    with pytest.raises(ValueError, match="item: two files of pretrained values; name one"):
        Trainer(encoded, dataclasses.replace(CONFIG, pretrained=twice), tmp_path / "run")
    with pytest.raises(ValueError, match="give one of the two"):
        dataclasses.replace(CONFIG, pretrained={"item": "x"}, start_from="runs/a")
