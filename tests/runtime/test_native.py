"""The native core: which build is loaded, and what an installation without it says."""

import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch

import hotrows
from hotrows.runtime import native
from hotrows.runtime.native_interface import interface_of

PACKAGE = Path(hotrows.__file__).parent


def run(code, tmp_path):
    """Runs code with a copy of the package that has no native core: its stdout and stderr."""
    (tmp_path / "hotrows").mkdir()
    for entry in PACKAGE.iterdir():
        if entry.name != "_native":
            os.symlink(entry, tmp_path / "hotrows" / entry.name)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "PYTHONSAFEPATH": "1"}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return done.stdout, done.stderr


def test_without_the_core_one_sentence_says_what_to_do(tmp_path):
    code = """
        import hotrows
        try:
            hotrows.Embedding([hotrows.Table("t", 9, 4, ("f",))], optimizer=hotrows.SGD(lr=1.0))
        except ImportError as error:
            print(error)
    """
    out, err = run(code, tmp_path)
    assert out.startswith("hotrows has no native core for this machine") and not err
    assert out.strip().endswith("run `python csrc/build.py` in a source tree")


def test_names_that_the_core_has_in_another_order_are_an_error(monkeypatch):
    """They went by place in a tuple: adagrad and sgd swapped on one side trained by the other rule."""
    assert native.codes("initializer", "constant", "uniform", "normal")["uniform"] == 1
    message = "initializer is constant uniform normal there and uniform constant normal here"
    with pytest.raises(ImportError, match=message):
        native.codes("initializer", "uniform", "constant", "normal")
    with pytest.raises(ImportError, match="colors is missing there and red here"):
        native.codes("colors", "red")


@pytest.mark.parametrize("kind", ["deferred_target", "route", "slot_case", "text_problem", "key_totals"])
def test_a_seam_with_two_names_exchanged_is_an_error(kind):
    first, second, *others = native._reported_codes()[kind]
    assert native.codes(kind, first, second, *others)[second] == 1
    with pytest.raises(ImportError, match=f"{kind} is {first} {second}"):
        native.codes(kind, second, first, *others)


def test_a_core_of_other_functions_is_refused(tmp_path):
    """A core built before a merge took the arguments of the new one for its own, and crashed."""
    source, core = tmp_path / "csrc" / "rows.cpp", tmp_path / "src" / "hotrows" / "_native" / "core_v4.so"
    source.parent.mkdir()
    core.parent.mkdir(parents=True)
    source.write_text("HOTROWS_API void f(int64_t a) {\n  g(a);\n}\n")
    native._check_interface(core)  # built by CMake, or with no sources beside it
    core.with_suffix(".id").write_text(interface_of(source.parent))
    source.write_text("// f does g\nHOTROWS_API void f(\n  int64_t a) {\n  h(a);\n}\n")
    native._check_interface(core)
    source.write_text("HOTROWS_API void f(int64_t a, int64_t b) {\n}\n")
    with pytest.raises(ImportError, match="built from other sources .*: run `python csrc/build.py`"):
        native._check_interface(core)


def test_another_build_of_the_core_is_loaded_where_it_is_named(monkeypatch, tmp_path):
    named = Path(shutil.copy(native.load()._name, tmp_path / "core_named.so"))
    monkeypatch.setenv("HOTROWS_CHECKED_CORE", str(named))
    assert native.load.__wrapped__()._name == str(named)


def test_a_core_built_on_an_older_machine_is_taken(monkeypatch):
    if native.name() not in ("core_v3", "core_v4"):
        pytest.skip("needs a processor with AVX2, and a core")
    plain = native._open
    monkeypatch.setattr(native, "_open", lambda stem: None if stem == native.name() else plain(stem))
    best = native.load.__wrapped__()
    assert Path(best._name).stem < native.name()


def test_a_core_loaded_before_pytorch_takes_its_openmp():
    own = Path(torch.__file__).parent / "lib" / "libgomp.so.1"
    if not own.exists():
        pytest.skip("this build of PyTorch brings no libgomp.so.1")
    code = """
        import sys
        from hotrows.runtime import native
        assert native.name() and "torch" not in sys.modules
        maps = open("/proc/self/maps").read().split()
        print(*{path for path in maps if "libgomp" in path})
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env={**os.environ, "PYTHONPATH": str(PACKAGE.parent)},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.strip() == str(own.resolve())


def test_every_public_name_is_there():
    assert all(getattr(hotrows, name) is not None for name in hotrows.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = hotrows.nothing
