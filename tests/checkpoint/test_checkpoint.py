"""A checkpoint gives back every byte, or says in one sentence what is wrong."""

import json
import shutil

import pytest
import torch
from torch import nn

from hotrows.batch import Batch
from hotrows.engine import checkpoint
from hotrows.engine.checkpoint import Pointer, State, files, manifest
from hotrows.engine.embedding import Embedding
from hotrows.ops.record import RecordLayout
from hotrows.optim import FTRL, SGD, Adagrad, LazyAdam
from hotrows.table import Constant, Table


def embedding(rows=50, optimizer=None, names=("A", "B"), seed=0, dim=4):
    tables = [Table(name, rows, dim, (name,)) for name in names]
    linear = Table("A.linear", rows, 1, ("A",), "linear", Constant(), optimizer=FTRL())
    return Embedding([*tables, linear], optimizer=optimizer or Adagrad(), seed=seed)


def trained(**options):
    """An embedding that differs from a new one, in weights and in state."""
    trained_rows = embedding(**options)
    ids = torch.randint(0, 50, (2 * 64,))
    plan = trained_rows.plan(Batch(("A", "B"), ids, torch.zeros(64, 0)))
    vectors = trained_rows.lookup(plan)
    sum(leaf.square().sum() + leaf.sum() for leaf in vectors.leaves).backward()
    trained_rows.update(plan, vectors)
    return trained_rows


def model():
    return nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))


def state(step=7):
    return State(step, {"step": step}, {"random_state": torch.arange(9)})


def saved(run, rows=None, dense=None, step=7, fingerprint="f"):
    run.mkdir(exist_ok=True)
    rows, dense = rows or trained(), dense or model()
    name = checkpoint.save(run, rows, dense, state(step), fingerprint)
    return run / "checkpoints" / name


def same_rows(a, b):
    return all(torch.equal(x.records, y.records) for x, y in zip(a.stores, b.stores, strict=True))


@pytest.fixture
def run(tmp_path):
    return tmp_path / "run"


@pytest.mark.parametrize("optimizer", [Adagrad(), SGD(), LazyAdam(per_row_step=True)])
def test_what_was_saved_comes_back_bit_for_bit(run, optimizer):
    rows, dense = trained(optimizer=optimizer), model()
    folder = saved(run, rows, dense)
    fresh, plain = embedding(optimizer=optimizer, seed=1), model()
    back = checkpoint.load(folder, fresh, plain, "f")
    assert same_rows(rows, fresh)
    assert all(torch.equal(v, plain.state_dict()[k]) for k, v in dense.state_dict().items())
    assert back.step == 7
    assert back.fields == {"step": 7}
    assert torch.equal(back.tensors["random_state"], torch.arange(9))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "int8", "int4"])
def test_rows_of_narrow_weights_come_back_too(run, dtype):
    tables = [Table("A", 9, 6, ("A",), dtype=dtype)]
    rows, fresh = Embedding(tables, seed=1), Embedding(tables, seed=2)
    run.mkdir()
    checkpoint.save(run, rows, model(), state())
    checkpoint.load(run / "checkpoints" / "step-7", fresh, model())
    assert same_rows(rows, fresh)


@pytest.mark.parametrize("saved", ["int8", "int4"])
@pytest.mark.parametrize("wanted", ["int8", "int4"])
def test_a_scale_that_is_not_finite_is_refused(run, saved, wanted):
    rows, fresh = (Embedding([Table("A", 9, 6, ("A",), dtype=dtype)]) for dtype in (saved, wanted))
    rows.stores[0].views.scale[4] = torch.nan
    run.mkdir()
    checkpoint.save(run, rows, model(), state())
    with pytest.raises(ValueError, match="'A': the scale of row 4 .* finite number, not nan.* earlier"):
        checkpoint.load(run / "checkpoints" / "step-7", fresh, model(), converts=True)


def test_a_table_may_have_grown_and_new_rows_keep_their_first_values(run):
    rows = trained(rows=50)
    folder = saved(run, rows)
    grown, new = embedding(rows=80), embedding(rows=80)
    checkpoint.load(folder, grown, model())
    for table in ("A", "B", "A.linear"):
        assert torch.equal(grown.weights(table)[:50], rows.weights(table))
        assert torch.equal(grown.weights(table)[50:], new.weights(table)[50:])


def test_tables_may_be_packed_otherwise_when_they_are_loaded(run):
    rows = trained()
    folder = saved(run, rows)
    turned = embedding(names=("B", "A"), seed=3)
    checkpoint.load(folder, turned, model())
    for table in ("A", "B"):
        assert torch.equal(turned.weights(table), rows.weights(table))


