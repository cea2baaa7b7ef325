"""A run trains, decides by validation alone, and goes on after an interruption to the same bits."""

import dataclasses
import json
import logging
import os
import signal
import time

import pytest
import torch

from hotrows import data
from hotrows.engine import checkpoint
from hotrows.models import nn
from hotrows.optim import FTRL, SGD, LazyAdam, RowWiseAdagrad
from hotrows.train import Interrupted, Trainer, load_run
from hotrows.train.config import TrainConfig
from hotrows.train.metrics import Metrics
from hotrows.train.run import folder as run_folder
from hotrows.train.run.state import RunState, after_evaluation, evaluation_is_due, lr_scale, stops_early
from hotrows.train.telling import metrics_log
from tests.support import forked
from tests.support.plain_command import leave_out_pictures
from tests.support.runs import CONFIG, encode, interrupt_after, same_bits, schema, write_rows

pytestmark = pytest.mark.usefixtures("one_thread", "no_pictures")


@pytest.fixture(scope="module")
def encoded(tmp_path_factory):
    return encode(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def whole(encoded, tmp_path_factory):
    """A run that was never interrupted, and its trainer."""
    trainer = Trainer(encoded, CONFIG, tmp_path_factory.mktemp("runs") / "whole")
    return trainer, trainer.fit()


def test_training_learns(whole):
    _, result = whole
    assert result.steps == 2 * 15
    assert result.test.auc > 0.65
    assert result.validation.auc > 0.65
    assert result.test.samples == 300


def test_the_run_folder_holds_all_that_is_promised(whole):
    trainer, result = whole
    names = {path.name for path in trainer.run.iterdir()}
    assert names >= {
        "config.json", "schema.json", "data.json", "environment.json", "choices.json",
        "metrics.jsonl", "result.json", "checkpoints.json", "checkpoints", "encoders",
    }  # fmt: skip
    assert TrainConfig.load(trainer.run / "config.json") == trainer.config
    kept = json.loads((trainer.run / "result.json").read_text())
    assert kept["test"]["auc"] == result.test.auc
    records = metrics_log.read_metrics(trainer.run)
    assert [r["step"] for r in records if r["kind"] == "train"] == list(range(1, 31))
    assert {r["step"] for r in records if r["kind"] == "evaluation"} == {3, 7, 11, 15, 30}
    assert {"loss", "lr", "samples_per_second", "stall_seconds"} <= records[0].keys()


def test_pictures_and_events_are_made_where_their_packages_are(whole):
    pytest.importorskip("tensorboard")
    run = whole[0].run
    assert (run / "report.svg").read_text().startswith("<svg")
    (events,) = run.glob("events.out.tfevents.*")
    assert os.uname().nodename not in events.name
    assert os.uname().nodename.encode() not in events.read_bytes()


def test_tensorboard_can_read_the_events(whole):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(whole[0].run))
    events.Reload()
    assert [e.step for e in events.Scalars("evaluation/auc")] == [3, 7, 11, 15, 30]


# Steps 1 and 2, before and in an evaluation (one call each), in the middle of the second epoch.
@pytest.mark.few(3)
@pytest.mark.parametrize("calls", [1, 3, 4, 5, 24])
def test_an_interrupted_run_goes_on_to_the_same_bits(encoded, whole, tmp_path, calls):
    run = tmp_path / "run"
    with pytest.raises(Interrupted, match=r"stopped after step \d+ of 30"):
        Trainer(encoded, CONFIG, run, progress=interrupt_after(calls)).fit()
    result = Trainer(encoded, CONFIG, run, resume=True).fit()
    assert same_bits(run, whole[0].run)
    assert same_bits(run, whole[0].run, "best")
    assert result.test == whole[1].test
    records, expected = (metrics_log.read_metrics(folder) for folder in (run, whole[0].run))
    assert [r["step"] for r in records] == [r["step"] for r in expected]


@pytest.mark.few(6)
@pytest.mark.parametrize("optimizer", [SGD(), LazyAdam(per_row_step=True), RowWiseAdagrad(), FTRL()])
@pytest.mark.parametrize("dense", ["adam", "adagrad", "sgd"])
def test_every_optimizer_goes_on_to_the_same_bits(encoded, tmp_path, optimizer, dense):
    config = dataclasses.replace(
        CONFIG, row_optimizer=optimizer, dense_optimizer=dense, steps=8, warmup_steps=6,
        table_dtype={"adam": "int4", "adagrad": "int8", "sgd": "bfloat16"}[dense], clip_norm=1.0,
        precision="bfloat16" if dense == "adagrad" else "float32",
    )  # fmt: skip
    Trainer(encoded, config, tmp_path / "whole").fit()
    with pytest.raises(Interrupted):
        Trainer(encoded, config, tmp_path / "cut", progress=interrupt_after(5)).fit()
    Trainer(encoded, config, tmp_path / "cut", resume=True).fit()
    assert same_bits(tmp_path / "whole", tmp_path / "cut")


