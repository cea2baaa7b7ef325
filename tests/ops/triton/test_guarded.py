"""Kernels touch no memory but that of their arguments, and no result depends on the order of programs.

Some of the kernels' tests run here so; all of them do by `python -m pytest -p tests.support.guarded
tests/ops/triton`.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[3]
pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="kernels are not interpreted there")


def guarded(*arguments, **environment):
    environment = {**os.environ, "TRITON_INTERPRET": "1", **environment}
    environment.pop("PYTEST_XDIST_WORKER", None)
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)


@pytest.mark.parametrize("side", ["end", pytest.param("start", marks=pytest.mark.slow)])
def test_kernels_stay_within_their_arguments_in_any_order(side):
    options = ["-m", "pytest", "-q", "-p", "tests.support.guarded", "-p", "no:cacheprovider"]
    files = [f"tests/ops/triton/test_{name}.py" for name in ("copy_rows", "search")]
    run = guarded(*options, *files, GUARD_SIDE=side)
    assert run.returncode == 0, run.stdout + run.stderr
    assert int(re.search(r"guarded: (\d+) launches", run.stdout)[1]) > 10


KERNEL = """
import torch, triton, triton.language as tl
from tests.support import guarded
guarded.install()

@triton.jit
def kernel(p_x, p_last, num, BLOCK: tl.constexpr):
    o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(p_x + o, mask=o < num, other=0)
    tl.store(p_last + tl.arange(0, 1), tl.program_id(0).to(tl.int64) + 0 * tl.sum(x, 0))

x, last = torch.arange(1000), torch.zeros(1, dtype=torch.int64)
for is_masked in (True, False):
    kernel[(32,)](x, last, 1000 if is_masked else 1024, BLOCK=32)
    print("last", last.item(), flush=True)
"""


def test_an_access_beyond_the_end_ends_the_process_and_programs_come_in_any_order(tmp_path):
    script = tmp_path / "kernel.py"  # whose source Triton reads
    script.write_text(KERNEL)
    run = guarded(str(script), PYTHONPATH=f"{ROOT}/src:{ROOT}", GUARD_ORDER="reverse")
    assert (run.stdout, run.returncode) == ("last 0\n", -11), run.stderr
