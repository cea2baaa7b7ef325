"""A model of vectors: bundles score raw rows as the run does, be a vector of a row or of the request."""

import numpy as np
import pyarrow as pa
import pytest

from hotrows.data import prepare
from hotrows.schema import Dense, Schema, Sequence, Sparse
from hotrows.serving import Scorer
from hotrows.serving.export.whole import export
from hotrows.tools.report.contributions import contributions
from hotrows.tools.report.importance import importances
from hotrows.train import load_run
from hotrows.train.telling.row_sample import rows_of
from tests.support.bundles import expected_logits, furthest, trained
from tests.support.clicks import table

pytestmark = [
    pytest.mark.usefixtures("one_thread", "no_pictures"),
    pytest.mark.filterwarnings("ignore:values differ from those"),
]
FEATURES = (
    Dense("image", width=6),
    Dense("price"),
    Dense("taste", width=2, stored="float16"),
    Sparse("user"),
    Sequence("history", max_length=4),
)


def rows(number, seed=0):
    random = np.random.default_rng(seed)
    lists = {
        name: pa.array(
            [None if n % 9 == 4 else random.normal(size=width).tolist() for n in range(number)]
        )
        for name, width in {"image": 6, "taste": 2}.items()
    }
    clicks = table(number, seed)
    for name, array in lists.items():
        clicks = clicks.append_column(name, array)
    return clicks


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("vectors")
    data = prepare(rows(300), Schema(FEATURES, label="click"), folder / "enc")
    return trained(data, folder / "run", "deepfm", crosses=[], effects=[])


def test_a_bundle_scores_rows_with_vectors_as_the_run_does(run, tmp_path):
    fresh, predictor = rows(40, seed=1).drop_columns(["click"]), load_run(run)
    expected = expected_logits(predictor, fresh)
    scorer = Scorer(export(run, tmp_path / "bundle", format="onnx"), trust=True)
    assert furthest(scorer.logits(fresh), expected) < 1e-5
    candidates = [{"image": x} for x in fresh["image"].to_pylist()]
    shared = {"taste": [0.5, -1.0], "user": 3, "price": 2.0, "history": [1, 2]}
    one_by_one = np.concatenate([scorer.logits([row | shared]) for row in candidates])
    assert furthest(scorer.logits(candidates, shared), one_by_one) < 1e-5
    with pytest.raises(
        ValueError, match="column 'image': expected a list of 6 numbers of float32, found '\\[1.0\\]'"
    ):
        scorer.logits([{"image": [1.0], "user": 3}])


def test_a_program_computes_vectors_of_a_request_once(run, tmp_path):
    names = ("taste", "user", "price", "history")
    scorer = Scorer(export(run, tmp_path / "bundle", format="onnx", shared=names), trust=True)
    (dense, _) = (entry for entry in scorer.bundle.shared_inputs if entry.kind == "dense")
    assert [name for name, _ in dense.reads] == ["price", "taste", "taste"] and dense.shared
    candidates = [{"image": x} for x in rows(40, seed=2)["image"].to_pylist()]
    shared = {"taste": [0.5, -1.0], "user": 3, "price": 2.0, "history": [1, 2]}
    one_by_one = np.concatenate([scorer.logits([row | shared]) for row in candidates])
    assert furthest(scorer.logits(candidates, shared), one_by_one) < 1e-4


def test_reports_treat_a_vector_as_one_feature(run):
    predictor = load_run(run)
    names = [feature.name for feature in predictor.schema.id_features]
    batches = list(predictor.encoder.encode(rows(60, seed=3)))
    sample = rows_of(batches, names, 60)
    assert {("image",), ("taste",), ("price",)} <= {
        one.names for one in importances(predictor, sample)[0]
    }
    added = contributions(predictor, sample, 0, sample)
    assert {("image",), ("taste",), ("price",)} <= set(added.adds)
    assert added.adds["image",]["click"] != 0
