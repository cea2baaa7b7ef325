"""Damage to the files of a folder, by seed, and the claim that is held against it.

The claim: what reads a folder with a damaged file refuses it with a ValueError of one line that names a
file, or gives the bits of the whole folder. Where the damage is a forgery, other values under a right
checksum or in an edited file that has none, the result may be another one.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.fuzz.case import Broken, limited, outcome
from tests.fuzz.damage import damaged_json

SECONDS = 20.0  # that a trial may take


def trial(
    whole: Path, folder: Path, names: Sequence[str], read: Callable[[Path], Any], expected: Any, seed: str
) -> str:
    """Copies `whole` to `folder`, damages one of the files `names`, and holds the claim of
    `read(folder)`; returns "same", "refused" or "forged"."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(whole, folder, copy_function=shutil.copyfile)
    choose = random.Random(seed)
    name = choose.choice(names)
    how = damage(folder, name, [other for other in names if other != name], choose)
    try:
        with limited(SECONDS):
            anything = "" if how.startswith("forged") else folder.name  # what it forges may be legal
            kind, result = outcome(lambda: read(folder), anything, Path(name).name)
    except Broken as broken:
        raise Broken(f"seed {seed!r}, {name}: {how}: {broken}") from broken
    if kind == "refused":
        return kind
    if how.startswith("forged"):
        return "forged"
    if result != expected:
        raise Broken(f"seed {seed!r}, {name}: {how}: other results, without a word")
    return "same"


def damage(folder: Path, name: str, others: Sequence[str], choose: random.Random) -> str:
    """Damages a file; returns what was done. others: files that it may change places with."""
    path, is_json = folder / name, name.endswith(".json")
    content = path.read_bytes()
    kind = choose.choice(_JSON if is_json else _ANY)
    if kind is _swapped:
        others = [other for other in others if Path(other).suffix == path.suffix]
        if not others:
            kind = _byte
        else:
            other = folder / choose.choice(others)
            os.replace(path, folder / "aside")
            os.replace(other, path)
            os.replace(folder / "aside", other)
            return f"has changed places with {other.relative_to(folder)}"
    if choose.random() < 0.03:
        path.unlink()
        return "is missing"
    how, content = kind(content, path.name, choose)
    path.write_bytes(content)
    return how


def _digit(content: bytes, name: str, choose: random.Random) -> tuple[str, bytes]:
    """Another digit in place of one, as bad memory or a slip of an editor leaves it."""
    places = [i for i, byte in enumerate(content) if 48 <= byte <= 57]
    if not places:
        return _byte(content, name, choose)
    place = choose.choice(places)
    new = choose.choice([d for d in b"0123456789" if d != content[place]])
    return _put(content, place, bytes([new]))


def _byte(content: bytes, name: str, choose: random.Random) -> tuple[str, bytes]:
    if not content:
        return "one byte more", b"\0"
    place = choose.randrange(len(content))
    new = choose.choice([content[place] ^ 1 << choose.randrange(8), choose.randrange(256)])
    return _put(content, place, bytes([new]))


def _zeros(content: bytes, name: str, choose: random.Random) -> tuple[str, bytes]:
    place = choose.randrange(len(content) + 1)
    return _put(content, place, bytes(min(choose.choice([4, 64, 512, 4096]), len(content) - place)))


def _cut(content: bytes, name: str, choose: random.Random) -> tuple[str, bytes]:
    size = choose.choice([0, len(content) // 2, len(content) - 1, choose.randrange(len(content) + 1)])
    size = choose.choice([size, size // 4096 * 4096])
    return f"cut to {size} bytes", content[: max(size, 0)]


def _longer(content: bytes, name: str, choose: random.Random) -> tuple[str, bytes]:
    more = choose.choice([b"\0", b"\0" * 4096, content[:4096], content])
    return f"{len(more)} bytes more", content + more


def _moved(content: bytes, name: str, choose: random.Random) -> tuple[str, bytes]:
    """Some bytes of the file once more, over others."""
    size = min(choose.choice([1, 8, 64, 4096]), len(content))
    source, place = choose.randrange(len(content) - size + 1), choose.randrange(len(content) - size + 1)
    return _put(content, place, content[source : source + size])


def _swapped(content: bytes, name: str, choose: random.Random) -> tuple[str, bytes]:
    raise AssertionError("of two files")


def _value(content: bytes, name: str, choose: random.Random) -> tuple[str, bytes]:
    """Other values in an object, under the checksum of before."""
    fields = damaged_json(json.loads(content), choose)
    return f"values: {_shown(fields)}", json.dumps(fields).encode()


def _forged(content: bytes, name: str, choose: random.Random) -> tuple[str, bytes]:
    """Other values in an object, rightly signed, or without version and checksum, as in edited files."""
    fields = json.loads(content)
    fields.pop("crc32", None)
    key = "version" if "version" in fields else "format"
    version = fields.pop(key, 0)
    fields = damaged_json(fields, choose)
    if not isinstance(fields, dict):
        return "forged, no object", json.dumps(fields).encode()
    if choose.random() < 0.5:
        fields = {key: version, **fields}
        text = json.dumps(fields, sort_keys=True, separators=(",", ":"))
        fields["crc32"] = zlib.crc32(text.encode())
    return f"forged: {_shown(fields)}", json.dumps(fields).encode()


def _nested(content: bytes, name: str, choose: random.Random) -> tuple[str, bytes]:
    """What no file of JSON may hold."""
    odd = [
        b"[" * 100_000,
        b'{"a":' * 900 + b"1" + b"}" * 900,
        b"9" * 5000,
        b"\xff\xfe{}",
        b"[]",
        b"3",
        b"null",
    ]
    odd += [
        content.replace(b"{", b'{"step": 1180591620717411303424, ', 1),
        b'{"x": NaN}',
        b'{"format": 1e999}',
    ]
    odd += [content.replace(b"{", b'{"deep": ' + b"[" * 990 + b"]" * 990 + b", ", 1)]
    return "odd JSON", choose.choice(odd)


_ANY = (_byte, _byte, _digit, _zeros, _cut, _longer, _moved, _swapped)
_JSON = (
    _digit,
    _digit,
    _digit,
    _byte,
    _cut,
    _moved,
    _value,
    _forged,
    _forged,
    _forged,
    _nested,
    _swapped,
)


def _put(content: bytes, place: int, new: bytes) -> tuple[str, bytes]:
    how = f"byte {place}: {content[place : place + len(new)][:20]!r} is {new[:20]!r}"
    return how, content[:place] + new + content[place + len(new) :]


def _shown(fields: Any) -> str:
    return json.dumps(fields)[:400]
