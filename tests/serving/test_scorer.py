"""Scorer: without PyTorch, what is shared once, quantised rows, and bundles that are not whole."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch

import hotrows
from hotrows import cli, load_run
from hotrows.cli.checkpoints import merge_command
from hotrows.engine.planning.crosses import bucket_of as bucket_of_tensors
from hotrows.losses import parse
from hotrows.models import Model, tables
from hotrows.serving import Scorer, chain, table_rows
from hotrows.serving.deltas import VersionHead
from hotrows.serving.export.whole import export
from hotrows.serving.requests import bucket_of
from hotrows.serving.scorer import predictions
from hotrows.train import Trainer
from hotrows.train.metrics import compute_metrics
from tests.support.bundles import expected_logits, furthest, raw_rows, trained
from tests.support.clicks import SCHEMA, table

pytestmark = [
    pytest.mark.usefixtures("one_thread", "no_pictures"),
    pytest.mark.filterwarnings("ignore:values differ from those"),
]

ROWS = raw_rows(40)


@pytest.fixture(scope="module")
def scorer(din_bundle):
    return Scorer(din_bundle)


def test_nothing_of_pytorch_is_imported(din_bundle, scorer):
    code = f"""
import sys
sys.modules["torch"] = None
from hotrows.serving import Scorer
print(Scorer({str(din_bundle)!r}).score([{{"user": 3, "history": [1, 2]}}])[0])
"""
    environment = {**os.environ, "PYTHONPATH": str(Path(hotrows.__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) == pytest.approx(float(scorer.score([{"user": 3, "history": [1, 2]}])[0]))


def test_rows_come_as_objects_tables_frames_and_columns(scorer):
    expected = scorer.score(ROWS)
    frame = pd.DataFrame(ROWS.to_pydict())
    for rows in (ROWS.to_pylist(), ROWS.to_pydict(), frame, ROWS.append_column("other", ROWS["user"])):
        assert scorer.score(rows) == pytest.approx(expected)


def test_what_all_rows_share_is_given_once_and_looked_up_once(scorer, monkeypatch):
    history, items = [4, 5, 6, 9], list(range(25))
    apart = [{"user": 3, "item": item, "history": history, "tags": [1, 2]} for item in items]
    candidates = [{"item": item} for item in items]
    looked_up, read = [], table_rows.TableRows.__getitem__
    monkeypatch.setattr(
        table_rows.TableRows,
        "__getitem__",
        lambda rows, ids: looked_up.append(len(ids)) or read(rows, ids),
    )
    shared = scorer.score(candidates, shared={"user": 3, "history": history, "tags": [1, 2]})
    assert sum(looked_up) == 25 + 25 + 1 + 2 + len(history)  # vector and bias of the items, user, tags
    in_full = list(looked_up)
    looked_up.clear()
    assert scorer.score(apart).tobytes() == shared.tobytes()
    assert looked_up == in_full


def test_requests_together_are_scored_as_each_by_itself(scorer):
    parts = [ROWS.slice(0, 7), ROWS.slice(7, 1), ROWS.slice(8, 20)]
    requests = [request for part in parts for request in scorer.requests.encode(part)]
    together = [scorer.predictions(logits) for logits in scorer.logits_of(requests)]
    for part, scores in zip(parts, together, strict=True):
        assert scores == pytest.approx(scorer.score(part), rel=1e-6)


def test_a_table_of_any_length_is_scored_in_pieces(scorer, monkeypatch):
    expected = scorer.score(ROWS)
    monkeypatch.setattr("hotrows.serving.requests.MOST_ROWS", 17)
    for name, most in (("_ROWS_AT_ONCE", 6), ("_PLACES_AT_ONCE", 11)):
        monkeypatch.setattr(f"hotrows.serving.scorer.{name}", most)
        assert scorer.score(ROWS) == pytest.approx(expected, rel=1e-6)
    assert scorer.score(ROWS.slice(0, 0)).shape == (0,)


@pytest.mark.parametrize(
    "rows, shared, why",
    [
        ([], None, "expected rows, an object of fields each, found no row"),
        ([3], None, "expected rows, an object of fields each, found int"),
        ([{"usr": 3}], None, "the model reads no field 'usr'; did you mean 'user'?"),
        ([{"user": 3}], {"itm": 3}, "the model reads no field 'itm'; did you mean 'item'?"),
        ([{"user": 3}], {"user": 3}, "'user' is in `shared` and in the rows; send it once"),
        (
            pa.table({"usr": [3]}),
            None,
            "the request has none of the fields that the model reads: price, user, item",
        ),
        ([{"price": "much"}], None, "the request row 1, column 'price': expected a number, found 'much'"),
        ([{"user": {"a": 1}}], None, "column 'user': expected ids"),
    ],
)
def test_wrong_rows_are_refused_in_a_line(scorer, rows, shared, why):
    with pytest.raises(ValueError, match=re.escape(why)):
        scorer.score(rows, shared)


def test_what_is_read_ahead_of_its_use_has_the_same_scores(din_bundle, scorer, monkeypatch):
    monkeypatch.setattr("hotrows.serving.version.total_memory", lambda: 1)
    in_files = Scorer(din_bundle, memory=0)
    item, ids = in_files.version.tables["item"], []
    of_core = table_rows.native.call
    monkeypatch.setattr(
        table_rows.native, "call", lambda *given: ids.extend(given[-2]) or of_core(*given)
    )
    assert in_files.logits(ROWS).tolist() == scorer.logits(ROWS).tolist()
    assert max(ids) < item.rows and len(ids) > 2 * len(ROWS)
    item.read_ahead(np.array([0, item.rows - 1, item.rows + 10**6]))  # beyond the file: left out


@pytest.mark.parametrize("dtype", table_rows.DTYPES)
def test_stored_rows_are_within_half_a_step(dtype):
    weights = np.random.default_rng(0).normal(size=(50, 7)).astype(np.float32)
    weights[3] = 0.25
    stored = table_rows.encode(weights, dtype)
    expected, shape = table_rows.stored_shape(dtype, 50, 7)
    assert (stored.dtype, stored.shape) == (expected, shape)
    levels = {"int8": 255, "int4": 15}.get(dtype)
    step = 2e-3 if levels is None else (weights.max(1) - weights.min(1)) / levels
    error = np.abs(table_rows.decode(stored, dtype, 7) - weights).max(1)
    assert (error <= step / 2 + 1e-6).all() and error[3] == 0
    assert (error == 0).all() == (dtype == "float32")
    assert table_rows.decode(stored[:0], dtype, 7).shape == (0, 7)  # int4 failed on requests without ids


@pytest.mark.usefixtures("one_trace")
def test_smaller_tables_say_their_errors_and_predict_nearly_the_same(din_run, din_bundle, tmp_path):
    expected = Scorer(din_bundle).logits(ROWS)
    errors = []
    for dtype, most in {"float16": 1e-3, "int8": 0.01, "int4": 0.2}.items():
        out = export(din_run, tmp_path / dtype, format="onnx", table_dtype=dtype)
        said = json.loads((out / "export.json").read_text())
        by_name = {table["name"]: table for table in said["tables"]}
        assert by_name["item"]["dtype"] == dtype
        assert by_name["item.bias"]["dtype"] == ("float16" if dtype == "float16" else "float32")
        errors.append(by_name["item"]["largest_error"])
        assert 0 < by_name["item"]["rms_error"] < errors[-1]
        assert furthest(Scorer(out).logits(ROWS), expected) < most
        assert 0 < said["largest_difference"] < most
    assert 0 < errors[0] < errors[1] < errors[2]


@pytest.mark.usefixtures("one_trace")
def test_export_prints_what_fewer_bits_cost_on_held_out_rows(
    din_run, clicks_encoded, tmp_path, capsys, monkeypatch
):
    held_out = table(400).slice(320)
    labels, weights = (torch.tensor(held_out[name].to_numpy()) for name in ("click", "weight"))
    arguments = ["export", str(din_run), "--format", "onnx", "--table-dtype", "int4", "--out"]
    cli.main([*arguments, str(tmp_path / "int4")])
    printed = capsys.readouterr().out
    predictor = load_run(din_run)
    logits = Scorer(tmp_path / "int4").logits(held_out), expected_logits(predictor, held_out)
    predictor.embedding.close()
    bundle, run = (compute_metrics(torch.tensor(z), labels, weights).auc for z in logits)
    assert abs(bundle - run) > 1e-5
    assert (
        f"click: AUC {bundle:.6f}, of the run {run:.6f}, difference {bundle - run:+.6f} (80 " in printed
    )

    def gone(run):
        raise FileNotFoundError

    monkeypatch.setattr("hotrows.train.run.folder.open_data", gone)
    cli.main([*arguments, str(tmp_path / "again")])
    assert "no held-out samples of the run's data were found" in capsys.readouterr().out


def test_a_cross_has_the_buckets_of_training():
    ids = np.random.default_rng(0).integers(0, 1 << 62, size=(3, 200))
    assert bucket_of(list(ids), 97).tolist() == bucket_of_tensors(torch.from_numpy(ids), 97).tolist()


def test_damaged_foreign_and_partial_bundles_are_refused_in_a_line(din_bundle, din_run, tmp_path):
    def copy(name):
        return Path(shutil.copytree(din_bundle, tmp_path / name))

    cut, flipped, edited, gone = copy("cut"), copy("flipped"), copy("edited"), copy("gone")
    os.truncate(cut / "tables/item.npy", 100)
    program = bytearray((flipped / "model.onnx").read_bytes())
    program[len(program) // 2] ^= 1
    (flipped / "model.onnx").write_bytes(program)
    text = (edited / "export.json").read_text()
    (edited / "export.json").write_text(text.replace('"model.onnx"', '"../model.onnx"', 1))
    (gone / "encoders" / "data.json").unlink()
    weights = export(din_run, tmp_path / "weights")
    for folder, why in {
        cut: "item.npy is damaged: it has 100 bytes instead of",
        flipped: "model.onnx is damaged: its checksum is wrong; export again",
        edited: "export.json is damaged: its checksum is wrong",
        gone: "data.json is damaged: the file is missing; export again",
        weights: "is an export of weights alone (--format safetensors), and has no program to serve",
        tmp_path: "is not an export: it has no export.json",
    }.items():
        with pytest.raises(ValueError, match=re.escape(why)):
            Scorer(folder)


def test_flipped_rows_are_noticed_where_that_is_asked(din_bundle, tmp_path):
    bundle = Path(shutil.copytree(din_bundle, tmp_path / "bundle"))
    rows = bytearray((bundle / "tables/user.npy").read_bytes())
    rows[-1] ^= 1
    (bundle / "tables/user.npy").write_bytes(rows)
    Scorer(bundle)
    with pytest.raises(ValueError, match="user.npy is damaged: its checksum is wrong"):
        Scorer(bundle, verify=True)


def test_a_program_of_pytorch_is_opened_only_where_it_is_trusted(din_run, tmp_path):
    out = export(din_run, tmp_path / "published" / "base-0000000001", format="pt2")
    chain.write_base_head(out, VersionHead("a", 1, 8, 0.0))
    merge = [str(out.parent), str(tmp_path / "merged")]
    with pytest.raises(ValueError, match="which evaluates expressions of it"):
        Scorer(out)
    with pytest.raises(ValueError, match="which evaluates expressions of it"):
        merge_command.main(merge, standalone_mode=False)
    merge_command.main([*merge, "--trust"], standalone_mode=False)


class Own(Model):
    """A model of one's own: the history, by a list layer of the library or by tensors of its own."""

    pools = staticmethod(hotrows.models.nn.pool_jagged)

    def __init__(self, schema):
        super().__init__()
        self.tables = tables.vector_tables(schema, 4)
        self.sequences = ("history",)
        self.layer = torch.nn.Linear(8, 1)

    def forward(self, vectors, dense):
        history, offsets = vectors.sequence("history")
        pooled = self.pools(history, offsets)
        return self.layer(torch.cat([vectors["item"], pooled], 1)).squeeze(1)


