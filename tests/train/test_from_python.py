"""The Python API: models as objects, callbacks, progress, histories, predictions, vectors of values."""

import dataclasses
import inspect
import io
import json
import logging
import pickle
import re
import sys
from functools import partial

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch

import hotrows
from hotrows import Callback, Schema, Sparse, TrainConfig, Trainer, load_run
from hotrows.data import Loader, prepare
from hotrows.engine.distributed.in_process import run as on_threads
from hotrows.models import DeepFM, Model, tables
from hotrows.serving.export.whole import export
from hotrows.train.start.defaults import settle
from hotrows.train.telling import metrics_log
from hotrows.train.telling.result import Result
from tests.support import clicks
from tests.support.runs import CONFIG, encode, same_bits

pytestmark = pytest.mark.usefixtures("one_thread", "no_pictures")

SHORT = dataclasses.replace(CONFIG, steps=6, model_options={})


class Net(Model):
    """A model of this module."""

    def __init__(self, schema, dim: int = 4):
        super().__init__()
        self.tables = tables.vector_tables(schema, dim)
        self.layer = torch.nn.Linear(2 * dim + 1, 1)

    def forward(self, vectors, dense):
        return self.layer(torch.cat([vectors.stack().flatten(1), dense], 1)).squeeze(1)


