"""Downloads the raw files of a data set: what was begun goes on, and checksums are verified.

A file arrives as NAME.part and gets its name when it is whole, so a file with its name is complete.
Archives are unpacked where they lie.
"""

from __future__ import annotations

import hashlib
import os
import tarfile
import urllib.error
import urllib.request
import zipfile
from http.client import HTTPException
from pathlib import Path
from typing import Any

from hotrows.data.sets.dataset import DataSet, Progress, Source
from hotrows.data.sets.tables import find

_BLOCK = 1 << 20
_TIMEOUT = 60
# No member leaves the folder; Python before 3.10.12 cannot tell.
_SAFELY: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}


def download(of: DataSet, raw: str | Path, progress: Progress | None = None) -> list[Path]:
    """The raw files of a data set in the folder `raw`, verified where a checksum is known."""
    raw = Path(raw)
    if of.sign_in:
        raise ValueError(
            f"{of.name} cannot be downloaded without an account: {of.sign_in} into {raw}"
        )
    raw.mkdir(parents=True, exist_ok=True)
    for source in of.sources:
        if source.url:
            _fetch(of, source, raw, progress)
            _unpack(raw / source.file, raw)
    return [_arrived(of, source, raw, progress) for source in of.sources]


def _fetch(of: DataSet, source: Source, raw: Path, progress: Progress | None) -> None:
    """One file, unless it is there."""
    whole, part = raw / source.file, raw / f"{source.file}.part"
    if whole.exists():
        return
    try:
        _receive(source, part, progress)
    except urllib.error.HTTPError as error:
        raise ValueError(
            f"{source.url} answered {error.code} {error.reason} where {source.file} was expected; "
            f"see {of.home} for where it is now, and put it into {raw}"
        ) from error
    except (OSError, HTTPException) as error:
        raise ValueError(
            f"{source.url} could not be read to its end ({getattr(error, 'reason', error)}); run the "
            f"command again to go on, or put {source.file} into {raw} by other means"
        ) from error
    _verify(part, source, progress)
    os.replace(part, whole)


def _receive(source: Source, part: Path, progress: Progress | None) -> None:
    """Appends to what there is of a file; begins anew where the server sends all of it."""
    begun = part.stat().st_size if part.exists() else 0
    assert source.url is not None
    request = urllib.request.Request(source.url, headers={"User-Agent": "hotrows"})
    if begun:
        request.add_header("Range", f"bytes={begun}-")
    with _answer(request, begun) as answer:
        begun = begun if answer.status == 206 else 0
        length = answer.headers.get("Content-Length")
        total = None if length is None else begun + int(length)
        with open(part, "ab" if begun else "wb") as file:
            _copy(answer, file, begun, total, source.file, progress)
    if total is not None and part.stat().st_size < total:
        raise OSError(f"{total - part.stat().st_size:,} of {total:,} bytes are missing")


def _answer(request: urllib.request.Request, begun: int) -> Any:
    """The server's answer; of a part that cannot go on, the whole file's."""
    try:
        return urllib.request.urlopen(request, timeout=_TIMEOUT)
    except urllib.error.HTTPError as error:
        if error.code != 416 or not begun:  # 416: the file has no such range
            raise
    request.remove_header("Range")
    return urllib.request.urlopen(request, timeout=_TIMEOUT)


def _copy(
    answer: Any, file: Any, done: int, total: int | None, name: str, progress: Progress | None
) -> None:
    while block := answer.read(_BLOCK):
        file.write(block)
        done += len(block)
        if progress:
            progress(name, done, total)


def _arrived(of: DataSet, source: Source, raw: Path, progress: Progress | None) -> Path:
    """Where a file of the data set lies, verified where it came out of an archive."""
    path = find(raw, source.file)
    if source.url is None and path.name == source.file:
        _verify(path, source, progress)
    return path


def _verify(path: Path, source: Source, progress: Progress | None) -> None:
    if source.md5 is None:
        return
    found = hashlib.md5(usedforsecurity=False)
    done, total = 0, path.stat().st_size
    with open(path, "rb") as file:
        while block := file.read(_BLOCK):
            found.update(block)
            done += len(block)
            if progress:
                progress(f"md5 {source.file}", done, total)
    if found.hexdigest() != source.md5:
        raise ValueError(
            f"{path} has md5 {found.hexdigest()} where {source.md5} was expected; delete it and "
            f"download it again"
        )


def _unpack(archive: Path, raw: Path) -> None:
    """The files of an archive beside it, once."""
    done = raw / f"{archive.name}.unpacked"
    if done.exists():
        return
    if archive.name.endswith(".zip"):
        with zipfile.ZipFile(archive) as packed:
            packed.extractall(raw)
    elif archive.name.endswith(".tar.gz"):
        with tarfile.open(archive) as packed:
            packed.extractall(raw, **_SAFELY)
    else:
        return
    done.touch()