class Unpadded(Own):
    pools = staticmethod(lambda values, offsets: values[offsets[1:] - 1])


class Wrong(Own):
    """Counts the positions of all lists, in a program those behind their ends too."""

    @staticmethod
    def pools(values, offsets):
        size = offsets.numel() - 1 if isinstance(offsets, torch.Tensor) else offsets.lengths.shape[0]
        return values.new_ones(size, values.shape[1]) * values.shape[0]


def own_run(encoded, run, kind):
    config = hotrows.TrainConfig(model_options={}, steps=3, batch_size=32)
    Trainer(encoded, config, run, model=kind).fit()
    return run


def test_a_model_of_ones_own_is_exported_or_refused_with_the_reason(clicks_encoded, tmp_path):
    run = own_run(clicks_encoded, tmp_path / "own", Own)
    scorer = Scorer(export(run, tmp_path / "bundle", format="onnx", model=Own))
    predictor = load_run(run, model=Own)
    assert furthest(scorer.logits(ROWS), expected_logits(predictor, ROWS)) <= 1e-6
    for kind, why in {
        Unpadded: "Unpadded is not taken by torch.export: .*; use --format safetensors",
        Wrong: "the program of Wrong computes other logits than the model, by up to",
    }.items():
        run = own_run(clicks_encoded, tmp_path / kind.__name__, kind)
        with pytest.raises(ValueError, match=why):
            export(run, tmp_path / "refused", format="onnx", model=kind)
        assert not (tmp_path / "refused").exists()


