"""Raw tables: read, joined, cut by user, and written as parts."""

import gzip

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from hotrows.data.datasets import tables
from hotrows.data.datasets.tables import partition, read_bucket
from hotrows.runtime.terminal import silent

TYPES = {"user": "int64", "brand": "int64"}


def write(path, text):
    path.write_text(text)
    return path


def test_a_file_is_found_plain_packed_or_below(tmp_path):
    (tmp_path / "ml-1m").mkdir()
    path = tmp_path / "ml-1m" / "ratings.dat.gz"
    path.write_bytes(gzip.compress(b"1::2::3::4\n"))
    assert tables.find(tmp_path, "absent.csv", "ratings.dat") == path


def test_a_file_that_lacks_says_what_there_is(tmp_path):
    write(tmp_path / "notes.txt", "")
    with pytest.raises(
        ValueError, match="must hold a.csv or b.csv, plain or as .gz, but holds notes.txt"
    ):
        tables.find(tmp_path, "a.csv", "b.csv")
    with pytest.raises(ValueError, match="expected a folder that holds a.csv, got None"):
        tables.find(None, "a.csv")


def test_columns_are_found_by_name_whatever_spaces_and_old_names(tmp_path):
    path = write(tmp_path / "a.csv", "nick,x,brand \n1,9,NULL\n2,9,7\n")
    rows_read = tables.read_csv(path, TYPES, nulls=("", "NULL"), also={"nick": "user"})
    assert rows_read.to_pydict() == {"user": [1, 2], "brand": [None, 7]}


def test_a_table_of_another_layout_is_an_error_that_names_the_file(tmp_path):
    path = write(tmp_path / "a.csv", "user,price\n1,2\n")
    with pytest.raises(ValueError, match=r"a.csv lacks the columns \['brand'\]; it has"):
        tables.read_csv(path, TYPES)
    path = write(tmp_path / "b.csv", "user,brand\n1,2,3\n")
    with pytest.raises(ValueError, match="b.csv is not laid out as it was published"):
        tables.read_csv(path, TYPES)


def test_text_of_few_values_comes_out_as_text(tmp_path):
    path = write(tmp_path / "a.csv", "user,kind\n2,a\n1,\n3,b\n")
    directory = tables.directory(tables.read_csv(path, {"user": "int64", "kind": "category"}), "user")
    assert pa.types.is_dictionary(directory.rows["kind"].type)
    rows_read = tables.lookup(directory, np.array([3, 1, 4, 2]))
    assert rows_read["kind"].type == pa.string()
    assert rows_read["kind"].to_pylist() == ["b", None, None, "a"]


def test_of_rows_with_equal_keys_the_first_counts():
    directory = tables.directory(pa.table({"key": [5, 5, 4], "x": ["a", "b", "c"]}), "key")
    assert tables.lookup(directory, np.array([4, 5, 6]))["x"].to_pylist() == ["c", "a", None]


def test_rows_go_to_their_part_and_parts_without_rows_have_no_file(tmp_path):
    with tables.written(tmp_path) as writer:
        for start in (0, 10):
            rows = pa.table({"x": np.arange(start, start + 4)})
            writer.write(rows, np.array([0, 2, 0, 2]))
    samples = writer.samples
    assert samples.validation == ()
    assert parquet.read_table(samples.train[0])["x"].to_pylist() == [0, 2, 10, 12]
    assert parquet.read_table(samples.test[0])["x"].to_pylist() == [1, 3, 11, 13]


def test_parts_by_day_follow_the_local_clock():
    midnight = tables.day("2017-05-13") * 86_400 - 8 * 3600
    times = np.array([midnight - 86_401, midnight - 86_400, midnight - 1, midnight])
    days = tables.day("2017-05-12"), tables.day("2017-05-13")
    assert tables.parts_by_day(times, 8, *days).tolist() == [0, 1, 1, 2]


def test_a_bucket_holds_all_rows_of_its_users_in_their_order(tmp_path):
    users = np.random.default_rng(0).integers(0, 50, 1000)
    log = pa.table({"user": users, "row": np.arange(1000)})
    blocks = [log.slice(start, 300) for start in range(0, 1000, 300)]
    paths = partition(blocks, "user", tmp_path / "log", "events", silent, num_buckets=4)
    rows_read = [read_bucket(path) for path in paths]
    assert sum(map(len, rows_read)) == 1000
    seen = [set(rows["user"].to_pylist()) for rows in rows_read]
    assert sum(map(len, seen)) == len(set.union(*seen)) == 50
    for rows in rows_read:
        numbers = rows["row"].to_numpy()
        assert (np.diff(numbers) > 0).all()
        assert (rows["user"].to_numpy() == users[numbers]).all()
