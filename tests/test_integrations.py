"""Loops and searches of other libraries, by the examples that the pages show."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import hotrows

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.slow


def told_by(example, needs, *arguments):
    """What an example prints; skipped without the library that it is about."""
    pytest.importorskip(needs, reason=f"{example} needs {needs}")
    environment = {**os.environ, "PYTHONPATH": str(Path(hotrows.__file__).parents[1])}
    command = [sys.executable, str(ROOT / "examples" / example), *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "example, needs",
    [("lightning_loop.py", "pytorch_lightning"), ("hf_accelerate_loop.py", "accelerate")],
)
def test_an_accelerated_loop_ends_with_the_weights_of_the_plain_one(example, needs):
    apart = float(re.search(r"weights differ by (\S+)", told_by(example, needs)).group(1))
    assert apart < 1e-5


def test_optuna_ends_trials_by_our_evaluations():
    told = told_by("optuna_pruning.py", "optuna", "8")
    states = re.findall(r"trial \d+: (\w+)", told)
    assert len(states) == 8 and "pruned" in states and states.count("complete") >= 3
    scores = [float(s) for s in re.findall(r"complete, score (0\.\d+)", told)]
    assert float(re.search(r"best score (0\.\d+)", told).group(1)) >= max(scores) - 0.01
