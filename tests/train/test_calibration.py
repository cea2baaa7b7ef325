"""Calibration: logits of the best checkpoint are scaled in predictions, and in nothing else."""

import dataclasses
import json
import math

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from hotrows import Label, Schema, Sparse, TrainConfig, Trainer, load_run, prepare
from hotrows.data.streams import StreamConfig
from hotrows.engine.distributed.in_process import run as on_threads
from hotrows.optim import Adagrad
from hotrows.serving import merging
from hotrows.serving.bundle import open_bundle
from hotrows.serving.deltas import read_delta, write_delta
from hotrows.serving.export import Publisher, export
from hotrows.serving.scorer import Scorer
from hotrows.serving.version import version_at
from hotrows.train.callback import Callback

pytestmark = pytest.mark.usefixtures("one_thread", "no_pictures", "one_registry")

ROWS = 1500
CONFIG = TrainConfig(  # learns users by heart: too sure from the first evaluation on
    model="dnn",
    model_options={"dim": 4, "hidden": [16]},
    epochs=4,
    evaluate_every=54,
    batch_size=50,
    row_optimizer=Adagrad(lr=0.5),
    dense_lr=0.01,
    stop_patience=None,
    linear_paths="plain",
)
UNCALIBRATED = dataclasses.replace(CONFIG, calibration="none")


def rows():
    rng = np.random.default_rng(4)
    item, user = rng.integers(0, 12, ROWS), rng.integers(0, 400, ROWS)
    chance = 1 / (1 + np.exp(-0.3 * (item - 6)))
    click = (rng.random(ROWS) < chance).astype(np.int8)
    labels = {"click": click, "buy": 1 - click, "stars": 1 + 4.0 * click}
    return pa.table({**labels, "item": item, "user": user})


class Answers(Callback):
    """What a run in training answers right after each evaluation, by step."""

    def on_begin(self, trainer):
        trainer.answers = {}

    def on_evaluation_end(self, trainer, metrics):
        trainer.answers[trainer.state.step] = trainer.predict(rows())


def prepared(folder, labels="click", split="position:0.6,0.2,0.2"):
    schema = Schema((Sparse("item"), Sparse("user")), label=labels)
    return prepare(rows(), schema, folder, split=split)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return prepared(tmp_path_factory.mktemp("data") / "enc")


@pytest.fixture(scope="module")
def trained(data, tmp_path_factory):
    """Trainers and results of a run whose predictions are calibrated, and of one as it is trained."""
    folder, trainers = tmp_path_factory.mktemp("runs"), []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hotrows.train.telling.pictures.draw_run", lambda run: None)
        for name, config in (("scale", CONFIG), ("none", UNCALIBRATED)):
            trainer = Trainer(data, config, folder / name)
            trainers.append((trainer, trainer.fit(callbacks=[Answers()])))
    return trainers


def test_the_log_loss_of_a_model_chosen_by_auc_is_mended_and_its_auc_is_the_same(trained):
    """AUC chose checkpoints whose log loss was a fifth above that of their own best, or worse."""
    (_, scaled), (_, plain) = trained
    assert scaled.best_step == plain.best_step
    for part in ("validation", "test"):
        with_scale, without = getattr(scaled, part), getattr(plain, part)
        assert with_scale.auc == without.auc
        assert with_scale.log_loss < 0.97 * without.log_loss
    assert 0.1 < scaled.validation.scale < 0.8
    assert plain.validation.scales == plain.test.scales == ()


