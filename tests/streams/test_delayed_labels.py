"""Labels that come later than their impressions: joined within a window, waited for or weighted."""

import dataclasses
import itertools
import json
import re

import numpy as np
import pytest
import torch

from hotrows import Callback, TrainConfig, Trainer
from hotrows.data import Encoder, prepare
from hotrows.data.streams import DeadLetters, EventStream, StreamConfig, open_joined
from hotrows.data.streams.label_join import HeldImpressions
from hotrows.data.streams.line_log import read_lines
from hotrows.losses import parse
from hotrows.schema import Dense, Label, Schema, Sparse, Time
from hotrows.train.run.state import RunState
from hotrows.train.telling.metrics_log import read_metrics
from tests.streams.kafka_cluster import Cluster
from tests.support.page_code import ROOT
from tests.support.runs import SMALL, Kill, Killed, weights_of

SCHEMA = Schema(
    (Dense("n", transform="none"), Sparse("a")), label="y", time=Time("t"), delimiter=",", name="shown"
)
WAIT = StreamConfig(join_on="id", label_window="10s", stop_when_idle=0.0)
WEIGHT = dataclasses.replace(WAIT, delayed_labels="weight")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return prepared(tmp_path_factory.mktemp("shown"), SCHEMA)


def prepared(folder, schema):
    names = [label.name for label in schema.labels]
    lines = [",".join([*names, "n,a,t"])]
    lines += [
        ",".join([*[str((i + k) % 2) for k in range(len(names))], f"{i},v{i % 7},{i}"])
        for i in range(100)
    ]
    (folder / "raw.csv").write_text("\n".join(lines) + "\n")
    return prepare([folder / "raw.csv"], schema, folder / "enc", split="position:0.8,0.1,0.1")


def shown(number, time, **more):
    return {"id": f"i{number}", "t": time, "n": number, "a": f"v{number % 7}", **more}


def click(number, time, **more):
    return {"id": f"i{number}", "t": time, **more}


def write(folder, name, events):
    folder.mkdir(exist_ok=True, parents=True)
    (folder / name).write_text("".join(json.dumps(event) + "\n" for event in events))
    return f"folder:{folder}"


def trained(data, place, impressions, labels, config=WAIT, size=64, letters=None):
    """The number and label of each sample, and how labels were joined."""
    sources = write(place / "shown", "a.jsonl", impressions), write(place / "clicks", "a.jsonl", labels)
    source = open_joined(*sources, data.schema, "id")
    letters = None if letters is None else DeadLetters(letters)
    with EventStream(source, Encoder.open(data.path), size, config, None, letters) as stream:
        batches = list(stream)
    if letters is not None:
        letters.close()
    samples = [
        pair for b in batches for pair in zip(b.dense[:, 0].tolist(), b.labels.tolist(), strict=True)
    ]
    return samples, stream.state.labels


def test_an_impression_waits_for_its_label_or_the_end_of_its_window(data, tmp_path):
    impressions = [shown(n, n) for n in (0, 1, 2, 3)] + [shown(4, 13), shown(5, 40)]
    labels = [click(2, 4), click(0, 10), click(2, 11), click(3, 15), click(99, 15), click(1, 39, y=0)]
    for size in (1, 2, 64):
        samples, state = trained(data, tmp_path, impressions, labels, size=size)
        # 2 at 4, 0 at 10, 1 at 11, 3 at 13 without the click at 15, 4 at 23; 5 is held
        assert samples == [(2, 1), (0, 1), (1, 0), (3, 0), (4, 0)]
    names = ("joined", "late", "unmatched", "duplicates", "repeated")
    assert [getattr(state, name) for name in names] == [2, 1, 2, 1, 0]


def test_by_weight_an_impression_is_a_negative_at_once_and_a_positive_later(data, tmp_path):
    impressions = [shown(n, n) for n in (0, 1, 2)] + [shown(3, 8)]
    labels = [click(1, 1), click(0, 5), click(2, 6, y=0), click(0, 7)]
    samples, state = trained(data, tmp_path, impressions, labels, WEIGHT)
    assert samples == [(0, 0), (1, 0), (1, 1), (2, 0), (0, 1), (3, 0)]
    assert (state.joined, state.duplicates) == (3, 1)


