"""Keys of dynamic features: what a raw value becomes, in prepared data and straight from Parquet."""

import dataclasses

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from hotrows import Dynamic
from hotrows.batch import samples
from hotrows.data import Encoder, Loader, open_parquet, prepare, write_encoded
from hotrows.data.columns.key import keys_of
from hotrows.data.raw.values import RawIds
from hotrows.schema import MISSING_KEY, Schema, Sequence, Sparse, Time
from tests.reference.vocabularies import plain_hash

MOST = 2**63 - 1
KEYS = Dynamic(capacity=100)
SCHEMA = Schema(
    features=(
        Sparse("item", dynamic=KEYS),
        Sparse("shop", rows=4),
        Sequence("history", vocabulary="item", dynamic=KEYS, max_length=2),
    )
)


def raw(words):
    lengths = np.array([len(word) for word in words], np.uint32)
    ends = lengths.cumsum(dtype=np.uint32)
    return RawIds(np.frombuffer(b"".join(words), np.uint8), ends - lengths, lengths)


def test_whole_numbers_are_themselves_and_other_text_is_hashed():
    numbers = [0, 7, -7, 42, MOST, -MOST, 10**17, -(10**17), 999_999_999_999_999_999, 10**18, MOST - 1]
    assert keys_of(raw([str(number).encode() for number in numbers])).tolist() == numbers
    texts = [b"007", b"-0", b"-", b"+1", b"1.5", b"1e5", b"ab", b"9223372036854775808", b"x" * 40, b" 1"]
    texts.append(b"-9223372036854775808")  # what a missing value becomes
    hashes = [np.uint64(plain_hash(text)).astype(np.int64) for text in texts]
    assert keys_of(raw(texts)).tolist() == hashes
    assert keys_of(raw([b"", b"a"]))[0] == MISSING_KEY
    assert len(keys_of(raw([]))) == 0


def rows():
    return {
        "label": [0, 1, 1, 0],
        "item": [5, -3, None, MOST],
        "shop": [1, 2, 3, 1],
        "history": [[1, 2, 3], [], [-3], None],
    }


def check(batch):
    items, history = batch.ids[:4], batch.ids[8:]
    assert items.tolist() == [5, -3, MISSING_KEY, MOST]
    assert history.tolist() == [2, 3, -3]
    assert batch.offsets[8:].tolist() == [8, 10, 10, 11, 11]


def test_prepared_batches_have_keys(tmp_path):
    schema = Schema(features=(SCHEMA.features[0], Sparse("shop"), SCHEMA.features[2]))
    data = prepare(rows(), schema, tmp_path / "enc", split="fraction:1,0,0")
    (batch,) = Loader(data.parts["train"], 4).batches(0)
    check(batch)
    part = data.parts["train"]
    assert part.missing["item"] == 1 and part.unknown["item"] == 0 and data.schema.rows_of("item") == 103
    written = write_encoded(tmp_path / "again", data.schema, {"train": [batch]})
    check(next(Loader(written.parts["train"], 4).batches(0)))


def test_parquet_needs_no_preparation(tmp_path):
    pa.parquet.write_table(pa.table(rows()), tmp_path / "rows.parquet")
    data = open_parquet(SCHEMA, tmp_path / "rows.parquet")
    check(next(Loader(data.parts["train"], 4).batches(0)))
    wrong = {**rows(), "item": ["a", "b", "c", "d"]}
    pa.parquet.write_table(pa.table(wrong), tmp_path / "wrong.parquet")
    with pytest.raises(ValueError, match="column 'item': expected a whole number from -92.* not string"):
        next(Loader(open_parquet(SCHEMA, tmp_path / "wrong.parquet").parts["train"], 4).batches(0))


TIMED = Schema(
    features=(Sparse("item", dynamic=Dynamic(evict="time:3600")), Sparse("shop", rows=4)), time=Time("at")
)


def test_event_times_come_with_samples(tmp_path):
    """From a prepared column, from batches, from Parquet: numbers and timestamps, one of them missing."""
    least = -(2**63)
    timed = {**rows(), "at": [100, None, 90, 4000]}
    del timed["history"]
    features = (TIMED.features[0], Sparse("shop"))
    schema = Schema(features=features, time=Time("at"))
    data = prepare(timed, schema, tmp_path / "enc", split="fraction:1,0,0")
    (batch,) = Loader(data.parts["train"], 4).batches(0)
    assert batch.times.tolist() == [100, least, 90, 4000]
    assert samples(batch, 2, 4).times.tolist() == [90, 4000]
    written = write_encoded(tmp_path / "again", data.schema, {"train": [batch]})
    assert next(Loader(written.parts["train"], 3).batches(0)).times.tolist() == [100, least, 90]
    encoder = Encoder.open(tmp_path / "enc")
    assert next(encoder.encode(timed)).times.tolist() == batch.times.tolist()
    del timed["at"]
    assert next(encoder.encode(timed)).times is None, "to predict no time is needed"
    for form, at in (
        ("unix", pa.array([100, None, 90, 4000])),
        ("unix", pa.array([100, None, 90, 4000], pa.timestamp("s")).cast(pa.timestamp("us"))),
        ("unix_ms", pa.array([100_000.5, None, 90_999.0, 4_000_000.0])),
    ):
        table = pa.table({**timed, "at": at})
        pa.parquet.write_table(table, tmp_path / "rows.parquet")
        opened = open_parquet(
            dataclasses.replace(TIMED, time=Time("at", form)), tmp_path / "rows.parquet"
        )
        assert next(Loader(opened.parts["train"], 4).batches(0)).times.tolist() == batch.times.tolist()
    for late in ([253_402_300_800] * 4, pa.array([253_402_300_800] * 4, pa.timestamp("s"))):
        pa.parquet.write_table(pa.table({**timed, "at": late}), tmp_path / "rows.parquet")
        opened = open_parquet(TIMED, tmp_path / "rows.parquet")
        with pytest.raises(ValueError, match=r"'at': expected a time unix \(.* 9999; .*, found '253402"):
            next(Loader(opened.parts["train"], 4).batches(0))
    pa.parquet.write_table(pa.table({**timed, "at": ["a"] * 4}), tmp_path / "rows.parquet")
    opened = open_parquet(dataclasses.replace(TIMED, time=Time("at", "iso")), tmp_path / "rows.parquet")
    with pytest.raises(ValueError, match="column 'at': expected a time iso .*, found 'a'"):
        next(Loader(opened.parts["train"], 4).batches(0))


def test_keys_that_expire_by_time_need_a_time():
    with pytest.raises(
        ValueError, match=r"features \['item'\] expire by the time .* time=Time\(COLUMN\)"
    ):
        dataclasses.replace(TIMED, time=None)


@pytest.mark.parametrize(
    "options, match",
    [
        ({"num_unknown": 0}, "needs num_unknown of at least 1"),
        ({"min_count": 3}, "admit='after:3'; leave out min_count=3"),
        ({"transform": "log"}, "leave out dynamic"),
    ],
)
def test_what_a_dynamic_feature_cannot_declare_is_said(options, match):
    with pytest.raises(ValueError, match=match):
        Sparse("item", dynamic=KEYS, **options)


def test_features_of_one_vocabulary_agree(tmp_path):
    features = (Sparse("item", dynamic=KEYS), Sparse("last", vocabulary="item"))
    with pytest.raises(ValueError, match="share vocabulary 'item' but differ in dynamic"):
        prepare({"label": [1], "item": [1], "last": [1]}, Schema(features=features), tmp_path / "enc")
