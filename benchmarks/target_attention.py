"""What does target attention in one function gain, next to its layers one after the other?

    python -m benchmarks.target_attention            # results/target_attention.json

Steps of DIN and DIEN (batches of 2,048 samples with 100 clicks each, dim 16, attention 80-40 with sigmoid
and softmax) and the attention alone (2,048 lists of 50 keys). Both forms take turns in one process; a
ratio is the median over pairs. Seconds are of the clock, and of the processor, which other programs
disturb less. Memory is what a process of its own holds at most beyond what it held before its first step.
"""

import argparse
import ctypes
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from unittest import mock

import numpy as np
import torch

import hotrows
from benchmarks.arms.hotrows_models import batch_of, build, embedding_of, training_step
from benchmarks.harness import conditions, write
from benchmarks.samples import Features, Samples
from benchmarks.sequences import ATTENTION, HIDDEN
from hotrows.models.nn import TargetAttention, choose_linear_paths, use_linear_paths
from hotrows.runtime import native

FORMS = ("layers", "one function")
FEATURES = Features({"user": 100_000, "item": 400_000}, num_dense=4, target="item", max_length=100)
LENGTH, BATCH_SIZE, DIM = 100, 2048, 16
OPTIONS = {"attention": ATTENTION, "hidden": HIDDEN, "activation": "relu"}
MODELS = {
    "din": OPTIONS | {"form": "paper", "attention_activation": "sigmoid", "normalize": True},
    "dien": OPTIONS | {"auxiliary": 0.0},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--memory", nargs=2, metavar=("MODEL", "FORM"), help="of one process, on stdout")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    if args.memory:
        print(_memory(*args.memory))
        return
    native.load().hotrows_keep_freed_memory()
    figures = {f"attention {name}": _compare(run, args.rounds) for name, run in _alone().items()}
    for model in MODELS:
        figures[f"step of {model}"] = row = _compare(_step(model), args.rounds)
        for form in FORMS:
            command = [sys.executable, "-m", "benchmarks.target_attention", "--memory", model, form]
            row[f"{form}, MB"] = float(subprocess.check_output(command, text=True)) / 1e6
        print(f"step of {model}: {json.dumps(row)}", flush=True)
    write(
        "target_attention",
        {"question": __doc__.splitlines()[0], **conditions(args.threads), "runs": figures},
    )


def _compare(run: Callable[[], object], rounds: int) -> dict[str, float]:
    """Milliseconds of both forms, and how many times as fast the second is."""
    times: dict[str, list[tuple[float, float]]] = {form: [] for form in FORMS}
    for number in range(-2, rounds):
        for form in FORMS if number % 2 else FORMS[::-1]:
            with _form(form):
                begin = time.perf_counter(), time.process_time()
                run()
                spent = time.perf_counter() - begin[0], time.process_time() - begin[1]
            if number >= 0:
                times[form].append(spent)
    row: dict[str, float] = {}
    for place, clock in enumerate(("clock", "processor")):
        seconds = {form: [spent[place] for spent in times[form]] for form in FORMS}
        row |= {f"{form}, ms of {clock}": 1e3 * median(values) for form, values in seconds.items()}
        row[f"times as fast by {clock}"] = median(a / b for a, b in zip(*seconds.values(), strict=True))
    return row


def _form(form: str) -> mock._patch:
    """Lets the attention run in one form."""
    at_once = TargetAttention._is_one_function if form == FORMS[1] else lambda *inputs: False
    return mock.patch.object(TargetAttention, "_is_one_function", at_once)


def _alone() -> dict[str, Callable[[], object]]:
    layer = TargetAttention(DIM, ATTENTION)
    use_linear_paths(layer, choose_linear_paths(layer))
    queries, keys = torch.randn(BATCH_SIZE, DIM), torch.randn(BATCH_SIZE * 50, DIM)
    inputs = queries.requires_grad_(), keys.requires_grad_(), torch.arange(BATCH_SIZE + 1) * 50

    def forward() -> torch.Tensor:
        with torch.no_grad():
            return layer(*inputs)

    return {"forward": forward, "forward and backward": lambda: layer(*inputs).sum().backward()}


def _step(name: str) -> Callable[[], object]:
    rng = np.random.default_rng(0)
    offsets = np.arange(BATCH_SIZE + 1) * LENGTH
    data = [
        batch_of(
            FEATURES,
            Samples(
                np.stack([rng.integers(0, rows, BATCH_SIZE) for rows in FEATURES.rows.values()]),
                rng.standard_normal((BATCH_SIZE, FEATURES.num_dense)).astype(np.float32),
                (rng.random(BATCH_SIZE) < 0.25).astype(np.float32),
                rng.integers(0, FEATURES.rows["item"], BATCH_SIZE * LENGTH),
                offsets,
            ),
        )
        for _ in range(4)
    ]
    torch.manual_seed(0)
    model = build(name, FEATURES, DIM, **MODELS[name])
    use_linear_paths(model, choose_linear_paths(model))
    step = training_step(model, embedding_of(model, FEATURES, hotrows.Adagrad()), data)
    return lambda: step(0)


def _memory(model: str, form: str) -> int:
    step = _step(model)
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = _bytes_of("VmRSS")
    with _form(form):
        for _ in range(3):
            step()
    return _bytes_of("VmHWM") - before


def _bytes_of(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


if __name__ == "__main__":
    main()