@pytest.fixture(scope="module")
def encoded(tmp_path_factory):
    return encode(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def trained(encoded, tmp_path_factory):
    """A run's folder, and its result."""
    run = tmp_path_factory.mktemp("runs") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hotrows.train.telling.pictures.draw_run", lambda run: None)
        return run, Trainer(encoded, CONFIG, run).fit()


def predictions(run, encoded, **how):
    predictor = load_run(run, **how)
    found = predictor.predict(encoded.parts["test"])
    predictor.embedding.close()
    return found


# ---- models


def test_an_object_is_trained_as_it_is_and_found_again(encoded, tmp_path):
    config = dataclasses.replace(SHORT, model_options={"dim": 6})
    model = Net(encoded.schema, dim=6)
    with torch.no_grad():
        model.layer.weight.zero_()
    trainer = Trainer(encoded, config, tmp_path / "run", model=model)
    assert trainer.model is model and not model.layer.weight.any()
    trainer.fit()
    assert model.layer.weight.any()
    assert TrainConfig.load(tmp_path / "run" / "config.json").model == f"{__name__}:Net"
    same = Net(encoded.schema, dim=6)
    found = [
        predictions(tmp_path / "run", encoded, **how)
        for how in ({"trust": True}, {"model": Net}, {"model": same}, {"model": f"{__name__}:Net"})
    ]
    assert all(np.array_equal(found[0], other) for other in found)
    assert torch.equal(same.layer.weight, model.layer.weight)


def test_a_class_gives_the_bits_that_its_name_gives(encoded, tmp_path):
    for name, model in (("class", Net), ("name", f"{__name__}:Net")):
        Trainer(encoded, SHORT, tmp_path / name, model=model).fit()
    assert same_bits(tmp_path / "class", tmp_path / "name")


def test_an_object_goes_on_to_the_same_bits(encoded, tmp_path):
    def model():
        torch.manual_seed(1)
        return Net(encoded.schema)

    Trainer(encoded, SHORT, tmp_path / "whole", model=model()).fit()
    half = dataclasses.replace(SHORT, steps=3)
    Trainer(encoded, half, tmp_path / "run", model=model()).fit()
    Trainer(encoded, SHORT, tmp_path / "run", model=model(), resume=True).fit()
    names = ("model.safetensors", "pack-0.records")
    files = [[(tmp_path / run / "checkpoints/step-6" / n).read_bytes() for n in names]
             for run in ("whole", "run")]  # fmt: skip
    assert files[0] == files[1]


def test_a_class_of_no_module_is_named_and_passed_again(encoded, tmp_path):
    class Local(Net):
        pass

    Trainer(encoded, SHORT, tmp_path / "run", model=Local).fit()
    with pytest.raises(ValueError, match="<locals>.Local, which runs only where it is asked for"):
        load_run(tmp_path / "run")
    with pytest.raises(ValueError, match="must be file.py:Class or module:Class; .* pass the class"):
        load_run(tmp_path / "run", trust=True)
    assert len(predictions(tmp_path / "run", encoded, model=Local)) == 300
    export(str(tmp_path / "run"), str(tmp_path / "out"), model=Local)


def test_a_class_of_the_library_has_its_name(encoded, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    small = dataclasses.replace(CONFIG, steps=2, model="lr")
    trainer = Trainer(encoded, small, model=DeepFM)
    assert (trainer.config.model, trainer.run) == ("deepfm", tmp_path / "runs" / "deepfm-1")
    assert Trainer(encoded, small, model=DeepFM).run == tmp_path / "runs" / "deepfm-2"
    assert Trainer(str(encoded.path), model="fm").config == settle(TrainConfig(model="fm"), encoded)


def test_objects_that_differ_between_ranks_are_refused(encoded, tmp_path):
    def work(ranks):
        model = Net(encoded.schema)  # the random numbers of both are those of the process
        return Trainer(encoded, SHORT, tmp_path / "run", model=model, ranks=ranks)

    with pytest.raises(ValueError, match="the Net differs between ranks: make it by one seed"):
        on_threads(work, 2)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        (
            {"config": "deepfm"},
            "config must be a TrainConfig, not 'deepfm'; the name of a model is model=",
        ),
        ({"config": {"epochs": 2}}, "config must be a TrainConfig, not {'epochs': 2}"),
        ({"model": torch.nn.Linear}, "made of hotrows.models.Model or an object of one, not Linear"),
        ({"model": "depfm"}, "did you mean 'deepfm'"),
        ({"model": Model()}, "Model sets no tables"),
    ],
)
def test_what_is_no_config_and_no_model_is_refused(encoded, tmp_path, how, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        Trainer(encoded, run=tmp_path / "run", **how)


@pytest.mark.parametrize(
    ("argument", "advice"),
    [
        ("epochs", "it is a setting: Trainer(data, TrainConfig(epochs=...))"),
        ("lr", "tables learn by row_optimizer="),
        ("n_epochs", "did you mean 'epochs'?"),
    ],
)
def test_an_argument_that_is_a_setting_is_answered_with_its_place(encoded, argument, advice):
    """As Keras and Lightning have them; it was a TypeError about __init__."""
    for who, call in (
        ("Trainer", partial(Trainer, encoded)),
        ("Trainer.fit", partial(Trainer.fit, None)),
    ):
        with pytest.raises(ValueError, match=re.escape(f"{who} has no argument '{argument}'; {advice}")):
            call(**{argument: 1})
    with pytest.raises(ValueError, match="Trainer has no argument 'callbacks'; it is an argument of "):
        Trainer(encoded, callbacks=[])
    with pytest.raises(ValueError, match="Trainer has no argument 'resum'; did you mean 'resume'?"):
        Trainer(encoded, resum=True)


def test_optimizers_are_checked_when_they_are_named():
    assert TrainConfig(row_optimizer="adam") == TrainConfig(row_optimizer=hotrows.LazyAdam())
    with pytest.raises(
        ValueError, match="LazyAdam, which changes .* or DenseAdam, which changes all rows"
    ):
        hotrows.Adam(lr=0.01)  # was the lazy one, which is another algorithm than torch.optim.Adam
    stored = json.loads(TrainConfig(row_optimizer=hotrows.LazyAdam()).to_json())
    assert stored["row_optimizer"]["kind"] == "adam"
    with pytest.raises(ValueError, match="the kind of a row optimizer must be one of .*, not 'adm'"):
        TrainConfig(row_optimizer="adm")
    with pytest.raises(ValueError, match="adagrad's lr must be a finite number of at least 0, not -1"):
        hotrows.Adagrad(lr=-1)


# ---- callbacks


class Recorder(Callback):
    def __init__(self, stop_after_step=None, stop_at_evaluation=None):
        self.steps, self.evaluations = [], []
        self.stop_after_step, self.stop_at_evaluation = stop_after_step, stop_at_evaluation

    def on_step_end(self, trainer, progress):
        self.steps.append((trainer.state.step, progress.loss))
        if trainer.state.step == self.stop_after_step:
            trainer.stop()

    def on_evaluation_end(self, trainer, metrics):
        self.evaluations.append((trainer.state.step, metrics))
        if len(self.evaluations) == self.stop_at_evaluation:
            trainer.stop()


def test_callbacks_see_every_step_and_every_evaluation(encoded, trained, tmp_path):
    recorder = Recorder()
    Trainer(encoded, CONFIG, tmp_path / "run").fit(callbacks=[recorder])
    assert [step for step, _ in recorder.steps] == list(range(1, 31))
    records = metrics_log.read_metrics(tmp_path / "run")
    assert [loss for _, loss in recorder.steps] == [r["loss"] for r in records if r["kind"] == "train"]
    assert [step for step, _ in recorder.evaluations] == [3, 7, 11, 15, 30]
    assert same_bits(tmp_path / "run", trained[0])


@pytest.mark.parametrize("recorder, step", [(Recorder(stop_after_step=5), 5), (Recorder(None, 2), 7)])
def test_a_callback_ends_the_run_which_goes_on_later(encoded, tmp_path, recorder, step):
    result = Trainer(encoded, CONFIG, tmp_path / "run").fit(callbacks=[recorder])
    assert (result.steps, result.stopped_early) == (step, True)
    assert recorder.evaluations[-1][0] == step
    assert result.test == load_run(tmp_path / "run").evaluate(encoded.parts["test"])
    again = Trainer(encoded, CONFIG, tmp_path / "run", resume=True).fit()
    assert (again.steps, again.stopped_early) == (30, False)


def test_lines_are_written_up_to_the_stop(encoded, tmp_path):
    config = dataclasses.replace(CONFIG, epochs=60)  # a line for every 4 steps
    Trainer(encoded, config, tmp_path / "run").fit(callbacks=[Recorder(stop_after_step=6)])
    records = metrics_log.read_metrics(tmp_path / "run")
    assert [(r["kind"], r["step"]) for r in records][-2:] == [("train", 6), ("evaluation", 6)]


def test_ranks_end_at_the_same_step_when_one_of_them_stops(encoded, tmp_path):
    def work(ranks):
        recorder = Recorder(stop_after_step=5 if ranks.rank == 1 else None)
        trainer = Trainer(encoded, CONFIG, tmp_path / "run", ranks=ranks)
        return trainer.fit(callbacks=[recorder]), recorder.evaluations[-1]

    (first, (step, metrics)), (second, last) = on_threads(work, 2)
    assert first.steps == second.steps == step and 5 <= step < 15
    assert last == (step, metrics) and first.stopped_early and second.stopped_early


def test_callbacks_hear_once_how_a_run_began_and_ended(encoded, tmp_path):
    """Three methods were called at the end, of which one had the result and none the error."""
    heard = []

    class Ends(Callback):
        def __init__(self, fails=False):
            self.fails = fails

        def on_begin(self, trainer):
            heard.append(trainer.state.step)

        def on_training_end(self, trainer):
            heard.append("training")
            if self.fails:
                raise OSError("no space")

        def on_end(self, trainer, result, error):
            heard.append((result, repr(error)))

    result = Trainer(encoded, SHORT, tmp_path / "run").fit(callbacks=[Ends()])
    assert heard == [0, "training", (result, "None")]
    heard.clear()
    with pytest.raises(OSError, match="no space"):
        Trainer(encoded, SHORT, tmp_path / "failed").fit(callbacks=[Ends(fails=True)])
    assert heard == [0, "training", (None, "OSError('no space')")]


def test_a_trial_is_pruned(encoded, tmp_path):
    """As a search by Optuna does it: the page has the same callback with Optuna's names."""

    class Pruned(Exception):
        pass

    class Prune(Callback):
        def on_evaluation_end(self, trainer, metrics):
            if metrics.score < 2:
                raise Pruned

    with pytest.raises(Pruned):
        Trainer(encoded, CONFIG, tmp_path / "run").fit(callbacks=[Prune()])
    result = Trainer(encoded, CONFIG, tmp_path / "run", resume=True).fit()  # whole, and not locked
    assert result.steps == 30


# ---- progress and history


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(
    ("is_terminal", "verbose", "bar", "lines"),
    [(True, None, True, True), (False, None, False, False), (False, True, False, True),
     (True, False, False, False)],
)  # fmt: skip
def test_progress_is_shown_on_a_terminal_or_where_it_is_asked_for(
    encoded, tmp_path, monkeypatch, is_terminal, verbose, bar, lines
):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr(sys, "stderr", Terminal() if is_terminal else io.StringIO())
    Trainer(encoded, SHORT, tmp_path / "run").fit(verbose=verbose)
    said = sys.stderr.getvalue()
    assert ("\x1b[" in said) == bar
    assert ("step 3 of 6: validation AUC 0." in said and ", best so far" in said) == lines
    assert (", calibration " in said) == lines


def test_a_progress_of_the_callers_takes_the_place_of_the_bar(encoded, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())
    seen = []
    Trainer(encoded, SHORT, tmp_path / "run", progress=seen.append).fit()
    assert seen and not sys.stderr.getvalue()


def test_the_history_is_a_frame_of_intervals_and_evaluations(trained):
    _, result = trained
    history = result.history.to_pandas()
    evaluations = history[history.kind == "evaluation"]
    assert list(evaluations.step) == [3, 7, 11, 15, 30]
    assert list(history[history.kind == "train"].step) == list(range(1, 31))
    assert evaluations.auc.notna().all() and evaluations.loss.isna().all()
    best = evaluations[evaluations.is_best.astype(bool)].iloc[-1]
    assert (best.step, best.auc) == (result.best_step, result.validation.auc)


# ---- predictions


@pytest.fixture(scope="module")
def raw(trained):
    return pa.table(
        {"n": [3, None, 3, 8], "a": ["v1", "never", "v1", "v29"], "b": ["w2", None, "w2", "w0"]}
    )


@pytest.mark.filterwarnings("ignore:values differ")
def test_raw_rows_of_any_kind_are_predicted(trained, raw, tmp_path):
    predictor = load_run(str(trained[0]))
    expected = predictor.predict(raw)
    assert (expected.shape, expected.dtype) == ((4,), np.float32)
    assert expected[0] == expected[2] != expected[3]
    raw.to_pandas().to_csv(tmp_path / "raw.csv", index=False)
    frames = (raw.to_pandas(), pl.from_arrow(raw), raw.to_pydict(), {c: raw[c].to_numpy() for c in "nab"})
    frames += (raw.to_batches()[0], raw.to_reader())
    for same in (*frames, tmp_path / "raw.csv", str(tmp_path / "raw.csv")):
        assert np.array_equal(predictor.predict(same), expected)
    assert np.array_equal(predictor.predict([raw, raw.to_pandas()]), np.tile(expected, 2))


@pytest.mark.parametrize("model", [None, "an object"])
@pytest.mark.filterwarnings("ignore:values differ")
def test_what_was_fitted_predicts(encoded, raw, tmp_path, model):
    """`fit` returned no model: a run had to be read back by its folder to predict one row."""
    model = model and Net(encoded.schema)
    trainer = Trainer(encoded, SHORT, tmp_path / "run", model=model)
    result = trainer.fit()
    best = load_run(tmp_path / "run", model=model and Net(encoded.schema)).predict(raw)
    assert np.array_equal(trainer.predict(raw), best)
    assert np.array_equal(result.predictor.predict(raw), best)
    assert result.predictor is result.predictor
    copied = pickle.loads(pickle.dumps(dataclasses.replace(result, model=None)))
    assert copied.steps == result.steps and "predictor" not in vars(copied)


def test_predictions_before_fit_are_warned_of(encoded, raw, tmp_path, caplog):
    """They came without a word, from the initial values."""
    trainer = Trainer(encoded, SHORT, tmp_path / "run")
    trainer.predict(raw)
    assert "the model is untrained, and so are its predictions; call fit" in caplog.text
    trainer.fit()
    caplog.clear()
    trainer.predict(raw)
    assert "untrained" not in caplog.text


@pytest.mark.parametrize(
    "name, hint",
    [("on_step_ended", "; did you mean 'on_step_end'?"), ("on_batch", "; training calls on_begin, ")],
)
def test_a_method_of_a_callback_that_training_does_not_call_is_refused(name, hint):
    """One of another framework was never called, and nothing said so."""
    with pytest.raises(ValueError, match=re.escape(f"Early.{name} is never called{hint}")):
        type("Early", (Callback,), {name: lambda self, trainer: None})


def test_a_callback_predicts_by_the_model_of_its_step(encoded, raw, tmp_path):
    seen = []

    class Look(Callback):
        def on_step_end(self, trainer, progress):
            seen.append(trainer.predict(raw))

    trainer = Trainer(encoded, SHORT, tmp_path / "run")
    trainer.fit(callbacks=[Look()])
    Trainer(encoded, SHORT, tmp_path / "other").fit()
    assert len(seen) == SHORT.steps and not np.array_equal(seen[0], seen[-1])
    assert same_bits(tmp_path / "run", tmp_path / "other")


def test_parts_and_batches_are_predicted(trained, encoded):
    predictor, part = load_run(trained[0]), encoded.parts["test"]
    expected = predictor.predict(part)
    batches = list(Loader(part, 64).batches(0))
    assert len(expected) == part.rows == 300
    assert np.array_equal(predictor.predict(batches[0]), expected[:64])
    for several in (batches, iter(batches)):
        yielded = list(predictor.predict(several))
        assert all(isinstance(p, torch.Tensor) for p in yielded)
        np.testing.assert_allclose(torch.cat(yielded).numpy(), expected, rtol=1e-6)
    auc = hotrows.train.metrics.auc(torch.from_numpy(expected), torch.cat([b.labels for b in batches]))
    assert auc == pytest.approx(predictor.evaluate(part).auc, abs=1e-6)


def test_no_rows_have_no_predictions(trained, raw, tmp_path):
    """A frame without rows, as a filter leaves them, was refused; files without rows are."""
    predictor = load_run(trained[0])
    for nothing in (raw[:0], raw[:0].to_pandas(), raw[:0].to_pydict(), [raw[:0], raw[:0]]):
        predicted = predictor.predict(nothing)
        assert (predicted.shape, predicted.dtype) == ((0,), np.float32)
    with pytest.raises(ValueError, match="there are no samples to evaluate"):
        predictor.evaluate(raw[:0])
    with pytest.raises(ValueError, match=re.escape("lacks the columns ['a', 'b', 'n']")):
        predictor.predict({"x": []})
    (tmp_path / "raw.csv").write_text("n,a,b\n")
    with pytest.raises(ValueError, match="has no lines after its header"):
        predictor.predict(tmp_path / "raw.csv")


def test_a_warning_names_the_line_of_the_user(trained):
    """It was that of the encoder, which asks nobody for another column."""
    with pytest.warns(UserWarning, match="values differ") as warned:
        load_run(trained[0]).predict({"n": [1.0] * 99, "a": ["never"] * 99, "b": ["w2"] * 99})
    line = inspect.getsource(sys.modules[__name__]).splitlines()[warned[0].lineno - 1]
    assert warned[0].filename == __file__ and ".predict({" in line


def test_an_array_has_columns_by_number(tmp_path):
    """As transformers of scikit-learn hand them on."""
    rng = np.random.default_rng(0)
    rows = np.stack([rng.integers(20, size=300), rng.normal(size=300)], 1)
    features = (Sparse("x0"), hotrows.Dense("x1"))
    data = prepare(
        {"label": rng.integers(2, size=300), "x0": rows[:, 0], "x1": rows[:, 1]},
        Schema(features),
        tmp_path / "data",
    )
    Trainer(data, SHORT, tmp_path / "run").fit()
    predictor = load_run(tmp_path / "run")
    expected = predictor.predict({"x0": rows[:, 0], "x1": rows[:, 1]})
    assert len(set(expected.tolist())) > 100
    for same in (rows, rows.astype(object), np.asfortranarray(rows)):
        assert np.array_equal(predictor.predict(same), expected)
    with pytest.raises(ValueError, match="an array of two dimensions, or .*, not ndarray"):
        predictor.predict(rows[0])


@pytest.mark.filterwarnings("ignore:values differ")
def test_raw_rows_with_labels_are_evaluated(trained, raw):
    """A frame ended in an AttributeError, where `predict` takes it."""
    predictor = load_run(trained[0])
    labelled = raw.append_column("label", pa.array([1, 0, 0, 1]))
    found, scores = predictor.evaluate(labelled), predictor.predict(raw)
    expected = hotrows.train.metrics.auc(torch.from_numpy(scores), torch.tensor([1.0, 0, 0, 1]))
    assert (found.samples, found.auc) == (4, expected)
    with pytest.raises(ValueError, match="have no column label to compare with"):
        predictor.evaluate(raw)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (5, "expected paths, an Arrow table, a pandas or Polars frame, .*, not int"),
        ({"a": [1, 2], "b": [1]}, "the columns of a dict must have equal lengths"),
        ({"n": 1, "a": "v1", "b": "w2"}, "expected a dict of columns, found int for 'n'; .* one row too"),
        ([{"n": 1, "a": "v1", "b": "w2"}], "found int for 'n'; .* of a list of rows make a frame"),
    ],
)
def test_what_is_no_data_is_refused(trained, data, message):
    with pytest.raises(ValueError, match=message):
        load_run(trained[0]).predict(data)


