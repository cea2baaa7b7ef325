"""The pointer of a run: which of its checkpoints is the last, which the best, which earlier ones stay."""

from __future__ import annotations

import shutil
from collections.abc import Collection
from dataclasses import asdict, dataclass
from pathlib import Path

from hotrows.engine.checkpoint.fetch import FOLDER
from hotrows.engine.checkpoint.files import verify
from hotrows.engine.checkpoint.manifest import NAME, bases, read_manifest
from hotrows.runtime.atomic_files import write_json
from hotrows.runtime.file_sums import FileSum
from hotrows.runtime.json_file import JsonFile, build, is_name

POINTER = "checkpoints.json"


@dataclass(frozen=True)
class Pointer:
    """Names of the last and the best checkpoint of a run, and of earlier ones that stay."""

    last: str
    best: str
    kept: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """All names, without repetition."""
        return tuple(dict.fromkeys((self.last, self.best, *self.kept)))


def point(
    run: Path | str, pointer: Pointer, manifest: FileSum | None = None, used: Collection[str] = ()
) -> None:
    """Makes these the checkpoints of `run`; deletes every other one that is not a base of them.

    manifest: of the last one, as it was written; where another one is found, nothing changes. used: names
    of others that stay.
    """
    run = Path(run)
    if manifest is not None:
        _check_manifest(run / FOLDER / pointer.last, manifest)
    needed = {*used, *needed_by(run, pointer)}
    write_json(run / POINTER, _file(run).sign(asdict(pointer)))
    for folder in (run / FOLDER).iterdir():
        if folder.name not in needed:
            shutil.rmtree(folder)


def needed_by(run: Path, pointer: Pointer) -> set[str]:
    """The names of the checkpoints that a pointer names, and of their bases."""
    return {*pointer.names, *(base for name in pointer.names for base in bases(run / FOLDER / name))}


def _check_manifest(folder: Path, expected: FileSum) -> None:
    try:
        verify(folder / NAME, expected)
    except ValueError:
        raise ValueError(
            f"checkpoint {folder} is not as it was written, so nothing points to it: another process "
            f"writes to this run; end it, and resume the run"
        ) from None


def pointed(run: Path | str) -> Pointer | None:
    """The pointer of `run`, None where it has no checkpoint yet."""
    run = Path(run)
    path, file = run / POINTER, _file(run)
    if not path.exists():
        return None
    fields = file.read(path)
    with file.naming(path):
        pointer = build(Pointer, fields)
        if not all(map(is_name, pointer.names)):
            raise ValueError(
                f"expected names of checkpoints, found {', '.join(map(repr, pointer.names))}"
            )
    return pointer


def _file(run: Path) -> JsonFile:
    """The kind of file that the pointer of a run is."""
    return JsonFile(f'write {{"last": NAME, "best": NAME}} with names from {run / FOLDER}')


def moved_on(before: Pointer | None, name: str, is_best: bool, keep_last: int) -> Pointer:
    """The pointer after `name` became the last checkpoint, with the last `keep_last` checkpoints."""
    if before is None:
        return Pointer(name, name)
    others = [other for other in dict.fromkeys((*before.kept, before.last)) if other != name]
    kept = others[-(keep_last - 1) :] if keep_last > 1 else []
    return Pointer(name, name if is_best else before.best, tuple(kept))


def folder_of(run: Path | str, which: str = "best") -> Path:
    """The folder of the `last` or the `best` checkpoint of `run`."""
    run = Path(run)
    if which not in ("last", "best"):
        raise ValueError(f"checkpoint must be 'last' or 'best', not {which!r}")
    pointer = pointed(run)
    if pointer is None:
        raise ValueError(f"run {run} has no checkpoint yet: train it first, or name another run")
    return run / FOLDER / getattr(pointer, which)


def generations(folder: Path | str, rank: int = 0, num_ranks: int = 1) -> list[int]:
    """The generations of a rank's file stores at the checkpoint in `folder`; none where rows were in
    memory, or where another number of ranks wrote."""
    folder = Path(folder)
    manifest = read_manifest(folder)
    if not manifest.stores or manifest.num_ranks != num_ranks:
        return []
    return list(manifest.stores[rank])


def retained(run: Path | str, rank: int = 0, num_ranks: int = 1) -> list[list[int]]:
    """The generations of a rank's file stores that `run` may go back to, by checkpoint; for
    `CachedTables.retain`."""
    run = Path(run)
    pointer = pointed(run)
    folders = [run / FOLDER / name for name in pointer.names] if pointer else []
    return [numbers for folder in folders if (numbers := generations(folder, rank, num_ranks))]
