"""Training on a stream: equal to a loop of one's own over the same batches, killed and resumed or not."""

import dataclasses
import gc
import math
import shutil
import threading
from contextlib import closing
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from hotrows.data import Encoder, prepare
from hotrows.data.streams import Alarm, EventStream, StreamConfig, open_source
from hotrows.data.streams.folder import FolderSource
from hotrows.data.streams.line_log import read_lines
from hotrows.dynamic import Dynamic
from hotrows.engine.distributed.comm import OneRank
from hotrows.engine.distributed.in_process import run as on_threads
from hotrows.losses import Calibration, Loss
from hotrows.optim import Adagrad
from hotrows.schema import Dense, Schema, Sparse, Time
from hotrows.train import Callback, Trainer
from hotrows.train.config import TrainConfig
from hotrows.train.loop.evaluate import metrics_of, of_all_ranks, scaling
from hotrows.train.loop.recommender import Targets
from hotrows.train.loop.scored_window import ScoredWindow
from hotrows.train.run.data import RunBatches
from hotrows.train.telling.metrics_log import read_metrics
from tests.support.runs import SMALL, Kill, Killed, same_bits, weights_of, write_rows

CONFIG = TrainConfig(
    model="deepfm", model_options=SMALL, batch_size=64, row_optimizer=Adagrad(lr=0.1), seed=3,
    linear_paths="plain",
)  # fmt: skip
DRAINED = StreamConfig(stop_when_idle=0.0, window=300)


@pytest.fixture
def folder(tmp_path, lines):
    """A folder with 900 events in two files."""
    folder = tmp_path / "events"
    folder.mkdir()
    (folder / "a.csv").write_text("".join(lines[:501]))
    (folder / "b.csv").write_text(lines[0] + "".join(lines[501:]))
    return folder


def train(data, folder, run, stream=DRAINED, config=CONFIG, **how):
    resume = run.exists()
    return Trainer(data, config, run, resume=resume).fit_stream(f"folder:{folder}", stream, **how)


def same_weights(a, b):
    return all(torch.equal(x, y) for x, y in zip(weights_of(a), weights_of(b), strict=True))


def batches_of(run):
    return [line["size"] for line in read_lines(run / "stream.jsonl")]


@pytest.fixture(scope="module")
def whole(data, lines, tmp_path_factory):
    """A run on all events that nobody stops."""
    place = tmp_path_factory.mktemp("whole")
    (place / "events").mkdir()
    (place / "events" / "a.csv").write_text("".join(lines[:501]))
    (place / "events" / "b.csv").write_text(lines[0] + "".join(lines[501:]))
    train(data, place / "events", place / "run")
    return place / "run"


def test_all_events_are_trained_once_and_scored_by_windows(whole):
    assert batches_of(whole) == [64] * 14 + [4]
    windows = [line for line in read_metrics(whole) if line["kind"] == "window"]
    assert [line["samples"] for line in windows] == [320, 320, 260]
    assert [line["events"] for line in windows] == [320, 640, 900]
    assert all(0.4 < line["auc"] < 1 and line["log_loss"] < 1 for line in windows)


def test_a_file_that_is_no_file_of_this_run_is_not_cut_for_dead_letters(data, folder, tmp_path):
    notes = tmp_path / "notes.txt"
    notes.write_text("not a letter\n")
    stream = dataclasses.replace(DRAINED, dead_letters=str(notes))
    with pytest.raises(ValueError, match=r"notes\.txt has lines already, .*: name a new file"):
        train(data, folder, tmp_path / "run", stream)
    assert notes.read_text() == "not a letter\n"
    train(data, folder, tmp_path / "run", dataclasses.replace(stream, dead_letters=str(tmp_path / "new")))
    assert (tmp_path / "new").read_bytes() == b""


class _Away:
    """A source that fails at its first read."""

    name, position = "away", {}

    def read(self, limit, wait):
        raise OSError("the broker is away")

    def close(self):
        pass


TIMED = StreamConfig(join_on="evnt_id", stop_when_idle=0.0)


