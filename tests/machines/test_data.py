"""Data at a URL: shards come ahead of their turn, whole, once for a machine, and into bounded room."""

import os
import shutil
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from hotrows.data import prepare
from hotrows.data.load.loader import Loader
from hotrows.data.stored import shards
from hotrows.data.stored.encoded import EncodedData
from hotrows.runtime.remote.files import open_files
from tests.machines.proxy import bucket
from tests.machines.runs import content, fit
from tests.machines.storage import make_faulty
from tests.support.forked import Forked
from tests.support.runs import schema, write_rows


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """Sixteen shards of 100 rows to train on, and two of validation and test each."""
    folder = tmp_path_factory.mktemp("data")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shards, "_ROWS_PER_SHARD", 100)
        raw = write_rows(folder / "raw.csv", 2000)
        return prepare([raw], schema(), folder / "enc", split="position:0.8,0.1,0.1")


@pytest.fixture
def url(prepared, tmp_path):
    shutil.copytree(prepared.path, tmp_path / "bucket/enc")
    return f"file://{tmp_path}/bucket/enc"


@pytest.fixture(scope="module")
def largest(prepared):
    return max(path.stat().st_size for path in prepared.path.glob("*.shard"))


def labels(data, epochs=2, see=lambda: None, **how):
    loader = Loader(data.parts["train"], 64, shuffle="order" in how, **how)
    read = []
    for batch in (batch for epoch in range(epochs) for batch in loader.batches(epoch)):
        read.append(np.concatenate([batch.labels.flatten(), batch.ids.flatten()]).tolist())
        see()
    return read


@pytest.mark.parametrize(
    ("order", "room", "rate"),
    [
        (None, None, 0.0),
        (None, 3, 0.4),
        ("shuffle", None, 0.4),
        ("shuffle", 18, 0.0),
        ("shards:1", 3, 0.4),
        ("shards:2", 5, 0.0),
        ("shards:99", None, 0.0),
    ],
)
def test_the_batches_are_those_of_a_local_folder(prepared, url, largest, monkeypatch, order, room, rate):
    faulty, how = make_faulty(url, monkeypatch, rate), {"order": order} if order else {}
    data = EncodedData.open(url, room and room * largest)

    def fits():  # a file may go meanwhile
        used = len([*data.path.glob("*.shard")]) * largest
        assert room is None or used <= room * largest

    assert labels(data, see=fits, **how) == labels(prepared, **how)
    assert bool(faulty.faults) == bool(rate)
    if room is None or room == 18:
        fetched = {path: size for path, size in faulty.got.items() if "train" in path}
        assert len(fetched) == 16 and (rate or set(fetched.values()) <= {*map(os.path.getsize, fetched)})


def test_an_epoch_of_some_shards_at_a_time_reads_each_sample_once_and_resumes_anywhere(prepared):
    loader = Loader(prepared.parts["train"], 64, shuffle=True, order="shards:3")
    seen = [rows_of(batch) for batch in loader.batches(1)]
    in_order = [row for batch in Loader(loader.part, 64).batches(0) for row in rows_of(batch)]
    shuffled = [row for rows in seen for row in rows]
    assert sorted(shuffled) == sorted(in_order) and shuffled != in_order
    for first in (1, 12, 24):
        assert rows_of(next(loader.batches(1, first))) == seen[first]


def rows_of(batch):
    return np.concatenate([batch.ids.reshape(2, -1), batch.dense.T]).T.tolist()


def test_a_shuffle_that_needs_more_shards_than_there_is_room_for_is_refused(url, largest):
    part = EncodedData.open(url, 7 * largest).parts["train"]
    for order in ("shuffle", "shards:4"):
        with pytest.raises(
            ValueError, match=rf"train part of {url} has .* \(--order shards:3\), or give"
        ):
            Loader(part, 64, shuffle=True, order=order)
    with pytest.raises(ValueError, match="no room for 3 shards of file://.*give it at least"):
        EncodedData.open(url, 2 * largest)


@pytest.mark.slow
def test_shards_come_from_s3_though_it_is_busy_and_cuts_bodies(prepared, largest, monkeypatch):
    with bucket() as (proxy, environment):
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        open_files.cache_clear()
        files = open_files("s3://bucket/enc")
        for path in prepared.path.iterdir():
            files.put(path.name, path)
        proxy.rate, proxy.kinds = 0.3, ("503", "reset", "cut")
        data = EncodedData.open("s3://bucket/enc", 5 * largest)
        assert labels(data, order="shards:2") == labels(prepared, order="shards:2")
        assert set(proxy.faults) == {*proxy.kinds}
        open_files.cache_clear()


