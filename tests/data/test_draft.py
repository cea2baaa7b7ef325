"""Drafts of schemas: what `hotrows schema` makes of files and frames, and that `prepare` takes it."""

import datetime
import decimal
import json
import math
import random
import re

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from hotrows import cli, losses
from hotrows.data import Encoder, draft_schema, prepare
from hotrows.schema import Dense, Label, Schema, Sequence, Sparse, Time
from tests.data.raw import files_of

ROWS = 400


def clicks() -> pd.DataFrame:
    """A table with a column of every kind, without missing values."""
    draw = random.Random(1)
    return pd.DataFrame(
        [
            {
                "row": number,
                "when": pd.Timestamp(1_709_251_200 + 3600 * number, unit="s"),
                "user_id": draw.randrange(50),
                "price": round(draw.random() * 90, 2),
                "paid": round(10 ** (6 * draw.random())),
                "device": draw.choice(["phone", "tablet", "desk"]),
                "zip": draw.choice(["01234", "99999", "12345"]),
                "days": draw.randrange(5),
                "source": "web",
                "converted": int(draw.random() < 0.1),
                "click": int(draw.random() < 0.3),
            }
            for number in range(ROWS)
        ]
    )


FEATURES = (
    Sparse("when_hour", transform="hour"),
    Sparse("when_weekday", transform="weekday"),
    Sparse("user_id"),
    Dense("price", transform="standard"),
    Dense("paid", transform="log"),
    Sparse("device"),
    Sparse("zip"),
    Sparse("days"),
)


def assert_prepares(tmp_path, source, schema):
    data = prepare(source, schema, tmp_path / "enc", split="fraction:0.8,0.1,0.1")
    assert sum(part.rows for part in data.parts.values()) > 0


@pytest.mark.parametrize("kind", ["csv", "tsv", "parquet", "pandas", "polars", "arrow"])
def test_one_table_gives_one_schema_from_every_format(tmp_path, kind):
    frame = clicks()
    path = str(tmp_path / "clicks")
    frames = {"pandas": frame, "polars": pl.from_pandas(frame), "arrow": pa.Table.from_pandas(frame)}
    if kind == "parquet":
        pq.write_table(frames["arrow"], path)
    elif kind in ("csv", "tsv"):
        frame.to_csv(path, index=False, sep={"csv": ",", "tsv": "\t"}[kind])
    source = frames.get(kind, path)
    draft = draft_schema(source)
    assert draft.schema.features == FEATURES
    assert (draft.schema.label, draft.schema.group) == ("click", "user_id")
    assert draft.schema.time == Time("when", "iso")
    assert draft.schema.delimiter == ("\t" if kind == "tsv" else ",")
    said = "\n".join(draft.notes)
    assert "'row' is left out: another value in every row (a row number?)" in said
    assert "'source' is left out: one value in every row" in said
    assert "'converted' is left out: by its name it is a label too" in said
    assert Schema.from_json(draft.to_json()) == draft.schema
    assert_prepares(tmp_path, source, draft.schema)


@pytest.mark.parametrize("kind", ["pandas", "parquet"])
def test_the_index_of_a_pandas_frame_is_left_out(tmp_path, caplog, kind):
    """Row numbers of a frame sorted by its label gave an AUC of 0.97, without them it was 0.67."""
    frame = clicks().drop(columns="row").sort_values("click").sample(frac=0.8, random_state=0)
    frame.to_parquet(tmp_path / "clicks.parquet")
    source = frame if kind == "pandas" else tmp_path / "clicks.parquet"
    draft = draft_schema(source)
    assert draft.schema.features == FEATURES
    assert (
        "'__index_level_0__' is left out: the index of a pandas frame; `reset_index()` makes it a column"
        in draft.notes
    )
    data = prepare(source, draft.schema, tmp_path / "enc", split="fraction:0.8,0.1,0.1")
    caplog.clear()
    list(Encoder.open(data.path).encode(frame.reset_index(drop=True)))
    assert not caplog.records


def test_no_level_of_an_index_is_the_label():
    """Frames put together by `concat` with keys have a level of two values."""
    frame = clicks().drop(columns=["click", "converted"])
    table = pa.Table.from_pandas(pd.concat({"a": frame[:200], "b": frame[200:]}))
    assert set(table["__index_level_0__"].to_pylist()) == {"a", "b"}
    with pytest.raises(ValueError, match="no column of the table looks like a label"):
        draft_schema(table)


def test_what_pandas_writes_of_a_frame_is_read_as_the_frame(tmp_path):
    frame = clicks().assign(new=lambda rows: rows["user_id"] % 2 == 0)
    frame["user_id"] = frame["user_id"].where(frame["user_id"] % 7 != 0)  # floats, some missing
    data = prepare(frame, draft_schema(frame).schema, tmp_path / "enc", split="fraction:0.8,0.1,0.1")
    frame.to_csv(tmp_path / "rows.csv", index=False)
    encoder = Encoder.open(data.path)
    for typed, text in zip(encoder.encode(frame), encoder.encode(tmp_path / "rows.csv"), strict=True):
        assert torch.equal(typed.ids, text.ids) and torch.equal(typed.dense, text.dense)
        assert typed.features == text.features and {"new", "user_id", "when_hour"} < set(typed.features)


