"""Classifier and Regressor: what scikit-learn asks of an estimator, on the engine of a run."""

import copy
import dataclasses
import gc
import json
import pickle
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pytest

from hotrows import Callback, Classifier, Dense, Label, Regressor, Schema, Sparse, load_run, losses
from hotrows.models import LR

pytestmark = pytest.mark.usefixtures("one_thread", "no_pictures")

SMALL = {"model": "lr", "batch_size": 64, "seed": 1, "row_optimizer": "adagrad", "linear_paths": "plain"}


@pytest.fixture(scope="module")
def frame():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({
        "user": rng.integers(60, size=1500),
        "item": [f"i{n}" for n in rng.integers(20, size=1500)],
        "price": rng.normal(5, 2, 1500),
    })  # fmt: skip
    liked = frame["item"].str[1:].astype(int) > 10
    frame["answer"] = np.where(rng.random(1500) < np.where(liked, 0.85, 0.15), "yes", "no")
    return frame


@pytest.fixture(scope="module")
def fitted(frame):
    return Classifier(**SMALL, epochs=3).fit(frame.drop(columns="answer"), frame["answer"])


def test_it_learns_from_a_frame_and_predicts_its_classes(frame, fitted):
    rows = frame.drop(columns="answer")
    chances = fitted.predict_proba(rows)
    assert chances.shape == (1500, 2) and np.allclose(chances.sum(1), 1)
    assert list(fitted.classes_) == ["no", "yes"]
    assert set(fitted.predict(rows)) == {"no", "yes"}
    assert fitted.score(rows, frame["answer"]) > 0.75
    assert np.array_equal(fitted.predict_proba(pl.from_pandas(rows)), chances)
    kinds = {feature.name: type(feature) for feature in fitted.schema_.features}
    assert kinds == {"user": Sparse, "item": Sparse, "price": Dense}
    assert fitted.schema_.label == "answer"
    assert fitted.result_.validation.samples == pytest.approx(150, abs=5) and fitted.result_.test is None


@pytest.mark.parametrize(
    "kind",
    [pl.from_pandas, lambda frame: frame.to_dict("list"), lambda frame: frame.to_records(index=False)],
)
def test_frames_of_any_kind_and_a_column_for_labels_give_the_same(frame, fitted, kind):
    again = Classifier(**SMALL, epochs=3).fit(kind(frame), "answer")
    rows = frame.drop(columns="answer")
    assert np.array_equal(again.predict_proba(rows), fitted.predict_proba(rows))
    assert again.score(kind(frame), "answer") == fitted.score(rows, frame["answer"])
    assert again.schema_.label == "answer"


def test_its_run_is_temporary_or_where_it_is_wanted(frame, tmp_path):
    classifier = Classifier(LR, run=str(tmp_path / "run"), steps=2).fit(frame, "answer")
    chances = load_run(tmp_path / "run", model=LR).predict(frame.drop(columns="answer"))
    assert np.array_equal(chances, classifier.predict_proba(frame)[:, 1])
    temporary = Classifier("lr", steps=2).fit(frame, "answer")
    run = temporary.run_
    assert (run / "result.json").exists()
    del temporary
    gc.collect()
    assert not run.exists()


def test_a_schema_says_what_is_learned_from(frame):
    schema = Schema((Sparse("item"),), label="whatever", columns=("whatever", "item"))
    classifier = Classifier("lr", schema=schema, steps=2).fit(frame, "answer")
    rows = frame.assign(user=0, price=0.0)
    assert np.array_equal(classifier.predict_proba(rows), classifier.predict_proba(frame))


