"""A checkpoint of any number of ranks is read by any number, in whatever way rows are dealt."""

import dataclasses
import json
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from hotrows.engine import checkpoint
from hotrows.engine.caching import Caching
from hotrows.engine.checkpoint import State, files, manifest
from hotrows.engine.checkpoint.reshard import common, common_range
from hotrows.engine.distributed import in_process
from hotrows.engine.distributed.all_or_none import gathered
from hotrows.engine.distributed.in_process import run
from hotrows.engine.embedding import Embedding
from hotrows.engine.planning.sharding import BY_COLUMNS, Placement
from hotrows.optim import FTRL, SGD, Adagrad, LazyAdam, RowWiseAdagrad
from hotrows.table import Constant, Table
from tests.support.choice import examples
from tests.support.embeddings import SHARDINGS, batches_of, mixed_tables, placements, train
from tests.support.sharded import MOST, assert_same_rows, random_whole, scatter, whole_rows, with_dtype

RANKS = (1, 2, 3, 4, 7)
NAMES = list(SHARDINGS)
OPTIMIZERS = [SGD(), Adagrad(), RowWiseAdagrad(), LazyAdam(), LazyAdam(per_row_step=True), FTRL()]


def dense():
    return nn.Linear(3, 2)


def state(step=7):
    return State(step, {"step": step}, {"random_state": torch.arange(9)})


def saved_by(path, num_ranks, name, tables, rows):
    """The folder of a checkpoint of these rows, written by so many ranks."""
    model = dense()

    def work(ranks):
        embedding = Embedding(tables, ranks=ranks, sharding=placements(name, num_ranks))
        scatter(rows, embedding)
        return checkpoint.save(path, embedding, model, state(), "f")

    names = set(run(work, num_ranks))
    assert len(names) == 1
    return path / "checkpoints" / names.pop()


def loaded_by(folder, num_ranks, name, tables, **options):
    """The embeddings of so many ranks that have read the checkpoint."""

    def work(ranks):
        sharding = placements(name, num_ranks)
        embedding = Embedding(tables, seed=5, ranks=ranks, sharding=sharding, **options)
        back = checkpoint.load(folder, embedding, dense(), "f")
        assert (back.step, back.fields) == (7, {"step": 7})
        assert torch.equal(back.tensors["random_state"], torch.arange(9))
        return embedding

    return run(work, num_ranks)


@pytest.mark.few(9)
@pytest.mark.parametrize("num_readers", RANKS)
@pytest.mark.parametrize("num_writers", RANKS)
def test_any_number_of_ranks_reads_what_any_number_wrote(tmp_path, num_writers, num_readers):
    for k, name in enumerate(NAMES):
        tables = mixed_tables(OPTIMIZERS[k])
        rows = random_whole(tables)
        folder = saved_by(tmp_path / name, num_writers, name, tables, rows)
        for other in {NAMES[(k + num_readers) % len(NAMES)], name}:
            assert_same_rows(whole_rows(loaded_by(folder, num_readers, other, tables)), rows)


@pytest.mark.few(6)
@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=str)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "int4"])
def test_records_of_any_optimizer_are_cut_anew(tmp_path, optimizer, dtype):
    tables = with_dtype(mixed_tables(optimizer), dtype)
    rows = random_whole(tables)
    folder = saved_by(tmp_path, 3, "columns", tables, rows)
    for num_readers, name in ((2, "columns"), (1, "rows"), (4, "mixed columns"), (2, "mixed")):
        if name != "mixed columns" or dtype not in MOST:
            assert_same_rows(whole_rows(loaded_by(folder, num_readers, name, tables)), rows)


