"""The text of a file of raw rows: chunks of whole lines of UTF-8.

A file may be compressed (gzip, bz2, xz, zstd, lz4, or a zip archive of one file) and may be UTF-16 with a
byte order mark; both are found by its first bytes. Chunks are read ahead on a thread, in bounded memory.
"""

from __future__ import annotations

import codecs
import logging
import zipfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib import import_module
from itertools import pairwise
from typing import Any, BinaryIO

import numpy as np

from hotrows.data.raw.files import BLOCKS, File
from hotrows.engine.pipeline.prefetch import prefetch
from hotrows.runtime.arrow import pa

log = logging.getLogger("hotrows")
CHUNK_BYTES = 8 << 20
MAX_BYTES = (1 << 31) - 1
COMPRESSIONS = {
    b"\x1f\x8b": "gzip",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"\x04\x22\x4d\x18": "lz4",
    b"\xfd7zXZ\0": "xz",
    b"PK\x03\x04": "zip",
    **{b"BZh%d1AY&SY" % level: "bz2" for level in range(1, 10)},
}
_ENCODINGS = {  # by the byte order mark; that of UTF-16 begins that of UTF-32
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
    codecs.BOM_UTF8: "utf-8-sig",
}
_MODULES = {"gzip": "gzip", "bz2": "bz2", "xz": "lzma"}
LONGEST = 16  # bytes that tell what a file holds
_SEEMS_UTF8: set[str] = set()  # files that were warned of


@dataclass(frozen=True)
class Chunk:
    """Whole lines of one raw file; the last one ends with a line break too.

    name: of the file; first_line: number of its first line in the file, from 1.
    position: bytes of the file on disk that were read so far. not_utf8: the number of the first line that
    is no UTF-8, and the message about it; None: there is none.
    """

    name: str
    text: bytearray
    first_line: int
    num_lines: int
    position: int
    not_utf8: tuple[int, str] | None = None

    def without_header(self) -> Chunk:
        text = self.text[self.text.index(b"\n") + 1 :]
        return replace(self, text=text, first_line=self.first_line + 1, num_lines=self.num_lines - 1)


def chunk_of(name: str, text: bytearray, first_line: int, position: int = 0) -> Chunk:
    """A chunk of whole lines, without byte order marks where lines begin: appended files have them."""
    num_lines = text.count(b"\n")
    if text.isascii():
        return Chunk(name, text, first_line, num_lines, position)
    if b"\n" + codecs.BOM_UTF8 in text:
        text = text.replace(b"\n" + codecs.BOM_UTF8, b"\n")
    text = text.removeprefix(codecs.BOM_UTF8)
    return Chunk(name, text, first_line, num_lines, position, _problem_of_utf8(name, text, first_line))


def chunks_of(file: File, chunk_bytes: int | None = None) -> Iterator[Chunk]:
    """Yields the chunks of one file; the next one is read while the caller works on the last."""
    return prefetch(_chunks(file, chunk_bytes or CHUNK_BYTES), 1)


def first_chunk(file: File, chunk_bytes: int | None = None) -> Chunk | None:
    """The first chunk of a file, None if it has none; no more is read."""
    return next(_chunks(file, chunk_bytes or CHUNK_BYTES), None)


