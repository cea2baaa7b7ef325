"""prepare once more: gone on with after a stop, with stored encoders, and with growing ones."""

import os
import signal
import time
from itertools import count

import numpy as np
import pytest

from hotrows.data import EncodedData, Encoder, prepare
from hotrows.data.encode import passes
from hotrows.data.raw import chunks
from hotrows.data.stored.shards import ShardWriter
from hotrows.schema import Dense, Schema, Sequence, Sparse, Time
from tests.data.raw import SCHEMA, files_of, read, write
from tests.reference.rows_of_data import use_plain_python
from tests.support import forked
from tests.support.choice import everything

MIXED = Schema(
    features=(
        Dense("x", transform="standard"),
        Sparse("user", min_count=2),
        Sequence("seen", vocabulary="item", max_length=3),
        Sparse("item"),
    ),
    columns=("label", "when", "x", "user", "item", "seen"),
    time=Time("when"),
    group="user",
)


class SmallShards(ShardWriter):
    """Shards of fifty rows."""

    def __init__(self, folder, part, schema, **how):
        super().__init__(folder, part, schema, rows=50, **how)


@pytest.fixture
def small(monkeypatch):
    """Chunks and shards of a few rows, and a note of the place after every chunk."""
    monkeypatch.setattr(chunks, "CHUNK_BYTES", 700)
    monkeypatch.setattr(passes, "ShardWriter", SmallShards)
    monkeypatch.setattr(passes, "SAVE_SECONDS", -1.0)


def rows_of(num_rows: int, seed: int = 0) -> list[tuple]:
    rng = np.random.default_rng(seed)
    return [
        (
            int(rng.integers(2)),
            int(rng.integers(100)),
            round(float(rng.normal()), 3),
            f"user{rng.integers(40)}",
            f"item number {rng.zipf(1.5) % 60}",
            "|".join(f"item number {i}" for i in rng.integers(60, size=rng.integers(6))),
        )
        for _ in range(num_rows)
    ]


def stopped_after(calls: int):
    """A progress that interrupts at its call number `calls`."""
    numbers = count(1)

    def progress(stage, done, total):
        if next(numbers) == calls:
            raise KeyboardInterrupt

    return progress


@pytest.mark.few(4)
@pytest.mark.parametrize("core", ["native", "plain"])
@pytest.mark.parametrize(
    "split", ["fraction:0.7,0.2,0.1", "position:0.6,0.1,0.3", "stratified:0.7,0.3,0", "time:0.8"]
)
def test_a_stop_anywhere_changes_no_byte(tmp_path, monkeypatch, small, split, core):
    if core == "plain":
        use_plain_python(monkeypatch)
    raw = [write(tmp_path / name, rows_of(150, seed)) for seed, name in enumerate("ab")]
    arguments = (raw, MIXED, tmp_path / "whole")
    calls = []
    prepare(*arguments, split=split, threads=2, progress=lambda *step: calls.append(step))
    stops = 0
    for every in (1, 2, 3, 7) if everything() else (3,):
        out = tmp_path / f"stopped{every}"
        for stop in range(every, len(calls) + 40, every):  # what is done again calls again
            try:
                prepare(raw, MIXED, out, split=split, progress=stopped_after(stop))
                break
            except KeyboardInterrupt:
                stops += 1
                assert not out.exists()
                assert (tmp_path / f"{out.name}.part").exists()
        assert files_of(out) == files_of(tmp_path / "whole")
    assert stops > (10 if everything() else 3)


def prepare_and_be_killed(raw, out, stop):
    """Prepares, and kills this process at a call of `progress`."""
    chunks.CHUNK_BYTES, passes.ShardWriter, passes.SAVE_SECONDS = 700, SmallShards, -1.0
    calls = count()

    def progress(stage, done, total):
        if next(calls) == stop:
            os.kill(os.getpid(), signal.SIGKILL)

    prepare([raw], MIXED, out, progress=progress)