def days(seed, num=400, spread=30):
    """Impressions, a third of which are clicked on, up to `spread` seconds later."""
    draw = np.random.default_rng(seed)
    times = np.sort(draw.integers(0, num, num)).tolist()
    late = draw.integers(0, spread, num).tolist()
    impressions = [shown(n, time) for n, time in enumerate(times)]
    clicked = [click(n, times[n] + late[n]) for n in range(0, num, 3)]
    return impressions, sorted(clicked, key=lambda event: event["t"])


def expected(impressions, labels, window=10, slack=0):
    """What waits for labels, one impression after the other."""
    at = {event["id"]: event["t"] for event in labels}
    until, due = max(e["t"] for e in impressions) - slack, []
    for number, event in enumerate(impressions):
        time = at.get(event["id"], 1 << 40)
        clicked = time <= event["t"] + window
        due.append((max(time, event["t"]) if clicked else event["t"] + window, number, float(clicked)))
    return [(float(number), label) for time, number, label in sorted(due) if time <= until]


@pytest.mark.parametrize("size", [1, 7, 400])
def test_samples_follow_from_events_whatever_the_size_of_batches(data, tmp_path, size):
    impressions, labels = days(seed=size)
    samples, state = trained(data, tmp_path, impressions, labels, size=size)
    assert samples == expected(impressions, labels)
    assert state.released == len(samples) > 350


def test_events_out_of_order_within_lateness_are_joined_as_those_in_order(data, tmp_path):
    impressions, labels = days(seed=3)
    for events in (impressions, labels):
        for first in range(0, len(events) - 1, 2):
            if abs(events[first]["t"] - events[first + 1]["t"]) <= 4:
                events[first : first + 2] = events[first + 1], events[first]
    config = dataclasses.replace(WAIT, lateness=4.0)
    samples, _ = trained(data, tmp_path, impressions, labels, config, 16)
    in_order = sorted(impressions, key=lambda event: event["t"])
    assert sorted(samples) == sorted(
        (float(in_order[int(n)]["n"]), label) for n, label in expected(in_order, labels, slack=4)
    )


@pytest.mark.parametrize("config", [WAIT, WEIGHT], ids=["wait", "weight"])
def test_a_stream_goes_on_behind_any_batch_with_what_it_held(data, tmp_path, config):
    impressions, labels = days(seed=9)
    sources = write(tmp_path / "shown", "a.jsonl", impressions), write(tmp_path / "clicks", "a", labels)
    encoder = Encoder.open(data.path)
    with EventStream(open_joined(*sources, data.schema, "id"), encoder, 32, config) as stream:
        cuts = list(itertools.islice(iter(stream.take, None), 10))
    whole = [number for cut in cuts for number in cut.batch.dense[:, 0].tolist()]
    for number in (0, 4, 9):
        state = RunState.from_json(json.loads(json.dumps(RunState(stream=cuts[number].state).to_json())))
        held = {name: array.copy() for name, array in cuts[number].held.arrays().items()}
        later = EventStream(
            open_joined(*sources, data.schema, "id"), encoder, 32, config, state.stream,
            held=HeldImpressions.of_arrays(held),
        )  # fmt: skip
        with later as stream:
            more = [stream.take() for _ in range(9 - number)]
        again = [n for cut in [*cuts[: number + 1], *more] for n in cut.batch.dense[:, 0].tolist()]
        assert again == whole
        assert (more or cuts)[-1].state == cuts[-1].state


@pytest.fixture
def places(tmp_path):
    impressions, labels = days(seed=5, num=900)
    cut = sum(event["t"] < 500 for event in labels)
    write(tmp_path / "shown", "a.jsonl", impressions[:500])
    write(tmp_path / "clicks", "a.jsonl", labels[:cut])
    write(tmp_path / "clicks", "b.jsonl", labels[cut:])
    return write(tmp_path / "shown", "b.jsonl", impressions[500:]), f"folder:{tmp_path / 'clicks'}"