@pytest.mark.parametrize(
    ("header", "source", "stream", "labels", "said"),
    [
        (
            "label,n,a,B\n",
            "folder:events",
            DRAINED,
            None,
            r"a\.csv line 1: the header lacks the columns \['b'\]",
        ),
        ("", "folder:none", DRAINED, None, "the stream none is no folder"),
        ("", _Away(), DRAINED, None, "the broker is away"),
        ("", "folder:events", TIMED, "folder:events", "say in the schema which column it is"),
    ],
)
def test_a_run_that_fails_before_its_first_batch_says_so_and_may_begin_again(
    data, lines, tmp_path, monkeypatch, header, source, stream, labels, said
):
    """The run ended with 0 steps and no word, or its folder and its store were in the way of the next."""
    monkeypatch.chdir(tmp_path)
    Path("events").mkdir()
    Path("events/a.csv").write_text("".join([header or lines[0], *lines[1:101]]))
    config = dataclasses.replace(CONFIG, fast_memory="1MiB", store="file:tables")
    trainer = Trainer(data, config, "run")
    with pytest.raises((ValueError, OSError), match=said):
        trainer.fit_stream(source, stream, labels=labels)
    trainer.embedding.close()
    del trainer
    gc.collect()  # of its lock
    Path("events/a.csv").write_text("".join(lines[:101]))
    assert Trainer(data, config, "run").fit_stream("folder:events", DRAINED).steps == 2


