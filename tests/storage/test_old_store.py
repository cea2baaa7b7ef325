"""A store of format 3, as hotrows wrote it until November 2026, is read, gone back in, and trained on.

The file in `golden` was written by that code: a sparse base with five generations, a log, four journals.
"""

import shutil
import zipfile
from pathlib import Path

import pytest

from hotrows.engine.storage.file_store import FileStore
from hotrows.engine.storage.store_view import view_at
from hotrows.engine.storage.unsaved import remove_unsaved
from tests.support.file_stores import ENGINES, META, assert_rows, engine, first_values, write

FORM = (120, 36, first_values, META)
RETAINED = [1, 3, 5, 6]


def steps_of(generation):
    steps = {}
    for step in range(1, generation + 1):
        steps |= dict.fromkeys(range(step, 100, step), step)
        steps |= dict.fromkeys(range(0, 120, 17), 10 * step)
    return steps


@pytest.fixture
def path(tmp_path):
    with zipfile.ZipFile(Path(__file__).parents[1] / "golden" / "store_format_3.zip") as file:
        file.extractall(tmp_path / "group-0")
    return tmp_path / "group-0"


def test_each_checkpoint_is_read_by_another_process(path):
    before = {file.name: file.read_bytes() for file in path.iterdir()}
    for generation in RETAINED:
        with view_at(path, *FORM, generation) as view:
            assert_rows(view, steps_of(generation))
    assert before == {file.name: file.read_bytes() for file in path.iterdir()}
    assert not remove_unsaved(path.parent)


@pytest.mark.parametrize("with_core", ENGINES, ids=["plain", "core"])
@pytest.mark.parametrize("generation", RETAINED)
@pytest.mark.parametrize("merge_bytes", [1, 1 << 20])
def test_each_checkpoint_is_gone_to_trained_on_and_merged(path, with_core, generation, merge_bytes):
    with engine(with_core, merge_bytes, 3000), FileStore.open(path, *FORM) as store:
        store.restore(generation)
        earlier = [g for g in RETAINED if g <= generation]
        assert store.generations == earlier
        steps = steps_of(generation)
        for step in (71, 72):
            assert_rows(store, steps)
            write(store, range(3, 110, 9), step)
            steps |= dict.fromkeys(range(3, 110, 9), step)
            last = store.checkpoint()
            store.retain([*earlier, last])
            store.merge_now()
            for g in earlier:
                with store.view(g) as view:
                    assert_rows(view, steps_of(g))
        store.restore(last)
        assert_rows(store, steps)
        store.retain([last])
        assert [file.name for file in path.glob("base*")] == [f"base-{last}"]
        assert not [*path.glob("undo-*")]


def test_one_may_go_back_twice_before_it_is_merged(path):
    for generation in (5, 3, 1):
        with FileStore.open(path, *FORM) as store:
            store.restore(generation)
            assert_rows(store, steps_of(generation))
    with FileStore.open(path, *FORM) as store:
        write_on_the_last(store)


def write_on_the_last(store):
    store.restore(1)
    write(store, [5], 9)
    last = store.checkpoint()
    store.retain([last])
    store.merge_now()
    assert_rows(store, steps_of(1) | {5: 9})


def test_a_journal_of_another_store_is_refused(path):
    journal = path / "undo-2"
    own = journal.read_bytes()
    shutil.copyfile(path / "undo-3", journal)
    with pytest.raises(ValueError, match="undo-2 is damaged"):
        view_at(path, *FORM, generation=1)
    with FileStore.open(path, *FORM) as store:
        with pytest.raises(ValueError, match="undo-2 is damaged"):
            store.restore(1)
        journal.write_bytes(own)
        store.restore(1)
        assert_rows(store, steps_of(1))