@pytest.mark.parametrize(
    ("saved", "wanted", "sharding"),
    [
        ("float32", "int8", "mixed"),
        ("int8", "float32", "mixed columns"),
        ("bfloat16", "int8", "rows"),
        ("int8", "int4", "rows"),
        ("int4", "float32", "mixed columns"),
    ],
)
@pytest.mark.parametrize("in_files", [False, True])
def test_weights_of_other_bits_are_converted_where_that_is_wanted(
    tmp_path, saved, wanted, sharding, in_files
):
    tables = mixed_tables(LazyAdam(per_row_step=True))
    rows = random_whole(with_dtype(tables, saved if saved in MOST else "bfloat16"))
    folder = saved_by(tmp_path, 3, "mixed", with_dtype(tables, saved), rows)
    caching = {"caching": in_file(tmp_path / "store")} if in_files else {}

    def work(ranks):
        place = placements(sharding, 2)
        embedding = Embedding(with_dtype(tables, wanted), ranks=ranks, sharding=place, **caching)
        checkpoint.load(folder, embedding, dense(), "f", converts=True)
        plain = in_memory(embedding) if in_files else embedding
        embedding.close()
        return plain

    expected = {name: (by_column.clone(), by_row) for name, (by_column, by_row) in rows.items()}
    for table in with_dtype(tables, wanted):
        if table.dtype in MOST:
            weights = expected[table.name][0][:, 0]
            weights[:] = torch.from_numpy(nearest(weights.float().numpy(), MOST[table.dtype]))
    assert_same_rows(whole_rows(run(work, 2)), expected)


def nearest(weights, most):
    """[n, D] rounded to multiples of the least power of two that `most` of reach a row's largest."""
    scale = np.exp2(np.ceil(np.log2(np.abs(weights).max(1, keepdims=True) / most)))
    return np.rint(weights / scale) * scale


@pytest.mark.parametrize("dtype", ["int8", "int4"])
def test_weights_of_other_bits_are_refused_where_nothing_asks_for_them(tmp_path, dtype):
    tables = with_dtype(mixed_tables(Adagrad()), "float32")
    folder = saved_by(tmp_path, 2, "columns", tables, random_whole(tables))
    embedding = Embedding(with_dtype(tables, dtype))
    with pytest.raises(ValueError, match="begin a new run with --init-from, which converts"):
        checkpoint.load(folder, embedding, dense(), "f")
    with pytest.raises(
        ValueError, match="ranks hold columns of table 'user'.* `hotrows checkpoint merge`"
    ):
        checkpoint.load(folder, embedding, dense(), "f", converts=True)


def test_ranks_that_hold_what_they_wrote_read_their_own_files_in_place(tmp_path, monkeypatch):
    tables = mixed_tables(LazyAdam())
    rows = random_whole(tables)
    folder = saved_by(tmp_path, 3, "mixed", tables, rows)

    def not_needed(*arguments):
        raise AssertionError("records are read in place")

    monkeypatch.setattr("hotrows.engine.checkpoint.read.in_files", not_needed)
    monkeypatch.setattr(files, "CHUNK", 100)
    assert_same_rows(whole_rows(loaded_by(folder, 3, "mixed", tables)), rows)
    with pytest.raises(AssertionError, match="in place"):
        loaded_by(folder, 3, "rows", tables)


def test_rows_are_taken_in_small_pieces(tmp_path, monkeypatch):
    tables = mixed_tables(Adagrad())
    rows = random_whole(tables)
    folder = saved_by(tmp_path, 3, "rows", tables, rows)
    monkeypatch.setattr(files, "CHUNK", 100)
    assert_same_rows(whole_rows(loaded_by(folder, 2, "columns", tables)), rows)


def test_rows_that_all_ranks_hold_are_written_once(tmp_path):
    tables = mixed_tables(Adagrad())
    folder = saved_by(tmp_path, 4, "replicated", tables, random_whole(tables))
    alone = saved_by(tmp_path / "alone", 1, "replicated", tables, random_whole(tables))
    size, of_one = (
        sum(path.stat().st_size for path in run.rglob("*.records")) for run in (folder, alone)
    )
    assert size == of_one


@pytest.mark.parametrize("num_readers", [1, 2, 3])
def test_a_cache_reads_what_ranks_in_memory_wrote(tmp_path, num_readers):
    tables = mixed_tables(LazyAdam())
    rows = random_whole(tables)
    folder = saved_by(tmp_path, 3, "mixed", tables, rows)
    caching = Caching(fast_memory=3000)
    assert_same_rows(whole_rows(loaded_by(folder, num_readers, "rows", tables, caching=caching)), rows)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("num_readers", [1, 2, 3])
