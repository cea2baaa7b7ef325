"""Files with checksums: written and synced, read and verified, a chunk at a time."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import BinaryIO

from torch import Tensor

from hotrows.runtime import file_sums
from hotrows.runtime.file_sums import CHUNK, FileSum

REMEDY = "restore it from a copy, or train the run again"
check_size = partial(file_sums.check_size, remedy=REMEDY)
verify = partial(file_sums.verify, remedy=REMEDY)
damaged = partial(file_sums.damaged, remedy=REMEDY)


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


def chunks(memory: memoryview) -> Iterator[memoryview]:
    return (memory[first : first + CHUNK] for first in range(0, len(memory), CHUNK))


def bytes_of(tensor: Tensor) -> memoryview:
    """The memory of a contiguous tensor, without a copy."""
    return memoryview(tensor.view(-1).numpy()).cast("B")  # type: ignore[arg-type]
