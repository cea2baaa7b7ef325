"""Rows as a server gets them, in JSON and in Arrow, and as files hold them: a value has one id or number.

The schema of a case is one of NUM_SCHEMAS, whose data is prepared once beside the folders of the cases.
`MAY_REFUSE` says which carriers may refuse a column that others read; those that read it agree. JSON has
no NaN: it is null, or the body is refused. Text has no types: it has no lists of lists, no lists of one
empty value, and an empty list in place of NaN.
"""

from __future__ import annotations

import csv
import io
import json
import math
import random
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from hotrows.data import Encoder, Loader, prepare
from hotrows.data.columns.stream import stream
from hotrows.data.raw.inputs import inputs_of
from hotrows.data.raw.reading import Reading
from hotrows.data.raw.values import MISSING_TIME
from hotrows.data.rows import RawRows
from hotrows.data.stored.encoded import EncodedData
from hotrows.data.stored.user_histories import ShortLists
from hotrows.dynamic import Dynamic
from hotrows.schema import Dense, Feature, Schema, Sequence, Sparse, Time
from hotrows.serving.bodies import Refused, arrow_tables, check_lists, json_tables
from hotrows.serving.json_process import _answer, _tables_of
from hotrows.serving.limits import Limits
from hotrows.serving.requests import RequestEncoder, weights_of
from tests.fuzz.case import Broken, Case
from tests.fuzz.damage import TOKENS, damaged
from tests.fuzz.rows import of_read

NUM_SCHEMAS = 100
MESSAGE = 600  # letters of the longest message
LIMITS = Limits()
LISTS = ("l0", "l1", "l2", "h", "v", "w")
NAN, INF, BERLIN = math.nan, math.inf, "Europe/Berlin"

# ---- values: by kind, the type of an Arrow column and what stands in it; without a type Arrow holds none

