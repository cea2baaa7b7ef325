"""Parquet, Arrow tables and frames: the columns that text with the same values gives."""

import dataclasses
import gzip
import os
import pickle

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hotrows.data.columns.stream import InputPosition, stream
from hotrows.data.raw import cells, tables
from hotrows.data.raw.files import find_files
from hotrows.data.raw.inputs import inputs_of
from hotrows.data.raw.reading import Reading
from hotrows.schema import Dense, Label, Schema, Sequence, Sparse, Time
from tests.support.choice import examples

SCHEMA = Schema(
    label=Label("liked", column="rating", at_least=4),
    delimiter=",",
    group="user",
    time=Time("stamp"),
    features=(
        Dense("price", transform="none"),
        Sparse("user"),
        Sparse("item"),
        Sparse("hour", transform="hour"),
        Sequence("seen", max_length=3),
    ),
)
TABLE = pa.table(
    {
        "rating": pa.array([5, 1, 4], pa.int8()),
        "user": ["ann", None, "bob"],
        "item": pa.array([7, -1, None], pa.int64()),
        "stamp": pa.array([3600, None, 7199]),
        "price": [1.5, None, 2.0],
        "seen": [["a", "b", "c", "d"], [], None],
    }
)


def read(given_, schema=SCHEMA, threads=2, for_training=True):
    """All columns of some inputs as plain values."""
    chunks = list(stream(inputs_of(given_), Reading(schema, threads, for_training)))
    rows = []
    for _, columns in chunks:
        for row in range(columns.num_rows):
            ids = [
                [cells.value(n) for n in range(cells.offsets[row], cells.offsets[row + 1])]
                if cells.offsets is not None
                else cells.value(row)
                for name, cells in columns.values.items()
                if name.startswith("ids/")
            ]
            label = "labels" in columns.values and columns.values["labels"][:, row].tolist()
            dense, times = columns.values["dense"], columns.values["times"]
            rows.append((label, dense[:, row].tobytes(), ids, int(times[row])))
    return rows


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text(
        "rating,user,item,stamp,price,seen\n5,ann,7,3600,1.5,a|b|c|d\n1,,-1,,,\n4,bob,,7199,2,\n"
    )
    return path


def test_every_source_gives_what_text_gives(tmp_path, text):
    expected = read(text)
    assert expected[0][2] == [b"ann", b"7", b"1", [b"b", b"c", b"d"]]
    assert expected[1][2] == [b"", b"-1", b"", []]
    pq.write_table(TABLE, tmp_path / "rows.parquet", row_group_size=2)
    assert read(tmp_path / "rows.parquet") == expected
    assert read(TABLE) == expected
    assert read(TABLE.to_batches()[0]) == expected
    assert read([TABLE.slice(0, 1), TABLE.slice(1)]) == expected


def test_a_frame_without_the_protocol_of_arrow_is_asked_for_a_table():
    """Frames of Polars 1.0 to 1.2, and their series, were refused."""

    class Old:
        def __init__(self, data):
            self.data = data

        def __len__(self):
            return len(self.data)

        def to_arrow(self):
            return self.data

    assert read(Old(TABLE)) == read(TABLE)
    assert read({name: Old(TABLE[name]) for name in TABLE.column_names}) == read(TABLE)


def test_frames_give_what_text_gives(text):
    pandas = pytest.importorskip("pandas")
    polars = pytest.importorskip("polars")
    expected = read(text)
    frame = TABLE.to_pandas()  # whole numbers with some missing are floats there
    assert frame["item"].dtype == np.float64
    assert read(frame) == expected
    assert read(polars.from_arrow(TABLE)) == expected
    assert isinstance(frame, pandas.DataFrame)


