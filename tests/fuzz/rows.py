"""Random schemas, and text that more or less fits them."""

from __future__ import annotations

import dataclasses
import random

from hotrows.schema import Dense, Feature, Label, Schema, Sequence, Sparse, Time, is_list

NUMBERS = [
    "0", "1", "-0", "+1", "-1", "2", "2.5", ".5", "5.", ".", "1e3", "1e", "1e400", "-1e39", "1e-400",
    "nan", "inf", "0x10", "1_000", "9223372036854775807", "9223372036854775808",
    "18446744073709551616", "3.4028235e38", "3.4028236e38", "9" * 400, "0" * 300 + "1", " 7 ", "\t7",
    "١", "1\0", "0.1e-5", "1e99999999999999999999", "123456789012345678", "1234567890123456789",
    "-9223372036854775809", "1e19", "4e18", "-62135596801", "253402300800", "1e38", "NaN", "1,234.5",
    "-1.234.567,25", "1,23", "1.234e5", "+1,234e5", ",5", "5,", "1'234", "12,345,6", "20180131",
]  # fmt: skip
WORDS = [
    "", "a", "b", "abcdefgh", "abcdefghi", "é", " x ", "NULL", "\\N", "x|y", "|", "||x|", "a;b;c", "-0",
    "\0", '"', '""', '"a', 'a"b', "x" * 70, "y" * 5000, "\ufeff", "\u2028", "\r", "yes", "0", "12",
]  # fmt: skip
TIMES = [
    "2024-02-29", "2023-02-29", "0000-01-01", "0001-01-01", "9999-12-31", "2024-01-01 23:59:59",
    "20240131",
    "31/12/69", "2024", "24", "2024-01-01 23:59:59+05:30", "9999-12-31T23:59:59-01", "NaN",
    "2024-07-01T00:00Z",
]  # fmt: skip


def of_read(words, features):
    """Words for missing values, by columns that some feature reads; others are refused."""
    read = {feature.column or feature.name for feature in features}
    return words if isinstance(words, tuple) else {name: words[name] for name in words if name in read}


def some_schema(choose: random.Random) -> Schema:
    """A legal schema with a little of everything; columns are named after what they hold."""
    features: list[Feature] = [
        Dense(f"n{i}", transform=choose.choice(("log", "standard", "none", "missing")))
        for i in range(choose.randint(0, 2))
    ]
    clock = choose.choice([{}, {}, {"utc_offset": 0}, {"utc_offset": -5.5}, {"zone": "America/New_York"}])
    time = Time("when", choose.choice(TIME_FORMATS), **clock)
    has_time = choose.random() < 0.5
    for i in range(choose.randint(0, 4)):
        features.append(_id_feature(choose, f"s{i}", has_time))
    label = choose.choice(
        [
            "label",
            Label("label", positive=("yes", "é")),
            Label("label", at_least=choose.choice([1, 0.5])),
            ("label", Label("other", column="n9", at_least=2)),
        ]
    )
    words = choose.choice([(), (), ("NULL",), ("\\N", "é", "-1"), {"s0": ("NULL", "a"), "n0": ("-1",)}])
    schema = Schema(
        features=tuple(features),
        label=label,
        delimiter=choose.choice("\t\t,,;| \x01a0\0.-"),
        weight=choose.choice([None, None, "w"]),
        group=choose.choice([None, None, "g"]),
        time=time if has_time else None,
        missing=of_read(words, features),
        strip=choose.random() < 0.3,
        encoding=choose.choice(["utf-8", "utf-8", "utf-8", "latin-1"]),
        **choose.choice([{}, {}, {}, {"thousands": ","}, {"decimal": ",", "thousands": "."}]),
    )
    if choose.random() < 0.5:
        names = [*schema.raw_columns, *("u0", "u1")[: choose.randint(0, 2)]]
        choose.shuffle(names)
        schema = dataclasses.replace(schema, columns=tuple(names))
    return schema