WORDS = [
    "1", "7", "7.0", "-0", "007", "1e5", "a", "é", " x ", "NULL", "\\N", "nan", "NaN", "None", "true",
    "True", "2024-03-01", "2024-03-01T10:00:00.500", "2024-03-01T00:00:00Z", "9007199254740993", "x|y",
    "-1", "", "16777217", "9223372036854775808", "1.5", "{}", "[1]", "x" * 70, "|", "0", "\u2028",
]  # fmt: skip
DAY, SECOND = 86_400, 1_709_287_200
MOMENTS = [0, 1, -1, SECOND, SECOND + 1, SECOND + 50, SECOND + 101, DAY * 20_000, None]
FAR = [253_402_300_799, 253_402_300_800, -62_135_596_800, 10**11]
Kinds = dict[str, tuple[pa.DataType | None, list]]
TAME: Kinds = {
    "int64": (pa.int64(), [1, 2, 3, 5, 7, 11, None]),
    "text": (pa.string(), ["1", "a", "b", "7", "é", None]),
}
IDS: Kinds = {
    "far int64": (pa.int64(), [2**53 + 1, 2**63 - 1, -(2**63), -1, 0, 2**24 + 1, 16777216, None]),
    "uint64": (pa.uint64(), [1, 2**63, 2**64 - 1, None]),
    "int8": (pa.int8(), [1, -1, 7, None]),
    "float16": (pa.float16(), [1.0, 7.0, 2047.0, NAN, None, -0.0]),
    "far float16": (pa.float16(), [1.0, 2048.0, 65504.0]),
    "float32": (pa.float32(), [1.0, 7.0, 2.0**24 - 1, NAN, None, -0.0]),
    "far float32": (pa.float32(), [1.0, 2.0**24, 2.0**40]),
    "float64": (pa.float64(), [1.0, 7.0, 2.0**53 - 1, 1e15, NAN, None, -0.0]),
    "far float64": (pa.float64(), [1.0, 2.0**53, 2.0**53 + 2, 1e300, INF]),
    "fractions": (pa.float64(), [1.0, 2.5, -1e-300]),
    "words": (pa.string(), WORDS),
    "large words": (pa.large_string(), [*WORDS, None]),
    "views": (pa.string_view(), [*WORDS, None]),
    "coded words": (pa.dictionary(pa.int8(), pa.string()), [*WORDS, None]),
    "coded numbers": (pa.dictionary(pa.int16(), pa.int64()), [1, 7, 2**53 + 1, None]),
    "flags": (pa.bool_(), [True, False, None]),
    "days": (pa.date32(), [0, 19_783, -1, None]),
    "moments": (pa.timestamp("s"), MOMENTS),
    "milliseconds": (pa.timestamp("ms"), [1000 * SECOND + 500, 0, -1, None]),
    "moments of UTC": (pa.timestamp("us", "UTC"), [10**6 * SECOND, 0, None]),
    "moments of Berlin": (pa.timestamp("us", BERLIN), [10**6 * SECOND, 0, None]),
    "nothing": (pa.null(), [None]),
    "mixed": (None, [1, "a", 2.5, None, "7"]),
    "mixed numbers": (None, [1, 2.0, 7, 2**53 + 1, None, True]),
    "whole and floats": (None, [1, 2.0, 7, 2.0**53 - 1, None]),
    "huge": (None, [1, 2**63, 2**64, 10**40]),
    "objects": (pa.struct([("a", pa.int64())]), [{"a": 1}, {"a": None}, None]),
    "other objects": (None, [{"a": 1}, {"b": [1]}, {}, None]),
    "nested": (pa.list_(pa.list_(pa.int64())), [[[1]], [[]], [], None]),
    "deep": (None, [[[[[[1]]]]], "deep 80", "deep 400", "deep 3000", None]),
}  # fmt: skip
NUMBERS: Kinds = {
    "plain numbers": (pa.float64(), [0.25, -0.0, 1e-300, 3.4e38, -7.5, 2.0**53]),
    "numbers": (pa.float64(), [0.25, -0.0, 1e-300, 3.4e38, -7.5, NAN, None, 2.0**53]),
    "far numbers": (pa.float64(), [1.0, 3.5e38, 1e300, INF, -INF]),
    "float32": (pa.float32(), [0.1, 2.0**24, 3.4e38, NAN, None]),
    "float16": (pa.float16(), [0.1, 65504.0, NAN, None]),
    "far int64": (pa.int64(), [2**24 + 1, 2**53 + 1, 2**63 - 1, -(2**63), 20180131, None]),
    "uint64": (pa.uint64(), [1, 2**63, 2**64 - 1, None]),
    "words": (pa.string(), ["1.5", "7", "1e3", ".5", "-0", "", "NaN", "nan", None]),
    "far words": (pa.string(), ["1.5", "7 ", "abc", "NULL", "1e39", "0x10", "1_000", "1,5", "-1", "١"]),
    "coded numbers": (pa.dictionary(pa.int8(), pa.float64()), [1.5, 7.0, None]),
    "days as numbers": IDS["days"],
    "moments as numbers": IDS["moments"],
} | {name: IDS[name] for name in (
    "flags", "nothing", "mixed", "mixed numbers", "whole and floats", "huge", "objects",
    "nested", "deep",
)}  # fmt: skip
TIMES: Kinds = {
    "seconds": (pa.int64(), MOMENTS),
    "thousands of seconds": (pa.int64(), [m and m * 1000 + 7 for m in MOMENTS]),
    "fractions of seconds": (pa.float64(), [SECOND + 0.9, -0.5, NAN, None, float(SECOND)]),
    "far seconds": (pa.int64(), [*FAR, SECOND, None]),
    "texts": (pa.string(), ["2024-03-01", "2024-03-01T11:00:50.5+01:00", "2024-03-01 10:01Z", "", None]),
    "far texts": (pa.string(), ["9999-12-31T23:59:59Z", "0001-01-01", "9999-12-31T23:59:59-01:00", "x"]),
    "numbers as texts": (pa.string(), ["0", str(SECOND), "1.5", "", "NaN", "1e16"]),
    "days": IDS["days"],
    "far days": (pa.date32(), [2_932_896, 2_932_897, -719_162, 2**31 - 1]),
    "moments": IDS["moments"],
    "milliseconds": IDS["milliseconds"],
    "nanoseconds": (pa.timestamp("ns"), [10**9 * SECOND + 1, -1, -(2**63), 2**63 - 1, None]),
    "far moments": (pa.timestamp("s"), FAR),
    "moments of UTC": IDS["moments of UTC"],
    "moments of Berlin": IDS["moments of Berlin"],
} | {name: IDS[name] for name in ("flags", "nothing", "mixed", "huge", "objects", "nested")}  # fmt: skip

