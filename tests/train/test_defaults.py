"""What a training does where its config leaves it open: the model, the first bias, sizes and rates."""

import dataclasses
import json
import math
from contextlib import closing
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch import nn

from hotrows import data, models
from hotrows.data import Loader
from hotrows.dynamic import Dynamic
from hotrows.models import Model
from hotrows.optim import Adagrad
from hotrows.schema import Dense, Schema, Sparse
from hotrows.train import Trainer, load_run
from hotrows.train.config import TrainConfig
from hotrows.train.loop.recommender import Recommender
from hotrows.train.loop.step_trainer import StepTrainer
from hotrows.train.metrics import Metrics
from hotrows.train.run import folder as run_folder
from hotrows.train.run.state import RunState, after_evaluation
from hotrows.train.start import effects
from hotrows.train.start.defaults import settle
from tests.models.looked_up import SMALL, schema_of
from tests.support.clicks import SCHEMA, table

pytestmark = pytest.mark.usefixtures("one_thread", "no_pictures")

PRICE, USER = Dense("price", transform="log"), Sparse("user")
ITEM, HISTORY = SCHEMA.features[2], SCHEMA.features[4]
SCHEMAS = {
    "dense alone": Schema((PRICE,), "click"),
    "ids alone": Schema((USER, ITEM), "click"),
    "a history": Schema((USER, ITEM, HISTORY), "click"),
    "several labels": Schema((PRICE, USER), ("click", "buy")),
}
ONE_EPOCH = TrainConfig(epochs=1, linear_paths="plain")
OPEN = TrainConfig(linear_paths="plain")


def prepared(folder, schema, rows=200):
    return data.prepare(table(rows), schema, folder, split="position:0.6,0.2,0.2")


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_model_is_chosen_that_trains_on_the_data(tmp_path, name):
    schema, run = SCHEMAS[name], tmp_path / "run"
    enc = prepared(tmp_path / "enc", schema)
    result = Trainer(enc, ONE_EPOCH, run).fit()
    config = run_folder.read_config(run)
    assert config.model == ("mmoe" if name == "several labels" else "deepfm")
    assert result.test.samples <= 40
    predictions = load_run(run).predict(Loader(enc.parts["test"], 16, shuffle=False).batches(0))
    assert np.isfinite(np.concatenate([np.asarray(p) for p in predictions])).all()


def test_a_label_that_is_chosen_is_learned_alone():
    assert models.default_name(SCHEMAS["several labels"], "buy") == "deepfm"
    assert models.default_name(SCHEMAS["several labels"]) == "mmoe"


@pytest.mark.parametrize("model", ["lr", "fm", "dnn", "wide_deep", "dcnv2"])
def test_models_train_on_dense_features_alone(tmp_path, model):
    enc = prepared(tmp_path / "enc", SCHEMAS["dense alone"])
    config = dataclasses.replace(ONE_EPOCH, model=model)
    interrupted = dataclasses.replace(config, checkpoint_every=1)
    assert Trainer(enc, interrupted, tmp_path / "run").fit().test.samples == 40
    Trainer(enc, interrupted, tmp_path / "run", resume=True).fit()


@pytest.mark.parametrize("model", ["dlrm", "din", "can"])
def test_a_model_of_ids_refuses_data_without(model):
    with pytest.raises(ValueError, match="needs at least one feature with ids; the schema has none"):
        models.build(model, SCHEMAS["dense alone"])


# ---- the first bias


def weighted_means(rows):
    """The mean of each label, computed sample by sample."""
    means = []
    for label in ("click", "buy"):
        pairs = zip(rows[label].to_pylist(), rows["weight"].to_pylist(), strict=True)
        present = [(value, float(np.float32(weight))) for value, weight in pairs if value is not None]
        total = sum(weight for _, weight in present)
        means.append(sum(value * weight for value, weight in present) / total)
    return means


