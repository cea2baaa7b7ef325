"""PICASSO: what the paper claims, measured. The page is docs/papers/picasso.md."""

from benchmarks.papers import fields, operations
from benchmarks.papers.part import Paper

PAPER = Paper("picasso", "PICASSO (ICDE 2022)", {"operations": operations.PART, "fields": fields.PART})
