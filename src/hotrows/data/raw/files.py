"""Files of raw rows: local paths, globs, folders and URLs, as a list in a fixed order.

A folder is read recursively, in order of names, without names that start with `.` or `_`: writers of
data sets mark so what is no data, and without empty files, which programs that write in parallel leave
for parts without rows. In folders and URLs, `key=value` in a path is a column of that name
(hive partitions). A URL (`s3://bucket/day=*/*.parquet`) is opened through fsspec.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import unquote

from hotrows.runtime.atomic_files import address
from hotrows.runtime.extras import needs

Place = str | Path
BLOCKS = 30  # of neighbouring rows, at equal distances, that a sample of a file consists of


@dataclass(frozen=True)
class File:
    """A file to read.

    name: for messages; system: the fsspec file system, None for a local file; partitions: {column: value}
    of the `key=value` pairs in its path; may_be_empty: whether it is one of several that a folder or a
    pattern names, so that it need not have rows; encoding: of text without a byte order mark.
    """

    name: str
    path: str
    system: Any = None
    partitions: Mapping[str, str] = field(default_factory=dict)
    may_be_empty: bool = False
    encoding: str = "utf-8"

    def open(self) -> BinaryIO:
        return open(self.path, "rb") if self.system is None else self.system.open(self.path, "rb")

    @property
    def size(self) -> int:
        return os.stat(self.path).st_size if self.system is None else self.system.size(self.path)

    @property
    def stamp(self) -> list:
        """Name, size and time: they differ once the file was replaced."""
        if self.system is None:
            return [self.name, self.size, os.stat(self.path).st_mtime_ns]
        status = self.system.info(self.path)
        when = [str(status[key]) for key in ("etag", "ETag", "mtime", "LastModified") if key in status]
        return [self.name, status.get("size"), *when]


def find_files(paths: Place | Iterable[Place]) -> list[File]:
    """Lists the files that paths, globs, folders and URLs name; an error if one names none."""
    places = [paths] if isinstance(paths, str | Path) else list(paths)
    return [file for place in places for file in _files_of(address(place))]


def _files_of(place: str) -> list[File]:
    if "://" in place:
        return _remote(place)
    if os.path.isdir(place):
        return _folder(place)
    if os.path.exists(place) or not glob.has_magic(place):
        _check_local(place)
        return [File(place, place)]
    paths = sorted(glob.glob(place, recursive=True))
    if not paths:
        raise ValueError(f"no file matches {place!r}; check the pattern")
    files = [file for path in _without_empty(paths) for file in _files_of(path)]
    return [replace(file, may_be_empty=len(files) > 1) for file in files]


def _folder(place: str) -> list[File]:
    paths = sorted(
        str(Path(folder) / name)
        for folder, _, names in os.walk(place)
        for name in names
        if _is_data(os.path.relpath(os.path.join(folder, name), place))
    )
    if not paths:
        raise ValueError(f"folder {place} holds no files to read; name the raw files")
    if any(path.endswith(".shard") for path in paths):
        raise ValueError(f"{place} is prepared data, not raw rows; name the files that it was made of")
    paths = _without_empty(paths)
    for path in paths:
        _check_local(path)
    several = len(paths) > 1
    return [File(path, path, partitions=_partitions(path), may_be_empty=several) for path in paths]


def _without_empty(paths: list[str]) -> list[str]:
    """The paths without those of files without a byte; all, if there are no others."""
    return [path for path in paths if not os.path.isfile(path) or os.path.getsize(path)] or paths


def _remote(place: str) -> list[File]:
    with needs(place, "fsspec"):
        import fsspec

    try:
        system, path = fsspec.core.url_to_fs(place)
        if glob.has_magic(path):
            paths = sorted(system.glob(path))
        else:
            paths = sorted(system.find(path)) if system.isdir(path) else [path]
            paths = [p for p in paths if p == path or _is_data(os.path.relpath(p, path))]
        paths = [p for p in paths if len(paths) == 1 or system.size(p) != 0] or paths
        missing = not paths or not all(system.exists(p) for p in paths)
    except Exception as error:  # every file system has errors of its own
        raise ValueError(f"{place} cannot be opened: {' '.join(str(error).split())[:300]}") from error
    if missing:
        raise ValueError(f"{place} does not exist; check the address")
    names = {p: f"{place.split('://', maxsplit=1)[0]}://{p.lstrip('/')}" for p in paths}
    return [File(names[p], p, system, _partitions(p), len(paths) > 1) for p in paths]


def _is_data(relative: str) -> bool:
    return not any(part.startswith((".", "_")) for part in Path(relative).parts)


def _partitions(path: str) -> dict[str, str]:
    """`day=3/part.parquet` says day: 3."""
    pairs = (part.partition("=") for part in Path(path).parts[:-1])
    return {name: unquote(value) for name, separator, value in pairs if separator}


def by_path(file: File, stored: Collection[str]) -> list[str]:
    """The columns that a file has by its path alone: what it stores is read from there."""
    return [name for name in file.partitions if name not in stored]


def _check_local(path: str) -> None:
    if not os.path.exists(path):
        raise ValueError(f"raw file {path} does not exist; check its path")
    if not os.path.isfile(path):
        raise ValueError(f"{path} is no regular file; raw files are read twice: write it to disk")
    if os.stat(path).st_size == 0:
        raise ValueError(f"raw file {path} is empty; expected lines of delimited text, or Parquet")
