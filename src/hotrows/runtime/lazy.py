"""Lazy names: a package imports what it offers when a name is first used (PEP 562).

    __getattr__, __dir__ = lazy_names(__name__, {"hotrows.batch": ["Batch"]})

Importing the package then costs nothing. Type checkers read imports under `TYPE_CHECKING` beside it.
"""

from __future__ import annotations

import pkgutil
import sys
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from types import MappingProxyType
from typing import Any

from hotrows.runtime.moved import present_path


def lazy_names(
    package: str, names_of: Mapping[str, Iterable[str]] = MappingProxyType({})
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Returns the `__getattr__` and the `__dir__` of a package.

    names_of: public names by the module that has them. Modules of the package are reachable too.
    """
    module_of = {name: module for module, names in names_of.items() for name in names}

    def load(name: str) -> Any:
        this = sys.modules[package]
        if name in module_of:
            value = getattr(import_module(module_of[name]), name)
        elif not name.startswith("_") and (
            name in _modules(this.__path__) or present_path(f"{package}.{name}")
        ):
            value = import_module(f"{package}.{name}")
        else:
            raise AttributeError(f"module {package!r} has no attribute {name!r}", name=name, obj=this)
        setattr(this, name, value)
        return value

    def list_names() -> list[str]:
        this = sys.modules[package]
        special = (name for name in vars(this) if name.startswith("__"))
        return sorted({*special, *getattr(this, "__all__", ()), *_modules(this.__path__)})

    return load, list_names


def _modules(path: Iterable[str]) -> set[str]:
    """The modules in a package, but for private ones."""
    return {module.name for module in pkgutil.iter_modules(path) if module.name[0] != "_"}