def test_paths_are_chosen_once_and_read_ever_after(encoded, tmp_path, monkeypatch):
    config = dataclasses.replace(
        CONFIG, linear_paths="measured", steps=4, precision="bfloat16"
    )  # as auto
    with pytest.raises(Interrupted):
        Trainer(encoded, config, tmp_path / "run", progress=interrupt_after(2)).fit()
    chosen = run_folder.read_json(tmp_path / "run" / "choices.json")
    assert {key.split()[1] for key in chosen} == {"float32", "bfloat16"}
    monkeypatch.setattr(nn, "choose_linear_paths", None)
    used = []
    monkeypatch.setattr(nn, "use_linear_paths", lambda model, choices: used.append(choices))
    Trainer(encoded, config, tmp_path / "run", resume=True).fit()
    load_run(tmp_path / "run")
    assert used == [chosen, chosen]


def train_slowly(enc, run, config):
    leave_out_pictures()
    Trainer(data.EncodedData.open(enc), config, run, progress=lambda now: time.sleep(0.05)).fit()


def test_ctrl_c_in_another_process_leaves_a_run_that_goes_on_to_the_same_bits(encoded, whole, tmp_path):
    run = tmp_path / "run"
    other = forked.Forked(train_slowly, encoded.path, run, CONFIG)
    deadline = time.monotonic() + 60
    while len(metrics_log.read_metrics(run)) < 7 and time.monotonic() < deadline:
        time.sleep(0.02)
    os.kill(other.process.pid, signal.SIGINT)
    assert other.end() != 0
    assert "stopped after step" in other.error
    assert checkpoint.pointed(run) is not None
    Trainer(encoded, CONFIG, run, resume=True).fit()
    assert same_bits(run, whole[0].run)


def test_a_killed_run_goes_on_from_its_last_checkpoint_to_the_same_bits(encoded, whole, tmp_path):
    class Killed(Exception):
        pass

    def die(now):
        if now.stage == "train" and now.done == 13:
            raise Killed

    run = tmp_path / "run"
    with pytest.raises(Killed):
        Trainer(encoded, CONFIG, run, progress=die).fit()
    assert checkpoint.pointed(run).last == "step-11"
    Trainer(encoded, CONFIG, run, resume=True).fit()
    assert same_bits(run, whole[0].run)
    steps = [r["step"] for r in metrics_log.read_metrics(run) if r["kind"] == "train"]
    assert steps == list(range(1, 31))


def test_a_run_killed_before_its_first_checkpoint_begins_again(encoded, whole, tmp_path):
    run = tmp_path / "run"
    Trainer(encoded, CONFIG, run)
    Trainer(encoded, CONFIG, run, resume=True).fit()
    assert same_bits(run, whole[0].run)


def test_resuming_a_finished_run_trains_nothing_and_reports_the_same(encoded, whole):
    before = (whole[0].run / "checkpoints.json").read_bytes()
    result = Trainer(encoded, CONFIG, whole[0].run, resume=True).fit()
    assert result.test == whole[1].test
    assert (whole[0].run / "checkpoints.json").read_bytes() == before


def test_a_run_may_be_made_longer(encoded, tmp_path):
    short = dataclasses.replace(CONFIG, epochs=1)
    Trainer(encoded, short, tmp_path / "run").fit()
    result = Trainer(encoded, CONFIG, tmp_path / "run", resume=True).fit()
    assert result.steps == 30


@pytest.mark.few(2)
@pytest.mark.parametrize("depth", [0, 1, 5])
def test_planning_ahead_changes_no_bit(encoded, whole, tmp_path, depth):
    config = dataclasses.replace(CONFIG, plan_depth=depth)
    Trainer(encoded, config, tmp_path / "run").fit()
    assert same_bits(tmp_path / "run", whole[0].run)


def test_evaluations_disturb_no_training(encoded, whole, tmp_path):
    often = dataclasses.replace(CONFIG, evaluate_every=1, decay_patience=None, stop_patience=None)
    rare = dataclasses.replace(often, evaluate_every=1000)
    trainers = [Trainer(encoded, c, tmp_path / str(i)) for i, c in enumerate((often, rare))]
    trainers[1].evaluate("test")
    for trainer in trainers:
        trainer.fit()
    a, b = (checkpoint.folder_of(trainer.run, "last") for trainer in trainers)
    for file in ("pack-0.records", "pack-1.records", "model.safetensors", "trainer.safetensors"):
        assert (a / file).read_bytes() == (b / file).read_bytes()