def test_a_killed_process_goes_on(tmp_path):
    raw = write(tmp_path / "raw", rows_of(400))
    for stop in (5, 20, 30, 10**6):
        process = forked.Forked(prepare_and_be_killed, raw, tmp_path / "out", stop)
        assert process.end() == (-signal.SIGKILL if stop < 10**6 else 0), process.error
    complete = prepare([raw], MIXED, tmp_path / "whole")
    resumed = EncodedData.open(tmp_path / "out")
    assert resumed.parts["train"].rows == complete.parts["train"].rows
    assert resumed.fingerprint == complete.fingerprint
    assert not (tmp_path / "out.part").exists()


def test_what_was_stopped_is_not_mixed_with_something_else(tmp_path, small):
    raw = write(tmp_path / "raw", rows_of(100))
    with pytest.raises(KeyboardInterrupt):
        prepare([raw], MIXED, tmp_path / "out", progress=stopped_after(3))
    with pytest.raises(ValueError, match="with other files or settings that was stopped"):
        prepare([raw], MIXED, tmp_path / "out", seed=1)
    time.sleep(0.01)
    write(raw, rows_of(100, seed=7))
    with pytest.raises(ValueError, match="with other files or settings that was stopped"):
        prepare([raw], MIXED, tmp_path / "out")


def test_two_at_once_are_told_apart(tmp_path, small):
    raw = write(tmp_path / "raw", rows_of(100))

    def again(stage, done, total):
        with pytest.raises(ValueError, match="another run writes"):
            prepare([raw], MIXED, tmp_path / "out")

    prepare([raw], MIXED, tmp_path / "out", progress=again)


def test_later_rows_get_the_ids_of_stored_encoders(tmp_path):
    first = write(tmp_path / "raw", [("1", "3", "ann", "x"), ("0", "", "bob", "y")] * 3)
    later = write(tmp_path / "later", [("1", "4", "bob", "x"), ("0", "2", "new", "y")])
    data = prepare([first], SCHEMA, tmp_path / "enc", split="fraction:1,0,0")
    same = prepare([later], None, tmp_path / "day2", like=tmp_path / "enc", split="fraction:1,0,0")
    assert read(same)[0].tolist() == [[4, 2], [3, 4]]
    assert same.fingerprint == data.fingerprint
    assert same.parts["train"].unknown == {"user": 1, "item": 0}
    assert same.parts["train"].values == {"user": 2, "item": 2}
    (batch,) = Encoder.open(tmp_path / "day2").encode(later)
    assert batch.ids.tolist() == [4, 2, 3, 4]


def test_growing_encoders_keep_every_id_and_append_new_ones(tmp_path):
    first = write(tmp_path / "raw", [("1", "3", "ann", "x"), ("0", "", "bob", "y")] * 3)
    rows = [("1", "", "zoe", "x"), ("0", "", "cat", "z"), ("0", "", "cat", "x"), ("0", "", "bob", "")]
    later = write(tmp_path / "later", rows)
    data = prepare([first], SCHEMA, tmp_path / "enc", split="fraction:1,0,0")
    grown = prepare([later], None, tmp_path / "d2", extend=tmp_path / "enc", split="fraction:1,0,0")
    assert read(grown)[0].tolist() == [[6, 5, 5, 4], [3, 5, 3, 1]]  # cat 5 is seen more than zoe 6
    assert (grown.schema.rows_of("user"), grown.schema.rows_of("item")) == (7, 6)
    assert grown.extends == (data.fingerprint,)
    third = prepare([first], None, tmp_path / "d3", extend=tmp_path / "d2", split="fraction:1,0,0")
    assert third.extends == (grown.fingerprint, data.fingerprint)
    assert read(third)[0].tolist() == read(data)[0].tolist()


def test_stored_encoders_are_not_mixed_with_another_schema(tmp_path):
    raw = write(tmp_path / "raw", [("1", "3", "ann", "x")] * 3)
    prepare([raw], SCHEMA, tmp_path / "enc", split="fraction:1,0,0")
    with pytest.raises(ValueError, match="the schema differs from that of"):
        prepare([raw], MIXED, tmp_path / "out", like=tmp_path / "enc")
    with pytest.raises(ValueError, match="not both"):
        prepare([raw], SCHEMA, tmp_path / "o", like=tmp_path / "enc", extend=tmp_path / "enc")
    with pytest.raises(ValueError, match="needs a schema"):
        prepare([raw], None, tmp_path / "out")
    prepare([raw], SCHEMA, tmp_path / "out", like=tmp_path / "enc")