def test_a_shard_that_is_not_as_it_was_written_is_fetched_again_and_then_refused(
    prepared, url, tmp_path, monkeypatch
):
    faulty, name = make_faulty(url, monkeypatch), "train-00003.shard"
    get, calls = faulty._system.get_file, []

    def wrong(path, to):
        get(path, to)
        if path.endswith(name):
            calls.append(path)
            if len(calls) < 3 or is_lasting:
                content = bytearray(Path(to).read_bytes())
                content[-70] ^= 1
                Path(to).write_bytes(content)

    faulty.get_file, is_lasting = wrong, False
    assert labels(EncodedData.open(url), order="shuffle") == labels(prepared, order="shuffle")
    assert len(calls) == 3
    next(tmp_path.glob(f"cache/*/copies/*/enc/{name}")).unlink()
    is_lasting = True
    with pytest.raises(ValueError, match=rf"^{url}/{name}: section '[\w/]+' is damaged .*; prepare the"):
        labels(EncodedData.open(url))
    assert not [*tmp_path.glob(f"cache/**/{name}/shard*")]


def test_two_ranks_share_one_copy_and_train_as_from_a_folder(prepared, url, tmp_path, monkeypatch):
    faulty = make_faulty(url, monkeypatch)
    fit(prepared, tmp_path / "local", 2)
    fit(url, tmp_path / "far", 2, data_cache=1 << 20)
    assert content(tmp_path / "far") == content(tmp_path / "local")
    assert all(size == os.path.getsize(path) for path, size in faulty.got.items() if "shard" in path)
    assert len([path for path in faulty.got if "shard" in path]) == 20


def reads(data, expected):
    assert labels(data, epochs=1, order="shards:1") == expected


def test_a_shard_on_its_way_has_its_room_though_nobody_wants_it_any_more(
    prepared, url, largest, monkeypatch
):
    """A reader that went on to others while two came had four in a room of three."""
    faulty = make_faulty(url, monkeypatch)
    part, go_on = EncodedData.open(url, 3 * largest).parts["train"], threading.Event()
    get = faulty._system.get_file
    faulty.get_file = lambda *a: (go_on.wait(30), get(*a))[1]
    copies, (a, b, c, d) = part.copies, part.shards[:4]
    copies.ahead("train", [a, b])
    while copies._underway != {a.file, b.file}:
        time.sleep(0.001)
    copies.ahead("train", [c, d])
    assert copies._names() == {c.file}
    go_on.set()


def test_processes_read_by_the_same_bounded_copies(prepared, url, largest):
    data = EncodedData.open(url, 6 * largest)
    data.check()
    next(Loader(data.parts["train"], 64).batches(0))
    expected = labels(prepared, epochs=1, order="shards:1")
    children = [Forked(reads, data, expected) for _ in range(2)]
    assert [child.end() for child in children] == [0, 0], [child.error for child in children]
    assert sum(path.stat().st_size for path in data.path.glob("*.shard")) <= 6 * largest


def test_what_a_killed_process_left_is_no_shard(prepared, url, tmp_path):
    data = EncodedData.open(url)
    labels(data)
    cut, changed = (data.path / f"train-0000{number}.shard" for number in (1, 2))
    os.truncate(cut, 500)
    content = bytearray(changed.read_bytes())
    content[-70] ^= 1
    changed.write_bytes(content)
    (part := data.path.parent / "fetching/train-00004.shard/shard.part").write_bytes(b"half")
    assert labels(EncodedData.open(url)) == labels(prepared)
    assert not part.exists() and cut.read_bytes() == (prepared.path / cut.name).read_bytes()


def test_data_that_has_changed_at_its_url_is_read_as_it_is_now(prepared, url, tmp_path):
    labels(EncodedData.open(url))
    other = write_rows(tmp_path / "other.csv", 900, seed=1)
    shutil.rmtree(tmp_path / "bucket/enc")
    now = prepare([other], schema(), tmp_path / "bucket/enc", split="position:0.8,0.1,0.1")
    data = EncodedData.open(url)
    assert labels(data) == labels(now)
    assert len([*data.path.glob("train*")]) == 1
    (tmp_path / "bucket/enc/test-00000.shard").unlink()
    with pytest.raises(
        ValueError, match="bucket/enc has no file 'test-00000.shard'; send it there again"
    ):
        EncodedData.open(url)
