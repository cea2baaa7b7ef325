"""The examples run as they stand."""

import os
import re
import subprocess
import sys
from pathlib import Path

import hotrows

EXAMPLES = Path(__file__).parents[1] / "examples"


def test_the_loop_of_ones_own_learns():
    environment = {**os.environ, "PYTHONPATH": str(Path(hotrows.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, EXAMPLES / "own_loop.py"], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "pack-0: 26 tables" in done.stdout
    auc = float(re.search(r"test AUC (0\.\d+)", done.stdout).group(1))
    assert auc > 0.7
