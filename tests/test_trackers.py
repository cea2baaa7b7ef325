"""A run logged to MLflow and Weights & Biases, by their own libraries."""

import json
import logging
import math
import struct
import threading
import time
from pathlib import Path

import pytest

import hotrows
from hotrows import Schema, Sparse
from hotrows.cli import tracking
from hotrows.tools import trackers
from tests.support.clicks import table

pytestmark = pytest.mark.usefixtures("one_thread", "no_pictures")
SCHEMA = Schema((Sparse("user"), Sparse("item")), label="click", group="user")
FILES = {"config.json", "schema.json", "environment.json", "metrics.jsonl", "result.json"}


@pytest.fixture
def data(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return hotrows.prepare(table(400).select(["click", "user", "item"]), SCHEMA, "enc")


def trained(data, run="run", callbacks=(), **settings):
    resume = settings.pop("resume", False)
    config = hotrows.TrainConfig(**{"model": "fm", "epochs": 1, "batch_size": 64, **settings})
    trainer = hotrows.Trainer(data, config, run, resume=resume)
    return trainer.fit(callbacks=callbacks, verbose=False)


class Recorder(trackers.Tracker):
    """A service that keeps what it is sent."""

    name = "recorder"

    def __init__(self):
        super().__init__()
        self.sent, self.result, self.files, self.ends = {}, {}, set(), []

    def _open(self, run, known, settings):
        self.known, self.settings = known, settings
        return known or f"id of {run.name}"

    def _send(self, numbers, step):
        self.sent.setdefault(step, {}).update(numbers)

    def _send_result(self, numbers, step, files):
        self.result, self.files = dict(numbers), {file.name for file in files}

    def _end_run(self, is_done):
        self.ends.append(is_done)


def test_a_tracker_is_sent_settings_each_line_of_metrics_the_result_and_files(data):
    tracker = Recorder()
    result = trained(data, callbacks=[tracker])
    assert tracker.settings["model"] == "fm" and tracker.settings["batch_size"] == 64
    assert tracker.settings["run"].endswith("/run")
    history = result.history.to_pylist()
    lines = {(line["kind"], line["step"]) for line in history}
    sent = {(name.split("/")[0], step) for step, numbers in tracker.sent.items() for name in numbers}
    assert sent == lines and len(lines) > 4
    first = next(line for line in history if line["kind"] == "train")
    assert tracker.sent[first["step"]]["train/loss"] == first["loss"]
    assert tracker.result["best/test/auc"] == result.test.auc
    assert tracker.result["best/step"] == result.best_step
    assert tracker.files == FILES and tracker.ends == [True]
    assert all(map(math.isfinite, tracker.result.values()))


def test_a_run_that_fails_is_ended_and_goes_on_under_its_id(data):
    class Failing(hotrows.Callback):
        def on_step_end(self, trainer, progress):
            if trainer.state.step == 3:
                raise RuntimeError("stop here")

    first, again = Recorder(), Recorder()
    with pytest.raises(RuntimeError, match="stop here"):
        trained(data, callbacks=[first, Failing()])
    assert first.ends == [False] and not first.result
    ids = Path("run", "trackers.json")
    ids.write_text((text := ids.read_text())[:5])
    with pytest.raises(ValueError, match=r"trackers.json is damaged"):
        trained(data, callbacks=[again], resume=True)
    ids.write_text(text)
    trained(data, callbacks=[again], resume=True)
    assert again.known == "id of run" and again.ends == [True]


def test_a_service_that_fails_is_warned_of_once_and_training_goes_on(data, caplog):
    class Broken(Recorder):
        def _send(self, numbers, step):
            raise OSError("no route to host")

    with caplog.at_level(logging.WARNING, "hotrows"):
        result = trained(data, callbacks=[Broken()])
    said = [r.getMessage() for r in caplog.records if "recorder" in r.getMessage()]
    assert said == [
        "recorder did not take the metrics of step 1; metrics.jsonl has all: no route to host"
    ]
    assert result.test is not None


def test_a_service_that_does_not_answer_holds_up_neither_training_nor_its_end(data, caplog, monkeypatch):
    answers = threading.Event()

    class Silent(Recorder):
        def _send(self, numbers, step):
            answers.wait(60)

    monkeypatch.setattr(trackers, "_PATIENCE", 0.2)
    begun = time.monotonic()
    with caplog.at_level(logging.WARNING, "hotrows"):
        result = trained(data, callbacks=[Silent()])
    answers.set()
    said = [r.getMessage() for r in caplog.records if "recorder" in r.getMessage()]
    assert said == ["recorder did not take the end of the run; metrics.jsonl has all: nothing for 0.2 s"]
    assert result.test is not None and time.monotonic() - begun < 30


def test_lines_that_wait_for_a_service_are_bounded(data, caplog, monkeypatch):
    answers = threading.Event()

    class Slow(Recorder):
        def _send(self, numbers, step):
            answers.wait(60)
            super()._send(numbers, step)

        def on_step_end(self, trainer, progress):
            if trainer.state.step == 4:
                answers.set()

    monkeypatch.setattr(trackers, "_MOST_WAITING", 1)
    slow = Slow()
    with caplog.at_level(logging.WARNING, "hotrows"):
        trained(data, callbacks=[slow])
    said = [r.getMessage() for r in caplog.records if "recorder" in r.getMessage()]
    assert len(said) == 1 and said[0].endswith("metrics.jsonl has all: 1 lines wait for it")
    # One line is being sent and one waits; that of step 4 may follow the answer.
    assert 1 in slow.sent and len(slow.sent.keys() & {1, 2, 3}) <= 2


def test_a_service_that_is_away_at_the_begin_is_one_line(data):
    class Away(Recorder):
        def _open(self, run, known, settings):
            raise OSError("no route\nto host")

    with pytest.raises(ValueError) as raised:
        trained(data, callbacks=[Away()])
    assert str(raised.value) == (
        "recorder did not begin a run: no route to host; see that its service answers and lets you in, "
        "or train without this tracker"
    )


@pytest.mark.parametrize("name, package", [("mlflow", "mlflow-skinny"), ("wandb", "wandb")])
def test_a_missing_library_is_named(name, package, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, name, None)
    with pytest.raises(ImportError, match=f"--tracker {name} needs {package}.*: pip install {package}"):
        trackers.BY_NAME[name]()


@pytest.fixture(params=["sqlite", "file"])
def store(request, tmp_path, monkeypatch):
    """The URI of a store of MLflow in a database, or in files."""
    pytest.importorskip("mlflow", reason="needs hotrows[mlflow]")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    database, folder = f"sqlite:///{tmp_path}/mlflow.db", (tmp_path / "mlruns").as_uri()
    return database if request.param == "sqlite" else folder


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of libraries that MLflow imports
def test_mlflow_has_the_run_and_its_files(data, store):
    import mlflow

    result = trained(data, callbacks=[trackers.MLflow("clicks", uri=store)], metrics="ndcg@10")
    trained(data, callbacks=[trackers.MLflow("clicks", uri=store)], resume=True, epochs=2)

    client = mlflow.MlflowClient(store)
    (run,) = client.search_runs([client.get_experiment_by_name("clicks").experiment_id])
    assert run.info.status == "FINISHED" and run.info.run_name == "run"
    assert run.data.params["model"] == "fm" and run.data.params["row_optimizer/kind"]
    aucs = client.get_metric_history(run.info.run_id, "evaluation/auc")
    expected = result.history.to_pylist()
    assert [m.value for m in aucs] == [e["auc"] for e in expected if e["kind"] == "evaluation"]
    assert {file.path for file in client.list_artifacts(run.info.run_id)} == FILES
    assert run.info.run_id == json.loads((result.run / "trackers.json").read_text())["mlflow"]


def logged_rows(file):
    """What `Run.log` was given, of the file of a run: LevelDB's log of records, after seven bytes."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, at, record = file.read_bytes(), 7, b""
    while at + 7 <= len(data):
        if (1 << 15) - at % (1 << 15) < 7:  # a header does not reach over the end of a block
            at += (1 << 15) - at % (1 << 15)
        _, length, kind = struct.unpack_from("<IHB", data, at)
        record += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or its last piece
            items = Record.FromString(record).history.item
            row = {item.key or item.nested_key[0]: json.loads(item.value_json) for item in items}
            record = b""
            if row:
                yield row


@pytest.mark.slow
def test_weights_and_biases_writes_a_run_without_a_network(data, monkeypatch, tmp_path):
    wandb = pytest.importorskip("wandb", reason="needs hotrows[wandb]")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    result = trained(data, callbacks=[trackers.WandB("clicks")])
    assert wandb.run is None  # it is closed
    (folder,) = (tmp_path / "wandb").glob("offline-run-*")
    (file,) = folder.glob("*.wandb")
    history = list(logged_rows(file))
    aucs = [row["evaluation/auc"] for row in history if "evaluation/auc" in row]
    expected = result.history.to_pylist()
    assert aucs == [line["auc"] for line in expected if line["kind"] == "evaluation"]
    assert {path.name for path in (folder / "files").iterdir()} >= FILES


def test_the_command_line_logs_to_the_trackers_that_it_names(data, hotrows, monkeypatch):
    assert tuple(trackers.BY_NAME) == tracking.NAMES
    made = []
    monkeypatch.setattr(trackers, "BY_NAME", {"mlflow": lambda: made.append(Recorder()) or made[-1]})
    told = hotrows(
        "train", data.path, "--model", "fm", "--steps", "3", "--run", "r", "--tracker", "mlflow"
    )
    assert told.code == 0, told.err
    assert made[0].ends == [True] and made[0].settings["model"] == "fm"


def test_the_command_to_go_on_with_names_the_trackers():
    pytest.importorskip("mlflow", reason="needs hotrows[mlflow]")
    assert tracking.words(tracking.trackers(("mlflow", "mlflow"))) == ["--tracker", "mlflow"]
