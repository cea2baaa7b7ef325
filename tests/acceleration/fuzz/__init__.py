"""A fuzzer of `hotrows.accelerate`: `python -m tests.acceleration.fuzz --seconds 600 [--seed N]`.

The claim: whatever a model is made of, and whatever its training loop does, the accelerated loop shows
what the plain one shows (outputs, losses, gradients, weights, states of the optimizer) to rounding, or
says in one of its own messages what it refuses. It never differs silently, crashes, hangs, or warns of
what plain PyTorch would not.

A case is made of its seed alone: the text of a model, an optimizer, and what happens at each step.
Numbers are float64; where an optimizer divides by a root of gradients, its eps is large enough that
rounding stays rounding.
"""

from __future__ import annotations

import itertools
import random
import warnings
from dataclasses import dataclass
from typing import Any

import torch

from tests.acceleration.fuzz.loops import HOST, Loop, Run, go, loop_of, start
from tests.acceleration.fuzz.models import Model, model_of
from tests.fuzz.case import Broken, Hang, limited

CASE_SECONDS = 120.0
RTOL = 1e-8

_LOST = "are None now: they held a multiple of the weights"  # a warning, behind which runs differ
REFUSALS = (
    "which is no more: read it before the step",
    "got the squares of a whole table where plain PyTorch would have",
    "marked with @once_differentiable",
    _LOST,
    "with ids that were changed in place since the forward pass",
    "have different metadata than during the forward pass",  # the same, of more or fewer distinct ids
    "by an inplace operation: [torch.LongTensor",  # ids again, of a checkpoint in a captured graph
)
LENIENT = (  # errors of plain PyTorch that an accelerated run need not have
    "parse",  # "Sparse" or "sparse": an operation that sparse gradients do not have
    "requires coalesced input",
    "When use_reentrant=True",  # a captured checkpoint is not run again, so it has no such limit
    "modified by an inplace operation",
    "is a view and its base or another view of its base has been modified inplace",
    "a view of a leaf Variable",
    "too many indices for tensor of dimension 0",
    "but got NoneType",  # fused SGD, of a momentum that one parameter has and another has not
    "view size is not compatible",  # of a gradient that plain PyTorch lays out by columns
)
OF_THE_DEVICE = (  # errors of a loop that is made for the host, or that a pretended device cannot run
    "a tensor in host memory among those of the device",
    "a tensor of the device has no address on the host",
    "is not supported for tensor subclasses",
    "_share_fd_: only available on CPU",
    "Not available for 'meta' device type",
    "module 'torch._C' has no attribute '_cuda_getCurrentStream'",
    "Cannot access storage of SparseTensorImpl",
    "Cannot set version_counter for inference tensor",
    "on meta tensors",
    "device type 'meta'",
    "from the 'CUDA' backend",
)


@dataclass(frozen=True)
class Case:
    model: Model
    loop: Loop


@dataclass(frozen=True)
class Outcome:
    """What a run showed. error: what it ended with, if it did. warnings: their first words."""

    seen: list[tuple[str, Any]]
    error: Exception | None
    warnings: frozenset[str]


def case_of(seed: int, packing: bool | None = None) -> Case:
    draw = random.Random(f"accelerate {seed}")
    model = model_of(draw)
    packs = draw.random() < 0.25
    return Case(model, loop_of(draw, model, packs if packing is None else packing))


def runs_on_device(case: Case) -> bool:
    """Whether a pretended device has what the loop does: its tensors take no other's memory over."""
    done = {name for step in case.loop.steps for name, _ in (*step.after, *step.then)}
    return not any("data" in name for name in done)


def check(case: Case, place: torch.device = HOST) -> None:
    """Raises Broken where the claim does not hold. place: where the accelerated loop runs."""
    try:
        with limited(CASE_SECONDS):
            plain, fast = outcome(case, False), outcome(case, True, place)
    except Hang:
        raise Broken(f"took more than {CASE_SECONDS:.0f} seconds") from None
    _compare(plain, fast, REFUSALS if place == HOST else (*REFUSALS, *OF_THE_DEVICE))


def outcome(case: Case, accelerated: bool, place: torch.device = HOST) -> Outcome:
    """One run of a case, from the beginning."""
    torch._dynamo.reset()
    run: Run | None = None
    error = None
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warnings.filterwarnings("error", f".*{_LOST}")
        try:
            run = start(case.model, case.loop, accelerated, place)
            go(run)
        except Exception as raised:  # what it is, the comparison says
            error = raised
        finally:
            torch.set_num_threads(1)
            for handle in run.handles if run else ():
                handle.remove()
    said = frozenset(str(warning.message)[:80] for warning in caught)
    return Outcome(run.seen if run else [], error, said)


