"""Schemas and encoded batches of every kind, drawn at random, for tests of what stores and loads them."""

import numpy as np
import pyarrow as pa
import torch
from hypothesis import strategies as st

from hotrows.batch import Batch
from hotrows.data import write_encoded
from hotrows.schema import Dense, Schema, Sequence, Sparse, is_list

BORDERS = (3, 255, 256, 257, 65_535, 65_536, 65_537, 1 << 32, (1 << 32) + 1, 1 << 50)

MISSING_FIXED = int(pa.__version__.split(".")[0]) >= 26
"""Whether this pyarrow reads Parquet where a list of a fixed size is missing."""

EVERYTHING = Schema(
    features=(
        Dense("number"),
        Dense("other"),
        Sparse("one", rows=256),
        Sparse("many", rows=70_000, many=True, num_unknown=3),
        Sequence("sequence", rows=1 << 40),
        Sparse("two", rows=(1 << 32) + 1),
    ),
    label=("click", "buy"),
    weight="w",
    group="g",
)


@st.composite
def schemas(draw) -> Schema:
    kinds = draw(st.lists(st.sampled_from(["sparse", "many", "sequence"]), min_size=1, max_size=4))
    features = [Dense(f"d{i}") for i in range(draw(st.integers(0, 2)))]
    for i, kind in enumerate(kinds):
        rows, name = draw(st.sampled_from(BORDERS)), f"{kind}{i}"
        sparse = Sparse(name, rows=rows, many=kind == "many")
        features.append(Sequence(name, rows=rows) if kind == "sequence" else sparse)
    return Schema(
        features=tuple(features),
        label=draw(st.sampled_from(["click", ("click", "buy"), ("a", "b", "c")])),
        weight=draw(st.sampled_from([None, "w"])),
        group=draw(st.sampled_from([None, "g"])),
    )


def batch_of(schema: Schema, rows: int, seed: int = 0) -> Batch:
    """Rows with ids at the ends of their vocabularies, and lists from empty to long.

    The first dense value, where there is one, is the number of the row.
    """
    random = np.random.default_rng(seed)
    labels = random.integers(0, 2, (rows, len(schema.labels))).astype(np.float32)
    if len(schema.labels) > 1:
        labels[random.random(labels.shape) < 0.3] = np.nan
    dense = random.standard_normal((rows, len(schema.dense))).astype(np.float32)
    dense[:, :1] = np.arange(rows)[:, None]
    ids, lengths = [], []
    for feature in schema.id_features:
        sizes = random.integers(0, 4, rows) if is_list(feature) else np.ones(rows, np.int64)
        if is_list(feature):
            sizes[random.random(rows) < 0.02] = 300
        lengths.append(sizes)
        ids.append(_ids(random, schema.rows_of(feature.name), int(sizes.sum())))
    jagged = any(map(is_list, schema.id_features))
    offsets = np.concatenate([[0], np.cumsum(np.concatenate(lengths))])
    groups = random.integers(-(1 << 62), 1 << 62, rows)
    return Batch(
        features=tuple(feature.name for feature in schema.id_features),
        ids=torch.from_numpy(np.concatenate(ids)),
        dense=torch.from_numpy(dense),
        labels=torch.from_numpy(labels if len(schema.labels) > 1 else labels[:, 0]),
        offsets=torch.from_numpy(offsets) if jagged else None,
        sample_weights=torch.from_numpy(random.random(rows, np.float32)) if schema.weight else None,
        groups=torch.from_numpy(groups) if schema.group else None,
    )


def write_rows(folder, schema: Schema, batch: Batch, shard_rows: int, monkeypatch):
    """The batch as the training part, in shards of so many rows."""
    from hotrows.data.stored.shards import ShardWriter

    monkeypatch.setattr(ShardWriter.__init__, "__defaults__", (shard_rows,))
    return write_encoded(folder, schema, {"train": [batch]})


def samples(batch: Batch) -> list[tuple]:
    """Every sample of a batch as plain values; nan as None."""
    num, size = len(batch.features), batch.size
    offsets = range(num * size + 1) if batch.offsets is None else batch.offsets.tolist()
    ids = batch.ids.tolist()
    labels = (batch.labels if batch.labels.dim() == 2 else batch.labels[:, None]).tolist()
    weights = [None] * size if batch.sample_weights is None else batch.sample_weights.tolist()
    groups = [None] * size if batch.groups is None else batch.groups.tolist()
    dense = batch.dense.tolist()
    return [
        (
            tuple(tuple(ids[offsets[f * size + b] : offsets[f * size + b + 1]]) for f in range(num)),
            tuple(dense[b]),
            tuple(None if label != label else label for label in labels[b]),
            weights[b],
            groups[b],
        )
        for b in range(size)
    ]


def _ids(random: np.random.Generator, rows: int, num: int) -> np.ndarray:
    ids = random.integers(0, rows, num)
    at_end = random.random(num) < 0.3
    ids[at_end] = rows - 1
    return ids
