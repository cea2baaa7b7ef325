"""File names for texts of any length and script, such as names of columns, on any file system."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from functools import lru_cache
from hashlib import sha256
from urllib.parse import quote

_LONGEST = 128  # bytes: with an ending below the 143 that encrypted file systems take
_RESERVED = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)( *|[ .].*)", re.IGNORECASE)  # on Windows


def file_name(text: str, texts: Iterable[str] = ()) -> str:
    """The name of a file for a text; texts: of all files in its folder, from which it differs also where
    case is ignored.

    clicks/item -> clicks%2Fitem    a text of 500 bytes -> 16 digits of a hash, a plus, its first 80
    """
    quoted = _quoted(text)
    is_unique = _counts(tuple(texts))[quoted.lower()] < 2
    if len(quoted) <= _LONGEST and is_unique and not _RESERVED.fullmatch(quoted):
        return quoted
    digits = sha256(text.encode(errors="surrogatepass")).hexdigest()[:16]
    return f"{digits}+{quoted[:80]}"  # no other name has a plus


def _quoted(text: str) -> str:
    return quote(text, safe=" ", errors="surrogatepass")


@lru_cache(8)
def _counts(texts: tuple[str, ...]) -> Counter[str]:
    return Counter(_quoted(text).lower() for text in texts)