def _compare(plain: Outcome, fast: Outcome, refusals: tuple[str, ...]) -> None:
    shown = list(fast.seen)
    while fast.error is not None and shown and shown[-1][0] == "hook":
        shown.pop()  # of a backward pass that ended among its hooks, in its own order
    pairs = zip(_hooks_by_shape(plain.seen), _hooks_by_shape(shown), strict=False)
    for place, ((what, expected), (also, actual)) in enumerate(pairs):
        if what != also:
            raise Broken(f"thing {place} is {also}, not {what}")
        differences = list(_differences(expected, actual, what))
        if differences:
            raise Broken(f"differs at thing {place}: {differences[0]}")
        if what == "loss" and bool(torch.as_tensor(expected).isnan().any()):
            return  # what rows become of it is of no use to anybody
    ours, theirs = fast.error, plain.error
    if ours is not None and any(words in str(ours) for words in refusals):
        return
    if type(ours) is type(theirs) or any(words in str(theirs) for words in LENIENT):
        pass
    else:
        raise Broken(f"raised {_said(ours)} where plain PyTorch raised {_said(theirs)}")
    if ours is None and theirs is None and len(plain.seen) != len(fast.seen):
        raise Broken(f"showed {len(fast.seen)} things, not {len(plain.seen)}")
    more = fast.warnings - plain.warnings
    if more and ours is None and theirs is None:  # a run that ended early has warned of less
        raise Broken(f"warned: {sorted(more)[0]}")


def _hooks_by_shape(seen: list[tuple[str, Any]]) -> list[tuple[str, Any]]:
    """What was seen, with the hooks that fired one after the other by the shape of what they got: tables
    of a pack get their gradients together, and PyTorch promises no order."""
    ordered: list[tuple[str, Any]] = []
    for is_hook, group in itertools.groupby(seen, lambda pair: pair[0] == "hook"):
        fired = list(group)
        ordered += sorted(fired, key=lambda pair: list(pair[1].shape)) if is_hook else fired
    return ordered


def _said(error: Exception | None) -> str:
    if error is None:
        return "nothing"
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    where = (
        f" ({frame.tb_frame.f_code.co_filename.rsplit('/', 1)[-1]}:{frame.tb_lineno})" if frame else ""
    )
    return f"{type(error).__name__}{where}: {' '.join(str(error).split())[:300]}"


def _differences(expected: Any, actual: Any, where: str) -> Any:
    if isinstance(expected, torch.Tensor) and isinstance(actual, torch.Tensor):
        if expected.shape != actual.shape or expected.dtype != actual.dtype:
            yield (
                f"{where} is {actual.dtype} {list(actual.shape)}, "
                f"not {expected.dtype} {list(expected.shape)}"
            )
        elif expected.is_floating_point():
            scale = float(expected.nan_to_num().abs().max()) if expected.numel() else 0.0
            tolerance = max(RTOL, 8 * torch.finfo(expected.dtype).eps) * max(scale, 1e-2)
            if not torch.allclose(actual, expected, rtol=0, atol=tolerance, equal_nan=True):
                yield f"{where}: {float((actual - expected).abs().max()):.3g} off of {scale:.3g}"
        elif not torch.equal(expected, actual):
            yield f"{where} differs"
    elif type(expected) is not type(actual):
        yield f"{where} is {type(actual).__name__}, not {type(expected).__name__}"
    elif isinstance(expected, dict):
        if set(expected) != set(actual):
            yield f"{where} has {sorted(map(str, set(actual) ^ set(expected)))} in one of them"
            return
        for name in expected:
            yield from _differences(expected[name], actual[name], f"{where}.{name}")
    elif isinstance(expected, list):
        if len(expected) != len(actual):
            yield f"{where} has {len(actual)} values, not {len(expected)}"
            return
        if expected and all(isinstance(one, float) for one in (*expected, *actual)):
            yield from _differences(torch.tensor(expected), torch.tensor(actual), where)  # of one scale
            return
        for place, (one, other) in enumerate(zip(expected, actual, strict=True)):
            yield from _differences(one, other, f"{where}[{place}]")
    elif isinstance(expected, float):
        if abs(expected - actual) > RTOL * max(abs(expected), 1e-2):
            yield f"{where} is {actual}, not {expected}"
    elif expected != actual and not callable(expected):
        yield f"{where} is {actual}, not {expected}"
