"""A folder that is written aside and put in place whole, or not at all."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_JOB, _LOCK = "job.json", "lock"


@contextmanager
def written_aside(out: Path) -> Iterator[Path]:
    """Gives the folder `OUT.part` to write into; it becomes `out` at the end, or goes on error."""
    _check_free(out)
    part = part_of(out)
    if part.exists():
        raise ValueError(
            f"{part} exists: another run writes it, or was killed; delete it if none runs"
        )
    try:
        part.mkdir(parents=True)
        yield part
        os.replace(part, out)
    except OSError as error:
        raise _explained(error, out, part) from error
    finally:
        shutil.rmtree(part, ignore_errors=True)


@contextmanager
def resumed_aside(out: Path, job: dict[str, Any] | None) -> Iterator[Path]:
    """The same, but what is interrupted or killed stays, and the same job goes on with it.

    job: what is to be made, and of what; JSON. None: nothing tells whether it is the same; then
    nothing stays. The folder is locked while it is written.
    """
    if job is None:
        with written_aside(out) as part:
            yield part
        return
    _check_free(out)
    part = part_of(out)
    _check_same_job(part, job)
    part.mkdir(parents=True, exist_ok=True)
    with open(part / _LOCK, "w") as lock:
        _take(lock, part)
        write_json_aside(part / _JOB, job)
        try:
            yield part
            for name in (_JOB, _LOCK):
                (part / name).unlink()
            os.replace(part, out)
        except (OSError, ValueError, MemoryError) as error:
            found = _explained(error, out, part) if isinstance(error, OSError) else error
            shutil.rmtree(part, ignore_errors=True)
            raise found from error


def part_of(out: Path) -> Path:
    """Where `out` is written before it is put in place."""
    return out.with_name(out.name + ".part")


def write_json_aside(path: Path, fields: Any) -> None:
    """Writes a file of JSON that is there whole, or as it was before."""
    aside = path.with_name(path.name + ".new")
    with open(aside, "w") as file:
        file.write(json.dumps(fields))
        file.flush()
        os.fsync(file.fileno())
    os.replace(aside, path)


def link_or_copy(source: Path, target: Path) -> None:
    """The same file in two folders: a hard link, or a copy across file systems; replaces `target`."""
    target.unlink(missing_ok=True)
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def _check_free(out: Path) -> None:
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ValueError(f"{out} exists and is no empty folder; delete it, or choose another name")


def _check_same_job(part: Path, job: dict[str, Any]) -> None:
    if not part.exists():
        return
    try:
        begun = json.loads((part / _JOB).read_text())
    except (OSError, ValueError, RecursionError):
        begun = None
    if begun is None and set(os.listdir(part)) <= {_LOCK, _JOB}:
        return  # killed before it had begun
    if begun != json.loads(json.dumps(job)):
        raise ValueError(
            f"{part} exists and is not of this preparation, but of one with other files or settings "
            f"that was stopped; run that one again to go on with it, or delete the folder"
        )


def _take(lock: Any, part: Path) -> None:
    try:
        import fcntl
    except ImportError:
        return  # no POSIX: two runs into one folder are not told apart
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise ValueError(f"another run writes {part}; wait for it, or stop it") from None


def _explained(error: OSError, out: Path, part: Path) -> BaseException:
    if error.errno not in (errno.ENOSPC, errno.EDQUOT):
        return error
    written = sum(file.stat().st_size for file in part.glob("*"))
    return ValueError(
        f"the disk of {out} is full after {written:,} bytes, which are removed again; free some "
        f"space, or choose another disk"
    )
