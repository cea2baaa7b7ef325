"""The command of the fuzzer: batches of cases in processes of their own, until one breaks the claim."""

from __future__ import annotations

import argparse
import dataclasses
import gc
import json
import logging
import math
import multiprocessing
import resource
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness import conditions

from hotrows.runtime.atomic_files import write_json
from hotrows.schema import Schema
from tests.fuzz import CASE_SECONDS, TARGETS, case_of, run_case
from tests.fuzz.case import Broken, Case
from tests.support.scratch import folder_in_memory

BATCH = 2_000  # cases of a process
MEMORY = 3 << 30  # bytes of address space that a batch may take beside what it began with


@dataclass(frozen=True)
class Finding:
    target: str
    seed: int
    why: str


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=math.inf)
    parser.add_argument("--count", type=int, default=20_000, help="cases in all, evenly of each target")
    parser.add_argument("--target", choices=TARGETS, action="append")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--go-on", action="store_true", help="names every new finding, to the end")
    parser.add_argument("--record", type=Path, help="adds the counts of this run to a JSON")
    arguments = parser.parse_args()
    begun = time.monotonic()
    end, seeds = begun + arguments.seconds, arguments.seed
    kinds: set[str] = set()
    targets = arguments.target or list(TARGETS)
    last = arguments.seed + -(-arguments.count // len(targets))
    while time.monotonic() < end and seeds < last:
        for target in targets:
            finding = run_batch(target, range(seeds, seeds + BATCH))
            while finding is not None and arguments.go_on:
                if (kind := f"{target} {finding.why[:70]}") not in kinds:
                    kinds.add(kind)
                    print(f"{target} {finding.seed}: {finding.why}", flush=True)
                finding = run_batch(target, range(finding.seed + 1, seeds + BATCH))
            if finding is not None:
                keep(finding)
                return 1
        seeds += BATCH
        done = (seeds - arguments.seed) * len(targets)
        print(f"{done:,} cases: {seeds - arguments.seed:,} each of {', '.join(targets)}", flush=True)
    if arguments.record is not None:
        record(
            arguments.record,
            dict.fromkeys(targets, seeds - arguments.seed),
            {"seed": arguments.seed, "minutes": round((time.monotonic() - begun) / 60, 1)}
            | {"environment": conditions(threads=1), "found": sorted(kinds)},
        )
    return 1 if kinds else 0


def record(path: Path, cases: dict[str, int], fields: dict[str, Any]) -> None:
    """Adds a run to those in a file, its cases by target and `fields`, and sums the cases up."""
    runs = json.loads(path.read_text())["runs"] if path.exists() else []
    runs.append({**fields, "cases": cases})
    summed = {target: sum(run["cases"].get(target, 0) for run in runs) for target in TARGETS}
    write_json(path, {"runs": runs, "cases": summed, "all": sum(summed.values())})


def run_batch(target: str, seeds: range) -> Finding | None:
    """Runs the cases of some seeds in a process of their own; the first finding, if any."""
    return run_cases(target, ((seed, partial_case(target, seed)) for seed in seeds), len(seeds))


def partial_case(target: str, seed: int) -> Callable[[], Case]:
    return lambda: case_of(target, seed)


def run_cases(target: str, cases: Iterator[tuple[int, Callable[[], Case]]], num: int) -> Finding | None:
    """The first finding; a process that dies or says nothing for long is one too."""
    fork = multiprocessing.get_context("fork")
    receiver, sender = fork.Pipe()
    process = fork.Process(target=_work, args=(target, cases, sender))
    process.start()
    sender.close()
    seed, finding = -1, None
    try:
        while receiver.poll(CASE_SECONDS * 3):
            kind, what = receiver.recv()
            if kind == "begins":
                seed = what
            elif kind == "broken":
                finding = Finding(target, seed, what)
        finding = Finding(target, seed, "hangs, and no signal gets through")
    except EOFError:
        process.join()
        if process.exitcode != 0:
            finding = Finding(target, seed, f"the process died with {process.exitcode}")
    process.kill()
    process.join()
    return finding


def _work(target: str, cases: Iterator[tuple[int, Callable[[], Case]]], to: Any) -> None:
    gc.freeze()  # else each collection looks at all that was imported
    logging.getLogger("hotrows").setLevel(logging.ERROR)
    warnings.simplefilter("error")
    (pages,) = Path("/proc/self/statm").read_text().split()[:1]
    most = int(pages) * resource.getpagesize() + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    with tempfile.TemporaryDirectory(dir=folder_in_memory()) as folder:
        for seed, make in cases:
            to.send(("begins", seed))
            try:
                run_case(target, make(), Path(folder) / "case")
            except Broken as broken:
                to.send(("broken", str(broken)))
                break


def keep(finding: Finding) -> None:
    """Makes the input of a finding smaller, and writes it beside its seed."""
    case = smallest(finding, case_of(finding.target, finding.seed))
    folder = Path(tempfile.gettempdir()) / f"fuzz-{finding.target}-{finding.seed}"
    for name, content in case.files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    how = {**case.how, "damaged": case.damaged}
    (folder / "how.json").write_text(json.dumps(how, indent=1, default=Schema.to_json))
    print(f"{finding.target}, seed {finding.seed}: {finding.why}")
    size = len(case.files.get(case.damaged, b""))
    print(f"the smallest input found has {size:,} bytes and is in {folder}")


def smallest(finding: Finding, case: Case, seconds: float = 60.0) -> Case:
    """The case with as much left out of its damaged file, by halves, as still shows the same."""
    content = case.files.get(case.damaged, b"")
    end = time.monotonic() + seconds
    step = len(content) // 2
    while step and time.monotonic() < end:
        start = 0
        while start < len(content) and time.monotonic() < end:
            fewer = content[:start] + content[start + step :]
            smaller = dataclasses.replace(case, files={**case.files, case.damaged: fewer})
            finding_again = run_cases(
                finding.target, iter([(0, lambda smaller_case=smaller: smaller_case)]), 1
            )
            if finding_again is not None and finding_again.why[:30] == finding.why[:30]:
                content, case = fewer, smaller
            else:
                start += step
        step //= 2
    return case


if __name__ == "__main__":
    sys.exit(main())
