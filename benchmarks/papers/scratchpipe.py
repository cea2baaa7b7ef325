"""ScratchPipe: what the paper claims, measured."""

import shutil
import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from hotrows.planning.policy import LRU, Frequency, Hot, Lookahead, num_protected
from hotrows.planning.slots import SlotMap

from benchmarks import markdown
from benchmarks.gpu_parts.part import Findings
from benchmarks.gpu_parts.workloads import scattered
from benchmarks.link import gather_rate
from benchmarks.misses import planned
from benchmarks.papers import scratchpipe_rig
from benchmarks.papers.part import Paper, Part, Setting
from benchmarks.papers.scratchpipe_rig import ARMS, LOCALITIES, RATIO, Memory, Rig, rig_of

SHARES = (0.10, 0.05, 0.02)
FAST, UNCACHED, STATIC, STRAW, PUBLISHED, OURS = ARMS
IN_FLIGHT_AT = ("uniform", "medium", "high")
POLICIES = ("look ahead, window by itself", "two batches", "lru", "frequency", "static", "random")


def _scratch(setting: Setting):
    """A folder for streams and files of rows, on the disk of this tree."""
    folder = Path(__file__).parent.parent / ".data"
    folder.mkdir(exist_ok=True)
    return tempfile.TemporaryDirectory(dir=None if setting.small else folder)


def _rate(memory: Memory, setting: Setting) -> float:
    return gather_rate(memory.records, setting.pick(1.5, 0.01)) / RATIO


def run_locality(exponent: float, findings: Findings, setting: Setting) -> None:
    """All arms at one locality, at every size of the cache."""
    rig = rig_of(setting)
    with _scratch(setting) as folder:
        ids, memory = scratchpipe_rig.stream(rig, exponent, Path(folder)), Memory(rig)
        rate = _rate(memory, setting)
        for share in (1.0, 0.0, *SHARES):
            for name, arm in ARMS.items():
                if (name == FAST) != (share == 1.0) or (name == UNCACHED) != (share == 0.0):
                    continue
                key = name if name in (FAST, UNCACHED) else f"{share:.0%} {name}"
                if findings.has(key):
                    continue
                figures = scratchpipe_rig.measure(rig, arm, share, ids, memory, rate)
                figures |= {
                    "link_gb_per_s": rate / 1e9,
                    "rows_of_batch": scratchpipe_rig.distinct(rig, ids),
                }
                if name != UNCACHED:
                    absent = figures["rows_absent_at_training"]
                    past = figures["steps_past_the_cache"]
                    findings.check(
                        f"{key}: training misses no row", not absent or past > 0, f"{absent:,}"
                    )
                findings.add(key, figures)


def locality_table(arms: dict[str, dict]) -> str:
    fast = arms.get(FAST, {}).get("samples_per_s")
    lines = [_line(FAST, "", arms, fast, None), _line(UNCACHED, "", arms, fast, None)]
    for share in SHARES:
        static = arms.get(f"{share:.0%} {STATIC}", {}).get("samples_per_s")
        for name in (STATIC, STRAW, PUBLISHED, OURS):
            lines.append(_line(name, f"{share:.0%}", arms, fast, static))
    head = ["arm", "cache", "in flight", "samples/s", "of all in fast memory", "over static",
            "misses a step", "link, ms", "step, ms", "turnovers", "absent at training"]  # fmt: skip
    one = next(iter(arms.values()))
    note = (
        f"Link: {one['link_gb_per_s']:.2f} GB/s, 1/{RATIO} of the rate at which rows are gathered from "
        f"fast memory here. A batch has {one['rows_of_batch']:,} distinct rows."
    )
    return f"{markdown.table(head, [line for line in lines if line])}\n\n{note}"


def _line(name: str, share: str, arms: dict, fast: float | None, static: float | None) -> list[str]:
    arm = arms.get(f"{share} {name}".strip())
    if arm is None:
        return []
    speed, turned = arm["samples_per_s"], arm["turnovers"]
    past = arm["steps_past_the_cache"]
    return [
        f"**{name}**" if name == OURS else name,
        share.replace("%", " %"),
        str(arm["in_flight"]) if share else "",
        f"{speed:,.0f}",
        f"{speed / fast:.2f}" if fast else "",
        f"{speed / static:.2f}" if static else "",
        f"{arm['misses_per_step']:,.0f}",
        f"{1e3 * arm.get('link_seconds_per_step', 0):.0f}",
        f"{arm['step_ms']:.0f}",
        "" if turned is None else f"{turned:.1f}",
        f"{past} steps past the cache" if past else f"{arm['rows_absent_at_training']:,}",
    ]