def fit(data, places, run, stream, **how):
    loss = "fake_negative" if stream.delayed_labels == "weight" else None
    config = TrainConfig(
        model="deepfm", model_options=SMALL, batch_size=64, seed=3, linear_paths="plain", loss=loss,
        checkpoint_every=4,
    )  # fmt: skip
    trainer = Trainer(data, config, run, resume=run.exists())
    return trainer.fit_stream(places[0], stream, labels=places[1], **how)


@pytest.mark.parametrize("stream", [WAIT, WEIGHT], ids=["wait", "weight"])
def test_a_run_that_is_killed_and_resumed_ends_with_the_same_bits(data, places, tmp_path, stream):
    stream = dataclasses.replace(stream, window=300)
    fit(data, places, tmp_path / "whole", stream)
    for step in (3, 9):
        with pytest.raises(Killed):
            fit(data, places, tmp_path / "run", stream, callbacks=[Kill(step)])
    fit(data, places, tmp_path / "run", stream)
    fit(data, places, tmp_path / "again", stream, repeat=tmp_path / "whole")
    for name in ("run", "again"):
        pairs = zip(weights_of(tmp_path / name), weights_of(tmp_path / "whole"), strict=True)
        assert all(torch.equal(a, b) for a, b in pairs), name
    logs = [list(read_lines(tmp_path / name / "stream.jsonl")) for name in ("run", "whole")]
    assert logs[0] == logs[1] and len(logs[0]) > 10
    windows = [line for line in read_metrics(tmp_path / "run") if line["kind"] == "window"]
    assert windows[-1]["labels"]["joined"] > 80


def test_weights_of_fake_negatives_make_the_rate_that_naive_training_misses():
    """Of the loss alone, over samples in which each positive was a negative before."""
    draw = torch.Generator().manual_seed(0)
    rates = (torch.rand(4000, 3, generator=draw) < torch.tensor([0.05, 0.2, 0.5])).float().mean(0)
    found = {}
    for name in ("fake_negative", "log_loss"):
        z, loss = torch.zeros(3, requires_grad=True), parse(name)
        for _ in range(200):
            of_all = loss.of_samples(z, torch.zeros(3)) + rates * loss.of_samples(z, torch.ones(3))
            (grad,) = torch.autograd.grad(of_all.sum(), z)
            z = (z - 3 * grad).detach().requires_grad_()
        found[name] = z.sigmoid().tolist()
    assert found["fake_negative"] == pytest.approx(rates.tolist(), abs=1e-4)
    assert found["log_loss"] == pytest.approx((rates / (1 + rates)).tolist(), abs=1e-4)


