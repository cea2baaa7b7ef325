"""Chain: the versions of a model in a folder, each whole or a delta on the one before.

    FOLDER/base-0000000001/                   a bundle, with version.json: the head of its version
    FOLDER/delta-0000000002.safetensors       see `deltas`
    FOLDER/base-0000000040/                   version 40 once more, whole: deltas before it may go
    FOLDER/pin.json                           {"version": 31}: whoever follows stays at version 31

A version is there once its file or folder has its name. Versions are numbered without a gap.
"""

from __future__ import annotations

import dataclasses
import re
import shutil
import time
import zlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hotrows.runtime.atomic_files import files_below, sync, write_json
from hotrows.runtime.json_file import build, shown
from hotrows.serving.bundle import MANIFEST
from hotrows.serving.deltas import VERSION_FILE, VersionHead, read_head

HEAD, PIN = "version.json", "pin.json"
_BASE, _DELTA = re.compile(r"base-(\d{10})"), re.compile(r"delta-(\d{10})\.safetensors")


@dataclass(frozen=True)
class Chain:
    """The versions in a folder when it was looked at.

    bases, deltas: their numbers, ascending; pin: the version to stay at; None: the newest one.
    """

    folder: Path
    bases: tuple[int, ...]
    deltas: tuple[int, ...]
    pin: int | None = None

    @property
    def newest(self) -> int:
        """The number of the newest version; 0 where there is none."""
        return max([*self.bases, *self.deltas], default=0)

    @property
    def names(self) -> dict[str, int]:
        """The number of each version, by the name of its folder or file; bases come first."""
        bases = {base_path(self.folder, n).name: n for n in self.bases}
        return bases | {delta_path(self.folder, n).name: n for n in self.deltas}

    def way(self, current: int, target: int) -> tuple[int | None, range]:
        """How to get from version `current` to version `target`: the base to begin with anew, None where
        the deltas suffice, and the deltas to apply. ValueError says which version is missing."""
        deltas = range(current + 1, target + 1)
        if 0 < current <= target and set(deltas) <= set(self.deltas):
            return None, deltas
        for base in reversed(self.bases):
            deltas = range(base + 1, target + 1)
            if base <= target and set(deltas) <= set(self.deltas):
                return base, deltas
        if not 0 < target <= self.newest:
            raise ValueError(f"{self.folder} has no version {target:,}: {self.describe()}")
        start = max([b for b in self.bases if b <= target], default=0) or current
        absent = [n for n in range(start + 1, target + 1) if n not in self.deltas]
        which = f"the delta of version {absent[0]:,}" if absent and start else "an older base"
        raise ValueError(
            f"version {target:,} cannot be made: {which} is missing from {self.folder}, which has "
            f"{self.describe()}; bring it back, or wait for the next base"
        )

    def describe(self) -> str:
        """Says which versions there are, in a few words."""
        if not self.newest:
            return "no version of a model"
        deltas = f"{len(self.deltas):,} deltas up to version {self.deltas[-1]:,}" if self.deltas else ""
        bases = (
            f"bases of versions {', '.join(f'{n:,}' for n in self.bases)}" if self.bases else "no base"
        )
        return f"{bases}{' and ' if deltas else ''}{deltas}"


def look(folder: Path) -> Chain:
    """The versions in a folder now."""
    names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    return listed(folder, names)


def listed(folder: Path, names: Sequence[str]) -> Chain:
    """The versions that files of these names, ascending, are; the pin is that of the folder."""
    bases, deltas = (
        tuple(int(match[1]) for name in names if (match := kind.fullmatch(name)))
        for kind in (_BASE, _DELTA)
    )
    return Chain(folder, bases, deltas, _pin(folder))


def base_path(folder: Path, number: int) -> Path:
    return folder / f"base-{number:010}"


def delta_path(folder: Path, number: int) -> Path:
    return folder / f"delta-{number:010}.safetensors"


def base_head(base: Path) -> VersionHead:
    """The head of a base."""
    try:
        fields = VERSION_FILE.read(base / HEAD)
    except FileNotFoundError:
        raise ValueError(f"{base} is no base of a chain of versions: it has no {HEAD}") from None
    return build(VersionHead, fields)