def test_prepared_data_is_read_part_by_part(trained, encoded):
    for read in (load_run(trained[0]).predict, load_run(trained[0]).evaluate):
        with pytest.raises(ValueError, match=r"not EncodedData: name .*, such as data.parts\['test'\]"):
            read(encoded)
    with pytest.raises(ValueError, match=r"one part of prepared data, such as data.parts\['train'\]"):
        Loader(encoded, 64)


@pytest.mark.filterwarnings("ignore:values differ")
def test_several_labels_are_columns(tmp_path):
    table = clicks.table(600)
    schema = dataclasses.replace(clicks.SCHEMA, weight=None, group=None)
    data = prepare(table, schema, tmp_path / "enc")
    options = {"dim": 4, "num_experts": 2, "expert_hidden": [8], "tower_hidden": [4]}
    config = TrainConfig(model="mmoe", model_options=options, steps=4, batch_size=64)
    result = Trainer(data, config, tmp_path / "run").fit()
    predictor = load_run(tmp_path / "run")
    found = predictor.predict(table.drop(["click", "buy"]))
    assert found.shape == (600, 2) and predictor.labels == ("click", "buy")
    assert np.array_equal(found, predictor.predict(table))
    assert {"tasks/click/auc", "tasks/buy/auc"} <= set(result.history.column_names)


