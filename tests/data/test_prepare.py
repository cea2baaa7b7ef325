"""prepare: what stands in the shards afterwards, for any rows, threads, chunks and split."""

import gzip
import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hotrows.data import EncodedData, prepare
from hotrows.data.raw import chunks
from hotrows.schema import Dense, Schema, Sparse, Time
from tests.data.raw import SCHEMA, files_of, read, write
from tests.reference.rows_of_data import plain_canonical, use_plain_python
from tests.support.choice import examples

ALL_TRAIN = "fraction:1,0,0"


def test_a_small_file_becomes_ids_by_falling_frequency(tmp_path):
    rows = [("1", "0", "ann", "x"), ("0", "", "bob", ""), ("1", "-2", "ann", "x"), ("0", "7", "", "a")]
    data = prepare([write(tmp_path / "raw", rows)], SCHEMA, tmp_path / "out", split=ALL_TRAIN)
    ids, dense, labels = read(data)
    # 0 padding, 1 missing, 2 unknown, then ann 3, bob 4; x 3, a 4
    assert ids.tolist() == [[3, 4, 3, 1], [3, 1, 3, 4]]
    assert dense[:, 0].tolist() == [0, 0, 0, np.float32(math.log1p(7))]
    assert labels.tolist() == [1, 0, 1, 0]
    assert data.schema.rows_of("user") == 5
    train = data.parts["train"]
    assert (train.rows, train.clicks) == (4, (2,))
    assert train.missing == {"price": 1, "user": 1, "item": 1}


def test_equal_counts_are_ranked_by_their_bytes(tmp_path):
    values = ["b", "a", "ab", "a\0", "longer than eight", "longer than eighs"]
    rows = [("0", "", value, "") for value in values]
    data = prepare([write(tmp_path / "raw", rows)], SCHEMA, tmp_path / "out", split=ALL_TRAIN)
    ids, _, _ = read(data)
    rank = {value: 3 + i for i, value in enumerate(sorted(values, key=str.encode))}
    assert ids[0].tolist() == [rank[value] for value in values]


def test_rare_values_share_the_unknown_ids(tmp_path):
    schema = Schema(features=(Sparse("user", min_count=2, num_unknown=3),), columns=("label", "user"))
    rows = [("0", value) for value in ["often", "often", *(f"rare{i}" for i in range(50))]]
    data = prepare([write(tmp_path / "raw", rows)], schema, tmp_path / "out", split=ALL_TRAIN)
    ids, _, _ = read(data)
    assert ids[0, :2].tolist() == [5, 5]
    assert set(ids[0, 2:].tolist()) == {2, 3, 4}
    assert data.parts["train"].unknown == {"user": 50}


def test_features_that_name_one_vocabulary_share_its_counts(tmp_path):
    schema = Schema(
        features=(Sparse("viewed", vocabulary="item"), Sparse("bought", vocabulary="item")),
        columns=("label", "viewed", "bought"),
    )
    rows = [("0", "x", "y"), ("0", "z", "y"), ("0", "x", "x")]
    data = prepare([write(tmp_path / "raw", rows)], schema, tmp_path / "out", split=ALL_TRAIN)
    assert read(data)[0].tolist() == [[3, 5, 3], [4, 4, 3]]  # x 3 times, y twice, z once
    assert data.schema.rows_of("viewed") == data.schema.rows_of("bought") == 6


def test_values_and_statistics_come_from_the_training_part_alone(tmp_path):
    schema = Schema(
        features=(Dense("price", transform="standard"), Sparse("user")),
        columns=("label", "price", "user"),
    )
    rows = [("0", "1", "old"), ("1", "3", "old"), ("0", "", "old"), ("1", "100", "new")]
    data = prepare(
        [write(tmp_path / "raw", rows)], schema, tmp_path / "out", split="position:0.75,0,0.25"
    )
    assert data.statistics["price"].mean == 2
    assert data.statistics["price"].deviation == 1
    assert read(data)[1][:, 0].tolist() == [-1, 1, 0]
    ids, dense, _ = read(data, "test")
    assert ids.tolist() == [[2]]
    assert dense.tolist() == [[98]]


@pytest.mark.filterwarnings("ignore:.* has numbers beyond 2.24:UserWarning")
def test_numbers_are_parsed_exactly(tmp_path):
    schema = Schema(features=(Dense("x", transform="none"),), columns=("label", "x"))
    written = ["16777217", "-3", "1e3", ".5", "2.", "+4", " 7 ", "1e-400", "123456789012345678901"]
    data = prepare(
        [write(tmp_path / "raw", [("0", x) for x in written])], schema, tmp_path / "out", split=ALL_TRAIN
    )
    assert read(data)[1][:, 0].tolist() == [np.float32(float(x)) for x in written]


