"""Ali-CCP: is an item of Taobao clicked, and then bought? Two tasks of one impression.

An impression is a row of the skeleton; features of the user and of the user's behaviour, which many
impressions share, are stored once, in the common features, by an id. Features are nested text:

    field \\x02 feature \\x03 value   joined by \\x01

A field may occur several times: the user's behaviour is four lists, of which the features with the
largest values are used. A tenth of the common features, with all their impressions, validates.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hotrows.data.datasets import tables
from hotrows.data.datasets.dataset import DataSet, Progress, Samples, Source
from hotrows.data.datasets.tables import TEST, TRAIN, VALIDATION, find
from hotrows.runtime.arrow import pa
from hotrows.schema import Label, Schema, Sparse

LONGEST = 10  # of the lists: a user has some 500 features in all, and 80 million rows repeat them
_USER = {
    "101": "user",
    "121": "user_profile",
    "122": "user_group",
    "124": "user_gender",
    "125": "user_age",
    "126": "user_consumption_1",
    "127": "user_consumption_2",
    "128": "user_is_occupied",
    "129": "user_geography",
}
_DID = {
    "109_14": "user_categories",
    "110_14": "user_shops",
    "127_14": "user_brands",
    "150_14": "user_intentions",
}
_ITEM = {
    "205": "item",
    "206": "item_category",
    "207": "item_shop",
    "216": "item_brand",
    "508": "user_item_category",
    "509": "user_item_shop",
    "702": "user_item_brand",
    "853": "user_item_intention",
    "301": "position",
}
_ITEM_LISTS = {"210": "item_intentions"}
_SKELETON = ("sample", "click", "buy", "common", "number", "features")
_COMMON = ("common", "number", "features")


schema = Schema(
    name="ali_ccp",
    label=(Label("click"), Label("buy")),
    group="user",
    features=(
        *(Sparse(name, min_count=10) for name in (*_USER.values(), *_ITEM.values())),
        *(
            Sparse(name, many=True, min_count=10, max_length=LONGEST, pooling="mean")
            for name in (*_DID.values(), *_ITEM_LISTS.values())
        ),
    ),
)


def build(raw: Path | None, samples: Path, seed: int, progress: Progress) -> Samples:
    """sample_skeleton_{train,test}.csv and common_features_{train,test}.csv."""
    random = np.random.default_rng(seed)
    with tables.written(samples) as writer:
        for name in ("train", "test"):
            common = _read_common(find(raw, f"common_features_{name}.csv"), name, progress)
            parts = np.where(random.random(len(common)) < 0.1, VALIDATION, TRAIN)
            parts = parts if name == "train" else np.full(len(common), TEST)
            _join(find(raw, f"sample_skeleton_{name}.csv"), common, parts, writer, progress)
    return writer.samples


def _read_common(path: Path, name: str, progress: Progress) -> Any:
    """Reads the features that impressions share: a table with the column `common`."""
    types = {"common": "string", "features": "string"}
    tables_read = []
    for block in tables.csv_blocks(path, types, columns=_COMMON):
        columns = _columns(block["features"], _USER, _DID, path)
        tables_read.append(tables.beside(block.select(["common"]), columns))
        progress(f"common {name}", sum(map(len, tables_read)), None)
    return pa.concat_tables(tables_read).combine_chunks()


def _join(
    path: Path, common: Any, parts: np.ndarray, writer: tables.PartWriter, progress: Progress
) -> None:
    """Writes impressions with item features and shared ones into the part of the latter."""
    types = {"click": "int8", "buy": "int8", "common": "string", "features": "string"}
    ids, shared = common["common"].combine_chunks(), common.drop_columns(["common"])
    done = 0
    for block in tables.csv_blocks(path, types, columns=_SKELETON):
        possible = pa.compute.greater_equal(
            block["click"], block["buy"]
        )  # purchases without a click are errors
        block = block.filter(possible).combine_chunks()
        place = pa.compute.index_in(block["common"], value_set=ids).combine_chunks()
        item_columns = _columns(block["features"], _ITEM, _ITEM_LISTS, path)
        rows = tables.beside(block.select(["click", "buy"]), item_columns)
        writer.write(tables.beside(rows, shared.take(place)), parts[place.fill_null(0).to_numpy()])
        done += len(block)
        progress("impressions", done, None)


@dataclass(frozen=True)
class _Features:
    """Nested features, flattened: row, index of the field, feature, and value of each."""

    rows: np.ndarray
    fields: np.ndarray
    features: Any
    values: np.ndarray
    num_rows: int


def _columns(text: Any, single: dict[str, str], many: dict[str, str], path: Path) -> Any:
    """Builds a column per field: the feature, or the list of those with the largest values."""
    features = _parse(text, [*single, *many], path)
    columns = {name: _first(features, i) for i, name in enumerate(single.values())}
    columns |= {name: _largest(features, i) for i, name in enumerate(many.values(), len(single))}
    return pa.table(columns)


def _parse(text: Any, fields: list[str], path: Path) -> _Features:
    text = text.combine_chunks() if isinstance(text, pa.ChunkedArray) else text
    triples = pa.compute.split_pattern(text.fill_null(""), "\x01")
    rows, flat = pa.compute.list_parent_indices(triples).to_numpy(), pa.compute.list_flatten(triples)
    present = pa.compute.not_equal(flat, "").to_numpy(zero_copy_only=False)
    field, remaining = _cut(flat.filter(pa.array(present)), "\x02", path)
    which = pa.compute.index_in(field, value_set=pa.array(fields))
    is_known = which.is_valid()
    feature, value = _cut(remaining.filter(is_known), "\x03", path)
    kept = is_known.to_numpy(zero_copy_only=False)
    values = value.cast("float64").to_numpy()
    return _Features(rows[present][kept], which.drop_null().to_numpy(), feature, values, len(text))


def _cut(text: Any, separator: str, path: Path) -> tuple[Any, Any]:
    """Splits text at the first separator into two columns."""
    halves = pa.compute.list_flatten(pa.compute.split_pattern(text, separator, max_splits=1))
    if len(halves) != 2 * len(text):
        raise ValueError(
            f"{path}: expected features as FIELD\\x02FEATURE\\x03VALUE joined by \\x01, but some "
            f"lack {separator!r}; give the file as it was published"
        )
    return halves.take(np.arange(0, len(halves), 2)), halves.take(np.arange(1, len(halves), 2))


def _first(features: _Features, field: int) -> Any:
    """Returns the first feature of the field in each row, or null."""
    mine = np.flatnonzero(features.fields == field)
    rows, first = np.unique(features.rows[mine], return_index=True)
    place = np.full(features.num_rows, -1)
    place[rows] = mine[first]
    return features.features.take(pa.array(place, mask=place < 0))


def _largest(features: _Features, field: int) -> Any:
    """Returns the features of the field in each row, by falling value."""
    mine = np.flatnonzero(features.fields == field)
    mine = mine[np.lexsort((-features.values[mine], features.rows[mine]))]
    counts = np.bincount(features.rows[mine], minlength=features.num_rows)
    rank = np.arange(len(mine)) - np.repeat(np.cumsum(counts) - counts, counts)
    offsets = np.concatenate([[0], np.cumsum(np.minimum(counts, LONGEST))])
    return tables.lists(offsets, features.features.take(mine[rank < LONGEST]))


_TIANCHI = "https://tianchi.aliyun.com/dataset/408"
_NAMES = tuple(
    f"{kind}_{part}.csv" for kind in ("sample_skeleton", "common_features") for part in ("train", "test")
)

ali_ccp = DataSet(
    name="ali_ccp",
    title="Ali-CCP: clicks and purchases",
    schema=schema,
    rows=84_000_000,
    size="36 GB",
    licence="terms of Tianchi",
    home=_TIANCHI,
    sources=tuple(map(Source, _NAMES)),
    build=build,
    sign_in=f"sign in at {_TIANCHI}, accept the terms, unpack sample_train and sample_test, and put "
    + ", ".join(_NAMES),
)
