"""A folder that is written aside and put in place whole, or not at all."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def written_aside(out: Path) -> Iterator[Path]:
    """Gives the folder `OUT.part` to write into; it becomes `out` at the end, or goes on error."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ValueError(f"{out} exists and is no empty folder; delete it, or choose another name")
    part = out.with_name(out.name + ".part")
    if part.exists():
        raise ValueError(
            f"{part} exists: another run writes it, or was killed; delete it if none runs"
        )
    try:
        part.mkdir(parents=True)
        yield part
        os.replace(part, out)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        written = sum(file.stat().st_size for file in part.glob("*"))
        raise ValueError(
            f"the disk of {out} is full after {written:,} bytes of prepared data, which are "
            f"removed again; free some space, or choose another disk"
        ) from error
    finally:
        shutil.rmtree(part, ignore_errors=True)


def link_or_copy(source: Path, target: Path) -> None:
    """The same file in two folders: a hard link, or a copy across file systems."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
