"""Calls into the native core with NumPy arrays; the interpreter lock is released meanwhile."""

from __future__ import annotations

import ctypes
import os

import numpy as np


def call(library: ctypes.CDLL, name: str, *arguments) -> int:
    """Calls `hotrows_<name>`: arrays and bytes go as pointers, numbers as 64-bit integers."""
    function = getattr(library, f"hotrows_{name}")
    function.restype = ctypes.c_int64
    return function(*(_converted(argument) for argument in arguments))


def num_threads(asked: int | None) -> int:
    """How many threads to use: as many as asked for, else as the process may run on."""
    return max(1, asked) if asked is not None else len(os.sched_getaffinity(0))


def _converted(argument) -> ctypes.c_void_p | ctypes.c_int64:
    if isinstance(argument, np.ndarray):
        assert argument.flags.c_contiguous
        return ctypes.c_void_p(argument.ctypes.data)
    return ctypes.c_int64(argument)
