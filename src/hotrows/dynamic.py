"""Dynamic ids: when a key gets a row of a table that grows and shrinks, and when it loses it again.

    Dynamic(capacity=1_000_000, admit="after:3", evict="lru")

A read is one occurrence of a key in a batch. A key without a row trains the unknown rows of its table.
`planning.keys` obeys what is declared here. Below are the checks of all that a schema declares.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

ADMISSIONS = (
    "'first', 'frequent:READS', 'after:READS', 'after:READS,sketch', 'probability:P' or 'ahead:READS'"
)
EVICTIONS = "'none', 'lru', 'lfu', 'lfu:HALF_LIFE', 'ahead', 'idle:BATCHES' or 'time:SECONDS'"
MOST_ROWS = 2**31 - 1
GROWING = 2**30  # rows that a table without a capacity may grow to
MOST_PARTITIONS = 2**12
MOST_SKETCHED = 255  # what a counter of the sketch holds
_PER_ROW, _LEAST_SKETCHED = 4, 2**14  # counters in a row of the sketch of `frequent`


@dataclass(frozen=True)
class Dynamic:
    """How the rows of a table come and go with the keys that are read.

    capacity: number of live keys at most; None: no bound.
    admit: which keys get a row. `first`: every key, at its first read. `frequent:2`: a key that was read
        twice lately; where there is no room, one that was read more often lately than the key that
        `lfu` evicts for it (TinyLFU, Einziger et al. 2017). Reads are counted in a sketch, see
        `sketch_width`. `after:3`: a key at its third
        read, counted exactly, which needs memory for every key that was read less often.
        `after:3,sketch`: counted by a count-min sketch of fixed size, see `sketch_width`.
        `probability:0.2`: a fifth of all keys, chosen by their hash, at their first read. `ahead:3`: a
        key that this batch and the `window` batches after it read three times.
    evict: which keys lose their row. `lru`: where a new key finds no room, the one read longest ago.
        `lfu`: the one with the fewest reads since it got its row; `lfu:100`: where each read weighs
        half as much after 100 batches. `ahead`: the one that the `window` batches to come do not read,
        the one read longest ago first; where they read all, the one that they read last. `idle:100`:
        every key as soon as 100 batches in a row have not read it. `time:3600`: every key that was not
        read for so many seconds of event time, where the time of a batch is the largest event time so
        far. With a capacity, `idle` and `time` also evict as `lru` does. `none`: no key; new ones
        beyond the capacity train the unknown rows.
    window: number of batches known ahead, for `ahead` (default 64).
    partitions: number of parts that keys are dealt to by their hash (default 1). Each has its share of
        the capacity, admits and evicts by itself, and belongs to one rank: several ranks share the work
        on the keys of a table that has as many partitions. What is trained depends on this number, and
        not on the number of ranks.

    >>> hotrows.Sparse("user", dynamic=Dynamic(capacity=1000, evict="lru")).dynamic.evict
    'lru'
    """

    capacity: int | None = None
    admit: str = "first"
    evict: str = "none"
    window: int = 64
    partitions: int = 1

    def __post_init__(self) -> None:
        for name, kinds in (
            ("capacity", (int, type(None))),
            ("window", int),
            ("partitions", int),
            ("admit", str),
            ("evict", str),
        ):
            value = getattr(self, name)
            if not isinstance(value, kinds) or isinstance(value, bool):
                expected = "a text" if kinds is str else "a whole number"
                raise ValueError(f"{name} of dynamic ids must be {expected}, not {value!r}")
        if self.capacity is not None and not 0 < self.capacity <= MOST_ROWS:
            raise ValueError(
                f"capacity of dynamic ids must be from 1 to {MOST_ROWS:,} rows, or None for no bound, "
                f"not {self.capacity:,}"
            )
        if not 0 < self.window < 2**20:
            raise ValueError(
                f"window of dynamic ids must be from 1 to {2**20 - 1:,} batches, not {self.window:,}"
            )
        if not 0 < self.partitions <= min(MOST_PARTITIONS, self.capacity or MOST_PARTITIONS):
            raise ValueError(
                f"partitions of dynamic ids must be from 1 to {MOST_PARTITIONS:,}, and not more than the "
                f"capacity, not {self.partitions:,}"
            )
        assert self.admission, "an error of admit= comes first"
        _, eviction = self.admission, self.eviction  # both are parsed, and refused, at once
        if self.admission.kind == "frequent" and eviction.kind != "lfu":
            raise ValueError(
                f"admit={self.admit!r} needs evict='lfu' or 'lfu:HALF_LIFE', not {self.evict!r}: "
                f"a new key's reads are compared with those of the key that would go"
            )
        if self.capacity is None and eviction.kind in ("lru", "lfu", "ahead"):
            raise ValueError(f"evict={self.evict!r} needs capacity=ROWS: without one nothing is evicted")

    @cached_property
    def admission(self) -> Admission:
        """`admit`, as a value."""
        return _parse_admission(self.admit)

    @cached_property
    def eviction(self) -> Eviction:
        """`evict`, as a value."""
        return _parse_eviction(self.evict)

    @property
    def batches_ahead(self) -> int:
        """Number of batches after the next one that must be known; 0 where nothing looks forward."""
        return self.window if "ahead" in (self.admission.kind, self.eviction.kind) else 0

    @property
    def sketch_width(self) -> int:
        """Counters in each of the four rows of the sketch; 0 without one.

        There are two such sketches of one byte a counter: one takes up reads, and after width / 2 of them
        it stands in for the other, which is forgotten. So the last width / 2 reads of keys without a row
        are never counted too low, and either sketch counts c too high with a probability of at most
        (2c)^-4: a counter holds at most 1/2 of other keys on average, and the least of four counts.
        """
        if self.admission.kind == "frequent":
            return max(_PER_ROW * (self.capacity or 0), _LEAST_SKETCHED)
        return max(self.capacity or 2**20, 2**10) if self.admission.sketch else 0


def check_feature(feature: Any) -> None:
    """Raises ValueError where a feature that is dynamic declares what such a one cannot have."""
    if feature.dynamic is None:
        return
    name, num_unknown, min_count = feature.name, feature.num_unknown, feature.min_count
    transform = getattr(feature, "transform", "none")
    if num_unknown < 1:
        raise ValueError(
            f"feature {name!r}: a dynamic feature needs num_unknown of at least 1, not {num_unknown}: "
            f"keys without a row train these ids"
        )
    if min_count != 1:
        raise ValueError(
            f"feature {name!r}: which keys of a dynamic feature get a row is said by admit, such as "
            f"admit='after:{min_count}'; leave out min_count={min_count}"
        )
    if transform != "none":
        raise ValueError(f"feature {name!r}: transform {transform!r} makes few ids: leave out dynamic")


def leave_out_defaults(schema: dict[str, Any]) -> None:
    """Takes out of a schema's fields what schemas had not before: they are a part of fingerprints."""
    for field, others in (("request", "shared"), ("user", "histories")):
        if schema[field] is None:
            del schema[field], schema[others]
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