def sampled_lines(file: File, first: Chunk, num_lines: int) -> list[bytes]:
    """About `num_lines` lines of a file in order, in BLOCKS blocks at equal distances, no blank ones.

    first: the first chunk of the file, from which its first line is taken. Compressed files are read to
    their end, at about 5 s for 1 GB of content; of plain ones all that is between blocks is skipped.
    """
    num_of_block = num_lines // BLOCKS
    blocks = _blocks_apart(file, 2 * num_of_block * (len(first.text) // first.num_lines + 1))
    lines = [line for block in blocks for line in block.split(b"\n")[:num_of_block] if line.strip()]
    return [bytes(first.text[: first.text.index(b"\n")]), *lines[1:]]


def _blocks_apart(file: File, num_bytes: int) -> Iterator[bytes]:
    """Yields whole lines, at most so many bytes of them from each of BLOCKS places; none twice."""
    size = file.size
    places = [size * i // BLOCKS for i in range(BLOCKS)]
    with file.open() as raw:
        encoding = _marked_encoding(raw.read(LONGEST))
        is_utf8 = encoding == "utf-8-sig" or (encoding is None and file.encoding == "utf-8")
        if compression_of(file) is None and is_utf8:
            for place, end in zip(places, [*places[1:], size], strict=True):
                raw.seek(place)
                yield _whole(raw.read(min(num_bytes, end - place)), place > 0)
            return
    before = 0
    for text, position in _whole_lines(file, CHUNK_BYTES):
        of_text = [place for place in places if before <= place < position]
        bounds = [len(text) * (x - before) // max(position - before, 1) for x in (*of_text, position)]
        for begin, end in pairwise(bounds):
            yield _whole(bytes(text[begin : min(end, begin + num_bytes)]), begin > 0)
        before = position


def _whole(block: bytes, is_cut: bool) -> bytes:
    """The whole lines of a block. is_cut: whether its first line began before it."""
    return block[block.find(b"\n") + 1 if is_cut else 0 : block.rfind(b"\n") + 1]


def _chunks(file: File, chunk_bytes: int) -> Iterator[Chunk]:
    first_line = 1
    for text, position in _whole_lines(file, chunk_bytes):
        chunk = chunk_of(file.name, text, first_line, position)
        yield chunk
        first_line += chunk.num_lines


def _whole_lines(file: File, chunk_bytes: int) -> Iterator[tuple[bytearray, int]]:
    """Yields (text that ends with a line break, bytes read); drops blank lines at the end of the file."""
    pending: list[bytes] = []  # behind the last line break that was yielded
    size, position, is_blank = 0, 0, True  # of what is pending, and whether it is line breaks alone
    for block, position in blocks_of(file, chunk_bytes):
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


def compression_of(file: File) -> str | None:
    """The compression of a file by its first bytes, None if it has none."""
    with file.open() as raw:
        magic = raw.read(LONGEST)
    return next((name for start, name in COMPRESSIONS.items() if magic.startswith(start)), None)


def blocks_of(file: File, chunk_bytes: int) -> Iterator[tuple[bytes, int]]:
    """Yields (bytes of the content, bytes of the file read so far)."""
    compression = None
    try:
        compression = compression_of(file)
        with file.open() as raw:
            stream = _decoded(_decompressed(raw, compression, file.name), file.name, file.encoding)
            while block := stream.read(chunk_bytes):
                yield block, raw.tell()
    except UnicodeDecodeError as error:
        kind = "UTF-16" if file.encoding in ("", "utf-8") else file.encoding
        raise ValueError(
            f"{file.name} is no whole file of {kind} ({error.reason}); name its encoding, or write it "
            f"again, as UTF-8"
        ) from error
    except OSError as error:
        if error.errno is None and compression is not None:  # of what it decompresses
            raise _damaged(file, compression, error) from error
        raise ValueError(f"{file.name} cannot be read: {error.strerror or error}") from error
    except (MemoryError, ValueError):
        raise
    except Exception as error:  # each of the modules has errors of its own
        if compression is None:
            raise
        raise _damaged(file, compression, error) from error


def _damaged(file: File, compression: str, error: Exception) -> ValueError:
    why = "" if compression == "zstd" else f" ({error})"
    return ValueError(f"{file.name} is no whole {compression} file{why}; download or compress it again")


def _marked_encoding(start: bytes) -> str | None:
    """The encoding of the byte order mark that a file starts with, None if it has none."""
    return next((name for mark, name in _ENCODINGS.items() if start.startswith(mark)), None)


def recoded(text: bytes, name: str, encoding: str) -> bytes:
    """Whole lines of an encoding as UTF-8."""
    if encoding == "utf-8":
        return text
    _look_for_utf8(text, name, encoding)
    try:
        return text.decode(encoding).encode()
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{name} has lines that are no {encoding} ({error.reason}); correct them"
        ) from error


def _look_for_utf8(text: bytes, name: str, encoding: str) -> None:
    """Warns once of a file of 8-bit text that seems to be UTF-8: it hardly ever is by chance."""
    if name in _SEEMS_UTF8 or text.isascii():
        return
    with suppress(UnicodeDecodeError):
        as_utf8 = codecs.getincrementaldecoder("utf-8")().decode(text)
        letter = next((x for x in as_utf8 if not x.isascii()), "?")
        becomes = letter.encode().decode(encoding)
        _SEEMS_UTF8.add(name)
        log.warning(
            f"{name} is read as {encoding}, but seems to be UTF-8: {letter!r} becomes {becomes!r}; write "
            f"it in the encoding of the schema, or change that"
        )


def _problem_of_utf8(name: str, text: bytearray, first_line: int) -> tuple[int, str] | None:
    ends = pa.py_buffer(np.array([0, len(text)], np.int64))
    try:  # several times faster than to decode it
        pa.Array.from_buffers(pa.large_string(), 1, [None, ends, pa.py_buffer(text)]).validate(full=True)
    except pa.ArrowInvalid:
        pass
    else:
        return None
    try:
        text.decode()
    except UnicodeDecodeError as error:
        line, begin = first_line + text.count(b"\n", 0, error.start), text.rfind(b"\n", 0, error.start)
        return line, (
            f"{name} line {line}, byte {error.start - begin}: expected UTF-8, found "
            f"0x{text[error.start]:02x}; name the encoding of delimited text (encoding='latin-1', or "
            f"--encoding of hotrows schema and prepare), or write the file again as UTF-8"
        )
    return None


def _decompressed(raw: BinaryIO, compression: str | None, name: str) -> Any:
    if module := _MODULES.get(compression or ""):
        return import_module(module).open(raw)
    if compression == "zip":
        return _only_member(raw, name)
    return raw if compression is None else pa.CompressedInputStream(raw, compression)


def _only_member(raw: BinaryIO, name: str) -> Any:
    """Opens the one file of a zip archive; an error if it has several."""
    archive = zipfile.ZipFile(raw)
    members = [member for member in archive.namelist() if not member.endswith("/")]
    members = [member for member in members if not member.startswith(("__MACOSX/", "."))]
    if any(member.startswith("xl/") for member in members):
        raise ValueError(f"{name} is an Excel workbook, which is not read; save it as CSV")
    if len(members) != 1:
        shown = ", ".join(members[:5]) + (", ..." if len(members) > 5 else "")
        raise ValueError(
            f"{name}: expected a zip archive of one file, found {len(members)} ({shown}); unpack it, and "
            f"name the files to read"
        )
    return archive.open(members[0])


def _decoded(stream: Any, name: str, encoding: str) -> Any:
    """Reads text of an encoding, or of that of its byte order mark, as UTF-8; "": as it is.

    UTF-16 that neither names is refused: every other byte of its ASCII characters is 0.
    """
    start = stream.read(LONGEST)
    while 0 < len(start) < LONGEST and (more := stream.read(LONGEST - len(start))):
        start += more
    marked = _marked_encoding(start)
    if marked == "utf-8-sig":
        return _Resumed(start[len(codecs.BOM_UTF8) :], stream)
    is_bare = marked is None and encoding == "utf-8"
    if is_bare and len(start) > 3 and {not any(start[::2]), not any(start[1::2])} == {True, False}:
        raise ValueError(
            f"{name} seems to be UTF-16 without a byte order mark; name its encoding in the schema, "
            f"'utf-16-le' or 'utf-16-be', or write it again, as UTF-8"
        )
    resumed, encoding = _Resumed(start, stream), marked or encoding
    return resumed if encoding in ("", "utf-8") else _Transcoded(resumed, name, encoding)


class _Resumed:
    """A stream whose first bytes were read already."""

    def __init__(self, start: bytes, stream: Any) -> None:
        self._start = start
        self._stream = stream

    def read(self, size: int) -> bytes:
        if self._start:
            start, self._start = self._start[:size], self._start[size:]
            return start + self._stream.read(size - len(start)) if size > len(start) else start
        return self._stream.read(size)


class _Transcoded:
    """A stream of another encoding as UTF-8."""

    def __init__(self, stream: Any, name: str, encoding: str) -> None:
        self._stream, self._name, self._encoding = stream, name, encoding
        self._decoder = codecs.getincrementaldecoder(encoding)()

    def read(self, size: int) -> bytes:
        while block := self._stream.read(size):
            _look_for_utf8(block, self._name, self._encoding)
            if text := self._decoder.decode(block):
                return text.encode()
        return self._decoder.decode(b"", final=True).encode()
