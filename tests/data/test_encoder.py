"""Encoder: raw rows for prediction get the ids that the training rows got."""

import json

import pytest
import torch

from hotrows.data import EncodedData, Encoder, Loader, prepare
from hotrows.schema import Dense, Schema, Sequence, Sparse
from tests.data.raw import SCHEMA, read, write
from tests.reference.rows_of_data import use_plain_python

ROWS = [("1", "3", "ann", "x"), ("0", "", "bob", ""), ("1", "5", "ann", "long item name")] * 7
HEADED = Schema(
    features=(Dense("price", transform="standard"), Sparse("user", num_unknown=4)), delimiter=","
)


@pytest.fixture(params=["native", "plain"], autouse=True)
def both(request, monkeypatch):
    if request.param == "plain":
        use_plain_python(monkeypatch)


@pytest.fixture
def folder(tmp_path):
    prepare([write(tmp_path / "raw", ROWS)], SCHEMA, tmp_path / "enc", split="fraction:1,0,0")
    return tmp_path / "enc"


def test_the_training_rows_are_encoded_alike(tmp_path, folder):
    ids, dense, labels = read(EncodedData.open(folder))
    batches = list(Encoder.open(folder).encode(tmp_path / "raw", batch_size=4))
    assert [batch.size for batch in batches] == [4] * 5 + [1]
    assert [batch.first_sample for batch in batches] == [0, 4, 8, 12, 16, 20]
    assert torch.cat([b.ids.view(2, -1) for b in batches], 1).tolist() == ids.tolist()
    assert torch.cat([b.dense for b in batches]).tolist() == dense.tolist()
    assert torch.cat([b.labels for b in batches]).tolist() == labels.tolist()


def test_the_label_may_be_absent_and_values_unknown(tmp_path, folder):
    raw = write(tmp_path / "test", [("3", "ann", "new"), ("", "new too", "x")])
    (batch,) = Encoder.open(folder).encode(raw)
    assert batch.labels is None
    assert batch.ids.view(2, -1).tolist() == [[3, 2], [2, 4]]


def test_a_label_that_is_empty_is_to_be_left_out_with_its_column(tmp_path, folder):
    """It said to leave out the rows, which are to be predicted."""
    raw = write(tmp_path / "test", [("", "3", "ann", "new")])
    with pytest.raises(ValueError, match="leave out the column 'label' to predict rows without labels"):
        next(Encoder.open(folder).encode(raw))


def test_columns_are_found_by_name(tmp_path):
    raw = write(tmp_path / "raw", [("label", "price", "user"), (0, 1, "a"), (1, 3, "b")], ",")
    prepare([raw], HEADED, tmp_path / "enc", split="fraction:1,0,0")
    raw = write(tmp_path / "test", [("user", "more", "price"), ("b", "?", "4"), ("c", "", "")], ",")
    (batch,) = Encoder.open(tmp_path / "enc").encode(raw)
    assert batch.ids[0] == 7
    assert 2 <= batch.ids[1] < 6
    assert batch.dense.tolist() == [[2], [0]]


def test_a_column_that_is_absent_counts_as_missing(tmp_path, caplog):
    raw = write(tmp_path / "raw", [("label", "price", "user"), (0, 1, "a"), (1, 3, "b")], ",")
    prepare([raw], HEADED, tmp_path / "enc", split="fraction:1,0,0")
    raw = write(tmp_path / "test", [("more", "price"), ("?", "4")], ",")
    (batch,) = Encoder.open(tmp_path / "enc").encode(raw)
    assert (batch.ids.tolist(), batch.dense.tolist()) == ([1], [[2]])
    assert "lacks the columns ['user']: their values count as missing" in caplog.text
    raw = write(tmp_path / "test", [("more",), ("?",)], ",")
    with pytest.raises(ValueError, match=r"the header lacks the columns"):
        next(Encoder.open(tmp_path / "enc").encode(raw))


def test_an_encoder_needs_no_shards(tmp_path, folder):
    (before,) = Encoder.open(folder).encode(tmp_path / "raw")
    for shard in folder.glob("*.shard"):
        shard.unlink()
    (after,) = Encoder.open(folder).encode(tmp_path / "raw")
    assert torch.equal(before.ids, after.ids)


def test_a_bad_line_is_named(tmp_path, folder):
    raw = write(tmp_path / "test", [("3", "ann", "x"), ("3", "ann")])
    with pytest.raises(ValueError, match="test line 2, expected 3 columns"):
        list(Encoder.open(folder).encode(raw))


@pytest.mark.parametrize("value", [3, "3", [3]])
def test_a_single_value_in_place_of_a_list_is_a_list_of_one(tmp_path, value):
    """In rows that train, and in rows to predict."""
    schema = Schema((Sequence("past"),), label="y", delimiter=",")
    (tmp_path / "rows.jsonl").write_text(json.dumps({"y": 1, "past": value}) + "\n")
    data = prepare([tmp_path / "rows.jsonl"], schema, tmp_path / "enc", split="position:1,0,0")
    (trained,) = Loader(data.parts["train"], 8).batches(0)
    (encoded,) = Encoder.open(data.path).encode({"past": [value]})
    assert encoded.ids.tolist() == trained.ids.tolist() == [3]
    assert encoded.offsets.tolist() == trained.offsets.tolist() == [0, 1]