# ---- a real file


def run_file(findings: Findings, setting: Setting) -> None:
    """Rows in a file, at the localities that a disk can serve."""
    rig = rig_of(setting) if setting.small else Rig(rows=625_000)
    with _scratch(setting) as folder:
        memory = Memory(rig)
        for locality in ("medium", "high"):
            ids = scratchpipe_rig.stream(rig, LOCALITIES[locality], Path(folder))
            for name in (FAST, STATIC, STRAW, PUBLISHED, OURS):
                key = f"{locality}: {name}"
                if findings.has(key):
                    continue
                path = Path(folder) / "rows"
                figures = scratchpipe_rig.measure(
                    rig, ARMS[name], 0.10, ids, memory, 1.0, None if name == FAST else path
                )
                shutil.rmtree(path, ignore_errors=True)
                absent = figures["rows_absent_at_training"]
                findings.check(f"{key}: training misses no row", not absent, f"{absent:,}")
                findings.add(key, figures)


def file_table(arms: dict[str, dict]) -> str:
    lines = []
    for key, arm in arms.items():
        locality, name = key.split(": ")
        fast, static = (arms.get(f"{locality}: {n}", {}).get("samples_per_s") for n in (FAST, STATIC))
        lines.append([
            locality, f"**{name}**" if name == OURS else name, f"{arm['samples_per_s']:,.0f}",
            f"{arm['samples_per_s'] / fast:.2f}" if fast else "",
            f"{arm['samples_per_s'] / static:.2f}" if static else "",
            f"{arm['misses_per_step']:,.0f}", f"{arm['rows_absent_at_training']:,}",
        ])  # fmt: skip
    head = ["locality", "arm", "samples/s", "of all in fast memory", "over the static cache",
            "misses a step", "absent at training"]  # fmt: skip
    return markdown.table(head, lines)


# ---- latencies


def stages_table(arms: dict[str, dict]) -> str:
    """Median milliseconds of the stages of some arms."""
    stages = ("plan", "collect", "insert", "train", "write back")
    lines = [
        [key.replace("%", " %"), *(f"{arm['stage_ms'].get(stage, 0):.0f}" for stage in stages),
         f"{arm['waited_share']:.0%}".replace("%", " %")]
        for key, arm in arms.items()
    ]  # fmt: skip
    return markdown.table(["arm", *(f"{stage}, ms" for stage in stages), "training waited"], lines)


def run_stages(findings: Findings, setting: Setting) -> None:
    """The stages of the arms at 10 % of one locality, each on its own thread where it has one."""
    rig = rig_of(setting)
    with _scratch(setting) as folder:
        ids, memory = scratchpipe_rig.stream(rig, LOCALITIES["medium"], Path(folder)), Memory(rig)
        rate = _rate(memory, setting)
        for name, arm in ARMS.items():
            if not findings.has(name):
                share = 0.0 if name == UNCACHED else 0.10
                findings.add(name, scratchpipe_rig.measure(rig, arm, share, ids, memory, rate))


# ---- batches in flight


def run_flight(findings: Findings, setting: Setting) -> None:
    """Ours with so many batches in flight, also where slots hold the pins of fewer: then batches wait."""
    rig, share = rig_of(setting), 0.05
    with _scratch(setting) as folder:
        memory = Memory(rig)
        rate = _rate(memory, setting)
        for locality in setting.pick(IN_FLIGHT_AT, ("medium",)):
            ids = scratchpipe_rig.stream(rig, LOCALITIES[locality], Path(folder))
            arms = {PUBLISHED: ARMS[PUBLISHED]}
            arms |= {f"ours, {k}": replace(ARMS[OURS], in_flight=k) for k in (2, 3, 4)}
            for name, arm in arms.items():
                if not findings.has(f"{locality}: {name}"):
                    figures = scratchpipe_rig.measure(rig, arm, share, ids, memory, rate)
                    figures["pins"] = (2 * arm.in_flight - 1) * scratchpipe_rig.distinct(rig, ids)
                    findings.add(f"{locality}: {name}", figures)


