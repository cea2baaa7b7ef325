"""The floors: a module imports only from floors below its own."""

import os
import re
import subprocess
import sys
from pathlib import Path

import hotrows

ROOT = Path(__file__).parent.parent
PACKAGE = Path(hotrows.__file__).parent


def test_every_module_imports_only_from_floors_below():
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE.parent)}
    done = subprocess.run(
        [Path(sys.executable).parent / "lint-imports", "--no-cache"],
        cwd=ROOT, env=environment, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 kept, 0 broken" in done.stdout


def test_the_page_and_the_contract_name_the_same_floors():
    page = (ROOT / "docs" / "architecture.md").read_text()
    contract = (ROOT / "pyproject.toml").read_text()
    floors = re.search(r"layers = \[\n(.*?)\]", contract, re.DOTALL)
    for floor in re.findall(r'"(.*?)"', floors.group(1)):
        assert " ".join(floor.split(" | ")) in re.sub(r" +", " ", page), floor


def test_models_and_layers_never_see_an_id():
    for folder in ("models", "nn"):
        for path in (PACKAGE / folder).glob("*.py"):
            text = path.read_text()
            assert "hotrows.batch" not in text and "hotrows.plan" not in text, path.name
