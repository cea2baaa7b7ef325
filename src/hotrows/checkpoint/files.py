"""Files with checksums: written and synced, read and verified, a chunk at a time."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from torch import Tensor

CHUNK = 16 << 20  # bytes
REMEDY = "restore it from a copy, or train the run again"


@dataclass(frozen=True)
class FileSum:
    """The size of a file in bytes, and the crc32 of all of them, as in a manifest."""

    bytes: int
    crc32: int


def write_file(path: Path, parts: Iterable[bytes | memoryview]) -> FileSum:
    """Writes and syncs a file."""
    size, checksum = 0, 0
    with open(path, "wb") as file:
        for part in parts:
            for chunk in chunks(memoryview(part)):
                file.write(chunk)
                checksum = zlib.crc32(chunk, checksum)
                size += len(chunk)
        file.flush()
        os.fsync(file.fileno())
    return FileSum(size, checksum)


def read_file(path: Path, expected: FileSum) -> bytes:
    """The content of a small file, verified."""
    content = path.read_bytes()
    if zlib.crc32(content) != expected.crc32:
        raise damaged(path, "its checksum is wrong")
    return content


def read_into(file: BinaryIO, target: memoryview, checksum: int) -> int:
    """Fills `target` from the file's position on; returns `checksum` continued by these bytes."""
    for chunk in chunks(target):
        if file.readinto(chunk) != len(chunk):  # type: ignore[attr-defined]
            raise damaged(Path(file.name), "it ends early")
        checksum = zlib.crc32(chunk, checksum)
    return checksum


def check_size(path: Path, expected: FileSum) -> None:
    """Finds a missing or truncated file without reading it."""
    if not path.exists():
        raise damaged(path, "the file is missing")
    size = path.stat().st_size
    if size != expected.bytes:
        raise damaged(path, f"it has {size:,} bytes instead of {expected.bytes:,}")


def verify(path: Path, expected: FileSum) -> None:
    """Reads all of a file and compares its checksum."""
    check_size(path, expected)
    if sum_of(path).crc32 != expected.crc32:
        raise damaged(path, "its checksum is wrong")


def sum_of(path: Path) -> FileSum:
    """Reads all of a file: its size and checksum."""
    size, checksum = 0, 0
    with open(path, "rb") as file:
        while chunk := file.read(CHUNK):
            checksum = zlib.crc32(chunk, checksum)
            size += len(chunk)
    return FileSum(size, checksum)


def chunks(memory: memoryview) -> Iterator[memoryview]:
    return (memory[first : first + CHUNK] for first in range(0, len(memory), CHUNK))


def bytes_of(tensor: Tensor) -> memoryview:
    """The memory of a contiguous tensor, without a copy."""
    return memoryview(tensor.view(-1).numpy()).cast("B")  # type: ignore[arg-type]


def damaged(path: Path, why: str) -> ValueError:
    return ValueError(f"{path} is damaged: {why}; {REMEDY}")