def test_rows_of_no_weight_teach_nothing_and_weights_count_as_often(frame):
    """Rows whose labels are turned round weigh nothing: what is learned is that of the others."""
    wrong = frame["item"].isin(["i3", "i15"])
    labels = np.where(wrong, np.where(frame["answer"] == "no", "yes", "no"), frame["answer"])
    rows = frame.drop(columns="answer")
    answers = Classifier(**SMALL, epochs=3).fit(rows, labels, sample_weight=np.where(wrong, 0.0, 1.0))
    misled = Classifier(**SMALL, epochs=3).fit(rows, labels)
    only = rows[wrong.to_numpy()]
    assert answers.score(only, labels[wrong]) < 0.6 < misled.score(only, labels[wrong])
    assert misled.score(rows, labels, wrong) == misled.score(only, labels[wrong])
    twice = Classifier(**SMALL, epochs=3).fit(rows, labels, sample_weight=[2] * 1500)
    once, doubled = (fitted.result_.validation.log_loss for fitted in (misled, twice))
    assert doubled == pytest.approx(once, abs=0.02)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([1.0] * 3, "expected 1,500 weights, one for each row, not (3,)"),
        ([1.0] * 1499 + [-1], "expected weights of at least 0, found -1.0 for row 1,499"),
        ([0.0] * 1500, "all sample weights are zero"),
        ([float("nan")] * 1500, "expected weights of at least 0, found nan for row 0"),
    ],
)
def test_wrong_weights_are_refused(frame, weights, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        Classifier("lr").fit(frame, "answer", sample_weight=weights)


def test_parameters_are_got_set_and_cloned():
    classifier = Classifier("fm", model_options={"dim": 8}, epochs=2)
    assert classifier.get_params() == {
        "model": "fm", "schema": None, "run": None, "validation": 0.1, "verbose": None,
        "random_state": None, "lr": None, "dim": None, "model_options": {"dim": 8}, "epochs": 2,
        "batch_size": None,
    }  # fmt: skip
    same = Classifier(**classifier.get_params())
    assert all(same.get_params()[name] is value for name, value in classifier.get_params().items())
    changed = same.set_params(epochs=3, validation=0.2)
    assert changed is same and (same.settings["epochs"], same.validation) == (3, 0.2)
    assert classifier.settings["epochs"] == 2
    shown = "Classifier(model='fm', validation=0.1, epochs=2, model_options={'dim': 8})"
    assert repr(classifier) == shown
    nested = classifier.set_params(model_options__dim=4, lr=0.02)
    assert nested.model_options == {"dim": 4} and nested._config().dense_lr == 0.02
    assert same.model_options == {"dim": 8}  # whose dict is another one


@pytest.mark.parametrize("kind", ["pickle", "deepcopy", "joblib", "copy of a copy", "unfitted"])
@pytest.mark.parametrize("run", [None, "run"])
def test_a_fitted_one_is_pickled_and_copied(frame, tmp_path, kind, run):
    """A pickle once named the temporary folder of the first one, which was deleted with it."""
    settings = {**SMALL, "epochs": 2, "keep_last": 3, "full_every": 2}
    first = Classifier(run=run and tmp_path / run, **settings)
    if kind == "unfitted":
        assert pickle.loads(pickle.dumps(first)).get_params() == first.get_params()
        return
    first.fit(frame, "answer")
    expected, folder = first.predict_proba(frame), first.run_
    if kind == "joblib":
        joblib = pytest.importorskip("joblib")
        joblib.dump(first, tmp_path / "model.joblib")
        same = joblib.load(tmp_path / "model.joblib")
    elif kind == "pickle":
        same = pickle.loads(pickle.dumps(first))
    else:
        same = copy.deepcopy(copy.deepcopy(first) if kind == "copy of a copy" else first)
    del first
    gc.collect()
    shutil.rmtree(folder, ignore_errors=True)
    assert np.array_equal(same.predict_proba(frame), expected)
    assert same.result_.history.num_rows > 2 and same.run_ != folder


def test_a_pickle_and_what_is_saved_are_read_in_another_process(frame, fitted, tmp_path):
    frame.to_parquet(tmp_path / "frame.parquet")
    (tmp_path / "model.pickle").write_bytes(pickle.dumps(fitted))
    fitted.save(tmp_path / "saved")
    program = """
import pickle, sys, pandas
frame = pandas.read_parquet(sys.argv[1] + "/frame.parquet")
fitted = pickle.load(open(sys.argv[1] + "/model.pickle", "rb"))
print(fitted.predict_proba(frame)[:, 1].tolist())
print(fitted.run_)
import hotrows
print(hotrows.Classifier.load(sys.argv[1] + "/saved").predict(frame).tolist())
"""
    command = [sys.executable, "-c", program, str(tmp_path)]
    chances, run, classes = subprocess.check_output(command, text=True).splitlines()
    expected = fitted.predict_proba(frame)[:, 1].tolist()
    assert json.loads(chances) == pytest.approx(expected, abs=1e-6)
    assert classes == str(fitted.predict(frame).tolist())
    assert not Path(run).exists()


def test_a_pickle_of_rows_in_a_file_store_is_refused(frame, tmp_path):
    stored = {"fast_memory": "16KiB", "store": f"file:{tmp_path / 'tables'}", "run": tmp_path / "run"}
    classifier = Classifier(**SMALL, **stored, steps=4).fit(frame, "answer")
    with pytest.raises(ValueError, match=r"are in the store file:.*hotrows.load_run\('.*run'\)"):
        pickle.dumps(classifier)
    expected = classifier.predict_proba(frame)[:, 1]
    assert np.array_equal(load_run(tmp_path / "run").predict(frame.drop(columns="answer")), expected)


def test_what_is_saved_is_loaded(frame, tmp_path):
    """There was no `save`, and the temporary folder of a run goes with the process."""
    classifier = Classifier(**SMALL, epochs=2, validation=0.2).fit(frame, "answer")
    classifier.save(tmp_path / "saved")
    same = Classifier.load(tmp_path / "saved")
    assert np.array_equal(same.predict_proba(frame), classifier.predict_proba(frame))
    assert (same.schema_, same.notes_) == (classifier.schema_, classifier.notes_)
    assert dataclasses.replace(same.result_, run=classifier.run_) == classifier.result_
    again = copy.deepcopy(same).fit(frame, "answer")
    assert np.array_equal(again.predict_proba(frame), classifier.predict_proba(frame))


def test_what_cannot_be_saved_or_loaded_is_refused(frame, fitted, tmp_path):
    with pytest.raises(ValueError, match="not fitted"):
        Classifier().save(tmp_path / "new")
    with pytest.raises(ValueError, match=r"has no classifier\.json: name a folder that"):
        Classifier.load(fitted.run_)
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "file").touch()
    with pytest.raises(ValueError, match="exists and is no empty folder"):
        fitted.save(tmp_path / "there")


