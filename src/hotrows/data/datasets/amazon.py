"""Amazon reviews (2014, 5-core) as in DIN: which product does a user review next?

A user's reviews in order of time; every one but the first is a target, the reviews before are its
history, and each target is followed by an item that the user never reviewed. The last review of each
user tests, the one before validates. Times are days, so reviews of one day stay in the order of the
file: the order is the time.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from hotrows.data.datasets import tables
from hotrows.data.datasets.dataset import DataSet, Progress, Samples, Source
from hotrows.data.datasets.events import ClickLog, catalog, negatives, places, samples_of, sort_events
from hotrows.data.datasets.tables import TEST, TRAIN, VALIDATION, find, open_bytes
from hotrows.runtime.arrow import pa
from hotrows.schema import Schema, Sequence, Sparse

HISTORY = 100
_DIEN = ("local_train_splitByUser", "local_test_splitByUser")
_TARGETS = tables.BLOCK_ROWS // 2
_ASIN = re.compile(r"""['"]asin['"]: ['"]([^'"]+)['"]""")
_CATEGORIES = re.compile(r"""['"]categories['"]: (\[\[.*?\]\])""")

schema = Schema(
    name="amazon",
    label="label",
    group="user",
    features=(
        Sparse("user"),
        Sparse("item"),
        Sparse("category"),
        Sequence("history_item", vocabulary="item", max_length=HISTORY),
        Sequence("history_category", vocabulary="category", max_length=HISTORY),
    ),
)


def build(raw: Path | None, samples: Path, seed: int, progress: Progress) -> Samples:
    """reviews_*_5.json and meta_*.json; or DIEN's local_train_splitByUser and its test file."""
    if raw is not None and any(raw.glob(f"{_DIEN[0]}*")):
        return _build_dien(raw, samples, seed)
    reviews = _read_reviews(find(raw, "reviews_*_5.json"))
    log, user_names = _log(reviews, find(raw, "meta_*.json"), progress)
    place, total = log.times, places(log.users, log.times)[1]
    targets = np.flatnonzero(place > 0)
    parts = np.select([place == total - 1, place == total - 2], [TEST, VALIDATION], TRAIN)
    evenly = catalog(np.arange(len(log.names)), np.ones(len(log.names)))
    negative = negatives(evenly, log.users[targets], log.users, log.items, np.random.default_rng(seed))
    events = sort_events(log.users, log.times)
    with tables.written(samples) as writer:
        for start in range(0, len(targets), _TARGETS):
            some, others = targets[start:][:_TARGETS], negative[start:][:_TARGETS]
            rows = samples_of(log, events, some, others, HISTORY, user_names)
            writer.write(rows.drop_columns(["time"]), np.repeat(parts[some], 2))
            progress("histories", start + len(some), len(targets))
    return writer.samples


def _read_reviews(path: Path) -> Any:
    """Reads reviewerID, asin and unixReviewTime of each review, in the order of the file."""
    columns = {"reviewerID": pa.string(), "asin": pa.string(), "unixReviewTime": pa.int64()}
    how = pa.json.ParseOptions(explicit_schema=pa.schema(columns), unexpected_field_behavior="ignore")
    block = pa.json.ReadOptions(block_size=tables.BLOCK_BYTES)
    try:
        with pa.input_stream(str(path)) as file:
            reviews = pa.json.read_json(file, block, how)
    except pa.ArrowInvalid as error:
        raise ValueError(
            f"{path}: expected a JSON object a line, but {error}; give the file of 2014 as it was "
            f"published"
        ) from error
    missing = [name for name in columns if reviews[name].null_count]
    if missing:
        raise ValueError(
            f"{path}: expected {missing} in every review, but some lack them; give the file of "
            f"2014 as it was published"
        )
    return reviews.combine_chunks()


def _log(reviews: Any, meta: Path, progress: Progress) -> tuple[ClickLog, Any]:
    """Converts reviews to events whose time is their place among the user's; also the users' names."""
    user_names, users = _codes(reviews["reviewerID"])
    item_names, items = _codes(reviews["asin"])
    place, _ = places(users, reviews["unixReviewTime"].to_numpy())
    known = dict(_read_meta(meta, progress))
    of_item = pa.array([known.get(name) for name in item_names.to_pylist()], pa.string())
    category_names, categories = _codes(of_item)
    return ClickLog(users, items, place, categories, item_names, category_names), user_names


def _codes(column: Any) -> tuple[Any, np.ndarray]:
    """Returns distinct values (also null) in order of appearance, and the index of each row's."""
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    encoded = column.dictionary_encode(null_encoding="encode")
    return encoded.dictionary, encoded.indices.to_numpy().astype(np.int64)


def _read_meta(path: Path, progress: Progress) -> Iterator[tuple[str, str]]:
    """Yields each product and the last of its categories; lines are Python literals, not JSON."""
    with open_bytes(path) as file:
        for number, line in enumerate(map(bytes.decode, file), 1):
            asin, categories = _ASIN.search(line), _CATEGORIES.search(line)
            if not asin:
                raise ValueError(
                    f"{path} line {number}: expected a product with an asin, got {line[:60]!r}; "
                    f"give the file of 2014 as it was published"
                )
            if categories:
                yield asin[1], ast.literal_eval(categories[1])[-1][-1]
            if number % 10_000 == 0:
                progress("products", number, None)


def _build_dien(raw: Path, samples: Path, seed: int) -> Samples:
    """Moves a tenth of the users of the training file to validation."""
    train, test = (_read_dien(find(raw, name)) for name in _DIEN)
    _, users = _codes(train["user"])
    validates = np.random.default_rng(seed).random(users.max(initial=0) + 1) < 0.1
    with tables.written(samples) as writer:
        writer.write(train, np.where(validates[users], VALIDATION, TRAIN))
        writer.write(test, np.full(len(test), TEST))
    return writer.samples


def _read_dien(path: Path) -> Any:
    """Reads label, user, item, category, and the earlier items and categories, between \\x02."""
    names = ("label", "user", "item", "category", "history_item", "history_category")
    types = {name: "int8" if name == "label" else "string" for name in names}
    rows = tables.read_csv(path, types, columns=names, delimiter="\t")
    for name in names[4:]:
        cut = pa.compute.split_pattern(pa.compute.fill_null(rows[name], ""), "\x02")
        rows = rows.set_column(rows.column_names.index(name), name, cut)
    return rows


_SNAP = "https://snap.stanford.edu/data/amazon/productGraph/categoryFiles"

amazon = DataSet(
    name="amazon",
    title="Amazon: reviews of Electronics",
    schema=schema,
    rows=1_689_188,
    size="1.7 GB",
    licence="research, see the page",
    home="https://jmcauley.ucsd.edu/data/amazon/",
    sources=tuple(
        Source(name, f"{_SNAP}/{name}")
        for name in ("reviews_Electronics_5.json.gz", "meta_Electronics.json.gz")
    ),
    build=build,
)
