"""What does a GPU make of it? In parts of a minute or a few, named in the order that they run.

    python3 -m benchmarks.gpu --out OUT probe kernels sync          # OUT/gpu.json holds all parts
    python3 -m benchmarks.gpu --out OUT lookup --tune --cuembed DIR
    python3 -m benchmarks.gpu --out OUT --list                      # what has run, and what is pending
    python3 -m benchmarks.gpu --small --device cpu cache            # the logic of a part, in seconds
    python3 -m benchmarks.gpu --page                                # results/gpu.json into docs/gpu.md

The one file begins as results/gpu.json, is written whenever something is found, and replaces that once
it is looked at. A part checks that results are right first, and gives no figures where they are not. A
cut part goes on where it was if the code is the same (a hash of src, csrc and benchmarks, since a
tree may come without its history), the setting, and the GPU; `--keep-older` keeps what other code has
measured, by name. `docs/gpu.md` has the aims, the limits, and the commands of three runs of ten minutes.
"""

import argparse
import gc
import importlib
import os
import shutil
import sys
import time
from dataclasses import dataclass
from pathlib import Path

if __package__ in (None, ""):  # run as a file: the source tree stands in for this folder
    sys.path[0] = str(Path(__file__).resolve().parent.parent)
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # equal products have equal bits

import torch

from benchmarks.gpu_parts import limits
from benchmarks.gpu_parts.part import Findings, Setting, read, run_part
from benchmarks.harness import RESULTS

FILE = "gpu.json"
_RESERVE = 20  # seconds kept for what a part does after its deadline


@dataclass(frozen=True)
class Part:
    """seconds: the least time worth beginning with."""

    question: str
    seconds: int


PARTS = {
    "probe": Part("What do host memory, link and device give at full size, apart and together?", 90),
    "pinned": Part("Does a kernel move rows of host memory as fast as the link allows?", 45),
    "kernels": Part("Are the kernels right on this device?", 60),
    "sync": Part("Does a step wait for the device? Is it the same as one graph?", 60),
    "lookup": Part("How fast are lookup and update, next to PyTorch, cuEmbed and FBGEMM?", 90),
    "layers": Part("How fast are the layers of models with histories, next to PyTorch's?", 45),
    "planning": Part("Is a batch planned faster by threads of the host or by the device?", 45),
    "micro": Part("What do micro-batches save in memory, and cost in time?", 45),
    "fields": Part("What do many fields cost at the same number of lookups?", 60),
    "ranks": Part("Do several GPUs train what processors train, and how fast do they exchange?", 120),
    "cache": Part("How fast is training when the device holds a tenth of the tables?", 150),
}


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
    deadline = time.monotonic() + 60 * args.minutes - _RESERVE
    setting = Setting(
        args.device, args.small, args.gigabytes, args.tune, args.out, args.cuembed, deadline
    )
    wrong = 0
    for name in args.parts:
        if setting.seconds_left < PARTS[name].seconds:
            need = PARTS[name].seconds
            print(f"{name}: {setting.seconds_left:.0f} s are left, {need} are needed: not begun")
        else:
            wrong += not _run(name, setting, path, args)
    return wrong


def _run(name: str, setting: Setting, path: Path | None, args) -> bool:
    """Runs a part unless it has run; whether all went well.

    What it leaves is freed: arms of `cache` are processes of their own that need all of the device.
    """
    findings = Findings(name, PARTS[name].question, setting, path, args.commit)
    earlier = {} if path is None or args.again else read(path).get(name, {})
    if earlier and findings.has_run(earlier):
        print(f"{name}: has run; --again runs it once more")
        return True
    if earlier:
        findings.go_on_from(earlier, args.keep_older)
    module = importlib.import_module(f"benchmarks.gpu_parts.{name}")
    well = run_part(findings, module.run)
    gc.collect()
    if setting.on_gpu:
        torch.cuda.empty_cache()
    return well


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
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--list", action="store_true", help="which parts have run")
    parser.add_argument("--page", action="store_true", help="put figures into docs/gpu.md")
    parser.add_argument("--again", action="store_true", help="run parts that have run")
    parser.add_argument("--keep-older", action="store_true", help="keep arms that other code measured")
    parser.add_argument("--minutes", type=float, default=9.5, help="for all of this run")
    parser.add_argument("--small", action="store_true", help="shrunk to seconds")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--gigabytes", type=float, default=80, help="of records, in `probe` and `cache`")
    parser.add_argument(
        "--tune", action="store_true", help="sweep launch constants, in `pinned`, `lookup`"
    )
    parser.add_argument("--cuembed", type=Path, help="a checkout of NVIDIA/cuEmbed, for `lookup`")
    parser.add_argument("--commit", help="of a source tree without its history")
    args = parser.parse_args(argv)
    if unknown := set(args.parts) - set(PARTS):
        parser.error(f"no part {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    if not (args.parts or args.list or args.page):
        parser.error(f"name the parts to run, in order: {', '.join(PARTS)}; or --list, or --page")
    if args.parts and args.out is None and not args.small:
        parser.error("say with --out OUT in which folder the results are to be kept")
    if args.device == "cpu" and not args.small and args.parts:
        parser.error("whole parts are for a GPU: --small --device cpu runs their logic")
    return args


if __name__ == "__main__":
    sys.exit(main())