# ---- vectors


@pytest.mark.filterwarnings("ignore:values differ")  # the values of a, as those of b
def test_vectors_are_found_by_value(trained, encoded):
    predictor = load_run(trained[0])
    frame = predictor.vectors("a")
    assert frame.schema.field("vector").type == pa.list_(pa.float32(), 4)
    (batch,) = predictor.encoder.encode({"a": frame["value"], "b": frame["value"], "n": frame["id"]})
    assert frame["id"].to_pylist() == batch.ids[: len(frame)].tolist()  # feature a comes first
    weights = predictor.embedding.weights("a")
    assert np.array_equal(np.stack(frame["vector"].to_pylist()), weights[3:].numpy())
    assert set(frame["value"].to_pylist()) == {f"v{i}" for i in range(30)}
    linear = predictor.vectors("b", "linear")
    assert linear.schema.field("vector").type == pa.list_(pa.float32(), 1)


def test_a_shared_vocabulary_has_the_values_of_all_its_features(tmp_path):
    schema = dataclasses.replace(clicks.SCHEMA, label="click", weight=None, group=None)
    data = prepare(clicks.table(600), schema, tmp_path / "enc")
    config = TrainConfig(model="dnn", model_options={"dim": 4}, steps=2, table_dtype="bfloat16")
    Trainer(data, config, tmp_path / "run").fit()
    predictor = load_run(tmp_path / "run")
    assert predictor.vectors("history").equals(predictor.vectors("item"))
    assert set(predictor.vectors("item")["value"].to_pylist()) == {str(i) for i in range(30)}


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        (("c",), "feature must be one of a, b, not 'c'"),
        (("n",), "feature must be one of a, b, not 'n'"),
        (("a", "vektor"), "feature 'a' is read in the roles vector, linear, not 'vektor'"),
    ],
)
def test_vectors_that_are_not_there_are_refused(trained, wanted, message):
    with pytest.raises(ValueError, match=message):
        load_run(trained[0]).vectors(*wanted)