def test_training_does_not_know_of_the_scale(trained):
    """Weights, checkpoints of them, and what the schedule decides are the same."""
    (scaled, _), (plain, _) = trained
    pairs = zip(scaled.model.parameters(), plain.model.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    for which in ("best", "last"):
        a, b = (load_run(t.run, which) for t in (scaled, plain))
        tables = [table.name for table in a.embedding.tables]
        for name in tables:
            assert torch.equal(*(torch.cat(list(p.embedding.weight_chunks(name, 12))) for p in (a, b)))
    states = [dataclasses.replace(t.state, best=None, calibration={}) for t in (scaled, plain)]
    assert states[0] == states[1]


def test_each_checkpoint_predicts_with_the_scale_of_its_own_evaluation(trained, data):
    """The last one, trained longer, is surer than the best one and needs a smaller factor."""
    (trainer, result), _ = trained
    best, last = load_run(trainer.run), load_run(trainer.run, "last")
    assert best.losses[0].scale == result.validation.scale > last.losses[0].scale > 0
    logits = torch.cat([z for _, z in best.logits(best.encoder.encode(rows()))])
    expected = (logits * best.losses[0].scale + best.losses[0].shift).sigmoid().numpy()
    assert np.array_equal(best.predict(rows()), expected)
    assert best.evaluate(data.parts["validation"]) == result.validation
    assert best.evaluate(data.parts["test"]) == result.test == trainer.evaluate("test")
    lines = [json.loads(line) for line in (trainer.run / "metrics.jsonl").read_text().splitlines()]
    evaluations = {line["step"]: line for line in lines if line["kind"] == "evaluation"}
    assert evaluations[result.best_step]["log_loss"] == result.validation.log_loss


def test_a_bundle_scores_with_the_scale(trained, tmp_path):
    (trainer, result), _ = trained
    export(trainer.run, tmp_path / "bundle", format="onnx")
    stated = json.loads((tmp_path / "bundle" / "export.json").read_text())["losses"]["click"]
    assert (stated["scale"], stated["shift"]) == (result.validation.scale, result.validation.shift)
    scores = Scorer(tmp_path / "bundle").score(rows())
    assert np.abs(scores - load_run(trainer.run).predict(rows())).max() < 1e-6
    export(trainer.run, tmp_path / "weights")
    assert json.loads((tmp_path / "weights" / "export.json").read_text())["losses"]["click"] == stated


def test_a_resumed_run_has_the_same_scale(trained, data, tmp_path):
    result = trained[0][1]
    Trainer(data, dataclasses.replace(CONFIG, epochs=3), tmp_path / "run").fit()
    resumed = Trainer(data, CONFIG, tmp_path / "run", resume=True).fit()
    assert (resumed.validation, resumed.test) == (result.validation, result.test)
    later = Trainer(data, UNCALIBRATED, tmp_path / "run", resume=True).fit()
    assert later.test.scales == () and load_run(tmp_path / "run").losses[0].scale == 1


def test_a_run_in_training_answers_as_its_checkpoints_do(trained):
    for trainer, result in trained:
        for which, step in (("best", result.best_step), ("last", result.steps)):
            assert np.array_equal(trainer.answers[step], load_run(trainer.run, which).predict(rows()))


def test_a_run_begins_with_the_predictions_of_another_and_its_versions_answer_as_it_does(
    trained, data, tmp_path
):
    """Its versions had the scale of the first alone, and what began with a run none."""
    first = load_run(trained[0][0].run)
    config = dataclasses.replace(CONFIG, start_from=str(first.run), epochs=None, steps=20)
    trainer, publisher = Trainer(data, config, tmp_path / "run"), Publisher(tmp_path / "to", "10b")
    assert np.array_equal(trainer.predict(rows()), first.predict(rows()))
    trainer.fit(callbacks=[publisher])
    versions = [version_at(tmp_path / "to", number) for number in (1, 2, 3, 4)]
    assert [version.head.step for version in versions] == [0, 10, 20, 20]  # the evaluation came later
    last = load_run(trainer.run, "last")
    expected = [first.calibration] * 3 + [last.calibration]
    assert [version.calibration for version in versions] == expected != [first.calibration] * 4
    assert (
        np.abs(Scorer.watch(tmp_path / "to", every=None).score(rows()) - last.predict(rows())).max()
        < 1e-6
    )
    merging.merge(tmp_path / "to", tmp_path / "bundle")
    assert open_bundle(tmp_path / "bundle").calibration == last.calibration
    delta = read_delta(tmp_path / "to" / "delta-0000000004.safetensors")
    for scales, why in (([[math.nan, 0.0]], "two finite numbers"), ([[1.0, 0.0]] * 2, "other labels")):
        wrong = dataclasses.replace(delta, calibration=np.array(scales))
        write_delta(tmp_path / "to" / "delta-0000000004.safetensors", wrong)
        with pytest.raises(ValueError, match=why):
            version_at(tmp_path / "to")


def test_a_run_that_begins_with_one_of_another_loss_says_so(trained, data, tmp_path, caplog):
    config = dataclasses.replace(CONFIG, start_from=str(trained[0][0].run))
    for loss, is_other in (("focal:2", True), (None, False)):
        caplog.clear()
        Trainer(data, dataclasses.replace(config, loss=loss), tmp_path / f"run{loss}")
        assert ("by focal:2 here: the first predictions are not those" in caplog.text) == is_other


def test_a_stream_keeps_the_calibration_that_it_begins_with(trained, data, tmp_path):
    first = load_run(trained[0][0].run)
    (tmp_path / "events").mkdir()
    pq.write_table(rows().slice(0, 1), tmp_path / "events" / "1.parquet")
    config = dataclasses.replace(CONFIG, start_from=str(first.run), epochs=None, evaluate_every=None)
    trainer = Trainer(data, config, tmp_path / "run")
    trainer.fit_stream(f"folder:{tmp_path / 'events'}", StreamConfig(stop_when_idle=0.0))
    assert load_run(tmp_path / "run").calibration == first.calibration == trainer.recommender.calibration


def test_each_of_several_labels_has_a_factor_and_numbers_have_none(tmp_path):
    labels = (Label("click"), Label("buy", loss="weighted:2"), Label("stars", loss="squared"))
    data = prepared(tmp_path / "enc", labels)
    options = {"dim": 4, "num_experts": 2, "expert_hidden": [16], "tower_hidden": [8]}
    config = dataclasses.replace(CONFIG, model="mmoe", model_options=options)
    trainer = Trainer(data, config, tmp_path / "run")
    result = trainer.fit()
    plain = Trainer(data, dataclasses.replace(config, calibration="none"), tmp_path / "plain").fit()
    click, buy, stars = (loss.scale for loss in trainer.recommender.losses)
    assert stars == 1 and len({click, buy, 1.0}) == 3
    for name in ("click", "buy"):
        assert result.test.tasks[name].log_loss < plain.test.tasks[name].log_loss
    assert result.test.tasks["stars"] == plain.test.tasks["stars"]
    assert load_run(tmp_path / "run").evaluate(data.parts["test"]) == result.test


def test_without_a_validation_part_there_is_no_scale(tmp_path):
    data = prepared(tmp_path / "enc", split="position:0.8,0,0.2")
    trainer = Trainer(data, dataclasses.replace(CONFIG, evaluate_every=None, epochs=1), tmp_path / "run")
    assert trainer.fit().test.scales == () and trainer.recommender.losses[0].scale == 1


def test_ranks_agree_on_the_scale(data, tmp_path):
    def work(ranks):
        trainer = Trainer(data, dataclasses.replace(CONFIG, epochs=3), tmp_path / "run", ranks=ranks)
        return trainer.fit(), trainer.recommender.losses[0].scale

    (first, scale), (second, other) = on_threads(work, 2)
    assert scale == other != 1 and first.test == second.test
