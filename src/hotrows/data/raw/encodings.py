"""What the bytes of a file are, compressed or not, text of which encoding: as plain bytes of UTF-8."""

from __future__ import annotations

import codecs
import gzip
from typing import Any, BinaryIO, Protocol

import numpy as np

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
LONGEST = 16  # bytes that tell what a file holds


class _Stream(Protocol):
    def read(self, size: int, /) -> bytes: ...


def marked_encoding(start: bytes) -> str | None:
    """The encoding of the byte order mark that a file starts with, None if it has none."""
    return next((name for mark, name in _ENCODINGS.items() if start.startswith(mark)), None)


def recoded(text: bytes, name: str, encoding: str) -> bytes:
    """Whole lines of an encoding as UTF-8."""
    if encoding == "utf-8":
        return text
    try:
        return text.decode(encoding).encode()
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{name} has lines that are no {encoding} ({error.reason}); correct them"
        ) from error


def problem_of_utf8(name: str, text: bytearray, first_line: int) -> tuple[int, str] | None:
    import pyarrow as pa

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


def decompressed(raw: BinaryIO, compression: str | None, name: str) -> Any:
    """Decompresses a file; plain content is returned as it is."""
    if compression == "gzip":
        return gzip.GzipFile(fileobj=raw)
    if compression == "bz2":
        import bz2

        return bz2.BZ2File(raw)
    if compression == "xz":
        import lzma

        return lzma.LZMAFile(raw)
    if compression == "zip":
        return _only_member(raw, name)
    if compression is None:
        return raw
    from pyarrow import CompressedInputStream

    return CompressedInputStream(raw, compression)


def _only_member(raw: BinaryIO, name: str) -> Any:
    """Opens the one file of a zip archive; an error if it has several."""
    import zipfile

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


def decoded(stream: Any, name: str, encoding: str) -> _Stream:
    """Reads text of an encoding, or of that of its byte order mark, as UTF-8; "": as it is.

    UTF-16 that neither names is refused: every other byte of its ASCII characters is 0.
    """
    start = stream.read(LONGEST)
    while 0 < len(start) < LONGEST and (more := stream.read(LONGEST - len(start))):
        start += more
    marked = marked_encoding(start)
    if marked == "utf-8-sig":
        return _Resumed(start[len(codecs.BOM_UTF8) :], stream)
    is_bare = marked is None and encoding == "utf-8"
    if is_bare and len(start) > 3 and {not any(start[::2]), not any(start[1::2])} == {True, False}:
        raise ValueError(
            f"{name} seems to be UTF-16 without a byte order mark; name its encoding in the schema, "
            f"'utf-16-le' or 'utf-16-be', or write it again, as UTF-8"
        )
    resumed, encoding = _Resumed(start, stream), marked or encoding
    return resumed if encoding in ("", "utf-8") else _Transcoded(resumed, encoding)


class _Resumed:
    """A stream whose first bytes were read already."""

    def __init__(self, start: bytes, stream: _Stream) -> None:
        self._start = start
        self._stream = stream

    def read(self, size: int) -> bytes:
        if self._start:
            start, self._start = self._start[:size], self._start[size:]
            return start + self._stream.read(size - len(start)) if size > len(start) else start
        return self._stream.read(size)


class _Transcoded:
    """A stream of UTF-16 or UTF-32 as UTF-8."""

    def __init__(self, stream: _Stream, encoding: str) -> None:
        self._stream = stream
        self._decoder = codecs.getincrementaldecoder(encoding)()

    def read(self, size: int) -> bytes:
        while block := self._stream.read(size):
            if text := self._decoder.decode(block):
                return text.encode()
        return self._decoder.decode(b"", final=True).encode()
