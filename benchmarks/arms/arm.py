"""What every arm shares: its arguments, and the line of JSON it prints."""

import argparse
import json
import resource
import sys
from collections.abc import Callable, Iterable, Sequence
from importlib.metadata import version
from typing import Any

from benchmarks.workload import WORKLOADS, Timing, measure

MODELS = ("dlrm", "deepfm", "dcnv2", "lr", "mlp")
OPTIMIZERS = ("adagrad", "rowwise", "sgd", "adam")


def parse(**options: tuple[str, ...]) -> argparse.Namespace:
    """The arguments of all arms, and `options` of one: choices, the first of which is the default."""
    return finish(parser(**options).parse_args())


def parser(models: tuple[str, ...] = MODELS, **options: tuple[str, ...]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser()
    parser.add_argument("--workload", choices=WORKLOADS, default="A")
    parser.add_argument("--model", choices=models, default="dlrm")
    parser.add_argument("--optimizer", choices=OPTIMIZERS, default="adagrad")
    parser.add_argument("--precision", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--batch-size", type=int, help="default: the workload's")
    parser.add_argument("--embedding-only", action="store_true", help="leave out the model")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--windows", type=int, default=5, help="windows of time that are measured")
    parser.add_argument("--max-seconds", type=float, default=60, help="to wait for quiet windows")
    parser.add_argument("--warmup", type=float, default=5.0, help="seconds before the first window")
    for name, choices in options.items():
        parser.add_argument(f"--{name}", choices=choices, default=choices[0])
    return parser


def finish(args: argparse.Namespace) -> argparse.Namespace:
    """The workload itself for its name, and its batch size where none is given."""
    args.workload = WORKLOADS[args.workload]
    args.batch_size = args.batch_size or args.workload.batch_size
    return args


def report(args: argparse.Namespace, step: Callable[[int], float | None], *packages: str) -> None:
    """Times `step(k)`, which trains on one batch and returns its loss or None; prints figures."""
    losses = []
    timing = measure(
        lambda k: losses.append(step(k)),
        windows=args.windows,
        max_seconds=args.max_seconds,
        warmup_seconds=args.warmup,
    )
    print_figures(args, timing, losses, packages, peak_rss_mb=peak_rss_mb())


def print_figures(
    args: argparse.Namespace,
    timing: Timing,
    losses: Sequence[float | None],
    packages: Iterable[str],
    **more: Any,
) -> None:
    figures = {
        "samples_per_s": args.batch_size / timing.median,
        "ms": timing.median * 1e3,
        "ms_lowest": timing.lowest * 1e3,
        "ms_highest": timing.highest * 1e3,
        "other_cores": timing.other_cores,
        **more,
        "loss": [losses[0], losses[-1]],
        "versions": {package: version(package) for package in packages},
    }
    print(json.dumps(figures))


def peak_rss_mb() -> float:
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**20
