"""Version: a model as it is served at one moment, tables and program; never changed, only followed."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hotrows.serving import chain
from hotrows.serving.bundle import Bundle, open_bundle
from hotrows.serving.chain import Chain
from hotrows.serving.deltas import VersionHead, read_delta
from hotrows.serving.programs import Program, open_program
from hotrows.serving.table_rows import TableRows

TRIES = 5  # of a version whose files are deleted meanwhile


@dataclass(frozen=True)
class Version:
    """All that scores are computed from.

    bundle: whose files it is made of, and what its program takes; tables: by name; head: of the
    version of a chain, None of a bundle by itself; base: the number of the base that its files are of.
    """

    bundle: Bundle
    tables: Mapping[str, TableRows]
    program: Program
    head: VersionHead | None = None
    base: int = 0

    @property
    def number(self) -> int:
        """Its number in a chain; 0 of a bundle by itself."""
        return 0 if self.head is None else self.head.number

    @property
    def overlay_bytes(self) -> int:
        """Bytes of memory for rows that changed since its base was written."""
        return sum(table.overlay_bytes for table in self.tables.values())


def open_version(
    path: Path | str, threads: int = 1, trust: bool = False, verify: bool = False
) -> Version:
    """The version that a bundle, or a base of a chain, is.

    verify: compare tables with their checksums, for which they are read whole; all other files are.
    """
    bundle = open_bundle(path)
    in_tables = {table.file for table in bundle.tables}
    for name in bundle.files:
        if verify or name not in in_tables:
            bundle.verify(name)
    tables = {
        table.name: TableRows(bundle.path / table.file, table.dtype, table.rows, table.dim)
        for table in bundle.tables
    }
    head = chain.base_head(bundle.path) if (bundle.path / chain.HEAD).exists() else None
    program = open_program(bundle, threads, trust)
    return Version(bundle, tables, program, head, 0 if head is None else head.number)


def with_deltas(version: Version, folder: Path, numbers: Sequence[int]) -> Version:
    """A version after these deltas of a folder, in order; ValueError where one does not follow."""
    tables, dense = dict(version.tables), None
    head = version.head
    for number in numbers:
        path = chain.delta_path(folder, number)
        delta = read_delta(path)
        assert head is not None, "a bundle by itself has no later version"
        chain.check_follows(head, delta.head, path)
        if delta.keys or delta.gone or not delta.rows.keys() <= tables.keys():
            raise ValueError(f"{path} has keys or tables that the base does not have; publish again")
        for name, (ids, rows) in delta.rows.items():
            try:
                tables[name] = tables[name].changed(ids, rows, number)
            except ValueError as error:
                raise ValueError(f"{path}: table {name!r}: {error}; publish again") from None
        head, dense = delta.head, delta.dense
    program = version.program if dense is None else version.program.with_parameters(dense)
    return dataclasses.replace(version, tables=tables, program=program, head=head)


def on_base(version: Version, base: Version) -> Version:
    """The same version with its unchanged rows read from a later base, so that memory holds only those
    that changed after it."""
    tables = {name: table.on(base.tables[name], base.number) for name, table in version.tables.items()}
    return dataclasses.replace(version, bundle=base.bundle, tables=tables, base=base.number)


def version_at(
    folder: Path | str, number: int | None = None, threads: int = 1, trust: bool = False
) -> Version:
    """A version of a chain, the newest by default, from its latest base."""
    for attempt in range(TRIES):
        versions = versions_in(folder)
        try:
            base, deltas = versions.way(0, number or versions.newest)
            assert base is not None
            opened = open_version(chain.base_path(versions.folder, base), threads, trust)
            return with_deltas(opened, versions.folder, deltas)
        except (FileNotFoundError, ValueError):  # deleted meanwhile, as there is a later base
            if attempt == TRIES - 1 or versions_in(folder) == versions:
                raise
    raise AssertionError("the last try returns or raises")


def versions_in(folder: Path | str) -> Chain:
    """The versions in a folder, of which there are some."""
    versions = chain.look(Path(folder))
    if not versions.newest:
        raise ValueError(f"{folder} has no versions of a model; `hotrows train --publish` writes them")
    return versions
