"""Runs on several ranks: the same command and config, and what one rank finds."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time

import pytest
import torch

from hotrows.batch import Batch
from hotrows.data import prepare, profile, regroup, write_encoded
from hotrows.engine import checkpoint
from hotrows.engine.distributed.in_process import run as on_threads
from hotrows.engine.planning.routing import RankSignals
from hotrows.optim import Adagrad, LazyAdam
from hotrows.schema import Dense, Schema, Sparse
from hotrows.train import Interrupted, Trainer, load_run
from hotrows.train.config import TrainConfig
from hotrows.train.loop import batch_shares
from hotrows.train.loop.step import Step
from hotrows.train.telling import metrics_log
from tests.support import pretend_ranks
from tests.support.runs import schema, write_rows
from tests.support.sharded import whole_weights

pytestmark = pytest.mark.usefixtures("one_thread", "no_pictures")

CONFIG = TrainConfig(
    model="deepfm",
    model_options={"dim": 4, "hidden": [16]},
    epochs=1,
    batch_size=50,
    row_optimizer=Adagrad(lr=0.1),
    seed=3,
    linear_paths="plain",
)


@pytest.fixture(scope="module")
def encoded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    raw = write_rows(folder / "raw.csv", 1310)
    return prepare([raw], schema(), folder / "enc", split="position:0.6,0.2,0.2")


@pytest.fixture(scope="module")
def alone(encoded, tmp_path_factory):
    """A run of one rank."""
    trainer = Trainer(encoded, CONFIG, tmp_path_factory.mktemp("runs") / "alone")
    return trainer, trainer.fit()


def fit(encoded, config, run, num_ranks, on_ranks=on_threads, **rest):
    """The trainers and results of all ranks."""

    def work(ranks):
        trainer = Trainer(encoded, config, run, ranks=ranks, **rest)
        return trainer, trainer.fit()

    return zip(*on_ranks(work, num_ranks), strict=True)


def assert_like(trainers, results, alone, rtol=1e-4, atol=1e-5, dense=True):
    """All ranks found the same, and nearly what one rank finds.

    dense: whether parameters are compared with those of one rank too.
    """
    trainer, expected = alone
    for result in results[1:]:
        assert (result.validation, result.test) == (results[0].validation, results[0].test)
    for part in ("validation", "test"):
        found, of = getattr(results[0], part), getattr(expected, part)
        assert abs(found.log_loss - of.log_loss) < 1e-4 and abs(found.auc - of.auc) < 2e-3
        assert found.samples == of.samples
    for name, weights in whole_weights([of.embedding for of in trainers]).items():
        torch.testing.assert_close(weights, trainer.embedding.weights(name), rtol=rtol, atol=atol)
    for of in trainers if dense else ():
        for a, b in zip(of.model.parameters(), trainer.model.parameters(), strict=True):
            torch.testing.assert_close(a, b, rtol=rtol, atol=atol)
    every = [torch.cat([p.flatten() for p in of.model.parameters()]) for of in trainers]
    assert all(torch.equal(every[0], of) for of in every)


@pytest.mark.few(5)
@pytest.mark.parametrize("num_ranks", [2, 3])
@pytest.mark.parametrize("sharding", ["auto", "rows", "tables", "columns", "replicated"])
def test_a_run_on_ranks_finds_what_one_rank_finds(encoded, alone, tmp_path, num_ranks, sharding):
    config = dataclasses.replace(CONFIG, sharding=sharding)
    trainers, results = fit(encoded, config, tmp_path / "run", num_ranks)
    assert_like(trainers, results, alone)


@pytest.mark.parametrize(
    "changes",
    [
        {"micro_batches": 3, "pack_parts": 2},
        {"fast_memory": 1600, "in_flight": 2},
        {"plan_depth": 0},
        {"keep_last": 2, "full_every": 3, "checkpoint_every": 2},
        {"background_checkpoints": False, "checkpoint_every": 3},
        {"shares": "1,3"},
        {"shares": "1,200"},  # of 50 samples the first rank has none
        {"shares": "auto", "fast_memory": 1600, "micro_batches": 2},
    ],
    ids=str,
)
def test_how_ranks_are_driven_changes_rounding_alone(encoded, alone, tmp_path, monkeypatch, changes):
    monkeypatch.setattr(batch_shares, "_STEPS", 4)
    monkeypatch.setattr(batch_shares, "by_speed", lambda paces: (1, 3))
    config = dataclasses.replace(CONFIG, **changes)
    trainers, results = fit(encoded, config, tmp_path / "run", 2)
    assert_like(trainers, results, alone)
    assert trainers[1].steps.placing.shares == ((1, 3) if config.shares == "auto" else ())


def test_a_run_with_choices_that_no_version_makes_now_is_read_and_goes_on(encoded, tmp_path, caplog):
    """Earlier versions exchanged in two stages, and noted that and micro-batches with the placing."""
    config = dataclasses.replace(CONFIG, steps=3)
    fit(encoded, config, tmp_path / "run", 2)
    changes = {
        "config.json": {"exchange": "two_stages"},
        "placing.json": {"2": {"stages": 2, "micro_batches": 4}},
    }
    for name, more in changes.items():
        fields = json.loads((tmp_path / "run" / name).read_text())
        del fields["format"], fields["crc32"]
        for key, value in more.items():
            fields[key] = {**fields[key], **value} if isinstance(value, dict) else value
        (tmp_path / "run" / name).write_text(json.dumps(fields))
    fit(encoded, dataclasses.replace(CONFIG, steps=4), tmp_path / "run", 2, resume=True)
    assert "exchange='two_stages' is no longer a setting: all-to-alls go in one stage" in caplog.text
    assert caplog.text.count("an earlier version chose 4 micro-batches") == 1
    caplog.clear()
    fit(encoded, dataclasses.replace(CONFIG, micro_batches=4), tmp_path / "run", 2, resume=True)
    assert "an earlier version" not in caplog.text


def test_micro_batches_on_one_rank(encoded, alone, tmp_path):
    trainer = Trainer(encoded, dataclasses.replace(CONFIG, micro_batches=4), tmp_path / "run")
    assert_like([trainer], [trainer.fit()], alone)


def test_tables_in_files_on_every_rank(encoded, alone, tmp_path):
    config = dataclasses.replace(
        CONFIG, store=f"file:{tmp_path / 'tables'}", fast_memory=1600, checkpoint_every=4
    )
    trainers, results = fit(encoded, config, tmp_path / "run", 2)
    assert_like(trainers, results, alone)
    names = {path.name for path in (tmp_path / "tables").iterdir()}
    assert names == {"rank-0-of-2", "rank-1-of-2", "run"}


def test_batch_statistics_are_those_of_all_ranks(encoded, tmp_path):
    options = {"dim": 4, "hidden": [16], "batch_norm": True}
    # A bias in front of normalisation has no gradient but rounding, which Adam would make large.
    config = dataclasses.replace(
        CONFIG, model="dnn", model_options=options, dense_optimizer="sgd", dense_lr=0.05
    )
    trainer = Trainer(encoded, config, tmp_path / "alone")
    expected = trainer, trainer.fit()
    trainers, results = fit(encoded, config, tmp_path / "run", 3)
    assert_like(trainers, results, expected, rtol=2e-3, atol=2e-4, dense=False)


def test_clipping_and_adam_see_the_gradients_of_all_ranks(encoded, tmp_path):
    config = dataclasses.replace(CONFIG, clip_norm=0.05, row_optimizer=LazyAdam(lr=0.01), steps=8)
    trainer = Trainer(encoded, config, tmp_path / "alone")
    expected = trainer, trainer.fit()
    trainers, results = fit(encoded, config, tmp_path / "run", 2)
    assert_like(trainers, results, expected, rtol=2e-3, atol=1e-4)


def test_hot_and_cold_batches_on_ranks(encoded, tmp_path):
    found = profile(encoded, bytes_per_row={"a": 40, "b": 40}, fast_memory=900, sample=0.5)
    laid_out = regroup(encoded, found, tmp_path / "hot")
    config = dataclasses.replace(CONFIG, fast_memory=900, policy="hot")
    trainer = Trainer(laid_out, config, tmp_path / "alone")
    expected = trainer, trainer.fit()
    trainers, results = fit(laid_out, config, tmp_path / "run", 2)
    assert_like(trainers, results, expected)


SCATTERED, MOST = (5, 8, 41, 90, 93), 5 * 32  # hot ids that are not the first ones; bytes of both tables


@pytest.fixture(scope="module")
def scattered(tmp_path_factory):
    """Regrouped data whose few hot ids are spread over tables of 97 rows."""
    schema = Schema((Dense("x"), Sparse("a", rows=97), Sparse("b", rows=97)), name="scattered")
    random, hot = torch.Generator().manual_seed(0), torch.tensor(SCATTERED)

    def part(num):
        ids = torch.where(
            torch.rand(2, num, generator=random) < 0.8,
            hot[torch.randint(5, (2, num), generator=random)],
            torch.randint(97, (2, num), generator=random),
        )
        x = torch.rand(num, 1, generator=random)
        return [Batch(("a", "b"), ids.flatten(), x, (ids[0] % 2 + x[:, 0] > 1).float())]

    parts = {"train": part(600), "validation": part(100), "test": part(100)}
    folder = tmp_path_factory.mktemp("scattered")
    plain = write_encoded(folder / "enc", schema, parts)
    found = profile(plain, bytes_per_row={"a": 16, "b": 16}, fast_memory=MOST, sample=0.5)
    found = dataclasses.replace(found, hot={name: hot.numpy() for name in "ab"})
    return regroup(plain, found, folder / "hot", force=True)


@pytest.mark.parametrize("fast_memory", [None, 1600])
def test_just_the_hot_rows_are_on_every_rank_wherever_they_stand(scattered, tmp_path, fast_memory):
    """Once all rows up to the last hot one were: here 94 of a table for 5, whatever the budget."""
    config = dataclasses.replace(CONFIG, sharding="rows", fast_memory=fast_memory)
    trainer = Trainer(scattered, config, tmp_path / "alone")
    expected = trainer, trainer.fit()
    trainers, results = fit(scattered, config, tmp_path / "run", 2)
    assert_like(trainers, results, expected)
    for trainer in trainers:
        for shard in trainer.embedding.shards:
            shared = [i for piece in shard.slices if piece.shared for i in piece.ids]
            assert shared == list(SCATTERED) * len(shard.tables)
    again, _ = fit(scattered, config, tmp_path / "run", 2, resume=True)
    before, after = (whole_weights([of.embedding for of in run]) for run in (trainers, again))
    assert all(torch.equal(before[name], after[name]) for name in before)
    alone_again = Trainer(scattered, config, tmp_path / "run", resume=True)
    for name, weights in before.items():
        assert torch.equal(alone_again.embedding.weights(name), weights)


def test_batches_of_scattered_hot_rows_request_nothing_of_other_ranks(scattered, tmp_path, monkeypatch):
    requested, step = [], Step.__call__

    def noting(of, plan, batch, *rest):
        hot = bool(torch.isin(batch.ids, torch.tensor(SCATTERED)).all())
        requested.append((hot, any(any(rows.crosses_ranks) for rows in plan.row_exchanges)))
        return step(of, plan, batch, *rest)

    monkeypatch.setattr(Step, "__call__", noting)
    fit(scattered, dataclasses.replace(CONFIG, sharding="rows"), tmp_path / "run", 2)
    assert {hot for hot, _ in requested} == {True, False}
    assert all(crosses != hot for hot, crosses in requested)


@pytest.mark.few(2)
@pytest.mark.parametrize("after", [1, 4, 9])
def test_an_interrupted_run_goes_on_to_the_same_bits(encoded, tmp_path, after):
    config = dataclasses.replace(CONFIG, model_options={"dim": 4, "hidden": [16]})
    trainers, _ = fit(encoded, config, tmp_path / "whole", 2)
    expected = whole_weights([of.embedding for of in trainers])

    def stopped(ranks):
        trainer = Trainer(encoded, config, tmp_path / "run", ranks=ranks)

        def stop():
            return RankSignals.STOP if trainer.state.step >= after else 0

        with pytest.raises(Interrupted, match="stopped after step"):
            trainer.fit(signals=stop if ranks.rank == 1 else None)
        return trainer.state.step

    steps = on_threads(stopped, 2)
    assert steps[0] == steps[1] and after <= steps[0] < trainers[0].total_steps
    again, _ = fit(encoded, config, tmp_path / "run", 2, resume=True)
    for name, weights in whole_weights([of.embedding for of in again]).items():
        assert torch.equal(weights, expected[name])


@pytest.mark.few(3)
@pytest.mark.parametrize(("before", "after"), [(2, 1), (1, 2), (3, 2), (2, 4)])
def test_a_run_goes_on_with_another_number_of_ranks(encoded, alone, tmp_path, before, after):
    config = dataclasses.replace(CONFIG, steps=6)
    fit(encoded, config, tmp_path / "run", before)
    longer = dataclasses.replace(CONFIG, sharding="tables")
    trainers, results = fit(encoded, longer, tmp_path / "run", after, resume=True)
    assert trainers[0].state.step == alone[0].state.step
    found = results[0].test
    assert abs(found.log_loss - alone[1].test.log_loss) < 0.05


def test_a_run_of_ranks_predicts_without_any(encoded, tmp_path):
    _, results = fit(encoded, CONFIG, tmp_path / "run", 3)
    predictor = load_run(tmp_path / "run")
    found = predictor.evaluate(encoded.parts["test"])
    assert abs(found.log_loss - results[0].test.log_loss) < 1e-6


def test_the_first_rank_writes_and_every_other_keeps_a_log(encoded, tmp_path):
    _, results = fit(encoded, CONFIG, tmp_path / "run", 3)
    names = sorted(path.name for path in (tmp_path / "run" / "ranks").iterdir())
    assert names == ["rank-1.jsonl", "rank-2.jsonl"]
    lines = metrics_log.read_metrics(tmp_path / "run")
    of_rank = metrics_log.read_metrics(tmp_path / "run", "ranks/rank-1.jsonl")
    assert [line["step"] for line in lines] == [line["step"] for line in of_rank]
    steps = [line for line in lines if line["kind"] == "train"]
    assert all(
        a["loss"] == b["loss"]
        for a, b in zip(steps, (r for r in of_rank if r["kind"] == "train"), strict=True)
    )
    assert json.loads((tmp_path / "run" / "result.json").read_text())["steps"] == results[0].steps


def test_an_error_of_one_rank_is_the_error_of_the_run(encoded, tmp_path):
    def work(ranks):
        trainer = Trainer(encoded, CONFIG, tmp_path / "run", ranks=ranks)
        if ranks.rank == 1:
            step = trainer.steps.step

            def failing(plan, batch, scale):
                if trainer.state.step == 3:
                    raise OSError("this rank's disk is gone")
                return step(plan, batch, scale)

            trainer.steps.step = failing
        trainer.fit()

    with pytest.raises(OSError, match="this rank's disk is gone"):
        on_threads(work, 2)


def torchrun(num_ranks, *arguments, timeout=240, **environment):
    """`torchrun --nproc-per-node N ...`, its exit code and what it printed."""
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node",
        str(num_ranks), *arguments,
    ]  # fmt: skip
    found = subprocess.run(
        command, capture_output=True, text=True, timeout=timeout, check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
    )  # fmt: skip
    return found.returncode, found.stdout, found.stderr


PLAIN = ("-m", "tests.support.plain_command")
TRAIN = (
    "--model", "deepfm", "--option", "dim=4", "--option", "hidden=[16]", "--batch-size", "50",
    "--embedding-lr", "0.1", "--seed", "3", "--linear-paths", "plain", "--timeout", "60",
)  # fmt: skip


@pytest.mark.parametrize("num_ranks", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_processes_under_torchrun_find_what_one_rank_finds(encoded, alone, tmp_path, num_ranks):
    code, out, err = torchrun(
        num_ranks, *PLAIN, "train", str(encoded.path), *TRAIN, "--run-dir",
        str(tmp_path / "run"), "--trace", str(tmp_path / "trace.json"),
    )  # fmt: skip
    assert code == 0, err
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert abs(result["test"]["log_loss"] - alone[1].test.log_loss) < 1e-4
    assert out.count("steps ") == 1  # only the first rank speaks
    predictor = load_run(tmp_path / "run", "last")
    expected = load_run(alone[1].run, "last")
    for table in predictor.embedding.tables:
        torch.testing.assert_close(
            predictor.embedding.weights(table.name),
            expected.embedding.weights(table.name),
            rtol=1e-4,
            atol=1e-5,
        )
    lanes = {
        event.get("cat") for event in json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    }
    assert {"rows", "gradients", "dense gradients", "forward", "backward"} <= lanes


@pytest.mark.slow
def test_a_rank_that_dies_ends_the_job_in_seconds_and_torchrun_goes_on_by_itself(
    encoded, alone, tmp_path
):
    """The first time round, rank 1 kills itself after step 9; --max-restarts goes on to the end."""
    script = tmp_path / "job.py"
    script.write_text(
        "import os, signal, sys\n"
        "from hotrows import train\n"
        "from hotrows.cli import main\n"
        "step = train.Trainer._train_step\n"
        "def dying(self, runner):\n"
        "    first = os.environ['TORCHELASTIC_RESTART_COUNT'] == '0'\n"
        "    if first and self.ranks.rank == 1 and self.state.step == 9:\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "    return step(self, runner)\n"
        "train.Trainer._train_step = dying\n"
        "main(sys.argv[1:])\n"
    )
    begun = time.perf_counter()
    code, _, err = torchrun(
        2, "--max-restarts", "1", str(script), "train", str(encoded.path), *TRAIN, "--run-dir",
        str(tmp_path / "run"), "--checkpoint-every", "4",
    )  # fmt: skip
    assert code == 0, err
    assert time.perf_counter() - begun < 120
    predictor, expected = load_run(tmp_path / "run", "last"), load_run(alone[1].run, "last")
    for table in predictor.embedding.tables:
        torch.testing.assert_close(
            predictor.embedding.weights(table.name), expected.embedding.weights(table.name),
            rtol=1e-4, atol=1e-5,
        )  # fmt: skip


@pytest.mark.slow
def test_sigterm_saves_on_all_ranks(encoded, tmp_path):
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
        *PLAIN, "train", str(encoded.path), *TRAIN, "--epochs", "500",
        "--no-shuffle", "--stop-patience", "1000", "--run-dir", str(tmp_path / "run"),
    ]  # fmt: skip
    process = subprocess.Popen(
        command, env={**os.environ, "OMP_NUM_THREADS": "1"}, stderr=subprocess.PIPE, text=True
    )
    try:
        metrics, begun = tmp_path / "run" / "metrics.jsonl", time.perf_counter()
        while not metrics.exists() or not metrics.read_text():
            assert process.poll() is None, process.stderr.read()
            assert time.perf_counter() - begun < 120
            time.sleep(0.2)
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert "go on with: torchrun --nproc-per-node 2 -m hotrows train " in err
    assert f"--run-dir {tmp_path / 'run'} --resume" in err
    state = checkpoint.read_state(checkpoint.folder_of(tmp_path / "run", "last"))
    assert state["step"] > 0


@pytest.mark.parametrize(
    ("before", "after"),
    [((2, "cuda"), (3, "cpu")), pytest.param((3, "cpu"), (2, "cuda"), marks=pytest.mark.slow)],
)
def test_checkpoints_of_processors_and_of_devices_are_read_by_both(
    encoded, alone, tmp_path, before, after
):
    """A run is gone on with by another number of ranks of the other kind, and predicts alone."""
    changes = {"fast_memory": 1600, "in_flight": 2, "precision": "float32"}
    config = dataclasses.replace(CONFIG, **changes)

    def part(config, num_ranks, device, **rest):
        config = dataclasses.replace(config, device=device)
        if device == "cpu":
            return fit(encoded, config, tmp_path / "run", num_ranks, **rest)
        with pretend_ranks.gpus(num_ranks):
            return fit(encoded, config, tmp_path / "run", num_ranks, pretend_ranks.run, **rest)

    part(dataclasses.replace(config, steps=6), *before)
    trainers, results = part(config, *after, resume=True)
    assert trainers[0].state.step == alone[0].state.step
    assert abs(results[0].test.log_loss - alone[1].test.log_loss) < 0.05
    found = load_run(tmp_path / "run").evaluate(encoded.parts["test"])
    assert abs(found.log_loss - results[0].test.log_loss) < 1e-6


def test_a_captured_step_is_of_one_rank(encoded, tmp_path):
    config = dataclasses.replace(CONFIG, device="cuda", cuda_graph=True)
    with pretend_ranks.gpus(2), pytest.raises(ValueError, match="cuda_graph: how many rows 2 ranks"):
        fit(encoded, config, tmp_path / "run", 2, pretend_ranks.run)
