"""Runs behind a cache: the bits of a run in memory, whatever interrupts them."""

import dataclasses
import json
import os
import random
import shutil
import signal
import time
from contextlib import closing, suppress

import pytest
import torch

from hotrows.data import EncodedData, prepare
from hotrows.engine import checkpoint
from hotrows.engine.cached_tables import CachedTables
from hotrows.engine.storage.file_store import FileStore
from hotrows.train import Interrupted, Trainer
from hotrows.train.config import TrainConfig
from hotrows.train.loop.step_trainer import StepTrainer
from hotrows.train.telling import metrics_log
from tests.support import forked
from tests.support.choice import everything
from tests.support.plain_command import leave_out_pictures
from tests.support.runs import CONFIG, assert_same_run, interrupt_after, schema, weights_of, write_rows

pytestmark = pytest.mark.usefixtures("one_thread", "no_pictures")

# 64 ids in all, 68 bytes each for deepfm: the cache holds 20 of them, a batch reads more.
SMALL = dataclasses.replace(
    CONFIG, batch_size=16, epochs=1, checkpoint_every=9, fast_memory=40 * 40, in_flight=2
)


@pytest.fixture(scope="module")
def encoded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    raw = write_rows(folder / "raw.csv", 1200)
    return prepare([raw], schema(), folder / "enc", split="position:0.6,0.2,0.2")


@pytest.fixture(scope="module")
def whole(encoded, tmp_path_factory):
    """A run with everything in memory."""
    run = tmp_path_factory.mktemp("runs") / "whole"
    config = dataclasses.replace(SMALL, fast_memory=None)
    return run, Trainer(encoded, config, run).fit()


def in_file(path, **options):
    return dataclasses.replace(SMALL, store=f"file:{path}", **options)


@pytest.mark.few(5)
@pytest.mark.parametrize("store", ["memory", "file"])
@pytest.mark.parametrize("policy", ["lookahead", "lru", "frequency:2,3"])
@pytest.mark.parametrize("plan_depth", [0, 2])
def test_a_run_behind_a_cache_has_the_bits_of_one_in_memory(
    encoded, whole, tmp_path, store, policy, plan_depth
):
    options = {"policy": policy, "plan_depth": plan_depth}
    path = f"file:{tmp_path / 'store'}" if store == "file" else "memory"
    config = dataclasses.replace(SMALL, store=path, **options)
    trainer = Trainer(encoded, config, tmp_path / "run")
    result = trainer.fit()
    assert trainer.evaluate("test") == result.test  # it can still be read
    assert_same_run(tmp_path / "run", result, whole)


def test_a_full_log_is_closed_once_although_batches_are_planned_ahead(encoded, tmp_path, monkeypatch):
    """Those that were planned before the checkpoint have requested it, too."""
    closed, checkpoint_of = [], CachedTables.checkpoint

    def noting(tables):
        closed.append(max(store._logs[0].num_records for store in tables.files))
        return checkpoint_of(tables)

    monkeypatch.setattr("hotrows.engine.storage.file_store._log_rows", lambda form, log_rows: 10)
    monkeypatch.setattr(CachedTables, "checkpoint", noting)
    # An evaluation between a request and its checkpoint would save first: there is none but the last.
    config = in_file(tmp_path / "store", checkpoint_every=None, plan_depth=6, evaluate_every=1_000)
    Trainer(encoded, config, tmp_path / "run").fit()
    full = sum(num_records > 10 for num_records in closed)
    assert full > 2 and full >= len(closed) - 1, closed  # the evaluation at the end saves, too


def test_an_order_that_reuses_rows_has_equal_bits_behind_a_cache_and_when_resumed(encoded, tmp_path):
    order = dataclasses.replace(SMALL, order="reuse:4")
    in_memory = dataclasses.replace(order, fast_memory=None)
    expected = Trainer(encoded, in_memory, tmp_path / "memory").fit()
    with pytest.raises(Interrupted):
        Trainer(encoded, order, tmp_path / "run", progress=interrupt_after(20)).fit()
    result = Trainer(encoded, order, tmp_path / "run", resume=True).fit()
    assert_same_run(tmp_path / "run", result, (tmp_path / "memory", expected))
    with pytest.raises(ValueError, match="order"):
        Trainer(encoded, SMALL, tmp_path / "run", resume=True)


def test_rows_in_a_file_are_read_in_the_packs_that_they_were_written_in(encoded, whole, tmp_path):
    """`load_run` asked for whole packs, and refused the store of a run that had them in parts."""
    config = in_file(tmp_path / "store", pack_parts=2)
    result = Trainer(encoded, config, tmp_path / "run").fit()
    assert_same_run(tmp_path / "run", result, whole)


