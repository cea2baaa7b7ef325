"""The schemas of the public data sets (`hotrows.data.datasets`), and loading the user's own.

A value seen less often than `min_count` has no row; it trains the unknown row, which later serves
every new value. The counts are published ones for the full data sets: 10 for Criteo (Criteo_x4_001),
2 for Avazu (Avazu_x4_001). `with_min_count` changes them.
"""

from __future__ import annotations

import dataclasses
import runpy
from collections.abc import Iterable
from pathlib import Path

from hotrows.data import datasets
from hotrows.dynamic import Dynamic
from hotrows.runtime.atomic_files import local
from hotrows.runtime.json_file import build
from hotrows.runtime.suggestions import did_you_mean
from hotrows.schema import Schema, vocabulary_of

BY_NAME = {data_set.name: data_set.schema for data_set in datasets.ALL}
criteo = BY_NAME["criteo"]
avazu = BY_NAME["avazu"]


def with_min_count(schema: Schema, min_count: int) -> Schema:
    """Sets one `min_count` for every feature that has a vocabulary.

    min_count: values that occur less often are unknown (default: what the schema declares).

    >>> schema = Schema((hotrows.Sparse("user"),), label="click")
    >>> with_min_count(schema, 5).id_features[0].min_count
    5
    """
    return schema.with_fields({f.name: {"min_count": min_count} for f in schema.counted_features})


def with_dynamic(schema: Schema, declared: Iterable[str]) -> Schema:
    """Makes features dynamic, each with all of its vocabulary.

    declared: features whose values are keys, which get and lose rows in training: 'item capacity=1000
        evict=lru'.
    """
    for text in declared:
        name, *fields = text.split()
        pairs = dict(field.partition("=")[::2] for field in fields)
        known = {field.name for field in dataclasses.fields(Dynamic)}
        features = {feature.name: feature for feature in schema.id_features}
        if name not in features or pairs.keys() - known:
            raise ValueError(
                f"a dynamic feature is declared by its name and {', '.join(sorted(known))}, such as "
                f"'{next(iter(features), 'item')} capacity=1000000 evict=lru', not {text!r}"
            )
        numbers = {what: int(value) for what, value in pairs.items() if value.isdigit()}
        dynamic, vocabulary = build(Dynamic, {**pairs, **numbers}), vocabulary_of(features[name])
        reading = [f.name for f in schema.id_features if vocabulary_of(f) == vocabulary]
        schema = schema.with_fields({key: {"dynamic": dynamic, "min_count": 1} for key in reading})
    return schema


def load(name_or_path: str | Path) -> Schema:
    """Loads a schema by its name, from a .json file, or from a .py file that defines `schema`."""
    if str(name_or_path) in BY_NAME:
        return BY_NAME[str(name_or_path)]
    path = local(name_or_path)
    if path.suffix not in (".json", ".py"):
        raise ValueError(
            f"schema {str(name_or_path)!r} is unknown: give one of {sorted(BY_NAME)}, a .json "
            f"file, or a .py file that defines `schema`{did_you_mean(str(name_or_path), BY_NAME)}"
        )
    if not path.is_file():
        raise ValueError(f"schema file {path} does not exist")
    return _from_python(path) if path.suffix == ".py" else Schema.load(path)


def _from_python(path: Path) -> Schema:
    schema = runpy.run_path(str(path)).get("schema")
    if not isinstance(schema, Schema):
        raise ValueError(
            f"schema file {path} must define `schema`, a hotrows.Schema, not {type(schema).__name__}"
        )
    return schema
