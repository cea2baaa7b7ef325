"""Copies on this machine of what is at a URL, so that all other code reads and writes paths.

    fetched("s3://bucket/enc")             # CACHE/copies/DIGEST/enc, brought up to date
    with sent("s3://bucket/enc") as path:  # a new path, whose file or folder is sent at the end
        prepare(raw, schema, path)

    CACHE/copies/DIGEST/origin.json        # the URL, and what is known of its files
    CACHE/copies/DIGEST/enc/

A folder is sent whole: its JSON files, which say that it is complete, last.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hotrows.runtime.atomic_files import absolute, address, write_json
from hotrows.runtime.locks import Lock
from hotrows.runtime.machine import cache_folder
from hotrows.runtime.remote.files import RemoteFiles, open_files

_ORIGIN = "origin.json"
_AT_ONCE = 8  # files that are on their way
_OTHER_RANK = 3600.0  # seconds for another process of this machine to fetch the same


def is_url(place: Path | str) -> bool:
    """True for s3://bucket/run, also as a `Path`, which has one slash less."""
    return "://" in address(place)


def copy_of(url: str, owner: str = "", below: Path | None = None) -> Path:
    """The path of a copy of what is at a URL. owner: whose copy, where processes of a machine have their
    own; below: the folder of copies (default: in the cache of the user)."""
    digest = hashlib.sha256(f"{url}\n{owner}".encode()).hexdigest()[:16]
    return (below or cache_folder() / "copies") / digest / url.rstrip("/").rpartition("/")[2]


def origin_of(path: Path) -> str | None:
    """The URL of which a path is a copy; None: of none."""
    url = _known(path).get("url")
    return url if isinstance(url, str) else None


def named(path: Path) -> str:
    """What messages call a path: the URL of a copy."""
    return origin_of(path) or os.fspath(path)


def fetched(place: Path | str, bring: Callable[[Path, str], Any] | None = None) -> Path:
    """The path of a place to read: of a URL that of its copy, with the files that the URL has now, or
    those that `bring` gives it."""
    if not is_url(place):
        return Path(place)
    url = address(place).rstrip("/")
    path = copy_of(url)
    with locked(path):
        (bring or update)(path, url)
    return path


def update(
    path: Path, url: str, is_wanted: Callable[[str], bool] = lambda name: True
) -> dict[str, list[str]]:
    """Makes a copy have those files of a URL that are wanted, and no others of these; ValueError where
    the URL has none. Returns the stamps of all of its files."""
    files = open_files(url)
    stamps = files.stamps()
    if not stamps:
        raise ValueError(f"{url} does not exist; check the address")
    note_origin(path, url)
    known = _known(path).get("stamps", {})
    wanted = [name for name in stamps if is_wanted(name)]
    for name in wanted:
        if ".." in name.split("/") or name.startswith("/"):
            raise ValueError(f"{url} has a file {name!r}, whose name leads elsewhere")
    old = [name for name in wanted if known.get(name) != stamps[name] or not (path / name).exists()]
    get_all(files, {name: path / name for name in old}, {name: int(stamps[name][0]) for name in old})
    for file in path.rglob("*") if path.is_dir() else ():
        name = file.relative_to(path).as_posix()
        if file.is_file() and name not in stamps and is_wanted(name):
            file.unlink()
    came = {**as_fetched(path), **{name: time_and_size(path / name) for name in old}}
    note_origin(path, url, {name: stamps[name] for name in wanted}, came)
    return stamps


def time_and_size(file: Path) -> tuple[int, int]:
    stat = file.stat()
    return stat.st_mtime_ns, stat.st_size


def as_fetched(path: Path) -> dict[str, tuple[int, int]]:
    """Time and size of the files of a copy, by name, as they came from its URL."""
    return {name: (time, size) for name, (time, size) in _known(path).get("files", {}).items()}


def get_all(files: RemoteFiles, targets: dict[str, Path], sizes: dict[str, int]) -> None:
    """Reads files, several at once, each into its path."""
    for folder in {target.parent for target in targets.values()}:
        folder.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        list(pool.map(lambda name: files.get(name, targets[name], sizes[name]), targets))


def note_origin(
    path: Path,
    url: str,
    stamps: dict[str, list[str]] | None = None,
    files: dict[str, tuple[int, int]] | None = None,
) -> None:
    """Notes of which URL a path is a copy. stamps: of the files that it has; files: see `as_fetched`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    known = _known(path) if stamps is None else {"stamps": stamps, "files": files or {}}
    write_json(path.parent / _ORIGIN, {"stamps": {}, **known, "name": path.name, "url": url})


@contextmanager
def sent(place: Path | str, overwrite: bool = False) -> Iterator[Path]:
    """Yields the path of a place to write; of a URL one that is sent at the end, where it was written.

    overwrite: whether a complete one may be there already.
    """
    if not is_url(place):
        yield absolute(place)
        return
    url = address(place).rstrip("/")
    files = open_files(url)
    if not overwrite and any(_is_last(name) for name in files.names()):
        raise ValueError(f"{url} exists already: delete it, or choose another name")
    folder = tempfile.mkdtemp(prefix="hotrows-")
    try:
        path = Path(folder, url.rpartition("/")[2])
        note_origin(path, url)
        yield path
        if path.exists():  # all writers rename what is complete
            send(files, path)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def send(files: RemoteFiles, path: Path) -> None:
    """Sends a file, or all files of a folder; those last that say that it is complete."""
    if path.is_file():
        files.put("", path)
        return
    names = sorted(file.relative_to(path).as_posix() for file in path.rglob("*") if file.is_file())
    put_all(files, path, [name for name in names if not _is_last(name)])
    put_all(files, path, filter(_is_last, names))


def put_all(files: RemoteFiles, path: Path, names: Iterable[str]) -> None:
    """Sends files of a folder, several at once."""
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        list(pool.map(lambda name: files.put(name, path / name), names))


def _is_last(name: str) -> bool:
    return "/" not in name and (not name or name.endswith(".json"))


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Lets one process of this machine at a time into a copy."""
    lock = Lock(path.parent, _OTHER_RANK)
    try:
        yield
    finally:
        lock.release()


def _known(path: Path) -> dict[str, Any]:
    try:
        fields = json.loads((path.parent / _ORIGIN).read_bytes())
    except (OSError, ValueError):
        return {}
    is_ours = isinstance(fields, dict) and fields.get("name") == path.name
    return fields if is_ours else {}