def any_dynamic(features: Iterable[Any]) -> bool:
    return any(feature.dynamic is not None for feature in features)


def expiring(features: Iterable[Any]) -> list[str]:
    """The names of the features whose keys expire by event time."""
    return [f.name for f in features if f.dynamic is not None and f.dynamic.eviction.kind == "time"]


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


@dataclass(frozen=True)
class Admission:
    """Which keys get a row; see `Dynamic.admit`. kind: first, frequent, after, probability or ahead."""

    kind: str
    reads: int = 1
    sketch: bool = False
    probability: float = 1.0


@dataclass(frozen=True)
class Eviction:
    """Which keys lose their row; see `Dynamic.evict`.

    kind: none, lru, lfu, ahead, idle or time. limit: half-life in batches (0: none), batches, seconds.
    """

    kind: str
    limit: int = 0


def _parse_admission(text: str) -> Admission:
    if text == "first":
        return Admission("first")
    if match := re.fullmatch(r"frequent:([1-9]\d{0,1})", text):
        return Admission("frequent", int(match[1]))
    if match := re.fullmatch(r"(after|ahead):([1-9]\d{0,8})", text):
        return Admission(match[1], int(match[2]))
    if match := re.fullmatch(r"after:([1-9]\d{0,2}),sketch", text):
        if int(match[1]) <= MOST_SKETCHED:
            return Admission("after", int(match[1]), sketch=True)
        raise ValueError(f"admit={text!r}: a sketch counts up to {MOST_SKETCHED} reads")
    if match := re.fullmatch(r"probability:(\d*\.?\d+)", text):
        probability = float(match[1])
        if 0 < probability <= 1:
            return Admission("probability", probability=probability)
        raise ValueError(f"admit={text!r}: a probability is above 0 and at most 1")
    raise ValueError(f"admit of dynamic ids must be {ADMISSIONS}, not {text!r}")


def _parse_eviction(text: str) -> Eviction:
    if text in ("none", "lru", "lfu", "ahead"):
        return Eviction(text)
    if match := re.fullmatch(r"(lfu|idle|time):([1-9]\d{0,8})", text):
        return Eviction(match[1], int(match[2]))
    raise ValueError(f"evict of dynamic ids must be {EVICTIONS}, not {text!r}")


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


def check_names(schema: Any) -> None:
    """Raises ValueError where features, labels and columns of a schema do not fit together."""
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
    if telling := [name for name, columns in zip(features, read, strict=True) if {*columns} & {*labels}]:
        raise ValueError(
            f"schema {schema.name!r}: features {telling} read a label's column, and would tell it"
        )
    known = {*(schema.columns or schema.raw_columns), *schema.histories}
    if absent := [column for column in schema.raw_columns if column not in known]:
        raise ValueError(
            f"schema {schema.name!r}: columns {absent} are used, and do not stand in `columns`"
        )


def check_one_of(feature: Any, field: str, legal: tuple[str, ...]) -> None:
    """Raises ValueError unless the field of a feature has one of the legal values."""
    value = getattr(feature, field)
    if value not in legal:
        options = ", ".join(map(repr, legal[:-1]))
        raise ValueError(
            f"feature {feature.name!r}: {field} must be {options} or {legal[-1]!r}, not {value!r}"
        )