def test_histories_of_several_lists_must_have_equal_lengths(tmp_path):
    tags = hotrows.Sparse("tag"), hotrows.Sequence("seen_tags", vocabulary="tag", max_length=5)
    schema = hotrows.Schema((*SCHEMA.features, *tags), label="click")
    of_six = {
        "user": [1, 2, 3, 1, 2, 3], "item": [4, 5, 4, 5, 4, 5], "tag": [1, 2, 3, 1, 2, 3],
        "price": [1.0] * 6, "tags": [[]] * 6, "click": [0, 1] * 3,
        "history": [[4, 5], [4]] * 3, "seen_tags": [[1, 2], [3]] * 3,
    }  # fmt: skip
    rows = {name: values * 20 for name, values in of_six.items()}
    data = hotrows.prepare(pa.table(rows), schema, tmp_path / "enc", split="position:0.8")
    run = trained(data, tmp_path / "run", "din", histories=[["history", "seen_tags"]])
    scorer = Scorer(export(run, tmp_path / "bundle", format="onnx"))
    predictor = load_run(run)
    assert furthest(scorer.logits(rows), expected_logits(predictor, rows)) <= 1e-6
    with pytest.raises(ValueError, match="belong together and differ in length"):
        scorer.score([{"history": [4, 5], "seen_tags": [1]}])


def test_formats_and_dtypes_that_do_not_go_together_are_refused(din_run, tmp_path):
    with pytest.raises(ValueError, match="format must be one of safetensors, onnx, pt2, not 'tf'"):
        export(din_run, tmp_path / "a", format="tf")
    with pytest.raises(ValueError, match="for format onnx or pt2, not 'int8' for safetensors"):
        export(din_run, tmp_path / "a", table_dtype="int8")


def test_predictions_beyond_float32_are_refused_as_logits_are():
    both, one = (parse("poisson"), parse("log_loss")), (parse("poisson"),)
    for outputs in ([95.0, 1.0], [np.inf, 1.0], [1.0, np.nan]):
        with pytest.raises(ValueError, match="the score of row 2 is no finite number"):
            predictions(np.array([[0.0, 0.0], outputs], np.float32), both)
    with pytest.raises(ValueError, match="the score of row 1 is no finite number"):
        predictions(np.array([95.0, 1.0], np.float32), one)
    assert predictions(np.array([0.0], np.float32), one).tolist() == [1.0]
