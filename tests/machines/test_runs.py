"""Runs at a URL, each rank with a disk of its own: the bytes of a shared folder, whatever fails."""

import dataclasses
import json
import shutil
from pathlib import Path

import pytest

from hotrows.engine.checkpoint import uploads
from hotrows.runtime.locks import LockLost
from hotrows.runtime.remote.files import open_files
from hotrows.train import Trainer, load_run
from hotrows.train.telling.metrics_log import read_metrics
from tests.machines.runs import CONFIG, content, fit
from tests.machines.storage import make_faulty, slow
from tests.support.runs import Kill

pytestmark = pytest.mark.usefixtures("one_thread", "no_pictures")


@pytest.fixture(scope="module")
def shared(data, tmp_path_factory):
    """By sequence of numbers of ranks, what a run in a shared folder has in the end."""
    known = {}

    def of(*sequence):
        if sequence not in known:
            run = tmp_path_factory.mktemp("shared") / "run"
            for place, num_ranks in enumerate(sequence):
                fit(data, run, num_ranks, kill=7 if place + 1 < len(sequence) and not place else None)
            known[sequence] = content(run)
        return known[sequence]

    return of


@pytest.mark.parametrize("rate", [0.0, 0.3])
def test_ranks_with_disks_of_their_own_leave_the_bytes_of_a_shared_folder(
    data, shared, tmp_path, monkeypatch, rate
):
    url = f"file://{tmp_path}/bucket/run"
    faulty = make_faulty(url, monkeypatch, rate)
    results = fit(data, url, 2, tmp_path / "disks")
    assert content(tmp_path / "bucket/run") == shared(2)
    assert json.loads((tmp_path / "bucket/run/result.json").read_text())["steps"] == results[0].steps
    assert read_metrics(tmp_path / "bucket/run") and (tmp_path / "bucket/run/ranks").is_dir()
    assert bool(faulty.faults) == bool(rate)
    assert load_run(url).predict({"n": [1], "a": ["v1"], "b": ["w2"]}).shape == (1,)


@pytest.mark.parametrize("then", [1, 2, 3])
def test_a_run_goes_on_with_other_ranks_on_empty_disks(data, shared, tmp_path, monkeypatch, then):
    url, made = f"file://{tmp_path}/bucket/run", tmp_path / "disks"
    fit(data, url, 2, made, kill=7)
    shutil.rmtree(made)
    faulty, files = make_faulty(url, monkeypatch), [*(tmp_path / "bucket/run/encoders").iterdir()]
    before = [file.stat().st_mtime_ns for file in files]
    fit(data, url, then, made)
    assert files and before == [file.stat().st_mtime_ns for file in files], "what was there is not sent"
    assert content(tmp_path / "bucket/run") == shared(2, then)
    if then == 2:  # each rank reads its own records, and no others
        records = [path for path in faulty.got if path.endswith((".records", ".ids"))]
        assert records and all(faulty.got[path] == Path(path).stat().st_size for path in records
                               if "shared" not in path and Path(path).exists())  # fmt: skip


def test_a_run_that_is_killed_between_sending_and_committing_goes_on_from_the_one_before(
    data, shared, tmp_path, monkeypatch
):
    url, commit, calls = f"file://{tmp_path}/bucket/run", uploads.Uploads._commit, []

    def dies(self, *arguments):
        calls.append(1)
        if len(calls) > 1:
            raise OSError("the machine is gone")
        commit(self, *arguments)

    monkeypatch.setattr(uploads.Uploads, "_commit", dies)
    with pytest.raises(OSError, match="the machine is gone"):
        fit(data, url, 2, tmp_path / "disks")
    pointer = json.loads((tmp_path / "bucket/run/checkpoints.json").read_text())
    assert load_run(url, "last") and pointer["last"] in content(tmp_path / "bucket/run").__str__()
    monkeypatch.setattr(uploads.Uploads, "_commit", commit)
    fit(data, url, 2, tmp_path / "others")
    assert content(tmp_path / "bucket/run") == shared(2)


def test_the_later_of_two_jobs_wins(data, tmp_path):
    url = f"file://{tmp_path}/bucket/run"

    class TakenOver(Kill):
        def on_step_end(self, trainer, progress):
            if trainer.state.step == 3:
                open_files(url).write("lock", b"process 7 on another machine")

    trainer = Trainer(data, dataclasses.replace(CONFIG, scratch=str(tmp_path / "disks")), url)
    with pytest.raises(LockLost, match=r"run was taken over by process 7 on another machine: this job"):
        trainer.fit(callbacks=[TakenOver(0)])


def test_training_waits_for_storage_only_if_two_checkpoints_are_behind(data, tmp_path, monkeypatch):
    url = f"file://{tmp_path}/bucket/run"
    faulty, waited = make_faulty(url, monkeypatch), []
    slow(faulty, 0.2)
    add = uploads.Uploads.add

    def added(self, name):
        waited.append(len(self.names))
        add(self, name)
        assert len(self.names) <= 2

    monkeypatch.setattr(uploads.Uploads, "add", added)
    fit(data, url, 1, tmp_path / "disks", checkpoint_every=2)
    assert max(waited) == 2 and waited[0] == 0
    assert "result.json" in {path.name for path in (tmp_path / "bucket/run").iterdir()}


def test_a_store_of_one_machine_is_refused(data, tmp_path):
    url = f"file://{tmp_path}/bucket/run"
    config = dataclasses.replace(CONFIG, fast_memory=1 << 20, store=f"file:{tmp_path}/store")
    with pytest.raises(
        ValueError, match="its rows are in a file store on this machine: train in a folder"
    ):
        Trainer(data, config, url)


def test_a_second_run_at_a_url_is_refused(data, tmp_path):
    url = f"file://{tmp_path}/bucket/run"
    fit(data, url, 1, tmp_path / "disks")
    with pytest.raises(ValueError, match="bucket/run exists already: resume it"):
        Trainer(data, CONFIG, url)