# ---- where carriers may differ: by kind of a column, those that refuse what they would change

JSON, LINES, TEXT = {"body.json", "process"}, {"rows.jsonl"}, {"rows.csv"}
TYPED = {"body.arrow", "rows.arrows", "rows.parquet", "prepared"}
MAY_REFUSE = {
    "uint64": JSON | LINES,
    "huge": JSON | LINES,
    "mixed": JSON | LINES,
    "mixed numbers": JSON | LINES,
    "moments of Berlin": TYPED,
    "fractions": JSON | LINES | TYPED,
    "far float64": JSON | LINES | TYPED,
    "far float32": TYPED,
    "far float16": TYPED,
    "days as numbers": TYPED,  # a column of nothing but nulls, too
    "moments as numbers": TYPED,
    "objects": TYPED,
    "nested": TYPED,
    "moments beside numbers": JSON | LINES | TEXT,
}


PLAIN_NUMBERS = "plain numbers", "numbers", "far numbers", "float32", "float16", "far int64", "uint64"


@dataclass(frozen=True)
class Draw:
    """A column of a case: its kind, and its values in Arrow; None where Arrow has no such column."""

    kind: str
    array: pa.Array | None
    values: list


@dataclass(frozen=True)
class Base:
    """Prepared data, and what serves requests by it. events: of each user, by time, with ids."""

    folder: Path
    encoder: Encoder
    requests: RequestEncoder
    history: Any
    events: dict[bytes, list[tuple[int, int]]]


# ---- a case


def some_served_schema(choose: random.Random) -> Schema:
    """A legal schema whose unknown values have many ids, so that another value is noticed."""
    many = {"num_unknown": 1009}
    keyed = {"dynamic": Dynamic(capacity=1000)}
    clock = choose.choice([{}, {}, {"utc_offset": -5.5}, {"zone": "America/New_York"}])
    time = Time("when", choose.choice(["unix", "iso", "iso", "unix_ms"]), **clock)
    features: list[Feature] = [
        Dense("n0", transform=choose.choice(["log", "standard", "none", "missing"])),
        Sparse("i0", **choose.choice([many, many, keyed, keyed, {}, {"num_unknown": 0}])),
        Sparse("i1", **keyed),
        Sparse("n1", transform="bucket", boundaries=(-1.5, 0, 1e30), **many),
        Sparse("n2", transform="log", **many),
        Sparse("l0", many=True, max_length=choose.choice([None, 2]), **choose.choice([many, keyed])),
        Sequence("l1", max_length=choose.choice([None, 1]), **choose.choice([many, keyed])),
        Sparse("l2", many=True, weights="w", max_length=choose.choice([None, 2]), **many),
        Dense("v", width=2),
    ]
    features = choose.sample(features, choose.randint(2, len(features)))
    has_time = choose.random() < 0.6
    if has_time:
        features += [Sparse("hour", transform="hour"), Sparse("weekday", transform="weekday")]
    of_users = {}
    if has_time and choose.random() < 0.5:
        features += [Sparse("u", **choose.choice([many, {}]))]
        features += [Sequence("h", "item", max_length=choose.choice([None, 2]), **many)]
        of_users = {"user": "u", "histories": ("h",)}
    missing = [(), (), ("\\N", "5"), {"i0": ("NULL", "-1", "7"), "n0": ("7",), "l0": ("a",)}]
    return Schema(
        tuple(features), delimiter=",", time=time if has_time else None,
        missing=of_read(choose.choice(missing), features), strip=choose.random() < 0.2, **of_users,
    )  # fmt: skip


