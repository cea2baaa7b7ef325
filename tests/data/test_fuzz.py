"""Damaged files of every kind, thousands of cases; `python -m tests.fuzz` runs more.

And what it found, each with its story.
"""

import gc
import json
import math

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hotrows.data.columns.stream import stream
from hotrows.data.encode.vocabulary import Values, open_values, write_values
from hotrows.data.raw import chunks
from hotrows.data.raw.files import File
from hotrows.data.raw.inputs import inputs_of
from hotrows.data.raw.reading import Reading
from hotrows.data.raw.tables import as_table
from hotrows.data.raw.typed_files import open_parquet_file
from hotrows.schema import Dense, Schema, Sparse, Time
from tests import fuzz
from tests.fuzz.__main__ import record
from tests.fuzz.case import Broken, Target, outcome
from tests.fuzz.readers import make_text
from tests.fuzz.stored import closed, opened
from tests.reference.rows_of_data import use_plain_python
from tests.support.choice import examples

CASES = {
    "text": 200, "compressed": 250, "parquet": 100, "arrow": 100, "orc": 50, "json lines": 100,
    "stored": 50, "manifest": 100, "state": 40, "schema": 1000, "config": 500, "archive": 500,
    "requests": 30,
}  # fmt: skip

BOTH = pytest.mark.parametrize("plain", [False, True], ids=["native", "plain"])


@pytest.fixture
def without_gc():
    """Objects of other tests are not ended deep in a nested document, where no call is left to them."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("target", CASES)
@pytest.mark.usefixtures("without_gc")
def test_whatever_stands_in_a_file_it_is_read_or_refused_in_one_line(target, tmp_path):
    for seed in range(examples(CASES[target])):
        try:
            fuzz.check(target, seed, tmp_path / "case")
        except Broken as broken:
            pytest.fail(f"python -m tests.fuzz --target {target} --seed {seed}: {broken}")


@pytest.mark.slow
def test_a_server_answers_what_the_run_predicts(tmp_path):
    for seed in range(100):
        fuzz.check("answers", seed, tmp_path / "case")


@pytest.mark.parametrize("target", CASES)
def test_a_case_is_made_of_its_target_and_seed_alone(target):
    assert fuzz.case_of(target, 7) == fuzz.case_of(target, 7)


def test_what_takes_too_long_is_noticed(tmp_path, monkeypatch):
    def forever(case):
        while True:
            pass

    monkeypatch.setitem(fuzz.TARGETS, "text", Target(make_text, forever))
    monkeypatch.setattr(fuzz, "CASE_SECONDS", 0.05)
    with pytest.raises(Broken, match="took more than"):
        fuzz.check("text", 0, tmp_path / "case")


@pytest.mark.parametrize("error", [KeyError("x"), ValueError("two\nlines of raw"), ValueError("no name")])
def test_other_errors_and_other_messages_are_noticed(error):
    def raises():
        raise error

    with pytest.raises(Broken):
        outcome(raises, "raw")


def test_a_record_keeps_every_run_and_sums_its_cases_up(tmp_path):
    record(tmp_path / "fuzz.json", {"text": 20, "state": 10}, {"seed": 0, "found": []})
    record(tmp_path / "fuzz.json", {"text": 5}, {"seed": 10, "found": []})
    recorded = json.loads((tmp_path / "fuzz.json").read_text())
    assert [run["seed"] for run in recorded["runs"]] == [0, 10]
    assert recorded["all"] == 35
    assert recorded["cases"] == dict.fromkeys(fuzz.TARGETS, 0) | {"text": 25, "state": 10}


# ---- what was found


@BOTH
def test_one_carriage_return_alone_belongs_to_the_end_of_a_line(tmp_path, monkeypatch, plain):
    """Plain Python took one away behind every quoted field, so that two at the end of a line that had
    a quoted field were both lost; the native core took one."""
    if plain:
        use_plain_python(monkeypatch)
    schema = Schema(features=(Sparse("a"), Sparse("b")), delimiter=",")
    (tmp_path / "raw").write_bytes(b'label,a,b\n0,"x",y\r\r\n1,"x","y"\r\n1,x,"y"\n')
    columns = read(tmp_path / "raw", schema)
    assert [columns.values["ids/b"].value(row) for row in range(3)] == [b"y\r", b"y", b"y"]


@BOTH
@pytest.mark.parametrize("value", ["5e38", "-5e38", "9223372036854775808", "1e16"])
def test_a_time_of_numbers_that_no_clock_shows_is_refused(tmp_path, monkeypatch, plain, value):
    """Numbers beyond int64 wrapped around to the least one, which stands for a missing time: they were
    read as missing, with a warning of NumPy's."""
    if plain:
        use_plain_python(monkeypatch)
    schema = Schema(features=(), time=Time("when"), delimiter=",")
    (tmp_path / "raw").write_bytes(f"label,when\n0,1.5\n1,\n1,{value}\n0,?\n".encode())
    with pytest.raises(
        ValueError, match=r"raw line 4, column 'when': expected a time unix \(.*\), found '"
    ):
        read(tmp_path / "raw", schema)


