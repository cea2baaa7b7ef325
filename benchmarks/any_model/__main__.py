"""Runs the check of every library in its own environment, and writes the table of results.

    python -m benchmarks.any_model [--library L ...] [--models M ...] [--optimizers O ...] [--quick]

It goes on where it stopped: models that stand in the results, of this commit, are left out. `--again`
checks them anew. `--plain` puts plain PyTorch in the accelerated model's place: it must pass. `--table`
only writes the table. `--device` checks every third model of each library, in float64, on the GPU that
the tests pretend, where lookups are not captured.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from typing import Any

from benchmarks.any_model.table import OPTIMIZERS, write_table
from benchmarks.any_model.worker import MODULES
from benchmarks.harness import conditions
from benchmarks.peers import python_of

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "any_model.json"
ON_DEVICE = RESULTS.with_stem("any_model_device")
TABLE = RESULTS.with_suffix(".md")
ENVIRONMENT = dict.fromkeys(MODULES, "ctr") | {"pytorch-widedeep": "widedeep"}
SECONDS = 1200  # for one model, on a machine that may be busy


def main() -> None:
    parser = argparse.ArgumentParser(description="Check every model of the CTR libraries.")
    parser.add_argument("--library", nargs="*", choices=MODULES, default=list(MODULES))
    parser.add_argument("--models", nargs="*")
    parser.add_argument("--optimizers", nargs="*", choices=OPTIMIZERS)
    parser.add_argument("--quick", action="store_true", help="float64 alone")
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--plain", action="store_true")
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--device", action="store_true", help="every third model, on a pretended GPU")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--out", type=Path, help="the file of results (default: benchmarks/results)")
    args = parser.parse_args()
    is_published = args.out is None and not args.plain
    args.out = args.out or (ON_DEVICE if args.device else RESULTS)
    args.quick = args.quick or args.device
    results = Results(args.out)
    if not args.table:
        with ThreadPoolExecutor(args.processes) as pool:
            list(pool.map(lambda name: check_library(name, args, results), args.library))
    if is_published:
        write_table(Results(RESULTS).read(), Results(ON_DEVICE).read(), TABLE)


class Results:
    """One JSON file: {library: {versions, models: {model: record}}}; each record says its commit."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lock = Lock()  # the libraries are checked in threads

    def read(self) -> dict[str, Any]:
        return json.loads(self.path.read_text()) if self.path.exists() else {}

    def add(self, library: str, model: str, record: dict[str, Any]) -> None:
        """Beside the optimizers that were checked before, of the same commit and as thoroughly."""
        with self.lock:
            results = self.read()
            models = results.setdefault(library, {"models": {}})["models"]
            before = models.get(model, {})
            if all(before.get(key) == record.get(key) for key in ("commit", "quick")):
                for key in ("optimizers", "accelerated"):
                    if key in before and key in record:
                        record[key] = before[key] | record[key]
            models[model] = record
            self._write(results)

    def note(self, library: str, models: list[str], versions: dict[str, str]) -> None:
        """Also forgets models that have no recipe any more, and puts the others in the recipes' order."""
        with self.lock:
            results = self.read()
            known = results.get(library, {"models": {}})["models"]
            kept = {model: known[model] for model in models if model in known}
            results[library] = {"versions": versions, "models": kept}
            self._write(results)

    def _write(self, results: dict[str, Any]) -> None:
        part = self.path.with_suffix(f".{os.getpid()}")
        part.write_text(json.dumps(results, indent=1) + "\n")
        part.replace(self.path)


def check_library(library: str, args: argparse.Namespace, results: Results) -> None:
    said = next(iter(_worker(library, ["--list"], SECONDS)), None)
    if said is None:
        print(f"{library}: its environment does not work", flush=True)
        return
    if args.device:
        said["models"] = said["models"][::3]
    results.note(library, said["models"], said["versions"])
    commit = _commit()
    done = results.read()[library]["models"]
    waiting = [
        model
        for model in args.models or said["models"]
        if model in said["models"] and (args.again or not _is_done(done.get(model), commit, args))
    ]
    options = ["--plain"] * args.plain + ["--quick"] * args.quick + ["--device"] * args.device
    if args.optimizers:
        options += ["--optimizers", *args.optimizers]
    while waiting:
        for record in _worker(library, [*options, "--models", *waiting], SECONDS):
            waiting.remove(record["model"])
            _note(library, record | {"quick": args.quick}, commit, results)
        if waiting:  # the worker ended, or was ended, within this model
            record = {"model": waiting.pop(0), "failed": f"no result within {SECONDS} s, or a crash"}
            _note(library, record, commit, results)


def _is_done(record: dict[str, Any] | None, commit: str, args: argparse.Namespace) -> bool:
    """Whether a model stands in the results with all that is asked for now."""
    if record is None or record["commit"] != commit or (record.get("quick") and not args.quick):
        return False
    wanted = set(args.optimizers or OPTIMIZERS) & set(record.get("of", ()))
    return wanted <= record.get("optimizers", {}).keys()


def _note(library: str, record: dict[str, Any], commit: str, results: Results) -> None:
    model = record.pop("model")
    now = conditions(threads=1)
    facts = {"commit": commit, "date": now["date"], "machine": now["machine"]}
    results.add(library, model, record | facts)
    print(f"{library}: {model}: {record.get('seconds', '')} s", flush=True)


def _worker(library: str, options: list[str], seconds: float) -> Any:
    """Each line that a worker writes, until it ends or one takes too long."""
    with tempfile.TemporaryDirectory() as folder:
        out, log = Path(folder, "out"), Path(folder, "log")
        out.touch()
        command = [str(python_of(ENVIRONMENT[library])), "-W", "ignore"]
        command += ["-m", "benchmarks.any_model.worker", library, str(out), *options]
        paths = {"PYTHONPATH": f"{ROOT}:{ROOT / 'src'}", "OMP_NUM_THREADS": "1"}
        with log.open("w") as sink:
            process = subprocess.Popen(
                command, cwd=ROOT, env=os.environ | paths, stdout=sink, stderr=sink
            )
        try:
            yield from _lines(process, out, seconds)
        finally:
            process.kill()
            process.wait()
            if process.returncode not in (0, -9):
                print(log.read_text()[-1500:], flush=True)


def _lines(process: subprocess.Popen[bytes], out: Path, seconds: float) -> Any:
    read, latest = 0, time.monotonic()
    while True:
        ended = process.poll() is not None
        lines = [line for line in out.read_text().splitlines(keepends=True) if line.endswith("\n")]
        for line in lines[read:]:
            read, latest = read + 1, time.monotonic()
            yield json.loads(line)
        if ended or time.monotonic() - latest > seconds:
            return
        time.sleep(0.2)


def _commit() -> str:
    """The latest that changed hotrows itself."""
    command = ["git", "-C", str(ROOT), "log", "-1", "--format=%h", "--", "src", "csrc"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


if __name__ == "__main__":
    main()
