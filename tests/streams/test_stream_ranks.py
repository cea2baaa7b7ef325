"""A stream that several ranks train on: the events, batches, windows and versions of one rank."""

import dataclasses
import json
import math
import os
import signal
import socket
import sys
import time

import numpy as np
import pytest
import torch

from hotrows import cli
from hotrows.data import prepare
from hotrows.data.streams import Alarm, StreamConfig
from hotrows.data.streams.folder import FolderSource
from hotrows.data.streams.line_log import read_lines
from hotrows.dynamic import Dynamic
from hotrows.engine import checkpoint
from hotrows.engine.distributed.in_process import run as on_threads
from hotrows.optim import Adagrad
from hotrows.schema import Dense, Schema, Sparse, Time
from hotrows.serving import Scorer, chain
from hotrows.serving.export.publisher import Publisher
from hotrows.serving.version import version_at
from hotrows.train import Callback, Trainer, load_run
from hotrows.train.config import TrainConfig
from hotrows.train.loop.stream_run import batches_after
from hotrows.train.telling.metrics_log import read_metrics
from tests.support.bundles import expected_logits, furthest, known_program
from tests.support.forked import Forked
from tests.support.runs import Kill, Killed, same_bits, weights_of

CONFIG = TrainConfig(
    model="deepfm", model_options={"dim": 4, "hidden": [16]}, batch_size=64, seed=3,
    row_optimizer=Adagrad(lr=0.1), linear_paths="plain", sharding="rows",
)  # fmt: skip
DRAINED = StreamConfig(max_wait=60.0, stop_when_idle=0.0, window=300)


@pytest.fixture(scope="module")
def folder(tmp_path_factory, lines):
    """A folder with 900 events; the last batch of 64 has 4, fewer than some ranks have shares."""
    folder = tmp_path_factory.mktemp("events")
    (folder / "a.csv").write_text("".join(lines))
    return folder


def train(data, source, run, num_ranks, stream=DRAINED, config=CONFIG, callbacks=lambda: (), **how):
    """The results of all ranks. callbacks: makes those of a rank."""

    def work(ranks):
        resume = (run / "config.json").exists()
        ranks.barrier()
        trainer = Trainer(data, config, run, ranks=ranks, resume=resume)
        return trainer.fit_stream(source, stream, callbacks=callbacks(), **how)

    if num_ranks > 1:
        return on_threads(work, num_ranks)
    trainer = Trainer(data, config, run, resume=run.exists())
    return [trainer.fit_stream(source, stream, callbacks=callbacks(), **how)]


def windows_of(run):
    return [line for line in read_metrics(run) if line["kind"] == "window"]


def assert_alike(run, other):
    """Equal batches of equal events, and up to the order of sums equal windows and weights."""
    assert list(read_lines(run / "stream.jsonl")) == list(read_lines(other / "stream.jsonl"))
    windows = windows_of(run), windows_of(other)
    for a, b in zip(*windows, strict=True):
        assert {n: v for n, v in a.items() if n not in ("time", "seconds")}.keys() == b.keys() - {
            "time",
            "seconds",
        }
        for name in ("samples", "events", "auc", "log_loss", "calibration"):
            assert a[name] == pytest.approx(b[name], rel=1e-3), name
    for a, b in zip(weights_of(run), weights_of(other), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-5)


@pytest.fixture(scope="module")
def alone(data, folder, tmp_path_factory):
    run = tmp_path_factory.mktemp("alone") / "run"
    train(data, f"folder:{folder}", run, 1)
    return run


@pytest.mark.few(4)
@pytest.mark.parametrize(
    ("num_ranks", "changes"),
    [
        (2, {}),
        (3, {"sharding": "columns", "micro_batches": 2}),
        (5, {"sharding": "replicated"}),
        (2, {"fast_memory": 1600, "in_flight": 2}),
        (2, {"plan_depth": 0}),
    ],
    ids=str,
)
def test_several_ranks_train_the_batches_of_one(data, folder, alone, tmp_path, num_ranks, changes):
    config, run = dataclasses.replace(CONFIG, **changes), tmp_path / "run"
    first, *others = train(data, f"folder:{folder}", run, num_ranks, config=config)
    assert all(other.validation == first.validation for other in others)
    assert_alike(run, alone)


