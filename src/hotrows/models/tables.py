"""The tables a model declares for the features of a schema: one per vocabulary and role.

A list of ids, a sequence too, is pooled into one vector where the model does not read it apart.

Vectors start in [-0.001, 0.001): little beside Adagrad's first step (0.02), so that a rare id says
almost nothing until it is trained. One initializer for all keeps the tables in one pack, where a
scale of 1 / sqrt(rows), as in DLRM, would give each table a pack of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from hotrows.optim import RowOptimizer
from hotrows.schema import Schema, vocabulary_of
from hotrows.table import Constant, Cross, Initializer, Table, Uniform

VECTOR = "vector"
LINEAR = "linear"
FIRST_VECTORS = Uniform(0.001)


def vector_tables(
    schema: Schema, dim: int, optimizer: RowOptimizer | None = None, dims: Mapping[str, int] | None = None
) -> tuple[Table, ...]:
    """One vector per feature, of `dim`, or of what `dims` says of its vocabulary; narrow ones first.

    >>> [(table.name, table.dim) for table in vector_tables(data.schema, 8)]
    [('user', 8), ('item', 8)]
    """
    tables = tables_of(schema, None, dim, VECTOR, FIRST_VECTORS, optimizer)
    unknown = sorted(set(dims or ()) - {table.name for table in tables})
    if unknown:
        raise ValueError(f"dims names {unknown[0]!r}, which is no vocabulary of the schema")
    sized = [replace(table, dim=(dims or {}).get(table.name, dim)) for table in tables]
    return tuple(sorted(sized, key=lambda table: table.dim))


def width_of(tables: Sequence[Table]) -> int:
    """The number of columns of all their vectors side by side."""
    return sum(table.dim * len(table.features) for table in tables)


def linear_tables(schema: Schema, optimizer: RowOptimizer | None = None) -> tuple[Table, ...]:
    """One weight per feature, 0 at first: the linear part of a model.

    >>> {table.dim for table in linear_tables(data.schema)}
    {1}
    """
    return tables_of(schema, None, 1, LINEAR, Constant(0.0), optimizer)


def tables_of(
    schema: Schema,
    features: Sequence[str] | None,
    dim: int,
    role: str,
    initializer: Initializer = FIRST_VECTORS,
    optimizer: RowOptimizer | None = None,
) -> tuple[Table, ...]:
    """A table per vocabulary that the features read, None being all with ids: VOCABULARY.ROLE, and
    for vectors VOCABULARY.

    >>> [table.name for table in tables_of(data.schema, ["user"], 8, role="gate")]
    ['user.gate']
    """
    readers: dict[str, list[str]] = {}
    wanted = None if features is None else set(features)
    for feature in schema.id_features:
        if wanted is None or feature.name in wanted:
            readers.setdefault(vocabulary_of(feature), []).append(feature.name)
    return tuple(
        Table(
            name=vocabulary if role == VECTOR else f"{vocabulary}.{role}",
            rows=schema.rows_of(names[0]),
            dim=dim,
            features=tuple(names),
            role=role,
            initializer=initializer,
            optimizer=optimizer,
            reserved=schema.reserved_of(names[0]),
        )
        for vocabulary, names in readers.items()
    )


def cross_tables(
    crosses: Sequence[Cross], dim: int = 0, optimizer: RowOptimizer | None = None
) -> tuple[Table, ...]:
    """One weight per bucket of each cross, 0 at first; before them vectors, unless `dim` is 0.

    >>> [table.name for table in cross_tables([Cross(("user", "item"), rows=1000)], 8)]
    ['user*item', 'user*item.linear']
    """
    vectors = [Table(x.name, x.rows, dim, (x.name,), VECTOR, FIRST_VECTORS) for x in crosses if dim]
    weights = [
        Table(f"{x.name}.linear", x.rows, 1, (x.name,), LINEAR, Constant(0.0), optimizer=optimizer)
        for x in crosses
    ]
    return (*vectors, *weights)


def crosses_of(schema: Schema, crosses: Sequence[Sequence[str]], rows: int) -> tuple[Cross, ...]:
    """Crosses of features by name, `rows` buckets each; crosses: [["user", "item"]]."""
    crossable = [feature.name for feature in schema.single]
    for names in crosses:
        if isinstance(names, str):
            raise ValueError(
                f'crosses must be lists of features, such as [["user", "item"]], not {names!r}'
            )
        unfit = [name for name in names if name not in crossable]
        if unfit:
            raise ValueError(
                f"feature {unfit[0]!r} cannot be crossed: only sparse features with one id per "
                f"sample can, of this schema {', '.join(crossable) or 'none'}"
            )
    return tuple(Cross(tuple(names), rows) for names in crosses)


def labels_of(schema: Schema, labels: Sequence[str] | None, model: str) -> tuple[str, ...]:
    """The labels that a model of several learns: those named, which the schema must have, or all.

    >>> labels_of(data.schema, None, "MMoE")
    ('click',)
    """
    names = [label.name for label in schema.labels]
    chosen = tuple(names if labels is None else labels)
    if not chosen or len(set(chosen)) < len(chosen) or not set(chosen) <= set(names):
        raise ValueError(
            f"{model} needs labels of the schema, each once: some of {', '.join(names)}, not {labels!r}"
        )
    return chosen


def check(schema: Schema, model: str, ids: bool = False) -> None:
    """Refuses schemas that such a model cannot train on; ids: dense features alone are not enough."""
    if not (schema.id_features if ids else schema.features):
        what = "feature with ids" if ids else "feature"
        raise ValueError(f"{model} needs at least one {what}; the schema has none")