def test_parts_may_be_files_of_their_own(tmp_path):
    files = {name: write(tmp_path / name, [("1", "", name, "x")] * 3) for name in "abc"}
    others = {"validation": files["b"], "test": [files["c"]]}
    data = prepare(files["a"], SCHEMA, tmp_path / "out", **others)
    assert [part.rows for part in data.parts.values()] == [3, 3, 3]
    assert [read(data, part)[0][0, 0] for part in data.parts] == [3, 2, 2]
    halves = prepare(files["a"], SCHEMA, tmp_path / "o2", split="position:2/3,1/3,0", test=files["b"])
    assert [part.rows for part in halves.parts.values()] == [2, 1, 3]


@pytest.mark.parametrize("core", ["native", "plain"])
def test_an_unknown_value_may_be_an_error(tmp_path, monkeypatch, core):
    if core == "plain":
        use_plain_python(monkeypatch)
    schema = Schema(
        features=(Sparse("a", num_unknown=0), Sequence("b", num_unknown=0)), columns=("label", "a", "b")
    )
    raw = write(tmp_path / "raw", [("0", "x", "p|q"), ("1", "", "")])
    data = prepare(raw, schema, tmp_path / "out", split="fraction:1,0,0")
    assert data.schema.rows_of("a") == 3
    new = write(tmp_path / "new", [("0", "x", "p"), ("1", "x", "q|new")])
    with pytest.raises(ValueError, match=r"new line 2, feature 'b': 'new' was never seen in training"):
        list(Encoder.open(tmp_path / "out").encode(new))
    with pytest.raises(ValueError, match="num_unknown=0 needs min_count=1"):
        Sparse("a", num_unknown=0, min_count=2)


def test_little_memory_changes_no_byte(tmp_path, small):
    raw = write(tmp_path / "raw", rows_of(300))
    prepare([raw], MIXED, tmp_path / "much")
    prepare([raw], MIXED, tmp_path / "little", memory=1 << 16)
    assert files_of(tmp_path / "much") == files_of(tmp_path / "little")


def test_vocabularies_are_written_at_once_after_a_stop(tmp_path, small):
    """A thread listed the runs of its vocabulary while another spilled one more: heap overflow."""
    schema = Schema(
        tuple(Sparse(f"c{i}") for i in range(8)), columns=("label", *(f"c{i}" for i in range(8)))
    )
    rows = [(r % 2, *((r * i) % 17 for i in range(8))) for r in range(400)]
    raw = write(tmp_path / "raw", rows)
    complete = prepare(raw, schema, tmp_path / "whole", split="fraction:1,0,0", threads=1)
    for stop in range(6, 26, 4 if everything() else 9):
        out = tmp_path / f"stopped{stop}"
        with pytest.raises(KeyboardInterrupt):
            prepare(raw, schema, out, split="fraction:1,0,0", progress=stopped_after(stop))
        prepare(raw, schema, out, split="fraction:1,0,0", threads=8)
        assert files_of(out) == files_of(complete.path)


def test_a_stop_between_linking_stored_encoders_and_the_note_of_it(tmp_path, monkeypatch):
    """The link was there already, and copying a file over itself is an error."""
    raw = write(tmp_path / "raw", [("1", "3", "ann", "x")] * 3)
    prepare([raw], SCHEMA, tmp_path / "enc", split="fraction:1,0,0")

    def stop(folder, state):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr("hotrows.data.encode.prepare.write_state", stop)
        prepare([raw], None, tmp_path / "out", like=tmp_path / "enc")
    data = prepare([raw], None, tmp_path / "out", like=tmp_path / "enc")
    assert sum(part.rows for part in data.parts.values()) == 3
