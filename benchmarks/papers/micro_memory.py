"""Memory of a step against the number of micro-batches, on processors."""

from __future__ import annotations

from benchmarks import markdown
from benchmarks.gpu_parts.part import Findings
from benchmarks.papers.part import Part, Setting, in_a_process

PARTS = (1, 2, 4, 8, 16)


def run(findings: Findings, setting: Setting) -> None:
    for parts in setting.pick(PARTS, PARTS[:2]):
        if findings.has(str(parts)):
            continue
        request = {
            "parts": parts,
            "rows": setting.pick(200_000, 50),
            "dim": setting.pick(64, 8),
            "batch_size": setting.pick(16_384, 64),
            "steps": setting.pick(5, 1),
            "small": setting.small,
        }
        figures = in_a_process("micro_memory", request, setting)
        wrong = figures.get("error", "")
        if findings.check(f"{parts} micro-batches: runs", not wrong, wrong, str(parts)):
            findings.add(str(parts), figures)


def table(arms: dict[str, dict]) -> str:
    first = arms["1"]
    lines = [
        [parts, f"{figures['peak_mb']:,.0f}", f"{figures['peak_mb'] / first['peak_mb']:.2f}x",
         f"{figures['ms']:,.0f}", f"{figures['ms'] / first['ms']:.2f}x"]
        for parts, figures in arms.items()
    ]  # fmt: skip
    return markdown.table(
        ["micro-batches", "MB that a step takes", "of one", "ms a step", "of one"], lines
    )


PART = Part("How much memory does a step take, by the number of micro-batches?", run, table)
