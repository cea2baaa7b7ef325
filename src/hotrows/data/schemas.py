"""The schemas of well-known data sets, and loading the user's own.

A value seen less often than `min_count` has no row of its own; it trains the unknown row, which
stands for every new value later. The counts here are published ones for the whole data sets: 10 for
Criteo (Criteo_x4_001), 2 for Avazu (Avazu_x4_001). Try others with `with_min_count`.
"""

from __future__ import annotations

import dataclasses
import runpy
from pathlib import Path

from hotrows.schema import Dense, Schema, Sparse

_CRITEO_INTEGERS = tuple(f"I{i}" for i in range(1, 14))
_CRITEO_CATEGORIES = tuple(f"C{i}" for i in range(1, 27))

criteo = Schema(
    name="criteo",
    label="label",
    columns=("label", *_CRITEO_INTEGERS, *_CRITEO_CATEGORIES),
    features=(
        *(Dense(name, transform="log") for name in _CRITEO_INTEGERS),
        *(Sparse(name, min_count=10) for name in _CRITEO_CATEGORIES),
    ),
)

avazu = Schema(
    name="avazu",
    label="click",
    delimiter=",",
    features=tuple(
        Sparse(name, min_count=2)
        for name in (
            *("hour", "C1", "banner_pos", "site_id", "site_domain", "site_category"),
            *("app_id", "app_domain", "app_category", "device_id", "device_ip", "device_model"),
            *("device_type", "device_conn_type"),
            *(f"C{i}" for i in range(14, 22)),
        )
    ),
)

BY_NAME = {"criteo": criteo, "avazu": avazu}


def with_min_count(schema: Schema, min_count: int) -> Schema:
    """The same schema with one `min_count` for every feature that carries ids."""
    features = tuple(
        feature if isinstance(feature, Dense) else dataclasses.replace(feature, min_count=min_count)
        for feature in schema.features
    )
    return dataclasses.replace(schema, features=features)


def load(name_or_path: str | Path) -> Schema:
    """A schema by its name here, or from a .json file, or from a .py file that defines `schema`."""
    if str(name_or_path) in BY_NAME:
        return BY_NAME[str(name_or_path)]
    path = Path(name_or_path)
    if path.suffix not in (".json", ".py"):
        raise ValueError(
            f"schema {str(name_or_path)!r} is unknown: give one of {sorted(BY_NAME)}, a .json "
            f"file, or a .py file that defines `schema`"
        )
    if not path.is_file():
        raise ValueError(f"schema file {path} does not exist")
    return _from_python(path) if path.suffix == ".py" else _from_json(path)


def _from_json(path: Path) -> Schema:
    try:
        return Schema.load(path)
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"schema file {path} cannot be read: {error}; see docs/data.md") from error


def _from_python(path: Path) -> Schema:
    schema = runpy.run_path(str(path)).get("schema")
    if not isinstance(schema, Schema):
        raise ValueError(
            f"schema file {path} must define `schema`, a hotrows.Schema, "
            f"not {type(schema).__name__}"
        )
    return schema
