"""What a part of a benchmark in parts is given, and how it keeps what it finds.

`benchmarks.gpu` has such parts.

A part first checks that results are right, then measures. What it finds is written whenever
something is added, so that a run which is cut keeps what it has, and the next one goes on there. All
parts are records of one file, by name.
"""

import json
import os
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu_parts.source import source_hash
from benchmarks.harness import conditions, write_to


@dataclass(frozen=True)
class Setting:
    """How a part is run.

    device: `cuda`, or `cpu` for its logic alone. small: shrunk to seconds; its figures mean nothing.
    gigabytes: of records, in the parts `probe` and `cache`. tune: sweep launch constants. pictures:
        their folder; None: none is drawn. cuembed: a checkout of that library; None: it is left out.
    deadline: when to stop, by `time.monotonic()`.
    """

    device: str = "cuda"
    small: bool = False
    gigabytes: float = 80.0
    tune: bool = False
    pictures: Path | None = None
    cuembed: Path | None = None
    deadline: float = float("inf")

    @property
    def on_gpu(self) -> bool:
        return self.device.startswith("cuda")

    @property
    def seconds_left(self) -> float:
        return self.deadline - time.monotonic()

    def pick(self, large: Any, small: Any) -> Any:
        """The one of two sizes that this run has."""
        return small if self.small else large

    def facts(self) -> dict:
        """What figures must have in common to stand side by side."""
        return {"device": self.device, "small": self.small, "gigabytes": self.gigabytes}


class ChecksFailed(Exception):
    """Results are wrong, so that times of them would say nothing."""


@dataclass
class Findings:
    """The checks and figures of one part, kept with those of other parts in one file.

    path: the JSON file; None: nothing is written. commit: of a source tree without its history.
    """

    name: str
    question: str
    setting: Setting
    path: Path | None
    commit: str | None = None

    def __post_init__(self) -> None:
        self.checks: dict[str, str] = {}
        self.arms: dict[str, dict] = {}
        self._red: list[str] = []
        self.error: str | None = None
        self.complete = False
        self.source = source_hash()
        self._conditions = conditions_of_device(self.setting, self.commit)
        self.commit = self._conditions["commit"]
        self._load = round(os.getloadavg()[0], 1)
        self._begun, self._seconds_before = time.monotonic(), 0.0

    def has_run(self, earlier: dict) -> bool:
        """Whether a record is of this code, setting and device, and complete."""
        return self._is_like(earlier) and earlier["complete"] and earlier.get("source") == self.source

    def go_on_from(self, earlier: dict, keep_older: bool = False) -> None:
        """Takes over what a cut run of the same code, setting and device has left.

        keep_older: also what other code has measured; each such arm then names its `source`. On the CPU
        the processor is the device.
        """
        if not self._is_like(earlier) or not (self.setting.on_gpu or self._has_processor_of(earlier)):
            return
        same_code = earlier.get("source") == self.source
        if (same_code and not earlier["complete"]) or (keep_older and not same_code):
            older = {} if same_code else {"source": earlier.get("source") or "unknown"}
            self.arms = {name: older | figures for name, figures in earlier["arms"].items()}
            self.checks = dict(earlier["checks"])
            self._seconds_before = earlier.get("seconds", 0.0) if same_code else 0.0

    def _is_like(self, earlier: dict) -> bool:
        gpus = [facts.get("gpu", {}).get("name") for facts in (earlier, self._conditions)]
        return earlier.get("setting") == self.setting.facts() and gpus[0] == gpus[1]

    def _has_processor_of(self, earlier: dict) -> bool:
        return earlier["machine"]["cpu"] == self._conditions["machine"]["cpu"]

    def check(self, name: str, passed: bool, why: str = "", arm: str | None = None) -> bool:
        """Notes whether a result is right. arm: the one that it is about; None: all of them."""
        self.checks[name] = "passed" if passed else f"failed: {why}".rstrip(": ")
        if arm is None and not passed:
            self._red.append(name)
        print(f"  {'passed' if passed else 'FAILED'}  {name}{'' if passed else f': {why}'}", flush=True)
        self._write()
        return passed

    def check_runs(self, name: str, call: Callable[[], Any]) -> Any:
        """Notes whether a call runs through, and its asserts hold; what it returns, or None."""
        try:
            result = call()
        except Exception as error:
            message = str(error).strip().splitlines() or ["no message"]
            self.check(name, False, f"{type(error).__name__}: {message[0]}{_place_of(error)}")
            return None
        self.check(name, True)
        return result

    def demand_green(self) -> None:
        """Stops the part where a check of all arms has failed."""
        if self._red:
            raise ChecksFailed(f"no figures: {', '.join(self._red)}")

    def has(self, arm: str) -> bool:
        return arm in self.arms

    def add(self, arm: str, figures: dict) -> None:
        """Keeps and prints the figures of an arm."""
        self.demand_green()
        self.arms[arm] = figures
        print(f"  {arm}: {in_words(figures)}", flush=True)
        self._write()

    def compare(self, ratio: str, figure: str, references: dict[str, str]) -> None:
        """Gives arms the figure `ratio`: how their `figure` relates to that of another arm.

        references: the other arm by arm. An arm has no ratio to itself, nor to one without figures; so
        this comes last, when all arms are measured that will be.
        """
        for arm, figures in self.arms.items():
            reference, value = self.arms.get(references.get(arm, arm)), figures.get(figure)
            figures.pop(ratio, None)
            if reference is not None and reference is not figures and value and reference.get(figure):
                figures[ratio] = value / reference[figure]
                print(f"  {arm}: {ratio} {figures[ratio]:.3g} ({references[arm]})", flush=True)
        self._write()

    def finish(self, error: str | None = None, complete: bool = True) -> None:
        """error: what ended the part early; complete: whether it ran through."""
        self.error, self.complete = error, complete
        self._write()

    def _write(self) -> None:
        if self.path is not None:
            write_to(self.path, read(self.path) | {self.name: self.record()})

    def record(self) -> dict:
        """All that the part has found so far, and where.

        load: programs that wanted a core when it began; figures of a busy machine are ratios. seconds:
        that it took, in all runs that went on from one another.
        """
        seconds = self._seconds_before + time.monotonic() - self._begun
        return {
            "question": self.question, "part": self.name, "complete": self.complete,
            "error": self.error, "setting": self.setting.facts(), "source": self.source,
            **self._conditions, "load": self._load, "seconds": round(seconds, 1),
            "checks": self.checks, "arms": self.arms,
        }  # fmt: skip