def test_by_weight_predictions_and_windows_are_calibrated(data, tmp_path):
    """A window counts samples as its loss does: without that, fake negatives are in its calibration."""
    impressions = [shown(n % 50, n // 20) | {"id": f"i{n}"} for n in range(6000)]
    labels = [click(n, n // 20 + 1 + n % 5) for n in range(0, 6000, 4)]
    labels.sort(key=lambda event: event["t"])
    places = write(tmp_path / "shown", "a", impressions), write(tmp_path / "clicks", "a", labels)
    stream = dataclasses.replace(WEIGHT, window=2000)
    config = TrainConfig(model="lr", batch_size=64, loss="fake_negative", seed=1)
    result = Trainer(data, config, tmp_path / "run").fit_stream(places[0], stream, labels=places[1])
    assert result.validation.mean_prediction == pytest.approx(0.25, abs=0.04)
    assert result.validation.positive_rate == pytest.approx(0.25, abs=0.04)


def test_labels_of_several_tasks_are_joined_each(tmp_path):
    schema = dataclasses.replace(SCHEMA, label=(Label("y"), Label("buy")))
    data = prepared(tmp_path, schema)
    impressions = [shown(n, 0) for n in range(3)] + [shown(3, 20)]
    labels = [click(0, 1, y=1), click(1, 2, y=1), click(1, 3, buy=1), click(0, 4, y=1)]
    labels.append(click(2, 5))
    letters = tmp_path / "letters.jsonl"
    samples, state = trained(data, tmp_path, impressions, labels, letters=letters)
    assert samples == [(1, [1, 1]), (0, [1, 0]), (2, [0, 0])]
    assert (state.joined, state.duplicates) == (3, 1)
    (letter,) = read_lines(letters)
    assert "event 5 has none of the labels y, buy: say which one it is" in letter["what"]


def test_events_without_an_id_or_a_time_are_dead_letters_and_a_column_is_missed_at_once(data, tmp_path):
    impressions = [{**shown(0, 0), "id": None}, {**shown(1, 1), "t": None}, shown(2, 2), shown(3, 30)]
    labels = [{"id": "i2", "y": 7, "t": 3}, {"t": 3}, click(9, 4000), click(2, 4)]
    labels[2]["t"] = 8_000_000_000  # a clock of the year 2223: no label after it would have been read
    letters = tmp_path / "letters.jsonl"
    samples, state = trained(data, tmp_path, impressions, labels, letters=letters)
    assert samples == [(2, 1)] and state.joined == 1
    whats = [letter["what"] for letter in read_lines(letters)]
    for what, words in zip(
        whats,
        (
            "has no 'id', by which labels find",
            "has no time",
            "expected a label 0 or 1",
            "has no 'id'",
            "has a time in the future",
        ),
        strict=True,
    ):
        assert words in what
    (tmp_path / "csv").mkdir()
    (tmp_path / "csv" / "a.csv").write_text("click_id,t\n1,2\n")
    with pytest.raises(ValueError, match="has no column 'id' to join by; it has 'click_id', 't'"):
        trained_from(data, f"folder:{tmp_path / 'shown'}", f"folder:{tmp_path / 'csv'}")
    text = "id,t,n,a\n" + "".join(f"i{n},{n},{n},v\n" for n in range(30))
    (tmp_path / "csv" / "a.csv").write_text("id,t\ni3,5\n")
    (tmp_path / "events").mkdir()
    (tmp_path / "events" / "a.csv").write_text(text)
    samples = trained_from(data, f"folder:{tmp_path / 'events'}", f"folder:{tmp_path / 'csv'}")
    assert samples[0] == (3, 1) and len(samples) == 20


def trained_from(data, impressions, labels):
    source = open_joined(impressions, labels, data.schema, "id")
    with EventStream(source, Encoder.open(data.path), 64, WAIT) as stream:
        return [p for b in stream for p in zip(b.dense[:, 0].tolist(), b.labels.tolist(), strict=True)]


def test_an_impression_after_its_window_is_late_and_memory_is_bounded(data, tmp_path):
    letters = tmp_path / "letters.jsonl"
    samples, _ = trained(
        data, tmp_path, [shown(0, 50), shown(1, 5), shown(2, 90)], [click(1, 6)], letters=letters
    )
    assert samples == [(0, 0)]
    (letter,) = read_lines(letters)
    assert letter["reason"] == "late" and "more than 10 s older than the newest" in letter["what"]
    config = dataclasses.replace(WAIT, label_memory=500)
    with pytest.raises(ValueError, match=r"20 impressions are held for their labels and take .* shorten"):
        trained(data, tmp_path, [shown(n, 0) for n in range(20)], [], config)


def test_what_cannot_be_joined_says_so(data, places, tmp_path):
    for window in ("1", "h", "1.5h", "0s", "1w", "-1h"):
        with pytest.raises(ValueError, match="label_window must be a whole number above 0 with a unit"):
            StreamConfig(label_window=window)
    with pytest.raises(ValueError, match="delayed_labels must be one of wait, weight"):
        StreamConfig(delayed_labels="drop")
    with pytest.raises(ValueError, match="labels are a stream of their own"):
        open_joined(places[0], places[0], data.schema, "id")
    with pytest.raises(ValueError, match="say in the schema which column it is"):
        open_joined(*places, dataclasses.replace(data.schema, time=None), "id")
    trainer = Trainer(data, TrainConfig(model="lr", batch_size=64), tmp_path / "run")
    with pytest.raises(ValueError, match="which only the loss fake_negative of one label corrects"):
        trainer.fit_stream(places[0], WEIGHT, labels=places[1])
    with pytest.raises(ValueError, match="one of them is missing"):
        trainer.fit_stream(places[0], WAIT)
    config = TrainConfig(model="lr", batch_size=64, loss="fake_negative")
    with pytest.raises(ValueError, match="begin the stream with --init-from"):
        Trainer(data, config, tmp_path / "stored").fit()


def test_a_stream_by_weight_begins_with_a_run_of_prepared_data(data, places, tmp_path, caplog):
    config = TrainConfig(model="lr", batch_size=64, epochs=1)
    Trainer(data, config, tmp_path / "before").fit()
    config = dataclasses.replace(config, loss="fake_negative", start_from=str(tmp_path / "before"))
    trainer = Trainer(data, dataclasses.replace(config, epochs=None), tmp_path / "run")
    assert trainer.fit_stream(places[0], WEIGHT, labels=places[1]).steps > 0
    assert "was learned by" not in caplog.text  # equal outputs are equal predictions


def test_the_command_joins_labels_and_resumes_with_its_settings(data, places, tmp_path, hotrows):
    train = ["train", data.path, "--run", tmp_path / "run"]
    options = ["--model", "lr", "--batch-size", 64, "--stop-when-idle", 0, "--label-window", "10s"]
    stream = ["--stream", places[0], "--labels", places[1]]
    done = hotrows(*train, *options, *stream)
    assert done.code == 2 and "give --labels and --join-on" in done.err
    done = hotrows(*train, *options, *stream, "--join-on", "id", "--delayed-labels", "weight")
    assert done.code == 0, done.err
    assert re.search(r"labels +1\d\d joined, \d+ late, \d+ without an impression", done.out)
    assert hotrows(*train, "--resume").code == 0
    done = hotrows("train", data.path, "--labels", places[1])
    assert done.code == 2 and "--labels is of a stream" in done.err


@pytest.mark.parametrize("stream", [WAIT, WEIGHT], ids=["wait", "weight"])
def test_topics_are_joined_and_a_killed_run_trains_each_sample_once(data, tmp_path, stream):
    """A broker that has not answered yet is not one without labels: impressions wait for it."""
    pytest.importorskip("confluent_kafka", reason="needs confluent-kafka")
    cluster, (impressions, labels) = Cluster(), days(seed=8)
    for topic, events in (("shown", impressions), ("clicks", labels)):
        cluster.write(topic, 0, [json.dumps(event).encode() for event in events])
    places = [f"kafka://{cluster.address}/{topic}" for topic in ("shown", "clicks")]
    num, clicked = map(sum, zip(*((1, label) for _, label in expected(impressions, labels)), strict=True))
    num = num if stream.delayed_labels == "wait" else 400 + int(clicked)
    stream = dataclasses.replace(stream, stop_when_idle=None, alarm_idle=60.0)

    class Stop(Callback):
        def on_step_end(self, trainer, progress):
            if trainer.state.stream.events == num:
                trainer.stop()

    fit(data, places, tmp_path / "whole", stream, callbacks=[Stop()])
    with pytest.raises(Killed):
        fit(data, places, tmp_path / "run", stream, callbacks=[Kill(3)])
    fit(data, places, tmp_path / "run", stream, callbacks=[Stop()])
    logs = [list(read_lines(tmp_path / name / "stream.jsonl")) for name in ("run", "whole")]
    assert [sum(line["size"] for line in log) for log in logs] == [num, num]
    labels_of = [read_metrics(tmp_path / name)[-1]["labels"] for name in ("run", "whole")]
    assert labels_of[0] == labels_of[1] and labels_of[0]["joined"] >= clicked > 30


def test_the_example_of_the_page_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs" / "streaming.md").read_text()
    (code,) = [block for block in re.findall(r"```python\n(.*?)```", page, re.S) if "join_on" in block]
    exec(code, {})
    assert capsys.readouterr().out.startswith("1 joined, 0 late, 0 without an impression")
    assert [line["size"] for line in read_lines(tmp_path / "runs/delayed/stream.jsonl")] == [2, 1]
