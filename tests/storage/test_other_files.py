"""Files that are whole, but not those that store.json names."""

import shutil

import pytest

from hotrows.engine.storage.file_store import FileStore
from hotrows.engine.storage.store_view import view_at
from tests.support.file_stores import META, assert_rows, first_values, write

FORM = (1000, 32, first_values, META)


def merged(path, first_row):
    """A store whose second checkpoint is merged."""
    with FileStore.create(path, *FORM) as store:
        for step in (1, 2):
            write(store, range(first_row, first_row + 50), step)
            store.checkpoint()
        store.retain([1, 2])
        store.merge_now()
    return path


def test_a_log_of_another_store_is_refused(tmp_path):
    for name, step in (("one", 1), ("other", 2)):
        with FileStore.create(tmp_path / name, *FORM) as store:
            write(store, range(50), step)
            store.checkpoint()
    log = tmp_path / "one" / "log-1"
    own = log.read_bytes()
    shutil.copyfile(tmp_path / "other" / "log-1", log)
    assert log.stat().st_size == len(own)
    message = "log-1 is not the file that was written there; bring it back"
    with FileStore.open(tmp_path / "one", *FORM) as store, pytest.raises(ValueError, match=message):
        store.restore(1)
    with pytest.raises(ValueError, match=message):
        view_at(tmp_path / "one", *FORM, generation=1)
    log.write_bytes(own)
    with FileStore.open(tmp_path / "one", *FORM) as store:
        store.restore(1)
        assert_rows(store, dict.fromkeys(range(50), 1))


def test_a_base_of_another_store_is_refused(tmp_path):
    path, other = merged(tmp_path / "one", 0), merged(tmp_path / "other", 30)
    base = path / "base-2"
    own = base.read_bytes()
    shutil.copyfile(other / "base-2", base)
    assert base.stat().st_size == len(own)
    message = "base-2 is not the file that was written there; bring it back"
    with pytest.raises(ValueError, match=message):
        view_at(path, *FORM, generation=2)
    with FileStore.open(path, *FORM) as store, pytest.raises(ValueError, match=message):
        store.restore(2)
    base.write_bytes(own)
    with FileStore.open(path, *FORM) as store:
        store.restore(2)
        assert_rows(store, dict.fromkeys(range(50), 2))
