"""Effects of ids fitted before training: what is admitted; no sample's label is in those that it gets."""

import dataclasses
from contextlib import closing

import numpy as np
import pyarrow as pa
import pytest
import torch

from hotrows import data
from hotrows.dynamic import Dynamic
from hotrows.models.deepfm import DeepFM
from hotrows.models.effects import DEPTH, FOLDS, Trees, fold_of_numbers
from hotrows.schema import Dense, Label, Schema, Sparse
from hotrows.serving.bundle import open_bundle
from hotrows.serving.export import export
from hotrows.serving.scorer import Scorer
from hotrows.train import Trainer, load_run
from hotrows.train.config import TrainConfig
from hotrows.train.start import additive, effects, trees
from hotrows.train.start.defaults import settle

pytestmark = pytest.mark.usefixtures("one_thread", "no_pictures")

NAMES = ("month", "day", "shop", "user")
SCHEMA = Schema((*map(Sparse, NAMES), Dense("price", transform="standard")), "late")
OPEN = TrainConfig(linear_paths="plain", epochs=2)


def rows_of(num=4000, seed=0, names=NAMES, noise=0.2):
    """Labels follow neither of two features, but both together; others say nothing."""
    rng = np.random.default_rng(seed)
    sizes = {"month": 12, "day": 12, "shop": 12, "user": 900}
    rows = {name: rng.integers(sizes[name], size=num) for name in names}
    odd = (rows["month"] * 5 + rows["day"] * 7) % 12 < 6
    rows["late"] = np.where(rng.random(num) < noise, ~odd, odd).astype(int)
    if names == NAMES:
        rows["price"] = rng.normal(size=num)
    return rows


@pytest.fixture(scope="module")
def enc(tmp_path_factory):
    folder = tmp_path_factory.mktemp("enc")
    return data.prepare(rows_of(), SCHEMA, folder, split="fraction:0.8,0.1,0.1")


def test_a_combination_is_admitted_that_says_more_than_its_parts(enc, tmp_path, caplog):
    options = effects.options(enc, None)
    assert options["effects"] == [["month", "day"]] == options["crosses"]
    caplog.set_level("INFO")
    trainer = Trainer(enc, OPEN, tmp_path / "run")
    assert "523  month*day" in caplog.text
    assert trainer.config.model_options.items() >= options.items()
    assert trainer.fit().test.auc > 0.75
    rows = {name: values[:50] for name, values in rows_of().items() if name != "late"}
    expected = trainer.predict(rows)
    np.testing.assert_array_equal(load_run(tmp_path / "run").predict(rows), expected)
    assert settle(dataclasses.replace(OPEN, plain=True), enc).model_options.keys() == {
        "hidden",
        "dropout",
    }


def test_a_sample_in_training_gets_effects_that_were_fitted_without_its_fold(enc, tmp_path):
    trainer, seen = Trainer(enc, OPEN, tmp_path / "run"), []
    trainer.model.effects.register_forward_hook(
        lambda module, _, out: seen.append((module.training, out))
    )
    options = trainer.config.model_options
    samples = effects.read(enc, NAMES, 0, 10**6)
    model = additive.Additive(samples, effects.fold_of(samples, options["effect_folds"]))
    model.fit_columns()
    keys = effects.buckets(samples, ["month", "day"], trainer.model.crosses[1].rows)
    column, _ = additive.combination(("month", "day"), keys)
    model.add(column)
    model.sweep()
    model.sweep()
    fold = effects.fold_of(samples, options["effect_folds"])
    held_out, whole = column.effects[column.codes, fold], column.effects[column.codes, FOLDS]
    assert np.abs(held_out - whole).max() > 0.01
    keys = zip(*(ids.tolist() for ids in samples.ids.values()), strict=True)
    by_sample = dict(zip(keys, held_out.tolist(), strict=True))

    with closing(trainer.steps.start()) as runner:
        work = next(runner)
        trainer.steps.train(work)
    batch = work.item.batch
    ids = dict(zip(batch.features, batch.ids.view(len(batch.features), -1).tolist(), strict=True))
    expected = [by_sample[key] for key in zip(*(ids[name] for name in NAMES), strict=True)]
    (is_training, got), *_ = seen
    assert is_training
    torch.testing.assert_close(got[:, 0], torch.tensor(expected), atol=1e-6, rtol=1e-6)


