"""Runs that begin with one whose data had fewer features."""

import dataclasses

import numpy as np
import pyarrow as pa
import pytest
import torch

import hotrows
from hotrows import Dense, Schema, Sequence, Sparse, TrainConfig, Trainer
from hotrows.data import prepare
from hotrows.train.loop.predictor import load_run
from tests.models.looked_up import SMALL

ROWS = 600
MODELS = (
    *((name, {}) for name in SMALL if name != "tbsm"),  # whose inputs come in an order of their own
    ("dnn", {"batch_norm": True, "dims": {"user": 4}}),
    ("dcnv2", {"structure": "stacked", "rank": 4}),
    ("dcnv2", {"rank": 4, "experts": 2, "linear": True}),
    ("wide_deep", {"crosses": [["user", "item"]], "cross_rows": 50}),
)


def rows(first=0, num=ROWS):
    draw = np.random.default_rng(first)
    user, item = draw.integers(0, 30, num), draw.integers(0, 20, num)
    click = ((user + item) % 5 < 2) ^ (draw.random(num) < 0.1)
    return pa.table(
        {
            "price": draw.normal(size=num) + click,
            "user": user,
            "item": item,
            "seen": [[int(x) for x in draw.integers(0, 20, n % 4 + 1)] for n in range(num)],
            "age": draw.normal(3, 2, size=num),
            "city": (user * 7 + draw.integers(0, 3, num)) % 11,
            "tags": [[f"t{x}" for x in draw.integers(0, 6, n % 3)] for n in range(num)],
            "image": [[float(x) for x in draw.normal(size=3)] for _ in range(num)],
            "voice": [[float(x) for x in draw.normal(size=12)] for _ in range(num)],
            "click": click.astype(int),
            "buy": click & (item % 2 == 0),
        }
    )


