"""Runs at URLs, read: the small files of a run at once, those of a checkpoint when they are needed.

    run = opened("s3://bucket/run", rank=1)   # CACHE/copies/DIGEST/run: the copy of this rank
    bring(run / "checkpoints/step-9", sums)   # those of its files that are not there

A rank's copy has what that rank wrote itself, so that a process that goes on where it was fetches little.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from hotrows.engine.checkpoint.files import verify
from hotrows.runtime.atomic_files import absolute, address
from hotrows.runtime.file_sums import FileSum, sum_of
from hotrows.runtime.locks import NAME as LOCK
from hotrows.runtime.remote import fetched, is_url
from hotrows.runtime.remote.copies import copy_of, get_all, note_origin, origin_of, update
from hotrows.runtime.remote.files import open_files

FOLDER, MANIFEST = "checkpoints", "manifest.json"


def opened(place: Path | str, rank: int = 0, scratch: str | None = None) -> Path:
    """The folder of a run to train; of a URL a rank's own copy, with what the run has there.

    scratch: the folder of copies (default: in the cache of the user).
    """
    if not is_url(place):
        return absolute(place)
    url = address(place).rstrip("/")
    run = copy_of(url, f"rank {rank}", None if scratch is None else absolute(scratch))
    _update(run, url, partial(_is_read, rank))
    return run


def fetched_run(place: Path | str) -> Path:
    """The folder of a run to read; of a URL a copy."""
    return fetched(place, partial(_update, is_wanted=partial(_is_read, 0)))


def _update(run: Path, url: str, is_wanted: Callable[[str], bool]) -> None:
    """Makes a copy have the small files of a run at a URL, and no checkpoints that are not there."""
    if open_files(url).names() - {LOCK}:
        update(run, url, is_wanted)
    else:  # it has not begun
        shutil.rmtree(run, ignore_errors=True)
        note_origin(run, url, {})
    for folder in (run / FOLDER).glob("*"):
        if not (folder / MANIFEST).exists():
            shutil.rmtree(folder)


def _is_read(rank: int, name: str) -> bool:
    """True for a file that each rank reads, or the first one alone; manifests are among them."""
    if name.startswith(f"{FOLDER}/"):
        return name.endswith(f"/{MANIFEST}")
    return name != LOCK and (rank == 0 or ("/" not in name and name.endswith(".json")))


def bring(folder: Path, sums: Mapping[str, FileSum]) -> None:
    """Reads those of the files of a checkpoint that this machine does not have, where its run is a copy;
    ValueError for one that is not as it was written."""
    run = folder.parent.parent
    url = origin_of(run)
    if url is None:
        return
    absent = {name: of_file for name, of_file in sums.items() if not _is_there(folder / name, of_file)}
    prefix = f"{FOLDER}/{folder.name}/"
    targets = {prefix + name: folder / name for name in absent}
    get_all(open_files(url), targets, {prefix + name: of_file.bytes for name, of_file in absent.items()})
    for name, of_file in absent.items():
        verify(folder / name, of_file)


def _is_there(path: Path, expected: FileSum) -> bool:
    return path.is_file() and path.stat().st_size == expected.bytes and sum_of(path) == expected