@pytest.mark.parametrize("opened", [pa.ipc.new_file, pa.ipc.new_stream])
def test_an_arrow_file_whose_offsets_point_elsewhere_is_refused(tmp_path, opened):
    """Arrow hands out the bytes of a file as they are, and the core read where they point."""
    path = tmp_path / "rows.arrow"
    table = pa.table({"label": [0, 1], "a": ["ab", "cd"]})
    with opened(sink := pa.BufferOutputStream(), table.schema) as writer:
        writer.write_table(table)
    offsets = b"".join(n.to_bytes(4, "little") for n in (0, 2, 4))
    content = sink.getvalue().to_pybytes()
    assert content.count(offsets) == 1
    path.write_bytes(content.replace(offsets, offsets[:8] + (1 << 30).to_bytes(4, "little")))
    with pytest.raises(ValueError, match=r"rows.arrow is damaged \(.*offset"):
        read(path, Schema(features=(Sparse("a"),)))


def test_arrow_repeats_bytes_of_a_file_in_its_errors(tmp_path):
    """A damaged footer came out as "don't know what type: \\x0f", the byte itself in the message; a name
    of a column that is no UTF-8 came out as UnicodeDecodeError."""
    pq.write_table(pa.table({"label": [1, 0], "price": [1.5, 2.5]}), tmp_path / "raw")
    content = (tmp_path / "raw").read_bytes()
    (tmp_path / "raw").write_bytes(content.replace(b"price", b"pri\xc8\xff"))
    with pytest.raises(ValueError, match="raw is (no whole Parquet file|damaged)"):
        read(tmp_path / "raw", Schema(features=(Dense("price"),)))
    footer = content.rindex(b"schema")
    seen = set()
    for place in range(footer - 12, footer + 40):
        for byte in (0x0E, 0x0F, 0xFF):
            (tmp_path / "raw").write_bytes(content[:place] + bytes([byte]) + content[place + 1 :])
            try:
                open_parquet_file(File("raw", str(tmp_path / "raw")))
            except ValueError as error:
                seen.add(type(error))
                assert str(error).isprintable()
    assert seen == {ValueError}


def test_a_name_within_a_type_is_shown_without_what_cannot_be_printed(tmp_path):
    """Names of a nested type's fields are bytes of the file, and stood in the message as they were."""
    label = pa.array([{"e\x01;ment": "a"}, None])
    pq.write_table(pa.table({"label": label}), tmp_path / "raw")
    with pytest.raises(ValueError, match=r"expected numbers, found struct<e\?;ment: string>") as refused:
        read(tmp_path / "raw", Schema(features=()))
    assert str(refused.value).isprintable()


def test_a_duration_that_python_cannot_hold_is_shown_in_a_message(tmp_path):
    """The message about a time that cannot be read failed itself: OverflowError."""
    when = pa.array([2**62, 1], pa.int64()).view(pa.duration("ms"))
    pq.write_table(pa.table({"label": [0, 1], "when": when}), tmp_path / "raw")
    schema = Schema(features=(), time=Time("when", "%Y-%m-%d"))
    with pytest.raises(ValueError, match=r"raw, column 'when': .* found duration\[ms\]"):
        read(tmp_path / "raw", schema)


def test_ids_of_bytes_that_are_no_utf8_are_read_as_they_stand(tmp_path):
    """Bytes of a fixed size or in views were checked as text: ArrowInvalid, "Invalid UTF8 payload"."""
    for kind in (pa.binary(3), pa.binary_view(), pa.binary()):
        item = pa.array([b"a\xffb", b"abc"], kind)
        pq.write_table(pa.table({"label": [0, 1], "item": item}), tmp_path / "raw")
        columns = read(tmp_path / "raw", Schema(features=(Sparse("item"),)))
        assert [columns.values["ids/item"].value(row) for row in range(2)] == [b"a\xffb", b"abc"]


def test_a_key_of_json_that_is_no_utf8_is_refused_in_a_line(tmp_path):
    """Only Python looked at it, and raised an error that named no file."""
    (tmp_path / "raw.jsonl").write_bytes(b'{"label": 1, "a": "x"}\n{"label": 0, "a\xee": "x"}\n')
    with pytest.raises(ValueError, match=r"raw.jsonl line 2, byte 16: expected UTF-8, found 0xee"):
        read(tmp_path / "raw.jsonl", Schema(features=(Sparse("a"),)))


def test_ids_may_be_floats_of_two_bytes(tmp_path):
    """Arrow has no absolute value of them, by which floats beyond 2^53 are found."""
    item = pa.array(np.array([2, math.nan, -5], np.float16))
    pq.write_table(pa.table({"label": [0, 1, 0], "item": item}), tmp_path / "raw")
    columns = read(tmp_path / "raw", Schema(features=(Sparse("item"),)))
    assert [columns.values["ids/item"].value(row) for row in range(3)] == [b"2", b"", b"-5"]


