"""A copy of the repository in which one file is changed at a time, and tests run until one fails."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import runpy
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from subprocess import DEVNULL

from tests.mutants import Mutant

LEFT_OUT = shutil.ignore_patterns(".*", "__pycache__", "build", "dist", "demo", "runs")
# Hypothesis draws the same examples again.
OPTIONS = ["-x", "-q", "--tb=no", "-p", "no:cacheprovider", "--hypothesis-profile", "ci"]
OPTIONS += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # of what is imported before the fork


# A test failed; tests took too long; none failed; the compiler makes the same of it, or refuses it; what
# failed fails without it, too.
OUTCOMES = ("killed", "hung", "survived", "equivalent", "refused", "skipped")


class Broken(Exception):
    """A change that the compiler refuses."""


class Trial:
    """Mutants of `root`, each tried in a copy in `folder`; a test that kills one must pass without it."""

    def __init__(self, root: Path, folder: Path) -> None:
        self.copy = Copy(root, folder)
        self.passing: dict[str, bool] = {}

    def outcome(self, mutant: Mutant, tests: Sequence[str], seconds: float) -> tuple[str, str]:
        """How a mutant ends, one of `OUTCOMES`, and the tests that say so."""
        if not tests:
            return "skipped", "no test imports what calls it"
        content = (self.copy.root / mutant.path).read_bytes()
        try:
            if not self.copy.write(mutant.path, mutant.applied(content)):
                return "equivalent", "the compiler makes the same of it"
            end = self.copy.run(tests, seconds)
        except Broken:
            return "refused", "it does not compile"
        finally:
            self.copy.write(mutant.path, content)
        if end in ("passed", "hung"):
            return ("survived" if end == "passed" else end), " ".join(tests)
        if "::" in end and end not in self.passing:
            self.passing[end] = self.copy.run([end], seconds) == "passed"
        return ("killed" if self.passing.get(end, True) else "skipped"), end


class Copy:
    """A copy of `root` in `folder`; its core is built anew from `csrc` where a change is of it.

    Object files without a change stay in build/mutants of the repository, by a hash of their source.
    """

    def __init__(self, root: Path, folder: Path) -> None:
        self.root, self.folder = root, folder / "copy"
        shutil.copytree(root, self.folder, ignore=LEFT_OUT)
        self.objects = root / "build" / "mutants"
        self.times = 1_000_000_000  # of files, a second later each: Python compiles a changed one again

    def write(self, path: str, content: bytes) -> bool:
        """Writes a file of the copy; False if the compiler makes the same of it as before."""
        self.times += 1
        (self.folder / path).write_bytes(content)
        os.utime(self.folder / path, (self.times, self.times))
        return self._build() if path.startswith("csrc") else True

    def _build(self) -> bool:
        """Compiles what has no object file, and links; False if all object files are as before."""
        build = runpy.run_path(str(self.root / "csrc" / "build.py"))
        level, flags = list(build["levels_of_machine"]().items())[-1]
        command = [build["COMPILER"], *build["FLAGS"], "-O1", "-w", *flags]  # quick to compile
        objects, new, differ = [], [], False
        for source in sorted((self.folder / "csrc").glob("*.cpp")):
            usual = self._compiled(self.root / "csrc" / source.name, command)
            objects.append(self._compiled(source, command))
            if objects[-1] != usual:
                new.append(objects[-1])
                differ |= objects[-1].read_bytes() != usual.read_bytes()
        core = self.folder / "src" / "hotrows" / "_native" / f"{level}.so"
        core.parent.mkdir(exist_ok=True)
        core.unlink(missing_ok=True)
        subprocess.run([*command, "-shared", *objects, "-o", core], check=True)
        for path in new:
            path.unlink()
        return differ

    def _compiled(self, source: Path, command: list[str]) -> Path:
        """The object file of a source, by what it and the files that it includes say."""
        files = [source]
        for file in files:  # which grows
            names = re.findall(r'#include "(.*)"', file.read_text())
            files += [source.parent / name for name in names if source.parent / name not in files]
        text = "\n".join([*command, *(file.read_text() for file in files)])
        target = self.objects / f"{source.stem}-{hashlib.sha256(text.encode()).hexdigest()[:16]}.o"
        if not target.exists():
            self.objects.mkdir(parents=True, exist_ok=True)
            part = target.with_suffix(f".{os.getpid()}")
            one = [*command, "-c", source.name, "-o", part]
            if subprocess.run(one, cwd=source.parent, stderr=DEVNULL).returncode:
                raise Broken
            os.replace(part, target)
        return target

    def run(self, tests: Sequence[str], seconds: float) -> str:
        """Runs tests until one fails, in a fork of this process: `passed`, `hung`, or what failed."""
        output = self.folder.with_name("output")
        child = os.fork()
        if child == 0:
            self._test(tests, output)
        end = time.monotonic() + seconds
        while not (done := os.waitpid(child, os.WNOHANG))[0] and time.monotonic() < end:
            time.sleep(0.02)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)  # and what it has started
        if not done[0]:
            os.waitpid(child, 0)
            return "hung"
        if done[1] == 0:
            return "passed"
        lines = output.read_text(errors="replace")
        failed = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", lines, re.MULTILINE)
        return failed[1] if failed else f"ended with {os.waitstatus_to_exitcode(done[1])}"

    def _test(self, tests: Sequence[str], output: Path) -> None:
        """Becomes a process of pytest in the copy; never returns."""
        os.setsid()
        code = 1
        try:
            with output.open("w") as file:
                os.dup2(file.fileno(), 1)
                os.dup2(file.fileno(), 2)
            os.chdir(self.folder)
            path = [str(self.folder / "src"), str(self.folder)]
            sys.path[:0] = path
            os.environ["PYTHONPATH"] = os.pathsep.join(path)
            sys.dont_write_bytecode = False
            for name in [name for name in sys.modules if name.partition(".")[0] in ("tests", "hotrows")]:
                del sys.modules[name]
            import pytest

            code = pytest.main([*OPTIONS, "--rootdir", str(self.folder), *tests])
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
