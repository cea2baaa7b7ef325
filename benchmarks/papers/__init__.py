"""The three papers' claims beside what hotrows reaches: `python -m benchmarks.papers`."""