@BOTH
def test_text_of_a_dictionary_that_is_no_utf8_is_shown_in_a_message(tmp_path, monkeypatch, plain):
    """The message about a time that cannot be read shows bytes that Arrow takes for text."""
    if plain:
        use_plain_python(monkeypatch)
    when = pa.array(["2024-01-01", "2024-01X02"]).dictionary_encode()
    pq.write_table(pa.table({"label": [0, 1], "when": when}), tmp_path / "raw", compression="none")
    content = (tmp_path / "raw").read_bytes()
    (tmp_path / "raw").write_bytes(content.replace(b"X", b"\xa0"))
    schema = Schema(features=(), time=Time("when", "%Y-%m-%d"))
    with pytest.raises(ValueError, match=r"raw row 1, column 'when': .* found '2024-01\\\\xa002'"):
        read(tmp_path / "raw", schema)


@pytest.mark.parametrize("change", [{"shape": []}, {"num_distinct": "x"}, {"num_distinct": -1}])
def test_a_vocabulary_that_makes_no_sense_is_refused(tmp_path, change):
    """Counts without a dimension came out as "len() of unsized object"; a text as the number of distinct
    values went on into data.json."""
    values = Values(np.ones(1, np.int64), np.ones(1, np.int64), np.zeros(1, np.uint8), 1)
    write_values(tmp_path / "file", "v", values)
    header, data = opened((tmp_path / "file").read_bytes())
    (header["sections"][0] if "shape" in change else header).update(change)
    (tmp_path / "file").write_bytes(closed(header, data))
    with pytest.raises(ValueError, match="file: the (header makes no sense|sections make no voc)"):
        open_values(tmp_path / "file")


@pytest.mark.parametrize("value", ["null", "null, null", '"a"', "2", "true", "1.0"])
def test_a_list_of_json_may_begin_with_a_null(tmp_path, value):
    """Arrow lost it where it was the first value of its column (apache/arrow#47417): all lists had values
    of the next ones, and the last one those of other memory."""
    text = f'{{"a": [null, {value}]}}\n{{"a": []}}\n{{"a": [{value}, {value}]}}\n'
    (tmp_path / "raw.jsonl").write_text(text)
    read_ids = read(tmp_path / "raw.jsonl", Schema((Sparse("a", many=True),)), False).values["ids/a"]
    word = value.strip('"').removesuffix(".0").encode()
    of_value = [b""] * len(value.split()) if "null" in value else [word]
    assert [read_ids.value(n) for n in range(len(read_ids))] == [b"", *of_value * 3]
    assert np.diff(read_ids.offsets).tolist() == [1 + len(of_value), 0, 2 * len(of_value)]


@pytest.mark.parametrize("between", ["", "\n", '\n{"a":', '"]",'])
def test_json_that_is_nested_too_deeply_is_refused(tmp_path, between):
    """Arrow's reader ended the process, or needed minutes; also where lists go on in the next line, or
    text between them looks like their ends."""
    for depth in (64, 100_000):
        (tmp_path / "raw.jsonl").write_text(f'{{"a": "\\\\", "b": {f"[{between}" * depth}')
        with pytest.raises(ValueError, match=r"raw.jsonl line \d+: .* nested too deeply"):
            read(tmp_path / "raw.jsonl", Schema((Sparse("a"),)), False)
    nested = "[" * 63 + "]" * 63
    row = f'{{"a": "\\"{"[" * 70}", "b": {nested}, "c": [{", ".join(["[1, 2]"] * 70)}]}}\n'
    (tmp_path / "raw.jsonl").write_text(row)
    assert (
        read(tmp_path / "raw.jsonl", Schema((Sparse("a"),)), False).values["ids/a"].value(0)[:2] == b'"['
    )


def test_a_whole_number_of_json_beside_floats_is_no_other_id(tmp_path):
    """Arrow makes floats of both: 2^53 + 1 was read as 2^53, which floats have been up to."""
    (tmp_path / "raw.jsonl").write_text('{"a": 9007199254740993}\n{"a": 2.0}\n')
    with pytest.raises(ValueError, match=r"double from 2\^53 on skips whole numbers"):
        read(tmp_path / "raw.jsonl", Schema((Sparse("a"),)), False)


@pytest.mark.parametrize("values", [[1.5, True], [[2.0, True], None], np.array([2.0, False], object)])
def test_booleans_among_floats_are_refused(values):
    """The id of a true was that of 1 in a body of JSON, as Arrow makes floats of both."""
    frame = pd.DataFrame({"a": pd.Series(list(values), dtype=object)})
    for table in ({"a": values}, frame):
        with pytest.raises(ValueError, match="column 'a' .*mixes numbers and booleans"):
            as_table(table)


def read(path, schema, for_training=True):
    """The only chunk of a file."""
    assert path.stat().st_size < chunks.CHUNK_BYTES
    ((_, columns),) = stream(inputs_of(path), Reading(schema, 2, for_training))
    return columns
