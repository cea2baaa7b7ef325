"""Warnings that name the user's line: the one that called into hotrows, by however many functions."""

from __future__ import annotations

import sys
import warnings

_LIBRARIES = ("hotrows", "torch")


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Warns at the innermost line that is neither of hotrows nor of PyTorch."""
    frame = sys._getframe(1)
    while frame.f_back and frame.f_globals.get("__name__", "").partition(".")[0] in _LIBRARIES:
        frame = frame.f_back
    where, module = frame.f_globals, frame.f_globals.get("__name__")
    registry = where.setdefault("__warningregistry__", {})
    warnings.warn_explicit(message, category, frame.f_code.co_filename, frame.f_lineno, module, registry)
