"""Throughput against the number of fields, at about equal lookups a step, and operations of a step."""

from __future__ import annotations

from itertools import chain
from statistics import median

import torch

from benchmarks import markdown
from benchmarks.arms.fields_arm import step_of
from benchmarks.gpu_parts.part import Findings
from benchmarks.papers.operations import A_PACK_PER_TABLE, counted
from benchmarks.papers.part import Part, Setting, in_a_process

ARMS = {
    "hotrows": "hotrows",
    "hotrows-vectors": "by vectors",
    "plain": "plain PyTorch",
    "tensorflow": "TensorFlow",
}
BATCH_SIZES = {461: 2_048, 1_000: 1_024, 100: 8_192, 1_834: 512, 26: 32_768}
SMALL = {4: 32, 8: 16}
ROUNDS = 1  # more where other programs run beside


def run(findings: Findings, setting: Setting) -> None:
    """Every arm in turn, round after round: a machine that others use slows all of them alike."""
    arms = [arm for arm in ARMS if arm != "tensorflow" or setting.tensorflow]
    for fields, batch_size in setting.pick(BATCH_SIZES, SMALL).items():
        if findings.has(str(fields)):
            continue
        rounds: dict[str, list[dict]] = {arm: [] for arm in arms}
        for _ in range(ROUNDS):
            for arm, figures in rounds.items():
                request = {
                    "arm": arm,
                    "fields": fields,
                    "batch_size": batch_size,
                    "rows": setting.pick(10_000, 50),
                    "threads": setting.pick(2, 1),
                    "windows": setting.pick(4, 1),
                    "warmup": setting.pick(1.5, 0.0),
                    "max_seconds": setting.pick(15.0, 0.0),  # to wait for quiet windows
                }
                python = setting.tensorflow if arm == "tensorflow" else None
                figures.append(in_a_process("fields_arm", request, setting, python))
        wrong = [row["error"] for row in chain(*rounds.values()) if "error" in row]
        if findings.check(f"{fields} fields: runs", not wrong, "; ".join(wrong), str(fields)):
            facts = {"batch_size": batch_size, "operations": operations(fields)}
            findings.add(str(fields), {**facts, **summary(rounds)})


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


def operations(fields: int) -> dict[str, int]:
    """Operations of a step of this very model: in plain PyTorch, before packing, and after."""
    ways = {"plain": ("plain", 1), "apart": ("hotrows", A_PACK_PER_TABLE), "packed": ("hotrows", 1)}
    threads, counts = torch.get_num_threads(), {}
    for name, (arm, parts) in ways.items():
        step = step_of(arm, fields, 32, 50, threads, plan="inline", pack_parts=parts)
        step(0)  # makes what stays
        with counted(name, counts):
            step(1)
    return counts


def table(arms: dict[str, dict]) -> str:
    shown = {arm: name for arm, name in ARMS.items() if any(arm in figures for figures in arms.values())}
    head = ["fields", "batch", *shown.values(), "hotrows over plain"]
    head += ["over TensorFlow"] * ("tensorflow" in shown)
    head += ["MB", "operations: plain", "a pack per table", "packed"]
    lines = []
    for fields, figures in sorted(arms.items(), key=lambda arm: int(arm[0])):
        ours, peer = figures["hotrows"], figures.get("tensorflow")
        speeds = [f"{figures[arm]['samples_per_s'] / 1e3:.1f}" if arm in figures else "" for arm in shown]
        ratios = [f"**{ours['ratio']:.1f}x**"]
        if "tensorflow" in shown:
            ratios.append(f"{ours['ratio'] / peer['ratio']:.1f}x" if peer else "")
        memory = " / ".join(f"{figures[arm]['peak_rss_mb']:,.0f}" for arm in shown if arm in figures)
        counts = figures.get("operations", {})
        steps = [f"{counts[name]:,}" if counts else "" for name in ("plain", "apart", "packed")]
        lines.append([f"{int(fields):,}", f"{figures['batch_size']:,}", *speeds, *ratios, memory, *steps])
    return markdown.table(head, lines)


PART = Part("How does throughput change with the number of fields, at equal lookups?", run, table)