def test_lists_in_cells_and_in_columns_of_lists(tmp_path):
    draw = random.Random(2)
    tags, items = ["red", "cotton", "sale", "new"], [str(n) for n in range(30)]
    table = pa.table(
        {
            "label": [draw.randrange(2) for _ in range(ROWS)],
            "item_id": [draw.choice(items) for _ in range(ROWS)],
            "tags": [draw.sample(tags, draw.randrange(4)) for _ in range(ROWS)],
            "last_items": [draw.choices(items, k=draw.randrange(6)) for _ in range(ROWS)],
        }
    )
    expected = [
        Sparse("item_id"),
        Sparse("tags", many=True, pooling="mean", separator=";"),
        Sequence("last_items", vocabulary="item_id", max_length=100, separator=";"),
    ]
    rows = (
        "\t".join(";".join(x) if isinstance(x, list) else str(x) for x in row.values())
        for row in table.to_pylist()
    )
    (tmp_path / "lists").write_text("\n".join(["\t".join(table.column_names), *rows]) + "\n")
    draft = draft_schema(tmp_path / "lists")
    assert list(draft.schema.features) == expected
    assert "'tags' has lists, between ';'" in draft.notes
    assert_prepares(tmp_path, tmp_path / "lists", draft.schema)
    typed = draft_schema(table).schema.features
    assert [(type(f), f.name) for f in typed] == [(type(f), f.name) for f in expected]


def test_no_header_names_columns_and_says_that_the_label_is_a_guess(tmp_path):
    draw = random.Random(3)
    lines = [f"{draw.randrange(2)};{draw.random():.4f};{draw.choice('abc')}\n" for _ in range(ROWS)]
    (tmp_path / "raw").write_text("".join(lines))
    draft = draft_schema(tmp_path / "raw")
    assert draft.schema.columns == ("column_1", "column_2", "column_3")
    assert draft.schema.features == (Dense("column_2", transform="standard"), Sparse("column_3"))
    assert draft.schema.label == "column_1" and "label: 'column_1' is a guess" in draft.notes
    assert "no line names the columns: they are column_1 and so on" in draft.notes
    assert_prepares(tmp_path, tmp_path / "raw", draft.schema)


@pytest.mark.parametrize(
    ("values", "format"),
    [
        (1_700_000_000, "unix"),
        (1_700_000_000_123, "unix_ms"),
        (1_700_000_000_123_456, "unix_us"),
        (1_700_000_000_123_456_789, "unix_ns"),
        ("2024-03-01", "iso"),
        ("2024-03-01T10:00:00.123456+01:00", "iso"),
        ("2024-03-01 10:00Z", "iso"),
        ("31/12/2024 10:00", "%d/%m/%Y %H:%M"),
        ("03/31/2024", "%m/%d/%Y"),
        ("14102123", "%y%m%d%H"),
        ("20240331", "%Y%m%d"),
    ],
)
def test_times_in_text_and_by_magnitude(tmp_path, values, format):
    other = {"14102123": "14102200", "20240331": "20240401"}.get(values, values)
    other = str(other).replace("2024-", "2025-").replace("/2024", "/2025").replace("1700", "1701", 1)
    lines = [f"{n % 2},{n % 7},{values if n % 3 else other}" for n in range(30)]
    (tmp_path / "raw").write_text("\n".join(["label,user,time", *lines]) + "\n")
    draft = draft_schema(tmp_path / "raw")
    assert draft.schema.time == Time("time", format)
    assert_prepares(tmp_path, tmp_path / "raw", draft.schema)