def test_a_frame_is_predicted_without_a_word(trained, raw, caplog, capfd):
    with caplog.at_level(logging.INFO, "hotrows"):
        assert len(
            load_run(trained[0]).predict(pd.DataFrame({"n": [1] * 8, "a": ["v1"] * 8, "b": ["w2"] * 8}))
        )
    assert not caplog.text and capfd.readouterr() == ("", "")


def test_public_objects_are_shown_in_a_line_or_two(trained, encoded):
    run, result = trained
    trainer = Trainer(encoded, CONFIG, run, resume=True)
    part = encoded.parts["test"]
    shown = {
        "Schema": (encoded.schema, "'tiny', label label; 1 dense: n; 2 sparse: a, b"),
        "EncodedData": (encoded, "samples: train 900, validation 300, test 300"),
        "Part": (part, f"test of {encoded.path}, 300 samples"),
        "Loader": (Loader(part, 64, shuffle=True), "5 batches of 64, shuffled by seed 0"),
        "Trainer": (trainer, f"{run}, deepfm, step 30 of 30"),
        "Result": (result, f"{run}, 30 steps, best {result.best_step}; validation AUC 0."),
        "Predictor": (load_run(run), f"{run}, deepfm of label"),
    }
    for kind, (public, words) in shown.items():
        assert repr(public).startswith(f"{kind}(") and words in repr(public), public
        assert len(repr(public)) < 400
    wide = Schema(tuple(Sparse(f"C{i}") for i in range(5000)))
    assert repr(wide) == "Schema('custom', label label; 5,000 sparse: C0, C1, C2, C3, C4 and 4,995 more)"


@pytest.mark.parametrize("fields", [{}, {"validation": None, "test": None, "stpes": 3}])
def test_a_damaged_result_is_named(fields):
    with pytest.raises(ValueError, match="the result of runs/a is damaged: .*; train again"):
        Result.from_json("runs/a", fields)
