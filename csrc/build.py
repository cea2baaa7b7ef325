"""Builds the native core into the source tree with the compiler alone: `python csrc/build.py`.

For working on the core, and for machines without a package index; `pip install` goes through
CMakeLists.txt, which holds the same flags. `--checks` builds the best core of this machine with the
checks of check.h, into build/checked: where HOTROWS_CHECKED_CORE names that file, it is loaded instead.
"""

import argparse
import os
import platform
import runpy
import subprocess
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).parent
TARGET = HERE.parent / "src" / "hotrows" / "_native"
INTERFACE = TARGET.parent / "runtime" / "native_interface.py"
CHECKED = HERE.parent / "build" / "checked"
FLAGS = [
    "-std=c++17",
    "-O3",
    "-ffp-contract=off",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-Wall",
    "-Wextra",
    "-fvisibility=hidden",
    "-fPIC",
    "-fopenmp",
]
CHECKS = ["-DHOTROWS_CHECKS", "-O1", "-g1"]
LEVELS = {
    "core_v2": ["-march=x86-64-v2"],
    "core_v3": ["-march=x86-64-v3"],
    "core_v4": ["-march=x86-64-v4", "-mprefer-vector-width=512"],
}


COMPILER = os.environ.get("CXX", "g++")


def compile_library(sources: Iterable[Path], target: Path, flags: list[str]) -> None:
    """Compiles files into one library, aside, and moves it into place."""
    part = target.with_name(f"{target.name}.{os.getpid()}.part")
    subprocess.run([COMPILER, *FLAGS, *flags, "-shared", *map(str, sources), "-o", part], check=True)
    os.replace(part, target)


def build(target: Path, flags: list[str]) -> None:
    """Compiles every file of the core into one library, and notes which functions it has."""
    interface = runpy.run_path(str(INTERFACE))["interface_of"](HERE)
    compile_library(sorted(HERE.glob("*.cpp")), target, flags)
    target.with_suffix(".id").write_text(interface)


def levels_of_machine() -> dict[str, list[str]]:
    """The least instruction set, and the best that this machine has, as CMakeLists.txt has it."""
    if platform.machine() not in ("x86_64", "AMD64"):
        return {"core_base": []}
    command = [COMPILER, "-march=native", "-dM", "-E", "-x", "c++", "/dev/null"]
    machine = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    best = "core_v4" if "__AVX512VL__" in machine else "core_v3" if "__AVX2__" in machine else "core_v2"
    return {name: LEVELS[name] for name in dict.fromkeys(["core_v2", best])}


def main() -> int:
    parser = argparse.ArgumentParser(description="Builds the native core into the source tree.")
    parser.add_argument("--checks", action="store_true", help="one with the checks of check.h, elsewhere")
    checked = parser.parse_args().checks
    levels = levels_of_machine()
    if checked:
        levels = {name: [*flags, *CHECKS] for name, flags in list(levels.items())[-1:]}
    target = CHECKED if checked else TARGET
    target.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor() as pool:
        list(pool.map(build, [target / f"{name}.so" for name in levels], levels.values()))
    print(f"built {', '.join(levels)} in {target}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
