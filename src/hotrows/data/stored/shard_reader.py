"""Shards: files that hold the rows of a part column by column; mapped, and never read whole.

Sections of a shard: `labels` uint8, or float32 where one of them is a number, [rows] or of several
labels [rows, T]; `dense` [rows, num_dense]
float32; `ids/NAME` for every feature that carries ids, in the narrowest of uint8, uint16, uint32 and
int64 that holds them; `offsets/NAME` [rows + 1] for those that are lists, in uint32 or int64; and where
the schema has them `weights` [rows] float32, `groups` and `times` [rows] int64. Lists are stored end
to end:

    row 0: 7 8 9   row 1: (none)   row 2: 4          ids 7 8 9 4    offsets 0 3 3 4

Where rows of a request share features, `ids/NAME` and `offsets/NAME` of these have R requests in place of
rows, and so have `requests/dense`, the dense values that are shared (`dense` has the others), and
`requests/numbers`, int64, the requests by which rows are grouped where the schema names no group;
`requests/starts` [R + 1] uint32 has the first row of each request.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hotrows.data.stored.requests import RequestRows, division_of, id_features, no_labels_of
from hotrows.data.stored.rows import Rows
from hotrows.data.stored.sections import Sections, open_sections
from hotrows.schema import IdFeature, Schema, is_list


def open_shard(path: Path, schema: Schema, header_crc32: int | None = None) -> Rows | RequestRows:
    """Maps the rows of a shard; an error if they do not fit the schema, or the header has another
    checksum."""
    sections = open_sections(path, header_crc32)
    stored = {
        "weights": schema.weight is not None,
        "groups": schema.group is not None,
        "times": schema.keeps_times,
    }
    optional: dict[str, Any] = {name: sections[name] for name, is_stored in stored.items() if is_stored}
    samples = Rows(
        **_ids(sections, id_features(schema, False)),
        dense=sections["dense"],
        labels=sections["labels"],
        **optional,
    )
    division = division_of(schema)
    wrong = _wrong(samples, id_features(schema, False), len(division.sample_dense), schema)
    rows: Rows | RequestRows = samples
    if schema.request is not None:
        dense, starts = sections["requests/dense"], sections["requests/starts"]
        shared = Rows(
            **_ids(sections, id_features(schema, True)),
            dense=dense,
            labels=no_labels_of(len(dense)),
            requests=sections["requests/numbers"],
        )
        wrong += _wrong(shared, id_features(schema, True), len(division.shared_dense), None)
        wrong += [] if _are_starts(starts, len(dense), len(samples)) else ["requests/starts"]
        rows = RequestRows(schema, samples, shared, starts)
    if wrong:
        raise ValueError(
            f"{sections.path}: sections {wrong} do not have the rows and types that the schema "
            f"asks for; prepare the data again"
        )
    return rows


def _ids(sections: Sections, features: Sequence[IdFeature]) -> dict[str, Any]:
    return {
        "ids": tuple(sections[f"ids/{f.name}"] for f in features),
        "offsets": tuple(sections[f"offsets/{f.name}"] if is_list(f) else None for f in features),
    }


def check_rows(path: Path, num_rows: int, expected: int) -> None:
    if num_rows != expected:
        raise ValueError(
            f"{path} has {num_rows:,} rows, data.json says {expected:,}; prepare the data again"
        )


def _wrong(rows: Rows, features: Sequence[IdFeature], num_dense: int, schema: Schema | None) -> list[str]:
    """The sections that do not fit each other or the schema. schema: None of requests, without labels."""
    num = len(rows.dense)
    expected = {
        "dense": ("f4", (num, num_dense)),
        "weights": ("f4", (num,)),
        "groups": ("i8", (num,)),
        "times": ("i8", (num,)),
        "requests": ("i8", (num,)),
    }
    if schema is not None:
        labels = len(schema.labels)
        shape = (num,) if labels == 1 else (num, labels)
        expected["labels"] = ("f4" if schema.has_numbers else "u1", shape)
    wrong = [
        name
        for name, (dtype, shape) in expected.items()
        if (array := getattr(rows, name)) is not None
        and (array.shape != shape or array.dtype != np.dtype(dtype))
    ]
    for feature, ids, offsets in zip(features, rows.ids, rows.offsets, strict=True):
        if ids.ndim != 1 or ids.dtype.str[1:] not in ("u1", "u2", "u4", "i8"):
            wrong.append(f"ids/{feature.name}")
        elif not (len(ids) == num if offsets is None else _fits(offsets, num, len(ids))):
            wrong.append(f"{'ids' if offsets is None else 'offsets'}/{feature.name}")
    return wrong


def _are_starts(starts: np.ndarray, num_requests: int, num_rows: int) -> bool:
    """Whether these are the first rows of requests that have one at least."""
    return (
        starts.shape == (num_requests + 1,)
        and starts.dtype.str[1:] == "u4"
        and (int(starts[0]), int(starts[-1])) == (0, num_rows)
        and bool((starts[1:] > starts[:-1]).all())
    )


def _fits(offsets: np.ndarray, num_rows: int, num_ids: int) -> bool:
    """Whether offsets have the right form and ends; a loader checks those between."""
    return (
        offsets.shape == (num_rows + 1,)
        and offsets.dtype.str[1:] in ("u4", "i8")
        and (int(offsets[0]), int(offsets[-1])) == (0, num_ids)
    )
