"""What the evidence of a paper is made of: parts, each a question, what answers it and a table."""

import importlib
import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from benchmarks import gpu_parts
from benchmarks.gpu_parts.part import Findings
from benchmarks.harness import ROOT

LONGEST = 900  # seconds of one arm


@dataclass(frozen=True)
class Setting(gpu_parts.part.Setting):
    """How a part is run. device: `cpu` or `cuda`. small: shrunk to seconds; its figures mean nothing.

    tensorflow: an interpreter that has TensorFlow and tf-keras; None: without that arm.
    """

    device: str = "cpu"
    tensorflow: str | None = None

    def facts(self) -> dict:
        return {"device": self.device, "small": self.small}


@dataclass(frozen=True)
class Part:
    """A part of the evidence, which takes some minutes.

    run: adds arms to findings; it leaves out those that findings `has`, and returns False where it was
        cut. table: the Markdown of the arms found. devices: those it can run on.
    """

    question: str
    run: Callable[[Findings, Setting], bool | None]
    table: Callable[[dict[str, dict]], str]
    devices: tuple[str, ...] = ("cpu",)


@dataclass(frozen=True)
class Paper:
    """A paper and its parts, which run in this order."""

    name: str
    title: str
    parts: Mapping[str, Part] = field(default_factory=dict)


def in_a_process(arm: str, request: dict, setting: Setting, python: str | None = None) -> dict:
    """The figures of `benchmarks.arms.ARM`, whose `measure(request)` runs in a process of its own.

    In this process where the run is small. An arm that goes wrong is an `error` among its figures.
    python: another interpreter than this one.
    """
    module = f"benchmarks.arms.{arm}"
    if setting.small and python is None:
        return importlib.import_module(module).measure(request)
    command = [python or sys.executable, "-W", "ignore", "-m", module, json.dumps(request)]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LONGEST)
    except subprocess.TimeoutExpired:
        return {"error": f"took more than {LONGEST} s"}
    if done.returncode:
        print(done.stderr[-2000:])
        return {"error": (done.stderr.strip().splitlines() or [f"exit {done.returncode}"])[-1]}
    return json.loads(done.stdout.splitlines()[-1])