def test_given_rows_choose_the_checkpoint(frame):
    """`eval_set` of other libraries was an unexpected argument."""
    train, other = frame[:1200], frame[1200:]
    pair = other.drop(columns="answer"), other["answer"]
    fitted = Classifier(**SMALL, steps=20).fit(train, "answer", eval_set=[pair])
    assert fitted.result_.validation.samples == 300
    weights = np.ones(1200)
    weighted = Classifier(**SMALL, steps=20).fit(train, "answer", [], weights, eval_set=pair)
    assert np.allclose(weighted.predict_proba(frame), fitted.predict_proba(frame), atol=1e-6)
    for wrong, message in (
        ([pair, pair], "one tuple"),
        ((*pair, weights), "expected 300 weights"),
        ((pair[0], pair[1].replace("yes", "maybe")), "that y has, 'no' and 'yes'"),
        ((pair[0].drop(columns="user"), pair[1]), "no column 'user'"),
    ):
        with pytest.raises(ValueError, match=message):
            Classifier(**SMALL).fit(train, "answer", eval_set=wrong)


def test_rows_of_eval_set_have_weights(frame):
    """They counted once beside training rows with weights: predictions were 2.3 times the rate."""
    train, other = frame[:1200], frame[1200:]
    counts = np.where(other["answer"] == "yes", 3, 1)
    repeated = other.loc[other.index.repeat(counts)]
    measured = []
    for given in ((other, "answer", counts), [(repeated, "answer")]):
        fitted = Classifier(**SMALL, steps=20).fit(train, "answer", eval_set=given)
        measured.append(fitted.result_.validation)
    assert measured[0].auc == pytest.approx(measured[1].auc)
    assert measured[0].positive_rate == pytest.approx(measured[1].positive_rate, rel=1e-6)
    weights = np.where(train["answer"] == "yes", 3, 1)
    with pytest.warns(UserWarning, match="the rows of eval_set have no weights"):
        Classifier(**SMALL, steps=2).fit(
            train, "answer", sample_weight=weights, eval_set=(other, "answer")
        )
    schema = Schema((Sparse("item"),), label="answer", weight="w")
    train, other = train.assign(w=weights), other.assign(w=counts)
    fitted = Classifier(**SMALL, steps=20, schema=schema).fit(
        train, "answer", sample_weight=weights, eval_set=(other, "answer")
    )
    assert fitted.result_.validation.positive_rate == pytest.approx(measured[1].positive_rate, rel=1e-6)