def flight_table(arms: dict[str, dict]) -> str:
    lines = []
    for key, arm in arms.items():
        locality, name = key.split(": ")
        published = arms[f"{locality}: {PUBLISHED}"]["samples_per_s"]
        lines.append([
            locality, name.split(",")[0], str(arm["in_flight"]), f"{arm['pins'] / arm['slots']:.1f}",
            f"{arm['samples_per_s']:,.0f}", f"{arm['samples_per_s'] / published:.2f}",
            f"{arm['misses_per_step']:,.0f}", f"{1e3 * arm['link_seconds_per_step']:.0f}",
            f"{arm['step_ms']:.0f}", f"{arm['rows_absent_at_training']:,}",
        ])  # fmt: skip
    head = ["locality", "arm", "in flight", "pins over slots", "samples/s", "over published",
            "misses a step", "link, ms", "step, ms", "absent at training"]  # fmt: skip
    return markdown.table(head, lines)


# ---- policies


def run_policies(findings: Findings, setting: Setting) -> None:
    """Misses by policy: planning alone, so that nothing but the policy differs."""
    rig = rig_of(setting) if setting.small else Rig(rows=250_000, batch=256, steps=400)
    for locality, exponent in LOCALITIES.items():
        key = locality
        if findings.has(key):
            continue
        batches = [_rows(rig, exponent, step) for step in range(rig.steps)]
        popular = torch.cat([
            scattered(torch.arange(rig.rows // 10), rig.rows)[:, None] + rig.rows * t
            for t in range(rig.tables)
        ], 1).reshape(-1)  # fmt: skip
        slots = rig.rows * rig.tables // 10
        counts = {name: _misses(name, slots, batches, popular[:slots]) for name in POLICIES}
        findings.add(key, {**counts, "distinct": float(np.mean([len(b) for b in batches]))})


def _rows(rig: Rig, exponent: float, step: int) -> torch.Tensor:
    ids = scratchpipe_rig.draw(rig, exponent, step)
    return (ids + rig.rows * torch.arange(rig.tables)[:, None]).unique()


def _misses(name: str, num_slots: int, batches: list[torch.Tensor], popular: torch.Tensor) -> float:
    """Rows fetched a batch in the second half of the stream; in flight: one batch."""
    if name == "random":
        return _random_misses(num_slots, batches, popular)
    kept = num_protected(num_slots, 1, len(batches[0]))
    policy = {
        POLICIES[0]: Lookahead(), "two batches": Lookahead(2), "lru": LRU,
        "frequency": Frequency(), "static": Hot(popular[:kept]),
    }[name]  # fmt: skip
    slots, half = SlotMap(num_slots, policy, 1), len(batches) // 2
    slots.warm(popular)
    misses = list(planned(slots, batches))
    return (misses[-1] - misses[half - 1]) / (len(batches) - half)


def _random_misses(num_slots: int, batches: list[torch.Tensor], popular: torch.Tensor) -> float:
    """Victims are drawn evenly from the rows that the batch does not read."""
    random, misses = np.random.default_rng(0), []
    num_rows = int(max(int(popular.max()), *(int(rows.max()) for rows in batches))) + 1
    row_of, is_held = popular.numpy().copy(), np.zeros(num_rows, bool)
    is_held[row_of] = True
    for rows in (batch.numpy() for batch in batches):
        missing = rows[~is_held[rows]]
        is_read = np.zeros(num_rows, bool)
        is_read[rows] = True
        may_go = np.flatnonzero(~is_read[row_of])
        slots = random.choice(may_go, len(missing), replace=False)
        is_held[row_of[slots]] = False
        row_of[slots], is_held[missing] = missing, True
        misses.append(len(missing))
    return float(np.mean(misses[len(misses) // 2 :]))


def policies_table(arms: dict[str, dict]) -> str:
    lines = [
        [f"{locality} ({LOCALITIES[locality]})", f"{arm['distinct']:,.0f}",
         *(f"{arm[name]:,.0f}" for name in POLICIES)]
        for locality, arm in arms.items()
    ]  # fmt: skip
    return markdown.table(["locality", "rows of a batch", *POLICIES], lines)


PARTS = {
    locality: Part(
        f"How fast is each arm at locality {locality} (Zipf exponent {exponent})?",
        partial(run_locality, exponent),
        locality_table,
    )
    for locality, exponent in LOCALITIES.items()
}
RUNS: dict[str, tuple[str, Callable, Callable]] = {
    "stages": ("How long does each stage take?", run_stages, stages_table),
    "flight": ("How many batches in flight, at a cache of 5 %?", run_flight, flight_table),
    "policies": ("Does the policy matter?", run_policies, policies_table),
    "file": ("How fast is training with its rows in a real file?", run_file, file_table),
}
PAPER = Paper(
    "scratchpipe", "ScratchPipe (2022)", PARTS | {name: Part(*part) for name, part in RUNS.items()}
)
