"""Whether the fields of features and of a schema fit together, and which of them stored schemas have.

Features and schemas are checked when they are made: see `schema`.
"""

from __future__ import annotations

import codecs
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from hotrows.dynamic import check_feature, expiring


def check_ids(feature: Any) -> None:
    """Raises ValueError where fields of a feature with ids do not fit together."""
    check_feature(feature)
    if feature.num_unknown < 0 or feature.min_count < 1:
        raise ValueError(
            f"feature {feature.name!r}: num_unknown must be at least 0 and min_count at least 1, "
            f"not {feature.num_unknown} and {feature.min_count}"
        )
    if feature.num_unknown == 0 and feature.min_count > 1:
        raise ValueError(
            f"feature {feature.name!r}: num_unknown=0 needs min_count=1, not {feature.min_count}"
        )
    if feature.max_length is not None and feature.max_length < 1:
        raise ValueError(
            f"feature {feature.name!r}: max_length must be at least 1, not {feature.max_length}"
        )
    if len(feature.separator.encode()) != 1:
        raise ValueError(
            f"feature {feature.name!r}: the separator must be one byte, not {feature.separator!r}"
        )


def check_sparse(feature: Any) -> None:
    """Raises ValueError where fields of a sparse feature do not fit together."""
    check_one_of(feature, "pooling", ("sum", "mean"))
    if feature.many and feature.transform != "none":
        raise ValueError(
            f"feature {feature.name!r}: a list takes transform 'none' alone, not {feature.transform!r}"
        )
    if feature.weights is not None and not (feature.many and feature.pooling == "sum"):
        raise ValueError(
            f"feature {feature.name!r}: weights are of lists that are summed: give many=True and "
            f"pooling='sum'; for a mean, divide the weights of each list by their sum"
        )
    rising = all(a < b for a, b in zip(feature.boundaries, feature.boundaries[1:], strict=False))
    if (feature.transform == "bucket") != bool(feature.boundaries) or not rising:
        raise ValueError(
            f"feature {feature.name!r}: transform 'bucket', and it alone, needs boundaries that rise, "
            f"not {feature.boundaries}"
        )


def check_vector(feature: Any) -> None:
    """Raises ValueError where fields of a dense feature do not fit together."""
    check_one_of(feature, "stored", ("float32", "float16"))
    if feature.width is None and feature.stored != "float32":
        raise ValueError(
            f"feature {feature.name!r}: stored={feature.stored!r} is of vectors: give a width"
        )
    if feature.width is not None and (feature.width < 1 or feature.transform != "none"):
        raise ValueError(
            f"feature {feature.name!r}: a vector needs a width of at least 1 and transform 'none', not "
            f"width={feature.width} and {feature.transform!r}"
        )


def check_one_of(feature: Any, field: str, legal: tuple[str, ...]) -> None:
    """Raises ValueError unless the field of a feature has one of the legal values."""
    value = getattr(feature, field)
    if value not in legal:
        options = ", ".join(map(repr, legal[:-1]))
        raise ValueError(
            f"feature {feature.name!r}: {field} must be {options} or {legal[-1]!r}, not {value!r}"
        )


def check_times(schema: str, features: Iterable[Any], made_of_time: Iterable[str]) -> None:
    """Raises ValueError where features are made of the time, or keys expire by it; for a schema, by its
    name, without a time."""
    if of_time := list(made_of_time):
        raise ValueError(
            f"schema {schema!r}: features {of_time} are made of the time; say which column that is: "
            f"time=Time(COLUMN)"
        )
    if timed := expiring(features):
        raise ValueError(
            f"schema {schema!r}: keys of features {timed} expire by the time of samples; say which "
            f"column that is: time=Time(COLUMN)"
        )


def _check_text(schema: Any) -> None:
    """Raises ValueError where encoding or marks of numbers are unknown, or a time has two clocks."""
    if schema.time and schema.time.zone is not None and schema.time.utc_offset is not None:
        raise ValueError(f"time {schema.time.column!r}: give either zone= or utc_offset=, not both")
    try:
        "\n".encode(schema.encoding)
        object.__setattr__(schema, "encoding", codecs.lookup(schema.encoding).name)
        object.__setattr__(schema, "missing", schema.missing or ())
    except (LookupError, ValueError):
        raise ValueError(
            f"schema {schema.name!r}: encoding {schema.encoding!r} is not known; such are 'latin-1', "
            f"'cp1252' and 'utf-16-le'"
        ) from None
    decimal, thousands = schema.decimal, schema.thousands
    if (
        decimal not in (".", ",")
        or thousands not in ("", ".", ",", "'", " ", "_")
        or decimal == thousands
    ):
        raise ValueError(
            f"schema {schema.name!r}: expected decimal '.' or ',', and as thousands another one, \"'\", "
            f"' ', '_' or none, not {decimal!r} and {thousands!r}"
        )