def make_requests(choose: random.Random) -> Case:
    # 1. Draw the columns.
    number = choose.randrange(NUM_SCHEMAS)
    schema = schema_of(number)
    size, hostile = choose.choice([1, 2, 2, 3, 7, 20]), choose.choice([0.05, 0.2, 0.2, 0.8])
    names = [name for name in schema.raw_columns if name != "label" and choose.random() < 0.5]
    if schema.histories:
        choice = choose.choice([*[["u"]] * 6, ["u", "h"], ["h"], ["h"], []])
        names = [*(name for name in names if name not in ("u", "h")), *choice]
    draws = {name: some_draw(choose, schema, name, size, hostile) for name in dict.fromkeys(names)}
    if {"l2", "w"} & draws.keys() and choose.random() < 0.9:  # weights are as many as ids
        draws["l2"] = some_draw(choose, schema, "l2", size, hostile)
        lengths = [len(ids) if isinstance(ids, list) else None for ids in draws["l2"].values]
        draws["w"] = some_draw(choose, schema, "w", size, hostile, lengths)
    if choose.random() < 0.3:  # the same in all rows
        for name in choose.sample(list(draws), choose.randint(0, len(draws))):
            draws[name] = repeated(draws[name], size)
    # 2. Write them for every carrier; harm one body.
    nan = choose.random() < 0.05 and any("nan" in _numbers_in(draw) for draw in draws.values())
    files = files_of(choose, draws, size, schema, NAN if nan else None)
    harmed = ""
    if choose.random() < 0.1:
        harmed = choose.choice([name for name in ("body.json", "body.arrow") if name in files])
        files[harmed] = damaged(files[harmed], choose, TOKENS)
    how = {
        "number": number,
        "kinds": {name: draw.kind for name, draw in draws.items()},
        "harmed": harmed,
        "nan": nan,
    }
    return Case(files, "", {**how, "prepare": choose.random() < 0.05})


def _numbers_in(draw: Draw) -> str:
    return repr(draw.values).replace("'nan'", "")


@lru_cache(NUM_SCHEMAS)
def schema_of(number: int) -> Schema:
    return some_served_schema(random.Random(f"schema {number}"))


def some_draw(
    choose: random.Random,
    schema: Schema,
    name: str,
    size: int,
    hostile: float,
    lengths: list | None = None,
) -> Draw:
    # 1. Choose a kind of values.
    table = TIMES if name == "when" else IDS if name[0] in "iluh" else NUMBERS
    kinds = list(table)
    if schema.time is not None and name == "when":
        of_format = {"iso": "texts", "unix": "seconds", "unix_ms": "thousands of seconds"}
        kinds.insert(0, of_format[schema.time.format])
    if choose.random() >= hostile:
        tame = 1 if name in ("when", "v", "w") else 2
        table, kinds = (TAME, list(TAME)) if table is IDS else (table, kinds[:tame])
    kind = choose.choice(kinds)
    typed, words = table[kind]
    if name == "when" and kinds[0] != "texts" and typed and pa.types.is_temporal(typed):
        kind = "moments beside numbers"
    # 2. Draw a value a row, or a list.
    is_list = name in LISTS
    if is_list == (choose.random() < 0.03):
        form = f"{kind} in place of lists" if is_list else kind
        return draw_of(form, choose.choices(words, k=size), typed)
    if lengths is None:
        odd = choose.choices([0, 1, 2, 3, None], k=size)
        lengths = [2] * size if name == "v" and choose.random() < 0.9 else odd
    flat = draw_of(kind, choose.choices(words, k=sum(filter(None, lengths))), typed)
    ends = np.cumsum([0, *(length or 0 for length in lengths)]).tolist()
    rows = [
        None if length is None else flat.values[a:b]
        for length, a, b in zip(lengths, ends[:-1], ends[1:], strict=True)
    ]
    array = None
    if flat.array is not None:
        offsets = [None if n is None else a for n, a in zip(lengths, ends[:-1], strict=True)]
        array = pa.ListArray.from_arrays(pa.array([*offsets, ends[-1]], pa.int32()), flat.array)
    if not is_list:
        return Draw(f"{kind} in place of values", array, rows)
    form = {"v": "vectors", "w": "factors"}.get(name, "lists")
    return Draw(f"{form} of {kind}", array, rows)