def test_the_label_of_a_sample_is_in_no_effect_that_it_gets():
    """With its label changed, models without its fold stay as they were, bit by bit, of equal tau."""
    rng = np.random.default_rng(0)
    ids = {"a": rng.integers(20, size=500), "b": rng.integers(30, size=500)}
    labels = rng.integers(2, size=500).astype(float)
    fold, changed = np.arange(500) % FOLDS, labels.copy()
    changed[7] = 1 - changed[7]
    z = []
    for y in (labels, changed):
        samples = additive.FittedSamples(ids, {}, y, np.ones(500))
        model = additive.Additive(samples, fold)
        column = additive.EffectColumn(("a",), ids["a"], 20, tau=10.0)
        model._update(column)
        z.append(model.z)
    without = fold[7]
    np.testing.assert_array_equal(z[0][without], z[1][without])
    assert (z[0][FOLDS] != z[1][FOLDS]).any()


def of_numbers(num=4000):
    """Labels follow steps of one number, cells of two others, and a shop's steps of a fourth."""
    rng = np.random.default_rng(0)
    rows = {name: rng.normal(size=num) for name in ("step", "east", "north", "hour")}
    rows |= {"shop": rng.integers(6, size=num), "user": rng.integers(300, size=num)}
    z = 3 * np.sin(4 * rows["step"]) + 3 * np.sign(rows["east"] * rows["north"])
    z += 3 * np.sign(rows["hour"] * (rows["shop"] - 2.5))
    return rows | {"late": (rng.random(num) < 1 / (1 + np.exp(-z))).astype(int)}


def test_numbers_have_effects_in_bins_with_others_and_with_ids(tmp_path):
    rows, numbers = of_numbers(), ("step", "east", "north", "hour")
    dense = (Dense(name, transform="standard") for name in numbers)
    schema = Schema((Sparse("shop"), Sparse("user"), *dense), "late")
    enc = data.prepare(rows, schema, tmp_path / "enc", split="fraction:0.8,0.1,0.1")
    options = effects.options(enc, None)
    assert {("step",), ("east", "north"), ("shop", "hour")} <= set(map(tuple, options["effects"]))
    assert options["effect_folds"][-4:] == list(numbers)
    trainer, seen = Trainer(enc, OPEN, tmp_path / "run"), []
    hook = trainer.model.effects.register_forward_hook(lambda *of_call: seen.append(of_call[2]))
    samples = effects.read(enc, ["shop", "user"], 0, 10**6)
    fitted = additive.Additive(samples, effects.fold_of(samples, options["effect_folds"]))
    keys = effects._fit(fitted, trainer.model.effects)
    assert {len(of_column) for of_column in keys.values()} > {16, 128}
    expected = sum(  # of each sample, without its fold
        column.effects[column.codes, fitted._fold]
        for column in fitted.columns
        if [*column.names] in options["effects"]
    )
    by_user = {user: [] for user in samples.ids["user"].tolist()}
    for user, effect in zip(samples.ids["user"].tolist(), expected.tolist(), strict=True):
        by_user[user].append(effect)
    with closing(trainer.steps.start()) as runner:
        work = next(runner)
        trainer.steps.train(work)
    batch = work.item.batch
    users = batch.ids.view(len(batch.features), -1)[batch.features.index("user")].tolist()
    for user, got in zip(users, seen[0].sum(1).tolist(), strict=True):
        assert min(abs(one - got) for one in by_user[user]) < 1e-4
    hook.remove()
    assert trainer.fit().test.auc > 0.9
    export(tmp_path / "run", tmp_path / "bundle", format="pt2")
    assert all("fold" not in table.role for table in open_bundle(tmp_path / "bundle").tables)
    raw = {name: values[:50] for name, values in rows.items() if name != "late"}
    scores = Scorer(tmp_path / "bundle", trust=True).score(pa.table(raw))
    np.testing.assert_allclose(scores, load_run(tmp_path / "run").predict(raw), atol=1e-5)