def test_a_run_that_is_killed_goes_on_on_as_many_ranks_with_equal_bits_and_on_others(
    data, folder, alone, tmp_path
):
    config, source = dataclasses.replace(CONFIG, checkpoint_every=4), f"folder:{folder}"
    train(data, source, tmp_path / "whole", 2, config=config)
    for run, ranks in (("same", (2, 2, 2)), ("others", (3, 1, 2))):
        for num_ranks, step in zip(ranks, (3, 9, None), strict=True):
            if step is None:
                train(data, source, tmp_path / run, num_ranks, config=config)
                continue
            with pytest.raises(Killed):
                train(
                    data, source, tmp_path / run, num_ranks, config=config,
                    callbacks=lambda step=step: [Kill(step)],
                )  # fmt: skip
        assert_alike(tmp_path / run, alone)
    assert same_bits(tmp_path / "same", tmp_path / "whole", random_state=False)


class Late(Callback):
    """Of the last rank: ends the run while no event comes, once a checkpoint was written."""

    def __init__(self):
        self.ticks = 0

    def on_idle(self, trainer):
        self.ticks += trainer.state.step > 0
        is_saved = trainer.checkpoints.saved == trainer.state
        if trainer.ranks.rank == trainer.ranks.num_ranks - 1 and (is_saved or self.ticks > 40):
            trainer.stop()


def test_while_no_event_comes_ranks_save_and_hear_of_an_end_that_one_requests(data, folder, tmp_path):
    stream = StreamConfig(max_wait=0.05, checkpoint_seconds=0.3)
    ends = []

    def callbacks():
        ends.append(Late())
        return ends[-1:]

    train(data, f"folder:{folder}", tmp_path / "run", 2, stream, callbacks=callbacks)
    assert all(0 < late.ticks < 40 for late in ends)


class Break(Callback):
    """Makes the model of one rank useless."""

    def on_step_end(self, trainer, progress):
        if trainer.state.step == 2 and trainer.ranks.rank == 1:
            with torch.no_grad():
                next(trainer.model.parameters()).fill_(math.nan)


@pytest.mark.parametrize(
    ("stream", "callbacks", "code"),
    [
        (dataclasses.replace(DRAINED, alarm_calibration="0,0.001"), (), 3),
        (StreamConfig(alarm_idle=0.2), (), 4),
        (DRAINED, (Break(),), 5),
    ],
)
def test_an_alarm_is_one_on_all_ranks(data, folder, tmp_path, stream, callbacks, code):
    codes = []

    def work(ranks):
        trainer = Trainer(data, CONFIG, tmp_path / "run", ranks=ranks)
        with pytest.raises(Alarm) as alarm:
            trainer.fit_stream(f"folder:{folder}", stream, callbacks=callbacks)
        codes.append(alarm.value.exit_code)

    on_threads(work, 2)
    assert codes == [code] * 2


def test_a_source_that_fails_ends_all_ranks_with_its_words_behind_what_was_read(data, folder, tmp_path):
    class Failing(FolderSource):
        def read(self, most, wait):
            if self.position["events"] >= 128:
                raise OSError("the disk of events is gone")
            return super().read(min(most, 64), wait)

    words, steps = [], []

    def work(ranks):
        source = Failing(folder, data.schema) if ranks.rank == 0 else "folder:elsewhere"
        trainer = Trainer(data, CONFIG, tmp_path / "run", ranks=ranks)
        with pytest.raises(OSError) as error:
            trainer.fit_stream(source, DRAINED)
        words.append(str(error.value))
        steps.append(trainer.state.step)

    on_threads(work, 2)
    assert sorted(words) == ["rank 0: the disk of events is gone", "the disk of events is gone"]
    assert steps == [2, 2]