def test_ids_are_bytes_whatever_they_are(tmp_path):
    values = [
        "\u00ff\U0001f600".encode(),
        b"a\0",
        b"a",
        b"\xc3\xa4",
        b"12345678",
        b"123456789",
        b"0",
        b" ",
    ]
    rows = [(b"0", b"", value, b"") for value in values]
    data = prepare([write(tmp_path / "raw", rows)], SCHEMA, tmp_path / "out", split=ALL_TRAIN)
    assert sorted(read(data)[0][0].tolist()) == list(range(3, 3 + len(values)))


def test_headers_quotes_and_line_ends(tmp_path):
    schema = Schema(features=(Sparse("user"), Dense("price")), delimiter=",", name="shop")
    one, two = tmp_path / "one.csv", tmp_path / "two.csv.gz"
    one.write_bytes(b'\xef\xbb\xbfprice,"user",label,more\r\n1,"a, ""b""",0,x\r\n,c,1,y\r\n\r\n')
    two.write_bytes(gzip.compress(b'label,user,price\n1,"c",2'))
    data = prepare([one, two], schema, tmp_path / "out", split=ALL_TRAIN)
    ids, dense, labels = read(data)
    assert ids.tolist() == [[4, 3, 3]]
    assert dense[:, 0].tolist() == [np.float32(math.log(2)), 0, np.float32(math.log(3))]
    assert labels.tolist() == [0, 1, 1]


def test_one_column_may_be_both_a_number_and_an_id(tmp_path):
    schema = Schema(features=(Dense("x"), Sparse("x as id", column="x")), columns=("label", "x"))
    data = prepare(
        [write(tmp_path / "raw", [("0", "1"), ("0", "1")])], schema, tmp_path / "o", split=ALL_TRAIN
    )
    ids, dense, _ = read(data)
    assert (ids.tolist(), dense[0, 0]) == ([[3, 3]], np.float32(math.log(2)))


@pytest.mark.parametrize("split", ["fraction:0.6,0.2,0.2", "position:0.6,0.2,0.2", "position:0.8"])
def test_threads_and_chunks_change_no_byte(tmp_path, monkeypatch, split):
    rng = np.random.default_rng(0)
    rows = [
        (x % 2, x, f"user{x**3 % 71}", f"a long item name {x**2 % 37}")
        for x in rng.integers(0, 1000, 3000).tolist()
    ]
    raw = write(tmp_path / "raw", rows)
    prepare([raw], SCHEMA, tmp_path / "one", split=split, threads=1)
    by_size = chunks._chunks
    monkeypatch.setattr(chunks, "_chunks", lambda path, size: by_size(path, 777))
    prepare([raw], SCHEMA, tmp_path / "many", split=split, threads=5)
    assert files_of(tmp_path / "one") == files_of(tmp_path / "many")


def test_progress_is_told_the_bytes_read(tmp_path):
    raw = write(tmp_path / "raw", [("0", "1", "a", "b")] * 10)
    calls = []
    prepare([raw], SCHEMA, tmp_path / "out", split="position:1,0,0", progress=lambda *x: calls.append(x))
    size = raw.stat().st_size
    merged = [("merge", v + 1, 2) for v in range(2)]
    of_passes = [("lines", size, size), ("count", size, size), *merged, ("encode", size, size)]
    assert calls == of_passes


def test_opening_gives_back_what_was_prepared(tmp_path):
    raw = write(tmp_path / "raw", [("0", "1", "a", "b"), ("1", "", "a", "c")])
    data = prepare([raw], SCHEMA, tmp_path / "out", split=ALL_TRAIN)
    assert EncodedData.open(tmp_path / "out") == data
    assert data.schema.columns == SCHEMA.columns
    assert [part.rows for part in data.parts.values()] == [2, 0, 0]
    data.check()


def test_the_fingerprint_tells_other_ids_apart(tmp_path):
    one = write(tmp_path / "one", [("0", "1", "a", "b")])
    two = write(tmp_path / "two", [("0", "1", "a", "c")])
    prints = [
        prepare([raw], SCHEMA, tmp_path / f"out{i}", split=ALL_TRAIN).fingerprint
        for i, raw in enumerate([one, one, two])
    ]
    assert prints[0] == prints[1] != prints[2]


VALUES = st.text(st.characters(exclude_characters="\t\n\r", codec="utf-8"), max_size=9).map(str.encode)
NUMBERS = st.one_of(st.just(""), st.integers(-100, 10**20).map(str), st.floats(-1e30, 1e30).map(repr))


