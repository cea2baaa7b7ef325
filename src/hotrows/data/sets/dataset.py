"""A public data set: where its files are, under which licence, and how they become samples.

The raw files of some sets are rows of samples already; `prepare` reads them as they stand. Others are
logs and tables that must be joined first; their builder writes Parquet files of samples.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hotrows.schema import Schema

Progress = Callable[..., None]
"""progress(stage, done, total); a total of None is not known."""


@dataclass(frozen=True)
class Source:
    """A file of the raw data.

    url: where it is downloaded from; None: it comes out of an archive, or the user puts it there.
    md5: of its bytes; None where no checksum is known.
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


Build = Callable[[Path | None, Path, int, "Progress | None"], Samples]
"""build(raw, samples, seed, progress): reads the folder `raw`, writes into `samples`."""


@dataclass(frozen=True)
class DataSet:
    """A public data set.

    rows: of the raw samples or events; size: of the raw files, unpacked.
    home: the page that describes it and its terms.
    sources: the raw files. sign_in: what to do where a download needs an account; empty where none does.
    split: how `prepare` cuts the parts; None where the builder makes a file of each.
    bundled: the raw files come with this package.
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
