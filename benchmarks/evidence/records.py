"""Figures of result files, and where they come from: machine, date, commit, command, file."""

from __future__ import annotations

import functools
import json
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from benchmarks.harness import RESULTS, ROOT
from benchmarks.markdown import table

CORES = {  # how processors end in records, and what they are
    "family 25 model 1": "Zen 3",
    "family 25 model 17": "Zen 4",
    "family 26 model 2": "Zen 5",
    "family 6 model 106": "Ice Lake",
    "family 6 model 167": "Xeon with AMX",
}
LINK = "../../benchmarks/results"
STUDIES = "5cf45140"  # the last commit that has the scripts of studies
SCRIPTS = {"benchmarks.papers": "ef3195bb"}  # of studies that ran once more, later


@functools.cache
def result(name: str) -> Any:
    return json.loads((RESULTS / f"{name}.json").read_text())


def at(source: str) -> Any:
    """The value at a path of a file, `FILE/KEY/KEY/NUMBER`."""
    name, *keys = source.split("/")
    value = result(name)
    for key in keys:
        value = value[int(key)] if isinstance(value, list) else value[key]
    return value


@dataclass(frozen=True)
class Origin:
    """Where figures come from.

    source: a record of a file, `FILE` or `FILE/KEY/..`; of machine, date and commit the innermost counts
        that a record on the way has. command: the module that measures, with its arguments.
    """

    source: str
    command: str

    def known(self, key: str) -> Any:
        name, *keys = self.source.split("/")
        record, found = result(name), None
        for step in (None, *keys):
            record = record if step is None else record[int(step) if isinstance(record, list) else step]
            if isinstance(record, dict):
                found = record.get(key, record.get("environment", {}).get(key, found))
        return found

    @property
    def machine(self) -> str:
        machine = self.known("machine") or {"cpu": self.known("processor"), "cores": self.known("cores")}
        cpu = machine["cpu"] or "not recorded"
        name = next((name for model, name in CORES.items() if cpu.endswith(model)), cpu)
        return f"{name}, {machine['cores']} cores" if machine["cores"] else name

    @property
    def date(self) -> str:
        date = self.known("date")
        return date[:10] if date else "not recorded"

    @property
    def commit(self) -> str:
        """The commit, with the marks that docs/evidence/index.md explains."""
        record = at(self.source)
        arms = record.get("arms", {}) if isinstance(record, dict) else {}
        mixed = any("source" in arm or "commit" in arm for arm in arms.values() if isinstance(arm, dict))
        marks = (" †" if self.known("uncommitted_changes") else "") + " ‡" * mixed
        return f"`{(self.known('commit') or 'not recorded')[:8]}`{marks}"

    @property
    def shown_command(self) -> str:
        """The command; of a study, whose script is no longer here, with the last commit that has it."""
        module = self.command.split()[0]
        path = ROOT / module.replace(".", "/")
        is_here = path.with_suffix(".py").is_file() or (path / "__main__.py").is_file()
        if is_here:
            return f"`python -m {self.command}`"
        return f"`{self.command}` at `{SCRIPTS.get(module, STUDIES)}`"

    @property
    def file(self) -> str:
        name, *part = self.source.split("/")
        label = f"{name}, {part[0]}" if name.startswith("papers-") else name
        return f"[{label}]({LINK}/{name}.json)"


def captions(origins: tuple[Origin, ...]) -> str:
    """One sentence for each machine, day, commit and command, with its files."""
    files: dict[str, list[str]] = {}
    for of in origins:
        files.setdefault(f"{of.machine}, {of.date}, {of.commit}, {of.shown_command}", []).append(of.file)
    return " ".join(f"*{words}: {', '.join(names)}.*" for words, names in files.items())


@dataclass(frozen=True)
class Table:
    """A table between markers of a page, and below it where its figures come from."""

    name: str
    head: str
    rows: Callable[[], list[list[str]]]
    origins: tuple[Origin, ...] = ()

    def text(self) -> str:
        lines = table(self.head.split(" | "), self.rows())
        return f"{lines}\n\n{captions(self.origins)}" if self.origins else lines


def thousands(samples_per_s: float) -> str:
    """Samples a second in thousands."""
    value = samples_per_s / 1000
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}" if value < 1 else f"{value:.1f}"


def speed(file: str, arm: str) -> str:
    """Thousand samples a second of an arm; empty where the file has no such arm."""
    arms = at(f"{file}/arms")
    return thousands(arms[arm]["samples_per_s"]) if arm in arms else ""


def times(file: str, arm: str, base: str) -> str:
    """How many times as fast an arm is as another, and its lowest and highest over the rounds."""
    arms = at(f"{file}/arms")
    ratio = arms[arm]["samples_per_s"] / arms[base]["samples_per_s"]
    rounds = zip(arms[arm].get("rounds", ()), arms[base].get("rounds", ()), strict=False)
    ratios = [one["samples_per_s"] / other["samples_per_s"] for one, other in rounds]
    return f"{number(ratio)}x{spread(ratios)}"


def over(figure: str, base: str) -> str:
    """How many times as large the figure at a path is as the one at another."""
    return f"{number(at(figure) / at(base))}x"


def latency(source: str, unit: str = "ms") -> str:
    """The median and the 99th percentile of a record."""
    record = at(source)
    return f"p50 {record[f'p50_{unit}']} {unit}, p99 {record[f'p99_{unit}']} {unit}"


def spread(values: list[float], digits: int = 2) -> str:
    """The lowest and the highest of several rounds, in brackets."""
    if len(values) < 2:
        return " (one round)"
    return f" ({number(min(values), digits)} to {number(max(values), digits)})"


def number(value: float, digits: int = 2) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.{1 if abs(value) >= 10 else digits}f}"


def percent(value: float) -> str:
    return f"{100 * value:.1f} %" if value < 0.1 else f"{100 * value:.0f} %"


def signed(value: float) -> str:
    return f"{value:+.4f}"


def mean(values: list[float]) -> float:
    return statistics.fmean(values)
