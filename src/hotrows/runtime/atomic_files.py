"""Files and folders that are there complete, or as they were before: written aside, then renamed.

    with replaced(path) as part:        # PATH.part
        part.write_text("new")          # after an error, `path` stays as it was

    write PATH.part  ->  sync its bytes  ->  rename it to PATH  ->  sync the folder of PATH

All writers share one durability: when the block ends, a power failure loses nothing of it. A link keeps
its place, and what it points to is replaced; a pipe or a device is written itself (`output`); a URL is
refused, as no writer here reaches one.
"""

from __future__ import annotations

import errno
import io
import json
import logging
import os
import re
import shutil
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from hotrows.runtime.locks import NAME as LOCK
from hotrows.runtime.locks import Held, Lock

STDOUT = Path("/dev/stdout")
_JOB = "job.json"
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/+")  # a `Path` has one slash of it
_DESCRIPTOR = re.compile(r"/(?:dev|proc/self)/fd/(\d+)")
_STREAMS = {"/dev/stdin": 0, "/dev/stdout": 1, "/dev/stderr": 2}
_LONGEST_NAME = 255
_WITHOUT_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP}  # of a file system without hard links
log = logging.getLogger("hotrows")


def local(place: Path | str) -> Path:
    """The path of a place on this machine; ValueError for a URL, of which `Path` makes a folder `s3:`.

    >>> local("runs/a").name
    'a'
    """
    if "://" in (text := address(Path(place))):
        raise ValueError(f"{text} is a URL, and this must be a path: copy it to a disk, or mount it")
    return Path(place)


def address(place: Path | str) -> str:
    """The text of a path or a URL, with the slashes that a URL has lost if it was made a `Path`.

    >>> address(Path("s3://bucket/day=3")), address(Path("file:///mnt/a"))
    ('s3://bucket/day=3', 'file:///mnt/a')
    """
    text = os.fspath(place)
    if isinstance(place, str) or not (url := _URL.match(text)):
        return text
    slashes = "///" if url[1] == "file" else "//"
    return f"{url[1]}:{slashes}{text[url.end() :]}"


def absolute(place: Path | str) -> Path:
    """The local path from the root, which stays what it is when the working directory changes."""
    path = local(place).absolute()
    for name in path.parts:
        if (size := len(os.fsencode(name))) > _LONGEST_NAME:
            short = f"{name[:40]}.."
            raise ValueError(
                f"{short} has {size} bytes, and names have at most 255: choose a shorter one"
            )
    return path


def is_special(path: Path) -> bool:
    """True for standard output, a pipe or a device: it is written and not replaced."""
    return _descriptor(path) is not None or (path.exists() and not path.is_file())


@contextmanager
def output(path: Path) -> Iterator[IO[bytes]]:
    """Opens what a user has named, to write it: a file is replaced once it is complete (`replaced`), a
    stream gets the bytes as they come, and standard output what follows after what it has."""
    if not is_special(path):
        with replaced(path) as part, open(part, "wb") as file:
            yield file
        return
    fd = _descriptor(path)
    with named(path), io.BufferedWriter(_Stream(path if fd is None else os.dup(fd), "wb")) as file:
        yield file


class _Stream(io.FileIO):
    """A file that is written front to back by `write` alone. Its position, for which writers of formats
    ask, is counted."""

    _written = 0

    def write(self, data: Any) -> int:
        written = super().write(data) or 0
        self._written += written
        return written

    def tell(self) -> int:
        return self._written

    def fileno(self) -> int:  # NumPy would seek in it
        raise io.UnsupportedOperation("fileno")


def _descriptor(path: Path) -> int | None:
    """The open file of this process that a path names: opened once more, it would begin anew."""
    match = _DESCRIPTOR.fullmatch(str(path))
    return int(match[1]) if match else _STREAMS.get(str(path))