@pytest.fixture(scope="module")
def of_trees(tmp_path_factory):
    """Raw rows, and prepared: labels follow a line, an id, and two numbers whose pair gains less."""
    rng, num = np.random.default_rng(0), 4000
    rows = {name: rng.normal(size=num) for name in ("price", "east", "north")}
    rows |= {"shop": rng.integers(6, size=num), "user": rng.integers(300, size=num)}
    z = 4 * rows["price"] + 2 * np.sign(rows["east"] * rows["north"]) + rows["shop"] - 2.5
    late = (rng.random(num) < 1 / (1 + np.exp(-z))).astype(int)
    dense = (Dense(name, transform="standard") for name in ("price", "east", "north"))
    schema = Schema((Sparse("shop"), Sparse("user"), *dense), "late")
    folder = tmp_path_factory.mktemp("of_trees")
    enc = data.prepare(rows | {"late": late}, schema, folder, split="fraction:0.8,0.1,0.1")
    return {name: values[:50] for name, values in rows.items()}, enc


def test_numbers_are_in_trees_that_lack_the_fold_of_a_sample_in_training(of_trees, tmp_path, caplog):
    enc = of_trees[1]
    options = effects.options(enc, None)
    assert options["effects"] == [["shop"]] and options["effect_trees"] > 20
    samples = effects.read(enc, ["shop", "user"], 0, 10**6)
    assert effects.choose(samples, has_few=False) == {"effects": []}
    caplog.set_level("INFO")
    trainer, seen = Trainer(enc, OPEN, tmp_path / "run"), []
    assert f"{options['effect_trees']} trees of numbers and effects" in caplog.text
    hook = trainer.model.effects.register_forward_hook(lambda *of_call: seen.append(of_call[2]))
    samples = effects.read(enc, ["shop", "user"], 0, 10**6)
    folds = effects.fold_of(samples, options["effect_folds"])
    fitted = additive.Additive(samples, folds, with_numbers=False)
    effects._fit(fitted, trainer.model.effects)
    (column,) = (column for column in fitted.columns if column.names == ("shop",))
    boosted = trees.boosted(fitted, [column], options["effect_trees"])
    by_user = {user: [] for user in samples.ids["user"].tolist()}
    begin = fitted.of_columns([])[folds, np.arange(len(folds))]
    for user, *loss_and_begin in zip(samples.ids["user"].tolist(), boosted.losses, begin, strict=True):
        by_user[user].append(loss_and_begin)
    with closing(trainer.steps.start()) as runner:
        work = next(runner)
        trainer.steps.train(work)
    hook.remove()
    batch = work.item.batch
    users = batch.ids.view(len(batch.features), -1)[batch.features.index("user")].tolist()
    labels, z = batch.labels.view(-1).tolist(), seen[0].sum(1).tolist()
    for user, label, got in zip(users, labels, z, strict=True):
        losses = [(np.log1p(np.exp((1 - 2 * label) * (got + b))), loss) for loss, b in by_user[user]]
        assert min(abs(one - loss) for one, loss in losses) < 1e-4


