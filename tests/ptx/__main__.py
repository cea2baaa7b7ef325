"""Emulates the kernels: all of their tests, mutants of them, or launches in many orders of warps."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import click

from tests.ptx import mutants
from tests.ptx.mutants import KERNELS, ROOT

RESULTS = ROOT / "benchmarks" / "results"


@click.group(help=__doc__)
def main() -> None:
    pass


@main.command()
@click.option("--all", "everything", is_flag=True, help="All cases of all tests.")
@click.option("--seed", default=0, show_default=True, help="Of the order of warps and blocks.")
def run(everything: bool, seed: int) -> None:
    """Runs the kernels' tests and steps of models; writes what ran to benchmarks/results/ptx.json."""
    with tempfile.TemporaryDirectory() as folder:
        seen = Path(folder) / "seen.json"
        environment = {**os.environ, "PTX_SEED": str(seed), "PTX_SEEN": str(seen)}
        files = sorted((ROOT / "tests" / "ops" / "triton").glob("test_*.py"))
        files = [file for file in files if file.name != "test_compile.py"] + [ROOT / "tests/ptx/steps.py"]
        command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.ptx.plugin", *map(str, files)]
        code = subprocess.run([*command, *(["--all"] if everything else [])], env=environment).returncode
        launches = json.loads(seen.read_text())
    ran = {}
    for name in sorted(kernels()):
        of = launches.get(name, ())
        shapes = {json.dumps(one[:2]) for one in of}
        ran[name] = {
            "launches": len(of),
            "shapes": len(shapes),
            "seconds": round(sum(s for *_, s in of), 1),
        }
        print(f"{name:32}", ran[name])
    twice = sum(of["shapes"] > 1 for of in ran.values())
    print(f"{twice} of {len(ran)} kernels at two shapes and more")
    results = {"passed": code == 0, "at two shapes and more": twice, "kernels": ran}
    (RESULTS / "ptx.json").write_text(json.dumps(results, indent=1) + "\n")
    sys.exit(code)


def kernels() -> set[str]:
    """All functions of `ops/triton` that are launched."""
    found = set()
    for path in KERNELS.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Subscript):
                name = ast.unparse(node.func.value)
                found |= {f"{path.stem}.{name}"} if name.startswith("_") else set()
    return found


@main.command("mutants")
def try_mutants() -> None:
    """Tries wrong kernels in both engines; writes benchmarks/results/ptx_mutants.json."""
    with tempfile.TemporaryDirectory() as folder:
        results = mutants.run(folder)
    (RESULTS / "ptx_mutants.json").write_text(json.dumps(results, indent=1) + "\n")
    for row in results["rows"]:
        print(f"{row['mutant']:44} {(row['emulator'] or 'SURVIVED')[:90]:90} {row['interpreter'][:40]}")
    print({name: number for name, number in results.items() if name != "rows"})


@main.command()
@click.option("--count", default=1000, show_default=True, help="Orders, of all launches together.")
def interleavings(count: int) -> None:
    """Launches kernels whose threads and programs meet in memory in many orders, for the same bits."""
    os.environ["TRITON_INTERPRET"] = "0"
    from tests.ptx import orders

    differences = orders.differences(count)
    print(f"{count} orders, {differences} differences")
    sys.exit(differences > 0)


if __name__ == "__main__":
    main()