@st.composite
def schemas_and_rows(draw):
    """Any mixture of dense and sparse columns, and rows for them."""
    num_dense, num_sparse = draw(st.integers(0, 2)), draw(st.integers(1, 3))
    transforms = st.sampled_from(["log", "standard", "none"])
    dense = [Dense(f"I{i}", transform=draw(transforms)) for i in range(num_dense)]
    min_count, num_unknown = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    vocabularies = draw(st.lists(st.sampled_from(["v", None]), min_size=3, max_size=3))
    sparse = [
        Sparse(f"C{i}", vocabulary=vocabularies[i], min_count=min_count, num_unknown=num_unknown)
        for i in range(num_sparse)
    ]
    columns = ("label", *(f.name for f in (*dense, *sparse)))
    fields = [st.sampled_from("01"), *[NUMBERS] * num_dense, *[VALUES] * num_sparse]
    rows = draw(st.lists(st.tuples(*fields), min_size=1, max_size=30))
    return Schema(features=(*dense, *sparse), columns=columns), rows


@pytest.mark.filterwarnings("ignore:.* has numbers beyond 2.24:UserWarning")
@settings(max_examples=examples(25), deadline=None)
@given(schemas_and_rows())
def test_native_equals_plain_python(tmp_path_factory, given_):
    schema, rows = given_
    folder = tmp_path_factory.mktemp("twins")
    raw = write(folder / "raw", rows)
    prepare([raw], schema, folder / "native", split="position:1,0,0", threads=2)
    with pytest.MonkeyPatch.context() as monkeypatch:
        use_plain_python(monkeypatch)
        prepare([raw], schema, folder / "plain", split="position:1,0,0")
    assert files_of(folder / "native") == files_of(folder / "plain")


@pytest.mark.filterwarnings("ignore:.* has numbers beyond 2.24:UserWarning")
@settings(max_examples=examples(25), deadline=None)
@given(schemas_and_rows())
def test_every_value_gets_the_id_of_its_rank(tmp_path_factory, given_):
    schema, rows = given_
    folder = tmp_path_factory.mktemp("ranks")
    data = prepare([write(folder / "raw", rows)], schema, folder / "out", split="position:1,0,0")
    ids, _, labels = read(data)
    assert labels.tolist() == [float(row[0]) for row in rows]
    columns = {
        f.name: [plain_canonical(row[i]) if isinstance(row[i], bytes) else row[i] for row in rows]
        for i, f in enumerate(schema.features, start=1)
    }
    counts: dict[str, Counter] = {}
    for feature in schema.sparse:
        counter = counts.setdefault(feature.vocabulary or feature.name, Counter())
        counter.update(value for value in columns[feature.name] if value)
    for feature, encoded_ids in zip(schema.sparse, ids, strict=True):
        counted = counts[feature.vocabulary or feature.name]
        kept = [v for v, n in counted.items() if n >= feature.min_count]
        ranked = sorted(kept, key=lambda v: (-counted[v], v))
        first = 2 + feature.num_unknown
        for value, number in zip(columns[feature.name], encoded_ids.tolist(), strict=True):
            if not value:
                assert number == 1
            elif value in ranked:
                assert number == first + ranked.index(value)
            else:
                assert 2 <= number < first


def test_shares_of_time_keep_rows_of_one_time_together(tmp_path):
    schema = Schema(features=(Sparse("u"),), columns=("label", "t", "u"), time=Time("t"))
    times = [5, 1, 1, 1, 1, 1, 1, 3, 3, 9]
    raw = write(tmp_path / "raw", [("0", t, "x") for t in times])
    data = prepare(raw, schema, tmp_path / "a", split="time:0.5,0.2,0.3")
    assert [part.rows for part in data.parts.values()] == [6, 2, 2]
    data = prepare(raw, schema, tmp_path / "b", split="time:0.9,0.1,0")
    assert [part.rows for part in data.parts.values()] == [9, 1, 0]
    data = prepare(raw, schema, tmp_path / "c", split="time:3,5")
    assert [part.rows for part in data.parts.values()] == [6, 2, 2]


def test_a_test_file_beside_a_split_is_the_whole_test_part(tmp_path):
    """A fifth of the training file was tested on, too, and no word said so."""
    columns = {"label": [0, 1] * 100, "user": list(range(200)), "price": [1.0] * 200, "item": ["a"] * 200}
    new = {name: values[:30] for name, values in columns.items()}
    data = prepare(columns, SCHEMA, tmp_path / "out", test=new, split="position:0.9")
    assert [data.parts[name].rows for name in ("train", "validation", "test")] == [180, 20, 30]
    with pytest.raises(ValueError, match="would move rows of the training files into the test part"):
        prepare(columns, SCHEMA, tmp_path / "other", test=new, split="position:0.8,0.1,0.1")
    assert not (tmp_path / "other").exists()
