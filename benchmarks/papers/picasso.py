"""PICASSO: what the paper claims, measured."""

from benchmarks.papers import ablation, fields, hybrid_hash, micro_memory, operations, regimes
from benchmarks.papers.part import Paper

PARTS = {
    "operations": operations.PART,
    "fields": fields.PART,
    "regimes": regimes.PART,
    "hits": hybrid_hash.PART,
    "memory": micro_memory.PART,
    "ablation": ablation.PART,
}
PAPER = Paper("picasso", "PICASSO (ICDE 2022)", PARTS)
