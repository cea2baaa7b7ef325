"""ScratchPipe: what the paper claims, measured. The page is docs/papers/scratchpipe.md."""

from benchmarks.papers.part import Paper

PAPER = Paper("scratchpipe", "ScratchPipe (2022)")
