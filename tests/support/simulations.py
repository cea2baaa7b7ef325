"""Simulations of caches whose figures are given."""

import dataclasses

from hotrows.tools.tuning.cache_simulation import PolicyResult, Simulation


def curve(*points, untouched=0.0, table_bytes=1 << 30):
    """A simulation whose misses, of 1,000 rows a batch, are given by size."""
    result = PolicyResult("lookahead", 0, (1,), 0, 0, 0, 0, 0, 0, 0, 0, 0, None)
    results = [
        dataclasses.replace(
            result, fast_memory=size, misses=misses, reads=misses, writes=misses,
            bytes_written=misses * 128,
        )
        for size, misses in points
    ]  # fmt: skip
    counts = (8, 2, 2600, 1000, untouched, 1000, 128_000, 10**6, table_bytes)
    return Simulation("dlrm", 100, 1, 0, *counts, tuple(results))
