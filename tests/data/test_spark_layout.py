"""Folders as Spark writes them: parts, some without rows, partitions, marks of success, checksums."""

import dataclasses
import os
import shutil
import warnings

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from hotrows.data import Loader, draft_schema, open_parquet, prepare
from hotrows.schema import Dense, Schema, Sparse
from tests.data.raw import files_of, read

JOB = "7f6c1a3e-8b1d-4d52-9a44-0f6f2d1c9b11-c000"
TABLE = pa.table(
    {
        "label": [n % 3 == 0 for n in range(600)],
        "price": [n / 8 for n in range(600)],
        "user": [n % 70 for n in range(600)],
        "day": [f"2024-03-0{1 + n // 200}" for n in range(600)],
    }
)
RAW = Schema(features=(Dense("price"), Sparse("user"), Sparse("day")))
IDS = Schema(features=(Dense("price"), Sparse("user", rows=70)))


def write_as_spark(folder, table):
    """Parts of 80 rows, every third of which has none, beside what Spark writes for itself."""
    os.makedirs(folder)
    pieces = [table.slice(first, 80) for first in range(0, table.num_rows, 80)]
    for number in range(0, len(pieces) * 3 // 2, 3):
        pieces.insert(number, table.slice(0, 0))
    for number, piece in enumerate(pieces):
        name = f"part-{number:05d}-{JOB}.snappy.parquet"
        pyarrow.parquet.write_table(piece, folder / name, compression="snappy")
        (folder / f".{name}.crc").write_bytes(b"crc\0\0\0\2\0")
    (folder / "_SUCCESS").touch()
    (folder / "._SUCCESS.crc").write_bytes(b"crc\0\0\0\2\0")
    (folder / "_committed_123").write_text("{}")


def test_parts_of_spark_are_prepared_and_drafted_as_one_table(tmp_path):
    write_as_spark(tmp_path / "raw", TABLE)
    glob = f"{tmp_path}/raw/part-*.parquet"
    for name, rows in {"table": TABLE, "folder": tmp_path / "raw", "glob": glob}.items():
        prepare(rows, RAW, tmp_path / name)
        assert files_of(tmp_path / name) == files_of(tmp_path / "table"), name
    assert draft_schema(tmp_path / "raw").schema.label == "label"


def test_partitions_of_spark_are_columns_and_train_as_they_are(tmp_path):
    for day in range(3):
        folder = tmp_path / "raw" / f"day=2024-03-0{1 + day}"
        write_as_spark(folder, TABLE.slice(200 * day, 200).drop_columns("day"))
    (tmp_path / "raw" / "_SUCCESS").touch()
    prepare(TABLE, RAW, tmp_path / "table")
    prepare(tmp_path / "raw", RAW, tmp_path / "folder")
    assert files_of(tmp_path / "folder") == files_of(tmp_path / "table")
    data = open_parquet(IDS, tmp_path / "raw")
    (batch,) = Loader(data.parts["train"], 600).batches(0)
    assert batch.ids.tolist() == TABLE["user"].to_pylist()
    assert np.array_equal(batch.labels.numpy(), TABLE["label"].to_numpy())


def test_a_column_of_a_file_and_of_its_folder_is_read_from_the_file(tmp_path):
    """Reading Parquet as it is refused it as named twice."""
    for name, table in (("same", TABLE), ("other", TABLE.set_column(3, "day", [["x"] * 600]))):
        for day in range(3):
            piece = table.slice(200 * day, 200)
            write_as_spark(tmp_path / name / f"day=2024-03-0{1 + day}", piece)
    by_day = dataclasses.replace(IDS, group="day")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        prepare(tmp_path / "same", RAW, tmp_path / "out")
        (batch,) = Loader(open_parquet(by_day, tmp_path / "same").parts["train"], 600).batches(0)
    assert len(set(batch.groups.tolist())) == 3
    prepare(TABLE, RAW, tmp_path / "table")
    assert files_of(tmp_path / "out") == files_of(tmp_path / "table")
    with pytest.warns(UserWarning, match="column 'day' has other values in files than"):
        data = prepare(tmp_path / "other", RAW, tmp_path / "x")
    assert data.vocabularies["day"].num_distinct == 1
    with pytest.warns(UserWarning, match="those of the files are read"):
        (batch,) = Loader(open_parquet(by_day, tmp_path / "other").parts["train"], 600).batches(0)
    assert len(set(batch.groups.tolist())) == 1


def test_text_of_spark_may_have_empty_parts(tmp_path):
    folder = tmp_path / "raw"
    folder.mkdir()
    for number, content in enumerate(["", "label,price,user\n", "label,price,user\n1,2,a\n0,3,b\n", ""]):
        (folder / f"part-{number:05d}-{JOB}.csv").write_text(content)
    (folder / "_SUCCESS").touch()
    schema = Schema(features=(Dense("price", transform="none"), Sparse("user")), delimiter=",")
    data = prepare(folder, schema, tmp_path / "out", split="fraction:1,0,0")
    assert read(data)[1][:, 0].tolist() == [2, 3]
    for part in folder.glob("part-00002*"):
        part.write_text("label,price,user\n")
    with pytest.raises(ValueError, match="has no lines after its header"):
        prepare(folder, schema, tmp_path / "none", split="fraction:1,0,0")


@pytest.mark.slow
def test_files_that_spark_writes_train_as_they_are(tmp_path):
    sql = pytest.importorskip("pyspark.sql", reason="needs pyspark, which needs Java")
    if shutil.which("java") is None:
        pytest.skip("pyspark needs Java")
    session = (
        sql.SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    )
    try:
        frame = session.createDataFrame(TABLE.to_pylist()).repartition(7, "day")  # some have no rows
        frame.write.partitionBy("day").parquet(str(tmp_path / "days"))
        frame.write.csv(str(tmp_path / "text"), header=True)
        frame.write.parquet(str(tmp_path / "flat"))
    finally:
        session.stop()
    assert (tmp_path / "flat" / "_SUCCESS").exists()
    frame = pa.concat_tables(
        map(pyarrow.parquet.read_table, sorted((tmp_path / "flat").glob("*.parquet")))
    )
    prepare(frame, RAW, tmp_path / "table")
    text = Schema(features=RAW.features, delimiter=",")
    assert prepare(tmp_path / "flat", RAW, tmp_path / "a").parts["train"].rows > 400
    prepare(tmp_path / "text", text, tmp_path / "b")
    for name in ("train-00000.shard", "vocabulary-00000.values"):
        assert files_of(tmp_path / "a")[name] == files_of(tmp_path / "table")[name]
        assert files_of(tmp_path / "b")[name] == files_of(tmp_path / "table")[name]
    data = open_parquet(IDS, tmp_path / "days")
    (batch,) = Loader(data.parts["train"], 600).batches(0)
    assert sorted(batch.ids.tolist()) == sorted(TABLE["user"].to_pylist())