def test_training_leaves_the_callers_random_state_alone(encoded, tmp_path):
    before = torch.get_rng_state()
    Trainer(encoded, dataclasses.replace(CONFIG, steps=2), tmp_path / "run").fit()
    assert torch.equal(torch.get_rng_state(), before)


def test_the_best_checkpoint_is_what_a_run_loads(encoded, whole):
    predictor = load_run(whole[0].run)
    assert predictor.evaluate(encoded.parts["validation"]) == whole[1].validation
    assert predictor.evaluate(encoded.parts["test"]) == whole[1].test


def test_a_run_predicts_raw_rows_without_its_data(tmp_path):
    raw = write_rows(tmp_path / "raw.csv")
    encoded = data.prepare([raw], schema(), tmp_path / "enc")
    Trainer(encoded, dataclasses.replace(CONFIG, steps=3), tmp_path / "run").fit()
    (tmp_path / "enc").rename(tmp_path / "moved")
    (tmp_path / "new.csv").write_text("n,a,b\n3,v1,w2\n,never seen,\n3,v1,w2\n")
    batches = run_folder.open_encoder(tmp_path / "run").encode(tmp_path / "new.csv")
    (chances,) = load_run(tmp_path / "run").predict(batches)
    assert chances.shape == (3,)
    assert chances[0] == chances[2] != chances[1]
    with pytest.raises(ValueError, match=r"which is gone: say where it is now \(--data FOLDER\)"):
        run_folder.open_data(tmp_path / "run")
    assert run_folder.open_data(tmp_path / "run", tmp_path / "moved").parts["test"].rows


def test_a_prediction_that_is_no_number_is_refused_and_its_row_named(encoded, whole):
    """`hotrows predict` wrote "nan" without a word."""
    loader = data.Loader(encoded.parts["test"], 7, shuffle=False)
    batches = [next(iter(loader.batches(0))) for _ in range(3)]
    batches[1].dense[4] = torch.inf
    predictions = load_run(whole[0].run).predict(batches)
    assert next(predictions).isfinite().all()
    with pytest.raises(ValueError, match="the prediction of row 12 is no finite number"):
        next(predictions)
    with pytest.raises(ValueError, match="the prediction of row 12 is no finite number"):
        list(load_run(whole[0].run).logits(batches))  # of which the command writes its file


def test_without_validation_the_last_checkpoint_is_the_best(tmp_path, caplog):
    raw = write_rows(tmp_path / "raw.csv", 300)
    encoded = data.prepare([raw], schema(), tmp_path / "enc", split="position:0.8,0,0.2")
    with caplog.at_level(logging.WARNING, "hotrows"):
        result = Trainer(encoded, dataclasses.replace(CONFIG, steps=9), tmp_path / "run").fit()
    assert caplog.text.count("the validation part is empty") == 1
    assert result.validation is None
    assert result.best_step == 9
    assert checkpoint.pointed(tmp_path / "run") == checkpoint.Pointer("step-9", "step-9")


def test_a_test_part_without_clicks_has_no_auc_and_no_crash(tmp_path):
    raw = write_rows(tmp_path / "raw.csv", 300, clicks=False)
    encoded = data.prepare([raw], schema(), tmp_path / "enc")
    result = Trainer(encoded, dataclasses.replace(CONFIG, steps=4), tmp_path / "run").fit()
    assert result.test.to_json()["auc"] is None
    json.loads((tmp_path / "run" / "result.json").read_text())


def test_a_folder_in_use_is_not_begun_twice(encoded, whole, tmp_path):
    with pytest.raises(ValueError, match=r"exists already: resume it \(resume=True, --resume"):
        Trainer(encoded, CONFIG, whole[0].run)
    with pytest.raises(ValueError, match="there is no run to resume in"):
        Trainer(encoded, CONFIG, tmp_path / "none", resume=True)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"batch_size": 32}, "batch_size=64, not 32"),
        ({"model": "wide_deep"}, "model='deepfm', not 'wide_deep'"),
        ({"row_optimizer": SGD()}, r"row_optimizer=Adagrad\(.*, not SGD"),
        ({"seed": 4}, "seed=3, not 4"),
    ],
)
def test_going_on_with_other_settings_names_the_field(encoded, whole, change, said):
    with pytest.raises(ValueError, match=said):
        Trainer(encoded, dataclasses.replace(CONFIG, **change), whole[0].run, resume=True)


