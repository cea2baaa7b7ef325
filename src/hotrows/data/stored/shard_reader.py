"""Shards: files that hold the rows of a part column by column; mapped, and never read whole.

Sections of a shard: `labels` uint8, or float32 where one of them is a number, [rows] or of several
labels [rows, T]; `dense` [rows, num_dense]
float32; `ids/NAME` for every feature that carries ids, in the narrowest of uint8, uint16, uint32 and
int64 that holds them; `offsets/NAME` [rows + 1] for those that are lists, in uint32 or int64; and where
the schema has them `weights` [rows] float32, `groups` and `times` [rows] int64. Lists are stored end
to end:

    row 0: 7 8 9   row 1: (none)   row 2: 4          ids 7 8 9 4    offsets 0 3 3 4
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from hotrows.data.stored.rows import Rows
from hotrows.data.stored.sections import Sections, open_sections
from hotrows.schema import Schema, is_list


def open_shard(path: Path, schema: Schema, header_crc32: int | None = None) -> Rows:
    """Maps the rows of a shard; an error if they do not fit the schema, or the header has another
    checksum."""
    sections = open_sections(path, header_crc32)
    features = schema.id_features
    optional = {
        "weights": schema.weight is not None,
        "groups": schema.group is not None,
        "times": schema.keeps_times,
    }
    rows = Rows(
        ids=tuple(sections[f"ids/{f.name}"] for f in features),
        offsets=tuple(sections[f"offsets/{f.name}"] if is_list(f) else None for f in features),
        dense=sections["dense"],
        labels=sections["labels"],
        **{name: sections[name] for name, is_stored in optional.items() if is_stored},
    )
    _check_shapes(sections, rows, schema)
    return rows


def check_rows(path: Path, num_rows: int, expected: int) -> None:
    if num_rows != expected:
        raise ValueError(
            f"{path} has {num_rows:,} rows, data.json says {expected:,}; prepare the data again"
        )


def _check_shapes(sections: Sections, rows: Rows, schema: Schema) -> None:
    """Raises an error if the sections do not fit each other or the schema."""
    num, labels = len(rows.dense), len(schema.labels)
    expected = {
        "dense": ("f4", (num, len(schema.dense))),
        "labels": ("f4" if schema.has_numbers else "u1", (num,) if labels == 1 else (num, labels)),
        "weights": ("f4", (num,)),
        "groups": ("i8", (num,)),
        "times": ("i8", (num,)),
    }
    wrong = [
        name
        for name, (dtype, shape) in expected.items()
        if (array := getattr(rows, name)) is not None
        and (array.shape != shape or array.dtype != np.dtype(dtype))
    ]
    for feature, ids, offsets in zip(schema.id_features, rows.ids, rows.offsets, strict=True):
        if ids.ndim != 1 or ids.dtype.str[1:] not in ("u1", "u2", "u4", "i8"):
            wrong.append(f"ids/{feature.name}")
        elif not (len(ids) == num if offsets is None else _fits(offsets, num, len(ids))):
            wrong.append(f"{'ids' if offsets is None else 'offsets'}/{feature.name}")
    if wrong:
        raise ValueError(
            f"{sections.path}: sections {wrong} do not have the rows and types that the schema "
            f"asks for; prepare the data again"
        )


def _fits(offsets: np.ndarray, num_rows: int, num_ids: int) -> bool:
    """Whether offsets have the right form and ends; a loader checks those between."""
    return (
        offsets.shape == (num_rows + 1,)
        and offsets.dtype.str[1:] in ("u4", "i8")
        and (int(offsets[0]), int(offsets[-1])) == (0, num_ids)
    )
