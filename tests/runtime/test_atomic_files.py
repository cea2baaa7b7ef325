"""Files that others write or delete at the same time."""

import shutil

from hotrows.runtime.atomic_files import files_below


def test_folders_that_are_deleted_meanwhile_are_left_out(tmp_path):
    """A run's upload listed its folder while an old checkpoint was deleted, and the run ended."""
    for name in ("first/a", "second/b"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_bytes(b"123")
    (tmp_path / "top").write_bytes(b"1")
    listed = files_below(tmp_path)
    assert next(listed) == (tmp_path / "top", 1)
    shutil.rmtree(tmp_path / "first")
    assert [*listed] == [(tmp_path / "second/b", 3)]