def draw_of(kind: str, words: list, typed: pa.DataType | None) -> Draw:
    """A column of these values, and as JSON has them: moments are text."""
    if typed is None:
        return Draw(kind, None, words)
    if pa.types.is_floating(typed):
        array = pa.array(words, pa.float64()).cast(typed, safe=False)
    elif pa.types.is_dictionary(typed):
        array = pa.array(words, typed.value_type).dictionary_encode().cast(typed)
    else:
        array = pa.array(words, typed)
    is_moment = pa.types.is_temporal(typed)
    return Draw(kind, array, (array.cast(pa.string()) if is_moment else array).to_pylist())


def repeated(draw: Draw, size: int) -> Draw:
    """The column with its first value in all rows."""
    array = None if draw.array is None else pa.concat_arrays([draw.array[:1]] * size)
    return Draw(draw.kind, array, draw.values[:1] * size)


def files_of(
    choose: random.Random, draws: dict[str, Draw], size: int, schema: Schema, nan: float | None
) -> dict[str, bytes]:
    """The rows in every carrier that can hold them."""
    files = {}
    as_file = dict(draws)
    if "u" in draws and "h" not in draws and schema.histories:
        as_file["h"] = Draw("nothing", pa.nulls(size), [None] * size)  # a file needs a column for them
    # 1. JSON, what all rows have in common once or in each of them.
    values = {name: draw.values for name, draw in draws.items()}
    shared = {
        name: rows[0]
        for name, rows in values.items()
        if choose.random() < 0.5 and all(repr(row) == repr(rows[0]) for row in rows)
    }
    if len({"l2", "w"} & shared.keys()) == 1:  # which is refused
        shared = {name: value for name, value in shared.items() if name not in ("l2", "w")}
    is_sparse = choose.random() < 0.3 and not {"l2", "w", "u", "h"} & draws.keys()
    rows = [{n: v[i] for n, v in values.items() if n not in shared} for i in range(size)]
    if is_sparse:
        rows = [{n: v for n, v in row.items() if v is not None} for row in rows]
    body = {"rows": rows, "shared": shared} if shared or choose.random() < 0.1 else rows
    files["body.json"] = json_bytes(body, nan)
    files["rows.jsonl"] = b"".join(
        json_bytes({name: draw.values[i] for name, draw in as_file.items()}, None) + b"\n"
        for i in range(size)
    )
    # 2. Arrow, and Parquet of what it stores.
    if all(draw.array is not None for draw in draws.values()) and draws:
        for name, columns in {"body.arrow": draws, "rows.arrows": as_file}.items():
            table = pa.table({name: draw.array for name, draw in columns.items()})
            with pa.ipc.new_stream(sink := io.BytesIO(), table.schema) as writer:
                writer.write_table(table)
            files[name] = sink.getvalue()
        with suppress(pa.ArrowException, NotImplementedError):
            pq.write_table(table, sink := io.BytesIO())
            files["rows.parquet"] = sink.getvalue()
            for column in [column for column in schema.raw_columns if column not in as_file]:
                values_of = pa.array([0] * size) if column == "label" else pa.nulls(size)
                table = table.append_column(column, values_of)
            pq.write_table(table, sink := io.BytesIO())
            files["labelled.parquet"] = sink.getvalue()
    # 3. Text.
    cells = {
        name: [text_of(value, name in LISTS) for value in draw.values] for name, draw in as_file.items()
    }
    if cells and not any(None in column for column in cells.values()):
        writer = csv.writer(text := io.StringIO(newline=""), lineterminator="\n")
        writer.writerow(cells)
        writer.writerows(zip(*cells.values(), strict=True))
        files["rows.csv"] = text.getvalue().encode()
    return files


