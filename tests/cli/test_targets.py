"""Where commands write: one rule for files, links, pipes, devices, `-` and URLs, whatever the command."""

import os
import re
import shutil
import threading
from pathlib import Path

import pytest

from hotrows import Publisher, Schema, Sparse, TrainConfig, Trainer, cli, load_run
from hotrows.data import EncodedData, prepare
from hotrows.runtime.atomic_files import local, make_folder, new_folder, replaced, write_text

pytestmark = pytest.mark.usefixtures("one_thread")
TRAIN = "train enc --model lr --steps 2 --linear-paths plain"
WRITERS = [  # a command up to the name of its file, the suffix of that, and how its content begins
    ("predict runs/a some.txt --out", ".txt", b"0."),
    ("predict runs/a some.txt --columns C1 --out", ".csv", b"C1,probability\n"),
    ("predict runs/a some.txt --out", ".parquet", b"PAR1"),
    ("schema some.txt --out", ".json", b"{"),
    ("report runs/a --rows 50 --out", ".html", b"<!DOCTYPE html>"),
    ("describe enc --html", ".html", b"<!DOCTYPE html>"),
    ("describe enc --picture", ".svg", b"<svg"),
    ("simulate enc --fast-memory 1KiB --batches 8 --picture", ".svg", b"<svg"),
    ("plan criteo-1tb --ranks 1,8 --machine h100 --picture", ".svg", b"<svg"),
    ("export runs/a --vectors C1 --out", ".npy", b"\x93NUMPY"),
    ("export runs/a --vectors C1 --out", ".arrow", b"ARROW1"),
    ("export runs/a --vectors C1 --out", ".parquet", b"PAR1"),
]


@pytest.fixture
def call(folder, tmp_path, capfd):
    lines = (folder / "raw/train.txt").read_text().splitlines(keepends=True)
    (folder / "some.txt").write_text("".join(lines[:60]))

    def run(command, to, *more):
        with pytest.raises(SystemExit) as left:
            cli.main([*command.split(), str(to), *more])
            raise SystemExit(0)
        return (left.value.code, *capfd.readouterr())

    return run


@pytest.mark.parametrize(("command", "suffix", "start"), WRITERS)
def test_a_target_is_written_as_what_it_is(call, tmp_path, command, suffix, start):
    plain, link, pipe = (tmp_path / f"{name}{suffix}" for name in ("plain", "link", "pipe"))
    # 1. A file: not replaced unless asked.
    plain.write_text("of the user")
    code, _, err = call(command, plain)
    assert code == 2 and f"{plain} exists; name another file, or replace it: --overwrite" in err
    assert plain.read_text() == "of the user"
    code, _, err = call(command, plain, "--overwrite")
    assert code == 0, err
    content = plain.read_bytes()
    assert content.startswith(start)
    # 2. A link keeps its place.
    link.symlink_to("target")
    (tmp_path / "target").write_text("old")
    assert call(command, link)[0] == 0
    assert link.is_symlink() and (tmp_path / "target").read_bytes().startswith(start)
    # 3. A pipe is written.
    os.mkfifo(pipe)
    got = []
    reader = threading.Thread(target=lambda: got.append(pipe.read_bytes()), daemon=True)
    reader.start()
    code, _, err = call(command, pipe)
    reader.join(20)
    assert code == 0 and pipe.is_fifo(), err
    assert got[0] == content or (suffix == ".html" and len(got[0]) > 0.9 * len(content))
    # 4. A URL is written, and is named as it was typed where that fails; no folder is called so.
    code, _, err = call(command, f"gs://bucket/x{suffix}")
    assert code == 1 and f"gs://bucket/x{suffix}" in err and not Path("gs:").exists()


@pytest.mark.parametrize(
    ("command", "start"),
    [
        (command, start)
        for command, suffix, start in WRITERS
        if suffix in (".txt", ".csv", ".html", ".svg")
    ]
    + [("schema some.txt --out", b"{"), (f"{TRAIN} --run traced --trace", b'{"traceEvents"')],
)
def test_a_dash_is_standard_output_for_the_file_alone(call, folder, command, start):
    code, out, err = call(command, "-")
    assert code == 0, err
    assert out.encode().startswith(start) and not Path("-").exists()
    assert out.rstrip()[-1] in "}>0123456789" and "hotrows" not in out.splitlines()[-1][:7]
    assert err or "schema" in command


