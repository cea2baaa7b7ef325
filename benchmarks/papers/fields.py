"""Throughput against the number of fields, at about equal lookups a step."""

from __future__ import annotations

from itertools import chain
from statistics import median

from benchmarks import markdown
from benchmarks.gpu_parts.part import Findings
from benchmarks.papers.part import Part, Setting, in_a_process

ARMS = ("hotrows", "hotrows-vectors", "plain")
BATCH_SIZES = {461: 2_048, 1_000: 1_024, 100: 8_192, 1_834: 512, 26: 32_768}
SMALL = {4: 32, 8: 16}


def run(findings: Findings, setting: Setting) -> None:
    """Every arm in turn, round after round: a machine that others use slows all of them alike."""
    for fields, batch_size in setting.pick(BATCH_SIZES, SMALL).items():
        if findings.has(str(fields)):
            continue
        rounds: dict[str, list[dict]] = {arm: [] for arm in ARMS}
        for _ in range(setting.pick(2, 1)):
            for arm, figures in rounds.items():
                request = {
                    "arm": arm,
                    "fields": fields,
                    "batch_size": batch_size,
                    "rows": setting.pick(10_000, 50),
                    "threads": setting.pick(2, 1),
                    "windows": setting.pick(2, 1),
                    "warmup": setting.pick(1.5, 0.0),
                    "max_seconds": setting.pick(2.0, 0.0),
                }
                figures.append(in_a_process("fields_arm", request, setting))
        wrong = [row["error"] for row in chain(*rounds.values()) if "error" in row]
        if findings.check(f"{fields} fields: runs", not wrong, "; ".join(wrong), str(fields)):
            findings.add(str(fields), {"batch_size": batch_size, **summary(rounds)})


def summary(rounds: dict[str, list[dict]]) -> dict:
    """Medians of each arm, and the median of the ratios to plain PyTorch in the same round."""
    plain = [row["samples_per_s"] for row in rounds["plain"]]
    return {
        arm: {
            "samples_per_s": median(row["samples_per_s"] for row in rows),
            "ratio": median(row["samples_per_s"] / p for row, p in zip(rows, plain, strict=True)),
            "peak_rss_mb": max(row["peak_rss_mb"] for row in rows),
            "other_cores": max(row["other_cores"] for row in rows),
            "rounds": [row["samples_per_s"] for row in rows],
        }
        for arm, rows in rounds.items()
    }


def table(arms: dict[str, dict]) -> str:
    head = ["fields", "batch", "hotrows", "by vectors", "plain PyTorch", "hotrows over plain", "MB"]
    lines = []
    for fields, figures in sorted(arms.items(), key=lambda arm: int(arm[0])):
        speeds = [f"{figures[arm]['samples_per_s'] / 1e3:.1f}" for arm in ARMS]
        ratio = f"**{figures['hotrows']['ratio']:.1f}x**"
        memory = " / ".join(f"{figures[arm]['peak_rss_mb']:,.0f}" for arm in ARMS)
        lines.append([f"{int(fields):,}", f"{figures['batch_size']:,}", *speeds, ratio, memory])
    return markdown.table(head, lines)


PART = Part("How does throughput change with the number of fields, at equal lookups?", run, table)