def test_going_on_with_other_data_names_the_difference(whole, tmp_path):
    raw = write_rows(tmp_path / "raw.csv")
    split = "position:0.6,0.2,0.2"
    other = data.prepare([raw], schema(num_unknown=4), tmp_path / "enc", split=split)
    with pytest.raises(ValueError, match="rows of feature 'a' was|num_unknown of feature 'a' was"):
        Trainer(other, CONFIG, whole[0].run, resume=True)
    same_sizes = data.prepare([raw], schema(), tmp_path / "same", split="position:0.61,0.19,0.2")
    if same_sizes.fingerprint != whole[0].data.fingerprint:
        with pytest.raises(ValueError, match="was begun on other data than"):
            Trainer(same_sizes, CONFIG, whole[0].run, resume=True)


def test_a_training_that_diverges_says_so(encoded, tmp_path):
    config = dataclasses.replace(CONFIG, row_optimizer=SGD(lr=1e30), dense_lr=1e30)
    with pytest.raises(ValueError, match=r"training diverged: the loss is (nan|inf) at step \d"):
        Trainer(encoded, config, tmp_path / "run").fit()


def test_a_part_that_is_not_there_is_named(encoded, whole):
    with pytest.raises(ValueError, match="part must be one of train, validation, test, not 'dev'"):
        whole[0].evaluate("dev")


def test_a_folder_that_is_no_run_is_named(tmp_path):
    with pytest.raises(ValueError, match="is not a run folder: it has no config.json"):
        load_run(tmp_path)


def metrics(auc):
    return Metrics(100, auc, 0.5, 0.2, 0.2, 1.0, 0.0)


def test_plateaus_lower_the_rates_and_then_stop():
    config = TrainConfig(decay_factor=0.5, decay_patience=2, stop_patience=4)
    state, decays = RunState(step=1), []
    for auc in (0.7, 0.6, 0.7, 0.8, 0.8, 0.8, 0.8, 0.8):
        state = after_evaluation(state, metrics(auc), config, epoch_steps=0)
        decays.append(state.lr_decay)
    assert decays == [1, 1, 0.5, 0.5, 0.5, 0.25, 0.25, 0.125]
    assert stops_early(state, config)
    assert not stops_early(state, TrainConfig(stop_patience=None))
    assert RunState.from_json(state.to_json()) == state


def test_in_the_first_epoch_later_is_better_unless_clearly_worse():
    """A noisy validation part of 800 samples chose the model of a quarter of an epoch."""

    def best(scores, samples, epoch_steps):
        state = RunState()
        for step, auc in enumerate(scores, start=1):
            state = dataclasses.replace(state, step=step)
            found = dataclasses.replace(metrics(auc), samples=samples)
            state = after_evaluation(state, found, TrainConfig(), epoch_steps)
        return state.best_step

    assert best((0.73, 0.725, 0.72), 800, epoch_steps=3) == 3
    assert best((0.73, 0.725, 0.72), 800, epoch_steps=2) == 2
    assert best((0.73, 0.725, 0.72), 10**6, epoch_steps=3) == 1
    assert best((0.73, 0.72, 0.71, 0.70), 800, epoch_steps=4) == 3  # no drift below the peak


def test_rates_rise_evenly_while_warming_up():
    config = TrainConfig(warmup_steps=4)
    scales = [lr_scale(RunState(step=step, lr_decay=0.5), config) for step in range(6)]
    assert scales == [0.125, 0.25, 0.375, 0.5, 0.5, 0.5]


def test_evaluations_come_in_quarters_of_the_first_epoch_and_at_the_end_of_each():
    def due(config, total):
        states = (RunState(step=step) for step in range(total + 1))
        return [s.step for s in states if evaluation_is_due(s, config, 100, total)]

    assert due(TrainConfig(), 250) == [25, 50, 75, 100, 200, 250]
    assert due(TrainConfig(evaluate_every=60), 130) == [60, 120, 130]


def test_a_config_round_trips_through_json():
    config = dataclasses.replace(CONFIG, row_optimizer=LazyAdam(lr=0.5), clip_norm=2.0)
    assert TrainConfig.from_json(config.to_json()) == config


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"precision": "float16"}, "precision must be one of float32, tf32, bfloat16, not 'float16'"),
        ({"dense_optimizer": "lamb"}, "dense_optimizer must be one of adam, adagrad, sgd"),
        ({"epochs": 0}, "epochs must be at least 1, not 0"),
        ({"dense_lr": -1.0}, "dense_lr must be above 0"),
        ({"plan_depth": -1}, "plan_depth must be at least 0"),
    ],
)
def test_wrong_settings_are_refused(wrong, said):
    with pytest.raises(ValueError, match=said):
        TrainConfig(**wrong)
    with pytest.raises(ValueError, match="no field 'batchsize'"):
        TrainConfig.from_json('{"batchsize": 3}')
