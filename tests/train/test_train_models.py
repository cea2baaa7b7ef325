"""All models through the engine: histories, several labels and crosses, whatever holds the rows."""

import dataclasses
import json

import pytest
import torch

from hotrows import data, models
from hotrows.data import Loader, profile, regroup
from hotrows.data.hot_cold.profile import row_bytes
from hotrows.engine.embedding import Embedding
from hotrows.optim import SGD, Adagrad
from hotrows.serving.export.whole import export
from hotrows.train import Interrupted, Trainer, load_run
from hotrows.train.config import TrainConfig
from hotrows.train.loop.recommender import Recommender
from hotrows.train.run import folder as run_folder
from hotrows.train.telling import metrics_log
from tests.support import pretend
from tests.support.bundles import SMALL
from tests.support.clicks import SCHEMA, table
from tests.support.exports import assert_exported
from tests.support.runs import interrupt_after, same_bits, weights_of

SMALL = {**SMALL, "can": {**SMALL["can"], "base": "dien"}}
ROWS = table(400)
LONG = ("dien", "can", "mmoe", "ple")  # to train on a pretended device


def config_of(model, **options):
    return TrainConfig(
        model=model,
        model_options=SMALL.get(model, {"dim": 4, "hidden": [8]}),
        steps=8,
        batch_size=32,
        row_optimizer=Adagrad(lr=0.1),
        evaluate_every=4,
        seed=3,
        linear_paths="plain",
        **options,
    )


@pytest.mark.few(6)
@pytest.mark.parametrize("model", sorted(models.BY_NAME))
def test_every_model_trains_on_a_device(encoded, tmp_path, model):
    config = dataclasses.replace(config_of(model, fast_memory=200_000), steps=3, evaluate_every=3)
    here = Trainer(encoded, config, tmp_path / "here").fit()
    with pretend.gpu():
        there = Trainer(encoded, dataclasses.replace(config, device="cuda"), tmp_path / "there").fit()
    assert there.test.log_loss == pytest.approx(here.test.log_loss, rel=1e-3)


@pytest.mark.parametrize(
    "model",
    ["dlrm", "deepfm", "din", *(pytest.param(m, marks=pytest.mark.slow) for m in ("fm", "dcnv2", *LONG))],
)
def test_narrow_vectors_stay_close_on_a_device(encoded, tmp_path, model):
    """Vectors of 8 columns and more and their gradients are in bfloat16 there, as is the model."""
    options = {
        name: 8 if name == "dim" else value for name, value in config_of(model).model_options.items()
    }
    config = dataclasses.replace(
        config_of(model, device="cuda"), model_options=options, steps=4, evaluate_every=4
    )
    with pretend.gpu():
        wide = Trainer(encoded, config, tmp_path / "wide").fit()
        narrow = Trainer(
            encoded, dataclasses.replace(config, precision="bfloat16"), tmp_path / "narrow"
        ).fit()
    assert narrow.test.log_loss == pytest.approx(wide.test.log_loss, abs=0.01)
    assert narrow.test.log_loss != wide.test.log_loss


@pytest.fixture(autouse=True)
def quick(no_pictures, threads):
    threads(1)


@pytest.fixture(scope="module")
def encoded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("d") / "enc"
    return data.prepare(ROWS, SCHEMA, folder, split="position:0.6,0.2,0.2")


@pytest.fixture(scope="module")
def whole(encoded, tmp_path_factory):
    """Runs that were never interrupted, with every row in memory, by model, each trained once."""
    folder, runs = tmp_path_factory.mktemp("runs"), {}

    def run_of(model):
        if model not in runs:
            runs[model] = Trainer(encoded, config_of(model), folder / model).fit()
        return folder / model, runs[model]

    return run_of


def ids_of(batch, feature):
    """The ids of a feature, those of all samples end to end."""
    place = batch.features.index(feature) * batch.size
    return batch.ids[batch.offsets[place] : batch.offsets[place + batch.size]]


# ---- every model


@pytest.mark.parametrize("model", models.BY_NAME)
def test_every_model_trains_and_is_read_again_as_it_was(encoded, whole, model):
    run, result = whole(model)
    losses = [r["loss"] for r in metrics_log.read_metrics(run) if r["kind"] == "train"]
    assert len(losses) == 8 and torch.tensor(losses).isfinite().all()
    assert 0.3 < result.test.auc < 1 and 0.3 < result.test.log_loss < 1
    assert load_run(run).evaluate(encoded.parts["test"]) == result.test