@pytest.mark.parametrize("what", ["y", "sample weights", "y of eval_set", "a column of a dict"])
def test_an_index_in_another_order_is_warned_of(frame, what):
    """Labels were read by position without a word; pandas would have aligned them."""
    rows, answers = frame.drop(columns="answer"), frame["answer"]
    other, weights = answers.sample(frac=1, random_state=1), pd.Series(1.0, answers.index)
    classifier, fit = Classifier(**SMALL, steps=1), {"X": rows, "y": answers}
    fit |= {
        "y": {"y": other},
        "sample weights": {"sample_weight": weights[::-1]},
        "y of eval_set": {"eval_set": (rows, other)},
        "a column of a dict": {"X": {**rows.to_dict("series"), "price": rows["price"][::-1]}},
    }[what]
    with pytest.warns(UserWarning, match="in another order: values are taken by position"):
        classifier.fit(**fit)


def test_a_column_that_is_left_out_is_warned_of():
    days = pd.DataFrame({"day": range(300), "city": ["a", "b", "c"] * 100})
    with pytest.warns(UserWarning, match=r"'day' is left out: another value in every row .*`schema=`"):
        Regressor("lr", epochs=1).fit(days, np.arange(300.0))


def test_nan_among_text_of_an_array_is_missing():
    """What a ColumnTransformer hands on; the same frame was read."""
    cells = np.array([["de", 1.0], [np.nan, 2.0], ["fr", np.nan]] * 100, dtype=object)
    fitted = Classifier("lr", epochs=1).fit(cells, [0, 1, 1] * 100)
    chances = fitted.predict_proba(np.array([[np.nan, 2.0], ["de", 1.0]], object))[:, 1]
    assert np.array_equal(chances, fitted.predict_proba([[None, 2.0], ["de", 1.0]])[:, 1])
    assert chances[0] > chances[1]


def test_a_column_that_rows_lack_is_refused(frame, fitted, tmp_path):
    """A renamed column counted as missing in every row."""
    rows = frame.drop(columns="answer")
    renamed, path = rows.rename(columns={"price": "Price"}), tmp_path / "rows.csv"
    renamed.to_csv(path, index=False)
    lacking = {"price": (renamed, renamed.to_dict("list"), path), "user": (rows[["item", "price"]],)}
    for lost, wrong in ((lost, wrong) for lost, several in lacking.items() for wrong in several):
        with pytest.raises(ValueError, match=f"lacks the columns \\['{lost}'\\]"):
            fitted.predict_proba(wrong)
    with pytest.raises(ValueError, match="did you mean 'Price'"):
        fitted.predict(renamed)
    with pytest.warns(UserWarning, match="'price' 100.0% missing"):
        assert fitted.predict_proba(renamed, allow_missing_columns=True).shape == (1500, 2)


def test_random_state_is_the_seed(frame):
    by_seed = Classifier(**SMALL, steps=5).fit(frame, "answer")
    others = {name: value for name, value in SMALL.items() if name != "seed"}
    same = Classifier(**others, steps=5, random_state=np.int64(1)).fit(frame, "answer")
    assert np.array_equal(same.predict_proba(frame), by_seed.predict_proba(frame))


