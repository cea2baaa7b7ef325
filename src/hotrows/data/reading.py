"""Raw files as chunks of whole lines: plain or gzip, read ahead on a thread, in bounded memory."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

CHUNK_BYTES = 8 << 20
MAX_BYTES = (1 << 31) - 1

Item = TypeVar("Item")


@dataclass(frozen=True)
class Chunk:
    """Whole lines of one raw file; the last one ends with a line break too.

    first_line: the number of the first line in its file, from 1.
    position: how far the file was read, in bytes as it lies on the disk.
    """

    path: Path
    text: bytearray
    first_line: int
    num_lines: int
    position: int

    def without_header(self) -> Chunk:
        """The chunk from its second line on."""
        text = self.text[self.text.index(b"\n") + 1 :]
        return Chunk(self.path, text, self.first_line + 1, self.num_lines - 1, self.position)


def chunks_of(path: Path, chunk_bytes: int = CHUNK_BYTES) -> Iterator[Chunk]:
    """The chunks of one file, the next one read while the caller works on the last."""
    return _ahead(_chunks(path, chunk_bytes))


def check_readable(path: Path) -> int:
    """The size of a raw file; an error where there is none or it is empty."""
    if path.is_dir():
        raise ValueError(f"{path} is a folder; name the raw files in it")
    if not path.exists():
        raise ValueError(f"raw file {path} does not exist; check its path")
    if not path.is_file():
        raise ValueError(f"{path} is no regular file; raw files are read twice: write it to disk")
    size = path.stat().st_size
    if size == 0:
        raise ValueError(f"raw file {path} is empty; expected lines of delimited text")
    return size


def _chunks(path: Path, chunk_bytes: int) -> Iterator[Chunk]:
    first_line = 1
    for text, position in _whole_lines(path, chunk_bytes):
        num_lines = text.count(b"\n")
        yield Chunk(path, text, first_line, num_lines, position)
        first_line += num_lines


def _whole_lines(path: Path, chunk_bytes: int) -> Iterator[tuple[bytearray, int]]:
    """Blocks that end with a line break; blank lines at the end of the file are left out."""
    kept: list[bytes] = []  # what follows the last whole line with something in it
    for block, position in _blocks(path, chunk_bytes):
        end = _end_of_content(block)
        cut = block.find(b"\n", end) + 1 or block.rfind(b"\n", 0, end) + 1
        if cut and (end or any(map(_end_of_content, kept))):
            yield bytearray().join([*kept, memoryview(block)[:cut]]), position
            kept = []
        else:
            cut = 0
        kept.append(block[cut:])
        if sum(map(len, kept)) > MAX_BYTES:
            raise ValueError(f"{path}: a line is longer than 2 GiB; is this delimited text?")
    rest = bytearray().join(kept)
    if _end_of_content(rest):
        yield rest + b"\n", position


def _end_of_content(text: bytes | bytearray) -> int:
    """Where the line breaks at the end of `text` begin."""
    end = len(text)
    while end and text[end - 1] in b"\r\n":
        end -= 1
    return end


def _blocks(path: Path, chunk_bytes: int) -> Iterator[tuple[bytes, int]]:
    try:
        with open(path, "rb") as file:
            compressed = file.read(2) == b"\x1f\x8b"
            file.seek(0)
            stream = gzip.GzipFile(fileobj=file) if compressed else file
            while block := stream.read(chunk_bytes):
                yield block, file.tell()
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ValueError(
            f"{path} is no whole gzip file ({error}); download or compress it again"
        ) from error
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror or error}") from error


def _ahead(items: Iterable[Item]) -> Iterator[Item]:
    """The same items, each made on a thread while the caller works on the one before."""
    iterator = iter(items)
    with ThreadPoolExecutor(max_workers=1) as pool:
        following = pool.submit(next, iterator, None)
        while (item := following.result()) is not None:
            following = pool.submit(next, iterator, None)
            yield item
