"""Hostile calls of the Python API: wrong types and ranges; each raises ValueError with one clear line."""

import math

import pandas as pd
import pytest

import hotrows
from hotrows import (
    FTRL,
    SGD,
    Adagrad,
    Dense,
    Label,
    LazyAdam,
    Schema,
    Sequence,
    Sparse,
    Table,
    Time,
    TrainConfig,
)
from hotrows.optim import from_json as optimizer_from_json
from hotrows.runtime.units import parse_bytes

INF, NAN, HUGE = math.inf, math.nan, 2**70


def refused(call, piece):
    with pytest.raises(ValueError) as error:
        call()
    message = str(error.value)
    assert piece in message, message
    assert message.isprintable() and len(message) < 500


def each(name, values, piece):
    return [pytest.param(name, value, piece, id=f"{name} {n}") for n, value in enumerate(values)]


@pytest.mark.parametrize(
    ("name", "value", "piece"),
    [
        *each("batch_size", [0, -1, 1 << 41, HUGE], "batch_size must be at"),
        *each("batch_size", ["64", 1.5, True, [64], {}], "batch_size must be a whole number, not"),
        *each("batch_size", [1 << 16000], "not a number of many digits"),
        *each("epochs", ["x", 2.0], "epochs must be a whole number, not"),
        *each("epochs", [0, 10**9 + 1], "epochs must be at"),
        *each("steps", [0, -1], "steps must be at least 1, not"),
        *each("steps", [HUGE], "steps must be a whole number of at most 64 bits"),
        *each("seed", ["0", 0.0, None], "seed must be a whole number"),
        *each("seed", [HUGE, -HUGE], "seed must be a whole number of at most 64 bits"),
        *each("dense_lr", [0, -1, NAN, -INF], "dense_lr must be above 0, not"),
        *each("dense_lr", [INF, 10**400], "dense_lr must be a finite number"),
        *each("dense_lr", ["0.1", True, [1]], "dense_lr must be a number, not"),
        *each("timeout", [None, "x"], "timeout must be a number"),
        *each("timeout", [INF, 0, 10**10], "timeout must be a"),
        *each("shuffle", [1, "yes", None], "shuffle must be true or false"),
        *each("model", [3, b"lr"], "model must be text"),
        *each("model_options", [None, [], "dim=3"], "model_options must be names with their values"),
        *each("precision", ["float64", 32, []], "precision must be one of float32, tf32, bfloat16, not"),
        *each("row_optimizer", [3, []], "row_optimizer must be"),
        *each("row_optimizer", ["adams"], "adams"),
        *each("fast_memory", [0, -1], "fast_memory must be at least 1"),
        *each("fast_memory", [1e9, True], "fast_memory must be a whole number"),
        *each("fast_memory", ["", "much", "-1GiB"], "a size must be a number of bytes"),
        *each("store", ["disk", "file:"], "store"),
        *each("label_weights", [{"a": 0}, {"a": INF}, {"a": NAN}, {"a": "1"}], "must be above 0"),
        *each("streams", [0, 2000], "streams must be at"),
    ],
)
def test_a_setting_of_a_wrong_type_or_range(name, value, piece):
    refused(lambda: TrainConfig(**{name: value}), piece)


@pytest.mark.parametrize("kind", [SGD, Adagrad, LazyAdam, FTRL])
@pytest.mark.parametrize("lr", [-1, INF, NAN, "0.1", None, True, 10**400])
def test_a_learning_rate_of_rows(kind, lr):
    """A negative rate trained away from the minimum, and infinity ended in NaN, without a word."""
    refused(lambda: kind(lr=lr), f"{kind.kind}'s lr must be")


@pytest.mark.parametrize(
    ("fields", "piece"),
    [
        ({}, "the kind of a row optimizer must be one of"),
        (None, "the kind of a row optimizer must be one of"),
        ([], "the kind of a row optimizer must be one of"),
        ({"kind": []}, "the kind of a row optimizer must be one of"),
        ({"kind": "adam", "rate": 1}, "adam has no 'rate'"),
        ({"kind": "adam", "beta1": 1}, "adam's beta1 must be from 0 to below 1"),
        ({"kind": "sgd", "lr": -1}, "sgd's lr must be a finite number of at least 0"),
    ],
)
def test_a_row_optimizer_from_json(fields, piece):
    refused(lambda: optimizer_from_json(fields), piece)