def test_callbacks_reach_the_trainer(frame):
    class Stop(Callback):
        def on_step_end(self, trainer, progress):
            trainer.stop()

    assert Classifier("lr").fit(frame, "answer", callbacks=[Stop()]).result_.steps == 1


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"epoch": 2}, "Classifier has no argument 'epoch'; did you mean 'epochs'?"),
        ({"learning_rate": 0.1}, "Classifier has no argument 'learning_rate'; here it is lr"),
        ({"n_estimators": 9}, "here it is epochs"),
        ({"early_stopping_rounds": 9}, "here it is stop_patience"),
        ({"epochs": 0}, "epochs must be at least 1, not 0"),
        ({"row_optimizer": "adm"}, "the kind of a row optimizer must be one of"),
        ({"random_state": "one"}, "random_state must be a whole number, and seed is then left out"),
        ({"random_state": 1, "seed": 2}, "they are one setting, not 1"),
        ({"validation": 1.5}, "validation must be from 0 to below 1, not 1.5"),
        ({"loss": "squared"}, "predicts probabilities, and the loss squared none: take log_loss"),
        ({"loss": "huber:2"}, "and the loss huber:2 none"),
        ({"loss": "answer=poisson"}, "and the loss poisson none"),
        ({"loss": "bpr"}, "and the loss bpr:16 none"),
        ({"schema": Schema((Sparse("x"),), Label("y", loss="poisson"))}, "and the loss poisson none"),
    ],
)
def test_wrong_arguments_are_refused_when_they_are_named(wrong, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        Classifier(**wrong)
    with pytest.raises(ValueError, match=re.escape(message)):
        Classifier().set_params(**wrong)


def test_the_loss_of_a_schema_is_learned():
    """It gave way to the loss of all numbers, without a word."""
    schema = Schema((Sparse("x"),), Label("y", loss="huber:2"))
    model = Regressor("lr", schema=schema, steps=1).fit({"x": list("abcd") * 5}, np.arange(20.0))
    (loss,) = model.predictor_.losses
    assert isinstance(loss, losses.Huber) and (loss.delta, loss.unit) == (2, 5.9)  # of their deviation


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([1] * 1500, "expected labels of two values, found 1 class in y"),
        (list(range(1500)), "found 1,500 classes in y: Only binary classification is supported"),
        (np.arange(1500) / 7, "Unknown label type: continuous; a Regressor learns numbers"),
        (None, "requires y to be passed, but the target y is None"),
        ([0, 1], "expected 1,500 labels, one for each row, not (2,)"),
        ([0.0, 1.0, float("nan")] * 500, "y lacks the label of row 2"),
        (["a", "b", None] * 500, "y lacks the label of row 2"),
        ("anser", "X has no column 'anser' for the labels; did you mean 'answer'?"),
    ],
)
def test_labels_of_other_than_two_values_are_refused(frame, labels, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        Classifier("lr").fit(frame, labels)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (lambda rows: rows.to_dict("records"), "found a list of dicts: give pandas.DataFrame(rows)"),
        (lambda rows: iter([rows]), "expected rows, found an iterator (list_iterator)"),
        (lambda rows: (part for part in [rows]), "or batches to `predictor_.predict`"),
    ],
)
def test_what_holds_no_columns_is_refused(frame, fitted, kind, message):
    """They ended in 'Reshape your data' and in errors of Python's types."""
    with pytest.raises(TypeError, match=re.escape(message)):
        fitted.predict_proba(kind(frame))
    with pytest.raises(TypeError, match="expected batches, .* found DataFrame: raw rows are given by"):
        list(fitted.predictor_.predict(iter([frame])))


@pytest.mark.parametrize("weights", [{"no": 1, "yes": 2}, "price", ["a"] * 1500])
def test_weights_that_are_no_numbers_are_refused(frame, weights):
    """A dict, as other libraries take for classes, was a TypeError of float()."""
    with pytest.raises(
        ValueError, match="expected weights, a number for each row, found (dict|str|list)"
    ):
        Classifier("lr").fit(frame, "answer", sample_weight=weights)


def test_files_are_predicted_alone_and_in_lists(frame, fitted, tmp_path):
    frame.drop(columns="answer").to_parquet(tmp_path / "rows.parquet")
    chances, path = fitted.predict_proba(frame), str(tmp_path / "rows.parquet")
    assert np.array_equal(fitted.predict_proba(path), chances)
    assert np.array_equal(fitted.predict_proba([path, path]), [*chances, *chances])


