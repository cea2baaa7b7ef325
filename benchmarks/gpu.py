"""What does a GPU make of it? In parts of a few minutes each, those of most value first.

    python -m benchmarks.gpu --list               # what has run, and what is pending
    python -m benchmarks.gpu                      # the pending ones in order, for nine minutes
    python -m benchmarks.gpu --part lookup --tune
    python -m benchmarks.gpu --small --device cpu # the logic of every part, in seconds

Each part writes results/gpu-PART.json, or OUT/gpu-PART.json, whenever it has found something; a cut
one goes on where it was. A part checks that results are right first, and gives no figures where they
are not. Runs with --small, or without a GPU, write nothing unless told where. Machine, commit and
versions stand in the files; `docs/gpu.md` has the aims and the limits.
"""

import argparse
import gc
import importlib
import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path

if __package__ in (None, ""):  # run as a file: the source tree stands in for this folder
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

import torch

from benchmarks.gpu_parts import limits
from benchmarks.gpu_parts.part import Findings, Setting, run_part
from benchmarks.harness import RESULTS
from benchmarks.pictures import OUT as PICTURES

_RESERVE = 20  # seconds kept for what a part does after its deadline


@dataclass(frozen=True)
class Part:
    """seconds: the least time worth beginning with."""

    question: str
    seconds: int


PARTS = {
    "pinned": Part("Does a kernel move rows of host memory as fast as the link allows?", 60),
    "kernels": Part("Are the kernels right on this device?", 120),
    "sync": Part("Does a step wait for the device? Is it the same as one graph?", 60),
    "lookup": Part("How fast are lookup and update, next to PyTorch and FBGEMM?", 90),
    "layers": Part("How fast are the layers of models with histories, next to PyTorch's?", 60),
    "cache": Part("How fast is training when the device holds a tenth of the tables?", 150),
    "fields": Part("What do many fields cost at the same number of lookups?", 90),
    "micro": Part("What do micro-batches save in memory, and cost in time?", 60),
    "planning": Part("Is a batch planned faster by threads of the host or by the device?", 60),
}


def main(argv: list[str] | None = None) -> int:
    """Returns how many parts went wrong."""
    args = _arguments(argv)
    if args.page:
        limits.write_page()
        return 0
    out = args.out or (None if args.small or args.device == "cpu" else RESULTS)
    known = {name: _known(name, out) for name in PARTS}
    if args.list:
        print(_listed(known))
        return 0
    if args.device != "cpu" and not torch.cuda.is_available():
        raise SystemExit("PyTorch sees no GPU; --small --device cpu runs the logic of every part")
    deadline = time.monotonic() + 60 * args.minutes - _RESERVE
    pictures = PICTURES if out == RESULTS else out
    setting = Setting(args.device, args.small, args.gigabytes, args.tune, pictures, deadline)
    pending = [name for name in PARTS if not _has_run(known[name], setting)]
    wrong = 0
    for name in args.part or pending:
        left = setting.seconds_left
        if not args.part and left < PARTS[name].seconds:
            print(f"{name}: {left:.0f} s are left, {PARTS[name].seconds} are needed: not begun")
            break
        wrong += not _run(name, setting, out, known[name], args)
    return wrong


def _run(name: str, setting: Setting, out: Path | None, earlier: dict, args) -> bool:
    """Runs a part; whether all went well.

    What it leaves is freed: arms of `cache` are processes of their own that need all of the device.
    """
    path = None if out is None else out / f"gpu-{name}.json"
    findings = Findings(name, PARTS[name].question, setting, path, args.commit)
    findings.go_on_from(earlier)
    module = importlib.import_module(f"benchmarks.gpu_parts.{name}")
    well = run_part(findings, module.run)
    gc.collect()
    if setting.on_gpu:
        torch.cuda.empty_cache()
    return well


def _known(name: str, out: Path | None) -> dict:
    """What an earlier run has left of a part: in the folder of this one, else among the results."""
    for folder in (out, RESULTS):
        path = None if folder is None else folder / f"gpu-{name}.json"
        if path is not None and path.exists():
            return json.loads(path.read_text())
    return {}


def _has_run(findings: dict, setting: Setting) -> bool:
    """Whether a part ran to its end, on such a device and as large."""
    same = findings and all(
        findings["setting"][key] == getattr(setting, key) for key in ("device", "small")
    )
    return bool(same and findings["complete"])


def _listed(known: dict[str, dict]) -> str:
    lines = []
    for name, findings in known.items():
        state = "pending"
        if findings:
            red = sum(state != "passed" for state in findings["checks"].values())
            state = "done" if findings["complete"] else "cut"
            state += f", {len(findings['arms'])} arms, commit {(findings['commit'] or 'unknown')[:12]}"
            state += f", {red} checks failed" if red else ""
            state += f", {findings['error']}" if findings["error"] else ""
        lines.append(f"{name:10} {state:50} {PARTS[name].question}")
    return "\n".join(lines)


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--list", action="store_true", help="which parts have run")
    parser.add_argument("--page", action="store_true", help="put figures into docs/gpu.md")
    parser.add_argument("--part", nargs="+", choices=PARTS, help="only these, again if need be")
    parser.add_argument("--minutes", type=float, default=9, help="for all of this run")
    parser.add_argument("--out", type=Path, help="folder of the JSON; default: results/")
    parser.add_argument("--small", action="store_true", help="shrunk to seconds")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--gigabytes", type=float, default=80, help="of records, in `cache`")
    parser.add_argument(
        "--tune", action="store_true", help="sweep launch constants, in `pinned` and `lookup`"
    )
    parser.add_argument("--commit", help="of a source tree without its history")
    args = parser.parse_args(argv)
    if args.device == "cpu" and not args.small:
        parser.error("whole parts are for a GPU: --small --device cpu runs their logic")
    return args


if __name__ == "__main__":
    sys.exit(main())