def test_standard_output_that_is_a_file_is_added_to(folder, tmp_path):
    """`>> all.csv`: opened by name, /dev/stdout would begin anew."""
    out, before = tmp_path / "all.txt", os.dup(1)
    out.write_text("first\n")
    with open(out, "a") as file:
        os.dup2(file.fileno(), 1)
        try:
            write_text(Path("/dev/stdout"), "second\n")
        finally:
            os.dup2(before, 1)
            os.close(before)
    assert out.read_text() == "first\nsecond\n"


def test_a_device_needs_no_suffix(call):
    """A picture into /dev/null was refused: "pictures are SVG: /dev/null.svg"."""
    assert call("describe enc --picture", "/dev/null")[0] == 0


def test_a_device_stays_one(call, tmp_path):
    device = tmp_path / "null.txt"
    try:
        os.mknod(device, 0o20666, os.makedev(1, 3))
        open(device, "wb").close()
    except OSError:
        pytest.skip("no devices may be made here")
    assert call("predict runs/a some.txt --out", device)[0] == 0
    assert device.is_char_device()
    with pytest.raises(ValueError, match="is a pipe or a device"), replaced(device):
        pass


def test_a_link_to_a_folder_stays_one(tmp_path):
    (tmp_path / "link").symlink_to("disk")
    with new_folder(tmp_path / "link") as part:
        (part / "x").write_text("x")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "disk" / "x").exists()


READERS = (
    "describe s3://bucket/x", "eval s3://bucket/x", "report s3://bucket/x", "tables s3://bucket/x",
    "train s3://bucket/x", "serve s3://bucket/x",
    "predict s3://bucket/x some.txt", "export s3://bucket/x --out x", "export runs/a --out s3://bucket/x",
    "checkpoint merge s3://bucket/x out", "checkpoint merge runs/a s3://bucket/x",
    "checkpoint inspect s3://bucket/x", "prepare some.txt --schema criteo --out s3://bucket/x",
    "prepare some.txt --schema s3://bucket/x --out o", "prepare some.txt --like s3://bucket/x --out o",
    "synth criteo --rows 9 --out s3://bucket/x", f"{TRAIN} --run s3://bucket/x",
    f"{TRAIN} --run r --fast-memory 1MiB --store file:s3://bucket/x",
    f"{TRAIN} --run r --stream folder:s3://bucket/x", f"{TRAIN} --run r --init-from s3://bucket/x",
    f"{TRAIN} --run r --config s3://bucket/x", f"{TRAIN} --run r --pretrained C1.linear=s3://bucket/x",
    f"{TRAIN} --run r --trace s3://bucket/x", "regroup enc --fast-memory 1KiB --out s3://bucket/x",
    "simulate enc --store file:s3://bucket/x --disk measured", "data adult --out s3://bucket/x",
)  # fmt: skip


@pytest.mark.parametrize("line", READERS)
def test_a_url_is_refused_as_it_was_typed(hotrows, folder, line):
    shutil.rmtree("r", ignore_errors=True)
    done = hotrows(*line.split())
    assert done.code in (1, 2), done.out
    assert "s3://bucket/x" in done.err.splitlines()[-1], done.err
    assert not list(folder.glob("**/s3:*")) and not Path("r").exists()


@pytest.mark.parametrize(
    "place", ["s3://bucket/x", Path("s3://bucket/x"), "gs://b", Path("hdfs://h:8/x")]
)
def test_python_refuses_a_url_where_it_takes_paths(folder, place):
    schema, config = Schema((Sparse("user"),), label="click"), TrainConfig(model="lr")
    for step in (Schema.load, TrainConfig.load, local, make_folder, schema.save, config.save):
        with pytest.raises(ValueError, match=r"(s3|gs|hdfs)://\S+ is a URL, and this must be a path"):
            step(place)


