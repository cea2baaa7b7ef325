"""Downloads the raw files of a data set, resumes interrupted ones, and verifies checksums.

A file is downloaded as NAME.part and renamed when it is complete; it has at most twice as many bytes as
are stated of all files of the data set. Archives are unpacked in place: plain files and folders alone,
none outside, and at most 100 times as many bytes as the archive has.
"""

from __future__ import annotations

import gzip
import hashlib
import shutil
import tarfile
import urllib.error
import urllib.request
import zipfile
from collections.abc import Iterator
from http.client import HTTPException
from pathlib import Path, PurePosixPath
from typing import IO, Any, cast

from hotrows.data.datasets.dataset import DataSet, Progress, Source
from hotrows.data.datasets.tables import find
from hotrows.runtime.atomic_files import local, publish
from hotrows.runtime.terminal import silent
from hotrows.runtime.units import parse_bytes

_BLOCK = 1 << 20
_TIMEOUT = 60
_RATIO = 100  # logs as text shrink to a tenth; what shrinks to a hundredth was made to fill disks
_LEAST_BOUND = 64 << 20


def download(data_set: DataSet, raw: str | Path, progress: Progress | None = None) -> list[Path]:
    """Downloads the raw files of a data set into the folder `raw`; verifies known checksums."""
    raw, progress = local(raw), progress or silent
    if data_set.sign_in:
        raise ValueError(
            f"{data_set.name} cannot be downloaded without an account: {data_set.sign_in} into {raw}"
        )
    raw.mkdir(parents=True, exist_ok=True)
    for source in data_set.sources:
        if source.url:
            _fetch(data_set, source, raw, progress)
            unpack(raw / source.file, raw)
    return [_arrived(data_set, source, raw, progress) for source in data_set.sources]


def _fetch(data_set: DataSet, source: Source, raw: Path, progress: Progress) -> None:
    """Downloads one file unless it exists; goes on with what an interrupted download left (.part)."""
    path, part = raw / source.file, raw / f"{source.file}.part"
    if path.exists():
        return
    most = max(2 * parse_bytes(data_set.size), _LEAST_BOUND)
    try:
        _receive(source, part, most, progress)
    except _Refused as refused:
        part.unlink(missing_ok=True)
        raise ValueError(f"{refused} {data_set.name} has {data_set.size}; see {data_set.home}") from None
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


def _receive(source: Source, part: Path, most: int, progress: Progress) -> None:
    """Appends to a partial file, up to `most` bytes; starts again if the server sends the full file."""
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
                begun += len(block)
                if begun > most:
                    raise _Refused(f"{source.url} sends more than {most:,} bytes, but all of")
                file.write(block)
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


def _arrived(data_set: DataSet, source: Source, raw: Path, progress: Progress) -> Path:
    """Returns the path of a file of the data set; verifies it if it came out of an archive."""
    path = find(raw, source.file)
    if source.url is None and path.name == source.file:
        _verify(path, source, progress)
    return path


def _verify(path: Path, source: Source, progress: Progress) -> None:
    if source.md5 is None:
        return
    digest = hashlib.md5(usedforsecurity=False)
    done, total = 0, path.stat().st_size
    with open(path, "rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
            done += len(block)
            progress(f"md5 {source.file}", done, total)
    if digest.hexdigest() != source.md5:
        raise ValueError(
            f"{path} has md5 {digest.hexdigest()} where {source.md5} was expected; delete it and "
            f"download it again"
        )


def unpack(archive: Path, raw: Path) -> None:
    """Unpacks an archive into its folder, once."""
    done = raw / f"{archive.name}.unpacked"
    if done.exists():
        return
    if not archive.name.endswith((".zip", ".tar.gz")):
        return
    members = _zip_members if archive.name.endswith(".zip") else _tar_members
    most = max(_RATIO * archive.stat().st_size, _LEAST_BOUND)
    try:
        for name, content in members(archive, most):
            path = raw / _inside(archive, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(path, "wb") as file:
                shutil.copyfileobj(content, file, _BLOCK)
    except _Refused as refused:
        raise ValueError(str(refused)) from None
    except Exception as error:  # what zipfile, tarfile, gzip and zlib raise of damaged bytes has no end
        if isinstance(error, OSError) and error.errno is not None:
            raise ValueError(
                f"{archive} cannot be unpacked: {error.strerror}; free space, or choose another folder"
            ) from error
        shown = repr(error)[:200]
        raise ValueError(
            f"{archive} is damaged or no such archive ({shown}); delete it and download it again"
        ) from error
    done.touch()


class _Refused(Exception):
    """A download or an archive that is not what it should be."""


def _inside(archive: Path, name: str) -> PurePosixPath:
    path = PurePosixPath(name.replace("\\", "/"))
    if path.is_absolute() or ".." in path.parts or ":" in name or not path.parts:
        raise _Refused(f"{archive} would write outside its folder, to {name!r}; it is not unpacked")
    return path


def _zip_members(archive: Path, most: int) -> Iterator[tuple[str, IO[bytes]]]:
    """Yields names and contents of the files of a .zip, of at most `most` bytes in all."""
    with zipfile.ZipFile(archive) as packed:
        members = [member for member in packed.infolist() if not member.is_dir()]
        _check_size(archive, sum(member.file_size for member in members), most)
        for member in members:
            with packed.open(member) as content:  # reads file_size bytes at most
                yield member.filename, content


def _tar_members(archive: Path, most: int) -> Iterator[tuple[str, IO[bytes]]]:
    """Yields names and contents of the files of a .tar.gz, of at most `most` bytes in all."""
    with (
        gzip.open(archive) as stream,
        tarfile.open(fileobj=cast("Any", _Bounded(archive, stream, most)), mode="r|") as packed,
    ):
        for member in packed:
            content = packed.extractfile(member) if member.isreg() and not member.issparse() else None
            if content is not None:
                yield member.name, content
            elif not member.isdir():
                raise _Refused(
                    f"{archive} has {member.name!r}, which is no plain file; it is not unpacked"
                )


class _Bounded:
    """The unpacked bytes of an archive, at most so many."""

    def __init__(self, archive: Path, stream: gzip.GzipFile, most: int) -> None:
        self._archive, self._stream, self._most = archive, stream, most
        self._done = 0

    def read(self, size: int) -> bytes:
        block = self._stream.read(size)
        self._done += len(block)
        _check_size(self._archive, self._done, self._most)
        return block


def _check_size(archive: Path, size: int, most: int) -> None:
    if size > most:
        raise _Refused(
            f"{archive} unpacks to more than {most:,} bytes, {_RATIO} times its size: no archive of this "
            f"data; delete it and download it again"
        )
