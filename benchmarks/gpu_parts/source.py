"""Which code was measured: one hash over the sources, also of a tree without its history."""

import functools
import hashlib
import os
from pathlib import Path

from benchmarks.harness import ROOT

_FOLDERS = ("src", "csrc", "benchmarks")
_ENDINGS = (".py", ".cpp", ".h", ".hpp", ".cu")


@functools.cache
def source_hash(root: Path = ROOT) -> str:
    """16 hexadecimal digits: of the names and bytes of all sources in src, csrc and benchmarks."""
    digest = hashlib.sha256()
    for path in sorted(_sources(root)):
        digest.update(f"{path.relative_to(root).as_posix()}\0{path.stat().st_size}\0".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _sources(root: Path) -> list[Path]:
    found = []
    for folder in _FOLDERS:
        for place, below, names in os.walk(root / folder):
            below[:] = [name for name in below if not name.startswith((".", "__pycache__"))]
            found += [Path(place) / name for name in names if name.endswith(_ENDINGS)]
    return found