def read(path: Path) -> dict[str, dict]:
    """The records of all parts that ran, by name; none where there is no file."""
    return json.loads(path.read_text()) if path.exists() else {}


def run_part(findings: Findings, run: Callable[[Findings, Setting], bool | None]) -> bool:
    """Runs a part; whether all went well.

    run: returns False where it was cut, so that the next run goes on there.
    """
    print(f"\n{findings.name}: {findings.question}", flush=True)
    begin, error, complete = time.monotonic(), None, True
    try:
        complete = run(findings, findings.setting) is not False
    except ChecksFailed as failed:
        error = str(failed)
    except Exception as failed:
        traceback.print_exc()
        error, complete = f"{type(failed).__name__}: {failed}", False
    findings.finish(error, complete)
    state = error or ("done" if complete else "cut: run it again to go on")
    print(f"{findings.name}: {state}, {time.monotonic() - begin:.0f} s", flush=True)
    return error is None and set(findings.checks.values()) <= {"passed"}


def conditions_of_device(setting: Setting, commit: str | None) -> dict:
    """Where and when, the GPU included. commit: of a tree without its history."""
    facts = conditions(torch.get_num_threads())
    if facts["commit"] is None:
        facts["commit"], facts["uncommitted_changes"] = commit, None
    facts["versions"] = {"torch": torch.__version__, "cuda": torch.version.cuda}
    if setting.on_gpu:
        import triton

        properties = torch.cuda.get_device_properties(0)
        facts["versions"]["triton"] = triton.__version__
        facts["gpu"] = {
            "name": properties.name,
            "memory_gib": round(properties.total_memory / 2**30, 1),
            "multiprocessors": properties.multi_processor_count,
            "l2_mb": getattr(properties, "L2_cache_size", 0) // 2**20,
        }
    return facts


def _place_of(error: Exception) -> str:
    """The line of the library in which an error came up: what waits for a device, as a rule."""
    frames = traceback.extract_tb(error.__traceback__)
    inner = [frame for frame in frames if "hotrows" in Path(frame.filename).parts]
    return f" ({'/'.join(Path(inner[-1].filename).parts[-2:])}:{inner[-1].lineno})" if inner else ""


def in_words(figures: dict) -> str:
    """The figures of an arm in a line; what has parts of its own is left to the file."""
    words = []
    for name, value in figures.items():
        if isinstance(value, float):
            words.append(f"{name} {value:,.4g}")
        elif isinstance(value, int | str | bool) or value is None:
            words.append(f"{name} {value}")
    return ", ".join(words)
