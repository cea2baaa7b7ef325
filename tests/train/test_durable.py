"""What the pages call durable is synced: the bytes of each file, and its name in its folder."""

import dataclasses
import json
import os

import pytest

from hotrows.data import prepare
from hotrows.engine.storage.disk_io import Disk
from hotrows.runtime.atomic_files import link_or_copy, make_folder, sync
from hotrows.train import Trainer
from hotrows.train.config import TrainConfig
from tests.support.runs import CONFIG, encode, schema, write_rows

pytestmark = pytest.mark.usefixtures("one_thread", "no_pictures")
REDRAWN = ("events.out.", "report.svg")  # may be lost


class Synced:
    """The sizes of files, and the names in folders, when they were last synced."""

    def __init__(self, monkeypatch):
        self.files, self.folders, fsync = {}, {}, os.fsync

        def sync(fd):
            fsync(fd)
            path = os.readlink(f"/proc/self/fd/{fd}")
            if os.path.isdir(path):
                self.folders[self.key(path)] = set(os.listdir(path))
            else:
                self.files[self.key(path)] = os.path.getsize(path)

        monkeypatch.setattr(os, "fsync", sync)

    def lost(self, folder):
        """The files and folders that a power failure could take, below and with `folder`."""
        paths = [path for path in (folder, *folder.rglob("*")) if not path.name.startswith(REDRAWN)]
        return [str(path.relative_to(folder.parent)) for path in paths if not self._is_safe(path)]

    def _is_safe(self, path):
        named = path.name in self.folders.get(self.key(path.parent), ())
        return named and (path.is_dir() or self.files.get(self.key(path)) == path.stat().st_size)

    @staticmethod
    def key(path):
        return os.stat(path).st_dev, os.stat(path).st_ino


@pytest.fixture
def synced(monkeypatch):
    synced = Synced(monkeypatch)
    monkeypatch.setattr(Disk, "sync", staticmethod(os.fsync))
    return synced


@pytest.mark.skipif(not os.path.exists("/proc/self/fd"), reason="reads /proc")
def test_nothing_of_a_run_can_be_lost(tmp_path, synced):
    encoded = encode(tmp_path)
    run, store = tmp_path / "runs" / "new" / "a", tmp_path / "stores" / "a"
    config = dataclasses.replace(CONFIG, epochs=1, fast_memory=4000, store=f"file:{store}")
    trainer = Trainer(encoded, config, run)
    trainer.fit()
    for folder in (run.parent.parent, run.parent, run):
        assert synced.lost(folder) == []
    unsaved = f"log-{json.loads((store / 'group-0' / 'store.json').read_text())['open']}"
    assert synced.lost(store.parent) == [f"stores/a/group-0/{unsaved}"]
    files = {path.name for path in run.rglob("*")}
    assert files >= {"config.json", "schema.json", "metrics.jsonl", "result.json", "placing.json"}
    assert files >= {"manifest.json", "checkpoints.json", "choices.json", "environment.json"}


@pytest.mark.skipif(not os.path.exists("/proc/self/fd"), reason="reads /proc")
def test_nothing_of_prepared_data_can_be_lost(tmp_path, synced):
    out = tmp_path / "data" / "new" / "enc"
    prepare([write_rows(tmp_path / "raw.csv", 300)], schema(), out, split="position:0.6,0.2,0.2")
    for folder in (out.parent.parent, out.parent, out):
        assert synced.lost(folder) == []
    assert {"data.json", "train-00000.shard", "vocabulary-00000.values"} <= set(os.listdir(out))


def test_a_config_is_written_aside(tmp_path, monkeypatch):
    path = tmp_path / "config.json"
    CONFIG.save(path)

    def failing(source, target):
        raise OSError("this disk is gone")

    monkeypatch.setattr(os, "replace", failing)
    with pytest.raises(OSError, match="this disk is gone"):
        TrainConfig(model="lr").save(path)
    assert TrainConfig.load(path) == CONFIG


@pytest.mark.skipif(not os.path.exists("/proc/self/fd"), reason="reads /proc")
def test_a_copy_across_file_systems_is_synced(tmp_path, synced, monkeypatch):
    def across(source, target):
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", across)
    (tmp_path / "a").write_text("text")
    make_folder(tmp_path / "new" / "folder")
    link_or_copy(tmp_path / "a", tmp_path / "new" / "folder" / "a")
    assert synced.lost(tmp_path / "new") == ["new/folder/a"]  # its name alone
    sync(tmp_path / "new" / "folder")
    assert synced.lost(tmp_path / "new") == []


@pytest.mark.skipif(not os.path.exists("/proc/self/fd"), reason="reads /proc")
def test_counts_that_a_saved_preparation_names_are_synced(tmp_path, synced, monkeypatch):
    seen = []

    def write_state(folder, state):
        if state["stage"] == "count":
            runs = [folder / name for names in state["counts"]["runs"] for name in names]
            seen.extend(path for path in runs if synced.files[synced.key(path)] == path.stat().st_size)
            assert len(seen) == len(runs)
            if runs:
                raise KeyboardInterrupt

    monkeypatch.setattr("hotrows.data.encode.passes.write_state", write_state)
    monkeypatch.setattr("hotrows.data.encode.passes.SAVE_SECONDS", -1.0)
    with pytest.raises(KeyboardInterrupt):
        raw = [write_rows(tmp_path / f"{name}.csv", 300) for name in "ab"]
        prepare(raw, schema(), tmp_path / "enc", split="position:0.6,0.2,0.2")
    assert seen