@pytest.mark.parametrize(
    "column",
    [
        {"day": [20240331, 20240401]},
        {"hour": [14102123, 14102200]},
        {"price": [1.5, math.inf]},
        {"price": [-math.inf, 2.5]},
    ],
)
def test_numbers_are_drafted_as_their_text_is(tmp_path, column):
    """Days as whole numbers were ids, and infinity was no missing number, where columns have types."""
    ((name, few),) = column.items()
    values = [few[n % 2] + n % 30 * (name == "price") for n in range(60)]
    table = pa.table({"click": [n // 2 % 2 for n in range(60)], name: values})
    pd.DataFrame(table.to_pydict()).to_csv(tmp_path / "x.csv", index=False)
    assert draft_schema(table).schema == draft_schema(tmp_path / "x.csv").schema
    assert_prepares(tmp_path, table, draft_schema(table).schema)


@pytest.mark.parametrize("kind", ["text", "frame"])
@pytest.mark.parametrize("first_id", [1_500_000_000, 10**15, 1_700_000_000_000_000_000])
def test_ids_of_the_magnitude_of_times_are_ids(tmp_path, kind, first_id):
    """Snowflake ids were the time, and the column of times was thrown away."""
    rows = np.arange(ROWS)
    frame = pd.DataFrame({"user_id": first_id + rows % 90, "ts": 1_709_251_200 + rows, "click": rows % 2})
    frame.to_csv(tmp_path / "rows.csv", index=False)
    schema = draft_schema(frame if kind == "frame" else tmp_path / "rows.csv").schema
    assert schema.time == Time("ts", "unix") and schema.group == "user_id"
    assert Sparse("user_id") in schema.features


@pytest.mark.parametrize("times", [("2024-03-01", "2024-03-02"), (1_709_251_200, 1_709_337_600)])
def test_a_date_or_a_name_says_more_of_the_time_than_a_magnitude(times):
    rows = np.arange(ROWS)
    when = [times[row % 2] for row in rows]
    frame = pd.DataFrame({"x": 1_500_000_000 + rows % 90, "event_time": when, "click": rows // 2 % 2})
    draft = draft_schema(frame)
    assert draft.schema.time is not None and draft.schema.time.column == "event_time"
    assert "'x' is left out: the time is 'event_time'" in draft.notes
    assert draft_schema(frame.drop(columns="event_time")).schema.time == Time("x")


@pytest.mark.parametrize("first", [2**53, 2**63, 10**25])
def test_whole_numbers_that_floats_skip_are_ids(tmp_path, first):
    """Read as floats, 200 ids were one value, and left out."""
    lines = [f"{row % 2},{first + row % 200}" for row in range(ROWS)]
    (tmp_path / "raw").write_text("\n".join(["click,visitor", *lines]) + "\n")
    draft = draft_schema(tmp_path / "raw")
    assert draft.schema.features == (Sparse("visitor"),)
    data = prepare(tmp_path / "raw", draft.schema, tmp_path / "enc", split="fraction:1,0,0")
    assert data.vocabularies["visitor"].num_distinct == 200


def test_words_for_missing_numbers_and_spaces_around_values(tmp_path):
    """As in the census data: fields between `, `, and ? where nothing is known."""
    ages = [20 + n % 60 if n % 9 else "?" for n in range(200)]
    incomes = [">50K" if n % 4 == 0 else "<=50K" for n in range(200)]
    lines = [f"{ages[n]}, {'Private' if n % 3 else 'State'}, {incomes[n]}" for n in range(200)]
    (tmp_path / "raw").write_text("\n".join(["age, work, income", *lines]) + "\n")
    schema = draft_schema(tmp_path / "raw").schema
    assert schema.features == (Dense("age", transform="standard"), Sparse("work"))
    assert schema.label == Label("income", positive=(">50K",))
    assert schema.missing == {"age": ("?",)} and schema.strip
    data = prepare(tmp_path / "raw", schema, tmp_path / "enc", split="fraction:1,0,0")
    assert data.parts["train"].clicks == (50,) and data.parts["train"].missing["age"] == 23


@pytest.mark.parametrize(
    ("values", "loss"),
    [
        (lambda rng: rng.integers(1, 6, 1000), "squared"),  # stars
        (lambda rng: rng.normal(20, 5, 1000), "squared"),
        (lambda rng: rng.integers(0, 11, 1000), "squared"),  # points from 0 to 10
        (lambda rng: rng.poisson(0.7, 1000), "poisson"),  # visits
        (lambda rng: rng.poisson(4, 1000), "poisson"),
        (lambda rng: np.r_[rng.normal(20, 1, 970), rng.normal(20, 500, 30)], r"huber:1\.[0-9]"),
        (lambda rng: rng.lognormal(3, 1.5, 1000), r"huber:[0-9]{2}"),  # prices
    ],
)
def test_a_label_of_numbers_has_a_loss_that_fits_and_a_note_that_it_is_a_guess(values, loss):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"user": rng.integers(9, size=1000), "amount": values(rng)})
    draft = draft_schema(frame, label="amount")
    label = draft.schema.label
    assert isinstance(label, Label) and label.name == "amount" and label.at_least is None
    assert re.fullmatch(loss, str(label.loss))
    (note,) = [note for note in draft.notes if note.startswith("label: ")]
    assert f"loss={label.loss!r} is a guess" in note and "at_least=" in note
    assert losses.parse(label.loss).labels.wrong(frame["amount"].to_numpy()).sum() == 0


def test_beside_a_label_that_was_named_other_labels_are_features_and_noted():
    draft = draft_schema(clicks(), label="click")
    assert draft.schema.features == (*FEATURES, Sparse("converted"))
    assert "'converted': is it known before the label? By its name it is one too" in draft.notes


def test_labels_by_name_by_value_and_by_word():
    frame = pd.DataFrame(
        {"user": np.arange(100) % 7, "bit": np.arange(100) % 2, "rating": np.arange(100) % 5 + 1}
    )
    assert draft_schema(frame).schema.label == "bit"
    assert draft_schema(frame, label="rating").schema.label == Label("rating", loss="squared")
    assert draft_schema(frame.assign(y=["no", "yes"] * 50)).schema.label == Label("y", positive=("yes",))
    last = frame.drop(columns="rating").assign(bit2=frame["bit"])
    assert draft_schema(last).schema.label == "bit2"
    sex = ["Male", "Female"] * 50
    words = draft_schema(
        pd.DataFrame({"age": frame["user"] * 1.5, "sex": sex, "pay": [">50K", "<=50K"] * 50})
    )
    assert words.schema.label == Label("pay", positive=(">50K",))
    rare = draft_schema(frame.assign(click=0))
    assert rare.schema.label == "click" and "label: 'click' is 0 in all rows looked at" in rare.notes


def test_a_label_that_some_rows_lack_is_one_and_how_to_leave_them_out_is_said(tmp_path):
    frame = clicks().drop(columns="converted")
    frame["click"] = frame["click"].where(frame["row"] % 9 > 0)
    draft = draft_schema(frame)
    assert draft.schema.label == "click" and draft.schema.features == FEATURES
    advice = r"leave (them|rows without it) out \(of a frame: frame.dropna\(subset=\['click'\]\)\)"
    (note,) = [note for note in draft.notes if note.startswith("label: ")]
    assert note.startswith("label: 'click' is missing in 45 rows") and re.search(advice, note)
    with pytest.raises(ValueError, match=f"expected a label 0 or 1, found nothing; {advice}$"):
        prepare(frame, draft.schema, tmp_path / "enc")
    assert_prepares(tmp_path, frame.dropna(subset=["click"]), draft.schema)


def test_another_label_that_some_rows_lack_is_no_feature_either():
    frame = clicks()
    frame["converted"] = frame["converted"].where(frame["click"] == 1)
    assert draft_schema(frame).schema.label == "click"
    assert draft_schema(frame).schema.features == FEATURES


MOMENTS = [datetime.time(13, 5), datetime.time(9)] * 30
KINDS_OF_ARROW = {
    "uuid": pa.array([b"x" * 16, b"y" * 16] * 30, pa.uuid()),
    "time of day": pa.array(MOMENTS, pa.time64("us")),
    "times in lists": pa.array([[x] for x in MOMENTS], pa.list_(pa.time64("us"))),
    "duration": pa.array([1, 2] * 30, pa.duration("s")),
    "prices in lists": pa.array([[decimal.Decimal("1.50")]] * 60),
    "categories of intervals": pd.cut(pd.Series(range(60)), 4),
    "categories of polars": pl.Series(["a", "b"] * 30, dtype=pl.Categorical),
    "enum of polars": pl.Series(["a", "b"] * 30, dtype=pl.Enum(["b", "a"])),
    "bytes": pa.array([b"a", b"\xff"] * 30, pa.binary_view()),
    "run ends": pa.RunEndEncodedArray.from_arrays([20, 60], ["a", "b"]),
    "views of lists": pa.array([[1, 2], [3]] * 30, pa.list_view(pa.int64())),
}


@pytest.mark.parametrize("kind", KINDS_OF_ARROW)
def test_a_draft_reads_what_prepare_reads_and_leaves_out_the_rest(tmp_path, kind):
    """Drafts had ids of intervals and UUIDs, which `prepare` refused; categories of Polars ended in an
    error of Arrow."""
    rows = {"x": KINDS_OF_ARROW[kind], "u": [1, 2, 3] * 20, "click": [0, 1] * 30}
    frame = pl.DataFrame(rows) if isinstance(rows["x"], pl.Series) else rows
    draft = draft_schema(frame, label="click")
    assert_prepares(tmp_path, frame, draft.schema)
    is_read = kind in ("categories of polars", "enum of polars", "bytes")
    assert is_read == any(feature.name == "x" for feature in draft.schema.features)


def test_of_several_files_a_draft_names_the_one_it_looked_at(tmp_path):
    files = [tmp_path / "a.csv", tmp_path / "b.csv"]
    for file in files:
        file.write_text("click,u\n" + "0,1\n1,2\n0,3\n" * 5)
    assert f"of 2 files only {files[0]} is looked at" in draft_schema(tmp_path).notes


@pytest.mark.parametrize(
    ("columns", "label", "message"),
    [
        ({"a": [1.5, 2.5, 3.5], "b": ["x", "y", "z"]}, None, "no column of the table looks like a label"),
        ({"click": [0, 1, 1]}, None, "has no column to make a feature of"),
        (
            {"one": [7, 7, 7], "gone": pa.nulls(3), "click": [0, 1, 1]},
            None,
            "the label; 'one' is left out: one value in every row; 'gone' is left out: it is empty",
        ),
        (
            {"click": [0, 1, 1], "a": [1, 2, 3]},
            "clik",
            "no column 'clik' for a label; did you mean 'click'?",
        ),
        ({"a": ["x", "y", "z"], "b": [1, 2, 3]}, "a", "expected a label of two values or of numbers"),
        ({"a": pa.array([], pa.int64())}, None, "the table has no rows to draft a schema from"),
    ],
)
def test_what_gives_no_schema_is_said_in_a_line(columns, label, message):
    with pytest.raises(ValueError, match=message.replace("?", r"\?")) as error:
        draft_schema(pa.table(columns), label=label)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("1::F::1::10::48067\n", r"'::' is two bytes: write one in its place \(sed 's/::"),
        ("1 3:0.5 7:1\n0 2:1\n", "rows has pairs of index:value, as libsvm .*, which are not read"),
        ("1 3:1 7:1\n0 7:1 9:1\n", "rows has pairs of index:value, .* unless each position is a field"),
        ("1 3:0.5 7:1\n0 3:2 9:1\n", "rows has pairs of index:value, .* and the value 1; write a col"),
        ("1 0:3:0.5 1:7:1\n0 0:2:1 1:9:1\n", "rows has .* or field:index:value of libffm, which are not"),
        ("2 qid:1 1:.3 2:1 # docid = 7\n", "rows has pairs of index:value, as libsvm writes them"),
        (
            "1 |user u7 |item i3 price:.5\n",
            "rows has lines of Vowpal Wabbit, .*; write a column for each",
        ),
        ("-1 2.0 'tag|user:.5 u7 |item i3\n", "rows has lines of Vowpal Wabbit"),
        ("1 | price:.23 age:.05 2006\n", "rows has lines of Vowpal Wabbit"),
        ("-1 0.5 | f:1 g\n", "rows has lines of Vowpal Wabbit"),
        (
            '{"user": {"0": 3, "1": 5}, "click": {"0": 1, "1": 0}}',
            "rows holds a whole table in one object",
        ),
    ],
)
def test_layouts_that_are_often_met_are_refused_by_name(tmp_path, line, message):
    (tmp_path / "rows").write_text(line if line[0] == "{" else line * 9)
    with pytest.raises(ValueError, match=message) as refused:
        draft_schema(tmp_path / "rows")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("line", ["3 | 12:30 pm", "1 | a | b"])
def test_text_between_pipes_is_not_taken_for_vowpal_wabbit(tmp_path, line):
    (tmp_path / "rows").write_text(f"{line}\n" * 9)
    try:
        draft_schema(tmp_path / "rows")
    except ValueError as error:  # that no column is a label, for one
        assert "Vowpal" not in str(error)


@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize("text", ["{}", "{}\nthanks, Ann", "{}\n\nthanks\nAnn"])
def test_line_breaks_in_quotes_are_refused_as_prepare_refuses_them(tmp_path, is_first, text):
    """Columns were said to be empty in every row, and the delimiter to be unsure."""
    path, frame = tmp_path / "rows.csv", clicks()
    texts = [text.format("poor\nvalue" if row % 50 == 9 else "great") for row in frame["row"]]
    frame.insert(0 if is_first else len(frame.columns), "text", texts)
    frame.to_csv(path, index=False)
    said = r"rows.csv line \d+, column 'text': the quoted field does not end on its line; .*to_parquet"
    with pytest.raises(ValueError, match=said) as drafted:
        draft_schema(path)
    frame.to_parquet(tmp_path / "rows.parquet")
    schema = draft_schema(tmp_path / "rows.parquet").schema
    assert Sparse("text") in schema.features
    with pytest.raises(ValueError, match=said) as prepared:
        prepare(path, schema, tmp_path / "enc")
    assert str(drafted.value) == str(prepared.value)


def test_a_carriage_return_in_quotes_is_no_end_of_a_line(tmp_path):
    lines = [f'{row % 2},"{row % 7}\r{row % 3}",{row % 5}' for row in range(ROWS)]
    (tmp_path / "raw").write_bytes("\n".join(["click,text,days", *lines, ""]).encode())
    draft = draft_schema(tmp_path / "raw")
    assert draft.schema.features == (Sparse("text"), Sparse("days"))
    assert_prepares(tmp_path, tmp_path / "raw", draft.schema)


@pytest.mark.parametrize(
    ("text", "is_noted"),
    [
        ("{},5", True),
        ("1.{:03},25", True),
        ("${}.00", True),
        ("{} %", True),
        ("0{}", False),
        ("${}a", False),
    ],
)
def test_numbers_with_commas_or_signs_are_ids_and_noted(text, is_noted):
    prices = [text.format(n // 2) for n in range(60)]
    draft = draft_schema(pa.table({"click": [0, 1] * 30, "price": prices}))
    assert draft.schema.features == (Sparse("price"),)
    assert any("'price': numbers with commas" in note for note in draft.notes) == is_noted


def _draft_of_prices(price):
    prices = [str(price(i)) for i in range(400)]
    items = [i % 9 for i in range(400)]
    return draft_schema(pa.table({"click": [0, 1] * 200, "item": items, "price": prices}))


@pytest.mark.parametrize(
    ("words", "tenths"),
    [
        *(([word], 1) for word in ("\u2014", "--", "inf")),
        *(([word], 4) for word in ("#N/A", "not given")),
        *((words, 1) for words in (["unknown", "TBD"], ["x", "y", "z", "NA"])),
    ],
)
def test_words_among_numbers_mean_missing_and_are_noted(tmp_path, words, tenths):
    """Prices of which a tenth was a dash became ids, without a note; four with a word did, too."""
    draft = _draft_of_prices(lambda i: words[i // 10 % len(words)] if i % 10 < tenths else i * 7 % 50 / 4)
    assert Dense("price", transform="standard") in draft.schema.features
    assert set(draft.schema.missing["price"]) == set(words)
    assert any("'price'" in note and words[0] in note for note in draft.notes)
    path = tmp_path / "rows.csv"
    lines = [f"{i % 2},{i % 9},{words[0] if i % 10 < tenths else i / 4}" for i in range(400)]
    path.write_text("\n".join(["click,item,price", *lines]) + "\n", encoding="utf-8")
    data = prepare(path, draft.schema, tmp_path / "enc", split="fraction:1,0,0")
    assert data.parts["train"].missing["price"] == 40 * tenths


@pytest.mark.parametrize(
    ("price", "noted"),
    [
        (lambda i: f"{i % 50 / 4} kg", "0.0 kg"),
        (lambda i: f"{i % 50 / 4}kg" if i % 2 else i % 50 / 4, "kg"),
        (lambda i: f"USD {i % 50}", "USD"),
        (lambda i: f"{i % 50} EUR", "EUR"),
        (lambda i: f"{i % 50} km/h", "km/h"),
        (lambda i: f"{i % 3 + 1} {i % 50 + 100}", "1 100"),
        (lambda i: "none" if i % 10 == 3 else f"{i % 50}%", "%"),
        (lambda i: "\u2014" if i % 10 == 3 else f"\u20ac{i % 50}", "\u20ac"),
        (lambda i: f"({i % 50 / 4})" if i % 10 == 3 else i % 50 / 4, "("),
        (lambda i: f"~{i % 50}" if i % 10 == 3 else i % 50 / 4, "~"),
        (lambda i: ("not given", "gone")[i % 2] if i % 10 < 2 else i % 50 / 4, "not given"),
        (lambda i: "abcdefgh"[i // 10 % 8] if i % 10 == 3 else i % 50 / 4, "'a'"),
        (lambda i: f"{i % 28 + 1:02}/03/2024" if i % 2 else f"2024-03-{i % 28 + 1:02}", "03/2024"),
        (lambda i: "unknown" if i % 10 == 3 else f"2024-03-{i % 28 + 1:02}", "unknown"),
        (lambda i: f"{i % 50 + 1}.000,5", "marks: `hotrows schema --decimal , --thousands .`"),
        (lambda i: f"{i % 50 + 1},000.5", "marks: `hotrows schema --thousands ,`"),
        (lambda i: f"${i % 50 + 1},000.5", "write them as 1234.5"),
        (lambda i: f"{i % 28 + 1}-Mar-2024", "with names of months"),
        (lambda i: f"March {i % 28 + 1}, 2024 10:30", "with names of months"),
        (lambda i: f"0{i % 9 + 1}/05/2024 10:30 PM", "AM and PM"),
    ],
)
def test_what_are_nearly_numbers_or_times_is_noted(price, noted):
    draft = _draft_of_prices(price)
    assert Sparse("price") in draft.schema.features
    assert any(note.startswith("'price': ") and noted in note for note in draft.notes)


@pytest.mark.parametrize(
    "price",
    [
        lambda i: f"{i % 50}{'ABCDE'[i % 5]}",
        lambda i: f"item {i % 50}",
        lambda i: f"10.0.{i % 7}.{i % 50}",
        lambda i: f"{i % 50:03}",
        lambda i: f"decor {i % 50}",
        lambda i: "SML"[i % 3] if i % 10 == 3 else i % 14,
        lambda i: f"{i % 7}/{i % 9 + 1}",
        lambda i: f"{i % 50 * 2654435761 % 2**32:08x}",
    ],
)
def test_codes_are_ids_without_a_note(price):
    draft = _draft_of_prices(price)
    assert Sparse("price") in draft.schema.features and draft.schema.missing == ()
    assert not any("'price'" in note for note in draft.notes)


def test_columns_of_one_name_are_refused_as_those_of_the_file(tmp_path):
    """It was said of a schema's features, which nobody had written yet."""
    (tmp_path / "raw.csv").write_text(
        "label,user,user\n" + "".join(f"{n % 2},{n % 7},{n % 5}\n" for n in range(50))
    )
    with pytest.raises(
        ValueError, match=re.escape("raw.csv names the columns ['user'] twice; rename one")
    ):
        draft_schema(tmp_path / "raw.csv")


def test_types_that_no_feature_reads_are_left_out():
    table = pa.table(
        {
            "label": [0, 1] * 20,
            "user": list(range(4)) * 10,
            "deep": [[["a"]]] * 40,
            "pair": [{"a": 1}] * 40,
            "took": [datetime.timedelta(seconds=n) for n in range(40)],
            "empty": pa.nulls(40),
        }
    )
    draft = draft_schema(table)
    assert draft.schema.features == (Sparse("user"),)
    assert len([note for note in draft.notes if "left out" in note]) == 4


def test_ids_that_a_spreadsheet_rounded_are_noted(tmp_path):
    lines = [f"{i % 2},{1 + i % 9}.{i % 5}0000E+12" for i in range(400)]
    (tmp_path / "x.csv").write_text("\n".join(["click,user_id", *lines, ""]))
    (note,) = (n for n in draft_schema(tmp_path / "x.csv").notes if "user_id" in n)
    assert note.startswith("'user_id': a spreadsheet rounded numbers such as 1.00000E+12")


def test_decimals_without_a_scale_are_ids_as_whole_numbers_are(tmp_path):
    """A draft made features of them, which `prepare` then refused."""
    ids = [10**30 + i % 40 for i in range(200)]
    clicks = [i % 2 for i in range(200)]
    table = pa.table(
        {"user_id": pa.array(map(decimal.Decimal, ids), pa.decimal128(38, 0)), "click": clicks}
    )
    schema = draft_schema(table).schema
    assert schema.features == (Sparse("user_id"),)
    prepare(table, schema, tmp_path / "decimals")
    prepare({"user_id": list(map(str, ids)), "click": clicks}, schema, tmp_path / "text")
    assert files_of(tmp_path / "decimals") == files_of(tmp_path / "text")


def test_the_command_writes_a_schema_and_what_it_is_unsure_of(tmp_path, capsys):
    path, out = str(tmp_path / "clicks.csv"), str(tmp_path / "clicks.json")
    clicks().to_csv(path, index=False)
    cli.main(["schema", path])
    printed = capsys.readouterr()
    assert json.loads(printed.out)["label"] == "click"
    assert "hotrows: 'row' is left out" in printed.err
    cli.main(["schema", path, "--out", out])
    assert Schema.load(tmp_path / "clicks.json") == draft_schema(path).schema
    written = capsys.readouterr()
    assert written.out == "" and f"--schema {out} --split time:0.8,0.1,0.1 --out enc" in written.err
    assert f"{out}: Schema('custom', label click; " in written.err
    with pytest.raises(SystemExit) as error:
        cli.main(["schema", path, "--out", out])
    assert error.value.code == 2 and "exists; name another file" in capsys.readouterr().err


def test_numbers_that_are_ids_by_how_often_they_come_are_ids():
    """A column of item numbers that no name calls an id was read as an amount."""
    rng = np.random.default_rng(0)
    popular = rng.permutation(500)
    ids = popular[np.minimum(rng.geometric(0.01, 20_000), 500) - 1] + 1
    amounts = np.minimum(rng.geometric(0.01, 20_000), 500)
    even = rng.integers(1, 500, 20_000)
    prices = rng.choice([49, 99, 149, 199, 249], 20_000) + 100 * rng.integers(0, 20, 20_000)
    frame = pd.DataFrame({"thing": ids, "sum": amounts, "even": even, "price": prices})
    frame["click"] = rng.integers(0, 2, 20_000)
    draft = draft_schema(frame)
    kinds = {feature.name: type(feature) for feature in draft.schema.features}
    assert kinds == {"thing": Sparse, "sum": Dense, "even": Dense, "price": Dense}
    assert [note for note in draft.notes if "'thing' is read as ids" in note]


def test_a_column_that_gives_the_label_away_is_named_first_with_its_figure():
    """Nobody learned from a draft that a column was written after the label; `describe` came later."""
    rng = np.random.default_rng(0)
    click = rng.integers(0, 2, 2_000)
    frame = pd.DataFrame({
        "click": click,
        "dwell": np.where(click == 1, rng.gamma(9, 9, 2_000), 0.0),
        "page": np.where(click == 1, "thanks", rng.choice(["home", "list"], 2_000)),
        "size": rng.normal(size=2_000) + click,
        "user": rng.integers(0, 1_000, 2_000),
    })  # fmt: skip
    notes = draft_schema(frame).notes
    assert [note.split(":")[0] for note in notes[:2]] == [
        f"{name!r} alone ranks the label with an AUC of 1.0000" for name in ("dwell", "page")
    ]
    assert not any("alone ranks" in note for note in notes[2:])
    words = frame.assign(click=np.where(click == 1, "yes", "no"))
    assert [n for n in draft_schema(words).notes if "'dwell' alone ranks" in n]


@pytest.mark.parametrize(("name", "is_time"), [("code", False), ("date", True)])
def test_digits_are_a_time_only_where_the_name_says_so(tmp_path, name, is_time):
    day = datetime.date(2024, 1, 1)
    lines = [f"{n % 2},{(day + datetime.timedelta(n // 4)):%Y%m%d},{n % 7}" for n in range(200)]
    (tmp_path / "a.csv").write_text("\n".join([f"label,{name},x", *lines, ""]))
    drafted = draft_schema(tmp_path / "a.csv").schema
    assert (drafted.time == Time("date", "%Y%m%d")) == is_time
    assert (Sparse("code") in drafted.features) != is_time


def test_text_that_never_repeats_is_left_out_unless_its_name_is_that_of_ids_and_more_rows_come(tmp_path):
    lines = [f"{n % 2},s{n:05},n{n * 31},{n % 7}" for n in range(40_000)]
    for rows, kept in ((40_000, {"session_id", "x"}), (200, {"x"})):
        (tmp_path / "a.csv").write_text("\n".join(["label,session_id,note,x", *lines[:rows], ""]))
        drafted = draft_schema(tmp_path / "a.csv")
        assert {feature.name for feature in drafted.schema.features} == kept, drafted.notes


def test_columns_with_types_in_their_names_are_read_by_these(tmp_path):
    """RecBole's files: `rating:float` was no label, and ids from 0 on were amounts."""
    draw = random.Random(2)
    head = (
        "user_id:token\titem:token\trating:float\ttimestamp:float\ttags:token_seq\tage:float\tv:float_seq"
    )
    rows = []
    for n in range(ROWS):
        words = " ".join(draw.choice(["old", "sad", "war"]) for _ in range(n % 3 + 1))
        ids = draw.randrange(400), draw.randrange(90_000), draw.randrange(1, 6)
        rows.append((*ids, 978_300_000 + 977 * n, words, n % 9, "0.5 0.25"))
    path = tmp_path / "a.inter"
    path.write_text("\n".join([head, *("\t".join(map(str, row)) for row in rows), ""]))
    draft = draft_schema(path)
    schema = draft.schema
    assert schema.labels[0] == Label("rating", "rating:float", loss="squared")
    assert schema.time == Time("timestamp:float", "unix") and schema.group == "user_id:token"
    assert Sparse("item", column="item:token") in schema.features
    assert Dense("age", column="age:float", transform="standard") in schema.features
    tags = Sparse("tags", column="tags:token_seq", many=True, pooling="mean", separator=" ")
    what = (
        "values of its type are not read, but lists of numbers as `weights` of another list; of objects, "
        "write the fields as columns"
    )
    assert tags in schema.features and f"'v' is left out: {what}" in draft.notes
    assert draft_schema(path, label="rating:float").schema == draft_schema(path, label="rating").schema
    encoded = prepare(path, schema, tmp_path / "enc", split="time:0.8,0.1,0.1")
    assert encoded.parts["train"].rows == 320
    assert encoded.vocabularies["tags"].num_distinct == 3
    mixed = pd.DataFrame({"user:token": [1, 2, 3], "click": [0, 1, 0]})
    assert [f.name for f in draft_schema(mixed).schema.features] == ["user:token"]


def sorted_clicks(rows=60_000):
    """Rows sorted by a column that has one value in half of them; row numbers, and ids."""
    row = np.arange(rows)
    return pd.DataFrame(
        {
            "row": row,
            "event_id": [f"e{number:07}" for number in row],
            "country": np.where(row < rows * 2 // 3, "de", "fr"),
            "user_id": row * 7919 % 5000,
            "click": row * 31 % 97 % 2,
        }
    )


@pytest.mark.parametrize(
    "kind",
    ["csv", "csv.gz", "csv.zip", "utf-16", "jsonl", "jsonl.gz", "parquet", "groups", "arrow", "frame"],
)
def test_a_sorted_file_is_sampled_to_its_end(tmp_path, kind):
    """`country` had one value in the first 30,000 rows and was left out; row numbers follow each other
    in blocks of the sample alone."""
    frame, path = sorted_clicks(), str(tmp_path / f"rows.{kind}")
    if kind in ("parquet", "groups"):
        frame.to_parquet(path, row_group_size=1000 if kind == "groups" else 50_000)
    elif kind == "arrow":
        frame.to_feather(path, chunksize=7000)
    elif kind.startswith("jsonl"):
        frame.to_json(path, orient="records", lines=True)
    elif kind != "frame":
        frame.to_csv(path, index=False, encoding="utf-16" if kind == "utf-16" else "utf-8")
    draft = draft_schema(frame if kind == "frame" else path)
    assert draft.schema.features == (Sparse("country"), Sparse("user_id"))
    said = next(
        note for note in draft.notes if note.startswith("'row' is left out: another value in each")
    )
    assert 24_000 < int(re.search("[0-9]+,[0-9]{3}", said)[0].replace(",", "")) <= 30_000
    assert "rows from all of the data (a row number?)" in said


def test_no_line_is_sampled_twice_however_long_lines_are(tmp_path):
    """A value that no row shares would be in two of them."""
    with open(tmp_path / "rows.csv", "w") as file:
        file.write("key,text,click\n")
        for row in range(40_000):
            file.write(f"k{row:x}y{row},{'ab' * (200 if row < 900 else 2)}{row % 50},{row % 2}\n")
    assert any(
        note.startswith("'key' is left out: another value in")
        for note in draft_schema(tmp_path / "rows.csv").notes
    )


def bookings(rows=3000):
    """Arrivals, and when bookings changed for the last time: those that were cancelled, before."""
    draw = np.random.default_rng(1)
    cancelled = draw.random(rows) < 0.4
    arrival = 1_709_251_200 + 86_400 * np.sort(draw.integers(0, 300, rows))
    days = np.where(cancelled, -draw.integers(1, 90, rows), draw.integers(1, 9, rows))
    changed = pd.Series(pd.to_datetime(arrival + 86_400 * days, unit="s"))
    arrival = pd.Series(pd.to_datetime(arrival, unit="s"))
    return pd.DataFrame(
        {
            "hotel": draw.integers(0, 9, rows),
            "arrival": arrival,
            "changed": changed,
            "cancelled": cancelled + 0,
        }
    )


AFTER = {
    "name": (
        lambda f: f.drop(columns="arrival").rename(columns={"changed": "reservation_status_date"}),
        None,
    ),
    "name of one": (lambda f: f.rename(columns={"changed": "reservation_status_date"}), "arrival"),
    "missing": (
        lambda f: f.drop(columns="changed").assign(paid=f.arrival.where(f.cancelled == 0)),
        "arrival",
    ),
    "delay": (lambda f: f.assign(arrival=f.arrival - pd.Timedelta(days=99)), "arrival"),
}


@pytest.mark.parametrize("kind", AFTER)
def test_a_time_that_is_known_after_the_label_is_not_the_time(tmp_path, kind):
    """Bookings were split by the date on which they were cancelled, or not."""
    change, time = AFTER[kind]
    frame = change(bookings())
    draft = draft_schema(frame[::-1] if kind == "delay" else frame, label="cancelled")
    assert (draft.schema.time and draft.schema.time.column) == time
    assert "is left out, it seems to be known only after the label: " in draft.notes[0]
    assert draft.notes[0].endswith("; the time is 'arrival'" if time else "; split by position")
    assert draft.split == f"{'time' if time else 'position'}:0.8,0.1,0.1"
    prepare(frame, draft.schema, tmp_path / "enc", split=draft.split)


def test_two_times_that_say_nothing_of_the_label_are_as_they_were():
    frame = bookings().assign(cancelled=np.arange(3000) % 7 % 2)
    draft = draft_schema(frame, label="cancelled")
    assert draft.schema.time == Time("arrival", "iso")
    assert "'changed' is left out: the time is 'arrival'" in draft.notes


@pytest.mark.parametrize("fields", [("", "", ""), ("0:", "1:", "2:")], ids=["libfm", "libffm"])
def test_lines_of_libfm_are_columns(tmp_path, fields):
    """They were refused as those of libsvm, although each position is a field."""
    draw, (a, b, c) = random.Random(2).randrange, fields
    lines = [
        f"{draw(2) * 2 - 1} {a}{draw(40)}:1 {b}{40 + draw(30)}:1 {c}{70 + row % 9}:1"
        for row in range(ROWS)
    ]
    (tmp_path / "rows.libfm").write_text("\n".join([*lines, ""]))
    draft = draft_schema(tmp_path / "rows.libfm")
    assert draft.schema.features == (Sparse("column_2"), Sparse("column_3"), Sparse("column_4"))
    assert draft.schema.labels[0] == Label("column_1", at_least=1)
    assert any(note.startswith("pairs of index:1, a field at each position") for note in draft.notes)
    assert_prepares(tmp_path, tmp_path / "rows.libfm", draft.schema)


def test_text_between_pipes_is_not_of_vowpal_wabbit(tmp_path):
    rows = "".join(f"{row % 7} |New York{row % 3} |{row % 2}\n" for row in range(ROWS))
    (tmp_path / "rows").write_text(rows)
    assert draft_schema(tmp_path / "rows").schema.delimiter == "|"


def test_names_that_reading_changes_are_shown(tmp_path):
    """One in Latin-1 was refused as `name of a sparse must be of type str, not 'caf\\udce9'`."""
    rows = "".join(f"{row % 7},{row % 5},{row % 2}\n" for row in range(ROWS))
    (tmp_path / "rows.csv").write_bytes(" city ,caf\xe9,click\n".encode("latin-1") + rows.encode())
    with pytest.raises(ValueError, match="rows.csv line 1, byte 11: expected UTF-8, found 0xe9; name"):
        draft_schema(tmp_path / "rows.csv")
    draft = draft_schema(tmp_path / "rows.csv", encoding="latin-1")
    assert draft.notes[0] == "names of columns that reading changes: ' city ' is 'city'"
    assert "caf\u00e9" in {feature.name for feature in draft.schema.features}
    assert_prepares(tmp_path, tmp_path / "rows.csv", draft.schema)


def test_notes_come_by_weight_and_the_command_prints_ten(tmp_path, capsys):
    """What gives the label away was below twenty columns that were left out."""
    frame = clicks().assign(**{f"one_{n}": n for n in range(20)}, leak=clicks()["click"] * 3)
    frame.to_csv(tmp_path / "rows.csv", index=False)
    draft = draft_schema(tmp_path / "rows.csv")
    assert draft.notes[0].startswith("'leak' alone ranks the label") and len(draft.notes) > 20
    assert cli.main(["schema", str(tmp_path / "rows.csv")]) in (0, None)
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("hotrows: ")]
    assert said[:10] == [f"hotrows: {note}" for note in draft.notes[:10]]
    assert said[10:] == [
        f"hotrows: {len(draft.notes) - 10} more notes, of less weight: draft_schema(...).notes"
    ]
