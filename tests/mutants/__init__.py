"""Small wrong changes, one at a time: do the nearest tests notice? `python -m tests.mutants --count 50`

A mutant is a source file with one place changed: another comparison, a constant that is off by one, a
branch that is swapped, a statement that is dropped. It is drawn by seed, of Python by its syntax tree
(`python_changes.py`) and of the core by its tokens (`core_changes.py`), and written into a copy of the
repository (`trial.py`), where the tests that are nearest to the file by name and imports (`nearest.py`)
run until one fails. A mutant that none of them kills either shows a test that is missing, or computes the
same: such a change is equivalent, and only a reader can tell.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.mutants import core_changes, python_changes

FOLDERS = ("src/hotrows", "csrc")
CHANGES = {".py": python_changes.changes, ".cpp": core_changes.changes, ".h": core_changes.changes}


@dataclass(frozen=True, order=True)
class Mutant:
    """path: of the file, in the repository. start, stop: of the bytes that `new` replaces."""

    path: str
    start: int
    stop: int
    new: str
    old: str
    line: int
    kind: str

    def applied(self, content: bytes) -> bytes:
        return content[: self.start] + self.new.encode() + content[self.stop :]

    def __str__(self) -> str:
        old, new = (" ".join(text.split()) for text in (self.old, self.new))
        return f"{self.path}:{self.line} {self.kind}: {old or 'nothing'} -> {new or 'nothing'}"


def mutants(root: Path, only: Iterable[str] = FOLDERS) -> set[Mutant]:
    """All mutants of some files, folders or lines (`PATH:LINE`) of a repository."""
    chosen = set()
    for place in only:
        path, _, line = place.partition(":")
        for file in _files(root / path):
            of_file = mutants_of(file.relative_to(root).as_posix(), file.read_bytes())
            chosen.update(mutant for mutant in of_file if not line or mutant.line == int(line))
    return chosen


def mutants_of(path: str, content: bytes) -> Iterator[Mutant]:
    for kind, start, stop, new in CHANGES[Path(path).suffix](content):
        line = content.count(b"\n", 0, start) + 1
        yield Mutant(path, start, stop, new, content[start:stop].decode(), line, kind)


def draw(choice: Iterable[Mutant], count: int, seed: int) -> list[Mutant]:
    """Draws so many, each kind of change as often as others while there are any; in order."""
    chance, kinds = random.Random(seed), defaultdict(list)
    for mutant in sorted(choice):
        kinds[mutant.kind].append(mutant)
    drawn: list[Mutant] = []
    while kinds and len(drawn) < count:
        kind = chance.choice(sorted(kinds))
        drawn.append(kinds[kind].pop(chance.randrange(len(kinds[kind]))))
        if not kinds[kind]:
            del kinds[kind]
    return sorted(drawn)


def _files(path: Path) -> list[Path]:
    if not path.exists():
        raise ValueError(
            f"no file or folder {path}; give paths in the repository, such as csrc/slots.cpp"
        )
    files = sorted(path.rglob("*")) if path.is_dir() else [path]
    return [file for file in files if file.suffix in CHANGES and file.name != "build.py"]
