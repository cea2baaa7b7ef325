"""Builds the native core into the source tree with the compiler alone: `python csrc/build.py`.

For working on the core, and for machines without a package index; `pip install` goes through
CMakeLists.txt, which holds the same flags.
"""

import os
import platform
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).parent
TARGET = HERE.parent / "src" / "hotrows" / "_native"
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
LEVELS = {
    "core_v2": ["-march=x86-64-v2"],
    "core_v3": ["-march=x86-64-v3"],
    "core_v4": ["-march=x86-64-v4", "-mprefer-vector-width=512"],
}


def build(name: str, flags: list[str]) -> None:
    """Compiles every file of the core into one library, aside, and moves it into place."""
    part = TARGET / f"{name}.so.part"
    sources = sorted(str(path) for path in HERE.glob("*.cpp"))
    compiler = os.environ.get("CXX", "g++")
    subprocess.run([compiler, *FLAGS, *flags, "-shared", *sources, "-o", part], check=True)
    os.replace(part, TARGET / f"{name}.so")


def main() -> int:
    TARGET.mkdir(exist_ok=True)
    x86 = platform.machine() in ("x86_64", "AMD64")
    levels = LEVELS if x86 else {"core_base": []}
    with ThreadPoolExecutor() as pool:
        list(pool.map(build, levels.keys(), levels.values()))
    print(f"built {', '.join(levels)} in {TARGET}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
