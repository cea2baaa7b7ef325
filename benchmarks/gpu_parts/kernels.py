"""Are the kernels right on this device? Every test that needs a GPU, in a process of its own."""

import os
import re
import subprocess
import sys
import tempfile

from benchmarks.gpu_parts.part import Findings, Setting
from benchmarks.harness import ROOT

_LONGEST = 450  # seconds
_NOTHING_SELECTED = 5  # pytest's exit status
_SHOWN = 60  # lines of what went wrong


def run(findings: Findings, setting: Setting) -> None:
    limit = min(_LONGEST, max(setting.seconds_left - 20, 30))
    status, output = run_tests(setting.pick(["tests"], ["tests/test_native.py"]), limit)
    lines = output.strip().splitlines() or [""]
    failures = [line for line in lines if re.match(r"(FAILED|ERROR) ", line)]
    for line in failures:
        name, _, why = line.split(" ", 1)[1].partition(" - ")
        findings.check(name, False, why)
    counts = {word: int(number) for number, word in re.findall(r"(\d+) (\w+)", lines[-1])}
    ran = counts.get("passed", 0) > 0 or (not setting.on_gpu and status == _NOTHING_SELECTED)
    why = "ran out of time" if status is None else lines[-1]
    if not failures:
        findings.check("the tests of this device", status in (0, _NOTHING_SELECTED) and ran, why)
    for line in _told(lines) if failures or status is None else ():
        print(f"    {line}")
    findings.demand_green()
    findings.add("tests", {"closing_line": lines[-1], **counts})


def run_tests(paths: list[str], limit: float) -> tuple[int | None, str]:
    """pytest's exit status, None where time ran out, and its output up to there."""
    options = "-q -m gpu --tb=short -p no:cacheprovider --continue-on-collection-errors"
    command = [sys.executable, "-m", "pytest", *options.split(), *paths]
    path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    with tempfile.TemporaryFile("w+") as output:
        try:
            status = subprocess.run(
                command, cwd=ROOT, env={**os.environ, "PYTHONPATH": path},
                stdout=output, stderr=subprocess.STDOUT, timeout=limit,
            ).returncode  # fmt: skip
        except subprocess.TimeoutExpired:
            status = None
        output.seek(0)
        return status, output.read()


def _told(lines: list[str]) -> list[str]:
    """The lines of the first failures, as pytest tells them."""
    begin = next((n for n, line in enumerate(lines) if "= FAILURES" in line or "= ERRORS" in line), 0)
    return lines[begin : begin + _SHOWN]
