"""The native core under GCC's sanitizers: `python -m tests.sanitizers KIND [TESTS ...]`.

`address` finds accesses outside of what was allocated, or after it was freed; `undefined` what C++
leaves undefined, such as shifts that are too far, pointers that are not aligned and fractions that no
whole number holds; `thread` accesses of two threads, one of them a write, that nothing puts in an order.
`both` is the first two in one build, where `undefined` writes to standard error.
A copy of the package with a core built for it stands first on Python's path, and the sanitizer's runtime
is loaded before all else, in every process that a test starts. Findings do not end a test: they are
written to files, and the command prints them at the end. The core has its own checks, too
(csrc/check.h): what they find ends the process, and with it the test.

What is not seen: Python, NumPy and PyTorch are not built with a sanitizer, so that only the core's own
accesses count, and blocks that it gets from them have guards around them only where malloc gave them.
Leaks are not looked for: Python leaves memory to the system as it ends. Threads of the core are those of
`fork_join.cpp`, not of libgomp, and two calls from Python are in order where one gave up the
interpreter's lock before the other took it.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hotrows
from hotrows.runtime import native

HERE = Path(__file__).parent
ROOT = HERE.parent.parent


@dataclass(frozen=True)
class Sanitizer:
    """flags: of the compiler. runtimes: libraries that are loaded before all else; C++'s own among them,
    or a sanitizer that begins without it does not know how to throw. options: of the runtime, in
    environment variables, to which the place of the reports is added. sources: files that are linked
    into the core."""

    flags: tuple[str, ...]
    runtimes: tuple[str, ...]
    options: dict[str, str]
    sources: tuple[Path, ...] = ()


_ADDRESS = ("-fsanitize=address", "-fsanitize-recover=address")
_UNDEFINED = ("-fsanitize=undefined,float-cast-overflow",)
_ADDRESS_OPTIONS = {"ASAN_OPTIONS": "halt_on_error=0:detect_leaks=0:allocator_may_return_null=1"}
_UNDEFINED_OPTIONS = {"UBSAN_OPTIONS": "print_stacktrace=1"}
SANITIZERS = {
    "address": Sanitizer(_ADDRESS, ("libasan.so", "libstdc++.so"), _ADDRESS_OPTIONS),
    "undefined": Sanitizer(_UNDEFINED, ("libubsan.so",), _UNDEFINED_OPTIONS),
    "both": Sanitizer(
        _ADDRESS + _UNDEFINED,
        ("libasan.so", "libubsan.so", "libstdc++.so"),
        _ADDRESS_OPTIONS | _UNDEFINED_OPTIONS,
    ),
    "thread": Sanitizer(
        ("-fsanitize=thread",),
        ("libtsan.so", "libstdc++.so"),
        {"TSAN_OPTIONS": "halt_on_error=0:exitcode=0:ignore_noninstrumented_modules=1:die_after_fork=0"},
        (HERE / "fork_join.cpp",),
    ),
}


@functools.cache
def why_not(kind: str) -> str | None:
    """Why a sanitizer cannot run here, or None."""
    if not sys.platform.startswith("linux") or shutil.which(csrc_build().COMPILER) is None:
        return "needs Linux and a C++ compiler"
    missing = [name for name in SANITIZERS[kind].runtimes if _runtime(name) is None]
    if missing:
        return f"{csrc_build().COMPILER} has no {', '.join(missing)}"
    with tempfile.TemporaryDirectory() as folder:
        begun = subprocess.run(
            command(kind, "-c", ""), env=environment(kind, Path(folder)), capture_output=True, text=True
        )
    return f"Python does not start under it: {begun.stderr.strip()[-300:]}" if begun.returncode else None


def compile_library(kind: str, sources: Iterable[Path], target: Path, flags: Iterable[str] = ()) -> None:
    """Compiles sources, each by itself, and links them. Nothing may stay undefined: a call of OpenMP that
    `fork_join.cpp` does not know is an error of the linker, not a call of libgomp."""
    sanitizer, build = SANITIZERS[kind], csrc_build()
    flags = [*build.FLAGS, *build.CHECKS, *flags, "-fno-omit-frame-pointer", *sanitizer.flags]
    target.parent.mkdir(parents=True, exist_ok=True)

    def compiled(source: Path) -> Path:
        into = target.with_name(f"{source.stem}.o")
        subprocess.run([build.COMPILER, *flags, "-c", source, "-o", into], check=True)
        return into

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        objects = list(pool.map(compiled, [*sources, *sanitizer.sources]))
    openmp = [] if sanitizer.sources else ["-fopenmp"]
    links = [*sanitizer.flags, "-shared", "-Wl,-z,defs", *openmp]
    subprocess.run([build.COMPILER, *links, *objects, "-o", target, "-ldl", "-lpthread"], check=True)


def copy_package(kind: str, folder: Path, sources: Iterable[str] = ("*",), optimize: str = "-O1") -> Path:
    """Copies the package into a new folder, with a core that is built for a sanitizer and this processor.

    sources: names of files of the core, without their ending. Returns what goes into PYTHONPATH.
    """
    into = folder / "sanitized"
    shutil.copytree(Path(hotrows.__file__).parent, into / "hotrows", ignore=_left_out)
    level = native.name()
    core = into / "hotrows" / "_native" / f"{level}.so"
    files = sorted(file for name in sources for file in (ROOT / "csrc").glob(f"{name}.cpp"))
    compile_library(kind, files, core, [*csrc_build().LEVELS.get(level, ()), optimize])
    if level.startswith("core_v"):
        shutil.copy(core, core.with_name("core_v2.so"))  # which is asked for the level
    return into


def environment(kind: str, reports: Path, package: Path = ROOT) -> dict[str, str]:
    """The environment in which a sanitizer is loaded, and writes its reports into a folder."""
    sanitizer = SANITIZERS[kind]
    reports.mkdir(parents=True, exist_ok=True)
    options = {name: f"{text}:log_path={reports / 'report'}" for name, text in sanitizer.options.items()}
    runtimes = ":".join(str(_runtime(name)) for name in sanitizer.runtimes)
    path = [package, ROOT, *([HERE / "absent"] if kind == "thread" else [])]
    options |= {"LD_PRELOAD": runtimes, "PYTHONMALLOC": "malloc", "HOTROWS_CHECKED_CORE": ""}
    options["PYTHONPATH"] = ":".join(map(str, path))
    return {**os.environ, **options}


def command(kind: str, *arguments: str) -> list[str]:
    """A command of this Python; the thread sanitizer's needs addresses that are not too random."""
    return [*(_fixed_addresses() if kind == "thread" else ()), sys.executable, *arguments]


def found(reports: Path, said: str = "") -> list[str]:
    """The reports of all processes; said: what they said on standard error."""
    lines = [line for line in said.splitlines() if ": runtime error: " in line]
    return [path.read_text(errors="replace") for path in sorted(reports.iterdir())] + lines


@functools.cache
def _fixed_addresses() -> tuple[str, ...]:
    """What begins a command whose addresses are not random; nothing where that is not allowed."""
    setarch = ("setarch", "-R")
    is_allowed = shutil.which("setarch") and not subprocess.run([*setarch, "true"]).returncode
    return setarch if is_allowed else ()


@functools.cache
def csrc_build() -> Any:
    """csrc/build.py."""
    spec = importlib.util.spec_from_file_location("hotrows_csrc_build", ROOT / "csrc" / "build.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@functools.cache
def _runtime(name: str) -> Path | None:
    """A library of the compiler; it repeats the name of one that it does not have."""
    asked = [csrc_build().COMPILER, f"-print-file-name={name}"]
    path = Path(subprocess.run(asked, check=True, capture_output=True, text=True).stdout.strip())
    return path.resolve() if path.is_absolute() else None


def _left_out(folder: str, names: list[str]) -> set[str]:
    return {"_native", "__pycache__"}.intersection(names)
