"""RemoteFiles: files below a URL of fsspec, such as s3://bucket/run, by their names.

    files = open_files("s3://bucket/run")
    files.put("config.json", path)          # complete, or not there
    files.get("config.json", other_path)    # written to other_path.part, then renamed

A call that fails as a busy or unreachable server makes it fail is repeated for `patience` seconds in all;
the error then names the URL. What repeating does not change (no such file, no permission) fails at once.
"""

from __future__ import annotations

import errno
import functools
import logging
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from hotrows.runtime.atomic_files import publish, replaced, write_first
from hotrows.runtime.extras import needs
from hotrows.runtime.suggestions import one_line

log = logging.getLogger("hotrows")

Result = TypeVar("Result")
PATIENCE = 60.0  # seconds
_FIRST_PAUSE, _MOST_PAUSE = 0.1, 5.0  # seconds between two tries
_ANSWER, _CONNECT = 15, 5  # seconds for an answer, and for a connection
_FINAL = (FileNotFoundError, FileExistsError, PermissionError, IsADirectoryError, NotADirectoryError)
_NO_SERVER = (NotImplementedError, TypeError, ValueError, ImportError)
# S3 clients repeat calls by themselves, for minutes in all: here once, as `RemoteFiles` does that.
_CLIENT = {"connect_timeout": _CONNECT, "read_timeout": _ANSWER, "retries": {"max_attempts": 0}}


class RemoteFiles:
    """The files below `url`. stopped: once it is set, calls that fail are not repeated."""

    def __init__(self, url: str, patience: float = PATIENCE) -> None:
        self.url, self._patience = url.rstrip("/"), patience
        self.stopped = threading.Event()
        is_s3 = url.startswith(("s3://", "s3a://"))
        with needs(url, *(["fsspec", "s3fs"] if is_s3 else ["fsspec"])):
            import fsspec
        try:
            options: dict[str, Any] = {"config_kwargs": _CLIENT} if is_s3 else {}
            self._system, self._root = fsspec.core.url_to_fs(self.url, **options)
        except (ImportError, ValueError, OSError) as error:
            raise ValueError(f"{url} cannot be opened: {one_line(error)}") from None
        if is_s3:
            self._system.retries = 1
        self._root = self._root.rstrip("/")

    def stamps(self) -> dict[str, list[str]]:
        """By name, the size of each file, and its time or checksum: they differ once it was replaced. The
        name of a URL that is itself a file is ""."""

        def listed() -> dict[str, Any]:
            self._system.invalidate_cache()
            try:
                return self._system.find(self._root, detail=True)
            except FileNotFoundError:
                return {}

        marks = ("ETag", "etag", "mtime", "LastModified", "created")
        return {
            str(path)[len(self._root) + 1 :]: [
                str(facts["size"]), *[str(facts[mark]) for mark in marks if mark in facts][:1]
            ]
            for path, facts in self._tried(listed).items()
            if not str(path).endswith(".part")  # what a kill has left
        }  # fmt: skip

    def names(self) -> set[str]:
        return {*self.stamps()}

    def put(self, name: str, file: Path) -> None:
        self._tried(lambda: self._complete(name, lambda path: self._system.put_file(str(file), path)))

    def write(self, name: str, content: bytes) -> None:
        """Writes a small file."""
        self._tried(lambda: self._complete(name, lambda path: self._system.pipe_file(path, content)))

    def put_new(self, name: str, file: Path) -> bool:
        """Puts a small file, unless there is one of that name; returns whether it did."""
        path = self._path(name)

        def put() -> bool:
            if "file" in self._made(path).protocol:
                return write_first(Path(path), file.read_bytes())
            try:
                with self._system.open(path, "xb") as target:
                    target.write(file.read_bytes())
            except FileExistsError:
                return False
            except (NotImplementedError, ValueError):  # a file system without that mode
                if self._system.exists(path):
                    return False
                self._system.put_file(str(file), path)
            return True

        return self._tried(put)

    def get(self, name: str, file: Path, size: int | None = None) -> None:
        """Reads a file into `file`, which is replaced once it is complete. size: its bytes, if known."""
        path = self._path(name)

        def got() -> None:
            with replaced(file) as part:
                self._system.get_file(path, str(part))
                if size is not None and part.stat().st_size != size:
                    raise OSError(f"{part.stat().st_size:,} of {size:,} bytes came")

        self._tried(got)

    def read(self, name: str) -> bytes | None:
        """The content of a small file; None: there is none."""
        try:
            return self._tried(lambda: self._system.cat_file(self._path(name)))
        except FileNotFoundError:
            return None

    def remove(self, name: str) -> None:
        def removed() -> None:
            try:
                self._system.rm_file(self._path(name))
            except FileNotFoundError:
                return

        self._tried(removed)

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}" if name else self._root

    def _complete(self, name: str, write: Callable[[str], Any]) -> None:
        """Writes a file. An object is complete or absent; in a folder it has another name until then."""
        path = self._path(name)
        if "file" not in self._made(path).protocol:
            write(path)
            return
        part = Path(f"{path}.{os.getpid()}-{threading.get_native_id()}.part")
        try:
            write(str(part))
            publish(part, Path(path))
        except BaseException:
            part.unlink(missing_ok=True)
            raise

    def _made(self, path: str) -> Any:
        """The file system, once it has the folder of a path; object stores have no folders."""
        if "file" in (protocol := self._system.protocol) or "memory" in protocol:
            self._system.makedirs(path.rpartition("/")[0], exist_ok=True)
        return self._system

    def _tried(self, call: Callable[[], Result]) -> Result:
        """The call's result; repeated while the server fails, for `patience` seconds in all."""
        end, pause = time.monotonic() + self._patience, _FIRST_PAUSE
        while True:
            try:
                return call()
            except Exception as error:
                is_late = time.monotonic() + pause > end
                if _is_final(error) or is_late or self.stopped.wait(pause):
                    raise _named(error, self.url) from error
                pause = min(2 * pause, _MOST_PAUSE)


def _is_final(error: Exception) -> bool:
    """True if a call would fail again: no file, no permission, no room, or a mistake of ours."""
    is_full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
    return isinstance(error, (*_FINAL, *_NO_SERVER)) or is_full or "Credentials" in type(error).__name__


def _named(error: Exception, url: str) -> Exception:
    """The error with the URL in its words; that of a file on this machine stays as it is."""
    if isinstance(error, OSError) and error.errno is not None and error.filename is not None:
        return error
    kind = next((kind for kind in (*_FINAL, *_NO_SERVER) if isinstance(error, kind)), OSError)
    return kind(f"{url} cannot be reached: {one_line(error)}; check the address, and the way to it")


@functools.cache
def open_files(url: str) -> RemoteFiles:
    """The files below a URL; one object for each URL."""
    return RemoteFiles(url)
