"""The native core on Arm: cross-compiled and run by an emulator, it computes the bits of x86-64."""

import importlib.util
import platform
import shutil
import subprocess
from pathlib import Path

import pytest

from hotrows.runtime import native

HERE = Path(__file__).parent
CSRC = HERE.parent.parent / "csrc"
TOOLS = ("gcc", "aarch64-linux-gnu-gcc", "aarch64-linux-gnu-g++", "qemu-aarch64")


def build_module():
    """csrc/build.py."""
    spec = importlib.util.spec_from_file_location("hotrows_csrc_build", CSRC / "build.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
@pytest.mark.skipif(platform.machine() != "x86_64", reason="compares with x86-64")
@pytest.mark.skipif(not all(map(shutil.which, TOOLS)), reason=f"needs {', '.join(TOOLS)}")
def test_the_core_computes_the_same_bits(tmp_path, monkeypatch):
    build = build_module()
    monkeypatch.setattr(build, "COMPILER", "aarch64-linux-gnu-g++")
    core = tmp_path / "core_base.so"
    build.compile_library(sorted(CSRC.glob("*.cpp")), core, ["-Wl,-z,defs"])

    def calls(compiler, core, emulator=()):
        program = tmp_path / compiler
        subprocess.run([compiler, "-O1", HERE / "calls.c", "-o", program, "-ldl"], check=True)
        return subprocess.check_output([*emulator, program, core], text=True)

    here = calls("gcc", native.load()._name)
    there = calls("aarch64-linux-gnu-gcc", core, ("qemu-aarch64", "-L", "/usr/aarch64-linux-gnu"))
    assert len(here.splitlines()) == 48 and there == here
