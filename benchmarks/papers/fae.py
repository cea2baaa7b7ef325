"""FAE: what the paper claims, measured. The page is docs/papers/fae.md."""

from benchmarks.papers.part import Paper

PAPER = Paper("fae", "FAE (VLDB 2022)")
