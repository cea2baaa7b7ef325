"""exclusive: one thread at a time reads, moves or steps rows, and what it makes may be kept.

Whoever reads rows makes the steps that they have missed, and stores the result: so a second thread that
evaluates writes, too. And a reader in `torch.inference_mode` would leave tensors behind that no later
step may change.

The threads of a look-ahead take no lock: they pause while one is held (`CachedTableGroup.paused`).
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import ParamSpec, TypeVar

import torch

P = ParamSpec("P")
R = TypeVar("R")

LOCK = threading.RLock()
CAPTURE = threading.RLock()  # of a model that nobody trains yet; its first step waits for it


def exclusive(function: Callable[P, R]) -> Callable[P, R]:
    """A function that runs on one thread at a time, outside of inference mode."""

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        with LOCK, keeping():
            return function(*args, **kwargs)

    return run


def keeping() -> AbstractContextManager:
    """Within, tensors are made that may be kept, and changed later: none of inference mode."""
    if not torch.is_inference_mode_enabled():
        return nullcontext()
    stack = ExitStack()
    stack.enter_context(torch.inference_mode(False))
    stack.enter_context(torch.no_grad())
    return stack