TIME_FORMATS = (
    "unix",
    "unix_ms",
    "unix_us",
    "iso",
    "%Y-%m-%d",
    "%Y%m%d",
    "%d/%m/%y",
    "%Y-%m-%d %H:%M:%S",
    "%Y é%S",
    "%y",
)


def _id_feature(choose: random.Random, name: str, has_time: bool) -> Feature:
    unknown = choose.choice([1, 1, 1, 3, 0])
    unknown_options = {"num_unknown": unknown, "min_count": choose.choice([1, 1, 2]) if unknown else 1}
    kind = choose.randrange(6)
    length, separator = choose.choice([None, 1, 2]), choose.choice("|; ,\0")
    if kind == 0:
        return Sequence(name, max_length=length, separator=separator, **unknown_options)
    if kind == 1:
        return Sparse(name, many=True, max_length=length, separator=separator, **unknown_options)
    if kind == 2:
        return Sparse(name, transform="log", **unknown_options)
    if kind == 3:
        return Sparse(name, transform="bucket", boundaries=(-1.5, 0, 1e30), **unknown_options)
    if kind == 4 and has_time:
        return Sparse(
            name, transform=choose.choice(["hour", "weekday", "weekend", "day"]), **unknown_options
        )
    return Sparse(name, **unknown_options)


def some_value(choose: random.Random, schema: Schema, column: str) -> str:
    """A value for a column: mostly right, sometimes odd."""
    if choose.random() < 0.004:
        return choose.choice(NUMBERS + WORDS + TIMES)
    if column == "label":
        return choose.choice(["0", "1", "1.0", "+0"])
    if column == "when" and schema.time is not None:
        return _some_time(choose, schema.time.format)
    numbers = [f.name for f in schema.sparse if f.transform != "none"]
    if column[0] in "nw" or column in numbers:
        odd = choose.choice(NUMBERS) if choose.random() < 0.01 else ""
        return odd or choose.choice(["", "1", "2", "0.25", "17", "3e2", f"{choose.random():.9f}"])
    lists = [f for f in schema.id_features if f.name == column and is_list(f)]
    words = [choose.choice(WORDS) for _ in range(choose.randint(0, 4) if lists else 1)]
    return (lists[0].separator if lists else "").join(words)  # type: ignore[union-attr]


def _some_time(choose: random.Random, format: str) -> str:
    if format.startswith("unix"):
        return choose.choice(["", "0", "1700000000", "1700000000.9", "-1", "1700000000000"])
    text = "%Y-%m-%d %H:%M:%S.5+01:00" if format == "iso" else format
    for name, low, high in (("m", 1, 12), ("d", 1, 28), ("H", 0, 23), ("M", 0, 59), ("S", 0, 59)):
        text = text.replace(f"%{name}", f"{choose.randint(low, high):02d}")
    text = text.replace("%Y", f"{choose.randint(1, 9999):04d}")
    return text.replace("%y", f"{choose.randint(0, 99):02d}")


def some_text(choose: random.Random, schema: Schema) -> bytes:
    """Rows as delimited text, most of which can be read."""
    names = schema.columns or (*schema.raw_columns, "u0")
    rows = [] if schema.columns else [names]
    for _ in range(choose.choice([1, 2, 3, 3, 5, 10, 40])):
        rows.append([some_value(choose, schema, name) for name in names])
    if choose.random() < 0.02:  # files were appended to each other
        rows.insert(choose.randrange(1, len(rows) + 1), choose.choice([names, names[::-1]]))
    end = choose.choice(["\n", "\n", "\r\n"])
    lines = (schema.delimiter.join(_quoted(value, schema, choose) for value in row) for row in rows)
    text = end.join(lines) + choose.choice([end, end, "", end * 3])
    is_utf8 = schema.encoding == "utf-8"
    return text.encode(schema.encoding, "surrogateescape" if is_utf8 else "replace")


def _quoted(value: str, schema: Schema, choose: random.Random) -> str:
    if schema.delimiter == "\t":
        return value.replace("\t", " ")
    if schema.delimiter in value or '"' in value or choose.random() < 0.05:
        return '"' + value.replace('"', '""') + '"'
    return value