def test_means_of_labels_count_weights_and_leave_out_missing_ones(tmp_path):
    rows = table(300)
    enc = data.prepare(rows, SCHEMA, tmp_path / "enc", split="fraction:1,0,0")
    assert enc.label_means() == pytest.approx(weighted_means(rows), rel=1e-9)
    plain = dataclasses.replace(SCHEMA, weight=None)
    enc = data.prepare(rows, plain, tmp_path / "plain", split="fraction:1,0,0")
    buys = [value for value in rows["buy"].to_pylist() if value is not None]
    assert enc.label_means() == (np.mean(rows["click"].to_numpy()), sum(buys) / len(buys))


@pytest.mark.parametrize("weight", ["weight", None])
def test_means_of_labels_are_counted_in_parquet_as_it_is(tmp_path, weight):
    rows = table(300)
    pq.write_table(rows, tmp_path / "rows.parquet", row_group_size=70)
    features = (PRICE, dataclasses.replace(USER, rows=20))
    schema = Schema(features, ("click", "buy"), weight=weight)
    even = rows.set_column(2, "weight", pa.array(np.ones(300)))
    opened = data.open_parquet(schema, tmp_path / "rows.parquet")
    assert opened.label_means() == pytest.approx(weighted_means(rows if weight else even), rel=1e-9)


def test_a_label_that_no_sample_has_says_nothing(tmp_path):
    rows = table(50).set_column(1, "buy", pa.array([None] * 50, pa.int8()))
    enc = data.prepare(rows, SCHEMA, tmp_path / "enc", split="fraction:1,0,0")
    assert enc.label_means()[1] is None
    steps = StepTrainer(enc, dataclasses.replace(ONE_EPOCH, model="mmoe"))
    assert torch.isfinite(torch.cat([p.flatten() for p in steps.model.parameters()])).all()


@pytest.mark.parametrize("name", SMALL)
def test_every_model_begins_at_the_means_of_the_labels(name):
    model = models.build(name, schema_of(name), **SMALL[name])
    logits = torch.tensor([-3.0, 2.0] if name != "esmm" else [-1.0, -3.0])[: len(model.labels or "1")]
    biases = logits
    if name == "esmm":  # the second one is of conversions of clicks
        biases = torch.stack([logits[0], (logits[1].sigmoid() / logits[0].sigmoid()).logit()])
    before = [p.clone() for p in model.parameters()]
    model.begin_at(logits)
    changed = [p for p, old in zip(model.parameters(), before, strict=True) if not torch.equal(p, old)]
    assert len(changed) == 1
    assert all(torch.allclose(bias.flatten(), biases) for bias in changed)


class Own(Model):
    """A model of one's own; forward adds its last bias to the logit."""

    def __init__(self, schema):
        super().__init__()
        self.tables = models.tables.vector_tables(schema, 2)
        self.last = nn.Linear(4, 1)

    def forward(self, vectors, dense):
        return self.last(vectors.stack().flatten(1)).squeeze(1)


def test_rare_clicks_are_told_from_the_first_step(tmp_path):
    """The first loss is that of the base rate: a bias of 0 said .5 of every sample."""
    rows = table(2000)
    rare = np.arange(2000) % 100 == 0
    rows = rows.set_column(0, "click", pa.array(rare.astype(np.int8)))
    enc = data.prepare(rows, SCHEMAS["ids alone"], tmp_path / "enc", split="fraction:1,0,0")
    rate = enc.label_means()[0]
    entropy = -rate * math.log(rate) - (1 - rate) * math.log(1 - rate)
    for model in ("lr", "fm", f"{__file__}:Own"):
        steps = StepTrainer(enc, dataclasses.replace(ONE_EPOCH, model=model, batch_size=2000))
        with closing(steps.start()) as runner:
            loss = float(steps.train(next(runner)))
        assert loss == pytest.approx(entropy, rel=0.05 if ":" in model else 1e-3)