def json_bytes(value: Any, nan: float | None) -> bytes:
    """JSON with `nan` in place of NaN, and lists of lists that Python itself does not write."""
    text = json.dumps(_with_nan(value, nan), ensure_ascii=False)
    for depth in (80, 400, 3000):
        text = text.replace(f'"deep {depth}"', "[" * depth + "]" * depth)
    return text.encode()


def _with_nan(value: Any, nan: float | None) -> Any:
    if isinstance(value, dict):
        return {name: _with_nan(item, nan) for name, item in value.items()}
    if isinstance(value, list):
        return [_with_nan(item, nan) for item in value]
    return nan if isinstance(value, float) and math.isnan(value) else value


def text_of(value: Any, in_list: bool = False) -> str | None:
    """A value as text has it; None where text does not tell it from others."""
    if isinstance(value, list) and not in_list:
        return None
    if isinstance(value, list):
        items = [text_of(item) for item in value]
        cannot = any(item is None or "|" in item or "\u2028" in item for item in items) or items == [""]
        return (
            None if cannot or any(isinstance(item, list) for item in value) else "|".join(map(str, items))
        )
    if isinstance(value, dict) or (isinstance(value, str) and value.startswith("deep ")):
        return None
    is_empty = value is None or (in_list and value != value)
    return "" if is_empty else str(value)


# ---- what the carriers say


@lru_cache(NUM_SCHEMAS)
def base_of(folder: Path, number: int) -> Base:
    """The data of a schema, prepared in a folder or found there."""
    schema, choose = schema_of(number), random.Random(f"base {number}")
    names = [name for name in schema.raw_columns if name != "label"]
    columns: dict[str, Any] = {"label": [0, 1] * 20}
    for name in names:
        if name == "when":
            assert schema.time is not None
            times = [SECOND + choose.randrange(100) for _ in range(40)]
            if schema.time.format == "iso":
                columns[name] = pa.array(times, pa.timestamp("s", choose.choice([None, "UTC", BERLIN])))
            else:
                columns[name] = [t * 1000 for t in times] if schema.time.format == "unix_ms" else times
        elif name[0] == "n":
            columns[name] = [choose.choice([0.5, 1.5, 7.0, 20.0, None]) for _ in range(40)]
        else:
            kind = choose.choice(list(TAME))
            rows = [choose.choices(TAME[kind][1], k=3) for _ in range(40)]
            columns[name] = rows if name in LISTS else [row[0] for row in rows]
    columns.pop("h", None)
    columns |= {name: [[0.5, 1.5, 2.5][: 3 - (name == "v")]] * 40 for name in {"v", "w"} & columns.keys()}
    events: Any = ()
    if schema.histories:
        columns["u"] = [choose.choice([1, 2, 3, 7]) for _ in range(40)]
        items = [choose.choice([1, 5, 2**53 + 1, 11]) for _ in range(40)]
        events = pa.table({"u": columns["u"], "when": columns["when"], "item": items})
    if not folder.exists():
        prepare(pa.table(columns), schema, folder, events=events, split="fraction:1,0,0", threads=1)
    encoder = Encoder.open(folder, 1, 1 << 20)
    requests = RequestEncoder(encoder, histories=lambda: encoder.histories)
    past = past_of(events, encoder) if schema.histories else {}
    return Base(folder, encoder, requests, events, past)


