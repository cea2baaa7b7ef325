"""Training straight from Parquet: every row once, or words that say what is wrong."""

import gc
import json
import threading

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hotrows.data import Loader
from hotrows.data.load.parquet import open_parquet, open_source
from hotrows.data.stored import order
from hotrows.schema import Dense, Label, Schema, Sequence, Sparse, Time
from tests.data.encoded_rows import MISSING_FIXED, batch_of, samples, write_rows
from tests.support.choice import examples

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

SCHEMA = Schema(
    features=(
        Dense("number", transform="none"),
        Dense("other", column="number", transform="missing"),
        Sparse("one", rows=256),
        Sparse("many", rows=70_000, many=True),
        Sequence("sequence", rows=1 << 40),
        Sparse("two", rows=(1 << 32) + 1),
    ),
    label=("click", "buy"),
    weight="w",
    group="g",
)
ANY = settings(
    deadline=None,
    max_examples=examples(10, 6),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


@pytest.fixture(autouse=True)
def small_pools(monkeypatch):
    monkeypatch.setattr(order.pools_of, "__defaults__", (0, 100))


@pytest.fixture(autouse=True)
def no_thread_stays():
    yield
    gc.collect()
    assert not [thread for thread in threading.enumerate() if thread.name == "hotrows-ahead"]


def table_of(batch, kinds=("uint8", "int32", "int64", "int64")):
    """The rows of a batch of SCHEMA as an Arrow table."""
    rows = samples(batch)
    ids = {name: [sample[0][f] for sample in rows] for f, name in enumerate(batch.features)}
    kinds = dict(zip(("one", "many", "sequence", "two"), kinds, strict=True))
    columns = {
        "number": pa.array([sample[1][0] for sample in rows], pa.float32()),
        "click": pa.array([sample[2][0] for sample in rows], pa.int8()),
        "buy": pa.array([None if s[2][1] is None else bool(s[2][1]) for s in rows], pa.bool_()),
        "w": pa.array([sample[3] for sample in rows], pa.float32()),
        "g": pa.array([sample[4] for sample in rows], pa.int64()),
    }
    for name in ("one", "two"):
        columns[name] = pa.array([one for (one,) in ids[name]], kinds[name])
    for name in ("many", "sequence"):
        values = [list(one) or None for one in ids[name]]
        columns[name] = pa.array(values, pa.list_(pa.type_for_alias(kinds[name])))
    return pa.table(columns)


def expected_of(batch):
    """The samples of a batch as they are read from Parquet: `other` is whether `number` is missing."""
    return [(ids, (dense[0], 0.0), *others) for ids, dense, *others in samples(batch)]


def read(part, batch_size=50, shuffle=False, first=0, **ranked):
    batches = Loader(part, batch_size, shuffle=shuffle, **ranked).batches(0, first)
    return [sample for batch in batches for sample in samples(batch)]


def write(path, **columns):
    pq.write_table(pa.table(columns), path)
    return path


@ANY
@given(
    sizes=st.lists(st.integers(0, 120), min_size=1, max_size=4),
    group_rows=st.integers(1, 130),
    batch_size=st.sampled_from([1, 7, 50, 500]),
    num_ranks=st.integers(1, 4),
    seed=st.integers(0, 99),
)
def test_every_row_comes_once_whatever_the_row_groups(
    tmp_path_factory, sizes, group_rows, batch_size, num_ranks, seed
):
    folder = tmp_path_factory.mktemp("any")
    expected = []
    for number, size in enumerate(sizes):
        batch = batch_of(SCHEMA, size, seed + number)
        pq.write_table(table_of(batch), folder / f"{number}.parquet", row_group_size=group_rows)
        expected += expected_of(batch)
    part = open_parquet(SCHEMA, folder).parts["train"]
    assert part.rows == len(expected)
    assert read(part, batch_size) == expected
    shuffled = read(part, batch_size, shuffle=True)
    assert sorted(map(repr, shuffled)) == sorted(map(repr, expected))
    for shuffle, expected_rows in ((False, expected), (True, shuffled)):
        ranks = [
            list(Loader(part, batch_size, shuffle=shuffle, rank=r, num_ranks=num_ranks).batches(0))
            for r in range(num_ranks)
        ]
        together = [s for shares in zip(*ranks, strict=True) for batch in shares for s in samples(batch)]
        assert together == expected_rows
        first = len(expected_rows) // batch_size // 2
        assert read(part, batch_size, shuffle, first) == expected_rows[first * batch_size :]


def test_the_rows_are_those_of_shards(tmp_path, monkeypatch):
    batch = batch_of(SCHEMA, 300)
    batch.dense[:, 1] = 0
    stored = write_rows(tmp_path / "enc", SCHEMA, batch, 90, monkeypatch).parts["train"]
    pq.write_table(table_of(batch), tmp_path / "rows.parquet", row_group_size=70)
    part = open_parquet(SCHEMA, tmp_path / "rows.parquet").parts["train"]
    assert read(part) == read(stored)
    stream = Loader(part, 64, shuffle=True).stream(epochs=2)
    for _ in range(7):
        next(stream)
    state = json.loads(json.dumps(stream.state_dict()))
    remaining = [samples(batch) for batch in stream]
    again = Loader(part, 64, shuffle=True).stream(epochs=2, position=state)
    assert [samples(batch) for batch in again] == remaining
    assert len(remaining) == 3


def test_row_groups_are_read_in_clusters(tmp_path):
    batch = batch_of(SCHEMA, 300)
    pq.write_table(table_of(batch), tmp_path / "rows.parquet", row_group_size=70)
    part = open_parquet(SCHEMA, tmp_path / "rows.parquet").parts["train"]

    def load(order, first=0):
        batches = Loader(part, 64, shuffle=True, order=order).batches(0, first)
        return [sample for batch in batches for sample in samples(batch)]

    reuse = load("reuse:4")
    assert load("shuffle") != reuse == [*reuse[:128], *load("reuse:4", 2)]
    assert sorted(map(repr, reuse)) == sorted(map(repr, expected_of(batch)))


@pytest.mark.parametrize(
    "kinds",
    [("int8", "uint16", "uint64", "uint64"), ("int64",) * 4, ("uint32", "int32", "int64", "int64")],
)
def test_whole_numbers_of_any_width_are_ids(tmp_path, kinds):
    batch = batch_of(SCHEMA, 60)
    batch.ids.clamp_(max=127)
    pq.write_table(table_of(batch, kinds), tmp_path / "rows.parquet")
    assert read(open_parquet(SCHEMA, tmp_path / "rows.parquet").parts["train"]) == expected_of(batch)


def test_dictionaries_of_whole_numbers_are_decoded(tmp_path):
    schema = Schema((Sparse("a", rows=10), Sparse("b", rows=10, many=True)))
    values = pa.DictionaryArray.from_arrays(pa.array([0, 1, 0]), pa.array([7, 9]))
    lists = pa.ListArray.from_arrays(pa.array([0, 2, 2, 3]), values)
    path = write(tmp_path / "rows.parquet", label=[0, 1, 0], a=values, b=lists)
    rows_read = read(open_parquet(schema, path).parts["train"])
    assert [ids for ids, *_ in rows_read] == [((7,), (7, 9)), ((9,), ()), ((7,), (7,))]


def test_long_lists_keep_their_last_ids(tmp_path):
    schema = Schema((Sequence("s", rows=10, max_length=2), Sparse("f", rows=9, many=True)))
    fixed = pa.array([[1, 2], [3, 4], None], pa.list_(pa.int32(), 2 if MISSING_FIXED else -1))
    lists = [[1, 2, 3], [], [4, 5]]
    path = write(tmp_path / "rows.parquet", label=[0, 1, 0], s=lists, f=fixed)
    for order_of in (False, True):
        rows_read = read(open_parquet(schema, path).parts["train"], shuffle=order_of)
        ids = sorted(ids for ids, *_ in rows_read)
        assert ids == [((), (4, 5)), ((1, 2), (2, 3)), ((3, 4), ())]  # sparse ones come first


def test_a_missing_list_of_a_fixed_size_is_none_or_the_way_out_is_named(tmp_path):
    """It was "damaged; write it again", which does not help."""
    schema = Schema((Sparse("f", rows=9, many=True),))
    fixed = pa.array([[1, 2], [3, 4], None], pa.list_(pa.int32(), 2))
    part = open_parquet(schema, write(tmp_path / "rows.parquet", label=[0, 1, 0], f=fixed)).parts["train"]
    if MISSING_FIXED:
        assert [ids for ids, *_ in read(part)] == [((1, 2),), ((3, 4),), ((),)]
    else:
        with pytest.raises(ValueError, match="rows.parquet is damaged .* upgrade pyarrow: 26 reads it"):
            read(part)


def test_labels_and_numbers_as_the_schema_says(tmp_path):
    schema = Schema(
        features=(
            Dense("x", transform="log"),
            Dense("n", column="x", transform="none"),
            Dense("gone", column="x", transform="missing"),
        ),
        label=(
            Label("liked", column="stars", at_least=4),
            Label("seen", column="what", positive=("view", "buy")),
        ),
    )
    x = pa.array([0, 3, None, -5], pa.int16())
    path = write(
        tmp_path / "rows.parquet", x=x, stars=[5.0, 3.5, None, 4.0], what=["buy", "no", None, "view"]
    )
    rows_read = read(open_parquet(schema, path).parts["train"])
    assert [labels for _, _, labels, *_ in rows_read] == [(1, 1), (0, 0), (None, None), (1, 1)]
    log = float(np.float32(np.log(4)))
    assert [dense for _, dense, *_ in rows_read] == [(0, 0, 0), (log, 3, 0), (0, 0, 1), (0, -5, 0)]


def test_labels_are_read_without_the_words_of_features(tmp_path):
    schema = Schema(
        (Dense("x"),), label="y", time=Time("t"), missing={"x": ("NA",), "t": ("NA",), "y": ("?",)}
    )
    path = write(tmp_path / "rows.parquet", x=["NA", "1"], y=[1, 0], t=[3, 4])
    assert open_parquet(schema, path).parts["train"].label_means() == (0.5,)


def test_groups_of_text_are_hashed(tmp_path):
    schema = Schema((Sparse("a", rows=9),), group="user")
    users = ["ann", "bob", "ann", None, "a longer name than eight bytes", "bob"]
    path = write(tmp_path / "rows.parquet", label=[0] * 6, a=[1] * 6, user=users)
    groups = [group for *_, group in read(open_parquet(schema, path).parts["train"])]
    assert len(set(groups)) == 4
    assert groups[0] == groups[2]
    assert groups[1] == groups[5]


def test_keys_in_paths_are_columns(tmp_path):
    schema = Schema((Sparse("day", rows=32), Sparse("a", rows=9), Dense("share", transform="none")))
    for day, share in ((3, 0.5), (4, 0.25)):
        folder = tmp_path / "data" / f"day={day}" / f"share={share}"
        folder.mkdir(parents=True)
        write(folder / "part.parquet", label=[0, 1], a=[1, 2])
    (tmp_path / "data" / "_SUCCESS").touch()
    rows_read = read(open_parquet(schema, tmp_path / "data").parts["train"])
    assert [ids for ids, *_ in rows_read] == [((3,), (1,)), ((3,), (2,)), ((4,), (1,)), ((4,), (2,))]
    assert [dense for _, dense, *_ in rows_read] == [(0.5,)] * 2 + [(0.25,)] * 2


def test_places_of_every_kind(tmp_path, monkeypatch):
    fsspec = pytest.importorskip("fsspec")
    schema = Schema((Sparse("a", rows=9),))
    for number in range(3):
        write(tmp_path / f"{number}.parquet", label=[0], a=[number])
        with fsspec.open(f"memory://clicks/day={number}/x.parquet", "wb") as file:
            file.write((tmp_path / f"{number}.parquet").read_bytes())

    def ids_of(*places):
        part = open_parquet(schema, *places).parts["train"]
        return sorted(ids[0][0] for ids, *_ in read(part, shuffle=True))

    assert ids_of(tmp_path) == ids_of(str(tmp_path / "*.parquet")) == [0, 1, 2]
    assert ids_of([tmp_path / "2.parquet", tmp_path / "0.parquet"]) == [0, 2]
    assert ids_of("memory://clicks") == ids_of("memory://clicks/day=*/*.parquet") == [0, 1, 2]
    monkeypatch.chdir(tmp_path)
    data = open_parquet(schema, "0.parquet", validation=["1.parquet"], test="2.parquet")
    source = json.loads(json.dumps(data.source))
    monkeypatch.chdir("/")
    again = open_source(source)
    assert {name: part.rows for name, part in again.parts.items()} == dict.fromkeys(data.parts, 1)
    assert again.fingerprint == data.fingerprint
    assert again.schema == schema


@pytest.mark.parametrize(
    "column, expected",
    [
        (
            pa.array([1, 9, 2]),
            r"row group 0, row 1 of it, column 'a': expected an id from 0 to 8, found 9; correct",
        ),
        (
            pa.array([1, 2, -1], pa.int8()),
            "row 2 of it, column 'a': expected an id from 0 to 8, found -1",
        ),
        (pa.array([1, 2, 1 << 63], pa.uint64()), "expected an id from 0 to 8, found 9223372036854775808"),
        (pa.array([1, None, 2]), "row 1 of it, column 'a': expected an id from 0 to 8, found nothing"),
        (
            pa.array([1.0, 2.0, 3.0]),
            "row 0 of it, column 'a': expected an id from 0 to 8, a whole number, "
            "not double, found 1.0; .* let `hotrows prepare` make ids of",
        ),
        (pa.array(["u1", "u2", "u3"]), "a whole number, not string, found 'u1'"),
        (pa.array([[1], [2], [3]]), "a whole number, not list"),
    ],
)
def test_what_is_no_id_is_named(tmp_path, column, expected):
    path = write(tmp_path / "rows.parquet", label=[0, 1, 0], a=column)
    part = open_parquet(Schema((Sparse("a", rows=9),)), path).parts["train"]
    for shuffle in (False, True):
        with pytest.raises(ValueError, match=r"rows\.parquet, .*" + expected):
            read(part, shuffle=shuffle)


@pytest.mark.parametrize(
    "schema, columns, expected",
    [
        (
            Schema((Sparse("a", rows=9, many=True),)),
            {"a": [[1], [], [2, None]]},
            "row 2 .* 0 to 8, found",
        ),
        (
            Schema((Sparse("a", rows=9, many=True),)),
            {"a": [[1], [], [2, 9]]},
            r"row 2 .* 0 to 8, found \[2, 9\]",
        ),
        (
            Schema((Sparse("a", rows=9, many=True),)),
            {"a": [1, 2, 3]},
            "row 0 .* expected a list of ids, found 1",
        ),
        (Schema((Dense("a"),)), {"a": ["1", "2", "x"]}, "row 2, column .a.: expected a number, found .x"),
        (
            Schema((Dense("a", transform="none"),)),
            {"a": [1.0, 1e39, 0.0]},
            "row 1, .*: expected a number, found '1e",
        ),
        (
            Schema((Dense("a"),), label="y"),
            {"a": [1, 1, 1], "y": [0, 2, 1]},
            "row 1, .* a label 0 or 1, found '2'",
        ),
        (
            Schema((Dense("a"),), label="y"),
            {"a": [1, 1, 1], "y": [0, 1, None]},
            "row 2, .* a label 0 or 1, found nothing",
        ),
        (
            Schema((Dense("a"),), weight="w"),
            {"a": [1, 1, 1], "w": [0.0, 1.0, -1.0]},
            "row 2, .* a weight of at least",
        ),
    ],
)
def test_what_is_no_list_number_label_or_weight_is_named(tmp_path, schema, columns, expected):
    path = write(tmp_path / "rows.parquet", **{"label": [0, 1, 0], **columns})
    with pytest.raises(ValueError, match=r"rows\.parquet, row group 0,? " + expected):
        read(open_parquet(schema, path).parts["train"])


def test_what_needs_preparing_is_refused():
    with pytest.raises(ValueError, match=r"features \['x'\] have transforms .* `hotrows prepare`"):
        open_parquet(Schema((Dense("x", transform="standard"),)), [])
    timed = Schema((Sparse("h", rows=24, transform="hour"),), time=Time("t"))
    with pytest.raises(ValueError, match=r"features \['h'\] have transforms"):
        open_parquet(timed, [])
    with pytest.raises(ValueError, match="has no `rows` yet"):
        open_parquet(Schema((Sparse("a"),)), [])


def test_files_that_are_not_as_asked_are_named(tmp_path):
    schema = Schema((Sparse("a", rows=9), Sparse("b", rows=9)))
    path = write(tmp_path / "rows.parquet", label=[0], a=[1], other=[2])
    with pytest.raises(ValueError, match=r"rows\.parquet lacks the columns \['b'\] .* 'a', 'other'"):
        open_parquet(schema, path)
    (tmp_path / "text.parquet").write_text("a,b\n1,2\n")
    with pytest.raises(ValueError, match=r"text\.parquet is no whole Parquet file"):
        open_parquet(schema, tmp_path / "text.parquet")
    expected_rows = write(tmp_path / "whole.parquet", label=[0], a=[1], b=[2])
    data = open_parquet(schema, expected_rows)
    content = bytearray(expected_rows.read_bytes())
    content[4:200] = b"\xff" * 196
    expected_rows.write_bytes(content)
    with pytest.raises(ValueError, match=r"whole\.parquet is damaged"):
        read(data.parts["train"])
    with pytest.raises(ValueError, match="is read straight from Parquet and has no shards"):
        data.parts["train"].shard(0)
    assert list(Loader(data.parts["test"], 8, shuffle=True).batches(0)) == []