def test_a_model_without_a_bias_begins_where_its_weights_say():
    class Plain(Model):
        def __init__(self):
            super().__init__()
            self.last = nn.Linear(4, 1, bias=False)

    model = Plain()
    before = model.last.weight.clone()
    model.begin_at(torch.tensor([3.0]))
    assert torch.equal(model.last.weight, before)


def test_a_run_from_another_keeps_the_bias_that_was_learned(tmp_path):
    enc = prepared(tmp_path / "enc", SCHEMAS["ids alone"])
    first = Trainer(enc, dataclasses.replace(ONE_EPOCH, model="lr", dense_lr=0.5), tmp_path / "a")
    first.fit()
    learned = first.model.first.bias.clone()
    config = dataclasses.replace(ONE_EPOCH, model="lr", start_from=str(tmp_path / "a"))
    assert torch.equal(Trainer(enc, config, tmp_path / "b").model.first.bias, learned)


# ---- sizes


@pytest.mark.parametrize(("model", "decay"), [("lr", 3), ("fm", 10)])
@pytest.mark.parametrize(("rows", "epochs"), [(8_000, 20), (10**6, 4), (10**8, 1)])
def test_weights_of_single_features_take_steps_of_their_own(model, decay, rows, epochs):
    """Shorter ones where there are more features, and for samples that were expected; they decay."""
    settled = settle(TrainConfig(model=model, batch_size=100), of_size(rows))
    steps = {"lr": 1 / 2, "initial_accumulator": 1e-4}
    decays = {"weight_decay": decay / 100, "decay_by_count": True}
    assert settled.row_optimizer == Adagrad(**steps, **decays)
    assert (settled.epochs, settled.dense_lr) == (epochs, 0.01)
    of_ids = {**steps, **decays, "weight_decay": 3 / 100}  # the vectors of fm alone decay more
    assert settled.linear_optimizer == Adagrad(**of_ids)
    uncounted = settle(TrainConfig(model=model, batch_size=100), of_size(rows, vocabularies={}))
    assert uncounted.row_optimizer == Adagrad(**steps)
    keys = of_size(rows, schema=Schema((Sparse("user", dynamic=Dynamic(9)), ITEM), "click"))
    assert settle(TrainConfig(model=model, batch_size=100), keys).row_optimizer == Adagrad(**steps)
    asked = TrainConfig(model=model, epochs=2, dense_lr=0.1, row_optimizer=Adagrad(lr=0.3))
    settled = settle(asked, of_size(rows))
    assert (settled.epochs, settled.dense_lr, settled.row_optimizer) == (2, 0.1, Adagrad(lr=0.3))


def test_a_model_of_ones_own_begins_as_its_class_says():
    """Rates and options of a small network had stood in lists of names, which no other model was in."""
    pairs = type("Pairs", (models.FM,), {})
    data, config = of_size(8_000), TrainConfig("pairs.py:Pairs", batch_size=100)
    as_named = settle(TrainConfig("fm", batch_size=100), data)
    for given in (pairs, pairs(schema_of("fm"))):
        settled = settle(config, data, given)
        assert (settled.row_optimizer, settled.epochs) == (as_named.row_optimizer, as_named.epochs)
    own = type("Own", (Model,), {"small": {"hidden": [8]}})
    assert settle(config, data, own).model_options == {"hidden": [8]}
    assert settle(config, data).epochs == 1  # there is no such file: `build` says so


def test_many_features_take_shorter_steps_of_vectors_and_decay_more():
    """Sums over all pairs of 780 features would grow 400 times as large as of 39."""
    wide = of_size(8_000, schema=Schema(tuple(Sparse(f"c{n}") for n in range(780)), "click"))
    of_lr = settle(TrainConfig("lr", batch_size=100), wide).row_optimizer
    assert (of_lr.lr, of_lr.weight_decay) == pytest.approx((1 / 50, 3 * 20 / 100))
    of_fm = settle(TrainConfig("fm", batch_size=100), wide)
    vectors, weights = of_fm.row_optimizer, of_fm.linear_optimizer
    assert (vectors.lr, vectors.weight_decay) == pytest.approx((1 / 780, 10 * 20 * 20 / 100))
    assert (weights.lr, weights.weight_decay) == pytest.approx((1 / 50, 3 * 20 / 100))
    few, many = (
        settle(TrainConfig(), replaced) for replaced in (wide, of_size(10**7, schema=wide.schema))
    )
    for settled in (few, many):
        assert settled.row_optimizer.lr == pytest.approx(0.02 / 7.8)
    assert few.row_optimizer.weight_decay == pytest.approx(100 * 7.8 / few.batch_size)
    assert many.row_optimizer.weight_decay == 0