def past_of(events: Any, encoder: Encoder) -> dict[bytes, list[tuple[int, int]]]:
    """The events of each user, by time."""
    users, items = events["u"].to_pylist(), events["item"].to_pylist()
    table = pa.table({"h": [[item] for item in items], "when": events["when"]})
    (read,) = (chunk for _, chunk in stream(inputs_of(table), Reading(encoder.schema, 1, False)))
    of_items, times = encoder.encode_rows(read).values("ids/h"), read.values["times"]
    past: dict[bytes, list[tuple[int, int]]] = {}
    for user, time, item in zip(users, times.tolist(), of_items.tolist(), strict=True):
        past.setdefault(str(user).encode(), []).append((time, item))
    return {user: sorted(events, key=lambda event: event[0]) for user, events in past.items()}


Read = dict[str, list]  # by feature, the ids of each row; and the dense values of all


def of_requests(base: Base, tables: Callable[[], tuple[Any, Any]]) -> Read:
    """What the server makes of a body."""
    rows, shared = tables()
    check_lists(rows, LIMITS.places)
    requests = base.requests.encode(rows, shared)
    features = names_of(base.encoder.schema)
    read: Read = {name: [] for name in [*features, "dense"]}
    for request in requests:
        request = request.with_histories(base.encoder.histories, ShortLists())
        for name in features:
            read[name] += lists_of(request.ids[name], request.offsets[name], request.size)
        read["dense"] += [row.tobytes() for row in request.dense]
    return read


def names_of(schema: Schema) -> list[str]:
    """The features with ids, and the weights of ids."""
    return [f.name for f in schema.id_features] + [weights_of(f.name) for f in schema.sparse if f.weights]


def lists_of(ids: np.ndarray, offsets: np.ndarray | None, size: int) -> list[list[int]]:
    bounds = np.arange(len(ids) + 1) if offsets is None else offsets
    lists = [ids[a:b].tolist() for a, b in pairwise(bounds)]
    return lists * size if len(lists) == 1 else lists


def of_file(base: Base, path: str, is_past: bool) -> Read:
    """What the encoder makes of a file. is_past: whether lists of users are those of their events."""
    schema = base.encoder.schema
    features = names_of(schema)
    read: Read = {name: [] for name in [*features, "dense"]}
    sections = [f"ids/{f.name}" for f in schema.id_features]
    sections += [f"weights/{f.name}" for f in schema.sparse if f.weights]
    for _, columns in stream(inputs_of(path), Reading(schema, 1, False)):
        rows = base.encoder.encode_rows(columns)
        for section, name in zip(sections, features, strict=True):
            read[name] += lists_of(rows.values(section), rows.bounds_of(section), len(rows))
        read["dense"] += [row.tobytes() for row in base.encoder.columns.dense(rows)]
        if is_past:
            read["h"][-len(rows) :] = past_lists(base, columns)
    return read


def past_lists(base: Base, columns: RawRows) -> list[list[int]]:
    """The last events of each row's user before its time, found one by one."""
    users, times = columns.values["ids/u"], columns.get("times")
    length = base.encoder.schema.sequences[-1].max_length
    lists = []
    for row in range(columns.num_rows):
        time = MISSING_TIME if times is None else int(times[row])
        events = base.events.get(users.value(row), [])
        past = [item for at, item in events if time == MISSING_TIME or at < time]
        lists.append(past[-length:] if length else past)
    return lists


def of_prepared(base: Base, path: str) -> Read:
    """What `prepare` makes of a file by the encoders of the data, read back."""
    prepare(path, None, "out", like=base.folder, events=base.history, split="fraction:1,0,0", threads=1)
    data = EncodedData.open("out")
    part = data.parts["train"]
    (batch,) = Loader(part, part.rows, shuffle=False).batches(0)
    ids, size = batch.ids.numpy(), batch.size
    bounds = np.arange(len(ids) + 1) if batch.offsets is None else batch.offsets.numpy()
    read: Read = {"dense": [row.tobytes() for row in batch.dense.numpy()]}
    for f, name in enumerate(batch.features):
        read[name] = lists_of(ids, bounds[f * size : (f + 1) * size + 1], size)
    return read