def test_before_fit_there_is_nothing_to_predict_with(frame):
    with pytest.raises(ValueError, match="not fitted: call fit"):
        Classifier().predict(frame)


def test_scikit_learn_clones_searches_and_validates_it(frame):
    sklearn = pytest.importorskip("sklearn.model_selection")
    from sklearn.base import clone, is_classifier
    from sklearn.pipeline import make_pipeline

    rows, answers = frame.drop(columns="answer"), frame["answer"]
    classifier = Classifier(**SMALL)
    assert is_classifier(classifier) and clone(classifier).get_params() == classifier.get_params()
    fitted = Classifier(**SMALL, steps=2).fit(rows, answers)
    assert clone(fitted).get_params() == fitted.get_params() and not hasattr(clone(fitted), "result_")
    scores = sklearn.cross_val_score(classifier, rows, answers, cv=2, scoring="roc_auc")
    assert scores.min() > 0.7
    search = sklearn.GridSearchCV(make_pipeline(classifier), {"classifier__epochs": [1, 2]}, cv=2)
    assert search.fit(rows, answers).best_score_ > 0.6


def test_scikit_learn_hands_on_arrays_and_draws_numbers_of_numpy(frame):
    """Both were refused: columns of an array have no names, and 64 was an int64."""
    sklearn = pytest.importorskip("sklearn.model_selection")
    from sklearn.compose import make_column_transformer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OrdinalEncoder, StandardScaler

    columns = make_column_transformer((StandardScaler(), ["price"]), (OrdinalEncoder(), ["user", "item"]))
    pipeline = make_pipeline(columns, Classifier(**{**SMALL, "batch_size": 32}))
    sizes = {"classifier__batch_size": np.array([64, 128])}
    search = sklearn.RandomizedSearchCV(pipeline, sizes, n_iter=2, cv=2, random_state=0)
    search.fit(frame.drop(columns="answer"), frame["answer"])
    assert search.best_score_ > 0.7
    kinds = {f.name: type(f) for f in search.best_estimator_[-1].schema_.features}
    assert (kinds["x0"], kinds["x2"]) == (Dense, Sparse)


def test_a_regressor_learns_numbers(frame, tmp_path):
    liked = frame["item"].str[1:].astype(int) > 10
    rows = frame.drop(columns="answer")
    numbers = np.where(liked, 7.0, 2.0) + np.random.default_rng(1).normal(0, 0.5, 1500)
    regressor = Regressor("fm", dim=4, epochs=20, batch_size=64, lr=0.05, random_state=1).fit(
        rows, numbers
    )
    assert regressor.predict(rows).dtype == np.float64 and regressor.score(rows, numbers) > 0.8
    assert set(regressor.feature_names_) == {"user", "item", "price"}
    importances = dict(zip(regressor.feature_names_, regressor.feature_importances_, strict=True))
    assert importances["item"] > 1 > 10 * abs(importances["user"])
    regressor.save(tmp_path / "saved")
    loaded = Regressor.load(tmp_path / "saved")
    assert np.array_equal(loaded.predict(rows), regressor.predict(rows))
    with pytest.raises(AttributeError, match="where the estimator was fitted"):
        _ = loaded.feature_importances_
    with pytest.raises(ValueError, match="has no classifier.json"):
        Classifier.load(tmp_path / "saved")


