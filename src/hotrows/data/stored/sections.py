"""A file of named arrays that can be memory-mapped: the format of shards and vocabularies.

docs/reference/formats.md draws it: magic, version, length and checksum of the header; the header, JSON;
and the arrays, each from a multiple of 64 bytes on. Opening checks magic, version, header and size, so
that no array reaches beyond the file; `check` reads every byte. What names the file may keep the
checksum of its header, which stands for all of it.
"""

from __future__ import annotations

import json
import math
import re
import struct
import zlib
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from hotrows.runtime.json_file import check_version, parse

MAGIC = b"HOTROWS\n"
VERSION = 1
_PREFIX = struct.Struct("<8sIII")
_ALIGNMENT = 64
_DTYPE = re.compile(r"\|[iu]1|<[iu][248]|<f[248]")


class Sections:
    """An open file: `header`, and its arrays by name, mapped read-only."""

    def __init__(self, path: Path, header: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        self.path = path
        self.header = header
        self._arrays = arrays

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self._arrays:
            raise ValueError(
                f"{self.path} has no section {name!r}, only {sorted(self._arrays)}: it is damaged, or "
                f"of other data; prepare the data again"
            )
        return self._arrays[name]

    def check(self) -> None:
        """Compares every section with its checksum; an error names the first that differs."""
        for section in self.header["sections"]:
            checksum = zlib.crc32(_bytes_of(self[section["name"]]))
            if checksum != section["crc32"]:
                raise ValueError(
                    f"{self.path}: section {section['name']!r} is damaged (crc32 {checksum:08x}, "
                    f"expected {section['crc32']:08x}); prepare the data again"
                )


def check_once(path: Path) -> None:
    """Compares every section of a file with its checksum, unless this process has done so since the file
    was written; costs a read of it, without the interpreter's lock."""
    status = path.stat()
    _check(path, (status.st_ino, status.st_mtime_ns, status.st_size))


@lru_cache(maxsize=1 << 16)
def _check(path: Path, version: tuple[int, int, int]) -> None:
    open_sections(path).check()


def write_sections(path: Path, header: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
    """Writes the arrays, and a header with the fields of `header`."""
    sections, offset = [], 0
    for name, array in arrays.items():
        place = {"name": name, "dtype": array.dtype.str, "shape": array.shape, "offset": offset}
        sections.append({**place, "crc32": zlib.crc32(_bytes_of(array))})
        offset = _aligned(offset + array.nbytes)
    text = json.dumps({**header, "size": offset, "sections": sections}).encode()
    with open(path, "wb") as file:
        file.write(_PREFIX.pack(MAGIC, VERSION, len(text), zlib.crc32(text)) + text)
        for array in arrays.values():
            file.write(b"\0" * (_aligned(file.tell()) - file.tell()))
            file.write(_bytes_of(array))
        file.write(b"\0" * (_aligned(file.tell()) - file.tell()))


def header_checksum(path: Path) -> int:
    """The checksum that a file says its header has. The header has those of all sections, so that it
    identifies the file."""
    with open(path, "rb") as file:
        return _PREFIX.unpack(file.read(_PREFIX.size))[3]


def open_sections(path: Path, header_crc32: int | None = None) -> Sections:
    """Maps a file; an error if it is no such file, was cut off, or is of another version.

    header_crc32: the checksum that its header must have; None: any.
    """
    try:
        mapped = np.memmap(path, np.uint8, "r").view(np.ndarray)
    except FileNotFoundError:
        raise ValueError(f"{path} is missing; prepare the data again") from None
    except ValueError:
        mapped = np.empty(0, np.uint8)  # an empty file cannot be mapped
    header, start = _read_header(path, mapped, header_crc32)
    if len(mapped) != start + header["size"]:
        raise ValueError(
            f"{path} is cut off or was added to: expected {start + header['size']:,} bytes, found "
            f"{len(mapped):,}; prepare the data again"
        )
    arrays = {section["name"]: _array(mapped[start:], section) for section in header["sections"]}
    return Sections(path, header, arrays)


def _read_header(path: Path, mapped: np.ndarray, expected: int | None) -> tuple[dict[str, Any], int]:
    """Returns the header, and the offset of the data."""
    if len(mapped) < _PREFIX.size or mapped[: len(MAGIC)].tobytes() != MAGIC:
        raise ValueError(f"{path} is no file of prepared data, or was cut off; prepare it again")
    _, version, length, checksum = _PREFIX.unpack(mapped[: _PREFIX.size].tobytes())
    check_version(path, version, VERSION, "prepare the data again with this version")
    text = mapped[_PREFIX.size : _PREFIX.size + length].tobytes()
    if zlib.crc32(text) != checksum:
        raise ValueError(f"{path}: the header is damaged or cut off; prepare the data again")
    if expected not in (None, checksum):
        raise ValueError(f"{path} is not the file that was written there; prepare the data again")
    try:
        header = parse(text)
    except ValueError:
        header = None
    if not _is_legal(header):
        raise ValueError(f"{path}: the header makes no sense; prepare the data again")
    return header, _aligned(_PREFIX.size + length)


def _is_legal(header: Any) -> bool:
    """True if a header places every section, and each of them within the data."""
    if not isinstance(header, dict) or not isinstance(header.get("sections"), list):
        return False
    sections = header["sections"]
    if not is_count(header.get("size")) or not all(isinstance(s, dict) for s in sections):
        return False
    names = [str(section.get("name")) for section in sections]
    return len(set(names)) == len(names) and all(_fits(s, header["size"]) for s in sections)


def _fits(section: dict[str, Any], size: int) -> bool:
    dtype, shape = section.get("dtype"), section.get("shape")
    offset: Any = section.get("offset")
    return (
        isinstance(section.get("name"), str)
        and isinstance(dtype, str)
        and _DTYPE.fullmatch(dtype) is not None
        and isinstance(shape, list)
        and len(shape) in (1, 2)
        and all(map(is_count, [*shape, offset, section.get("crc32")]))
        and offset % _ALIGNMENT == 0
        and offset + math.prod(shape) * int(dtype[2:]) <= size
    )


def is_count(value: Any) -> bool:
    """True if a value from JSON is a plausible number of rows or bytes."""
    return type(value) is int and 0 <= value < 1 << 48


def _array(data: np.ndarray, section: dict[str, Any]) -> np.ndarray:
    dtype, shape = np.dtype(section["dtype"]), tuple(section["shape"])
    size = math.prod(shape) * dtype.itemsize
    return data[section["offset"] : section["offset"] + size].view(dtype).reshape(shape)


def _bytes_of(array: np.ndarray) -> memoryview:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def _aligned(size: int) -> int:
    return (size + _ALIGNMENT - 1) // _ALIGNMENT * _ALIGNMENT
