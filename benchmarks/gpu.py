"""What does a GPU make of it? One command, three runs of ten minutes at most, in parts of a minute or so.

    python3 -m benchmarks.gpu --out OUT first                       # then second, and third
    python3 -m benchmarks.gpu --out OUT probe kernels sync          # parts by name
    python3 -m benchmarks.gpu --out OUT lookup --tune --cuembed DIR
    python3 -m benchmarks.gpu --out OUT --list                      # what has run, and what is pending
    python3 -m benchmarks.gpu --small --device cpu cache            # the logic of a part, in seconds
    python3 -m benchmarks.gpu --page                                # results/gpu.json into the pages

Every part is a process of its own with a limit of its own: one that dies, runs out of memory or takes too
long says so in its record, and the next one runs. The same command once more goes on where it was. The
one file begins as results/gpu.json, is written whenever something is found, and replaces that once it is
looked at. A part checks that results are right first. A cut part goes on where it was if the code is the
same (a hash of src, csrc and benchmarks, since a tree may come without its history), the setting, and the
GPU; `--keep-older` keeps what other code has measured, by name. At the end stands what the figures say
to the claims of the papers, one by one.
"""

import argparse
import contextlib
import importlib
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

if __package__ in (None, ""):  # run as a file: the source tree stands in for this folder
    sys.path[0] = str(Path(__file__).resolve().parent.parent)
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # equal products have equal bits

import torch

from benchmarks.gpu_parts import claims, limits
from benchmarks.gpu_parts.part import Findings, Setting, read, run_part
from benchmarks.gpu_parts.source import source_hash
from benchmarks.harness import RESULTS, ROOT, write_to

FILE = "gpu.json"
_RESERVE = 20  # seconds at most kept for what a part does after its deadline, and a quarter of its time
_COMMAND = [sys.executable, "-m", "benchmarks.gpu"]


@dataclass(frozen=True)
class Part:
    """seconds: the least time worth beginning with. module: in gpu_parts, that of its name unless it says
    another; gigabytes: of records, in place of what the command line says."""

    question: str
    seconds: int
    module: str | None = None
    gigabytes: float | None = None


PARTS = {
    "host": Part("Does a kernel read and write page-locked host memory?", 15),
    "capture": Part("What does a capture that fails leave behind?", 15),
    "accelerate": Part("Two lines beside plain PyTorch: equal losses, and the time of a step?", 20),
    "probe": Part("What do host memory, link and device give at full size, apart and together?", 50),
    "pinned": Part("Does a kernel move rows of host memory as fast as the link allows?", 30),
    "kernels": Part("Are the kernels right on this device?", 60),
    "sync": Part("Does a step wait for the device? Is it the same as one graph?", 60),
    "lookup": Part("How fast are lookup and update, next to PyTorch, cuEmbed and FBGEMM?", 60),
    "deterministic": Part("What do equal bits cost, next to FBGEMM's two backward passes?", 15),
    "layers": Part("How fast are the layers of models with histories, next to PyTorch's?", 40),
    "planning": Part("Is a batch planned faster by threads of the host or by the device?", 40),
    "micro": Part("What do micro-batches save in memory, and cost in time?", 40),
    "fields": Part("What do many fields cost at the same number of lookups?", 45),
    "gates": Part("Are our dense kernels, and streams of packs, worth their lines?", 60),
    "ranks": Part("Do several GPUs train what processors train, and how fast do they exchange?", 120),
    "cache": Part("How fast is training when the device holds a tenth of the tables?", 120),
    "cache-16": Part("How fast is it with a tenth of 16 GB of records?", 120, "cache", 16),
}
# Parts in order with their limits in seconds; what one leaves over, those behind it have.
RUNS = {
    "first": {
        "host": 40, "capture": 40, "accelerate": 60, "sync": 100, "cache-16": 225, "lookup": 90,
    },
    "second": {"layers": 70, "planning": 65, "kernels": 290, "micro": 60, "fields": 70},
    "third": {"cache": 270, "gates": 110, "deterministic": 50, "probe": 85, "pinned": 40},
}  # fmt: skip


def main(argv: list[str] | None = None) -> int:
    """Returns how many parts went wrong."""
    args = _arguments(argv)
    if args.page:
        limits.write_page()
        return 0
    path = None if args.out is None else args.out / FILE
    if path is not None and not path.exists() and not args.small and (RESULTS / FILE).exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(RESULTS / FILE, path)
    if args.list:
        print(_listed(read(path or RESULTS / FILE)))
        return 0
    if args.device != "cpu" and not torch.cuda.is_available():
        raise SystemExit("PyTorch sees no GPU; --small --device cpu runs the logic of every part")
    deadline = time.monotonic() + 60 * args.minutes
    if args.alone:
        return not _run(args.parts[0], path, args, deadline - min(_RESERVE, 15 * args.minutes))
    wrong = 0
    for name, limit in RUNS.get(args.parts[0], dict.fromkeys(args.parts)).items():
        left = deadline - time.monotonic()
        if left < PARTS[name].seconds:
            print(f"{name}: {left:.0f} s are left, {PARTS[name].seconds} are needed: not begun")
        elif args.small and args.device == "cpu":
            wrong += not _run(name, path, args, deadline)
        else:
            wrong += not _run_in_a_process(name, path, args, min(limit or left, left))
    if path is not None:
        print("\n" + claims.in_words(read(path)), flush=True)
    return wrong