def test_compressed_text(tmp_path, text):
    content = text.read_bytes()
    (tmp_path / "rows.gz").write_bytes(gzip.compress(content))
    zstd = pa.compress(content, codec="zstd", asbytes=True)
    (tmp_path / "rows.zst").write_bytes(zstd)
    assert read(tmp_path / "rows.gz") == read(tmp_path / "rows.zst") == read(text)
    (tmp_path / "cut.zst").write_bytes(zstd[: len(zstd) // 2])
    with pytest.raises(ValueError, match=r"cut\.zst is no whole zstd file"):
        read(tmp_path / "cut.zst")


def test_globs_folders_and_partitions(tmp_path):
    schema = dataclasses.replace(SCHEMA, features=(*SCHEMA.features, Sparse("day")))
    for day in ("1", "2", "__HIVE_DEFAULT_PARTITION__"):
        folder = tmp_path / "clicks" / f"day={day}"
        folder.mkdir(parents=True)
        pq.write_table(TABLE.slice(0, 1), folder / "part-0.parquet")
    (tmp_path / "clicks" / "_SUCCESS").write_text("")
    (tmp_path / "clicks" / ".hidden").write_text("")
    days = [row[2][3] for row in read(tmp_path / "clicks", schema)]
    assert sorted(days) == [b"", b"1", b"2"]
    only = read(str(tmp_path / "clicks" / "day=[12]" / "*.parquet"))
    assert len(only) == 2
    with pytest.raises(ValueError, match="no file matches"):
        read(str(tmp_path / "clicks" / "*.csv"))
    os.mkdir(tmp_path / "nothing")
    with pytest.raises(ValueError, match="holds no files"):
        read(tmp_path / "nothing")


def test_addresses_are_opened_through_fsspec(tmp_path, text):
    import fsspec

    memory = fsspec.filesystem("memory")
    pq.write_table(TABLE, tmp_path / "rows.parquet")
    memory.pipe("/bucket/day=1/rows.parquet", (tmp_path / "rows.parquet").read_bytes())
    memory.pipe("/bucket/rows.csv", text.read_bytes())
    try:
        assert read("memory://bucket/rows.csv") == read(text)
        assert read("memory://bucket/day=*/*.parquet") == read(text)
        assert [file.partitions for file in find_files("memory://bucket/day=1")] == [{"day": "1"}]
        with pytest.raises(ValueError, match="does not exist"):
            read("memory://bucket/absent.csv")
        with pytest.raises(ValueError, match="cannot be opened"):
            read("nosuchscheme://bucket/x")
    finally:
        memory.rm("/bucket", recursive=True)


@pytest.mark.parametrize(
    ("column", "values", "message"),
    [
        ("user", pa.array([["a"], ["b"], ["c"]]), "column 'user': expected a single value, found list"),
        ("user", pa.array([0.5, 1.0, 2.0]), "column 'user': expected ids"),
        ("price", pa.array(["1", "x", ""]), "row 1, column 'price': expected a number, found 'x'"),
        ("price", pa.array([1.0, float("inf"), 2]), "row 1, column 'price': expected a number"),
        ("price", pa.array([b"1", b"2", b"3"]).cast(pa.binary(1)), "expected numbers"),
        ("seen", pa.array([[["a"]], [], []]), "lists of lists are not read"),
        ("rating", pa.array([None, 1, 2], pa.int8()), "row 0, column 'rating': expected a number"),
    ],
)
def test_columns_of_other_kinds_are_refused(tmp_path, column, values, message):
    index = TABLE.schema.names.index(column)
    table = TABLE.set_column(index, column, values)
    pq.write_table(table, tmp_path / "rows.parquet")
    with pytest.raises(ValueError) as error:
        read(tmp_path / "rows.parquet")
    assert message in str(error.value)


class Pickled(pa.ExtensionType):
    """A column as Ray Data makes one of Python objects."""

    def __init__(self):
        super().__init__(pa.large_binary(), "ray.data.arrow_pickled_object")

    def __arrow_ext_serialize__(self):
        return b""

    @classmethod
    def __arrow_ext_deserialize__(cls, storage, text):
        return cls()

    def __arrow_ext_scalar_class__(self):
        return Unpickled


class Unpickled(pa.ExtensionScalar):
    def as_py(self, **how):
        return None if self.value is None else pickle.loads(self.value.as_py())


def test_lists_that_ray_has_pickled_are_lists_in_its_blocks_and_refused_in_files(tmp_path):
    """The bytes of their pickles were ids."""
    lists = [["t1", "t2"], [], None, ["t3"]]
    cells = [None if cell is None else pickle.dumps(np.array(cell, object)) for cell in lists]
    stored = pa.array(cells, pa.large_binary())
    block = pa.table({"tags": pa.ExtensionArray.from_storage(Pickled(), stored)})
    assert tables.table_of(block, slice(0, 3))["tags"].to_pylist() == lists[:3]
    pq.write_table(block, tmp_path / "a.parquet")
    schema = Schema((Sparse("tags", many=True),), label="click")
    for rows, message in (
        (block, "found extension<"),
        (tmp_path / "a.parquet", "Ray pickled its objects"),
    ):
        with pytest.raises(ValueError, match=message):
            list(stream(inputs_of(rows), Reading(schema, 1, for_training=False)))


def test_files_that_are_no_parquet(tmp_path):
    (tmp_path / "rows.parquet").write_bytes(b"PAR1 and nothing more")
    with pytest.raises(ValueError, match=r"rows\.parquet is no whole Parquet file"):
        read(tmp_path / "rows.parquet")
    with pytest.raises(ValueError, match="expected paths, an Arrow table"):
        read(1)


@pytest.mark.parametrize("index", [2, -1])
@pytest.mark.parametrize("column", ["user", "price"])
def test_an_index_that_is_none_of_its_dictionary_is_refused(tmp_path, column, index):
    words = ["ann", "bob"] if column == "user" else ["1.5", "2"]
    wrong = pa.DictionaryArray.from_arrays(pa.array([0, index, None], pa.int8()), words, safe=False)
    place = TABLE.column_names.index(column)
    table = TABLE.set_column(place, column, wrong)
    with pa.ipc.new_file(tmp_path / "rows.arrow", table.schema) as file:
        file.write_table(table)
    message = (
        rf"rows\.arrow is damaged: column .{column}. has a dictionary of 2 values and the index {index}"
    )
    with pytest.raises(ValueError, match=message):
        read(tmp_path / "rows.arrow")


def test_types_that_mean_the_same_give_the_same(tmp_path):
    columns = {
        "user": [pa.string(), pa.large_string(), pa.binary(), pa.dictionary(pa.int8(), pa.string())],
        "item": [pa.int8(), pa.int64(), pa.float64(), pa.string()],
        "price": [pa.float32(), pa.float64(), pa.string(), pa.decimal128(5, 2)],
        "stamp": [pa.int64(), pa.timestamp("s"), pa.timestamp("ns"), pa.timestamp("us", "UTC")],
        "seen": [pa.list_(pa.string()), pa.large_list(pa.string())],
    }
    expected = read(TABLE)
    for name, kinds in columns.items():
        for kind in kinds:
            index = TABLE.schema.names.index(name)
            first = pa.timestamp("s") if pa.types.is_timestamp(kind) else TABLE[name].type
            same = TABLE.set_column(index, name, TABLE[name].cast(first).cast(kind))
            assert read(same) == expected, (name, kind)


@pytest.mark.parametrize("y", [["1", "2", None, "5e1"], ["1", "2", "3", "bad"], ["bad", "2", "3", "4"]])
@pytest.mark.parametrize("x", [["1", " 2.50 ", None, "-"], ["1", "wrong", "3", "4"]])
def test_few_rows_are_read_as_many_are(x, y, monkeypatch):
    """Columns of few values are read together, those of many one by one; so is what is wrong."""
    ids = {"a": ["7.0", None, "-", " True "], "b": ["", "NaN", "b", "7"], "c": [1, 2, None, 4]}
    ids["d"] = [7, -(2**63), None, -1]
    table = pa.table({**ids, "x": x, "y": y}).slice(1)
    missing = ("-", "-1")
    schema = Schema(features=(Dense("x"), Dense("y"), *map(Sparse, "abcd")), missing=missing, strip=True)

    def outcome(few):
        monkeypatch.setattr(cells, "_FEW", few)
        try:
            ((_, columns),) = stream(inputs_of(table), Reading(schema, 1, for_training=False))
        except ValueError as error:
            return str(error)
        of_ids = [raw for name, raw in columns.values.items() if name.startswith("ids/")]
        return [list(map(raw.value, range(3))) for raw in of_ids], columns.values["dense"].tobytes()

    assert outcome(1 << 14) == outcome(0)


def test_big_and_negative_ids_are_kept_to_the_last_digit():
    schema = Schema(features=(Sparse("id"),))
    table = pa.table({"label": [0, 1, 1], "id": [2**63 - 1, -(2**63), 0]})
    ((_, columns),) = stream(inputs_of(table), Reading(schema, 1))
    assert [columns.values["ids/id"].value(n) for n in range(3)] == [
        b"9223372036854775807", b"-9223372036854775808", b"0"
    ]  # fmt: skip


@settings(max_examples=examples(50, 6), deadline=None)
@given(st.lists(st.integers(1, 5), min_size=1, max_size=5), st.data())
def test_a_stream_goes_on_from_any_place(tmp_path_factory, groups, data):
    folder = tmp_path_factory.mktemp("stream")
    schema = Schema(features=(Sparse("id"),), columns=("label", "id"))
    for i, rows in enumerate(groups):
        table = pa.table({"label": [0] * rows, "id": [f"{i}.{row}" for row in range(rows)]})
        pq.write_table(table, folder / f"{i}.parquet", row_group_size=2)
        (folder / f"{i}.txt").write_text("".join(f"0\t{i}.{row}\n" for row in range(rows)))
    inputs = inputs_of([str(folder / "*.parquet"), str(folder / "*.txt")])

    def rows_from(place):
        chunks = stream(inputs, Reading(schema, 1), start=place)
        return [(columns.first_row + n, columns.values["ids/id"].value(n)) for _, columns in chunks
                for n in range(columns.num_rows)]  # fmt: skip

    all_rows = rows_from(InputPosition())
    assert [row for row, _ in all_rows] == list(range(2 * sum(groups)))
    places = [place for place, _ in stream(inputs, Reading(schema, 1))]
    place = data.draw(st.sampled_from(places))
    assert rows_from(place) == all_rows[place.rows :]