def check_names(schema: Any) -> None:
    """Raises ValueError where features, labels and columns of a schema do not fit together."""
    # Names must be unique.
    features = [feature.name for feature in schema.features]
    for what, names in (("feature", features), ("label", [label.name for label in schema.labels])):
        if twice := sorted(name for name, count in Counter(names).items() if count > 1):
            raise ValueError(f"schema {schema.name!r}: {what} names must be unique, twice: {twice}")
    if not schema.labels:
        raise ValueError(f"schema {schema.name!r} needs at least one label")
    shared = "request=COLUMN and, beside it, shared=(FEATURE, ...) of its features"
    histories = "user=COLUMN, time=Time(COLUMN) and histories=(SEQUENCE, ...) of its sequences"
    for named, all_of, columns, expected in (
        (schema.shared, schema.features, (schema.request,), shared),
        (schema.histories, schema.sequences, (schema.user, schema.time), histories),
    ):
        unknown = sorted(set(named) - {feature.name for feature in all_of})
        if unknown or bool(named) != (columns[0] is not None) or (named and None in columns):
            raise ValueError(
                f"schema {schema.name!r}: expected {expected}, not {', '.join(map(repr, columns))} and "
                f"{unknown or list(named)}"
            )
    if len({name in schema.shared for name in schema.histories}) > 1:
        raise ValueError(f"schema {schema.name!r}: name all histories in shared, or none of them")
    if stored := sorted({feature.name for feature in schema.vectors} & set(schema.shared)):
        raise ValueError(
            f"schema {schema.name!r}: vectors are stored by sample: leave {stored} out of shared"
        )
    labels = [label.column or label.name for label in schema.labels]
    read = [(schema.column_of(f), getattr(f, "weights", None)) for f in schema.features]
    telling = [name for name, columns in zip(features, read, strict=True) if {*columns} & {*labels}]
    if telling := [name for name in telling if not name.startswith("histories/")]:
        raise ValueError(
            f"schema {schema.name!r}: features {telling} read a label's column, and would tell it"
        )
    known = {*(schema.columns or schema.raw_columns), *schema.histories}
    if absent := [column for column in schema.raw_columns if column not in known]:
        raise ValueError(
            f"schema {schema.name!r}: columns {absent} are used, and do not stand in `columns`"
        )
    read_from = {*known, *_columns_of_features(schema)}
    if isinstance(schema.missing, dict) and (unread := sorted(schema.missing.keys() - read_from)):
        raise ValueError(
            f"schema {schema.name!r}: `missing` names {unread}, which no feature or label reads: name "
            f"raw columns, which are {sorted(read_from)[:20]} here"
        )
    _check_text(schema)


def reading_less(schema: Any, **fields: Any) -> Any:
    """A schema of the same rows that reads fewer columns by other `fields`; `missing` keeps to these."""
    fewer, words = replace(schema, missing=(), **fields), schema.missing
    if isinstance(words, dict):
        read_from = {*fewer.raw_columns, *_columns_of_features(fewer)}
        words = {column: words[column] for column in words if column in read_from}
    return replace(fewer, missing=words)


def _columns_of_features(schema: Any) -> set[str]:
    """Columns of the samples, and of events that histories are made of."""
    return {feature.column or feature.name for feature in schema.features}


def leave_out_defaults(schema: dict[str, Any]) -> None:
    """Takes out of a schema's fields what schemas had not before: they are a part of fingerprints."""
    for field, others in (("request", "shared"), ("user", "histories")):
        if schema[field] is None:
            del schema[field], schema[others]
    for field, default in (("encoding", "utf-8"), ("decimal", "."), ("thousands", "")):
        if schema[field] == default:
            del schema[field]
    if schema["time"] and schema["time"]["zone"] is None:
        del schema["time"]["zone"]
    label = schema["label"]
    for fields in label if isinstance(label, tuple) else [label]:
        if isinstance(fields, dict) and fields["loss"] is None:
            del fields["loss"]
    for feature in schema["features"]:
        _leave_out_defaults(feature)


def _leave_out_defaults(feature: dict[str, Any]) -> None:
    if feature.get("width", 0) is None:
        del feature["width"], feature["stored"]
    if feature.get("weights", "") is None:
        del feature["weights"]
    if feature.get("dynamic") is None:
        feature.pop("dynamic", None)
        return
    window, partitions = (feature["dynamic"].pop(name) for name in ("window", "partitions"))
    feature["dynamic"] |= {"keep": None, "window": window}  # `keep` was a field, None at all times
    if partitions != 1:
        feature["dynamic"]["partitions"] = partitions


def with_current_fields(feature: dict[str, Any]) -> dict[str, Any]:
    """Fields of a stored feature, but for `keep` of its dynamic ids, which was null at all times."""
    dynamic = feature.get("dynamic")
    if not isinstance(dynamic, dict) or dynamic.get("keep", 0) is not None:
        return feature
    return {**feature, "dynamic": {name: value for name, value in dynamic.items() if name != "keep"}}
