"""Damage to bytes and to JSON."""

from __future__ import annotations

import copy
import json
import math
import random
from collections.abc import Iterator
from typing import Any

NONSENSE: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2, 64, -64, 0.5, -0.0, 1e300, 1 << 31, 1 << 40, 1 << 63, 1 << 70, "",
    "x", "\0", "a\nb", "é", "<f4", "|O", "../data.json", [], {}, [0], [-1], [[1]], [1 << 40, 1 << 40],
    ["x"], {"x": 1}, "label", "n0", "s0", "unix", "%Y", "dense", math.nan, math.inf,
)  # fmt: skip
TOKENS = [
    b'"', b'""', b"\r", b"\r\n", b"\n", b"\n\n", b"\0", b",", b"\t", b"|", b";", b" ", b"\xef\xbb\xbf",
    b"\xff",
    b"\x1f\x8b", b"PAR1", b"\x28\xb5\x2f\xfd", b"-", b"9" * 30, b"e999", b"nan", b"x" * 3000,
    b"\xe2\x80\xa8", b"\x1a", b"\x85",
]  # fmt: skip


def damaged(content: bytes, choose: random.Random, tokens: list[bytes], most: int = 3) -> bytes:
    """The bytes with up to `most` kinds of damage."""
    content_bytes = bytearray(content)
    for _ in range(choose.randint(1, most)):
        start = choose.randrange(len(content_bytes) + 1)
        end = min(len(content_bytes), start + choose.choice([1, 2, 4, 20, 200]))
        kind = choose.randrange(8)
        if kind == 0 and start < len(content_bytes):
            content_bytes[start] ^= 1 << choose.randrange(8)
        elif kind == 1:
            content_bytes[start:start] = choose.choice(tokens)
        elif kind == 2:
            del content_bytes[start:end]
        elif kind == 3:
            content_bytes[start:start] = content_bytes[start:end] * choose.choice([1, 1, 50])
        elif kind == 4 and choose.random() < 0.3:
            del content_bytes[start:]
        elif kind == 5:
            other = choose.randrange(len(content_bytes) + 1)
            content_bytes[start:start] = content_bytes[other : other + choose.choice([4, 40, 400])]
        elif kind == 6:
            content_bytes[start:end] = choose.randbytes(end - start)
        elif start < len(content_bytes):
            content_bytes[start : start + 1] = choose.choice(tokens)
    return bytes(content_bytes)


def damaged_json(value: Any, choose: random.Random, most: int = 2) -> Any:
    """The value with up to `most` of its parts replaced, removed, renamed, doubled or swapped."""
    root = [json.loads(json.dumps(value))]
    for _ in range(choose.randint(1, most)):
        places = list(_places(root))
        parent, key = choose.choice(places)
        kind = choose.randrange(6)
        if kind <= 1:
            parent[key] = copy.deepcopy(choose.choice(NONSENSE))
        elif kind == 2 and parent is not root:
            del parent[key]
        elif kind == 3:
            other, where = choose.choice(places)
            parent[key] = json.loads(json.dumps(other[where]))
        elif kind == 4 and isinstance(parent, dict):
            parent[choose.choice(["x", "name", *parent])] = parent.pop(key)
        elif kind == 4 and parent is not root:
            parent.insert(key, json.loads(json.dumps(parent[key])))
        elif isinstance(parent[key], bool | int | float):
            parent[key] = choose.choice(
                [parent[key] + 1, parent[key] - 1, -parent[key], float(parent[key]), 1 << 40]
            )
        else:
            parent[key] = choose.choice([[parent[key]], {"x": parent[key]}, str(parent[key])])
    return root[0]


def _places(parent: Any) -> Iterator[tuple[Any, Any]]:
    keys = list(parent) if isinstance(parent, dict) else range(len(parent))
    for key in keys:
        yield parent, key
        if isinstance(parent[key], dict | list):
            yield from _places(parent[key])


def as_json(value: Any, choose: random.Random) -> bytes:
    """The text of a value, itself damaged now and then."""
    text = json.dumps(value).encode()
    odd = [b"", b"{}", b"[]", b"null", b"3", b"[" * 100_000, b'"\\ud800"', b"\xff", b"9" * 5000]
    if choose.random() < 0.05:
        return choose.choice(odd)
    return damaged(text, choose, [b"{", b"}", b"1e999", b"\xff"], 1) if choose.random() < 0.1 else text
