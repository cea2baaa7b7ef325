"""Clicks with histories and several labels: a schema, and a table of such rows."""

import numpy as np
import pyarrow as pa

from hotrows.schema import Dense, Schema, Sequence, Sparse

SCHEMA = Schema(
    label=("click", "buy"),
    weight="weight",
    group="user",
    features=(
        Dense("price"),
        Sparse("user"),
        Sparse("item"),
        Sparse("tags", many=True, pooling="mean"),
        Sequence("history", vocabulary="item", max_length=5),
    ),
)


def table(rows=1200, seed=0, first_user=0) -> pa.Table:
    """Rows whose click depends on user, item, tags and history, and whose buy is the reverse."""
    rng = np.random.default_rng(seed)
    user, item = rng.integers(20, size=rows) + first_user, rng.integers(30, size=rows)
    tags = [rng.integers(5, size=n).tolist() for n in rng.integers(4, size=rows)]
    history = [rng.integers(30, size=n).tolist() for n in rng.integers(8, size=rows)]
    taste = np.array([np.mean(items[-5:] or [15]) for items in history])
    signal = (user - 10) * 0.1 + (item - 15) * 0.1 + (taste - 15) * 0.1
    click = (rng.random(rows) < 1 / (1 + np.exp(-signal))).astype(np.int8)
    buy = [None if rng.random() < 0.2 else int(1 - c) for c in click]
    return pa.table(
        {
            "click": click, "buy": pa.array(buy, pa.int8()), "weight": rng.uniform(0.5, 2, rows),
            "price": rng.exponential(5, rows), "user": user, "item": item,
            "tags": pa.array(tags, pa.list_(pa.int64())),
            "history": pa.array(history, pa.list_(pa.int64())),
        }
    )  # fmt: skip
