"""The tests that are nearest to a source file: by names and by imports, without running anything."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path

NUM_FILES = 5


class Nearest:
    """The test files of a repository, by how many imports lie between them and a source file."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.modules: dict[str, str] = {}  # path by name
        for folder, package in (("src", "hotrows"), ("", "tests")):
            for path in sorted((root / folder / package).rglob("*.py")):
                parts = path.relative_to(root / folder).with_suffix("").parts
                name = ".".join(part for part in parts if part != "__init__")
                self.modules[name] = path.relative_to(root).as_posix()
        self.importers: dict[str, set[str]] = defaultdict(set)
        for name, file in self.modules.items():
            if name == "hotrows":
                continue  # it offers names of everywhere
            for imported in _imports((root / file).read_text()):
                self.importers[imported].add(name)

    def tests(self, path: str, number: int = NUM_FILES) -> list[str]:
        """The test files nearest to a source file, the nearest first."""
        sources = self._callers(path) if path.startswith("csrc") else [path]
        words = set(re.split(r"[_/]", Path(path).with_suffix("").as_posix())) - {"src", "hotrows", "csrc"}
        distances = self._distances(sources)

        def rank(test: str) -> tuple[float, str]:
            shared = words & set(re.split(r"[_/]", test.removesuffix(".py")))
            is_beside = Path(test).parent.name == Path(path).parent.name
            is_named = Path(test).stem == f"test_{Path(path).stem}"
            return distances[test] - 0.7 * len(shared) - 0.5 * (is_beside + is_named), test

        tests = [test for test in distances if Path(test).name.startswith("test_")]
        return sorted(tests, key=rank)[:number]

    def _distances(self, sources: list[str]) -> dict[str, int]:
        names = {path: name for name, path in self.modules.items()}
        distances, layer, distance = dict.fromkeys(sources, 0), sources, 0
        while layer:
            distance += 1
            above = {self.modules[name] for path in layer for name in self.importers[names[path]]}
            layer = sorted(above - set(distances))
            distances |= dict.fromkeys(layer, distance)
        return distances

    def _callers(self, path: str) -> list[str]:
        """The modules that call a function of a file of the core, or of a file that includes it."""
        files = [self.root / path]
        for file in files:  # which grows
            text = f'#include "{file.name}"'
            above = (other for other in sorted(file.parent.iterdir()) if other.suffix in (".h", ".cpp"))
            files += [other for other in above if other not in files and text in other.read_text()]
        code = "".join(file.read_text() for file in files if file.suffix == ".cpp")
        functions = set(re.findall(r"\bhotrows_\w+(?=\()", code))
        sources = [file for file in self.modules.values() if file.startswith("src")]
        return [file for file in sources if _calls((self.root / file).read_text(), functions)]


def _calls(text: str, functions: set[str]) -> bool:
    """Whether a text has the name of a function, with `hotrows_` or without, or its beginning."""
    words = set(re.findall(r"\w+", text))
    beginnings = tuple(word for word in words if re.fullmatch(r"hotrows_\w+_", word))
    names = functions | {name.removeprefix("hotrows_") for name in functions}
    return not words.isdisjoint(names) or any(name.startswith(beginnings) for name in functions)


def _imports(text: str) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return names
