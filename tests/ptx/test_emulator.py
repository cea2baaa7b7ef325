"""Kernels run as compiled, without a GPU: what the emulator refuses, and some of what it runs."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.ptx.__main__ import RESULTS, kernels
from tests.ptx.turned import turned

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="kernels run on the device there")


def emulated(*arguments):
    """Tests in a process of their own, as Triton is told once whether to interpret."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "tests.ptx.plugin"]
    environment = {**os.environ, "TRITON_INTERPRET": "0"}
    environment.pop("PYTEST_XDIST_WORKER", None)
    run = subprocess.run(
        [*command, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stdout + run.stderr
    return int(re.search(r"emulated: (\d+) launches", run.stdout)[1])


def test_the_interpreter_sees_no_race():
    x, y = torch.arange(1024), torch.zeros(1024, dtype=torch.int64)
    turned[(1,)](x, y, False, 1024)
    assert torch.equal(x, torch.arange(1024).flip(0) + 1)


def test_races_bounds_and_copies_that_differ_are_found():
    assert emulated("tests/ptx/controls.py") > 10


@pytest.mark.slow
@pytest.mark.parametrize(
    "files", [["copy_rows", "planning", "search", "slots"], ["layers"]], ids=" ".join
)
def test_kernels_are_right_as_they_are_compiled(files):
    assert emulated(*(f"tests/ops/triton/test_{name}.py" for name in files)) > 50


@pytest.mark.slow
def test_captured_steps_are_those_of_the_host():
    assert emulated("tests/ptx/steps.py") > 50


def test_every_kernel_has_been_emulated_at_two_shapes_and_most_mutants_were_found():
    """Figures of `python -m tests.ptx run` and `mutants`: a new kernel has to be run, too."""
    ran = json.loads((RESULTS / "ptx.json").read_text())["kernels"]
    assert kernels() == {name for name, of in ran.items() if of["launches"]}
    assert sum(of["shapes"] > 1 for of in ran.values()) >= 0.95 * len(ran)
    mutants = json.loads((RESULTS / "ptx_mutants.json").read_text())
    assert mutants["mutants"] >= 60 and mutants["found"] >= 0.9 * mutants["mutants"]
    assert mutants["found and invisible to the interpreter"] >= 12
