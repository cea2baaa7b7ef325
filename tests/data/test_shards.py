"""Files of prepared data: damage is noticed and named; encoded batches make the same files."""

import numpy as np
import pytest
import torch

from hotrows.batch import Batch
from hotrows.data import EncodedData, Encoder, Loader, describe, write_encoded
from hotrows.data.rows import width_of
from hotrows.data.stored.sections import open_sections, write_sections
from hotrows.schema import Dense, Schema, Sparse

ENCODED = Schema(
    features=(Dense("x"), Sparse("a", rows=10), Sparse("b", rows=300)), columns=None, name="encoded"
)


@pytest.fixture
def folder(tmp_path):
    write_encoded(tmp_path / "out", ENCODED, {"train": [batch([1, 9, 299, 3])]})
    return tmp_path / "out"


def batch(ids, labels=(0.0, 1.0), features=("a", "b")) -> Batch:
    dense, of_labels = torch.tensor([[1.0], [2.0]]), torch.tensor(labels)
    return Batch(features=features, ids=torch.tensor(ids), dense=dense, labels=of_labels)


def test_arrays_come_back_from_aligned_places(tmp_path):
    arrays = {"a": np.arange(5, dtype=np.uint8), "b": np.ones((3, 2), np.float32),
              "none": np.zeros((0, 4), np.int64)}  # fmt: skip
    write_sections(tmp_path / "file", {"kind": "test"}, arrays)
    sections = open_sections(tmp_path / "file")
    assert sections.header["kind"] == "test"
    for name, array in arrays.items():
        assert sections[name].dtype == array.dtype
        assert np.array_equal(sections[name], array)
        assert sections[name].ctypes.data % 64 == 0 or not sections[name].size
    sections.check()


@pytest.mark.parametrize("rows, dtype", [(256, "u1"), (257, "u2"), (65537, "u4"), (2**32 + 1, "i8")])
def test_ids_take_the_narrowest_integer(rows, dtype):
    assert width_of(rows) == np.dtype(dtype)


@pytest.mark.parametrize("left", [0, 5, 25, 300, -1])
def test_a_file_that_is_cut_off_is_refused(folder, left):
    shard = folder / "train-00000.shard"
    shard.write_bytes(shard.read_bytes()[:left])
    with pytest.raises(ValueError, match=r"train-00000\.shard.*cut off"):
        Loader(EncodedData.open(folder).parts["train"], 1, shuffle=False)


def test_other_files_and_versions_are_refused(folder):
    shard = folder / "train-00000.shard"
    content = shard.read_bytes()
    part = EncodedData.open(folder).parts["train"]
    shard.write_bytes(b"something else " * 100)
    with pytest.raises(ValueError, match="is no file of prepared data"):
        part.shard(0)
    shard.write_bytes(content[:8] + b"\x09" + content[9:])
    with pytest.raises(ValueError, match="format version 9, this hotrows reads 1"):
        part.shard(0)
    shard.write_bytes(content[:30] + b"?" + content[31:])
    with pytest.raises(ValueError, match="header is damaged"):
        part.shard(0)
    shard.unlink()
    with pytest.raises(ValueError, match="is missing"):
        part.shard(0)


def test_a_flipped_bit_is_found_by_check(folder):
    shard = folder / "train-00000.shard"
    damaged = bytearray(shard.read_bytes())
    damaged[-64] ^= 1
    shard.write_bytes(damaged)
    with pytest.raises(ValueError, match="section 'ids/b' is damaged"):
        EncodedData.open(folder).check()


def test_data_prepared_anew_in_the_same_place_is_read_anew(tmp_path, folder):
    assert len(EncodedData.open(folder).parts["train"].shard(0)) == 2
    for path in folder.iterdir():
        path.unlink()
    parts = {"train": [batch([1, 9, 299, 3])] * 2}
    assert len(write_encoded(folder, ENCODED, parts).parts["train"].shard(0)) == 4


def test_encoded_batches_come_back(tmp_path):
    parts = {"train": [batch([1, 9, 299, 3]), batch([9, 9, 0, 2])], "test": [batch([0, 1, 2, 3])]}
    data = write_encoded(tmp_path / "out", ENCODED, parts)
    (train,) = Loader(data.parts["train"], 9, shuffle=False).batches(0)
    assert train.ids.view(2, -1).tolist() == [[1, 9, 9, 9], [299, 3, 0, 2]]
    assert [part.rows for part in data.parts.values()] == [4, 0, 2]
    assert data.parts["train"].clicks == (2,)
    of_a = describe(data).vocabularies[0]
    assert (of_a.rows, of_a.lookups, of_a.top) == (10, 4, 0.75)
    with pytest.raises(ValueError, match="written from encoded batches"):
        Encoder.open(tmp_path / "out")


@pytest.mark.parametrize("wrong", [10, -1])
def test_an_id_out_of_range_is_named(tmp_path, wrong):
    batches = [batch([1, 2, 3, 4]), batch([1, wrong, 3, 4])]
    message = f"feature 'a': expected ids from 0 to 9, found {wrong} in row 3 of part 'train'"
    with pytest.raises(ValueError, match=message):
        write_encoded(tmp_path / "out", ENCODED, {"train": batches})
    assert list(tmp_path.iterdir()) == []


def test_batches_that_do_not_fit_the_schema_are_refused(tmp_path):
    def refused(match, schema=ENCODED, **parts):
        with pytest.raises(ValueError, match=match):
            write_encoded(tmp_path / "out", schema, parts)

    refused("expected the id features", train=[batch([1, 2, 3, 4], features=("b", "a"))])
    refused(
        "expected a label 0 or 1, found 0.5 in part 'train' row 1",
        train=[batch([1] * 4, labels=(0, 0.5))],
    )
    unsized = Schema(features=(Dense("x"), Sparse("a"), Sparse("b")))
    refused("has no `rows` yet", unsized, train=[])
    refused("parts must be 'train'", training=[])