def write_base_head(base: Path, head: VersionHead) -> VersionHead:
    """Writes the head of a base whose bundle is written; of a first version with its checksum."""
    if not head.checksum:
        head = dataclasses.replace(head, checksum=zlib.crc32((base / MANIFEST).read_bytes()))
    write_json(base / HEAD, VERSION_FILE.sign(dataclasses.asdict(head)))
    return head


def head_of(chain: Chain, number: int) -> VersionHead:
    """The head of a version."""
    if number in chain.deltas:
        return read_head(delta_path(chain.folder, number))
    return base_head(base_path(chain.folder, number))


def check_follows(before: VersionHead, after: VersionHead, path: Path) -> None:
    """Refuses a delta that was not made on this version."""
    if after.chain != before.chain:
        raise ValueError(
            f"{path} is of another model: its chain is {after.chain}, not {before.chain}; publish each "
            f"run into a folder of its own"
        )
    if (after.number, after.previous_checksum) != (before.number + 1, before.checksum):
        raise ValueError(
            f"{path} is not a delta on version {before.number:,} as it is here, but on another version "
            f"{after.number - 1:,}; publish again into an empty folder"
        )


def pin(folder: Path, number: int | None) -> None:
    """Makes whoever follows go to a version and stay there; None: to the newest one from here on."""
    if number is None:
        (folder / PIN).unlink(missing_ok=True)
        return
    look(folder).way(0, number)
    write_pin(folder, number)


def write_pin(folder: Path, number: int) -> None:
    """Writes the pin of a version that is known to be there."""
    write_json(folder / PIN, {"version": number})


def prune(folder: Path, keep: int) -> None:
    """Deletes all versions before the last `keep` bases, but for those that a pinned version needs."""
    chain = look(folder)
    firsts = list(chain.bases[-keep:])
    if chain.pin is not None:
        firsts += [base for base in chain.bases if base <= chain.pin][-1:]
    first = min(firsts, default=0)
    for base in chain.bases:
        if base < first:
            aside = base_path(folder, base).with_suffix(".gone")  # at once for whoever looks
            with suppress(OSError):
                base_path(folder, base).rename(aside)
    sync(folder)  # no base comes back, after a power failure, whose files or deltas are deleted
    for number in chain.deltas:
        if number <= first:
            delta_path(folder, number).unlink(missing_ok=True)
    sweep(folder, ".gone")


def sweep(folder: Path, *ends: str) -> None:
    """Deletes versions whose names have these ends: half deleted, or half written by a killed process."""
    for path in folder.iterdir():
        if path.suffix in ends and (_BASE.fullmatch(path.stem) or _DELTA.fullmatch(path.stem)):
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)


def describe(folder: Path) -> Iterator[dict[str, Any]]:
    """Yields the versions in a folder: number, step, seconds since it was made, bytes, what it is."""
    chain = look(folder)
    for number in sorted({*chain.bases, *chain.deltas}):
        base, delta = base_path(folder, number), delta_path(folder, number)
        kinds = [
            k for k, numbers in (("base", chain.bases), ("delta", chain.deltas)) if number in numbers
        ]
        try:
            head = head_of(chain, number)
            size = sum(size for _, size in files_below(base)) if "base" in kinds else 0
            size += delta.stat().st_size if "delta" in kinds else 0
        except (FileNotFoundError, ValueError):
            now = look(folder)
            if number in (*now.bases, *now.deltas):
                raise
            continue  # it was deleted meanwhile, since newer ones came
        of_run = {"version": number, "step": head.step, "age": time.time() - head.time}
        yield {**of_run, "kinds": kinds, "bytes": size, "pinned": number == chain.pin}


def _pin(folder: Path) -> int | None:
    try:
        text = (folder / PIN).read_text()
    except FileNotFoundError:
        return None
    match = re.fullmatch(r'\s*\{\s*"version"\s*:\s*(\d{1,10})\s*\}\s*', text)
    if match is None:
        raise ValueError(f'{folder / PIN} must be {{"version": NUMBER}}, not {shown(text)}; delete it')
    return int(match[1])
