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
MOST_LINES = 86_303  # of src; it rises only in a commit whose message names the issue that needs them
# Files, classes and functions longer than `LIMITS` allows, each with the reason why one idea needs it.
LIMITS = {"file": 450, "class": 320, "function": 60}
LONGER: dict[str, str] = {
    "losses.py": "all losses, each a few lines, and the one value that makes predictions of outputs",
    "acceleration/table.py:RowTable": "the one face of a table, in memory or behind a cache",
    "train/estimator.py:Estimator": "the protocol of scikit-learn is one: parameters, fit, files, copies",
    "engine/embedding.py:Embedding": "the one face of all rows: each verb of a step is a short method",
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
    assert len(modules) <= 8, sorted(modules)
    packages = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert len(packages) <= 10, sorted(packages)


def test_no_package_has_one_module_alone():
    """A folder to look into for one file; a package at the root may begin so."""
    alone = [
        str(path.parent.relative_to(PACKAGE))
        for path in PACKAGE.glob("*/**/__init__.py")
        if len([other for other in path.parent.iterdir() if other.suffix == ".py" or other.is_dir()]) == 2
        and not (path.parent / "__pycache__").exists()
    ]
    assert alone == []


def test_models_and_layers_never_see_an_id():
    for path in (PACKAGE / "models").rglob("*.py"):
        assert "hotrows.batch" not in FILES[path] and "hotrows.ops.plan" not in FILES[path], path


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
    assert "hotrows.data.datasets.download" in offered
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
    for asked in (
        "not self.cached_tables",
        "caching is None",
        "any(p in self.dense_rows)",
        "x.num_ranks > 1",
    ):
        condition, *_ = axes.conditions(ast.parse(f"if {asked}: f(cached)"))
        assert axes.axis_of(condition), asked
    assert not list(axes.conditions(ast.parse("f(padded=padded, cached_tables=cached_tables)")))


# Tuples of arguments that two calls share, each with the reason why names would not say it better. A
# tuple of one call alone has none.
PACKED = {
    "engine/planning/device_slots.py:map_": "the tensors of the map, which two ops of one launch change",
    "engine/storage/base_file.py:fields": "the header is packed twice: for its checksum, and with it",
    "models/nn/batch_norm.py:averages": "buffers that either of two ops changes",
    "models/nn/co_action.py:network": "the sizes of a network, for lists with offsets and padded ones",
    "models/nn/target_attention.py:inputs": "what the core reads is what autograd keeps",
    "ops/layers/attention.py:lists": "offsets and starts, as every op of lists takes them",
    "ops/layers/dice.py:averages": "buffers that either of two ops changes",
    "ops/layers/hstu.py:inputs": "a reference and the core read the same",
    "ops/rows/cpu.py:runs": "a reference and the core read the same",
    "ops/rows/cpu.py:tables": "two functions of the core read the same tables",
    "ops/triton/attention.py:vectors": "two kernels read the same",
    "ops/triton/pool.py:rows": "two kernels read the same",
}
NOT_YET = ("cli/", "data/")  # packages whose tuples are still to go


def packed(tree):
    """The names of tuples that are made in a function, and used only to be starred into calls."""
    names = set()
    for function in _functions(tree):
        nodes = list(ast.walk(function))
        made = {
            node.targets[0].id
            for node in nodes
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
            if isinstance(node.value, ast.Tuple)
        }
        calls = [argument for node in nodes if isinstance(node, ast.Call) for argument in node.args]
        starred = [
            a.value.id for a in calls if isinstance(a, ast.Starred) and isinstance(a.value, ast.Name)
        ]
        read = [n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)]
        names |= {name for name in made if 0 < starred.count(name) == read.count(name)}
    return names


def test_no_tuple_packs_parameters(trees):
    """They hide from a reader, and from the type checker, which argument is which."""
    assert packed(ast.parse("def f():\n    how = 1, 2\n    g(*how)")) == {"how"}
    assert packed(ast.parse("def f():\n    how = 1, 2\n    g(*how)\n    return how")) == set()
    found = {
        f"{place}:{name}"
        for path, tree in trees.items()
        if not (place := path.relative_to(PACKAGE).as_posix()).startswith(NOT_YET)
        for name in packed(tree)
    }
    assert found == set(PACKED)


def test_public_constructors_have_few_parameters():
    """A frozen dataclass of settings may have more: it is written by keyword, a line each. Parameters of
    an estimator are what users search over."""
    for name in set(hotrows.__all__) - {"Classifier", "Regressor"}:
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