SMALL_NETWORK = {"hidden": [128, 64], "dropout": 0.2}


@pytest.mark.parametrize(
    ("rows", "epochs"),
    [(8_000, 10), (70_000, 7), (200_000, 5), (10**6, 5), (1_600_000, 3), (2 * 10**6, 2)],
)
def test_few_samples_are_read_again_while_vectors_decay(rows, epochs):
    """Weights of single ids learn as those of lr do, and the network is small."""
    settled = settle(TrainConfig(batch_size=100), of_size(rows))
    decays = {"weight_decay": 100 / 100, "decay_by_count": True}
    assert (settled.epochs, settled.dense_lr) == (epochs, 0.002)
    assert settled.model_options == SMALL_NETWORK
    assert settled.row_optimizer == Adagrad(initial_accumulator=0.003**2, **decays)
    of_lr = settle(TrainConfig("lr", batch_size=100), of_size(rows))
    assert settled.linear_optimizer == of_lr.row_optimizer
    crossed = settle(TrainConfig("dcnv2", batch_size=100), of_size(rows))
    of_dcnv2 = {"linear": True, **SMALL_NETWORK}
    assert crossed == dataclasses.replace(settled, model="dcnv2", model_options=of_dcnv2)
    assert settle(crossed, of_size(10**8)) == crossed
    plain = settle(TrainConfig("dcnv2", {"linear": False, "hidden": [8]}), of_size(rows))
    assert plain.model_options == {**of_dcnv2, "linear": False, "hidden": [8]}


def test_few_samples_without_ids_are_read_again_too():
    """They were read once: there are no counts of ids that decay would need, but no ids either."""
    dense = of_size(8_000, vocabularies={}, schema=SCHEMAS["dense alone"])
    settled = settle(TrainConfig(), dense)
    assert (settled.epochs, settled.batch_size, settled.model_options) == (10, 64, SMALL_NETWORK)


@pytest.mark.parametrize(
    ("config", "data"),
    [
        (TrainConfig("deepfm"), {"rows": 3_000_000}),
        (TrainConfig("dcnv2"), {"rows": 10**8}),
        (TrainConfig("dnn"), {}),
        (TrainConfig("deepfm"), {"vocabularies": {}}),
        (TrainConfig("deepfm"), {"validation": 0}),
        (TrainConfig("dcnv2", epochs=1), {}),
        (TrainConfig("dcnv2", steps=30), {}),
        (TrainConfig("dcnv2", row_optimizer=Adagrad()), {}),
    ],
    ids=str,
)
def test_all_others_are_read_once_without_decay(config, data):
    """Many samples, other models, ids that are not counted, and none that would tell when to stop."""
    settled = settle(config, of_size(**{"rows": 8_000, **data}))
    assert (settled.epochs, settled.row_optimizer, settled.linear_optimizer) == (1, Adagrad(), Adagrad())
    assert settled.model_options == {}


