"""Explores the model by hand: every rule, every small training, then larger ones until time is up."""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness import conditions

from hotrows.runtime.atomic_files import write_json
from tests.model_checker import explorer
from tests.model_checker.cases import FAMILIES, Case, distinct, random_case, small_cases
from tests.model_checker.explorer import Explored, explore
from tests.model_checker.rules import RULES
from tests.model_checker.schedule import explained

SMALL = ((3, 2), (4, 2), (2, 3), (3, 3))  # batches and rows of which every training is explored
MOST = 1 << 21  # states of a case; larger ones are cut, and counted as such


@dataclass
class Count:
    """What was explored of a family."""

    cases: int = 0
    cut: int = 0
    states: int = 0
    transitions: int = 0
    longest: int = 0
    seconds: float = 0.0

    @classmethod
    def of(cls, explored: Explored, seconds: float) -> Count:
        sizes = explored.states, explored.transitions, explored.depth
        return cls(1, not explored.is_complete, *sizes, seconds)

    def add(self, other: Count) -> None:
        longest = max(self.longest, other.longest)
        for name, number in asdict(other).items():
            setattr(self, name, getattr(self, name) + number)
        self.longest = longest


class Wrong(Exception):
    """A counter-example, as text."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.model_checker", description=__doc__)
    parser.add_argument("--minutes", type=float, default=20, help="of this process, on one core")
    parser.add_argument("--seed", type=int, default=0, help="of the larger trainings; 0: small ones, too")
    parser.add_argument("--record", type=Path, help="adds what was explored to a JSON file")
    parser.add_argument("--rules", action="store_true", help="print all counter-examples, and end")
    arguments = parser.parse_args()
    if (reason := explorer.missing()) is not None:
        print(reason)
        return 1
    begun, now = time.process_time(), conditions(threads=1)
    rules = show_rules(in_full=arguments.rules)
    if arguments.rules:
        return 0
    end = begun + 60 * arguments.minutes
    counts: dict[str, Count] = {}
    try:
        for num_batches, num_rows in SMALL if arguments.seed == 0 else ():
            name = f"all: {num_batches} batches, {num_rows} rows"
            count(counts, name, distinct(small_cases(num_batches, num_rows)), end)
        for name, case in some_cases(arguments.seed):
            if time.process_time() > end:
                break
            count(counts, name, [case], end)
    except Wrong as wrong:
        print(wrong)
        return 1
    finally:
        show(counts)
    if arguments.record is not None:
        run = {"seed": arguments.seed, "minutes": round((time.process_time() - begun) / 60, 1)}
        record(arguments.record, run | {"faults": 0, "environment": now}, counts, rules)
    return 0


def record(path: Path, run: dict[str, Any], counts: dict[str, Count], rules: dict[str, int]) -> None:
    """Adds a run to those in a file, and sums their counts up by family; rules: events without each.

    A run of a seed that the file has begins it anew: the same trainings would be counted twice.
    """
    runs, families = [], dict[str, Count]()
    if path.exists():
        before = json.loads(path.read_text())
        if run["seed"] not in [one["seed"] for one in before["runs"]]:
            runs = before["runs"]
            families = {name: Count(**of_family) for name, of_family in before["families"].items()}
    for name, of_family in counts.items():
        families.setdefault(name, Count()).add(of_family)
    runs.append(run | {"states": total(counts).states})
    by_family = {name: asdict(of_family) for name, of_family in families.items()}
    summed = {"states": total(families).states, "families": by_family, "events_without_rule": rules}
    write_json(path, summed | {"runs": runs})


def show_rules(in_full: bool) -> dict[str, int]:
    """Prints how long the counter-example is that each rule has when it is removed, and returns it."""
    lengths = {}
    for rule in RULES:
        explored = explore(rule.removed())
        assert explored.fault is not None, rule
        print(f"without {rule.name:26}{explored.fault.kind:18}after {len(explored.trace):2} events")
        lengths[rule.name] = len(explored.trace)
        if in_full:
            print(f"{rule.text} ({rule.where})\n{explained(rule.removed(), explored)}\n")
    return lengths


def some_cases(seed: int) -> Iterator[tuple[str, Case]]:
    """Cases of all families in turn; more of those that are small."""
    weights = dict(zip(FAMILIES, (20, 4, 2, 1), strict=True))
    for round_ in itertools.count(seed * 10**6):
        for family in FAMILIES:
            for number in range(weights[family]):
                yield family, random_case(family, round_ * weights[family] + number)


def count(counts: dict[str, Count], name: str, cases: Iterable[Case], end: float) -> None:
    """Explores cases until time is up; raises Wrong with the first counter-example."""
    for case in cases:
        begin = time.process_time()
        if begin > end:
            counts[f"{name} (time is up)"] = counts.pop(name, Count())
            return
        explored = explore(case, MOST)
        if explored.fault is not None:
            raise Wrong(f"{case}\n{explained(case, explored)}")
        counts.setdefault(name, Count()).add(Count.of(explored, time.process_time() - begin))
        if sys.stderr.isatty():
            print(f"\r{sum(c.states for c in counts.values()):,} states", end="", file=sys.stderr)


def show(counts: dict[str, Count]) -> None:
    print(f"{'':24}{'cases':>10}{'cut':>6}{'states':>16}{'transitions':>16}{'longest':>9}{'seconds':>9}")
    for name, of_family in {**counts, "total": total(counts)}.items():
        show_line(name, of_family)


def total(counts: dict[str, Count]) -> Count:
    summed = Count()
    for of_family in counts.values():
        summed.add(of_family)
    return summed


def show_line(name: str, c: Count) -> None:
    counts = f"{c.cases:>10,}{c.cut:>6,}{c.states:>16,}{c.transitions:>16,}"
    print(f"{name:24}{counts}{c.longest:>9}{c.seconds:>9.0f}")


if __name__ == "__main__":
    sys.exit(main())
