"""The public names, written down: a change here is a change that users see."""

import ast
import dataclasses
import importlib
import inspect
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

from hotrows.runtime.moved import MOVED
from tests.support.public_names import NAMES, PUBLIC

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize("name", PUBLIC)
def test_the_public_names_are_those_written_down(name):
    module, names = importlib.import_module(name), PUBLIC[name].split()
    assert sorted(getattr(module, "__all__", names)) == sorted(names)
    assert not [public for public in names if not hasattr(module, public)]


def test_the_public_names_are_few():
    """There were 185, most of which no user needed: each is a promise, and a thing to learn."""
    assert len(NAMES) <= 116


def test_the_reference_shows_the_public_names():
    shown = set()
    for page in sorted((ROOT / "docs" / "api").glob("*.md")):
        for name in re.findall(r"^::: (\S+)$", page.read_text(), re.MULTILINE):
            shown |= {f"{name}.{public}" for public in PUBLIC[name].split()} if name in PUBLIC else {name}
    assert sorted(shown) == sorted(NAMES)


@pytest.mark.parametrize("old", sorted(MOVED))
def test_paths_of_the_release_candidate_name_the_same_modules(old):
    """Also in pickles, which have the path of a class. A second copy would have other classes."""
    module = importlib.import_module(f"hotrows.{old}")
    assert module is importlib.import_module(f"hotrows.{MOVED[old]}")


def test_an_old_path_works_in_every_way_that_python_has():
    code = """
import pickle
import hotrows, hotrows.nn.mlp
from hotrows import checkpoint, metrics
from hotrows.train.trainer import Trainer
assert hotrows.nn.MLP is hotrows.models.nn.mlp.MLP is hotrows.nn.mlp.MLP
assert Trainer is hotrows.Trainer and metrics is hotrows.train.metrics
assert pickle.loads(b"chotrows.storage.cache\\nCache\\n.").__module__ == "hotrows.engine.storage.cache"
try:
    import hotrows.nn.no
except ModuleNotFoundError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("No module named 'hotrows.models.nn.no'\n", "")


def imports(code: str) -> set[str]:
    """The dotted names of hotrows that a piece of Python imports; `a.b` of `from a import b`."""
    names = set()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("hotrows"):
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names if alias.name.startswith("hotrows.")}
    return names


def is_public(name: str) -> bool:
    """True if it is a public name, or a module that has some."""
    return name in NAMES or any(f"{module}.".startswith(f"{name}.") for module in PUBLIC)


def code_blocks(page: Path) -> list[str]:
    return re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)


@pytest.mark.parametrize(
    "path", [*PAGES, *sorted((ROOT / "examples").glob("*.py"))], ids=lambda path: path.name
)
def test_pages_and_examples_import_public_names_alone(path):
    codes = [path.read_text()] if path.suffix == ".py" else code_blocks(path)
    names = set().union(*map(imports, codes))
    assert {name for name in names if not is_public(name)} == set()


def test_a_private_import_would_be_noticed():
    names = imports("from hotrows.engine.stages import start\nfrom hotrows import Embedding")
    assert [name for name in sorted(names) if not is_public(name)] == ["hotrows.engine.stages.start"]


def paths_of(public) -> list[tuple[str, str, str]]:
    """(function, parameter, annotation) of the paths that a public class or function takes."""
    functions = {"": public} if inspect.isfunction(public) else {}
    if inspect.isclass(public):
        members = inspect.getmembers(public, callable)
        functions = {f".{name}": f for name, f in members if name == "__init__" or name[0] != "_"}
        if dataclasses.is_dataclass(public):  # made by functions that open what a path names
            del functions[".__init__"]
    return [
        (f"{public.__module__}.{public.__name__}{name}", parameter.name, str(parameter.annotation))
        for name, function in functions.items()
        if "hotrows" in (getattr(function, "__module__", None) or "")
        for parameter in inspect.signature(function).parameters.values()
        if re.search(r"\bPath\b", str(parameter.annotation))
    ]


def test_a_path_may_be_text_wherever_one_is_taken():
    taken = [path for name in NAMES for path in paths_of(pkgutil.resolve_name(name))]
    assert len(taken) > 30
    assert [path for path in taken if not re.search(r"\bstr\b|\bPlaces?\b", path[2])] == []
