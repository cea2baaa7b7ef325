"""The layout: imports go to floors below, and files, classes and functions stay of a readable size."""

import ast
import inspect
import os
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

import hotrows
from tests import axes

ROOT = Path(__file__).parent.parent
PACKAGE = Path(hotrows.__file__).parent
FILES = {path: path.read_text() for path in sorted(PACKAGE.rglob("*.py"))}
KERNELS = PACKAGE / "ops" / "triton"
MOST_LINES = 79_223  # of src; it rises only in a commit whose message names the issue that needs them
# Files, classes and functions longer than `LIMITS` allows, each with the reason why one idea needs it.
LIMITS = {"file": 450, "class": 320, "function": 60}
LONGER: dict[str, str] = {}


@pytest.fixture(scope="module")
def trees():
    """The syntax trees of the source. Made when a module is imported, every process would make them."""
    return {path: ast.parse(text) for path, text in FILES.items()}


def test_every_module_imports_only_from_floors_below():
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE.parent)}
    done = subprocess.run(
        [Path(sys.executable).parent / "lint-imports", "--no-cache"],
        cwd=ROOT, env=environment, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    num_contracts = (ROOT / "pyproject.toml").read_text().count("[[tool.importlinter.contracts]]")
    assert f"{num_contracts} kept, 0 broken" in done.stdout


def floors() -> list[list[str]]:
    """The floors of the contract named so, from the highest to the lowest."""
    contract = (ROOT / "pyproject.toml").read_text()
    layers = re.search(r'name = "floors".*?layers = \[\n(.*?)\]', contract, re.DOTALL)
    return [floor.split(" | ") for floor in re.findall(r'"(.*?)"', layers.group(1))]


def test_the_page_and_the_contract_name_the_same_floors():
    page = re.sub(r" +", " ", (ROOT / "docs" / "architecture.md").read_text())
    for number, floor in enumerate(reversed(floors()), 1):
        assert re.search(rf"\n ?{number} {' '.join(floor)}\b", page), floor
    assert len(floors()) <= 11


def test_the_root_has_few_modules():
    modules = {path.stem for path in PACKAGE.glob("*.py")} - {"__init__", "__main__", "version"}
    assert len(modules) <= 12, sorted(modules)


def test_models_and_layers_never_see_an_id():
    for folder in ("models", "nn"):
        for path in (PACKAGE / folder).rglob("*.py"):
            assert "hotrows.batch" not in FILES[path] and "hotrows.plan" not in FILES[path], path


def test_no_package_hides_a_function(trees):
    """Python binds a submodule to its name in the parent when it loads it, over a function of that name:
    a package that offers such a function takes it from the submodule when it is imported itself."""
    offered, taken = set(), set()
    for path in PACKAGE.rglob("__init__.py"):
        package = ".".join(path.parent.relative_to(PACKAGE.parent).parts)
        modules = {module.name for module in pkgutil.iter_modules([str(path.parent)])}
        for node in trees[path].body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
                public = set(ast.literal_eval(node.value))
                offered |= {f"{package}.{name}" for name in public & modules}
            elif isinstance(node, ast.ImportFrom):
                taken |= {f"{package}.{alias.name}" for alias in node.names} & {node.module}
    assert "hotrows.datasets.download" in offered
    assert offered - taken == set()


@pytest.mark.parametrize("kind", LIMITS)
def test_what_is_long_has_a_reason(trees, kind):
    """A limit is a question: whoever exceeds it answers in `LONGER`; answers no longer needed go."""
    sizes = {}
    for path, tree in trees.items():
        place = str(path.relative_to(PACKAGE))
        if kind == "file":
            sizes[place] = FILES[path].count("\n")
            continue
        kinds = (ast.ClassDef,) if kind == "class" else (ast.FunctionDef, ast.AsyncFunctionDef)
        for node in ast.walk(tree):
            if isinstance(node, kinds) and not (kind == "function" and KERNELS in path.parents):
                sizes[f"{place}:{node.name}"] = node.end_lineno - node.lineno + 1
    assert len(sizes) > 200
    long = {name for name, size in sizes.items() if size > LIMITS[kind]}
    assert long - set(LONGER) == set()
    assert (set(LONGER) & set(sizes)) - long == set()


def test_every_reason_is_for_something():
    for name, reason in LONGER.items():
        path, _, defined = name.partition(":")
        text = FILES[PACKAGE / path]
        assert reason and (not defined or re.search(rf"(?:class|def) {defined}\b", text)), name


def test_the_source_has_one_number():
    """Whoever needs more lines first deletes others; `python -m tests.lines` prints them by package."""
    assert sum(text.count("\n") for text in FILES.values()) <= MOST_LINES


def test_the_source_asks_no_more_often_which_axis_it_is_on():
    assert sum(map(len, axes.questions().values())) <= axes.MOST


def test_public_constructors_have_few_parameters():
    """A frozen dataclass of settings may have more: it is written by keyword, a line each."""
    for name in hotrows.__all__:
        public = getattr(hotrows, name)
        if inspect.isclass(public) and not hasattr(public, "__dataclass_fields__"):
            parameters = inspect.signature(public).parameters
            assert len(parameters) <= 10, f"{name}({', '.join(parameters)})"


def test_no_test_module_imports_another():
    """What several of them share is in tests/support, in a conftest.py, or in a module beside them."""
    imports = []
    for path in sorted((ROOT / "tests").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tests"):
                names = [*node.module.split("."), *(alias.name for alias in node.names)]
            elif isinstance(node, ast.Import):
                names = [part for alias in node.names for part in alias.name.split(".")]
            else:
                continue
            if any(re.match(r"test_", name) for name in names):
                imports.append(f"{path.relative_to(ROOT)}:{node.lineno}: {ast.unparse(node)}")
    assert imports == []