def test_a_table_may_grow_on_other_ranks(tmp_path, num_readers, name):
    tables = mixed_tables(Adagrad())
    rows = random_whole(tables)
    folder = saved_by(tmp_path, 2, name, tables, rows)
    grown = [dataclasses.replace(table, rows=table.rows + 5) for table in tables]
    loaded = whole_rows(loaded_by(folder, num_readers, name, grown))
    new = whole_rows([Embedding(grown, seed=5)])
    for table in tables:
        for values, old, fresh in zip(loaded[table.name], rows[table.name], new[table.name], strict=True):
            assert torch.equal(values[: table.rows], old)
            assert torch.equal(values[table.rows :], fresh[table.rows :])


def test_training_goes_on_elsewhere_as_if_it_had_not_moved(tmp_path):
    tables, batches = mixed_tables(Adagrad(lr=0.05)), batches_of("single", 4)
    alone = Embedding(tables, seed=3)
    train(alone, batches[:2])
    checkpoint.save(tmp_path, alone, dense(), state(), "f")
    train(alone, batches[2:])

    def work(ranks):
        embedding = Embedding(tables, ranks=ranks, sharding="rows")
        checkpoint.load(tmp_path / "checkpoints" / "step-7", embedding, dense(), "f")
        train(embedding, batches[2:])
        return embedding

    sharded, expected = whole_rows(run(work, 3)), whole_rows([alone])
    for name, parts in expected.items():
        for values, wanted in zip(sharded[name], parts, strict=True):
            torch.testing.assert_close(values, wanted, rtol=3e-5, atol=3e-6)


# ---- what goes wrong


def full_on(name, real=files.write_file):
    """A disk that is full where the path has `name` in it."""

    def write_file(path, parts):
        if name in str(path):
            path.write_bytes(b"half")
            raise OSError(28, "No space left on device")
        return real(path, parts)

    return write_file


@pytest.mark.parametrize(
    "where", ["rank-0/pack-1", "rank-2/pack-1", "shared", "model.safe", "manifest.json"]
)
def test_a_disk_full_on_one_rank_stops_all_and_leaves_no_half_checkpoint(tmp_path, monkeypatch, where):
    tables = mixed_tables(Adagrad())
    rows = random_whole(tables)
    before = saved_by(tmp_path, 3, "mixed", tables, rows)
    monkeypatch.setattr(files, "write_file", full_on(where))

    def work(ranks):
        embedding = Embedding(tables, ranks=ranks, sharding=placements("mixed", 3))
        with pytest.raises(OSError) as raised:
            checkpoint.save(tmp_path, embedding, dense(), state(8), "f")
        return str(raised.value)

    said = run(work, 3)
    for one in said:
        assert "could not write checkpoint" in one and "step-8" in one
        assert "No space left on device; earlier checkpoints are whole; make room" in one
    assert [path.name for path in before.parent.iterdir()] == [before.name]
    monkeypatch.undo()
    assert_same_rows(whole_rows(loaded_by(before, 2, "rows", tables)), rows)