def test_the_manifest_names_every_table_by_range_and_every_file_by_checksum(run):
    manifest = json.loads((saved(run) / "manifest.json").read_text())
    tables = {table["name"]: table for table in manifest["tables"]}
    pieces = {piece["table"]: piece for piece in manifest["pieces"]}
    assert set(tables) == set(pieces) == {"A", "B", "A.linear"}
    stride = RecordLayout(**tables["B"]["layout"]).stride
    assert (pieces["B"]["first_id"], pieces["B"]["num_ids"]) == (0, 50)
    assert (pieces["B"]["file"], pieces["B"]["offset"]) == (pieces["A"]["file"], 50 * stride)
    assert all(file.keys() == {"bytes", "crc32"} for file in manifest["files"].values())


def test_nothing_aside_is_left(run):
    folder = saved(run)
    checkpoint.point(run, Pointer(folder.name, folder.name))
    assert not list(run.rglob("*.part"))


def test_the_pointer_keeps_last_and_best_and_deletes_the_others(run):
    names = [saved(run, step=step).name for step in (1, 2, 3)]
    checkpoint.point(run, Pointer(last=names[2], best=names[0]))
    assert sorted(p.name for p in (run / "checkpoints").iterdir()) == ["step-1", "step-3"]
    assert checkpoint.folder_of(run, "best").name == "step-1"
    assert checkpoint.folder_of(run, "last").name == "step-3"


def test_a_second_checkpoint_of_a_step_gets_a_name_of_its_own(run):
    assert [saved(run).name for _ in range(3)] == ["step-7", "step-7-2", "step-7-3"]


def test_a_full_disk_leaves_the_earlier_checkpoint_and_no_half_one(run, monkeypatch):
    before = saved(run)
    checkpoint.point(run, Pointer(before.name, before.name))

    def full(path, chunks):
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files, "write_file", full)
    with pytest.raises(OSError, match=r"step-8: No space left on device; earlier checkpoints"):
        saved(run, step=8)
    assert [p.name for p in (run / "checkpoints").iterdir()] == [before.name]


def test_a_folder_that_a_crash_left_aside_is_in_nobodys_way(run):
    (run / "checkpoints" / "step-7.part").mkdir(parents=True)
    folder = saved(run)
    checkpoint.point(run, Pointer(folder.name, folder.name))
    assert [p.name for p in (run / "checkpoints").iterdir()] == ["step-7"]


@pytest.mark.parametrize("file", ["pack-0.records", "model.safetensors", "trainer.safetensors"])
def test_a_flipped_bit_is_noticed(run, file):
    path = saved(run) / file
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match=rf"{file} is damaged: its checksum is wrong; restore"):
        checkpoint.load(path.parent, embedding(), model())


def test_a_truncated_file_is_noticed_before_anything_is_overwritten(run):
    path = saved(run) / "pack-0.records"
    path.write_bytes(path.read_bytes()[:-5])
    fresh = embedding()
    with pytest.raises(ValueError, match=r"is damaged: it has 3,195 bytes instead of 3,200"):
        checkpoint.load(path.parent, fresh, model())
    assert same_rows(fresh, embedding())


def test_a_missing_file_is_noticed(run):
    folder = saved(run)
    (folder / "pack-1.records").unlink()
    with pytest.raises(ValueError, match=r"pack-1.records is damaged: the file is missing"):
        checkpoint.load(folder, embedding(), model())


@pytest.mark.parametrize("text", ["", "{", "[]", "{}"])
def test_a_damaged_manifest_is_noticed(run, text):
    folder = saved(run)
    (folder / "manifest.json").write_text(text)
    with pytest.raises(
        ValueError, match=r"manifest.json (is damaged: exp|is damaged: Exp|has format version None)"
    ):
        checkpoint.load(folder, embedding(), model())


def changed(folder, change):
    """Changes the manifest of a checkpoint, and signs it anew."""
    content = json.loads((folder / "manifest.json").read_text())
    del content["crc32"], content["format"]
    change(content)
    (folder / "manifest.json").write_text(json.dumps(manifest.FILE.sign(content)))


def pieces_of(content, table):
    return [piece for piece in content["pieces"] if piece["table"] == table]


def halved(content, first_ids=(0, 25)):
    """The rows of table A in two pieces."""
    (whole,) = pieces_of(content, "A")
    stride = 4 * 4 * 2
    parts = [
        {**whole, "first_id": first, "num_ids": 25, "offset": whole["offset"] + k * 25 * stride}
        for k, first in enumerate(first_ids)
    ]
    content["pieces"] = [p for p in content["pieces"] if p["table"] != "A"] + parts


def test_a_table_may_be_in_any_pieces_that_cover_it_once(run):
    rows = trained()
    folder = saved(run, rows)
    changed(folder, halved)
    loaded = embedding()
    checkpoint.load(folder, loaded, model())
    assert same_rows(loaded, rows)


