"""A store that no checkpoint can refer to is deleted for a run that begins; no other one ever is."""

import pytest

from hotrows.engine.storage.file_store import FileStore
from hotrows.engine.storage.unsaved import remove_unsaved
from hotrows.runtime.locks import Held
from tests.support.file_stores import first_values


def store(path):
    return FileStore.create(path, 10, 8, first_values, {"seed": 1})


@pytest.mark.parametrize("group", ["group-0", "rank-1-of-2/group-0"])
def test_a_store_without_a_checkpoint_goes(tmp_path, group):
    path = tmp_path / "store"
    store(path / group).close()
    assert remove_unsaved(path)
    assert not path.exists()


def test_a_store_that_was_killed_while_it_was_made_goes(tmp_path):
    path = tmp_path / "store"
    (path / "group-0").mkdir(parents=True)
    (path / "group-0" / "base").write_bytes(b"")
    assert remove_unsaved(path)
    assert not path.exists()


def test_a_store_that_was_cleared_goes(tmp_path):
    path = tmp_path / "store"
    with store(path / "group-0") as cleared:
        cleared.checkpoint()
        cleared.restore(None)
    assert remove_unsaved(path)


@pytest.mark.parametrize("merged", [False, True])
def test_a_store_with_a_checkpoint_stays_and_so_do_those_beside_it(tmp_path, merged):
    path = tmp_path / "store"
    store(path / "group-0").close()
    with store(path / "group-1") as saved:
        generation = saved.checkpoint()
        if merged:
            saved.retain([generation])
            saved.merge_now()
    files = sorted(path.rglob("*"))
    assert not remove_unsaved(path)
    assert sorted(path.rglob("*")) == files


@pytest.mark.parametrize("name", ["notes.txt", "run", "group-0/notes.txt", "other/base"])
def test_a_folder_with_anything_else_stays(tmp_path, name):
    path = tmp_path / "store"
    store(path / "group-0").close()
    (path / name).parent.mkdir(exist_ok=True)
    (path / name).write_text("mine")
    assert not remove_unsaved(path)
    assert (path / name).read_text() == "mine"
    assert (path / "group-0" / "log-1").exists()


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"kind": "hotrows file store"}', "[" * 100_000])
def test_a_store_whose_description_is_damaged_stays(tmp_path, text):
    path = tmp_path / "store"
    store(path / "group-0").close()
    (path / "group-0" / "store.json").write_text(text)
    assert not remove_unsaved(path)
    assert (path / "group-0" / "log-1").exists()


def test_a_store_that_is_open_stays(tmp_path):
    path = tmp_path / "store"
    with store(path / "group-0"):
        with pytest.raises(Held, match="group-0 is locked by process"):
            remove_unsaved(path)
        assert (path / "group-0" / "log-1").exists()
