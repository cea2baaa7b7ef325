"""The matrix of machines is one that the project promises: each Python, lowest and newest packages."""

import json
import re
import sys
from pathlib import Path

import tasks

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


def test_the_lowest_python_can_read_the_types_of_fields():
    """Python 3.10 reads no ClassVar without a type: every checkpoint failed there."""
    paths = (ROOT / "src").rglob("*.py")
    assert not [path for path in paths if re.search(r"\bClassVar\s*=", path.read_text())]


def test_a_machine_runs_tests_that_are_there():
    for machine in MACHINES:
        assert isinstance(machine["needs"], list)
        for task, *arguments in map(str.split, machine["run"]):
            assert task == "test"
            assert machine["packages"] == "pinned" or f"--{machine['packages']}" in arguments
            for path in (text for text in arguments if not text.startswith("-")):
                assert (ROOT / path).exists(), machine


def test_every_commit_runs_the_first_machine():
    script = (ROOT / ".ci" / "run").read_text().splitlines()
    commands = [line.partition(" #")[0].strip() for line in script]
    assert {f"python3 tasks.py {task}" for task in MACHINES[0]["run"]} <= set(commands)


def test_a_command_runs_the_machines_that_this_one_can_be(monkeypatch, capsys):
    """`tasks.py test --matrix`: what is lacking is named, and fails a machine that was asked for."""
    ran = []
    monkeypatch.setattr(tasks, "run", lambda *command: ran.append(command[1:]) or 0)
    monkeypatch.setattr(tasks.shutil, "which", lambda name: None)
    here = "{}.{}".format(*sys.version_info)
    runnable = [one for one in MACHINES if one["python"] == here and not one["needs"]]
    assert tasks.main(["test", "--matrix"]) == 0
    assert ran == [("tasks.py", *task.split()) for one in runnable for task in one["run"]]
    assert tasks.main(["test", "--matrix", "aarch64"]) == 1
    assert "qemu-aarch64" in capsys.readouterr().out.splitlines()[-1]
    assert tasks.main(["test", "--matrix", "amiga"]) == 2 and "amiga" in capsys.readouterr().out
    monkeypatch.setattr(tasks, "run", lambda *command: 1)
    assert tasks.main(["test", "--matrix"]) == int(bool(runnable))
