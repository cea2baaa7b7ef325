"""One process writes a run; a folder that goes, and a store whose run never began, are noticed."""

import dataclasses
import os
import shutil
from functools import partial

import pytest

from hotrows.engine import checkpoint
from hotrows.engine.checkpoint import files, pointer, run_lock, write, writer
from hotrows.engine.distributed.in_process import run as on_threads
from hotrows.train import Trainer
from hotrows.train.config import TrainConfig
from hotrows.train.run import folder as run_folder
from tests.support.runs import CONFIG, assert_same_run, encode

pytestmark = pytest.mark.usefixtures("one_thread", "no_pictures")


@pytest.fixture(scope="module")
def encoded(tmp_path_factory):
    return encode(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def whole(encoded, tmp_path_factory):
    run = tmp_path_factory.mktemp("runs") / "whole"
    return run, Trainer(encoded, CONFIG, run).fit()


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(run_lock, "_PATIENCE", 0.0)


def at_step(step, act):
    """Progress that acts once, after a step."""
    done = []

    def progress(now):
        if now.stage == "train" and now.done == step and not done:
            done.append(act())

    return progress


# ---- one process


def test_nobody_else_writes_to_a_run_that_is_trained(encoded, whole, tmp_path, impatient):
    run = tmp_path / "run"
    later = dataclasses.replace(CONFIG, start_from=str(whole[0]))
    refused = []

    def others():
        for config, resume, said in (
            (CONFIG, True, rf"run \S+ is being written by process {os.getpid()} on .*; wait until"),
            (CONFIG, False, "exists already"),
            (later, False, "exists already"),
        ):
            with pytest.raises(ValueError, match=said):
                Trainer(encoded, config, run, resume=resume)
            refused.append(said)

    result = Trainer(encoded, CONFIG, run, progress=at_step(4, others)).fit()
    assert len(refused) == 3
    assert_same_run(run, result, whole)
    assert not (run / "lock").exists()


def test_of_two_that_begin_one_run_the_second_is_refused(encoded, tmp_path, impatient):
    """The first one is at work before it has written anything that says so."""
    run = tmp_path / "run"
    begin = run_folder.begin

    def slowly(*arguments):
        with pytest.raises(ValueError, match="is being written by process"):
            Trainer(encoded, dataclasses.replace(CONFIG, seed=8), run)
        begin(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_folder, "begin", slowly)
        Trainer(encoded, CONFIG, run)
    assert TrainConfig.load(run / "config.json").seed == CONFIG.seed


def test_all_ranks_are_refused_together(encoded, tmp_path, impatient):
    run, refused = tmp_path / "run", []

    def work(ranks):
        with pytest.raises(ValueError, match="is being written by process"):
            Trainer(encoded, CONFIG, run, resume=True, ranks=ranks)
        refused.append(ranks.rank)

    Trainer(encoded, CONFIG, run, progress=at_step(2, lambda: on_threads(work, 2))).fit()
    assert sorted(refused) == [0, 1]


def test_a_trainer_that_could_not_be_made_leaves_nothing(encoded, tmp_path):
    config = dataclasses.replace(CONFIG, start_from=str(tmp_path / "no-run"))
    with pytest.raises(ValueError, match="no-run does not exist"):
        Trainer(encoded, config, tmp_path / "run")
    assert not (tmp_path / "run").exists()
    Trainer(encoded, CONFIG, tmp_path / "run")


@pytest.mark.parametrize("background", [False, True])
def test_nothing_points_to_a_manifest_of_another_process(encoded, tmp_path, monkeypatch, background):
    run, write_it = tmp_path / "run", writer.write
    config = dataclasses.replace(CONFIG, background_checkpoints=background)

    def overtaken(*arguments):
        written = write_it(*arguments)
        name = written[0] if isinstance(written, tuple) else written
        if name == "step-10":
            manifest = run / "checkpoints" / name / "manifest.json"
            manifest.write_text(manifest.read_text().replace('"rank": 0', '"rank": 1', 1))
        return written

    monkeypatch.setattr(writer, "write", overtaken)
    with pytest.raises(ValueError, match="step-10 is not as it was written, so nothing points to it"):
        Trainer(encoded, CONFIG if background else config, run).fit()
    assert checkpoint.pointed(run).last == "step-7"
    monkeypatch.undo()
    Trainer(encoded, config, run, resume=True).fit()


# ---- the folder goes


@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize("step", [4, 29])
def test_a_folder_that_is_gone_ends_the_run_in_words(encoded, whole, tmp_path, caplog, background, step):
    run = tmp_path / "run"
    config = dataclasses.replace(CONFIG, background_checkpoints=background)
    go = partial(run.rename, tmp_path / "moved")  # at once, while files are written there
    trainer = Trainer(encoded, config, run, progress=at_step(step, go))
    with pytest.raises(ValueError, match="run was deleted or moved while it was written; bring it back"):
        trainer.fit()
    assert not run.exists()
    assert not caplog.text  # it is said once
    result = Trainer(encoded, config, tmp_path / "moved", resume=True).fit()
    assert_same_run(tmp_path / "moved", result, whole)


@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize("before", ["its folder", "its first file", "its check"])
def test_a_folder_that_goes_while_a_checkpoint_is_written_is_no_full_disk(
    encoded, tmp_path, monkeypatch, background, before
):
    run, write_file, part_of, verify = tmp_path / "run", files.write_file, write.part_of, pointer.verify

    def go(folder, now):
        if (folder.name.removesuffix(".part"), now) == ("step-10", before) and run.exists():
            run.rename(tmp_path / "moved")

    def writing(path, parts):
        go(path.parent, "its first file")
        return write_file(path, parts)

    def naming(path):
        go(part_of(path), "its folder")
        return part_of(path)

    def checking(path, expected):
        go(path.parent, "its check")
        return verify(path, expected)

    monkeypatch.setattr(files, "write_file", writing)
    monkeypatch.setattr(write, "part_of", naming)
    monkeypatch.setattr(pointer, "verify", checking)
    config = dataclasses.replace(CONFIG, background_checkpoints=background)
    with pytest.raises(ValueError, match="was deleted or moved while it was written"):
        Trainer(encoded, config, run).fit()
    assert not run.exists()
    assert checkpoint.pointed(tmp_path / "moved").last == "step-7"


def test_a_folder_that_is_gone_ends_all_ranks(encoded, tmp_path):
    run = tmp_path / "run"

    def work(ranks):
        go = partial(run.rename, tmp_path / "moved") if ranks.rank == 0 else list
        Trainer(encoded, CONFIG, run, ranks=ranks, progress=at_step(6, go)).fit()

    with pytest.raises(ValueError, match="was deleted or moved while it was written"):
        on_threads(work, 2)


# ---- a store whose run has not begun

SMALL = dataclasses.replace(CONFIG, fast_memory=4000, epochs=1)


class Kill(BaseException):
    pass


def killed(encoded, config, run, monkeypatch, name):
    """Leaves behind what a kill leaves, when a trainer calls `run_folder.NAME`."""
    folder, left = run.parent, run.parent.with_name("left")

    def kill(*_):
        shutil.copytree(folder, left)
        raise Kill

    with monkeypatch.context() as patch, pytest.raises(Kill):
        patch.setattr(run_folder, name, kill)
        Trainer(encoded, config, run)
    shutil.rmtree(folder)
    left.rename(folder)


@pytest.mark.parametrize("name", ["begin", "environment"])
def test_a_store_whose_run_never_began_is_made_anew(encoded, tmp_path, monkeypatch, caplog, name):
    """After a kill between the making of the store and the end of the run's beginning."""
    folder = tmp_path / "folder"
    folder.mkdir()
    run, store = folder / "run", folder / "store"
    config = dataclasses.replace(SMALL, store=f"file:{store}")
    killed(encoded, config, run, monkeypatch, name)
    assert (store / "group-0" / "store.json").exists()
    assert (run / "config.json").exists() == (name == "environment")
    result = Trainer(encoded, config, run, resume=(run / "config.json").exists()).fit()
    assert "was made for a run that never began: it is made anew" in caplog.text
    memory = Trainer(encoded, SMALL, tmp_path / "memory").fit()
    assert_same_run(run, result, (tmp_path / "memory", memory))


def test_a_store_of_a_run_that_has_begun_stays_even_without_a_checkpoint(encoded, tmp_path):
    run, store = tmp_path / "a", tmp_path / "store"
    config = dataclasses.replace(SMALL, store=f"file:{store}")
    trainer = Trainer(encoded, config, run)
    trainer.embedding.close()
    files = sorted(store.rglob("*"))
    with pytest.raises(ValueError, match=f"store .* exists already: resume its run, {run.resolve()} "):
        Trainer(encoded, config, tmp_path / "b")
    assert sorted(store.rglob("*")) == files