SHOWN = Schema(
    (Dense("n", transform="none"), Sparse("a", dynamic=Dynamic(capacity=12, evict="lru", partitions=2)),
     Sparse("b", dynamic=Dynamic(partitions=3))),
    label="y", time=Time("t"), delimiter=",", name="shown",
)  # fmt: skip


@pytest.fixture(scope="module")
def keyed(tmp_path_factory):
    """Data of dynamic ids, impressions and their late clicks."""
    folder = tmp_path_factory.mktemp("keyed")
    for name in ("shown", "clicks"):
        (folder / name).mkdir()
    draw = np.random.default_rng(5)
    events = [
        {"id": f"i{n}", "t": n, "n": n % 5, "a": int(a), "b": int(a) % 13}
        for n, a in enumerate(draw.integers(40, size=400))
    ]
    clicks = [{"id": e["id"], "t": e["t"] + 3} for e in events if e["a"] % 3 == 0]
    for name, some in (("shown", events), ("clicks", clicks)):
        text = "".join(json.dumps(event) + "\n" for event in some)
        (folder / name / "a.jsonl").write_text(text + ("" if name == "clicks" else '{"id": "x"}\n'))
    rows = {name: [e[name] for e in events[:20]] for name in ("n", "a", "b", "t")}
    data = prepare({**rows, "y": [0, 1] * 10}, SHOWN, folder / "enc", split="position:1,0,0")
    return data, folder


JOINED = StreamConfig(max_wait=60.0, join_on="id", label_window="10s", stop_when_idle=0.0, window=100)


class Each(Callback):
    """Waits for each version before the next step."""

    def __init__(self, publisher):
        self.publisher = publisher

    @staticmethod
    def of(publisher):
        return [publisher, Each(publisher)]

    def on_step_end(self, trainer, progress):
        self.publisher.wait()


def of_ranks(keyed, place, num_ranks, steps=None):
    """A run on impressions and late clicks that is published."""
    data, folder = keyed
    config = dataclasses.replace(CONFIG, batch_size=32, checkpoint_every=3, steps=steps)
    train(
        data, f"folder:{folder / 'shown'}", place / "run", num_ranks, JOINED, config,
        callbacks=lambda: Each.of(Publisher(place / "to", "1b")), labels=f"folder:{folder / 'clicks'}",
    )  # fmt: skip


def served(version):
    """By table, the weights of each live key of a version."""
    features = {t.name: t.features[0] for t in version.bundle.tables}
    of_feature = {f: version.keys[k.vocabulary] for k in version.bundle.keys for f in k.features}
    return {
        name: dict(zip(pairs[0].tolist(), version.tables[name][pairs[1]], strict=True))
        for name, feature in features.items()
        for pairs in [of_feature[feature].pairs()]
    }


@pytest.fixture(scope="module")
def published(keyed, tmp_path_factory):
    """The runs of one rank and of two, with a program that all of them share."""
    folder = tmp_path_factory.mktemp("published")
    with known_program(folder / "program.onnx"), pytest.MonkeyPatch.context() as patch:
        patch.setattr("hotrows.train.telling.pictures.draw_run", lambda run: None)
        for num_ranks in (1, 2):
            of_ranks(keyed, folder / str(num_ranks), num_ranks)
        yield folder


def test_late_labels_dead_letters_and_dynamic_ids_are_those_of_one_rank(published):
    alone, run = (published / name / "run" for name in ("1", "2"))
    assert windows_of(run)[-1]["labels"] == windows_of(alone)[-1]["labels"]
    letters = [list(read_lines(place / "dead_letters.jsonl")) for place in (alone, run)]
    assert letters[0] == letters[1] and len(letters[0]) == 1
    keys = [
        [line["keys"] for line in read_metrics(place) if line["kind"] == "train"]
        for place in (alone, run)
    ]
    assert keys[0] == keys[1] and keys[0][-1]["a"]["evicted"] > 5


def assert_scores_as(place, run, features=("n", "a", "b")):
    rows = {"n": [1, 2, 0, 4], "a": [3, 17, 39, 99], "b": [3, 4, 0, 99]}
    scorer, predictor = Scorer.watch(place, every=None), load_run(run, "last")
    expected = expected_logits(predictor, rows)
    assert furthest(scorer.logits(rows), expected) < 1e-6
    assert scorer.version.head.step == json.loads((run / "result.json").read_text())["steps"]


