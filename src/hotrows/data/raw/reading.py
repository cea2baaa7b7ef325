"""Raw text as chunks of whole lines: plain, gzip or zstd, read ahead on a thread, in bounded memory."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

from hotrows.data.raw.arrow import pyarrow
from hotrows.data.raw.files import File
from hotrows.pipeline.prefetch import prefetch

CHUNK_BYTES = 8 << 20
MAX_BYTES = (1 << 31) - 1

_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"


@dataclass(frozen=True)
class Chunk:
    """Whole lines of one raw file; the last one ends with a line break too.

    name: of the file; first_line: number of its first line in the file, from 1.
    position: bytes of the file on disk that were read so far.
    """

    name: str
    text: bytearray
    first_line: int
    num_lines: int
    position: int

    def without_header(self) -> Chunk:
        """The chunk without its first line."""
        text = self.text[self.text.index(b"\n") + 1 :]
        return Chunk(self.name, text, self.first_line + 1, self.num_lines - 1, self.position)


def chunks_of(file: File, chunk_bytes: int | None = None) -> Iterator[Chunk]:
    """Yields the chunks of one file; the next one is read while the caller works on the last."""
    return prefetch(_chunks(file, chunk_bytes or CHUNK_BYTES), 1)


def _chunks(file: File, chunk_bytes: int) -> Iterator[Chunk]:
    first_line = 1
    for text, position in _whole_lines(file, chunk_bytes):
        num_lines = text.count(b"\n")
        yield Chunk(file.name, text, first_line, num_lines, position)
        first_line += num_lines


def _whole_lines(file: File, chunk_bytes: int) -> Iterator[tuple[bytearray, int]]:
    """Yields (text that ends with a line break, bytes read); drops blank lines at the end of the file."""
    pending: list[bytes] = []  # behind the last line break that was yielded
    size, position, is_blank = 0, 0, True  # of what is pending, and whether it is line breaks alone
    for block, position in _blocks(file, chunk_bytes):
        end = _end_of_content(block)
        cut = block.find(b"\n", end) + 1 or block.rfind(b"\n", 0, end) + 1
        if cut and (end or not is_blank):
            yield bytearray().join([*pending, memoryview(block)[:cut]]), position
            pending, size, is_blank = [], 0, end <= cut
        else:
            cut, is_blank = 0, is_blank and not end
        pending.append(block[cut:])
        size += len(block) - cut
        if size > MAX_BYTES:
            raise ValueError(f"{file.name}: a line is longer than 2 GiB; is this delimited text?")
    last_lines = bytearray().join(pending)
    if _end_of_content(last_lines):
        yield last_lines + b"\n", position


def _end_of_content(text: bytes | bytearray) -> int:
    """The length of `text` without the line breaks at its end."""
    return len(text.rstrip(b"\r\n"))


def _blocks(file: File, chunk_bytes: int) -> Iterator[tuple[bytes, int]]:
    try:
        with file.open() as raw:
            stream = _decompressed(raw)
            while block := stream.read(chunk_bytes):
                yield block, raw.tell()
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ValueError(
            f"{file.name} is no whole gzip file ({error}); download or compress it again"
        ) from error
    except OSError as error:
        if error.errno is None:  # Arrow's, of what it decompresses
            raise ValueError(
                f"{file.name} is no whole zstd file; download or compress it again"
            ) from error
        raise ValueError(f"{file.name} cannot be read: {error.strerror or error}") from error


def _decompressed(raw: BinaryIO) -> BinaryIO:
    """Decompresses a file by its first bytes; plain text is returned as it is."""
    magic = raw.read(4)
    raw.seek(0)
    if magic.startswith(_GZIP):
        return gzip.GzipFile(fileobj=raw)  # type: ignore[return-value]
    if magic == _ZSTD:
        return pyarrow().CompressedInputStream(raw, "zstd")
    return raw
