"""Rows that are prepared come back: every value, list, number and label, from any source."""

import math

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hotrows.data import EncodedData, Loader, prepare
from hotrows.data.encode.vocabulary import open_values
from hotrows.schema import FIRST_UNKNOWN, MISSING, Dense, Schema, Sequence, Sparse, is_list, vocabulary_of
from tests.reference.rows_of_data import plain_canonical, use_plain_python
from tests.support.choice import examples

TEXT = st.one_of(
    st.text(max_size=8).filter(lambda text: not set(text) & set("\t\n\r|\0") and _encodable(text)),
    st.sampled_from(["", "ä", "same", "same but longer than eight"]),
)
WHOLE = st.one_of(st.integers(-(2**63), 2**63 - 1), st.sampled_from([0, -1, 2**63 - 1, 7]))
NUMBER = st.one_of(st.none(), st.floats(-1e30, 1e30), st.integers(-5, 5).map(float))
LENGTHS = st.one_of(st.integers(0, 4), st.just(40))


def lists_of(values):
    return LENGTHS.flatmap(lambda n: st.lists(values, min_size=n, max_size=n))


def _encodable(text: str) -> bool:
    try:
        return bool(text.encode()) or True
    except UnicodeEncodeError:
        return False


@st.composite
def tables(draw):
    """A schema, and columns of values that fit it: strings, whole numbers, lists of either."""
    num_rows = draw(st.integers(1, 25))
    labels = draw(st.lists(st.integers(0, 1), min_size=num_rows, max_size=num_rows))
    features, columns = [], {"label": labels}
    for i in range(draw(st.integers(0, 2))):
        features.append(Dense(f"x{i}", transform="none"))
        columns[f"x{i}"] = draw(st.lists(NUMBER, min_size=num_rows, max_size=num_rows))
    for i in range(draw(st.integers(1, 3))):
        name, values = f"c{i}", draw(st.sampled_from([TEXT, WHOLE]))
        kind = draw(st.sampled_from(["single", "many", "sequence"]))
        vocabulary = draw(st.sampled_from([None, "shared text" if values is TEXT else "shared whole"]))
        if kind == "single":
            features.append(Sparse(name, vocabulary=vocabulary))
            cells = st.one_of(st.none(), values)
        else:
            longest = draw(st.sampled_from([None, 3]))
            cells = st.one_of(st.none(), lists_of(values))
            features.append(
                Sequence(name, vocabulary=vocabulary, max_length=longest)
                if kind == "sequence"
                else Sparse(name, vocabulary=vocabulary, max_length=longest, many=True)
            )
        columns[name] = draw(st.lists(cells, min_size=num_rows, max_size=num_rows))
    return Schema(tuple(features)), columns


def as_table(schema: Schema, columns: dict) -> pa.Table:
    is_whole_number = {
        f.name: any(isinstance(v, int) for v in _flat(columns[f.name])) for f in schema.id_features
    }
    arrays = {"label": pa.array(columns["label"], pa.int8())}
    for feature in schema.features:
        kind = pa.float64()
        if not isinstance(feature, Dense):
            kind = pa.int64() if is_whole_number[feature.name] else pa.string()
            kind = pa.list_(kind) if is_list(feature) else kind
        arrays[feature.name] = pa.array(columns[feature.name], kind)
    return pa.table(arrays)


def _flat(values):
    for value in values:
        yield from value if isinstance(value, list) else [value]


def as_text(path, schema: Schema, columns: dict):
    def cell(value):
        if isinstance(value, list):
            return "|".join(map(cell, value))
        return "" if value is None else str(value)

    names = list(columns)
    lines = ["\t".join(names)]
    lines += ["\t".join(map(cell, row)) for row in zip(*columns.values(), strict=True)]
    path.write_bytes("\n".join(lines).encode() + b"\n")