# Modules of classes whose native part is in another one.
_NATIVE_BASES = ("engine/planning/device_slots.py",)


def _functions(tree):
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]


def _calls_the_core(node):
    """Whether a function calls native code, which reads wherever a wrong size leads it."""
    called = {
        ast.unparse(call.func).split(".")[-1] for call in ast.walk(node) if isinstance(call, ast.Call)
    }
    return bool({"call", "_call"} & called) or any(name.startswith("hotrows_") for name in called)


def _narrows(check):
    """Whether an assertion only says to the type checker that something is not None."""
    parts = check.values if isinstance(check, ast.BoolOp) and isinstance(check.op, ast.And) else [check]
    return all(isinstance(part, ast.Compare) and isinstance(part.ops[0], ast.IsNot) for part in parts)


def unguarded(tree, is_native_base=False):
    """The lines of assertions that guard native code: under `python -O` they are gone."""
    core = [node for node in _functions(tree) if _calls_the_core(node)]
    wrong = {node for function in core for node in ast.walk(function) if isinstance(node, ast.Assert)}
    if core or is_native_base:  # elsewhere in the module, None is an error of Python where it is used
        others = [node for node in ast.walk(tree) if isinstance(node, ast.Assert)]
        wrong |= {node for node in others if not _narrows(node.test)}
    return sorted(node.lineno for node in wrong)


def test_no_assertion_guards_native_code(trees):
    """One did: under `python -O` a second fit ended the process with a segmentation fault."""
    assert unguarded(ast.parse("def f(x):\n    assert x is not None\n    call('add', x)")) == [2]
    assert unguarded(
        ast.parse("def f(x):\n    assert len(x) == 2\ndef g(x):\n    core.hotrows_add(x)")
    ) == [2]
    assert unguarded(ast.parse("def f(x):\n    assert len(x) == 2")) == []
    num_core, found = 0, {}
    for path, tree in trees.items():
        place = str(path.relative_to(PACKAGE))
        is_base = place in _NATIVE_BASES or KERNELS in path.parents
        num_core += any(map(_calls_the_core, _functions(tree)))
        found |= {f"{place}:{line}": 1 for line in unguarded(tree, is_base)}
    assert num_core > 20 and list(found) == []


# What holds for the thread or the process, or keeps others waiting; and what only closes or names things.
_MODES = re.compile(
    r"no_grad|inference_mode|set_grad_enabled|enable_grad|autocast|fork_rng|_num_threads|_lock\b|_changed\b"
    r"|\.train\(|\.eval\(|evaluating|drawing|restored|paused|_state\(|catch_warnings|preserve_order|_in_order"
)


def held_over_a_yield(tree):
    """The lines of generators that yield to their caller within a mode; context managers may."""
    lines = []

    def visit(node, held):
        if isinstance(node, ast.Yield | ast.YieldFrom) and held:
            lines.append(node.lineno)
        for field, value in ast.iter_fields(node):
            is_inside = field == "body" and isinstance(node, ast.With | ast.Try)
            holder = node.items if isinstance(node, ast.With) else getattr(node, "finalbody", [])
            holds = is_inside and any(_MODES.search(ast.unparse(item)) for item in holder)
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST) and not isinstance(child, ast.FunctionDef | ast.Lambda):
                    visit(child, held or holds)

    for function in _functions(tree):
        if not any("contextmanager" in ast.unparse(decorator) for decorator in function.decorator_list):
            for statement in function.body:
                if not isinstance(statement, ast.FunctionDef):
                    visit(statement, False)
    return lines


def test_no_generator_yields_within_a_mode(trees):
    """One did: in the loop over its predictions the caller's gradients were off."""
    within = "def f():\n    with torch.no_grad():\n        for x in y:\n            yield x"
    restored = (
        "def f():\n    model.eval()\n    try:\n        yield 1\n    finally:\n        model.train(was)"
    )
    assert (held_over_a_yield(ast.parse(within)), held_over_a_yield(ast.parse(restored))) == ([4], [4])
    assert held_over_a_yield(ast.parse("@contextmanager\n" + within)) == []
    assert held_over_a_yield(ast.parse("def f():\n    with a_lock: x = 1\n    yield x")) == []
    found = {
        str(p.relative_to(PACKAGE)): lines for p, t in trees.items() if (lines := held_over_a_yield(t))
    }
    assert found == {}
