"""What a build of the native core has in common with the Python code that calls it: its functions."""

import hashlib
import re
from pathlib import Path

_FUNCTION = re.compile(rb"^HOTROWS_API\b[^{;]*", re.MULTILINE)


def interface_of(sources: Path) -> str:
    """A number that differs where the core in the folder of `sources` has functions of other arguments.

    `csrc/build.py` writes it beside each core, as NAME.id; `native.load` compares.
    """
    files = [path.read_bytes() for path in sorted(sources.glob("*.cpp"))]
    functions = sorted(b"".join(text.split()) for file in files for text in _FUNCTION.findall(file))
    return hashlib.sha256(b"\n".join(functions)).hexdigest()[:16]