def _run_in_a_process(name: str, path: Path, args: argparse.Namespace, seconds: float) -> bool:
    """Runs a part for so long at most; whether all went well. What ended it is in its record."""
    command = [*_COMMAND, *_options(args), "--alone", "--minutes", f"{seconds / 60:.4f}", name]
    before = read(path).get(name)
    with subprocess.Popen(command, cwd=ROOT, start_new_session=True) as process:
        try:
            ended = process.wait(seconds)
        except subprocess.TimeoutExpired:
            ended = None
        finally:
            _end_all_of(process.pid)
    if ended in (0, 1):
        return ended == 0
    error = f"cut at its limit of {seconds:.0f} s" if ended is None else _death(ended)
    record = read(path).get(name)
    if record is None or record == before:  # it has not come to write one
        setting = Setting(args.device, args.small).facts()
        record = {"question": PARTS[name].question, "part": name, "setting": setting}
        record |= {"source": source_hash(), "checks": {}, "arms": {}}
    write_to(path, read(path) | {name: {**record, "complete": False, "error": error}})
    print(f"{name}: {error}; what it found is kept, and the next part runs", flush=True)
    return False


def _options(args: argparse.Namespace) -> list[str]:
    """Of the command line, what a part is told."""
    values = {name: getattr(args, name) for name in ("out", "device", "gigabytes", "cuembed", "commit")}
    flags = ("again", "keep_older", "small", "tune")
    options = [f"--{name}={value}" for name, value in values.items() if value is not None]
    return options + [f"--{name.replace('_', '-')}" for name in flags if getattr(args, name)]


def _end_all_of(pid: int) -> None:
    """Ends what a part has started and left."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def _death(status: int) -> str:
    return f"died: {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"


def _run(name: str, path: Path | None, args: argparse.Namespace, deadline: float) -> bool:
    """Runs a part in this process unless it has run; whether all went well."""
    part = PARTS[name]
    setting = Setting(
        args.device, args.small, part.gigabytes or args.gigabytes or _gigabytes(args), args.tune,
        args.out, args.cuembed, deadline,
    )  # fmt: skip
    findings = Findings(name, part.question, setting, path, args.commit)
    earlier = {} if path is None or args.again else read(path).get(name, {})
    if earlier and findings.has_run(earlier):
        print(f"{name}: has run; --again runs it once more")
        return True
    if earlier:
        findings.go_on_from(earlier, args.keep_older)
    module = importlib.import_module(f"benchmarks.gpu_parts.{part.module or name}")
    return run_part(findings, module.run)


def _gigabytes(args: argparse.Namespace) -> float:
    """Of records: 80, or what leaves a step enough of the device's memory."""
    if args.device == "cpu":
        return 80
    return min(80, 5 * round(0.6 * torch.cuda.get_device_properties(0).total_memory / 5e9))


def _listed(records: dict[str, dict]) -> str:
    lines = []
    for name, part in PARTS.items():
        state, record = "pending", records.get(name)
        if record:
            red = sum(state != "passed" for state in record["checks"].values())
            state = "done" if record["complete"] else "cut"
            state += f", {len(record['arms'])} arms, source {record['source']}"
            state += f", {record['gpu']['name']}" if "gpu" in record else ""
            state += f", {red} checks failed" if red else ""
            state += f", {record['error']}" if record["error"] else ""
        lines.append(f"{name:10} {state:50} {part.question}")
    return "\n".join(lines)


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.gpu", description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help=f"folder of the results, {FILE} and a picture")
    runs = "; ".join(f"{run}: {', '.join(parts)}" for run, parts in RUNS.items())
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(PARTS)}; or a run ({runs})")
    parser.add_argument("--list", action="store_true", help="which parts have run")
    parser.add_argument("--page", action="store_true", help="put figures into docs/gpu.md")
    parser.add_argument("--again", action="store_true", help="run parts that have run")
    parser.add_argument("--keep-older", action="store_true", help="keep arms that other code measured")
    parser.add_argument("--minutes", type=float, default=9.5, help="for all of this run")
    parser.add_argument("--small", action="store_true", help="shrunk to seconds")
    parser.add_argument("--device", default="cuda")
    parser.add_argument(
        "--gigabytes",
        type=float,
        help="of records, in `probe` and `cache`: 80, or 0.6 of the card's memory",
    )
    parser.add_argument("--alone", action="store_true", help=argparse.SUPPRESS)  # in this process
    parser.add_argument(
        "--tune", action="store_true", help="sweep launch constants, in `pinned`, `lookup`"
    )
    parser.add_argument("--cuembed", type=Path, help="a checkout of NVIDIA/cuEmbed, for `lookup`")
    parser.add_argument("--commit", help="of a source tree without its history")
    args = parser.parse_args(argv)
    known = {*PARTS, *(RUNS if len(args.parts) == 1 else ())}
    if unknown := set(args.parts) - known:
        parser.error(f"no part {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    if not (args.parts or args.list or args.page):
        parser.error(f"name the parts to run, in order: {', '.join(PARTS)}; or --list, or --page")
    if args.parts and args.out is None and (not args.small or args.device != "cpu"):
        parser.error("say with --out OUT in which folder the results are to be kept")
    if args.device == "cpu" and not args.small and args.parts:
        parser.error("whole parts are for a GPU: --small --device cpu runs their logic")
    return args


if __name__ == "__main__":
    sys.exit(main())