def _target(path: Path) -> Path:
    """Where a link points to, so that it stays; any other path as it is."""
    path = local(path)
    return Path(os.path.realpath(path)) if path.is_symlink() else path


@contextmanager
def replaced(path: Path) -> Iterator[Path]:
    """Gives the path PATH.part to write a file to, which becomes `path`; after an error it goes."""
    path = _target(path)
    if is_special(path) and not path.is_dir():
        raise ValueError(f"{path} is a pipe or a device, which holds no such file; name a file")
    part = absolute(part_of(path))
    try:
        with named(path):
            yield part
            publish(part, path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


@contextmanager
def named(path: Path) -> Iterator[None]:
    """Gives an OSError the name of the file `path`: one of a write has none, one of an open that of the
    part."""
    try:
        yield
    except OSError as error:
        if error.errno is None:  # of NumPy, "512 requested and 0 written"
            raise OSError(errno.EIO, str(error), str(path)) from error
        if error.filename in (None, *map(str, (part_of(path), absolute(part_of(path))))):
            error.filename = str(path)
        raise


@contextmanager
def new_folder(
    path: Path, job: dict[str, Any] | None = None, replaces: str | None = None
) -> Iterator[Path]:
    """Gives the folder PATH.part to write into, which becomes `path`; after an error it goes.

    job: what is made, and from what, as JSON. With it the folder stays when the process is killed or
    interrupted, an equal job continues in it, and a lock keeps two processes apart. replaces: a folder
    with this file in it is replaced, once the new one is complete.
    """
    path = _target(path)
    part = absolute(part_of(path))
    is_replaced = replaces is not None and (path / replaces).is_file()
    if not is_replaced and path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise ValueError(f"{path} exists and is no empty folder; delete it, or choose another name")
    with _resumed(part, job) if job is not None else _begun(part):
        try:
            make_folder(part)
            yield part
            publish(part, path, is_replaced)
            if job is not None:  # until here, as without them nobody could continue in the folder
                for name in (_JOB, LOCK):
                    (path / name).unlink()
                sync(path)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                with named(path):
                    raise
            written = sum(file.stat().st_size for file in part.glob("*"))
            raise ValueError(
                f"the disk of {path} is full after {written:,} bytes, which are removed again; free "
                f"some space, or choose another disk"
            ) from error


def publish(part: Path, path: Path, replaces: bool = False) -> None:
    """Renames the complete file or folder `part` to `path`, durably: bytes first, then names.

    replaces: `path` is a folder, which is deleted once the new one has its name; until then it is in a
    new folder beside it, and comes back where the new one cannot be renamed.
    """
    for folder, _, names in os.walk(part):
        for name in names:
            sync(Path(folder, name))
        sync(Path(folder))
    if part.is_file():
        sync(part)
    if not replaces:
        os.replace(part, path)
        sync(path.parent)
        return
    aside = Path(tempfile.mkdtemp(prefix=f"{path.name}.old-", dir=path.parent))
    os.replace(path, aside / path.name)
    try:
        os.replace(part, path)
    except OSError:
        os.replace(aside / path.name, path)
        aside.rmdir()
        raise
    sync(path.parent)
    shutil.rmtree(aside)


def sync(path: Path) -> None:
    """Makes the bytes of a file, or the names in a folder, durable; on POSIX systems."""
    if os.name != "posix":
        return
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def shown(path: Path) -> Path:
    """The path as it is written in the working directory, for messages."""
    try:
        return path.relative_to(Path.cwd())
    except (OSError, ValueError):  # that is gone, or the path is elsewhere
        return path


def part_of(path: Path) -> Path:
    """Where a file or folder is written before it becomes `path`."""
    return path.with_name(path.name + ".part")


def write_text(path: Path, text: str) -> None:
    """Writes a small file; paths in its text may have bytes that are no UTF-8."""
    with output(path) as file:
        file.write(text.encode("utf-8", "backslashreplace"))


def files_below(folder: Path) -> Iterator[tuple[Path, int]]:
    """The files below a folder, and their bytes, without those that others delete meanwhile, for which
    `Path.rglob` raises."""
    for parent, _, names in os.walk(folder):
        for name in names:
            with suppress(FileNotFoundError):
                path = Path(parent, name)
                yield path, path.stat().st_size


def write_picture(path: Path, drawing: str) -> Path | None:
    """Writes a drawing, with the folders above it; a failure is a warning, and None, as commands print
    what it shows."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, drawing)
    except OSError as error:
        log.warning("the picture %s was not written: %s", path, error.strerror or error)
        return None
    return path


def write_first(path: Path, content: bytes) -> bool:
    """Writes a small file unless there is one; of several writers the first wins. Returns whether it was
    this one."""
    part = path.with_name(f"{path.name}.{os.getpid()}-{threading.get_native_id()}.part")
    try:
        part.write_bytes(content)
        sync(part)
        try:
            os.link(part, path)  # which replaces nothing, as a rename would
        except OSError as error:
            if error.errno not in _WITHOUT_LINKS:
                raise
            with path.open("xb") as file:
                file.write(content)
    except FileExistsError:
        return False
    finally:
        part.unlink(missing_ok=True)
    sync(path.parent)
    return True


def write_json(path: Path, fields: Any) -> None:
    """Writes a file of JSON."""
    write_text(path, json_text(fields))


def json_text(fields: Any) -> str:
    """The JSON of a file that people may read: indented, and without NaN."""
    return json.dumps(fields, indent=2, allow_nan=False) + "\n"


def link_or_copy(source: Path, target: Path) -> None:
    """Puts a file into a second folder, by a hard link or across file systems by a copy; replaces
    `target`. Its bytes are durable, its name is when the folder is synced."""
    target.unlink(missing_ok=True)
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
        sync(target)


def make_folder(path: Path) -> None:
    """Makes a folder, and those above it that are missing; their names are durable."""
    path = _target(path)
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    for folder in reversed(missing):
        if folder.is_symlink():
            link = f"{folder} is a link to {os.readlink(folder)}"
            raise ValueError(f"{link}, which is not there: correct or remove it")
        folder.mkdir(exist_ok=True)
        sync(folder.parent)


@contextmanager
def _begun(part: Path) -> Iterator[None]:
    """Checks that the folder `part` is new; it is gone at the end, complete or not."""
    if part.exists():
        raise ValueError(f"{part} exists: another run writes it, or was killed; delete it if none runs")
    try:
        yield
    finally:
        shutil.rmtree(part, ignore_errors=True)


@contextmanager
def _resumed(part: Path, job: dict[str, Any]) -> Iterator[None]:
    """Makes the folder `part`, or continues in that of an equal job; locked meanwhile. It is deleted
    after errors that would come again, and stays after an interruption."""
    _check_same_job(part, job)
    make_folder(part)
    try:
        lock = Lock(part)
    except Held as held:
        raise ValueError(f"another run writes {part}: {held.holder}; wait for it, or stop it") from None
    try:
        write_text(part / _JOB, json.dumps(job))
        yield
    except (OSError, ValueError, MemoryError):
        shutil.rmtree(part, ignore_errors=True)
        raise
    finally:
        lock.release()


def _check_same_job(part: Path, job: dict[str, Any]) -> None:
    if not part.exists():
        return
    try:
        begun = json.loads((part / _JOB).read_text())
    except (OSError, ValueError, RecursionError):
        begun = None
    if begun is None and set(os.listdir(part)) <= {LOCK, _JOB, f"{_JOB}.part"}:
        return  # killed before it had begun
    if begun != json.loads(json.dumps(job)):
        raise ValueError(
            f"{part} exists and is not of this preparation, but of one with other files or settings "
            f"that was stopped; run that one again to go on with it, or delete the folder"
        )