def test_metrics_say_how_the_cache_fares(encoded, tmp_path):
    Trainer(encoded, in_file(tmp_path / "store", plan_depth=0), tmp_path / "run").fit()
    lines = metrics_log.read_metrics(tmp_path / "run")
    steps = [line for line in lines if line["kind"] == "train"]
    assert all(0 <= line["hit_rate"] <= 1 for line in steps)
    assert any(0 < line["hit_rate"] < 1 for line in steps)
    assert any(line["bytes_in"] > 0 and line["bytes_out"] > 0 for line in steps)
    assert any("waited_plan" in line or "waited_insert" in line for line in steps)
    for line in steps:
        assert (
            line["cores_busy"] > 0 and 0 <= line["machine_busy"] <= 1 and line["peak_memory_bytes"] > 1e7
        )
        assert line["busy_train"] == pytest.approx(line["seconds"] - line["stall_seconds"])
        assert all(line[f"busy_{stage}"] >= 0 for stage in ("plan", "collect", "insert"))
    assert sum(line["busy_plan"] for line in steps) > 0
    used = metrics_log.utilization(steps)
    assert used["write back"] == pytest.approx(
        sum(line["busy_write_back"] for line in steps) / sum(line["seconds"] for line in steps)
    )


def test_a_store_belongs_to_one_run(encoded, tmp_path):
    config = in_file(tmp_path / "store")
    Trainer(encoded, config, tmp_path / "a").fit()
    with pytest.raises(ValueError, match="exists already: resume its run"):
        Trainer(encoded, config, tmp_path / "b")


def test_a_trace_and_its_picture_are_written(encoded, tmp_path):
    trace = tmp_path / "trace.json"
    Trainer(encoded, SMALL, tmp_path / "run", trace=trace).fit()
    events = json.loads(trace.read_text())["traceEvents"]
    assert {"plan", "collect", "insert", "train", "write back"} <= {event.get("cat") for event in events}
    assert trace.with_suffix(".svg").exists()


def test_settings_that_contradict_are_refused(tmp_path):
    with pytest.raises(ValueError, match="needs fast_memory"):
        TrainConfig(store=f"file:{tmp_path}")
    with pytest.raises(ValueError, match="must be 'memory' or 'file:PATH', not 'disk'"):
        TrainConfig(store="disk", fast_memory=1)
    with pytest.raises(ValueError, match="policy"):
        TrainConfig(policy="best", fast_memory=1)


# ---- crashes


def train_on(say, enc, run, config):
    """Begins the run or goes on with it, and says how far it is."""
    torch.set_num_threads(1)
    leave_out_pictures()
    resume = (run / "config.json").exists()

    def progress(now):
        say(f"{now.stage} {now.done}")

    Trainer(EncodedData.open(enc), config, run, resume=resume, progress=progress).fit()


