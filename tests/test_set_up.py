"""The set-up of README's two commands finds versions that fit, whichever build of PyTorch the index has.

No network: wheels with the metadata of the real ones, and nothing else in them, are resolved by pip.
"""

import base64
import functools
import hashlib
import os
import re
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:  # pytest requires it there
    import tomli as tomllib

import tasks

ROOT = Path(tasks.__file__).parent
LINUX = 'platform_system == "Linux"'
# What the CUDA build of a torch requires of Triton, and which it then finds on the index.
TRITON = {
    "2.10.0": ("==3.6.0", "3.6.0"),
    "2.11.0": ("==3.6.0", "3.6.0"),
    "2.12.0": ("==3.7.0", "3.7.0"),
    "2.13.0": ("==3.7.1", "3.7.1"),
    "2.14.0": ("~=3.8.0", "3.8.0"),
    "2.15.0": ("~=3.9.0", "3.9.0"),
}
PINNED = dict(re.findall(r"^([\w-]+)==(\S+)", (ROOT / "constraints.txt").read_text(), re.MULTILINE))


@functools.cache
def project() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def write_wheel(folder: Path, name: str, version: str, lines: list[str]) -> None:
    """A wheel of metadata alone."""
    stem = f"{name.replace('-', '_')}-{version}"
    files = {
        "METADATA": "\n".join(
            ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}", *lines, ""]
        ),
        "WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = ""
    with zipfile.ZipFile(folder / f"{stem}-py3-none-any.whl", "w") as wheel:
        for file, text in files.items():
            wheel.writestr(f"{stem}.dist-info/{file}", text)
            digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip("=")
            record += f"{stem}.dist-info/{file},sha256={digest},{len(text)}\n"
        wheel.writestr(f"{stem}.dist-info/RECORD", f"{record}{stem}.dist-info/RECORD,,\n")


def write_index(folder: Path, builds: set[str]) -> None:
    """Wheels of hotrows, as pyproject.toml describes it, and of all that it asks for."""
    extras = project()["optional-dependencies"]
    lines = [f"Requires-Dist: {one}" for one in project()["dependencies"]]
    names = set()
    for extra, requirements in extras.items():
        lines.append(f"Provides-Extra: {extra}")
        for one in requirements:
            requirement, _, marker = (part.strip() for part in one.partition(";"))
            condition = f'({marker}) and extra == "{extra}"' if marker else f'extra == "{extra}"'
            lines.append(f"Requires-Dist: {requirement}; {condition}")
            names.add(requirement)
    write_wheel(folder, "hotrows", "0.1", lines)
    names |= {one.partition(";")[0] for one in project()["dependencies"]}
    for requirement in names:
        name = re.match(r"[\w-]+", requirement).group()
        if name not in ("hotrows", "torch", "triton"):
            provided = re.search(r"\[(.*?)\]", requirement)
            extra = [f"Provides-Extra: {one}" for one in provided.group(1).split(",")] if provided else []
            write_wheel(folder, name, PINNED.get(name, "99.0"), extra)
    for version, (required, found) in TRITON.items():
        write_wheel(folder, "triton", found, [])
        if "cuda" in builds:
            write_wheel(folder, "torch", version, [f"Requires-Dist: triton{required}; {LINUX}"])
        if "cpu" in builds:
            write_wheel(folder, "torch", f"{version}+cpu", [])


def installed(
    folder: Path, builds: set[str], constraints: str, commands: list[list[str]]
) -> dict[str, str]:
    """Runs pip as tasks.py does, on an index of these builds of PyTorch; what then is there."""
    wheels = folder / "wheels"
    wheels.mkdir()
    write_index(wheels, builds)
    (folder / "constraints.txt").write_text(constraints)
    venv.create(folder / "clean", with_pip=False)
    python = folder / "clean" / tasks.BIN.name / "python"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
    environment["PIP_CONFIG_FILE"] = os.devnull
    pip = [sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check"]
    for command in commands:
        command = [word.replace(".[", "hotrows[") for word in command]
        options = ["--no-index", "--find-links", wheels, "--no-compile", "-c", folder / "constraints.txt"]
        done = subprocess.run(
            [*pip, "install", *options, *command], env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr
    found = (folder / "clean").glob("lib/python*/site-packages/*.dist-info")
    return dict(path.name.removesuffix(".dist-info").rsplit("-", 1) for path in found)


@pytest.mark.parametrize("builds, version", [({"cuda"}, "2.13.0"), ({"cuda", "cpu"}, "2.13.0+cpu")])
def test_the_set_up_of_the_repository_resolves(tmp_path, builds, version):
    """It did not: [dev] pinned another Triton than the CUDA build of torch 2.13.0 requires."""
    constraints = (ROOT / "constraints.txt").read_text()
    found = installed(tmp_path, builds, constraints, [[one] for one in tasks.INSTALLED])
    assert found["torch"] == version and found["triton"] == "3.7.1"
    assert {"pytest", "onnxscript", "starlette"} <= set(found)


def test_the_set_up_asks_nothing_of_pip_that_python_3_10_does_not_bring(monkeypatch):
    """Its pip has no -C: `tasks.py` ended with "no such option"."""
    ran = []
    monkeypatch.setattr(tasks.subprocess, "run", lambda command, **how: ran.append((command, how["env"])))
    tasks.install(Path("constraints.txt"), tasks.PYTHON)
    assert [command[-1] for command, _ in ran] == ["torch", ".[dev]"]
    options = {word for command, _ in ran for word in command[2:] if word.startswith("-")}
    assert options == {"-c", "--quiet", "--disable-pip-version-check", "--no-compile"}
    assert all(variables["SKBUILD_WHEEL_CMAKE"] == "false" for _, variables in ran)


@pytest.mark.few(2)
@pytest.mark.parametrize("version", TRITON)
def test_every_torch_from_the_lowest_fits(tmp_path, version):
    found = installed(tmp_path, {"cuda"}, f"torch=={version}\n", [["torch"], [".[dev]"]])
    assert found["torch"] == version and found["triton"] == TRITON[version][1]


def test_constraints_pin_the_triton_of_their_torch():
    assert PINNED["triton"] == TRITON[PINNED["torch"]][1]
