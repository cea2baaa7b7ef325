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
BUDGET = {
    "acceleration": 5_900,
    "checkpoint": 2_450,
    "checks": 200,
    "cli": 3_550,
    "costs": 2_350,
    "data": 12_450,
    "datasets": 3_100,
    "distributed": 1_150,
    "engine": 3_750,
    "export": 1_750,
    "keys": 800,
    "metrics": 850,
    "models": 2_400,
    "modules at the root": 3_300,
    "nn": 2_300,
    "ops": 7_600,
    "pages": 600,
    "pipeline": 600,
    "planning": 2_750,
    "report": 2_000,
    "runtime": 1_900,
    "serving": 3_950,
    "storage": 2_450,
    "streams": 2_000,
    "trackers": 300,
    "train": 6_350,
    "tuning": 2_100,
}


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


@pytest.mark.parametrize("most, kind", [(450, "file"), (320, "class"), (60, "function")])
def test_nothing_is_long(trees, most, kind):
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
    assert {name: size for name, size in sizes.items() if size > most} == {}


def test_long_functions_number_their_steps(trees):
    unnumbered, num_long = [], 0
    for path, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef) and KERNELS not in path.parents:
                has_docstring = ast.get_docstring(node) is not None and len(node.body) > 1
                if node.end_lineno - node.body[has_docstring].lineno >= 30:
                    num_long += 1
                    if "# 1. " not in "\n".join(FILES[path].splitlines()[node.lineno : node.end_lineno]):
                        unnumbered.append(f"{path.relative_to(PACKAGE)}:{node.lineno} {node.name}")
    assert num_long > 20 and unnumbered == []


def test_a_package_stays_within_its_budget():
    """Whoever needs more lines changes the number, and says in docs/decisions.md what they buy. A package
    that has shrunk by more than two steps of fifty lowers its number."""
    lines = dict.fromkeys(BUDGET, 0)
    for path, text in FILES.items():
        package = path.relative_to(PACKAGE).parts[0] if path.parent != PACKAGE else "modules at the root"
        lines[package] = lines.get(package, 0) + text.count("\n")
    rounded = {package: -(-count // 50) * 50 for package, count in lines.items()}
    wrong = {p: (n, BUDGET.get(p)) for p, n in rounded.items() if not 0 <= BUDGET.get(p, 0) - n <= 100}
    assert wrong == {}, f"lines, rounded up to fifty, and budget by package: {wrong}"


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