@pytest.mark.parametrize(
    "change, said",
    [
        (lambda c: halved(c, (0, 24)), "two of its pieces of table 'A' hold the same ids"),
        (lambda c: halved(c, (0, 26)), "a piece of table 'A' has other ids or col"),
        (lambda c: c["pieces"].remove(pieces_of(c, "A")[0]), "table 'B' does not fit into pack-0"),
        (lambda c: c["pieces"].append(pieces_of(c, "B")[0]), "table 'B' does not fit into pack-0"),
        (lambda c: pieces_of(c, "B")[0].update(offset=1632), "table 'B' does not fit into pack-0"),
        (lambda c: pieces_of(c, "B")[0].update(num_ids=49), "its pieces are 3,168 of the 3,200 bytes"),
        (lambda c: pieces_of(c, "B")[0].update(id_step=0), "range|a piece of table 'B' has other ids"),
        (lambda c: pieces_of(c, "B")[0].update(columns=[0, 5]), "a piece of table 'B' has other ids"),
        (lambda c: pieces_of(c, "B")[0].update(table="C"), "a piece of table 'C', which is none of its"),
        (lambda c: pieces_of(c, "B")[0].update(num_ids="50"), "num_ids of a saved piece must be of"),
        (lambda c: pieces_of(c, "B")[0].pop("num_ids"), "a saved piece lacks the fields \\['num_ids'\\]"),
        (lambda c: c["files"].pop("model.safetensors"), "it lacks the checksum of 'model.safetensors'"),
        (lambda c: c["tables"][0]["layout"].update(dtype="int2"), "rows or layout of table 'A' are imp"),
        (lambda c: c.update(base="../other"), "its base is named '../other'"),
    ],
)
def test_a_manifest_that_makes_no_sense_is_refused_before_anything_is_read(run, change, said):
    folder = saved(run)
    changed(folder, change)
    fresh = embedding()
    with pytest.raises(ValueError, match=rf"manifest.json is damaged: .*({said})"):
        checkpoint.load(folder, fresh, model())
    assert same_rows(fresh, embedding())


def test_a_damaged_pointer_is_noticed(run):
    run.mkdir()
    (run / "checkpoints.json").write_text("{}")
    with pytest.raises(
        ValueError, match=r"json is damaged: a pointer lacks the fields .*; write \{\"last\": NAME"
    ):
        checkpoint.folder_of(run)


def test_a_folder_without_a_manifest_is_no_checkpoint(tmp_path):
    with pytest.raises(ValueError, match="is no checkpoint: it has no manifest.json"):
        checkpoint.load(tmp_path, embedding(), model())


def test_a_run_without_a_checkpoint_says_so(tmp_path):
    with pytest.raises(ValueError, match="has no checkpoint yet"):
        checkpoint.folder_of(tmp_path)
    with pytest.raises(ValueError, match="'last' or 'best', not 'first'"):
        checkpoint.folder_of(tmp_path, "first")


def test_another_schema_is_refused(run):
    folder = saved(run)
    with pytest.raises(ValueError, match=r"data of another schema or encoding \(f, not g\)"):
        checkpoint.load(folder, embedding(), model(), "g")


@pytest.mark.parametrize(("number", "remedy"), [(2, "load it with the version"), (4, "upgrade hotrows")])
def test_another_format_is_refused(run, number, remedy):
    folder = saved(run)
    content = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps({**content, "format": number}))
    with pytest.raises(ValueError, match=f"format version {number}, this hotrows reads 3; {remedy}"):
        checkpoint.load(folder, embedding(), model())


def test_a_missing_table_is_named(run):
    folder = saved(run)
    with pytest.raises(ValueError, match="tables it lacks: C; tables the model lacks: none"):
        checkpoint.load(folder, embedding(names=("A", "B", "C")), model())
    with pytest.raises(ValueError, match="tables it lacks: none; tables the model lacks: B"):
        checkpoint.load(folder, embedding(names=("A",)), model())


def test_a_table_may_not_shrink(run):
    folder = saved(run)
    with pytest.raises(ValueError, match="'A' has 50 rows, the model's only 40"):
        checkpoint.load(folder, embedding(rows=40), model())


def test_records_of_another_layout_are_refused(run):
    folder = saved(run)
    with pytest.raises(ValueError, match=r"records of table 'A' are .* use the dim, dtype and row"):
        checkpoint.load(folder, embedding(optimizer=SGD()), model())


def test_another_dense_part_is_refused(run):
    folder = saved(run)
    other = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5))
    said = r"parameter '0.bias' has shape \(3,\), the model's \(5,\)"
    with pytest.raises(ValueError, match=said):
        checkpoint.load(folder, embedding(), other)


def test_loading_reads_into_the_rows_in_small_pieces(run, monkeypatch):
    rows = trained()
    folder = saved(run, rows)
    monkeypatch.setattr(files, "CHUNK", 7)
    fresh = embedding(seed=5)
    where = [store.records.data_ptr() for store in fresh.stores]
    checkpoint.load(folder, fresh, model())
    assert same_rows(rows, fresh)
    assert where == [store.records.data_ptr() for store in fresh.stores]
    shutil.rmtree(folder)
