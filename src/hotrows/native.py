"""The native core: finding it, loading it, and saying so once where it is missing.

The core is a plain C library, built once per instruction set. The lowest one is loaded to ask the
processor what it can do, then the best one that it can run. Calls go through ctypes, which lets
other Python threads run meanwhile.
"""

from __future__ import annotations

import ctypes
import functools
import platform
import sys
import warnings
from pathlib import Path

_FOLDER = "_native"


@functools.cache
def load() -> ctypes.CDLL | None:
    """The native core, or None where it was not built; warns the first time it is missing."""
    if platform.machine() not in ("x86_64", "AMD64"):
        library = _open("core_base")
    else:
        library = _open("core_v2")
        if library is not None:
            library = _open(f"core_v{library.hotrows_cpu_level()}")
    if library is None:
        warnings.warn(
            "the native core was not built (no C++ compiler at installation?): hotrows runs on its "
            "reference ops, which are correct and slow; see docs/installation.md",
            RuntimeWarning,
            stacklevel=2,
        )
    return library


def name() -> str | None:
    """Which build of the core runs, for reports: `core_v4`, say, or None."""
    library = load()
    return None if library is None else Path(library._name).stem


def pointer(tensor) -> ctypes.c_void_p:
    """The address of a tensor's data, null for None."""
    return ctypes.c_void_p(None if tensor is None else tensor.data_ptr())


def _open(stem: str) -> ctypes.CDLL | None:
    for folder in sys.modules[
        "hotrows"
    ].__path__:  # two, where the package is installed to be edited
        path = Path(folder) / _FOLDER / f"{stem}.so"
        if path.exists():
            return ctypes.CDLL(str(path))
    return None