def expected_of(schema: Schema, columns: dict) -> list[tuple]:
    rows = []
    for r, label in enumerate(columns["label"]):
        dense = [columns[f.name][r] or 0.0 for f in schema.dense]
        ids = []
        for feature in schema.id_features:
            value = columns[feature.name][r]
            values = (value or []) if is_list(feature) else [value]
            if is_list(feature) and feature.max_length:
                values = values[-feature.max_length :]
            ids.append([None if v is None else plain_canonical(str(v).encode()) or None for v in values])
        rows.append((label, np.float32(dense).tolist(), ids))
    return rows


def read_back(data: EncodedData) -> list[tuple]:
    """All rows of all parts, ids turned into values again."""
    values = {
        name: open_values(data.path / vocabulary.file) for name, vocabulary in data.vocabularies.items()
    }
    rows = []
    for part in data.parts.values():
        for batch in Loader(part, 7, shuffle=False).batches(0):
            size = batch.size
            for b in range(size):
                ids = []
                for f, feature in enumerate(data.schema.id_features):
                    place = f * size + b
                    first, end = (
                        (place, place + 1)
                        if batch.offsets is None
                        else batch.offsets[place : place + 2].tolist()
                    )
                    known, reserved = (
                        values[vocabulary_of(feature)],
                        FIRST_UNKNOWN + feature.num_unknown,
                    )
                    ids.append([None if i == MISSING else known.value(i - reserved)
                                for i in batch.ids[first:end].tolist()])  # fmt: skip
                rows.append((int(batch.labels[b]), batch.dense[b].tolist(), ids))
    return rows


@pytest.mark.filterwarnings("ignore:.* has numbers beyond 2.24:UserWarning")
@settings(max_examples=examples(60, 8), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(tables(), st.sampled_from(["native", "plain"]))
def test_what_is_prepared_comes_back(tmp_path_factory, given_, core):
    schema, columns = given_
    folder = tmp_path_factory.mktemp("trip")
    table = as_table(schema, columns)
    pq.write_table(table, folder / "rows.parquet", row_group_size=5)
    expected = expected_of(schema, columns)
    with pytest.MonkeyPatch.context() as monkeypatch:
        if core == "plain":
            use_plain_python(monkeypatch)
        sources = {"parquet": folder / "rows.parquet", "table": table}
        if _is_text(schema, columns):
            as_text(folder / "rows.tsv", schema, columns)
            sources["text"] = folder / "rows.tsv"
        for name, source in sources.items():
            data = prepare(source, schema, folder / name, split="position:1,0,0")
            data.check()
            assert read_back(data) == expected, name
    prints = {EncodedData.open(folder / name).fingerprint for name in sources}
    assert len(prints) == 1


def _is_text(schema: Schema, columns: dict) -> bool:
    """Whether a line of text can say all of it: a list of one missing value reads as an empty one."""
    lone = any(value in ([None], [""]) for f in schema.id_features for value in columns[f.name]
               if isinstance(value, list))  # fmt: skip
    huge = any(
        v is not None and not math.isfinite(np.float32(v)) for f in schema.dense for v in columns[f.name]
    )
    return not lone and not huge


@pytest.mark.parametrize("num_parts", [1, 3])
def test_a_split_loses_no_row(tmp_path, num_parts):
    ids = [f"u{i}" for i in range(5000)]
    table = pa.table({"label": [i % 2 for i in range(5000)], "user": ids})
    split = {1: "position:1,0,0", 3: "stratified:0.5,0.25,0.25"}[num_parts]
    data = prepare(table, Schema((Sparse("user", num_unknown=3),)), tmp_path / "d", split=split)
    assert sum(part.rows for part in data.parts.values()) == 5000
    assert sum(part.clicks[0] for part in data.parts.values()) == 2500
    assert {name: part.rows > 0 for name, part in data.parts.items()} == dict(
        zip(data.parts, (True, num_parts == 3, num_parts == 3), strict=True)
    )
