"""The matrix of machines is one that the project promises: each Python, lowest and newest packages."""

import json
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
MACHINES = json.loads((ROOT / ".ci" / "matrix.json").read_text())["machines"]


def test_the_matrix_has_what_the_project_promises():
    names = [machine["name"] for machine in MACHINES]
    assert len(set(names)) == len(names)
    pythons = {machine["python"] for machine in MACHINES}
    least = re.search(r'requires-python = ">=([\d.]+)"', (ROOT / "pyproject.toml").read_text())[1]
    assert min(pythons, key=lambda text: int(text.split(".")[1])) == least
    assert pythons == {"3.10", "3.11", "3.12", "3.13"}  # docs/stability.md: Python 3.10 to 3.13
    assert {machine["packages"] for machine in MACHINES} == {"pinned", "lowest", "newest"}


def test_a_machine_runs_tests_that_are_there():
    for machine in MACHINES:
        task, *arguments = machine["run"].split()
        assert task == "test" and isinstance(machine["needs"], list)
        assert machine["packages"] == "pinned" or f"--{machine['packages']}" in arguments
        for path in (text for text in arguments if not text.startswith("-")):
            assert (ROOT / path).exists(), machine