def test_the_weights_are_those_of_a_loop_over_the_same_batches(data, whole, folder):
    trainer = Trainer(data, CONFIG, folder.parent / "offline")  # not on a stream: its steps alone
    steps = trainer.steps
    encoder = Encoder.open(data.path)
    source = open_source(f"folder:{folder}", encoder.schema)
    with EventStream(source, encoder, 64, DRAINED) as events:
        steps.batches = _Batches(list(events))
    with closing(steps.start()) as runner:
        for work in runner:
            steps.train(work)
    embedding = steps.embedding
    weights = [embedding.weights(table.name) for table in embedding.tables]
    expected = weights_of(whole)
    pairs = zip([*weights, *steps.model.state_dict().values()], expected, strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


class _Batches(RunBatches):
    """A list of batches as the batches of a run."""

    def __init__(self, batches):
        self.batches, self.total_steps, self.known_steps = batches, len(batches), 0

    def after(self, state):
        return iter(list(enumerate(self.batches))[state.step :])


def test_killed_again_and_again_each_event_is_trained_once(data, folder, whole, tmp_path):
    config = dataclasses.replace(CONFIG, checkpoint_every=4)
    run = tmp_path / "run"
    for step in (3, 9, 14):
        with pytest.raises(Killed):
            train(data, folder, run, config=config, callbacks=[Kill(step)])
    train(data, folder, run, config=config)
    assert same_weights(run, whole)
    assert list(read_lines(run / "stream.jsonl")) == list(read_lines(whole / "stream.jsonl"))
    windows = [
        [line for line in read_metrics(place) if line["kind"] == "window"] for place in (run, whole)
    ]
    assert windows[0] == windows[1]


def test_the_batches_of_a_run_are_made_again(data, folder, whole, tmp_path):
    """Batches that timing has cut: those that were there, then those that came; again they are cut
    alike."""
    config = dataclasses.replace(CONFIG, batch_size=512)
    text = (folder / "b.csv").read_text()
    (folder / "b.csv").unlink()

    class Append(Callback):
        def on_idle(self, trainer):
            trained = trainer.state.stream.events if trainer.state.stream else 0
            if trained == 500:
                (folder / "b.csv").write_text(text)
            elif trained == 900:
                trainer.stop()

    run, again = tmp_path / "run", tmp_path / "again"
    train(data, folder, run, StreamConfig(max_wait=1e-3, alarm_idle=60.0), config, callbacks=[Append()])
    assert sum(batches_of(run)[:-1]) == 500 and sum(batches_of(run)) == 900
    train(data, folder, again, DRAINED, config, repeat=run)
    assert batches_of(again) == batches_of(run)
    assert same_weights(again, run)


def test_a_batch_that_has_lost_events_since_is_named_when_it_is_made_again(
    data, folder, whole, tmp_path, caplog
):
    """As retention and compaction of a topic leave it: it was another model, and nothing said so."""

    class Compacted(FolderSource):
        def read_to(self, position, wait):
            return self.read(position["events"] - self._events, wait)[1:]

    source = Compacted(folder, Encoder.open(data.path).schema)
    run = tmp_path / "again"
    Trainer(data, CONFIG, run).fit_stream(source, DRAINED, repeat=whole)
    (message,) = [text for text in caplog.messages if "in the run that is repeated" in text]
    assert message.startswith("batch 1 has 63 events, and had 64") and len(batches_of(run)) == 15


@pytest.mark.parametrize(
    "damage, repeated, resumed",
    [
        (lambda lines: [*lines[:5], lines[5].replace(b'"events": ', b'"events": 1'), *lines[6:]],
         "stream.jsonl is damaged: its checksum is wrong", None),
        (lambda lines: [*lines[:5], b"\x00" * 40 + b"\n", *lines[6:]], "lacks batch 6 of the 15 trained",
         "the line behind that of batch 5, of 15, cannot be read"),
        (lambda lines: lines[:5] + lines[6:], "does not have each batch after step 0 once",
         "the line behind that of batch 5, of 15"),
        (lambda lines: [b'{"n": 3}\n', *lines], "a batch has no field 'n'", "behind that of batch 0"),
        (lambda lines: [], "lacks batch 1 of the 15 trained", "behind that of batch 0, of 15"),
    ],
)  # fmt: skip
def test_a_damaged_log_of_batches_is_refused(data, folder, whole, tmp_path, damage, repeated, resumed):
    run = shutil.copytree(whole, tmp_path / "run")
    path = run / "stream.jsonl"
    path.write_bytes(text := b"".join(damage(path.read_bytes().splitlines(keepends=True))))
    with pytest.raises(ValueError, match=repeated):
        train(data, folder, tmp_path / "again", repeat=run)
    if resumed is not None:
        with pytest.raises(ValueError, match=resumed):
            train(data, folder, run)
    assert path.read_bytes() == text


def test_a_run_whose_log_of_batches_is_gone_says_so_and_goes_on(data, folder, whole, tmp_path, caplog):
    run = shutil.copytree(whole, tmp_path / "run")
    (run / "stream.jsonl").unlink()
    train(data, whole.with_name("events"), run)
    assert "stream.jsonl is gone: batches up to step 15 cannot be made again" in caplog.text


def test_a_run_from_another_one_begins_with_its_weights(data, folder, whole, tmp_path):
    config = dataclasses.replace(CONFIG, start_from=str(whole))
    (tmp_path / "none").mkdir()
    result = train(data, tmp_path / "none", tmp_path / "run", config=config)
    assert result.steps == 0 and result.validation is None
    train(data, folder, tmp_path / "more", config=config)
    assert not same_weights(tmp_path / "more", whole)


@pytest.mark.parametrize("memory", [{}, {"in_flight": 1}, {"policy": "lru", "plan_depth": 0}])
def test_behind_a_cache_the_bits_are_the_same(memory, data, folder, whole, tmp_path):
    """Planning looks ahead as far as events have come, here not at all or to the end."""
    config = dataclasses.replace(CONFIG, fast_memory=3000, **memory)
    train(data, folder, tmp_path / "run", dataclasses.replace(DRAINED, queue=1), config)
    assert same_weights(tmp_path / "run", whole)


class Heard(Callback):
    def __init__(self):
        self.windows, self.events = [], []

    def on_evaluation_end(self, trainer, metrics):
        self.windows.append(metrics.samples)

    def on_step_end(self, trainer, progress):
        self.events.append(trainer.state.stream.events)


def test_callbacks_hear_of_steps_and_windows(data, folder, tmp_path):
    heard = Heard()
    train(data, folder, tmp_path / "run", callbacks=[heard])
    assert heard.windows == [320, 320, 260]
    assert heard.events[:3] == [64, 128, 192]


def test_alarms_save_the_run_or_call_a_function(data, folder, tmp_path):
    alarmed = dataclasses.replace(DRAINED, alarm_calibration="0,0.001")
    with pytest.raises(
        Alarm, match=r"the calibration of the last 320 events is .* out of 0 to 0.001"
    ) as it:
        train(data, folder, tmp_path / "run", alarmed)
    assert it.value.exit_code == 3
    assert train(data, folder, tmp_path / "run").steps == 15  # from where it has stopped: step 5
    heard = []
    train(data, folder, tmp_path / "called", alarmed, on_alarm=lambda alarm: heard.append(alarm.kind))
    assert heard == ["calibration"] * 2  # the last window is not full


def test_a_window_waits_for_a_label_that_no_sample_has_but_not_for_ever():
    targets = Targets(torch.zeros(4, 2), torch.tensor([[1.0, 0.0]] * 4))
    both = Calibration({"click": Loss(), "buy": Loss()})
    recommender = SimpleNamespace(targets=lambda batch: targets, calibration=both)
    steps = SimpleNamespace(recommender=recommender, ranks=OneRank())
    window, held = ScoredWindow(steps, 6, {}), []
    for _ in range(30):
        window.add(torch.zeros(4, 2), SimpleNamespace(groups=None))
        window.end_batch(4)
        assert window.close() is None
        held.append(len(window.tensors().get("logits", ())))
    assert max(held) == 44 and 0 in held


def test_ranks_gather_their_window_once_one_of_them_has_each_label(monkeypatch):
    """They gathered it at every step until then."""
    gathered = []

    def of_all(*args):
        gathered.append(of_all_ranks(*args))
        return gathered[-1]

    def work(ranks):
        recommender = SimpleNamespace(
            labels=("click", "buy"), tasks=("click", "buy"), ranking=(), base_logits=[None, None],
            calibration=Calibration({"click": Loss(), "buy": Loss()}),
        )  # fmt: skip
        steps = SimpleNamespace(recommender=recommender, ranks=ranks, calibrate=lambda calibration: None)
        window, closed = ScoredWindow(steps, 5, {}), []
        for step in range(3):
            num = 2 + ranks.rank  # of five samples
            labels = torch.arange(num)[:, None] % 2 + torch.zeros(1, 2)
            weights = torch.tensor([[1.0, float(step == ranks.rank == 1)]] * num)
            recommender.targets = partial(lambda kept, batch: kept, Targets(labels, weights))
            window.add(torch.full((num, 2), 10.0 * step + ranks.rank), SimpleNamespace(groups=None))
            window.end_batch(5)
            closed.append(window.close())
        return closed

    monkeypatch.setattr("hotrows.train.loop.scored_window.of_all_ranks", of_all)
    for closed in on_threads(work, 2):
        assert [metrics and metrics.samples for metrics in closed] == [None, 10, None]
    logits, _, _ = gathered[0]
    assert len(gathered) == 2 and logits[:, 0].tolist() == [0, 0, 1, 1, 1, 10, 10, 11, 11, 11]


@pytest.mark.parametrize("base", [-1.0, None])
def test_a_window_takes_up_the_scale_that_fitted_the_one_before_it_if_that_is_better(base):
    """Also where a checkpoint lies between them."""
    draw = torch.Generator().manual_seed(0)
    of_run = {"labels": ("click",), "tasks": None, "ranking": ()}
    recommender = SimpleNamespace(
        **of_run, base_logits=[base], calibration=Calibration({"click": Loss(scale=0.1)})
    )
    steps = SimpleNamespace(
        recommender=recommender, calibrate=partial(setattr, recommender, "calibration"), ranks=OneRank()
    )
    stored, found = {}, []
    for too_sure in (3, 3, 3, 1, 1):
        window = ScoredWindow(steps, 4000, stored)
        logits = torch.randn(4000, generator=draw) - 1
        labels = (torch.rand(4000, generator=draw) < logits.sigmoid()).float()
        recommender.targets = lambda batch, labels=labels: Targets(labels)
        window.add(too_sure * (logits + 1) - 1, SimpleNamespace(groups=None))
        window.end_batch(4000)
        before, metrics = recommender.calibration.scales[0][0], window.close()
        assert metrics.scale == before or before == 1  # it is scored before it changes anything
        stored = window.tensors()
        found.append(recommender.calibration.scales[0][0])
    assert found == pytest.approx([0.1, 1 / 3, 1 / 3, 1 / 3, 1], abs=0.07)


def test_a_thread_that_evaluates_while_a_scale_is_fitted_fits_none():
    """It was a field of the shared object: metrics of another thread had a scale of their own samples."""
    draw = torch.Generator().manual_seed(0)
    logits = torch.randn(4000, generator=draw)
    labels = (torch.rand(4000, generator=draw) < logits.sigmoid()).float()
    recommender = SimpleNamespace(
        labels=("click",), tasks=None, ranking=(), base_logits=[0.0], config=TrainConfig("lr"),
        calibration=Calibration({"click": Loss(scale=0.5)}),
    )  # fmt: skip
    scales = []

    def evaluate():
        scales.append(metrics_of(recommender, [(3 * logits, Targets(labels), None)]).scale)

    for how in ("none", "fitted"):
        with scaling(how):
            thread = threading.Thread(target=evaluate)
            thread.start()
            thread.join()
            evaluate()
    assert scales[0] == scales[2] == 0.5 and math.isnan(scales[1])
    assert scales[3] == pytest.approx(1 / 3, abs=0.05)


def test_what_was_trained_is_saved_while_no_event_comes(data, folder, tmp_path):
    """Or the source would have to keep these events until others come."""

    class Look(Callback):
        ticks, is_saved = 0, False

        def on_idle(self, trainer):
            if trainer.state.step > 0:
                self.ticks += 1
                self.is_saved = trainer.checkpoints.saved == trainer.state
            if self.is_saved or self.ticks > 30:
                trainer.stop()

    look, stream = Look(), StreamConfig(max_wait=1e-3, checkpoint_seconds=0.3)
    train(data, folder, tmp_path / "run", stream, callbacks=[look])
    assert look.is_saved


def test_no_event_for_long_is_an_alarm(data, tmp_path):
    (tmp_path / "none").mkdir()
    with pytest.raises(Alarm, match="no event that can be trained came for 0.01 s") as it:
        train(data, tmp_path / "none", tmp_path / "run", StreamConfig(alarm_idle=0.01))
    assert it.value.exit_code == 4


class Break(Callback):
    """Makes the model useless after the second step."""

    def on_step_end(self, trainer, progress):
        if trainer.state.step == 2:
            with torch.no_grad():
                next(trainer.model.parameters()).fill_(math.nan)


def test_predictions_that_are_no_numbers_end_the_run_before_they_are_saved(data, folder, tmp_path):
    config = dataclasses.replace(CONFIG, checkpoint_every=1)
    with pytest.raises(Alarm, match="no finite numbers after step 2") as it:
        train(data, folder, tmp_path / "run", config=config, callbacks=[Break()])
    assert it.value.exit_code == 5
    resumed = Trainer(data, config, tmp_path / "run", resume=True)
    assert resumed.state.step == 1
    assert all(value.isfinite().all() for value in resumed.model.state_dict().values())


def test_what_cannot_train_on_a_stream_says_so(data, folder, tmp_path, whole):
    for changes, why in (
        ({"evaluate_every": 5}, "leave out evaluate_every"),
        ({"shares": "auto"}, "leave --shares out"),
        ({"checkpoint_every": 5}, "say in the schema which column it is"),
    ):
        stream = dataclasses.replace(DRAINED, lateness=5.0)
        config = dataclasses.replace(CONFIG, **changes)
        with pytest.raises(ValueError, match=why):
            train(data, folder, tmp_path / str(len(why)), stream, config)
    other = tmp_path / "other"
    other.mkdir()
    with pytest.raises(
        ValueError, match=r"was trained on the stream folder:.*events, not on folder:.*other"
    ):
        Trainer(data, CONFIG, whole, resume=True).fit_stream(f"folder:{other}", DRAINED)
    with pytest.raises(ValueError, match="a stream is folder:PATH, kafka"):
        Trainer(data, CONFIG, tmp_path / "run").fit_stream("kafak:clicks")
    offline = tmp_path / "offline"
    Trainer(data, dataclasses.replace(CONFIG, steps=1), offline).fit()
    with pytest.raises(ValueError, match="this run has trained on prepared data"):
        Trainer(data, dataclasses.replace(CONFIG, steps=1), offline, resume=True).fit_stream("-")


@pytest.fixture(scope="module")
def keyed(tmp_path_factory):
    """Data of a schema whose feature `a` is dynamic, prepared from a few rows, and events ten seconds
    apart."""
    folder = tmp_path_factory.mktemp("keyed")
    (folder / "events").mkdir()
    rows = write_rows(folder / "rows.csv", rows=600).read_text().splitlines()[1:]
    timed = [f"{row},{10 * second}" for second, row in enumerate(rows)]
    for name, some in (("few.csv", timed[:40]), ("events/a.csv", timed)):
        (folder / name).write_text("\n".join(["label,n,a,b,t", *some]) + "\n")

    def prepared(dynamic, name):
        features = (Dense("n"), Sparse("a", dynamic=dynamic), Sparse("b"))
        schema = Schema(features, time=Time("t"), delimiter=",", name="keyed")
        return prepare([folder / "few.csv"], schema, folder / name, split="position:0.8,0.1,0.1")

    return prepared, folder / "events"


def test_new_keys_get_rows_from_a_stream_and_lose_them_by_event_time_killed_or_not(keyed, tmp_path):
    prepared, events = keyed
    data = prepared(Dynamic(capacity=25, evict="time:200"), "timed")
    config = dataclasses.replace(CONFIG, checkpoint_every=4)
    train(data, events, tmp_path / "whole", config=config)
    with pytest.raises(Killed):
        train(data, events, tmp_path / "run", config=config, callbacks=[Kill(7)])
    train(data, events, tmp_path / "run", config=config)
    assert same_bits(tmp_path / "run", tmp_path / "whole")
    keys = [line["keys"]["a"] for line in read_metrics(tmp_path / "run") if line["kind"] == "train"]
    assert keys[-1]["live"] < 25 and keys[-1]["evicted"] > 10


def test_keys_that_wait_for_batches_to_come_are_no_stream(keyed, tmp_path):
    prepared, events = keyed
    data = prepared(Dynamic(capacity=12, admit="ahead:2", evict="lru"), "ahead")
    with pytest.raises(ValueError, match="dynamic ids that look ahead would wait for events to come"):
        train(data, events, tmp_path / "run")