def test_kill_at_any_moment_then_the_run_goes_on_to_the_same_weights(encoded, whole, tmp_path):
    """SIGKILL during training, evaluation and checkpoints, again and again, until a run gets through."""
    config = in_file(tmp_path / "store", checkpoint_every=2)
    run, random_, kills = tmp_path / "run", random.Random(5), 0
    while True:
        child = forked.Forked(train_on, encoded.path, run, config, listens=True)
        if kills < (5 if everything() else 2):
            # some of its steps, and a moment more: within one, or within a checkpoint
            for _ in range(random_.randint(1, 18)):
                child.hear()
            time.sleep(random_.random() * 0.02)
            child.process.kill()
            kills += 1
        code = child.end()
        assert code in (0, -signal.SIGKILL), child.error
        pointer = checkpoint.pointed(run)
        if code == 0:
            break
        if not (run / "config.json").exists():
            _forget(run, tmp_path / "store")
        elif pointer is not None:
            weights_of(run)  # what is pointed at loads
    fields = json.loads((run / "result.json").read_text())
    assert fields["test"] == whole[1].test.to_json()
    pairs = zip(weights_of(run), weights_of(whole[0]), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


def _forget(run, store):
    """A run killed before it had begun leaves nothing to go on with."""
    for folder in (run, store):
        shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.few(5)
@pytest.mark.parametrize("call", [4, 14, 34])
@pytest.mark.parametrize("method", ["write", "read", "checkpoint"])
def test_a_disk_that_fails_stops_the_run_and_loses_nothing(
    encoded, whole, tmp_path, monkeypatch, method, call
):
    """The n-th call of the store fails; with room again the run goes on to the same bits."""
    config, run = in_file(tmp_path / "store", checkpoint_every=3), tmp_path / "run"
    left, whole_call = [call if method != "checkpoint" else call // 4], getattr(FileStore, method)

    def failing(self, *arguments, **options):
        left[0] -= 1
        if left[0] == 0:
            raise OSError(28, "No space left on device")
        return whole_call(self, *arguments, **options)

    monkeypatch.setattr(FileStore, method, failing)
    with pytest.raises(OSError, match="No space left"):
        Trainer(encoded, config, run).fit()
    result = Trainer(encoded, config, run, resume=True).fit()
    assert_same_run(run, result, whole)


def test_no_thread_outlives_a_run_that_fails(encoded, tmp_path, monkeypatch):
    import threading

    from hotrows.engine.embedding import Embedding

    monkeypatch.setattr(Embedding, "update", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        Trainer(encoded, in_file(tmp_path / "store"), tmp_path / "run").fit()
    assert not [t for t in threading.enumerate() if t.name.startswith("hotrows-")]
    assert EncodedData.open(encoded.path) and os.listdir(tmp_path / "run")


@pytest.mark.parametrize("most", [65_000, 7], ids=["all batches", "7 at a time"])
@pytest.mark.parametrize("plan_depth", [0, 2])
def test_next_uses_from_files_change_no_bit_and_save_reads(
    encoded, tmp_path, monkeypatch, caplog, plan_depth, most
):
    epochs = dataclasses.replace(SMALL, epochs=3, batch_size=4, in_flight=1)
    expected = Trainer(encoded, dataclasses.replace(epochs, fast_memory=None), tmp_path / "memory").fit()
    misses = {}
    monkeypatch.setattr("hotrows.engine.known_order.MOST_BATCHES", most)
    caplog.set_level("INFO", "hotrows")
    for name, least in (("ahead", 10**9), ("known", 1)):
        monkeypatch.setattr("hotrows.engine.known_order.LEAST_BATCHES", least)
        config = dataclasses.replace(
            epochs, store=f"file:{tmp_path / name}-store", plan_depth=plan_depth, lookahead_memory=1
        )
        trainer = Trainer(encoded, config, tmp_path / name)
        slots = trainer.cached_tables.groups
        result = trainer.fit()
        misses[name] = sum(group.host_slots.misses for group in slots)
        assert_same_run(tmp_path / name, result, (tmp_path / "memory", expected))
    assert misses["known"] < 0.9 * misses["ahead"]
    assert ("next uses of 7 batches" in caplog.text) == (most == 7)
    assert "looked for in memory: fewer than 1000000000 batches" in caplog.text.replace(",", "")
    assert {path.name for path in (tmp_path / "known-store").iterdir()} == {"group-0", "run"}


def test_a_run_with_next_uses_from_files_goes_on_to_the_same_bits(encoded, tmp_path, monkeypatch):
    """Wherever it ends: the inspector begins again from there, and nothing of it is left."""
    monkeypatch.setattr("hotrows.engine.known_order.LEAST_BATCHES", 1)
    run, result = tmp_path / "run", None
    in_memory = dataclasses.replace(SMALL, fast_memory=None)
    whole = tmp_path / "whole", Trainer(encoded, in_memory, tmp_path / "whole").fit()
    while result is None:
        with suppress(Interrupted):
            config, progress = in_file(tmp_path / "store"), interrupt_after(17)
            result = Trainer(encoded, config, run, resume=run.exists(), progress=progress).fit()
    assert_same_run(run, result, whole)


def test_a_disk_too_full_for_next_uses_is_said_and_training_goes_on(
    encoded, whole, tmp_path, monkeypatch, caplog
):
    def full(self, rows):
        raise OSError(28, "next-0: next uses of rows: No space left on device")

    monkeypatch.setattr("hotrows.engine.known_order.LEAST_BATCHES", 1)
    monkeypatch.setattr("hotrows.engine.planning.next_uses.NextUses.add", full)
    result = Trainer(encoded, in_file(tmp_path / "store"), tmp_path / "run").fit()
    assert_same_run(tmp_path / "run", result, whole)
    assert "rows are evicted by last use, since next uses cannot be found" in caplog.text


def test_a_second_runner_of_one_trainer_finds_next_uses_anew(encoded, tmp_path, monkeypatch):
    """The map knew the batches of the first runner as all there are, and trained none of the second."""
    monkeypatch.setattr("hotrows.engine.known_order.LEAST_BATCHES", 1)
    steps = Trainer(encoded, in_file(tmp_path / "store"), tmp_path / "run").steps
    for epoch in range(2):
        steps.state = dataclasses.replace(steps.state, step=0)
        with closing(steps.start()) as runner:
            num_steps = sum(1 for work in runner if steps.train(work) is not None)
        assert num_steps == steps.batches.total_steps, epoch
    assert all(group.host_slots.hinted for group in steps.cached_tables.groups)
    steps.cached_tables.close()


@pytest.mark.parametrize("fast_memory", [None, 1600])
def test_batches_go_on_being_numbered_where_they_begin_anew(encoded, fast_memory):
    """As with other shares of the ranks: a timeline had two batches of each number."""
    steps, numbers = StepTrainer(encoded, dataclasses.replace(SMALL, fast_memory=fast_memory)), []
    for until in (2, 4):
        steps.batches.share((), until)
        with closing(steps.start()) as runner:
            for work in runner:
                steps.train(work)
                numbers.append(work.number)
    assert numbers == [0, 1, 2, 3]
