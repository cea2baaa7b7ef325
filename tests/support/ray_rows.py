"""Rows of every kind of column."""

import numpy as np
import pyarrow as pa


def table_of(num_rows: int = 1000, seed: int = 0) -> pa.Table:
    rng = np.random.default_rng(seed)
    numbers = rng.normal(size=num_rows)
    return pa.table(
        {
            "click": rng.integers(2, size=num_rows),
            "buy": pa.array(rng.integers(2, size=num_rows), mask=rng.random(num_rows) < 0.2),
            "x": pa.array(numbers, mask=rng.random(num_rows) < 0.1),
            "y": rng.integers(-3, 900, size=num_rows),
            "user": [f"user number {n % 50}" for n in rng.zipf(1.3, size=num_rows)],
            "seen": [
                [f"i{n % 9}" for n in rng.zipf(1.5, size=k)] for k in rng.integers(6, size=num_rows)
            ],
            "item": pa.array(rng.zipf(1.3, size=num_rows) % 20, mask=rng.random(num_rows) < 0.1),
            "when": 1_700_000_000 + rng.integers(90, size=num_rows) * 1000,
            "unread": [object.__name__] * num_rows,
        }
    )