@pytest.mark.parametrize(
    ("settings", "y", "message"),
    [
        ({"loss": "log_loss"}, 0, "predicts numbers, and the loss log_loss none"),
        ({"loss": "bpr"}, 0, "predicts numbers, and the loss bpr:16 none"),
        ({}, "answer", "expected numbers in y"),
    ],
)
def test_a_regressor_refuses_what_is_no_number(frame, settings, y, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        Regressor("lr", **settings).fit(frame, y)


def test_partial_fit_goes_on_with_new_rows_and_new_values(frame):
    """Rows of later days: the model knows what it has learned, and items that it never saw get rows."""
    rows, answers = frame.drop(columns="answer"), frame["answer"]
    early = rows["item"].isin([f"i{number}" for number in range(15)])
    model = Classifier(**{**SMALL, "epochs": 4}, validation=0.0)
    model.partial_fit(rows[early], answers[early], classes=["no", "yes"])
    with pytest.warns(UserWarning, match="'item' 100.0% unknown"):
        before = model.score(rows[~early], answers[~early])
    model.partial_fit(rows[~early], answers[~early])
    assert model.score(rows[~early], answers[~early]) > max(before, 0.75)
    assert model.score(rows[early], answers[early]) > 0.75
    with pytest.raises(ValueError, match="the first call had no weights"):
        model.partial_fit(rows, answers, sample_weight=np.ones(1500))
    with pytest.raises(ValueError, match="that y has, 'no' and 'yes'"):
        model.partial_fit(rows, answers.replace("yes", "maybe"))


def test_a_regressor_goes_on_too(frame):
    rows, numbers = frame[["item", "price"]], frame["price"] / 2
    model = Regressor("fm", dim=4, epochs=4, batch_size=64, lr=0.05, validation=0.0)
    before = model.partial_fit(rows[:100], numbers[:100]).score(rows, numbers)
    assert model.partial_fit(rows, numbers).score(rows, numbers) > before


def test_a_saved_one_is_replaced_where_that_is_asked(frame, fitted, tmp_path):
    fitted.save(tmp_path / "saved")
    with pytest.raises(ValueError, match="exists and is no empty folder"):
        fitted.save(tmp_path / "saved")
    other = Classifier(**SMALL, steps=2).fit(frame, "answer")
    other.save(tmp_path / "saved", overwrite=True)
    assert np.array_equal(
        Classifier.load(tmp_path / "saved").predict_proba(frame), other.predict_proba(frame)
    )
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").touch()
    with pytest.raises(ValueError, match="exists and is no empty folder"):
        fitted.save(tmp_path / "mine", overwrite=True)


def test_the_last_rows_validate_where_the_draft_has_a_time(frame):
    times = np.datetime64("2026-01-01", "s") + np.arange(1500)[::-1] * 60  # the first rows are the last
    prices = np.where(np.arange(1500) < 150, 90.0, frame["price"])
    fitted = Classifier(**SMALL, steps=3).fit(frame.assign(when=times, price=prices), "answer")
    assert fitted.schema_.time is not None and len(fitted._held_out) == 150
    numbers = fitted._held_out.rows.dense
    assert (numbers == numbers[0]).all(0).any()


@pytest.mark.parametrize(
    ("X", "error", "message"),
    [
        (np.zeros(6), ValueError, "Reshape your data"),
        (np.zeros((0, 3)), ValueError, "Found array with 0 sample(s) (shape=(0, 3))"),
        (np.zeros((6, 0)), ValueError, "Found array with 0 feature(s)"),
        (np.zeros((6, 2), complex), ValueError, "Complex data not supported"),
        (np.array([[1, {"a": 2}]] * 6, object), TypeError, "argument must be a string or a real number"),
        ([[1.0, 2.0]] * 5, ValueError, "inconsistent numbers of samples"),
    ],
)
def test_arrays_that_are_no_rows_are_refused(X, error, message):
    with pytest.raises(error, match=re.escape(message)):
        Classifier("lr").fit(X, [0, 1, 0, 1, 0, 1])


# Checks of scikit-learn that are not met, and why.
UNMET = {
    "check_sample_weight_equivalence_on_dense_data": "batches are drawn from rows, not from their copies",
    "check_do_not_raise_errors_in_init_or_set_params": "a wrong argument is refused at once, by its name",
}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", [Classifier, Regressor])
def test_scikit_learns_own_checks_hold(kind):
    checks = pytest.importorskip("sklearn.utils.estimator_checks")
    results = checks.check_estimator(kind(), expected_failed_checks=UNMET, on_fail=None)
    failed = {r["check_name"]: str(r["exception"]) for r in results if r["status"] == "failed"}
    assert failed == {}
    assert {r["check_name"] for r in results if r["status"] == "xfail"} == set(UNMET)
