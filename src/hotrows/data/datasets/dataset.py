"""A public data set: its files, its licence, and the builder of its samples, which are then prepared.

The raw files of some sets are rows of samples already, which `prepare` reads unchanged. Others are logs
and tables that must be joined first; their builder writes Parquet files of samples. A complete folder
of samples appears at once and records its data set, raw folder and seed, so that it is built only once:
a run that was interrupted while encoding reuses it.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hotrows.data.stored.part import NAMES
from hotrows.runtime.atomic_files import json_text, new_folder
from hotrows.runtime.json_file import JsonFile, value_of
from hotrows.runtime.terminal import silent
from hotrows.schema import Schema

if TYPE_CHECKING:
    from hotrows.data.stored.encoded import EncodedData

_MANIFEST = "samples.json"
_FILE = JsonFile("delete the folder, and make it again")
Progress = Callable[..., None]
"""progress(stage, done, total); a total of None is not known."""


@dataclass(frozen=True)
class Source:
    """A file of the raw data.

    url: address to download it from; None: it comes out of an archive or from the user.
    md5: of its bytes; None if no checksum is known.
    """

    file: str
    url: str | None = None
    md5: str | None = None


@dataclass(frozen=True)
class Samples:
    """Files of samples. Parts without files are split off the training files."""

    train: tuple[Path, ...]
    validation: tuple[Path, ...] = ()
    test: tuple[Path, ...] = ()


Build = Callable[[Path | None, Path, int, Progress], Samples]
"""build(raw, samples, seed, progress): reads the folder `raw`, writes into `samples`."""


@dataclass(frozen=True)
class DataSet:
    """A public data set.

    rows: number of raw samples or events.
    size: of the raw files, unpacked.
    home: page that describes the data and its terms.
    sources: the raw files.
    sign_in: instructions for a download that needs an account, else empty.
    split: split of `prepare`; None if the builder writes a file per part.
    bundled: whether the raw files come with this package.

    >>> hotrows.data.datasets.BY_NAME["adult"].rows
    48842
    """

    name: str
    title: str
    schema: Schema
    rows: int
    size: str
    licence: str
    home: str
    sources: tuple[Source, ...]
    build: Build
    split: str | None = None
    sign_in: str = ""
    bundled: bool = False


def prepare(
    data_set: DataSet,
    raw: str | Path | None,
    out: str | Path,
    *,
    samples: str | Path | None = None,
    schema: Schema | None = None,
    split: str | None = None,
    seed: int = 0,
    progress: Progress | None = None,
    **how: Any,
) -> EncodedData:
    """Builds the samples of a data set and encodes them into the new folder `out`.

    raw: the folder of the raw files; None: they come with the package.
    samples: the folder for the samples that are built, as Parquet (default: OUT.samples, which is
        removed when `out` is complete or has failed; after an interruption the next call uses it).
    schema: replaces the data set's schema.
    split: the split of a data set without parts, as in `hotrows prepare`.
    seed: the seed of the split and of the builder's draws.
    how: more arguments of `hotrows.data.prepare`.

    >>> adult = hotrows.data.datasets.BY_NAME["adult"]  # its raw files come with the package
    >>> hotrows.data.datasets.prepare(adult, None, f"{folder}/adult").parts["test"].rows
    16281
    """
    from hotrows import data

    out = Path(out)
    if data_set.split is None and split is not None:
        raise ValueError(
            f"data set {data_set.name!r} comes in parts, so split must be None, not {split!r}; see "
            "docs/reference/data_sets.md for how they are split"
        )
    folder = out.with_name(f"{out.name}.samples") if samples is None else Path(samples)
    built = build(data_set, raw, folder, seed, progress)
    how |= {"validation": list(built.validation), "test": list(built.test)}
    how["split"] = split or data_set.split or "fraction:1,0,0"  # all rows of the training files train
    schema = schema or data_set.schema
    try:
        encoded = data.prepare(list(built.train), schema, out, seed=seed, progress=progress, **how)
    except Exception:
        _remove(folder, kept=samples is not None)
        raise
    _remove(folder, kept=samples is not None)
    return encoded


def build(
    data_set: DataSet,
    raw: str | Path | None,
    samples: str | Path,
    seed: int = 0,
    progress: Progress | None = None,
) -> Samples:
    """Builds the samples in the folder `samples`, unless it holds them already."""
    samples, raw = Path(samples), None if raw is None else Path(raw)
    built_of = {"name": data_set.name, "raw": str(raw and raw.resolve()), "seed": seed}
    if (samples / _MANIFEST).exists():
        return _open_samples(samples, built_of)
    with new_folder(samples) as aside:
        built = data_set.build(raw, aside, seed, progress or silent)
        parts = zip(NAMES, (built.train, built.validation, built.test), strict=True)
        files = {
            part: [path.name if path.parent == aside else str(path.resolve()) for path in paths]
            for part, paths in parts
        }
        (aside / _MANIFEST).write_text(json_text(_FILE.sign({**built_of, "files": files})))
    return _open_samples(samples, built_of)


def _open_samples(samples: Path, built_of: dict[str, Any]) -> Samples:
    """Opens a folder of samples; an error if it was built of other data or with another seed."""
    manifest = _FILE.read(samples / _MANIFEST)
    with _FILE.naming(samples / _MANIFEST):
        files = value_of(dict[str, tuple[str, ...]], manifest.pop("files", None), "files")
        if set(files) != set(NAMES):
            raise ValueError(f"expected the files of {', '.join(NAMES)}")
    if manifest != built_of:
        raise ValueError(
            f"{samples} holds samples of {manifest}, but those of {built_of} were asked for; delete "
            f"it, or choose another folder"
        )
    return Samples(*(tuple(samples / name for name in files[part]) for part in NAMES))


def _remove(folder: Path, kept: bool) -> None:
    if not kept:
        shutil.rmtree(folder, ignore_errors=True)