@pytest.mark.parametrize("place", ["gs://b", Path("hdfs://h:8/x"), "nowhere://x"])
def test_a_url_that_cannot_be_opened_is_named(folder, place):
    config, data = TrainConfig(model="lr"), EncodedData.open("enc")
    for step in (EncodedData.open, load_run, Trainer, lambda p: Trainer(data, config, p).fit()):
        with pytest.raises(ValueError, match=r"(gs|hdfs|nowhere)://\S+"):
            step(place)


def test_a_url_that_became_a_path_is_one(tmp_path, monkeypatch):
    """`Path("memory://a")` has one slash: raw rows looked for a file, and versions went into a folder."""
    fsspec = pytest.importorskip("fsspec")
    text = "click,user\n" + "0,a\n1,b\n" * 50
    fsspec.filesystem("memory").pipe("/rows.csv", text.encode())
    (tmp_path / "rows.csv").write_text(text)
    schema = Schema((Sparse("user"),), label="click", delimiter=",")
    for name, rows in {"a": Path("memory://rows.csv"), "b": Path(f"file://{tmp_path}/rows.csv")}.items():
        data = prepare(rows, schema, tmp_path / name, split="position:0.8,0.1,0.1")
        assert data.parts["train"].rows == 80
    assert Publisher(Path("s3://bucket/versions")).to == "s3://bucket/versions"
    monkeypatch.chdir(tmp_path)
    assert Publisher("versions").to == tmp_path / "versions"  # also once the working directory is another


@pytest.mark.parametrize("name", ["shop.py", "shop.toml", "shop"])
def test_a_schema_is_written_as_what_prepare_reads(hotrows, folder, name):
    done = hotrows("schema", "raw/train.txt", "--out", name)
    assert done.code == 2 and "schemas are written as JSON: shop.json, not" in done.err
    assert not Path(name).exists()


def test_synth_replaces_no_file(hotrows, tmp_path):
    (tmp_path / "train.txt").write_text("the real one")
    done = hotrows("synth", "criteo", "--rows", "9", "--out", tmp_path)
    assert done.code == 2 and "exists; name another folder" in done.err


NEWER = [  # a file, and a command that reads it
    ("enc/data.json", "describe enc"),
    ("enc/train-*.shard", "eval runs/a --part train --data enc"),
    ("enc/*.values", "describe enc"),
    ("runs/a/encoders/data.json", "predict runs/a raw/train.txt"),
    ("runs/a/config.json", "eval runs/a"),
    ("runs/a/schema.json", "eval runs/a"),
    ("runs/a/data.json", "eval runs/a"),
    ("runs/a/choices.json", "eval runs/a"),
    ("runs/a/checkpoints.json", "eval runs/a"),
    ("runs/a/checkpoints/*/manifest.json", "eval runs/a"),
    ("runs/a/placing.json", "train enc --run runs/a --resume"),
    ("plain/export.json", "checkpoint inspect plain --verify"),
]


@pytest.mark.parametrize(("pattern", "line"), NEWER)
def test_a_file_of_a_newer_hotrows_asks_for_an_upgrade(hotrows, folder, pattern, line):
    if pattern.startswith("plain"):
        assert hotrows("export", "runs/a", "--out", "plain").code == 0
    files = sorted(folder.glob(pattern))
    contents = [file.read_bytes() for file in files]
    for file, content in zip(files, contents, strict=True):
        newer = re.sub(rb'"(version|format)": (\d)', rb'"\1": 9', content, count=1)
        file.write_bytes(newer if newer != content else content[:8] + b"\x09" + content[9:])
    try:
        err = hotrows(*line.split()).err.splitlines()[-1]
    finally:
        for file, content in zip(files, contents, strict=True):
            file.write_bytes(content)
    assert re.search(r"format version 9, this hotrows reads \d; upgrade hotrows \(pip install", err), err


@pytest.mark.parametrize("place", ["no/such.txt", "{here}/no/such.txt"], ids=["relative", "absolute"])
def test_a_folder_that_is_not_there_is_named_by_what_the_user_wrote(place, tmp_path, monkeypatch):
    """Of a relative path the message had the .part file beside it."""
    monkeypatch.chdir(tmp_path)
    place = place.format(here=tmp_path)
    with pytest.raises(FileNotFoundError) as error, replaced(Path(place)) as part:
        part.write_text("rows")
    assert error.value.filename == place
