"""A public data set: its files, its licence, and the builder of its samples.

The raw files of some sets are rows of samples already, which `prepare` reads unchanged. Others are
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


Build = Callable[[Path | None, Path, int, "Progress | None"], Samples]
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