@pytest.mark.parametrize("model", ["deepfm", "dcnv2", "dnn", "mmoe"])
def test_deep_networks_step_slowly_where_a_batch_has_few_ones(model):
    """Adam's steps are as long for noise as for a signal, so its rate follows the root of B p (1 - p)."""

    def rate(*ones, batch_size=100, schema=SCHEMAS["ids alone"], **config):
        data = of_size(10_000, schema=schema, validation=0, ones=ones)
        return settle(TrainConfig(model, batch_size=batch_size, **config), data).dense_lr

    assert rate(100) == pytest.approx(0.001 * math.sqrt(0.99 / 8), rel=0.02)
    assert rate(9_900) == rate(100)
    assert rate(100, batch_size=8) == rate(100, batch_size=64)
    assert rate(100, batch_size=1000) == rate(1_500) == rate() == 0.001
    assert 0 < rate(0) < 1e-4
    assert settle(TrainConfig(model), of_size(1, validation=0, ones=(1,))).dense_lr == 0.001
    assert rate(100, dense_lr=0.002) == 0.002
    of_lr = settle(TrainConfig("lr", batch_size=100), of_size(10_000, ones=(100,))).dense_lr
    assert of_lr == pytest.approx(10 * rate(100), rel=0.02)
    several = SCHEMAS["several labels"]
    assert rate(2_000, 10, schema=several) == 0.001
    assert rate(2_000, 10, schema=several, label="buy") == pytest.approx(
        0.001 * math.sqrt(0.1 / 8), rel=0.02
    )


def test_a_model_that_is_made_or_was_trained_keeps_its_tables(tmp_path):
    """Few samples give DCNv2 weights of ids, but for an object, and a run from before there were any."""
    enc = prepared(tmp_path / "enc", SCHEMAS["ids alone"])
    own = Trainer(enc, OPEN, tmp_path / "own", model=models.DCNv2(enc.schema, hidden=[4]))
    assert own.config.model_options == {} and own.steps.model.linear is None
    named = Trainer(enc, dataclasses.replace(OPEN, model="dcnv2"), tmp_path / "named")
    assert named.steps.model.linear is not None
    earlier = json.loads(settle(dataclasses.replace(OPEN, model="dcnv2"), enc).to_json())
    del earlier["linear_optimizer"], earlier["model_options"]
    assert settle(TrainConfig.from_fields(earlier), enc).model_options == {}


def test_a_run_from_another_has_its_network(tmp_path):
    """Also where more samples, or other settings, would choose another."""
    enc = prepared(tmp_path / "enc", SCHEMAS["ids alone"])
    first = Trainer(enc, OPEN, tmp_path / "a")
    first.fit()
    network = {**SMALL_NETWORK, "effects": []}  # none was admitted
    assert first.config.model_options == network
    later = Trainer(enc, dataclasses.replace(ONE_EPOCH, start_from=str(tmp_path / "a")), tmp_path / "b")
    assert later.config.model_options == network
    other = dataclasses.replace(later.config, row_optimizer=None, model_options={})
    assert settle(other, of_size(10**8)).model_options == network


def test_weights_of_ids_beside_vectors_have_an_optimizer_of_their_own(tmp_path):
    """They follow that of rows where it is given, and in runs from before there was one of their own."""
    enc = prepared(tmp_path / "enc", SCHEMAS["ids alone"])

    def optimizers(config):
        return {t.role: t.optimizer for t in Recommender(config, enc.schema).embedding.tables}

    settled = settle(OPEN, enc)
    assert settled.linear_optimizer != settled.row_optimizer
    expected = {"vector": settled.row_optimizer, "linear": settled.linear_optimizer}
    assert optimizers(settled) == expected
    given = dataclasses.replace(OPEN, row_optimizer=Adagrad(lr=0.3))
    assert set(optimizers(settle(given, enc)).values()) == {Adagrad(lr=0.3)}
    stored = json.loads(settled.to_json())
    assert TrainConfig.from_fields(stored) == settled
    del stored["linear_optimizer"]
    assert set(optimizers(TrainConfig.from_fields(stored)).values()) == {settled.row_optimizer}


