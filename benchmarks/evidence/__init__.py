"""The evidence pages: every figure in docs/evidence/ is read from a file in benchmarks/results/."""