def test_trees_are_in_bundles_and_resumed_runs(of_trees, tmp_path):
    raw, enc = of_trees
    trainer = Trainer(enc, OPEN, tmp_path / "run")
    trainer.fit()
    config = dataclasses.replace(OPEN, epochs=None, evaluate_every=10)
    config = dataclasses.replace(config, model_options=trainer.config.model_options)
    scores = []
    for name, steps in (("whole", (20,)), ("resumed", (10, 20))):
        for num in steps:
            of_part = dataclasses.replace(config, steps=num)
            part = Trainer(enc, of_part, tmp_path / name, resume=num > steps[0])
            part.fit()
        scores.append(part.predict(raw))
    np.testing.assert_array_equal(*scores)
    export(tmp_path / "run", tmp_path / "bundle", format="pt2")
    assert all("fold" not in table.role for table in open_bundle(tmp_path / "bundle").tables)
    served = Scorer(tmp_path / "bundle", trust=True).score(pa.table(raw))
    np.testing.assert_allclose(served, trainer.predict(raw), atol=1e-6)


def test_a_layer_of_trees_sums_the_leaves_of_its_fold():
    layer, inputs = Trees(3), torch.randn(40, 4)
    layer.places.random_(4), layer.thresholds.normal_(), layer.values.normal_()
    folds = torch.randint(FOLDS, (40,))
    for fold in (folds, None):
        for row, got in enumerate(layer(inputs, fold).squeeze(1).tolist()):
            k, expected = FOLDS if fold is None else fold[row], 0.0
            for tree in range(3):
                leaf = 0
                for level in range(tree * DEPTH, (tree + 1) * DEPTH):
                    x = inputs[row, layer.places[k, level]]
                    leaf = 2 * leaf + int(x >= layer.thresholds[k, level])
                expected += layer.values[k, (tree << DEPTH) + leaf].item()
            assert got == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("slope", [0, 2], ids=["shuffled labels", "a line"])
def test_numbers_that_say_nothing_or_a_line_have_no_trees(slope):
    rng = np.random.default_rng(0)
    numbers = {name: rng.normal(size=3000) for name in "abc"}
    chances = 1 / (1 + np.exp(slope * (numbers["a"] - numbers["b"])))
    labels = (rng.random(3000) < chances).astype(float)
    samples = additive.FittedSamples({}, numbers, labels, np.ones(3000))
    assert effects.choose(samples) == {"effects": []}


@pytest.mark.parametrize(("num", "has_trees"), [(1900, False), (2100, True)])
def test_few_samples_have_no_trees(num, has_trees):
    rng = np.random.default_rng(0)
    numbers = {name: rng.normal(size=num) for name in "abc"}
    chances = 1 / (1 + np.exp(4 * np.sign(numbers["a"] - 0.5) + 4 * np.sign(numbers["b"] * numbers["c"])))
    labels = (rng.random(num) < chances).astype(float)
    fit = effects._Fit.from_samples(
        additive.FittedSamples({}, numbers, labels, np.ones(num)), with_numbers=False, parts_numbers=True
    )
    assert bool(fit.num_trees()) == has_trees


@pytest.mark.parametrize("spread", [0, 1e-12])
def test_numbers_that_are_all_equal_have_no_trees(spread):
    labels, numbers = np.arange(3000) % 2.0, {"a": np.arange(3000) % 7 * spread}
    samples = additive.FittedSamples({}, numbers, labels, np.ones(3000))
    assert effects.choose(samples) == {"effects": []}


def test_trees_are_in_place_of_effects_of_numbers(of_trees):
    options = {"effects": [["price"]], "effect_folds": ["user"], "effect_trees": 3}
    with pytest.raises(ValueError, match="in place of effects of price"):
        DeepFM(of_trees[1].schema, **options)