@pytest.mark.parametrize(
    ("kind", "fields", "piece"),
    [
        (Dense, {"name": 3}, "name of a dense must be of type str"),
        (Dense, {"name": None}, "name of a dense must be of type str"),
        (Dense, {"name": "x", "transform": "x"}, "transform must be"),
        (Dense, {"name": "x", "column": 3}, "column of a dense must be"),
        (Sparse, {"name": b"x"}, "name of a sparse must be of type str"),
        (Sparse, {"name": "x", "rows": "9"}, "rows of a sparse must be"),
        (Sparse, {"name": "x", "rows": HUGE}, "rows of a sparse must be"),
        (Sparse, {"name": "x", "min_count": 1.5}, "min_count of a sparse must be of type int"),
        (Sparse, {"name": "x", "min_count": 0}, "min_count at least 1"),
        (Sparse, {"name": "x", "num_unknown": -1}, "num_unknown must be at least 0"),
        (Sparse, {"name": "x", "boundaries": "abc", "transform": "bucket"}, "boundaries of a sparse"),
        (Sparse, {"name": "x", "boundaries": (2, 1), "transform": "bucket"}, "boundaries that rise"),
        (Sparse, {"name": "x", "boundaries": (NAN,), "transform": "bucket"}, "boundaries of a sparse"),
        (Sparse, {"name": "x", "pooling": None}, "pooling of a sparse must be of type str"),
        (Sparse, {"name": "x", "many": 1}, "many of a sparse must be of type bool"),
        (Sparse, {"name": "x", "many": True, "separator": "::"}, "must be one byte"),
        (Sequence, {"name": "x", "max_length": 0}, "max_length must be at least 1"),
        (Sequence, {"name": "x", "max_length": "9"}, "max_length of a sequence must be"),
        (Label, {"name": "x", "positive": "yes"}, "positive of a label must be"),
        (Label, {"name": "x", "positive": (1,)}, "positive of a label must be"),
        (Label, {"name": "x", "at_least": NAN}, "at_least of a label must be"),
        (Label, {"name": "x", "at_least": "4"}, "at_least of a label must be"),
        (Time, {"column": None}, "column of a time must be of type str"),
        (Time, {"column": "x", "utc_offset": INF}, "utc_offset of a time must be"),
        (Schema, {"features": None}, "features of a schema must be"),
        (Schema, {"features": "price"}, "features of a schema must be"),
        (Schema, {"features": ("price",)}, "features of a schema must be"),
        (Schema, {"features": Dense("x")}, "features of a schema must be"),
        (Schema, {"features": (Dense("x"), Sparse("x"))}, "feature names must be unique"),
        (Schema, {"features": (), "label": None}, "label of a schema must be"),
        (Schema, {"features": (), "label": ()}, "needs at least one label"),
        (Schema, {"features": (), "label": ("a", "a")}, "label names must be unique"),
        (Schema, {"features": (), "columns": ("a",)}, "columns ['label'] are used"),
        (Schema, {"features": (), "columns": "label"}, "columns of a schema must be"),
        (Schema, {"features": (), "time": "stamp"}, "time of a schema must be"),
        (Schema, {"features": (), "missing": "NA"}, "missing of a schema must be"),
        (Schema, {"features": (), "delimiter": 9}, "delimiter of a schema must be of type str"),
        (Table, {"name": "t", "rows": 0, "dim": 4, "features": ("x",)}, "at least one row"),
        (Table, {"name": "t", "rows": "9", "dim": 4, "features": ("x",)}, "at least one row"),
        (Table, {"name": "t", "rows": 9, "dim": 0.5, "features": ("x",)}, "at least one row"),
        (
            Table,
            {"name": "t", "rows": HUGE, "dim": 4, "features": ("x",)},
            "more weights than any memory",
        ),
        (Table, {"name": "t", "rows": 9, "dim": 4, "features": ()}, "read by no feature"),
    ],
)
def test_a_declaration_of_a_wrong_type_or_range(kind, fields, piece):
    refused(lambda: kind(**fields), piece)


@pytest.mark.parametrize("text", ["", "x", "-1", "1XB", "nan", "1e9", "١", "9" * 30, "9" * 5000, "1.5.5"])
def test_a_size_that_is_none(text):
    refused(lambda: parse_bytes(text), "a size must be")


def test_lists_of_any_kind_are_features():
    names = (name for name in ("a", "b"))
    schema = Schema(features=(Sparse(name) for name in names), columns=["label", "a", "b"])
    assert (len(schema.features), schema.columns) == (2, ("label", "a", "b"))


def test_the_number_of_threads_has_bounds(tmp_path):
    """2^70 threads were a division by zero in the native core, which killed the process."""
    (tmp_path / "raw.csv").write_text("label,x\n0,1\n1,2\n")
    schema = Schema(features=(Sparse("x"),), delimiter=",")
    for threads in (HUGE, -1, 0):
        out = tmp_path / f"out{threads}"
        data = hotrows.prepare(tmp_path / "raw.csv", schema, out, split="fraction:1,0,0", threads=threads)
        assert data.parts["train"].rows == 2


ROWS = pd.DataFrame({"x": [1, 2], "y": ["a", "b"], "label": [0, 1]})


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda out: hotrows.prepare(ROWS, {"x": 1}, out), "expected a Schema, not dict; draft_schema"),
        (lambda out: hotrows.prepare(ROWS, "shop.json", out), "expected a Schema, not str"),
        (lambda out: hotrows.Trainer(ROWS), "expected prepared data, not DataFrame: hotrows.prepare"),
        (lambda out: hotrows.data.draft_schema(ROWS.iloc[0]), "found Series|not Series$"),
        (lambda out: hotrows.data.draft_schema(ROWS["x"]), "found Series|not Series$"),
        (lambda out: hotrows.data.draft_schema(ROWS.to_dict("records")), "rows make a frame"),
    ],
)
def test_data_of_another_kind(tmp_path, call, message):
    with pytest.raises(ValueError, match=message) as refused:
        call(tmp_path / "out")
    assert "\n" not in str(refused.value)