OLD = (
    Dense("price"),
    Sparse("user"),
    Sparse("item"),
    Sequence("seen", vocabulary="item", max_length=4),
    Dense("image", width=3),
)
NEW = (
    Sparse("city"),
    Dense("age", transform="standard"),
    Sequence("tags", max_length=3),
    Dense("voice", width=12),
)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Of 600 rows, and of others that extend these by features."""
    folder = tmp_path_factory.mktemp("wider")
    schema = Schema(OLD, label=("click", "buy"))
    narrow = prepare(rows(), schema, folder / "narrow", split="position:0.8,0.1,0.1")
    mixed = dataclasses.replace(schema, features=(NEW[0], *OLD[::-1], *NEW[1:]))
    wider = prepare(rows(1), mixed, folder / "wider", split="position:0.8,0.1,0.1", extend=narrow.path)
    return narrow, wider


def test_data_that_extend_others_by_features_have_their_ids_and_new_ones(data):
    narrow, wider = data
    assert wider.schema.features[: len(OLD)] == tuple(
        dataclasses.replace(f, rows=wider.schema.rows_of(f.name)) if not isinstance(f, Dense) else f
        for f in OLD
    )
    assert [feature.name for feature in wider.schema.features[len(OLD) :]] == [f.name for f in NEW]
    assert wider.extends == (narrow.fingerprint,) and set(wider.statistics) == {"age"}
    assert abs(wider.statistics["age"].mean - 3) < 0.5 and wider.schema.rows_of("city") > 11


@pytest.mark.filterwarnings("ignore:values differ")
@pytest.mark.few(10)
@pytest.mark.parametrize("model, options", MODELS)
def test_the_first_predictions_are_those_of_the_run(data, tmp_path, model, options):
    """A column could not be added to a trained model: tables that the checkpoint lacked were an error;
    and later still no vector, and beside vectors no number."""
    narrow, wider = data
    base = TrainConfig(
        model=model,
        model_options={**SMALL[model], **options},
        epochs=1,
        batch_size=64,
        calibration="none",
    )
    Trainer(narrow, base, tmp_path / "a").fit()
    config = dataclasses.replace(base, start_from=str(tmp_path / "a"))
    trainer = Trainer(wider, config, tmp_path / "b")
    raw = rows(2, 100)
    before, first = load_run(tmp_path / "a").predict(raw), trainer.predict(raw)
    assert before.std() > 0.001
    np.testing.assert_allclose(first, before, atol=1e-6)
    weights = {
        name: trainer.embedding.weights(name)
        for name in (table.name for table in trainer.embedding.tables)
        if name.startswith(("city", "tags"))
    }
    assert weights and not any(table.any() for table in weights.values())
    trainer.fit()
    assert all(trainer.embedding.weights(name).any() for name in weights)  # they learn
    after = trainer.predict(raw)
    for name, value in (("age", 9.0), ("voice", [9.0] * 12)):
        changed = raw.set_column(raw.schema.get_field_index(name), name, pa.array([value] * 100))
        if model not in ("dien", "can"):
            assert np.abs(trainer.predict(changed) - after).max() > 1e-6


def test_it_resumes_as_any_run_does(data, tmp_path):
    narrow, wider = data
    base = TrainConfig(model="deepfm", model_options=SMALL["deepfm"], epochs=1, batch_size=64)
    Trainer(narrow, base, tmp_path / "a").fit()
    config = dataclasses.replace(base, start_from=str(tmp_path / "a"))
    trainer = Trainer(wider, config, tmp_path / "b")
    step = trainer.steps.dense_optimizer.state_dict()["state"][0]["step"]
    assert int(step) > 0  # the optimizer's state is that of the run
    whole = trainer.fit()
    again = Trainer(wider, config, tmp_path / "b", resume=True).fit()
    assert again.test == whole.test


def test_other_differences_stay_errors(data, tmp_path):
    narrow, wider = data
    base = TrainConfig(model="dnn", model_options=SMALL["dnn"], epochs=1, batch_size=64)
    Trainer(narrow, base, tmp_path / "a").fit()
    deeper = dataclasses.replace(
        base, model_options={"dim": 8, "hidden": (16, 16, 16)}, start_from=str(tmp_path / "a")
    )
    with pytest.raises(ValueError, match="parameter 'deep.layers.2.bias' has shape"):
        Trainer(wider, deeper, tmp_path / "b")
    Trainer(wider, base, tmp_path / "c").fit()
    with pytest.raises(ValueError, match="belongs to data of another schema or encoding"):
        Trainer(narrow, dataclasses.replace(base, start_from=str(tmp_path / "c")), tmp_path / "d")
    of_tbsm = dataclasses.replace(base, model="tbsm", model_options=SMALL["tbsm"])
    Trainer(narrow, of_tbsm, tmp_path / "t").fit()
    with pytest.raises(ValueError, match="parameter 'bottom.layers.0.weight' has shape"):
        Trainer(wider, dataclasses.replace(of_tbsm, start_from=str(tmp_path / "t")), tmp_path / "u")
    for features in (OLD[1:], (*OLD[:1], dataclasses.replace(OLD[1], min_count=2), *OLD[2:], *NEW)):
        with pytest.raises(
            ValueError, match="the schema differs .*; with extend= it may have more features"
        ):
            prepare(rows(), Schema(features, label=("click", "buy")), tmp_path / "e", extend=narrow.path)
    with pytest.raises(ValueError, match="the schema differs"):
        prepare(rows(), Schema((*OLD, *NEW), label=("click", "buy")), tmp_path / "e", like=narrow.path)


@pytest.mark.parametrize("model", ["lr", "fm", "deepfm"])
def test_as_many_dense_values_as_ids_are_told_apart(tmp_path, model):
    """Of both kinds there were as many before and after."""
    narrow = prepare(rows(), Schema(OLD[:2], label="click"), tmp_path / "narrow")
    schema = Schema((*OLD[:2], *NEW[:2]), label="click")
    wider = prepare(rows(1), schema, tmp_path / "wider", extend=narrow.path)
    base = TrainConfig(model=model, model_options=SMALL[model], steps=10, calibration="none")
    Trainer(narrow, base, tmp_path / "a").fit()
    trainer = Trainer(wider, dataclasses.replace(base, start_from=str(tmp_path / "a")), tmp_path / "b")
    before = load_run(tmp_path / "a").predict(rows(2, 100))
    np.testing.assert_allclose(trainer.predict(rows(2, 100)), before, atol=1e-6)


class Net(hotrows.models.Model):
    def __init__(self, schema):
        super().__init__()
        self.tables = hotrows.models.tables.vector_tables(schema, 8)
        self.layer = torch.nn.Linear(8 * len(schema.id_features) + schema.num_dense, 1)

    def forward(self, vectors, dense):
        return self.layer(torch.cat([dense, vectors.joined(dense[:, :0])], 1)).squeeze(1)


@pytest.mark.parametrize("is_own", [True, False])
def test_models_and_optimizers_that_cannot_be_widened_are_refused(data, tmp_path, is_own):
    """A model of a user's own may have its inputs in any order."""
    narrow, wider = data
    base = TrainConfig(model="lr", steps=2) if not is_own else TrainConfig(steps=2, label="click")
    base = base if is_own else dataclasses.replace(base, row_optimizer="dense_adam")
    Trainer(narrow, base, tmp_path / "a", model=Net if is_own else None).fit()
    config = dataclasses.replace(base, start_from=str(tmp_path / "a"))
    with pytest.raises(
        ValueError, match="has fewer features than .*, or the model is your own; begin with"
    ):
        Trainer(wider, config, tmp_path / "b", model=Net if is_own else None)
