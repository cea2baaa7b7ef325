"""Schema: the columns of a data set, as the user declares them.

Schemas are frozen values and round-trip to JSON. An id is a value after encoding: 0 is padding, 1 is
missing, the next `num_unknown` ids are unknown values, then come those of training by falling frequency.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, chain
from pathlib import Path
from typing import Any

from hotrows import losses
from hotrows.dynamic import GROWING, Dynamic, expiring
from hotrows.runtime.atomic_files import local, write_text
from hotrows.runtime.json_file import JsonFile, build, check_types, parse, shown
from hotrows.runtime.own_kinds import KINDS, OwnKind, load_kind
from hotrows.runtime.pages import notebook
from hotrows.schema_checks import (
    check_ids,
    check_names,
    check_one_of,
    check_sparse,
    check_times,
    check_vector,
    leave_out_defaults,
    with_current_fields,
)

PADDING = 0
MISSING = 1
FIRST_UNKNOWN = 2
MISSING_KEY = -(1 << 63)  # a missing value among the keys of dynamic features

DENSE_TRANSFORMS = ("log", "standard", "none", "missing")
TIME_TRANSFORMS = ("hour", "weekday", "weekend", "day")
SPARSE_TRANSFORMS = ("none", "log", "bucket", *TIME_TRANSFORMS)
_JSON = JsonFile("correct it, or bring it back from a copy", problem="cannot be read")


@dataclass(frozen=True)
class Dense:
    """A column of numbers, one per sample, or with `width` a vector of that many.

    transform: `log` is log(1 + max(x, 0)), `standard` (x - mean) / deviation over the training part,
        `none` the number itself; a missing value becomes 0 after these. `missing` is 1 where the
        value is missing and 0 elsewhere: an indicator, next to the feature that holds the value.
    width: numbers in each list of the column, such as those of an embedding; they are read with
        transform `none`, and a missing list becomes zeros.
    stored: `float32`, or `float16` for vectors in half the space: where all of a schema say so.

    >>> Schema((Dense("price"), Dense("age", transform="standard")), label="click").dense[1].transform
    'standard'
    """

    name: str
    column: str | None = None
    transform: str = "log"
    width: int | None = None
    stored: str = "float32"

    def __post_init__(self) -> None:
        check_types(self)
        if self.width is not None and self.transform == "log":  # the default of single numbers
            object.__setattr__(self, "transform", "none")
        check_one_of(self, "transform", DENSE_TRANSFORMS)
        check_vector(self)


@dataclass(frozen=True)
class Sparse(OwnKind):
    """A column of ids: one per sample, or with `many` a list of them, pooled into one vector.

    vocabulary: name of the id space, which several features may share (default: the feature's name).
    rows: number of ids in the vocabulary, reserved ones included; `prepare` fills it in.
    num_unknown: number of ids reserved for values never seen in training, which are hashed over
        them; with 0 such a value is an error.
    min_count: values seen less often in the training part count as unknown.
    pooling: `sum` or `mean` of a sample's vectors; of no id: zeros.
    many: whether a cell holds a list; in text, values are between separators.
    max_length: number of ids that are used of longer lists, the last ones.
    transform: value to make an id of. `none`: the value itself. Of a number x: `log` is
        floor(log(x)^2) above 2, floor(x) else; `bucket` the number of `boundaries` that are at most
        x. `hour` (0 to 23), `weekday` (Monday is 0), `weekend` (0, 1) and `day` (of the month) are
        made of the schema's `time`.
    dynamic: values are keys, which get and lose rows while a model trains; None: a vocabulary.
    weights: column of the factors of a list's vectors in their sum, as many numbers as it has ids.

    >>> features = (Sparse("user", min_count=2), Sparse("tags", many=True))
    >>> Schema(features, label="click").id_features[1].many
    True
    """

    name: str
    column: str | None = None
    vocabulary: str | None = None
    rows: int | None = None
    num_unknown: int = 1
    min_count: int = 1
    pooling: str = "sum"
    many: bool = False
    separator: str = "|"
    max_length: int | None = None
    transform: str = "none"
    boundaries: tuple[float, ...] = ()
    dynamic: Dynamic | None = None
    weights: str | None = None

    def __post_init__(self) -> None:
        check_types(self)
        check_ids(self)
        check_one_of(self, "transform", SPARSE_TRANSFORMS)
        check_sparse(self)


@dataclass(frozen=True)
class Sequence:
    """A column of lists of ids whose vectors are not pooled: `[N, D]` with offsets.

    column: the column of the lists, or, of a history of the schema, of the events.
    separator: character between the ids of a cell of text.
    max_length: number of ids that are used of longer lists, the last ones. Other fields: see `Sparse`.

    >>> Sequence("history", vocabulary="item", max_length=50, separator="|").max_length
    50
    """

    name: str
    column: str | None = None
    vocabulary: str | None = None
    rows: int | None = None
    num_unknown: int = 1
    min_count: int = 1
    max_length: int | None = None
    separator: str = "|"
    dynamic: Dynamic | None = None

    def __post_init__(self) -> None:
        check_types(self)
        check_ids(self)


@dataclass(frozen=True)
class Label:
    """A column with the target.

    positive: values that count as 1, all other values count as 0.
    at_least: least number that counts as 1. With neither the column itself holds what the loss admits.
    loss: how a model learns the label, such as squared or huber:2, see `hotrows.losses` (default:
        log_loss, of 0 and 1).

    >>> Schema((Sparse("user"),), label=Label("liked", column="rating", at_least=4)).labels[0].name
    'liked'
    """

    name: str
    column: str | None = None
    positive: tuple[str, ...] = ()
    at_least: float | None = None
    loss: str | None = None

    def __post_init__(self) -> None:
        check_types(self)
        if self.positive and self.at_least is not None:
            raise ValueError(f"label {self.name!r}: give either positive= or at_least=, not both")
        try:
            losses.parse(self.loss or "log_loss")
        except ValueError as error:
            raise ValueError(f"label {self.name!r}: {error}") from None

    @property
    def values(self) -> losses.LabelRange:
        """The labels of prepared data."""
        if self.positive or self.at_least is not None:
            return losses.ZERO_OR_ONE
        return losses.parse(self.loss or "log_loss").labels


@dataclass(frozen=True)
class Time:
    """The column with the time of a sample.

    format: `unix` (seconds since 1970), `unix_ms`, `unix_us`, `unix_ns` (milli-, micro-, nanoseconds);
        `iso` (2024-03-01, 2024-03-01T10:00:00.5+01:00; without an offset it is UTC); or a strptime
        format of %Y %y %m %d %H %M %S and literal characters. Columns of timestamps (Parquet, Arrow)
        need none.
    utc_offset: hours from UTC of the clock by which `hour`, `weekday`, `weekend` and `day` are read.
    zone: the same clock by name, such as Europe/Berlin (default: the zone of a column of timestamps,
        which `prepare` fills in; else the offset that a time is written with, or UTC).

    >>> Schema((Sparse("user"),), time=Time("at", format="iso")).time.format
    'iso'
    """

    column: str
    format: str = "unix"
    utc_offset: float | None = None
    zone: str | None = None

    def __post_init__(self) -> None:
        check_types(self)


Feature = Dense | Sparse | Sequence
IdFeature = Sparse | Sequence
_KINDS = {"dense": Dense, "sparse": Sparse, "sequence": Sequence}


@dataclass(frozen=True, repr=False)
class Schema:
    """The columns of a data set and their roles.

    features: dense, sparse and sequence features, in the order of the batch.
    label: a column of 0 and 1, or a `Label`, or several of them: one per task.
    columns: the raw file's columns in order, if it has no header line; None: a header names them.
    delimiter: character between the columns of a line (default: a tab, or what the header shows).
    weight: column of a sample's weight in the loss and in metrics (default: weights of 1).
    group: column by whose values AUC is grouped and samples are ranked, such as the user (default: the
        request, or not grouped).
    time: column that a split by time, features of time and keys that expire by it read.
    missing: values that mean missing, besides the empty one; by column: {"price": ("NA",)}.
    strip: whether to remove spaces around values.
    encoding: encoding of delimited text that is not UTF-8, such as latin-1 or cp1252.
    decimal: mark before the decimals of numbers in text.
    thousands: mark between groups of three digits of numbers in text (default: none).
    request: column that says of which request a sample is; rows of a request follow one another.
    shared: features that are equal in all samples of a request, such as the user's, and are stored,
        looked up and computed once for it.
    user, histories: column with the user, and sequences that are the user's events before the sample.

    >>> shop = Schema((Sparse("user"), Sparse("item"), Dense("price")), label="click", delimiter=",")
    >>> Schema.from_json(shop.to_json()) == shop
    True
    """

    features: tuple[Feature, ...]
    label: str | Label | tuple[str | Label, ...] = "label"
    columns: tuple[str, ...] | None = None
    delimiter: str = "\t"
    name: str = "custom"
    weight: str | None = None
    group: str | None = None
    time: Time | None = None
    missing: tuple[str, ...] | dict[str, tuple[str, ...]] = field(default=(), hash=False)
    strip: bool = False
    request: str | None = None
    shared: tuple[str, ...] = ()
    user: str | None = None
    histories: tuple[str, ...] = ()
    encoding: str = "utf-8"
    decimal: str = "."
    thousands: str = ""
    _repr_html_, __repr__ = notebook.schema, notebook.schema_line

    def __post_init__(self) -> None:
        if isinstance(self.features, tuple | list):
            features = (getattr(feature, "parts", (feature,)) for feature in self.features)
            object.__setattr__(self, "features", tuple(chain.from_iterable(features)))
        check_types(self)
        losses.check_grouped(self.name, {label.name: label.loss for label in self.labels}, self.grouping)
        if self.time is None:
            of_time = [f.name for f in self.sparse if f.transform in TIME_TRANSFORMS]
            check_times(self.name, self.id_features, of_time)
        check_names(self)

    def missing_of(self, column: str) -> tuple[str, ...]:
        """The words that mean missing in a column."""
        return self.missing.get(column, ()) if isinstance(self.missing, dict) else self.missing

    @property
    def grouping(self) -> str | None:
        """The column by whose values samples are grouped: `group`, or the request."""
        return self.group or self.request

    @cached_property
    def labels(self) -> tuple[Label, ...]:
        """The labels, one per task."""
        labels = self.label if isinstance(self.label, tuple) else (self.label,)
        return tuple(Label(label) if isinstance(label, str) else label for label in labels)

    @cached_property
    def keeps_times(self) -> bool:
        """True if samples are stored with times, by which keys expire."""
        return bool(expiring(self.id_features))

    @cached_property
    def raw_columns(self) -> tuple[str, ...]:
        """Every raw column that is read, each once: of features, labels, weight, group, time, request."""
        others = (self.weight, self.group, self.time and self.time.column, self.request, self.user)
        columns = [self.column_of(feature) for feature in self.features]
        columns += [feature.weights for feature in self.sparse if feature.weights is not None]
        columns += [column_of(label) for label in self.labels]
        return tuple(dict.fromkeys([*columns, *(column for column in others if column)]))

    def column_of(self, feature: Feature) -> str:
        """The raw column a feature reads: the time's, or, of a history, that of lists to predict."""
        if feature.name in self.histories:
            return feature.name
        if getattr(feature, "transform", None) in TIME_TRANSFORMS:
            assert self.time is not None
            return self.time.column
        return column_of(feature)

    @cached_property
    def dense(self) -> tuple[Dense, ...]:
        """The features of one number per sample."""
        return tuple(f for f in self.features if isinstance(f, Dense) and f.width is None)

    @cached_property
    def vectors(self) -> tuple[Dense, ...]:
        """The features of a vector of numbers per sample."""
        return tuple(f for f in self.features if isinstance(f, Dense) and f.width is not None)

    @cached_property
    def dense_places(self) -> dict[str, slice]:
        """The columns of a batch's dense values by feature: single numbers first, then vectors."""
        features = (*self.dense, *self.vectors)
        ends = list(accumulate((f.width or 1 for f in features), initial=0))
        return {f.name: slice(*ends[place : place + 2]) for place, f in enumerate(features)}

    @property
    def num_dense(self) -> int:
        """The width of a batch's dense values."""
        return max((place.stop for place in self.dense_places.values()), default=0)

    @property
    def by_kind(self) -> dict[str, tuple[Feature, ...]]:
        """The features by their kind, of the kinds that there are."""
        kinds: dict[str, tuple[Feature, ...]] = {"dense": self.dense, "vector": self.vectors}
        kinds |= {"sparse": self.sparse, "sequence": self.sequences}
        return {kind: features for kind, features in kinds.items() if features}

    @cached_property
    def sparse(self) -> tuple[Sparse, ...]:
        return tuple(f for f in self.features if isinstance(f, Sparse))

    @cached_property
    def single(self) -> tuple[Sparse, ...]:
        """The features of one id per sample."""
        return tuple(feature for feature in self.sparse if not feature.many)

    @cached_property
    def sequences(self) -> tuple[Sequence, ...]:
        return tuple(f for f in self.features if isinstance(f, Sequence))

    @cached_property
    def id_features(self) -> tuple[Sparse | Sequence, ...]:
        """The features that carry ids: sparse ones, then sequences; the order of a batch."""
        return self.sparse + self.sequences

    @cached_property
    def dynamic_vocabularies(self) -> dict[str, Dynamic]:
        """The vocabularies whose keys get their rows in training, as they are declared."""
        return {vocabulary_of(f): f.dynamic for f in self.id_features if f.dynamic is not None}

    @cached_property
    def counted_features(self) -> tuple[Sparse | Sequence, ...]:
        """The features that carry ids of vocabularies that preparing the data counts."""
        return tuple(f for f in self.id_features if vocabulary_of(f) not in self.dynamic_vocabularies)

    @cached_property
    def _by_name(self) -> dict[str, Sparse | Sequence]:
        return {feature.name: feature for feature in self.id_features}

    @property
    def pooling(self) -> dict[str, str]:
        """Pooling of each feature's vectors: as declared for sparse features, the mean for sequences."""
        of_sequences = {feature.name: "mean" for feature in self.sequences}
        return {feature.name: feature.pooling for feature in self.sparse} | of_sequences

    def rows_of(self, feature: str) -> int:
        """Number of ids in the vocabulary of `feature`; an error before the data is prepared."""
        declared, reserved = self._by_name[feature], self.reserved_of(feature)
        if reserved is not None:
            assert declared.dynamic is not None
            return reserved + (declared.dynamic.capacity or GROWING)
        if declared.rows is None:
            raise ValueError(f"feature {feature!r} has no `rows` yet: prepare the data, or declare rows=")
        return declared.rows

    def reserved_of(self, feature: str) -> int | None:
        """Number of ids of a dynamic feature that stand for no key; None: it has a vocabulary."""
        declared = self._by_name[feature]
        return None if declared.dynamic is None else FIRST_UNKNOWN + declared.num_unknown

    def with_rows(self, rows: dict[str, int]) -> Schema:
        """Fills in the number of rows of every vocabulary: {vocabulary: rows}."""
        return self.with_fields({f.name: {"rows": rows[vocabulary_of(f)]} for f in self.id_features})

    def with_fields(self, fields: dict[str, dict[str, Any]]) -> Schema:
        """Changes fields of features, {feature: {field: value}}."""
        features = (dataclasses.replace(f, **fields.get(f.name, {})) for f in self.features)
        return dataclasses.replace(self, features=tuple(features))

    def to_json(self) -> str:
        features = [{"kind": type(f).__name__.lower(), **dataclasses.asdict(f)} for f in self.features]
        fields = {**dataclasses.asdict(self), "features": features}
        leave_out_defaults(fields)
        return json.dumps(fields, indent=2)

    @staticmethod
    def from_json(text: str) -> Schema:
        return Schema.from_fields(parse(text))

    @staticmethod
    def from_fields(fields: Any) -> Schema:
        """The schema of an object of JSON."""
        if not isinstance(fields, dict) or not isinstance(fields.get("features"), list):
            raise ValueError("expected a JSON object with a list of `features`")
        features = tuple(map(_feature, fields.pop("features")))
        return build(Schema, {"features": features, **fields})

    def save(self, path: Path | str) -> None:
        write_text(Path(path), self.to_json() + "\n")

    @staticmethod
    def load(path: Path | str) -> Schema:
        fields = _JSON.read(local(path))
        with _JSON.naming(local(path)):
            return Schema.from_fields(fields)


def column_of(named: Feature | Label) -> str:
    """The raw column of a feature or label (default: its name)."""
    return named.column or named.name


def vocabulary_of(feature: Sparse | Sequence) -> str:
    """The id space of a feature (default: its name)."""
    return feature.vocabulary or feature.name


def is_list(feature: Feature) -> bool:
    """True if a sample has a list of ids of the feature, instead of one."""
    return isinstance(feature, Sequence) or (isinstance(feature, Sparse) and feature.many)


def _feature(fields: Any) -> Feature:
    kind = fields.get("kind") if isinstance(fields, dict) else None
    if str(kind) not in _KINDS:
        load_kind(str(kind))
    kinds = {**KINDS, **_KINDS}
    if kind not in list(kinds):
        raise ValueError(f"feature kind must be one of {sorted(kinds)}, not {shown(kind)}")
    fields = {name: value for name, value in fields.items() if name != "kind"}
    return build(kinds[kind], with_current_fields(fields))