def test_what_two_ranks_publish_has_the_changed_rows_and_keys_of_both(published):
    alone, ours = (published / name / "to" for name in ("1", "2"))
    assert chain.look(ours).newest == chain.look(alone).newest > 3
    for number in range(1, chain.look(ours).newest + 1):
        versions = [served(version_at(place, number)) for place in (alone, ours)]
        for name, by_key in versions[0].items():
            assert by_key.keys() == versions[1][name].keys(), (number, name)
            for key, weights in by_key.items():
                np.testing.assert_allclose(versions[1][name][key], weights, rtol=1e-3, atol=1e-5)
    assert_scores_as(ours, published / "2" / "run")


@pytest.mark.parametrize("sharding", ["columns", "replicated"])
def test_a_run_that_goes_on_on_other_ranks_publishes_what_differs(keyed, published, tmp_path, sharding):
    of_ranks(keyed, tmp_path, 2, steps=5)
    assert [line.step for line in batches_after(tmp_path / "run", 0)] == [1, 2, 3, 4, 5]
    for number in chain.look(tmp_path / "to").deltas[2:]:  # of which nothing is known any more
        chain.delta_path(tmp_path / "to", number).unlink()
    data, folder = keyed
    config = dataclasses.replace(CONFIG, batch_size=32, sharding=sharding)
    for num_ranks in (3, 1):
        train(
            data, f"folder:{folder / 'shown'}", tmp_path / "run", num_ranks, JOINED, config,
            callbacks=lambda: [Publisher(tmp_path / "to", "1b")], labels=f"folder:{folder / 'clicks'}",
        )  # fmt: skip
        assert_scores_as(tmp_path / "to", tmp_path / "run")


def command(rank, port, err, line):
    """Runs a command as one rank of two; its messages go to a file."""
    torch.set_num_threads(1)
    of_job = {"RANK": rank, "WORLD_SIZE": 2, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": 2}
    os.environ.update({name: str(value) for name, value in of_job.items()})
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    sys.stderr = open(err, "w", buffering=1)  # noqa: SIM115
    cli.main([str(word) for word in line])


def num_saved(run):
    """The events that the last checkpoint of a run has trained."""
    if checkpoint.pointed(run) is None:
        return 0
    return checkpoint.read_manifest(checkpoint.folder_of(run, "last")).state["stream"]["events"]


@pytest.mark.parametrize(
    ("number", "codes", "words"),
    [
        (signal.SIGTERM, [130, 130], "the checkpoint is in"),
        (signal.SIGKILL, [1, -signal.SIGKILL], "lost another of the 2 ranks"),
    ],
)
def test_two_processes_stop_together_while_no_event_comes(data, lines, tmp_path, number, codes, words):
    (tmp_path / "events").mkdir()
    (tmp_path / "events" / "a.csv").write_text("".join(lines[:401]))
    run = tmp_path / "run"
    train = [
        "train", data.path, "--model", "lr", "--stream", f"folder:{tmp_path / 'events'}",
        "--batch-size", 64, "--max-wait", 0.1, "--run-dir", run, "--linear-paths", "plain",
        "--timeout", 60, "--checkpoint-seconds", 0.5,
    ]  # fmt: skip
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ranks = [Forked(command, n, port, tmp_path / f"err{n}", train) for n in (0, 1)]
    until = time.monotonic() + 90
    while num_saved(run) < 400 and time.monotonic() < until:
        time.sleep(0.05)
    begin = time.monotonic()
    os.kill(ranks[1].process.pid, number)
    for rank in ranks:
        rank.process.join(50)
    told = (tmp_path / "err0").read_text()
    assert [rank.process.exitcode for rank in ranks] == codes, told
    assert words in told and time.monotonic() - begin < 50
    assert sum(line["size"] for line in read_lines(run / "stream.jsonl")) == 400
