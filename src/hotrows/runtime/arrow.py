"""`pa` is pyarrow, imported when a name of it is first used: what reads no tables starts without it.

>>> pa.array([1, 2]).type
DataType(int64)
>>> pa.compute.sum(pa.array([1, 2])).as_py()  # submodules are imported alike
3
"""

from __future__ import annotations

from importlib import import_module
from typing import Any


class _Late:
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # what `inspect` and `copy` look for in any object
            raise AttributeError(name)
        module = import_module("pyarrow")
        value = getattr(module, name) if hasattr(module, name) else import_module(f"pyarrow.{name}")
        setattr(self, name, value)
        return value


pa: Any = _Late()