def test_one_id_and_numbers_tell_folds(tmp_path):
    rows = {name: values for name, values in of_numbers().items() if name in ("shop", "step", "late")}
    schema = Schema((Sparse("shop"), Dense("step", transform="standard")), "late")
    enc = data.prepare(rows, schema, tmp_path / "enc", split="fraction:0.8,0.1,0.1")
    assert effects.options(enc, None)["effect_folds"] == ["shop", "step"]
    trainer = Trainer(enc, OPEN, tmp_path / "run")
    (table,) = (table for table in trainer.model.tables if table.role == "fold")
    (of_fold,) = trainer.embedding.weight_chunks(table.name, table.rows)
    samples = effects.read(enc, ["shop"], 0, 10**6)
    by_model = fold_of_numbers(torch.from_numpy(samples.numbers["step"])[:, None])
    by_model += of_fold[samples.ids["shop"]].argmax(1)
    assert (effects.fold_of(samples, ["shop", "step"]) == (by_model % FOLDS).numpy()).all()


def test_effects_are_printed_in_a_few_lines():
    text = str(effects.Gains({f"user*{n}": 10.0 * n for n in range(8, 0, -1)}))
    assert text.splitlines()[1:3] == ["         80  user*8", "         70  user*7"]
    assert text.splitlines()[5:] == ["        100  4 more"]


@pytest.mark.parametrize("seed", range(3))
def test_shuffled_labels_admit_nothing_and_the_network_is_as_plain(tmp_path, seed):
    rows = rows_of(seed=seed, noise=0.5)
    enc = data.prepare(rows, SCHEMA, tmp_path / "enc", split="fraction:0.8,0.1,0.1")
    config = dataclasses.replace(OPEN, epochs=None, steps=None, seed=seed)
    assert effects.options(enc, None) == {"effects": []}
    if seed == 0:
        runs = [
            Trainer(enc, dataclasses.replace(config, epochs=2, plain=plain), tmp_path / str(plain))
            for plain in (False, True)
        ]
        assert runs[0].fit().test.log_loss == runs[1].fit().test.log_loss
        for one, other in zip(*(run.model.state_dict().values() for run in runs), strict=True):
            assert torch.equal(one, other)


def test_two_features_alone_are_crossed_as_folds_by_ids_cannot_part_them(tmp_path):
    rows = rows_of(names=("month", "day"))
    schema = Schema((Sparse("month"), Sparse("day")), "late")
    enc = data.prepare(rows, schema, tmp_path / "enc", split="fraction:0.8,0.1,0.1")
    options = effects.options(enc, None)
    assert options["effects"] == [] and options["crosses"] == [["month", "day"]]


def test_features_that_requests_share_are_read(tmp_path):
    rng = np.random.default_rng(0)
    rows = {"request": np.repeat(np.arange(1000), 4), "user": np.repeat(rng.integers(12, size=1000), 4)}
    rows |= {"item": rng.integers(12, size=4000), "shop": rng.integers(500, size=4000)}
    rows["click"] = ((rows["user"] * 5 + rows["item"] * 7) % 12 < 6).astype(int)
    features = (Sparse("user"), Sparse("item"), Sparse("shop"))
    schema = Schema(features, "click", request="request", shared=("user",))
    enc = data.prepare(rows, schema, tmp_path / "enc", split="fraction:0.8,0.1,0.1")
    assert effects.options(enc, None)["effects"] == [["user", "item"]]
    assert Trainer(enc, OPEN, tmp_path / "run").fit().test.auc > 0.9


@pytest.mark.parametrize(
    ("features", "label"),
    [
        ((Sparse("month", dynamic=Dynamic(99)), Sparse("day")), "late"),
        ((Sparse("month"), Sparse("day")), Label("late", loss="squared")),
    ],
    ids=["dynamic", "a number"],
)
def test_effects_that_cannot_be_fitted_are_refused(tmp_path, features, label):
    rows = rows_of(400, names=("month", "day"))
    enc = data.prepare(rows, Schema(features, label), tmp_path / "enc", split="fraction:0.8,0.1,0.1")
    asked = {"effects": [["month"]], "effect_folds": ["month", "day"]}
    with pytest.raises(ValueError, match="leave the option effects out"):
        Trainer(enc, dataclasses.replace(OPEN, model="deepfm", model_options=asked), tmp_path / "run")