def test_logistic_regression_ends_near_the_minimum_that_its_rule_declares(tmp_path):
    """log loss summed over samples, and 3 / 2 times the squares of the weights of ids."""
    rng = np.random.default_rng(0)
    users, items = rng.integers(40, size=2000), rng.zipf(1.5, 2000) % 50
    logits = rng.normal(0, 1, 40)[users] + rng.normal(0, 1, 50)[items] - 1
    clicks = (rng.random(2000) < 1 / (1 + np.exp(-logits))).astype(np.float64)
    rows = {"user": users, "item": items, "click": clicks.astype(int)}
    schema = Schema((Sparse("user"), Sparse("item")), "click")
    enc = data.prepare(rows, schema, tmp_path / "enc", split="fraction:1,0,0")
    trainer = Trainer(enc, TrainConfig(model="lr", linear_paths="plain"), tmp_path / "run")
    trainer.fit()
    of_users, of_items, bias = _minimum(torch.as_tensor(users), torch.as_tensor(items), clicks)
    expected = of_users[users] + of_items[items] + bias
    chances = load_run(tmp_path / "run").predict({"user": users, "item": items})
    got = np.log(chances / (1 - chances))
    assert np.corrcoef(got, expected)[0, 1] > 0.995
    assert np.abs(got - expected).mean() < 0.15


def _minimum(users, items, clicks):
    """The weights at the minimum, by L-BFGS."""
    weights = [torch.zeros(size, dtype=torch.float64, requires_grad=True) for size in (40, 50, 1)]
    optimizer = torch.optim.LBFGS(weights, max_iter=100, line_search_fn="strong_wolfe")

    def closure():
        optimizer.zero_grad()
        logits = weights[0][users] + weights[1][items] + weights[2]
        loss = nn.functional.binary_cross_entropy_with_logits(
            logits, torch.as_tensor(clicks), reduction="sum"
        )
        loss = loss + 1.5 * sum(of_ids.square().sum() for of_ids in weights[:2])
        loss.backward()
        return loss

    optimizer.step(closure)
    return [of_ids.detach().numpy() for of_ids in weights]


@pytest.mark.parametrize(("model", "best_step"), [("lr", 500), ("fm", 200)])
def test_of_decayed_weights_a_later_evaluation_is_better_unless_chance_cannot_explain_it(
    model, best_step
):
    """Logistic regression has one minimum; FM learns by heart in later epochs."""
    config = settle(TrainConfig(model=model, batch_size=100), of_size(8_000))
    state = RunState()
    for step, auc in ((100, 0.70), (200, 0.72), (300, 0.715), (400, 0.719), (500, 0.718), (600, 0.6)):
        metrics = Metrics(1000, auc, 0.5, 0.2, 0.2, 1.0, 0.0)
        state = after_evaluation(dataclasses.replace(state, step=step), metrics, config, epoch_steps=100)
    assert state.best_step == best_step


@pytest.fixture(autouse=True)
def no_effects_of_stand_ins(monkeypatch):
    """Data of `of_size` has no samples whose effects could be fitted."""
    options = effects.options
    monkeypatch.setattr(
        effects,
        "options",
        lambda data, label: {} if isinstance(data, SimpleNamespace) else options(data, label),
    )


def of_size(rows, vocabularies=("user",), schema=SCHEMAS["ids alone"], validation=100, ones=()):
    """Stands in for data with so many training samples; ones: of each label."""
    train = SimpleNamespace(rows=rows, clicks=ones, labelled=(rows,) * len(ones))
    parts = {"train": train, "validation": SimpleNamespace(rows=validation)}
    return SimpleNamespace(parts=parts, schema=schema, vocabularies=vocabularies)


@pytest.mark.parametrize(
    ("rows", "model", "batch_size"),
    [
        (1, None, 64),
        (8_000, None, 64),
        (200_000, None, 1024),
        (200_000, "fm", 256),
        (10**6, None, 4096),
        (3 * 10**6, None, 4096),
        (10**8, None, 8192),
    ],
)
def test_the_batch_grows_with_the_data(rows, model, batch_size):
    assert settle(TrainConfig(model), of_size(rows)).batch_size == batch_size
    assert settle(TrainConfig(batch_size=7), of_size(rows)).batch_size == 7