# ---- the same bits

of_any_kind = pytest.mark.parametrize("model", ["din", "dien", "can", "mmoe", "wide_deep", "deepfm"])


@of_any_kind
@pytest.mark.parametrize("store", ["memory", "file"])
def test_a_cache_changes_no_bit(encoded, whole, tmp_path, model, store):
    num_bytes = Recommender(config_of(model), encoded.schema).embedding.num_bytes
    path = f"file:{tmp_path / 'store'}" if store == "file" else "memory"
    config = config_of(model, fast_memory=num_bytes // 3, store=path)
    result = Trainer(encoded, config, tmp_path / "run").fit()
    lines = metrics_log.read_metrics(tmp_path / "run")
    assert any(line["hit_rate"] < 1 for line in lines if line["kind"] == "train")
    run, expected = whole(model)
    assert result.test == expected.test
    pairs = zip(weights_of(tmp_path / "run"), weights_of(run), strict=True)
    assert all(torch.equal(ours, theirs) for ours, theirs in pairs)


@of_any_kind
def test_a_run_that_was_stopped_ends_with_the_same_bits(encoded, whole, tmp_path, model):
    config = config_of(model)
    with pytest.raises(Interrupted):
        Trainer(encoded, config, tmp_path / "run", progress=interrupt_after(3)).fit()
    result = Trainer(encoded, config, tmp_path / "run", resume=True).fit()
    run, expected = whole(model)
    assert same_bits(tmp_path / "run", run) and same_bits(tmp_path / "run", run, "best")
    assert result.test == expected.test


def test_options_may_be_tuples_when_a_run_goes_on(encoded, tmp_path):
    """They come back from config.json as lists, and the run was refused as another one."""
    config = dataclasses.replace(config_of("dnn"), model_options={"dim": 4, "hidden": (8,)})
    Trainer(encoded, dataclasses.replace(config, steps=1), tmp_path / "run").fit()
    assert Trainer(encoded, config, tmp_path / "run", resume=True).fit().steps == 8


# ---- after training


@pytest.mark.parametrize("model", ["din", "dien", "can", "mmoe"])
def test_raw_rows_are_predicted_as_the_prepared_ones(encoded, whole, model):
    run, _ = whole(model)
    predictor, encoder = load_run(run), run_folder.open_encoder(run)
    loader = Loader(encoded.parts["test"], 80, shuffle=False)
    (prepared,) = predictor.predict(loader.batches(0))
    raw = torch.cat(list(predictor.predict(encoder.encode(ROWS.slice(320)))))
    assert raw.shape == ((80, 2) if model == "mmoe" else (80,))
    torch.testing.assert_close(raw, prepared)
    without = ROWS.slice(320).drop(["history", "click", "buy"])
    with pytest.warns(UserWarning, match="'history' 100.0% missing"):
        blank = torch.cat(list(predictor.predict(encoder.encode(without))))
    assert blank.isfinite().all() and not torch.equal(blank, raw)


@of_any_kind
def test_an_export_has_every_table_parameter_and_buffer(whole, tmp_path, model):
    run, _ = whole(model)
    export(run, tmp_path / "out")
    found = assert_exported(run, tmp_path / "out")
    expected = {"wide_deep": "linear", "deepfm": "linear", "din": "bias", "can": "co_action_weights"}
    assert expected.get(model, "vector") in {of["role"] for of in found["tables"]}
    crosses = SMALL[model].get("crosses", [])
    effects = [*crosses, ["user", "item"]] if model == "deepfm" else []  # an effect's, and that of folds
    assert [cross["of"] for cross in found["crosses"]] == [*crosses, *effects]


@pytest.mark.parametrize("model", ["din", "dien", "can", "mmoe"])
def test_bfloat16_stays_close(encoded, tmp_path, model):
    """As trained: a few validation rows of an untrained model choose very different calibrations."""
    runs = {"narrow": tmp_path / "narrow", "plain": tmp_path / "plain"}
    settings = {"narrow": {"precision": "bfloat16"}, "plain": {}}
    results = {
        name: Trainer(encoded, config_of(model, calibration="none", **settings[name]), run).fit()
        for name, run in runs.items()
    }
    batches = list(Loader(encoded.parts["test"], 80, shuffle=False).batches(0))
    chances = [next(load_run(run, "last").predict(batches)) for run in runs.values()]
    assert 0 < (chances[0] - chances[1]).abs().mean() < 0.01
    assert results["narrow"].test.log_loss == pytest.approx(results["plain"].test.log_loss, abs=0.01)


# ---- histories


def test_item_and_history_read_and_train_one_row(encoded):
    model = models.build("din", encoded.schema, dim=4)
    engine = Embedding.for_model(model, encoded.schema, optimizer=SGD(lr=1.0))
    (of_items,) = (t for t in engine.tables if t.name == "item")
    assert of_items.features == ("item", "history")
    batch = next(Loader(encoded.parts["train"], 32, shuffle=False).batches(0))
    plan = engine.plan(batch)
    vectors = engine.lookup(plan)
    before = engine.weights("item").clone()
    (past, offsets), items = vectors.sequence("history"), ids_of(batch, "item")
    assert len(past) == offsets[-1] == len(ids_of(batch, "history"))
    assert torch.equal(past, before[ids_of(batch, "history")])
    assert torch.equal(vectors["item"], before[items])
    (vectors["item"].sum() + 2 * past.sum()).backward()
    engine.update(plan, vectors)
    counts = items.bincount(minlength=len(before))
    counts = counts + 2 * ids_of(batch, "history").bincount(minlength=len(before))
    expected = before - counts[:, None]
    torch.testing.assert_close(engine.weights("item"), expected)


@pytest.mark.parametrize("model", ["din", "dien", "can"])
def test_regrouped_data_trains(encoded, tmp_path, model):
    tables = Recommender(config_of(model), encoded.schema).embedding.tables
    each = row_bytes(tables, encoded.schema, config_of(model).row_optimizer)
    found = profile(encoded, bytes_per_row=each, fast_memory=20 * sum(each.values()), sample=0.5)
    hot = regroup(encoded, found, tmp_path / "hot")
    assert all(half.rows for half in hot.halves.values())
    num_bytes = 22 * sum(each.values())  # the hot rows, and room for some that pass through
    config = config_of(model, policy="hot", fast_memory=num_bytes)
    result = Trainer(hot, config, tmp_path / "run").fit()
    assert result.steps == 8 and 0.3 < result.test.auc < 1
    assert load_run(tmp_path / "run").evaluate(hot.parts["test"]) == result.test


# ---- several labels


def test_mmoe_learns_both_labels_and_reports_each(encoded, tmp_path):
    config = dataclasses.replace(config_of("mmoe", dense_lr=0.01), steps=None, epochs=6)
    result = Trainer(encoded, config, tmp_path / "run").fit()
    kept = json.loads((tmp_path / "run" / "result.json").read_text())["test"]
    lines = metrics_log.read_metrics(tmp_path / "run")
    (*_, last) = (line for line in lines if line["kind"] == "evaluation")
    for found in (kept, last):
        tasks = found["tasks"]
        assert list(tasks) == ["click", "buy"]
        assert found["auc"] == pytest.approx((tasks["click"]["auc"] + tasks["buy"]["auc"]) / 2)
        assert tasks["buy"]["samples"] < tasks["click"]["samples"] == 80
    assert min(of.auc for of in result.test.tasks.values()) > 0.55  # of 80 samples


def test_the_gradient_of_a_logit_is_error_times_weights_and_0_where_the_label_is_missing(encoded):
    config = config_of("mmoe", label_weights={"buy": 3.0})
    predictor = Recommender(config, encoded.schema)
    batch = next(Loader(encoded.parts["train"], 32, shuffle=False).batches(0))
    vectors = predictor.embedding.lookup(predictor.embedding.plan(batch))
    logits = predictor.model(vectors, batch.dense)
    logits.retain_grad()
    predictor.loss(logits, batch).backward()
    missing = batch.labels.isnan()
    error = logits.detach().sigmoid() - batch.labels
    expected = error * batch.sample_weights[:, None] * torch.tensor([1.0, 3.0]) / 32
    assert missing[:, 1].any() and not missing[:, 0].any()
    torch.testing.assert_close(logits.grad, expected.masked_fill(missing, 0.0))


def test_mmoe_may_learn_one_of_the_labels(encoded, tmp_path):
    config = config_of("mmoe")
    config = dataclasses.replace(config, model_options={**SMALL["mmoe"], "labels": ["buy"]})
    result = Trainer(encoded, config, tmp_path / "run").fit()
    assert load_run(tmp_path / "run").labels == ("buy",)
    assert not result.test.tasks  # one label is measured once, not as a mean of one
    assert 0 < result.test.samples < encoded.parts["test"].rows  # those that have it
