"""FileSum: the size of a file and its checksum, by which damage is noticed before a file is used."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from pathlib import Path

CHUNK = 16 << 20  # bytes


@dataclass(frozen=True)
class FileSum:
    """The size of a file in bytes, and the crc32 of all of them."""

    bytes: int
    crc32: int


def sum_of(path: Path) -> FileSum:
    """Reads all of a file: its size and checksum."""
    size, checksum = 0, 0
    with open(path, "rb") as file:
        while chunk := file.read(CHUNK):
            checksum = zlib.crc32(chunk, checksum)
            size += len(chunk)
    return FileSum(size, checksum)


def check_size(path: Path, expected: FileSum, remedy: str) -> None:
    """Finds a missing or truncated file without reading it. remedy: what the message says to do."""
    if not path.is_file():
        raise damaged(path, "the file is missing", remedy)
    size = path.stat().st_size
    if size != expected.bytes:
        raise damaged(path, f"it has {size:,} bytes instead of {expected.bytes:,}", remedy)


def verify(path: Path, expected: FileSum, remedy: str) -> None:
    """Reads all of a file and compares its checksum."""
    check_size(path, expected, remedy)
    if sum_of(path).crc32 != expected.crc32:
        raise damaged(path, "its checksum is wrong", remedy)


def damaged(path: Path, why: str, remedy: str) -> ValueError:
    return ValueError(f"{path} is damaged: {why}; {remedy}")