def test_a_write_that_the_system_refuses_stops_all_ranks(tmp_path):
    """The limit on the size of files is one that the system itself enforces."""
    resource = pytest.importorskip("resource", reason="limits on files are of POSIX")
    tables = [Table("big", 5000, 16, ("big",)), Table("small", 10, 16, ("small",))]
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    def work(ranks):
        embedding = Embedding(tables, ranks=ranks, sharding="tables")
        with pytest.raises(OSError, match=r"step-7: .*File too large; earlier checkpoints are"):
            checkpoint.save(tmp_path, embedding, dense(), state(), "f")

    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
        run(work, 2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list((tmp_path / "checkpoints").iterdir()) == []
    assert saved_by(tmp_path, 1, "rows", mixed_tables(SGD()), random_whole(mixed_tables(SGD())))


@pytest.fixture
def small_disk(tmp_path):
    """A folder on a disk of 400 KiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", str(folder)]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("a small disk cannot be mounted here: that takes the rights of root")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_disk_that_fills_up_leaves_the_earlier_checkpoint_and_room_as_before(small_disk):
    tables = [Table(name, 1000, 16, (name,), optimizer=Adagrad()) for name in ("a", "b")]
    rows = random_whole(tables)
    before = saved_by(small_disk, 2, "rows", tables, rows)
    free = shutil.disk_usage(small_disk).free

    def work(ranks):
        embedding = Embedding(tables, ranks=ranks, sharding="rows")
        with pytest.raises(OSError, match=r"step-8: .*No space left on device; earlier checkpoin"):
            checkpoint.save(small_disk, embedding, dense(), state(8), "f")

    run(work, 2)
    assert [path.name for path in before.parent.iterdir()] == [before.name]
    assert shutil.disk_usage(small_disk).free == free
    assert_same_rows(whole_rows(loaded_by(before, 3, "columns", tables)), rows)


def test_a_rank_may_take_longer_than_a_collective_waits(monkeypatch):
    monkeypatch.setattr(in_process, "_PATIENCE", 0.5)
    monkeypatch.setattr("hotrows.engine.distributed.all_or_none._POLL", 0.1)
    took = run(lambda ranks: gathered(ranks, lambda: time.sleep(1.2 * ranks.rank)), 2)
    assert took == [[None, None]] * 2


@pytest.mark.parametrize("num_readers", [1, 2, 3])
@pytest.mark.parametrize("name", ["rows", "mixed"])
@pytest.mark.parametrize("damage", ["flipped", "truncated", "missing", "manifest"])
def test_damage_to_one_ranks_file_is_seen_by_all(tmp_path, damage, name, num_readers):
    tables = mixed_tables(Adagrad())
    folder = saved_by(tmp_path, 3, name, tables, random_whole(tables))
    path = folder / "rank-1" / "pack-1.records"
    content = bytearray(path.read_bytes())
    if damage == "flipped":
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    elif damage == "truncated":
        path.write_bytes(content[:-1])
    elif damage == "missing":
        path.unlink()
    else:
        content = json.loads((folder / "manifest.json").read_text())
        del content["crc32"], content["format"]
        content["pieces"] = content["pieces"][:-1]
        (folder / "manifest.json").write_text(json.dumps(manifest.FILE.sign(content)))
    said = {
        "flipped": r"rank-1/pack-1.records is damaged: its checksum is wrong; restore it",
        "truncated": r"rank-1/pack-1.records is damaged: it has .* bytes instead of",
        "missing": r"rank-1/pack-1.records is damaged: the file is missing",
        "manifest": r"manifest.json is damaged: its pieces (of table .* weights|are .* bytes)",
    }[damage]

    def work(ranks):
        embedding = Embedding(tables, ranks=ranks, sharding=placements("rows", num_readers))
        with pytest.raises(ValueError, match=said):
            checkpoint.load(folder, embedding, dense(), "f")

    run(work, num_readers)


# ---- file stores


def in_file(path):
    return Caching(fast_memory=3000, store=f"file:{path}")


def trained_in_files(path, num_ranks, name, tables, batches):
    """Ranks with file stores train, save a checkpoint and train on; the rows at the checkpoint."""

    def work(ranks):
        sharding = placements(name, num_ranks)
        options = {"seed": 3, "ranks": ranks, "sharding": sharding}
        embedding = Embedding(tables, caching=in_file(path / "store"), **options)
        plain = Embedding(tables, **{**options, "ranks": ranks.channel("plain")})
        for one in (embedding, plain):
            train(one, batches[:2])
        name_of = checkpoint.save(path, embedding, dense(), state(), "f")
        embedding.cached_tables.retain(
            [checkpoint.generations(path / "checkpoints" / name_of, ranks.rank, num_ranks)]
        )
        train(embedding, batches[2:])
        embedding.close()
        return plain

    return whole_rows(run(work, num_ranks))


def in_memory(embedding):
    """A plain embedding with the rows that one with file stores has now."""
    plain = Embedding(
        embedding.tables, seed=9, ranks=embedding.ranks,
        sharding={t.name: p for pack in embedding.packs
                  for t, p in zip(pack.tables, pack.placements, strict=False)},
    )  # fmt: skip
    for g, group in enumerate(embedding.groups):
        if not group.rows:
            continue
        records = embedding.cached_tables.groups[g].cache.read(torch.arange(group.rows))
        for p, of_pack in zip(group.packs, records.split(list(group.strides), 1), strict=True):
            plain.stores[p].records.copy_(of_pack)
    return plain


@pytest.mark.few(6)
@pytest.mark.parametrize("read_only", [False, True])
@pytest.mark.parametrize("num_readers", [1, 2, 3])
@pytest.mark.parametrize("num_writers", [1, 2, 3])
def test_file_stores_are_read_by_any_number_of_ranks(tmp_path, num_writers, num_readers, read_only):
    tables, batches = mixed_tables(LazyAdam(lr=0.01)), batches_of("single", 4)
    name = {1: "rows", 2: "tables", 3: "mixed"}[num_writers]
    rows = trained_in_files(tmp_path, num_writers, name, tables, batches)
    folder = tmp_path / "checkpoints" / "step-7"

    def work(ranks):
        sharding = placements(name, num_readers)
        embedding = Embedding(
            tables, seed=3, ranks=ranks, sharding=sharding, caching=in_file(tmp_path / "store"),
            read_only=read_only,
        )  # fmt: skip
        checkpoint.load(folder, embedding, dense(), "f", read_only=read_only)
        plain = in_memory(embedding)
        embedding.close()
        return plain

    for _ in range(1 if read_only else 2):  # what was read once can be read again
        assert_same_rows(whole_rows(run(work, num_readers)), rows)


def test_file_stores_take_what_ranks_in_memory_wrote(tmp_path):
    tables = mixed_tables(LazyAdam(lr=0.01))
    rows = random_whole(tables)
    folder = saved_by(tmp_path, 3, "mixed", tables, rows)

    def work(ranks):
        caching = in_file(tmp_path / "store")
        embedding = Embedding(tables, ranks=ranks, sharding="rows", caching=caching)
        checkpoint.load(folder, embedding, dense(), "f")
        plain = in_memory(embedding)
        embedding.close()
        return plain

    assert_same_rows(whole_rows(run(work, 2)), rows)


def test_rows_in_a_file_store_are_not_read_into_memory(tmp_path):
    tables = mixed_tables(SGD(lr=0.1))
    trained_in_files(tmp_path, 2, "rows", tables, batches_of("single", 2))
    with pytest.raises(ValueError, match="has its rows in a file store; load it with the store"):
        loaded_by(tmp_path / "checkpoints" / "step-7", 1, "rows", tables)


# ---- ids in common

ranges = st.builds(
    lambda first, step, num: range(first, first + step * num, step),
    st.integers(0, 60), st.integers(1, 12), st.integers(0, 40),
)  # fmt: skip


@settings(max_examples=examples(300), deadline=None)
@given(ranges, ranges)
def test_ids_in_common_are_those_in_both(a, b):
    assert list(common_range(a, b)) == sorted(set(a) & set(b))


@settings(max_examples=examples(300), deadline=None)
@given(ranges, ranges, st.booleans(), st.booleans())
def test_places_name_the_ids_in_common(a, b, list_a, list_b):
    import numpy as np

    both = sorted(set(a) & set(b))
    as_array = [np.array(ids, dtype=np.int64) for ids in (a, b)]
    given_a, given_b = as_array[0] if list_a else a, as_array[1] if list_b else b
    places = common(given_a, given_b)
    if not both:
        assert places is None
    else:
        assert as_array[0][places[0]].tolist() == both
        assert as_array[1][places[1]].tolist() == both


@st.composite
def dealt(draw, rows):
    """A number of ranks, and where each table is among them."""
    num_ranks = draw(st.integers(2, 5))
    sharding = {}
    for name, num in rows.items():
        hot, sharing = draw(st.integers(0, num)), draw(st.integers(1, num_ranks))
        placement = Placement(hot, sharing, draw(st.integers(0, num_ranks - 1)))
        if scattered := sorted(draw(st.sets(st.integers(0, num - 1)))):
            placement = placement.with_hot(torch.tensor(scattered), num)
        sharding[name] = BY_COLUMNS if name != "c" and draw(st.booleans()) else placement
    return num_ranks, sharding


ROWS = {"a": 11, "b": 5, "c": 3}


@settings(max_examples=examples(60, 8), deadline=None)
@given(dealt(ROWS), dealt(ROWS))
def test_any_way_to_deal_rows_is_read_in_any_other(before, after):
    dims = {"a": 7, "b": 5, "c": 1}
    tables = [
        Table(name, rows, dims[name], (name,), optimizer=LazyAdam(per_row_step=True))
        for name, rows in ROWS.items()
    ]
    rows = random_whole(tables)

    def write(ranks):
        embedding = Embedding(tables, ranks=ranks, sharding=before[1])
        scatter(rows, embedding)
        checkpoint.save(path, embedding, nn.Linear(1, 1), state())

    def read(ranks):
        embedding = Embedding(tables, ranks=ranks, sharding=after[1])
        checkpoint.load(path / "checkpoints" / "step-7", embedding, nn.Linear(1, 1))
        return embedding

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        run(write, before[0])
        assert_same_rows(whole_rows(run(read, after[0])), rows)


def test_a_constant_table_of_one_column_survives_columns(tmp_path):
    tables = [Table("bias", 5, 1, ("bias",), "linear", Constant(), optimizer=Adagrad())]
    rows = random_whole(tables)
    folder = saved_by(tmp_path, 2, "columns", tables, rows)
    assert_same_rows(whole_rows(loaded_by(folder, 1, "rows", tables)), rows)


def test_file_stores_move_to_other_ranks_and_back_while_an_old_checkpoint_stays(tmp_path, monkeypatch):
    """With logs so short that they are closed and merged while rows move."""
    tables, batches = mixed_tables(LazyAdam(lr=0.01)), batches_of("single", 8)
    rows = trained_in_files(tmp_path, 2, "rows", tables, batches[:4])
    monkeypatch.setattr("hotrows.engine.storage.file_store._log_rows", lambda form, log_rows: 20)
    monkeypatch.setattr(files, "CHUNK", 100)

    def moved(step, read_only=False, goes_on=()):
        """The rows of a checkpoint as so many ranks read them; after training, one of its own."""

        def work(ranks):
            embedding = Embedding(
                tables, seed=3, ranks=ranks, sharding="rows",
                caching=in_file(tmp_path / "store"), read_only=read_only,
            )  # fmt: skip
            folder = tmp_path / "checkpoints" / f"step-{step}"
            checkpoint.load(folder, embedding, dense(), "f", read_only=read_only)
            before = in_memory(embedding)
            after = before
            if goes_on:
                train(embedding, goes_on)
                after = in_memory(embedding)
                checkpoint.save(tmp_path, embedding, dense(), state(step + 1), "f")
                if ranks.rank == 0:
                    pointer = checkpoint.Pointer(f"step-{step + 1}", "step-7")
                    checkpoint.point(tmp_path, pointer)
                ranks.barrier()
                embedding.cached_tables.retain(checkpoint.retained(tmp_path, ranks.rank, ranks.num_ranks))
            embedding.close()
            return before, after

        return work

    for step, num_ranks in ((7, 3), (8, 2), (9, 1), (10, 3)):
        results = run(moved(step, goes_on=batches[step - 4 : step - 3]), num_ranks)
        assert_same_rows(whole_rows([before for before, _ in results]), rows)
        rows = whole_rows([after for _, after in results])
        if step == 7:
            first = whole_rows([before for before, _ in results])
    for num_ranks in (1, 2, 3):  # the best one is of the two ranks that began
        results = run(moved(7, read_only=True), num_ranks)
        assert_same_rows(whole_rows([before for before, _ in results]), first)
