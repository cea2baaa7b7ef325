"""Empty stand-ins for packages that a library imports but that none of the measured models uses."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType


class _Empty(ModuleType):
    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        kind = type(name, (), {"__module__": self.__name__})
        setattr(self, name, kind)
        return kind


class _StandIns(MetaPathFinder, Loader):
    def __init__(self, packages: tuple[str, ...]) -> None:
        self.packages = packages

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        inside = any(name == package or name.startswith(package + ".") for package in self.packages)
        return ModuleSpec(name, self, is_package=True) if inside else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = _Empty(spec.name)
        module.__path__ = []
        return module

    def exec_module(self, module: ModuleType) -> None:
        pass


def stand_in(*packages: str, always: bool = False) -> None:
    """Lets the missing ones of these packages (or all) be imported, with a class for every name."""
    missing = tuple(name for name in packages if always or find_spec(name) is None)
    sys.meta_path.insert(0, _StandIns(missing))
