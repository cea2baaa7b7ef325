"""Are the kernels right on this device? Every test that needs a GPU, in processes of their own.

Compiling is most of it, and processes compile side by side where pytest-xdist is there, as many as cores
but two. A test that leaves the device of no use ends its process, and another takes the tests that are
left. A run that is cut, or has red tests, keeps what it has counted.
"""

import importlib.util
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import hotrows
from benchmarks.gpu_parts.part import Findings, Setting
from benchmarks.harness import ROOT

_LONGEST = 450  # seconds
_NOTHING_SELECTED = 5  # pytest's exit status
_SHOWN = 60  # lines of what went wrong
_FEWEST = 6  # processes


def run(findings: Findings, setting: Setting) -> bool:
    """Whether the tests came to their end."""
    limit = min(_LONGEST, max(setting.seconds_left - 20, 30))
    status, output = run_tests(setting.pick(_files(), ["tests/test_json_file.py"]), limit)
    lines = output.strip().splitlines() or [""]
    failures = [line for line in lines if re.match(r"(FAILED|ERROR) ", line)]
    counts = counted(output)
    cut = f"cut after {limit:.0f} s: " if status is None else ""
    words = ", ".join(f"{number} {word}" for word, number in counts.items() if number)
    findings.add("tests", {"closing_line": cut + (words or lines[-1]), **counts})
    for line in first_failures(output):
        print(f"    {line}")
    for line in failures:
        name, _, why = line.split(" ", 1)[1].partition(" - ")
        findings.check(name, False, why)
    ran = counts["passed"] > 0 or (not setting.on_gpu and status == _NOTHING_SELECTED)
    wrong = counts["failed"] + counts["error"]
    if not failures:
        well = status in (0, None, _NOTHING_SELECTED) and ran and not wrong
        findings.check("the tests of this device", well, lines[-1])
    for line in _told(lines) if failures or wrong else ():
        print(f"    {line}")
    return status is not None


def _files() -> list[str]:
    """Those that have such tests: collecting all others takes as long as running these."""
    files = (ROOT / "tests").rglob("test_*.py")
    chosen = [path for path in files if re.search(r"gpu|support\.devices", path.read_text())]
    return ["tests/ops/triton", *(str(p.relative_to(ROOT)) for p in chosen if "triton" not in p.parts)]


def counted(output: str) -> dict[str, int]:
    """How many tests have passed, failed and so on, by the line that each one has: also of a cut run."""
    alone = r"^\S+::.* (PASSED|FAILED|ERROR|SKIPPED)\b.*\[ *\d+%\]$"
    beside_others = r"^\[gw\d+\] \[ *\d+%\] (PASSED|FAILED|ERROR|SKIPPED) "
    words = Counter(re.findall(f"{alone}|{beside_others}", output, re.MULTILINE))
    words = Counter(first or second for first, second in words.elements())
    return {word: words[word.upper()] for word in ("passed", "failed", "error", "skipped")}


def first_failures(output: str) -> list[str]:
    """The first test of each process that failed: behind a fault of the device all others fail, too."""
    seen: dict[str, str] = {}
    for process, what, name in re.findall(r"^\[(gw\d+)\] \[ *\d+%\] (FAILED|ERROR) (\S+)", output, re.M):
        seen.setdefault(process, f"{process} first {what}: {name}")
    return [*seen.values()]


def run_tests(paths: list[str], limit: float) -> tuple[int | None, str]:
    """pytest's exit status, None where time ran out, and its output up to there."""
    options = "-v -m gpu --tb=short -p no:cacheprovider --continue-on-collection-errors"
    if importlib.util.find_spec("xdist") is not None:
        options += f" -n {max(_FEWEST, (os.cpu_count() or 0) - 2)}"
    command = [sys.executable, "-m", "pytest", *options.split(), *paths]
    path = os.pathsep.join([str(Path(hotrows.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
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
