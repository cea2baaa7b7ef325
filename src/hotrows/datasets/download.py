"""Downloads the raw files of a data set, resumes interrupted ones, and verifies checksums.

A file is downloaded as NAME.part and renamed when it is complete. Archives are unpacked in place.
"""

from __future__ import annotations

import hashlib
import tarfile
import urllib.error
import urllib.request
import zipfile
from http.client import HTTPException
from pathlib import Path
from typing import Any

from hotrows.datasets.dataset import DataSet, Progress, Source
from hotrows.datasets.tables import find
from hotrows.runtime.atomic_files import publish

_BLOCK = 1 << 20
_TIMEOUT = 60
# No member leaves the folder; Python before 3.10.12 cannot tell.
_SAFELY: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}


def download(data_set: DataSet, raw: str | Path, progress: Progress | None = None) -> list[Path]:
    """Downloads the raw files of a data set into the folder `raw`; verifies known checksums."""
    raw = Path(raw)
    if data_set.sign_in:
        raise ValueError(
            f"{data_set.name} cannot be downloaded without an account: {data_set.sign_in} into {raw}"
        )
    raw.mkdir(parents=True, exist_ok=True)
    for source in data_set.sources:
        if source.url:
            _fetch(data_set, source, raw, progress)
            _unpack(raw / source.file, raw)
    return [_arrived(data_set, source, raw, progress) for source in data_set.sources]


def _fetch(data_set: DataSet, source: Source, raw: Path, progress: Progress | None) -> None:
    """Downloads one file unless it exists."""
    path, part = raw / source.file, raw / f"{source.file}.part"
    if path.exists():
        return
    try:
        _receive(source, part, progress)
    except urllib.error.HTTPError as error:
        raise ValueError(
            f"{source.url} answered {error.code} {error.reason} where {source.file} was expected; "
            f"see {data_set.home} for where it is now, and put it into {raw}"
        ) from error
    except (OSError, HTTPException) as error:
        raise ValueError(
            f"{source.url} could not be read to its end ({getattr(error, 'reason', error)}); run the "
            f"command again to go on, or put {source.file} into {raw} by other means"
        ) from error
    _verify(part, source, progress)
    publish(part, path)


def _receive(source: Source, part: Path, progress: Progress | None) -> None:
    """Appends to a partial file; starts again if the server sends the full file."""
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
            while block := answer.read(_BLOCK):
                file.write(block)
                begun += len(block)
                if progress:
                    progress(source.file, begun, total)
    if total is not None and part.stat().st_size < total:
        raise OSError(f"{total - part.stat().st_size:,} of {total:,} bytes are missing")


def _answer(request: urllib.request.Request, begun: int) -> Any:
    """Requests a file; if its range cannot be served, the full file."""
    try:
        return urllib.request.urlopen(request, timeout=_TIMEOUT)
    except urllib.error.HTTPError as error:
        if error.code != 416 or not begun:  # 416: the file has no such range
            raise
    request.remove_header("Range")
    return urllib.request.urlopen(request, timeout=_TIMEOUT)


def _arrived(data_set: DataSet, source: Source, raw: Path, progress: Progress | None) -> Path:
    """Returns the path of a file of the data set; verifies it if it came out of an archive."""
    path = find(raw, source.file)
    if source.url is None and path.name == source.file:
        _verify(path, source, progress)
    return path


def _verify(path: Path, source: Source, progress: Progress | None) -> None:
    if source.md5 is None:
        return
    digest = hashlib.md5(usedforsecurity=False)
    done, total = 0, path.stat().st_size
    with open(path, "rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
            done += len(block)
            if progress:
                progress(f"md5 {source.file}", done, total)
    if digest.hexdigest() != source.md5:
        raise ValueError(
            f"{path} has md5 {digest.hexdigest()} where {source.md5} was expected; delete it and "
            f"download it again"
        )


def _unpack(archive: Path, raw: Path) -> None:
    """Unpacks an archive into its folder, once."""
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
