"""What the user declares: the columns of the data, and the tables a model reads with them.

Frozen values; a schema round-trips to JSON. An id is a user's value after encoding: 0 is padding,
1 is a missing value, the next `num_unknown` ids stand for values never seen in training, and the
values of the training part follow by falling frequency.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hotrows.optim import RowOptimizer

PADDING = 0
MISSING = 1
FIRST_UNKNOWN = 2


@dataclass(frozen=True)
class Uniform:
    """Weights drawn evenly from [-scale, scale)."""

    scale: float = 0.01


@dataclass(frozen=True)
class Normal:
    """Weights drawn from a normal distribution with mean 0."""

    std: float = 0.01


@dataclass(frozen=True)
class Constant:
    """Every weight the same."""

    value: float = 0.0


Initializer = Uniform | Normal | Constant


@dataclass(frozen=True)
class Table:
    """Rows of weights that a model reads by id.

    name: unique in the model; checkpoints and the first values of rows are keyed by it.
    rows: how many ids it holds; dim: weights per row.
    features: the features that read it, in the order in which the model wants their vectors.
    role: what the model calls these vectors; a feature may read several tables, of different roles.
    optimizer: the row optimizer; None takes the one given to `Embedding`.
    """

    name: str
    rows: int
    dim: int
    features: tuple[str, ...]
    role: str = "vector"
    initializer: Initializer = field(default_factory=Uniform)
    dtype: str = "float32"
    optimizer: RowOptimizer | None = None

    def __post_init__(self) -> None:
        if self.rows < 1 or self.dim < 1:
            raise ValueError(
                f"table {self.name!r} needs at least one row and one dimension, "
                f"not rows={self.rows}, dim={self.dim}"
            )
        if self.dtype not in ("float32", "bfloat16"):
            raise ValueError(
                f"table {self.name!r}: dtype must be 'float32' or 'bfloat16', not {self.dtype!r}"
            )
        if not self.features:
            raise ValueError(f"table {self.name!r} is read by no feature; name at least one")


@dataclass(frozen=True)
class Dense:
    """A column of numbers, one per sample.

    transform: `log` is log(1 + max(x, 0)), `standard` (x - mean) / deviation over the training
    part, `none` the number itself. A missing value becomes 0 after the transform.
    """

    name: str
    column: str | None = None
    transform: str = "log"

    def __post_init__(self) -> None:
        if self.transform not in ("log", "standard", "none"):
            raise ValueError(
                f"feature {self.name!r}: transform must be 'log', 'standard' or 'none', "
                f"not {self.transform!r}"
            )


@dataclass(frozen=True)
class Sparse:
    """A column of ids, one per sample.

    vocabulary: the id space; features that name the same one share it. The feature's own by default.
    rows: how many ids the vocabulary has, reserved ones counted; `prepare` fills it in.
    num_unknown: how many ids are reserved for values never seen in training (hashed over them).
    min_count: a value seen less often in the training part counts as unknown.
    pooling: how a sample's several vectors become one, `sum` or `mean`.
    """

    name: str
    column: str | None = None
    vocabulary: str | None = None
    rows: int | None = None
    num_unknown: int = 1
    min_count: int = 1
    pooling: str = "sum"

    def __post_init__(self) -> None:
        _check_ids(self)
        if self.pooling not in ("sum", "mean"):
            raise ValueError(
                f"feature {self.name!r}: pooling must be 'sum' or 'mean', not {self.pooling!r}"
            )


@dataclass(frozen=True)
class Sequence:
    """A column of lists of ids; its vectors stay apart, `[N, D]` with offsets.

    max_length: longer lists keep their last ids.
    """

    name: str
    column: str | None = None
    vocabulary: str | None = None
    rows: int | None = None
    num_unknown: int = 1
    min_count: int = 1
    max_length: int | None = None

    def __post_init__(self) -> None:
        _check_ids(self)


Feature = Dense | Sparse | Sequence
_KINDS = {"dense": Dense, "sparse": Sparse, "sequence": Sequence}


@dataclass(frozen=True)
class Schema:
    """The columns of a data set and what each is for.

    features: dense, sparse and sequence features, in the order of the batch.
    label: the column that is 0 or 1.
    columns: the raw file's columns in order, where it has no header line; None: a header names them.
    delimiter: what separates the columns of a raw line.
    """

    features: tuple[Feature, ...]
    label: str = "label"
    columns: tuple[str, ...] | None = None
    delimiter: str = "\t"
    name: str = "custom"

    def __post_init__(self) -> None:
        names = [feature.name for feature in self.features]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"schema {self.name!r}: feature names must be unique, twice: {twice}")
        if self.columns is not None:
            asked = [column_of(feature) for feature in self.features] + [self.label]
            absent = [column for column in asked if column not in self.columns]
            if absent:
                raise ValueError(
                    f"schema {self.name!r}: columns {absent} are used by features or as the label "
                    f"but do not stand in `columns`"
                )

    @property
    def dense(self) -> tuple[Dense, ...]:
        return tuple(f for f in self.features if isinstance(f, Dense))

    @property
    def sparse(self) -> tuple[Sparse, ...]:
        return tuple(f for f in self.features if isinstance(f, Sparse))

    @property
    def sequences(self) -> tuple[Sequence, ...]:
        return tuple(f for f in self.features if isinstance(f, Sequence))

    @property
    def id_features(self) -> tuple[Sparse | Sequence, ...]:
        """The features that carry ids: sparse ones, then sequences, as a batch orders them."""
        return self.sparse + self.sequences

    def rows_of(self, feature: str) -> int:
        """How many ids the vocabulary of `feature` has; an error before the data is prepared."""
        found = next(f for f in self.id_features if f.name == feature)
        if found.rows is None:
            raise ValueError(
                f"feature {feature!r} has no `rows` yet: prepare the data, or declare rows="
            )
        return found.rows

    def with_rows(self, rows: dict[str, int]) -> Schema:
        """The same schema with the size of every vocabulary filled in."""
        sized = tuple(
            f if isinstance(f, Dense) else dataclasses.replace(f, rows=rows[vocabulary_of(f)])
            for f in self.features
        )
        return dataclasses.replace(self, features=sized)

    def to_json(self) -> str:
        features = [
            {"kind": type(f).__name__.lower(), **dataclasses.asdict(f)} for f in self.features
        ]
        return json.dumps({**dataclasses.asdict(self), "features": features}, indent=2)

    @staticmethod
    def from_json(text: str) -> Schema:
        fields: dict[str, Any] = json.loads(text)
        features = []
        for given in fields.pop("features"):
            kind = given.pop("kind")
            if kind not in _KINDS:
                raise ValueError(f"feature kind must be one of {sorted(_KINDS)}, not {kind!r}")
            features.append(_KINDS[kind](**given))
        if fields.get("columns") is not None:
            fields["columns"] = tuple(fields["columns"])
        return Schema(features=tuple(features), **fields)

    def save(self, path: Path) -> None:
        path.write_text(self.to_json() + "\n")

    @staticmethod
    def load(path: Path) -> Schema:
        return Schema.from_json(path.read_text())


def column_of(feature: Feature) -> str:
    """The raw column a feature reads: its own name unless it says another."""
    return feature.column or feature.name


def vocabulary_of(feature: Sparse | Sequence) -> str:
    """The id space a feature reads: its own unless it names a shared one."""
    return feature.vocabulary or feature.name


def _check_ids(feature: Sparse | Sequence) -> None:
    if feature.num_unknown < 1 or feature.min_count < 1:
        raise ValueError(
            f"feature {feature.name!r}: num_unknown and min_count must be at least 1, "
            f"not {feature.num_unknown} and {feature.min_count}"
        )
