"""Places that cannot be written, disks without room, and paths whose bytes are no UTF-8."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hotrows import Schema, Sparse, TrainConfig, Trainer, load_run, prepare
from hotrows.data import Encoder
from hotrows.runtime.atomic_files import new_folder, replaced, write_text
from hotrows.runtime.locks import Lock

ROWS = {"click": [i % 3 // 2 for i in range(600)], "user": [f"u{i * 7 % 60}" for i in range(600)]}
SCHEMA = Schema((Sparse("user"),), label="click", delimiter=",")


@pytest.fixture(scope="module")
def old_folder(tmp_path_factory) -> Path:
    """A folder of a name in Latin-1, with raw rows, prepared data and a run."""
    folder = Path(os.fsdecode(os.fsencode(tmp_path_factory.mktemp("old")) + b"/caf\xe9"))
    folder.mkdir()
    lines = [f"{click},{user}\n" for click, user in zip(*ROWS.values(), strict=True)]
    (folder / "rows.csv").write_text("click,user\n" + "".join(lines))
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table(ROWS), sink)
    (folder / "rows.parquet").write_bytes(sink.getvalue())
    data = prepare(folder / "rows.csv", SCHEMA, folder / "enc")
    Trainer(data, TrainConfig(model="deepfm", steps=3), folder / "run").fit(verbose=False)
    return folder


def test_a_run_in_a_folder_whose_name_is_no_utf8_is_read(old_folder):
    """Training succeeded, and its data.json was then called damaged."""
    assert len(load_run(old_folder / "run").predict(ROWS)) == 600
    encoder = Encoder.open(old_folder / "enc")
    ids = [[b.ids.tolist() for b in encoder.encode(old_folder / f"rows.{s}")] for s in ("csv", "parquet")]
    assert ids[0] == ids[1]


COMMANDS = [
    "eval run",
    "predict run rows.parquet --out p.parquet",
    "report run --rows 100",
    "describe enc --html data.html",
    "export run --vectors user --out user.parquet",
    "schema rows.csv --out drafted.json",
]
IN_TURN = """
import itertools, sys
from hotrows.cli import main
for is_between, words in itertools.groupby(sys.argv[1:], ",".__eq__):
    line = [*words]
    try:
        None if is_between else main(line)
    except SystemExit as left:
        if left.code:
            sys.exit(f"{ascii(line)} ended with {left.code}")
"""


def test_commands_end_well_in_a_folder_whose_name_is_no_utf8(old_folder):
    """All in one process, which takes longer to start than any of them."""
    words = " , ".join(COMMANDS).split()
    places = [old_folder / word if "." in word or word in ("run", "enc") else word for word in words]
    done = subprocess.run(
        [sys.executable, "-c", IN_TURN, *map(os.fspath, places)],
        cwd=old_folder,
        capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": "utf-8:strict"},
    )
    assert done.returncode == 0, done.stderr
    written = ("p.parquet", "data.html", "user.parquet", "drafted.json")
    assert all((old_folder / name).exists() for name in written), done.stderr


def test_a_store_whose_path_is_no_utf8_is_refused_before_training():
    with pytest.raises(ValueError, match=r"store must be text of UTF-8, not .*rename the folder"):
        TrainConfig(fast_memory="1MiB", store=os.fsdecode(b"file:caf\xe9"))


def test_describe_prints_where_no_picture_can_be_written(hotrows, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    prepare(ROWS, SCHEMA, tmp_path / "enc")
    (tmp_path / "enc" / "skew.svg").mkdir()  # a folder cannot be replaced, by no user
    done = hotrows("describe", "enc")
    assert done.code == 0 and "user" in done.out
    assert "skew.svg was not written" in done.err


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_standard_output_without_room_is_named(tmp_path):
    prepare(ROWS, SCHEMA, tmp_path / "enc")
    with open("/dev/full", "wb") as full:
        command = [sys.executable, "-m", "hotrows", "describe", "enc", "--json"]
        done = subprocess.run(command, cwd=tmp_path, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("hotrows: standard output, or a file: No space left")


@pytest.mark.skipif(os.name != "posix", reason="limits of POSIX systems")
def test_a_file_that_grows_too_large_is_named(tmp_path):
    resource = pytest.importorskip("resource")
    rows = {"click": [i % 2 for i in range(9_000)], "user": [f"u{i}" for i in range(9_000)]}
    pq.write_table(pa.table(rows), tmp_path / "rows.parquet")
    SCHEMA.save(tmp_path / "schema.json")
    command = [sys.executable, "-m", "hotrows", "prepare", "rows.parquet", "--schema", "schema.json"]
    limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))  # noqa: E731
    done = subprocess.run(
        [*command, "--out", "enc"], cwd=tmp_path, capture_output=True, text=True, preexec_fn=limit
    )
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert "enc.part" in last and "File too large; raise `ulimit -f`" in last


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO])
def test_a_failed_write_names_its_file(tmp_path, code):
    with pytest.raises(OSError) as failed, replaced(tmp_path / "p.txt"):
        raise OSError(code, os.strerror(code))
    assert failed.value.filename == str(tmp_path / "p.txt") and failed.value.errno == code
    with pytest.raises((OSError, ValueError), match="enc"), new_folder(tmp_path / "enc"):
        raise OSError(code, os.strerror(code))


def test_an_error_without_a_number_names_its_file(tmp_path):
    with (
        pytest.raises(OSError, match=r"512 requested and 0 written.*p\.npy"),
        replaced(tmp_path / "p.npy"),
    ):
        raise OSError("512 requested and 0 written")


def test_an_error_that_has_a_file_keeps_it(tmp_path):
    with pytest.raises(FileNotFoundError, match="absent"), replaced(tmp_path / "p.txt"):
        (tmp_path / "absent").read_bytes()
    with pytest.raises(FileNotFoundError) as failed:
        write_text(tmp_path / "absent" / "p.txt", "text")
    assert failed.value.filename == str(tmp_path / "absent" / "p.txt")


def test_a_schema_on_a_full_disk_stays_as_it_was(tmp_path, monkeypatch):
    path = tmp_path / "schema.json"
    Schema((Sparse("user", rows=10),), label="click").save(path)
    before = path.read_bytes()

    def full(*arguments):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError) as failed:
        Schema((Sparse("item", rows=20),), label="click").save(path)
    assert failed.value.filename == str(path) and path.read_bytes() == before


def test_a_lock_on_a_full_disk_is_named(tmp_path, monkeypatch):
    def full(*arguments):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "ftruncate", full)
    with pytest.raises(OSError) as failed:
        Lock(tmp_path)
    assert failed.value.filename == str(tmp_path / "lock")
