"""What arms share that train another library's model, plain or under `hotrows.accelerate`.

Rows that a step does not touch are caught up later, so a step alone says too little: an accelerated
arm trains a whole epoch and then brings every row up to date, and all of it counts.
"""

import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from pathlib import Path

from torch import nn
from torch.optim import Optimizer

from benchmarks import workload
from benchmarks.arms import arm

SOURCES = Path(__file__).parents[2] / "src"  # these environments do not have hotrows installed
WARM_UP = 3  # steps; the first ones capture the model's graph

Step = Callable[[int], float]


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--accelerate", action="store_true", help="by hotrows")
    parser.add_argument("--epoch-steps", type=int, default=500, help="of an accelerated arm")


def report(
    args: Namespace, step: Step, model: nn.Module, optimizer: Optimizer | list, *packages: str
) -> None:
    """Times a library's step on its model, and prints the figures."""
    if not args.accelerate:
        arm.report(args, step, *packages)
        return
    sys.path.append(str(SOURCES))
    import hotrows

    hotrows.accelerate(model, optimizer)
    losses = [step(k) for k in range(WARM_UP)]
    model._hotrows.catch_up()
    others, begin = workload.cpu_seconds_of_others(), time.perf_counter()
    losses += [step(WARM_UP + k) for k in range(args.epoch_steps)]
    trained = time.perf_counter()
    model._hotrows.catch_up()
    end = time.perf_counter()
    seconds = (end - begin) / args.epoch_steps
    busy = max(0.0, workload.cpu_seconds_of_others() - others) / (end - begin)
    timing = workload.Timing(seconds, seconds, seconds, busy)
    arm.print_figures(
        args, timing, losses, packages, peak_rss_mb=arm.peak_rss_mb(),
        step_ms=(trained - begin) / args.epoch_steps * 1e3, catch_up_seconds=end - trained,
        epoch_steps=args.epoch_steps,
    )  # fmt: skip
