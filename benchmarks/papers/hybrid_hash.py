"""Hit ratios by the size of the cache: HybridHash as PICASSO has it, beside this engine's policies."""

from __future__ import annotations

import dataclasses

import numpy as np
import torch
from hotrows.planning.policy import BELADY, LRU, Frequency, Lookahead
from hotrows.planning.slots import SlotMap

from benchmarks import markdown
from benchmarks.gpu_parts.part import Findings
from benchmarks.misses import planned
from benchmarks.papers.part import Part, Setting
from benchmarks.streams import STREAMS, scaled

WARM_UP = REFRESH_EVERY = 100  # batches
SHARES = (0.01, 0.02, 0.05, 0.10)
POLICIES = {
    "LRU": LRU,
    "frequency": Frequency(WARM_UP, REFRESH_EVERY),
    "looking ahead": Lookahead(),
    "Bélády": BELADY,
}
HYBRID_HASH = "HybridHash"


def run(findings: Findings, setting: Setting) -> None:
    """Caches begin empty; the second half of the batches counts."""
    for name in ("zipf", "drift", "criteo"):
        stream = STREAMS[name]
        if setting.small:
            stream = dataclasses.replace(stream, num_rows=scaled(stream.num_rows, 500), lookups=20)
        distinct = [np.unique(rows) for rows in stream.batches(setting.pick(1_000, 220))]
        tensors = [torch.from_numpy(rows) for rows in distinct]
        for share in SHARES:
            arm, num_slots = f"{name} {share:.0%}", int(stream.rows * share)
            if findings.has(arm):
                continue
            fetched, swapped = hybrid_hash(stream.rows, num_slots, distinct)
            misses = {HYBRID_HASH: fetched}
            for policy, value in POLICIES.items():
                so_far = list(planned(SlotMap(num_slots, value, 1), tensors))
                misses[policy] = np.diff(so_far, prepend=0)
            half = len(distinct) // 2
            num_rows = sum(map(len, distinct[half:]))
            hits = {policy: 1 - float(rows[half:].sum()) / num_rows for policy, rows in misses.items()}
            bulk = float(swapped[half:].sum()) / num_rows
            findings.add(arm, {**hits, "swapped": bulk, "rows": num_rows / (len(distinct) - half)})


def hybrid_hash(
    num_rows: int, num_slots: int, batches: list[np.ndarray],
    warm_up: int = WARM_UP, refresh_every: int = REFRESH_EVERY,
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """Returns by batch the rows read from cold storage, and those that a refresh brings in before it.

    Every distinct row of a batch is counted. After `warm_up` batches, and after every `refresh_every`
    more, hot storage is filled anew, at once, with the rows of the largest counts; in between it does
    not change, and rows that are not in it stay in cold storage. Of equal counts the lower row wins.

    [0, 1], [0, 2], [0, 1] with 3 rows, 1 slot, a warm-up of 1 and a refresh every batch
        ->  [2, 1, 1], [0, 1, 0]
    """
    counts, is_hot = np.zeros(num_rows, np.int64), np.zeros(num_rows, bool)
    fetched, swapped = np.zeros(len(batches), np.int64), np.zeros(len(batches), np.int64)
    for batch, rows in enumerate(batches):
        if batch >= warm_up and (batch - warm_up) % refresh_every == 0:
            before, is_hot = is_hot, np.zeros(num_rows, bool)
            is_hot[np.argsort(-counts, kind="stable")[:num_slots]] = True
            swapped[batch] = np.count_nonzero(is_hot & ~before & (counts > 0))
        fetched[batch] = np.count_nonzero(~is_hot[rows])
        counts[rows] += 1
    return fetched, swapped


def table(arms: dict[str, dict]) -> str:
    names = (HYBRID_HASH, *POLICIES)
    lines = [
        [*arm.split(), *(f"{figures[name]:.1%}" for name in names), f"{figures['swapped']:.1%}"]
        for arm, figures in arms.items()
    ]
    return markdown.table(["stream", "cache", *names, "HybridHash: swapped in besides"], lines)


PART = Part("Which share of a batch's rows does each policy find, by the size of the cache?", run, table)