def answer(action: Callable[[], Read]) -> Read | str:
    """What an action reads, or the message by which it refuses."""
    try:
        return action()
    except Exception as error:
        message = str(error)
        if type(error) not in (ValueError, Refused):
            raise Broken(f"{type(error).__name__}: {message[:300]}") from error
        if not message.isprintable() or len(message) > MESSAGE:
            raise Broken(f"message is not one short line: {message[:3000]!r}") from error
        return message


def run_requests(case: Case) -> None:
    how, files = case.how, case.files
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        base = base_of(Path.cwd().parent / f"base {how['number']}", how["number"])
        names = base.requests.names
        body = files["body.json"]
        actions: dict[str, Callable[[], Read]] = {
            "body.json": lambda: of_requests(base, lambda: json_tables(body, LIMITS.rows, names)),
            "process": lambda: of_requests(base, lambda: _tables_of(_answer(body, LIMITS.rows, names))),
        }
        if arrow := files.get("body.arrow"):
            of_arrow = (arrow, LIMITS.body, LIMITS.rows, names)
            actions["body.arrow"] = lambda: of_requests(base, lambda: arrow_tables(*of_arrow))
        is_past = "u" in how["kinds"] and "h" not in how["kinds"] and bool(base.events)
        for name in [name for name in files if name.startswith("rows.")]:
            actions[name] = lambda name=name: of_file(base, name, is_past)
        is_whole = "h" not in how["kinds"] and len({"l2", "w"} & how["kinds"].keys()) != 1
        if how["prepare"] and is_whole and "labelled.parquet" in files:
            actions["prepared"] = lambda: of_prepared(base, "labelled.parquet")
        answers = {name: answer(action) for name, action in actions.items()}
    if case.how["harmed"]:
        answers.pop(case.how["harmed"])
        answers = {n: a for n, a in answers.items() if n != "process" or "json" not in case.how["harmed"]}
    if base.events and isinstance(answers.get("prepared"), str):
        del answers["prepared"]  # where each row needs a time
    if how["nan"] and not all(isinstance(answers.pop(name, ""), str) for name in JSON):
        raise Broken("a body of JSON with NaN was read")
    if how["kinds"]:  # else a file has no column to read, and JSON rows without values
        compare(answers, how["kinds"])


def may_refuse(kind: str) -> set[str]:
    """The carriers that may refuse a column of a kind that others read."""
    if " in place of " in kind:
        return JSON | LINES | TYPED | TEXT
    form, _, inner = kind.partition(" of ")
    if kind in MAY_REFUSE or form not in ("lists", "factors", "vectors"):
        return MAY_REFUSE.get(kind, set())
    is_typed = form != "lists" and inner not in PLAIN_NUMBERS  # which are refused by their type
    of_form = TEXT if form == "vectors" else set()
    return MAY_REFUSE.get(inner, set()) | of_form | (TYPED | JSON | LINES if is_typed else set())


def compare(answers: dict[str, Read | str], kinds: dict[str, str]) -> None:
    read = {name: a for name, a in answers.items() if not isinstance(a, str)}
    refused = {name: a for name, a in answers.items() if isinstance(a, str)}
    first, *others = read or [""]
    for other in others:
        differ = [name for name, rows in read[other].items() if read[first][name] != rows]
        if differ:
            values = " and ".join(str(read[carrier][differ[0]])[:200] for carrier in (first, other))
            raise Broken(f"{first} and {other} differ in {differ}: {values}; {kinds}")
    may = set[str]().union(*map(may_refuse, kinds.values()))
    if read and (wrong := {name: why for name, why in refused.items() if name not in may}):
        raise Broken(f"{list(read)} read what others refuse: {wrong}; {kinds}")
