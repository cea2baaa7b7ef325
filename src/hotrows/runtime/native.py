"""The native core: found, loaded and called.

The core is a plain C library, built once per instruction set. The lowest build is loaded first; it
reports what the processor supports, and the best build for it is loaded next. Calls go through
ctypes, which lets other Python threads run meanwhile. PyTorch is imported by callers that have tensors:
encoders and bundles work without it.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import os
import platform
import sys
import weakref
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hotrows.runtime.native_interface import interface_of

if TYPE_CHECKING:
    import torch
    from torch import Tensor

_FOLDER = "_native"
_AS_THEY_ARE = (ctypes.c_float, ctypes.c_double, ctypes.c_void_p, ctypes.Array, bytes)


@functools.cache
def load() -> ctypes.CDLL:
    """The native core; ImportError where the installation has none.

    HOTROWS_CHECKED_CORE names another build of it, such as that of `python csrc/build.py --checks`.
    From then on a forked child may compute, too: see `hotrows_survive_forks`.
    """
    _load_openmp()
    library: ctypes.CDLL | None
    if path := os.environ.get("HOTROWS_CHECKED_CORE"):
        library = ctypes.CDLL(path)
    elif platform.machine() not in ("x86_64", "AMD64"):
        library = _open("core_base")
    else:
        library = _open("core_v2")
        if library is not None:
            best = library.hotrows_cpu_level()  # may be missing, if built on another machine
            built = (_open(f"core_v{level}") for level in range(best, 2, -1))
            library = next((library for library in built if library is not None), library)
    if library is None:
        raise ImportError(
            f"hotrows has no native core for this machine ({platform.machine()}): install it again where "
            f"there is a C++ compiler, or run `python csrc/build.py` in a source tree"
        )
    _check_interface(Path(library._name))
    library.hotrows_survive_forks()
    return library


def codes(kind: str, *names: str) -> dict[str, int]:
    """The number of each name that Python passes to the core: of row optimizers, of fields of records, ..

    names: in the order of Python. ImportError where the core has other names, or another order: it would
    compute with other rules, or read other fields.
    """
    reported = _reported_codes().get(kind, ())
    if reported != names:
        raise ImportError(
            f"the native core was built from other sources than this Python code: {kind} is "
            f"{' '.join(reported) or 'missing'} there and {' '.join(names)} here; install hotrows again, "
            f"or run `python csrc/build.py` in a source tree"
        )
    return {name: code for code, name in enumerate(names)}


@functools.cache
def _reported_codes() -> dict[str, tuple[str, ...]]:
    report = load().hotrows_codes
    report.restype = ctypes.c_char_p
    lines = (line.split() for line in report().decode().splitlines())
    return {kind: tuple(names) for kind, *names in lines}


def name() -> str:
    """The name of the build of the core that runs, such as `core_v4`; for reports."""
    return Path(load()._name).stem


def takes(*tensors: Tensor | None, dtypes: Collection[torch.dtype] | None = None) -> bool:
    """True if the core can compute on these tensors: on the CPU, of `dtypes` (default: float32), in no
    compiled graph."""
    import torch

    if torch.compiler.is_compiling():
        return False
    dtypes = (torch.float32,) if dtypes is None else dtypes
    return all(t is None or (t.device.type == "cpu" and t.dtype in dtypes) for t in tensors)


def _check_interface(core: Path) -> None:
    """Raises ImportError for a core that `csrc/build.py` built from functions that are others now: their
    arguments would be misread."""
    built, sources = core.with_suffix(".id"), core.parent.parent.parent.parent / "csrc"
    if built.exists() and sources.is_dir() and built.read_text() != interface_of(sources):
        raise ImportError(
            f"the native core {core} was built from other sources than those in {sources}: run "
            f"`python csrc/build.py`"
        )


def _load_openmp() -> None:
    """Loads PyTorch's libgomp without PyTorch: one team of threads, also where the system has none."""
    torch = importlib.util.find_spec("torch")
    for folder in (torch and torch.submodule_search_locations) or ():
        path = Path(folder) / "lib" / "libgomp.so.1"
        if path.exists():
            ctypes.CDLL(str(path))


def _open(stem: str) -> ctypes.CDLL | None:
    for folder in sys.modules["hotrows"].__path__:  # two in an editable installation
        path = Path(folder) / _FOLDER / f"{stem}.so"
        if path.exists():
            return ctypes.CDLL(str(path))
    return None


def call(name: str, *arguments: Any) -> int:
    """Calls `hotrows_<name>`: tensors, arrays and None go as pointers, whole numbers as int64.

    Fractions are of types that the caller names: `c_float` or `c_double`.
    """
    return _function(name)(*map(_converted, arguments))


def _function(name: str) -> Any:
    function = getattr(load(), f"hotrows_{name}")
    function.restype = ctypes.c_int64
    return function


class Object:
    """An object of the core, made by `hotrows_<kind>_new` and freed with this; false where the core could
    not make it."""

    def __init__(self, kind: str, *arguments: Any) -> None:
        make, free = (getattr(load(), f"hotrows_{kind}_{name}") for name in ("new", "free"))
        make.restype = ctypes.c_void_p
        self.handle = ctypes.c_void_p(make(*map(_converted, arguments)))
        self._function = functools.cache(lambda name: _function(f"{kind}_{name}"))
        weakref.finalize(self, free, self.handle).atexit = False

    def __bool__(self) -> bool:
        return bool(self.handle)

    def call(self, name: str, *arguments: Any) -> int:
        """Calls `hotrows_<kind>_<name>` with the object and the arguments; see `call`."""
        return self._function(name)(self.handle, *map(_converted, arguments))


def _converted(argument: Any) -> Any:
    if argument is None or isinstance(argument, _AS_THEY_ARE):
        return argument
    if hasattr(argument, "data_ptr"):  # a tensor
        is_size = argument.dim() == 0 and _is_tracing()  # sizes are tensors under torch.jit.trace
        return ctypes.c_int64(argument) if is_size else ctypes.c_void_p(argument.data_ptr())
    if isinstance(argument, np.ndarray):
        if not argument.flags.c_contiguous:
            raise ValueError("the native core takes arrays whose elements lie side by side")
        return ctypes.c_void_p(argument.ctypes.data)
    return ctypes.c_int64(argument)


def _is_tracing() -> bool:
    import torch

    return torch.jit.is_tracing()
