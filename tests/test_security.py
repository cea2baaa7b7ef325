"""What SECURITY.md promises of the code: no file is unpickled, evaluated, or imported unasked."""

import ast
from pathlib import Path

import hotrows

SOURCES = sorted(Path(hotrows.__file__).parent.rglob("*.py"))
UNPICKLING = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}
CALLS = {
    "torch.load",
    "torch.export.load",
    "np.load",
    "numpy.load",
    "pd.read_pickle",
    "eval",
    "exec",
    "compile",
}
BEHIND_TRUST = {
    ("serving/programs.py", "torch.export.load"),  # of a bundle that the caller trusts
    ("train/run/stream_batches.py", "pickle"),  # of rank 0, as PyTorch's messages between ranks are
}
# Modules of a fixed list, or of a name that `models.confirmed` or a schema's option has let through.
MAY_IMPORT_BY_NAME = {
    *("__init__.py", "ops/rows/cuda.py", "ops/layers/by_device.py"),
    *("ops/deferred/on_device.py", "data/raw/chunks.py", "runtime/arrow.py"),
    *("models/__init__.py", "data/datasets/schemas.py", "runtime/lazy.py", "runtime/moved.py"),
}


def found():
    """(file, line, what) of every use of a pickle, and of code that a name or a text stands for."""
    for path in SOURCES:
        file = str(path.relative_to(Path(hotrows.__file__).parent))
        for node in ast.walk(ast.parse(path.read_text())):
            names = set()
            if isinstance(node, ast.Import):
                names = {alias.name.split(".")[0] for alias in node.names} & UNPICKLING
            elif isinstance(node, ast.ImportFrom):
                names = {(node.module or "").split(".")[0]} & UNPICKLING
            elif isinstance(node, ast.Call):
                name = ast.unparse(node.func)
                names = {name} & CALLS
                by_name = name.endswith(("import_module", "exec_module", "run_path", "__import__"))
                if by_name and file not in MAY_IMPORT_BY_NAME:
                    names = {name}
                if any(word.arg == "allow_pickle" for word in node.keywords):
                    names = {name}
            names = {name for name in names if (file, name) not in BEHIND_TRUST}
            yield from ((file, node.lineno, name) for name in names)


def test_code_trusts_only_what_it_wrote_itself():
    """All else that is opened gets `trust` from the caller."""
    trusting = [
        str(path.relative_to(Path(hotrows.__file__).parent))
        for path in SOURCES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.keyword) and (node.arg, ast.unparse(node.value)) == ("trust", "True")
    ]
    exports = {f"serving/export/{name}" for name in ("publisher", "bundles", "held_out")}
    own = {*exports, "train/estimator", "train/telling/result", "tools/tuning/search"}
    assert set(trusting) == {f"{name}.py" for name in own}


def test_nothing_is_unpickled_evaluated_or_imported_because_a_file_says_so():
    assert list(found()) == []
