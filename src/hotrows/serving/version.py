"""Version: a model as it is served at one moment, tables and program; never changed, only followed."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from hotrows.data.stored.encoded import EncodedData
from hotrows.data.stored.user_histories import UserHistories
from hotrows.losses import Calibration
from hotrows.runtime.machine import total_memory
from hotrows.serving import chain
from hotrows.serving.bundle import ENCODERS, Bundle, open_bundle
from hotrows.serving.chain import Chain
from hotrows.serving.core_layers import CoreModel, open_core
from hotrows.serving.deltas import Delta, VersionHead, read_delta
from hotrows.serving.key_ids import GONE, KeyIds
from hotrows.serving.programs import Program, open_program, open_shared_program
from hotrows.serving.table_rows import TableRows

_LARGE = 64 << 20  # bytes of a file that is mapped, and not read to open it
TRIES = 5  # of a version whose files are deleted meanwhile


@dataclass(frozen=True)
class Version:
    """All that scores are computed from.

    bundle: whose files it is made of, and what its program takes; tables: by name; calibration: of its
    outputs; head: of the version of a chain, None of a bundle by itself; base: the number of the base
    that its files are of.
    keys: of dynamic features, by vocabulary. shared_program: for rows that share what the bundle says.
    core: the model with layers of the native core; None where the bundle has none.
    histories: of users, for rows without lists; None where the bundle has none.
    """

    bundle: Bundle
    tables: Mapping[str, TableRows]
    program: Program
    calibration: Calibration
    head: VersionHead | None = None
    base: int = 0
    keys: Mapping[str, KeyIds] = field(default_factory=dict)
    shared_program: Program | None = None
    histories: UserHistories | None = None
    core: CoreModel | None = None

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

    verify: compare tables, and other large files, with their checksums, for which they are read whole;
    all other files are.
    """
    bundle = open_bundle(path)
    in_tables = {table.file for table in bundle.tables}
    for name, stored in bundle.files.items():
        if verify or (name not in in_tables and stored.bytes <= _LARGE):
            bundle.verify(name)
    at_random = 2 * sum(bundle.files[name].bytes for name in in_tables) > total_memory()
    tables = {
        t.name: TableRows(bundle.path / t.file, t.dtype, t.rows, t.dim, t.most_rows, at_random)
        for t in bundle.tables
    }
    keys = {k.vocabulary: KeyIds(bundle.path / k.file, k.num_unknown) for k in bundle.keys}
    head = chain.base_head(bundle.path) if (bundle.path / chain.HEAD).exists() else None
    programs = open_program(bundle, threads, trust), open_shared_program(bundle, threads, trust)
    number = 0 if head is None else head.number
    encoders = bundle.path / ENCODERS
    histories = UserHistories.open(encoders, EncodedData.open(encoders).schema, checked=False)
    core = open_core(bundle, programs[0].content(), threads) if bundle.core_layers else None
    return Version(
        bundle, tables, programs[0], bundle.calibration, head, number, keys, programs[1], histories, core
    )


def open_base(
    folder: Path, number: int, threads: int = 1, trust: bool = False, verify: bool = False
) -> Version:
    """The version that a base of a chain is; ValueError where it says that it is another one, or none."""
    path = chain.base_path(folder, number)
    version = open_version(path, threads, trust, verify)
    if (version.head or chain.base_head(path)).number != number:
        raise ValueError(
            f"{path / chain.HEAD} is that of version {version.number:,}; bring it back from a copy, or "
            f"wait for the next base"
        )
    return version


def with_deltas(version: Version, folder: Path, numbers: Sequence[int]) -> Version:
    """A version after these deltas of a folder, in order; ValueError where one does not follow."""
    tables, keys, dense = dict(version.tables), dict(version.keys), None
    head, histories, calibration = version.head, version.histories, version.calibration
    for number in numbers:
        path = chain.delta_path(folder, number)
        delta = read_delta(path)
        assert head is not None, "a bundle by itself has no later version"
        chain.check_follows(head, delta.head, path)
        known = delta.rows.keys() <= tables.keys() and {*delta.keys, *delta.gone} <= keys.keys()
        if not known:
            raise ValueError(f"{path} has keys or tables that the base does not have; publish again")
        for name, (ids, rows) in delta.rows.items():
            try:
                tables[name] = tables[name].changed(ids, rows, number)
            except ValueError as error:
                raise ValueError(f"{path}: table {name!r}: {error}; publish again") from None
        keys |= {name: of_keys.changed(*_news(delta, name), number) for name, of_keys in keys.items()}
        histories = histories and histories.appended(delta.histories)
        if len(delta.calibration) != len(calibration.losses):
            raise ValueError(f"{path} calibrates other labels than the base has; publish again")
        calibration = calibration.with_scales(delta.calibration.tolist())
        head, dense = delta.head, delta.dense
    program, shared, core = version.program, version.shared_program, version.core
    if dense is not None:
        program = program.with_parameters(dense)
        shared = shared and shared.with_parameters(dense)
        core = core and core.with_parameters(dense)
    version = dataclasses.replace(version, shared_program=shared, histories=histories, core=core)
    version = dataclasses.replace(version, calibration=calibration)
    return dataclasses.replace(version, tables=tables, program=program, head=head, keys=keys)


def _news(delta: Delta, vocabulary: str) -> tuple[np.ndarray, np.ndarray]:
    """The keys of a vocabulary that a delta changes, and their ids."""
    none = np.zeros(0, np.int64)
    keys, ids = delta.keys.get(vocabulary, (none, none))
    gone = delta.gone.get(vocabulary, none)
    return np.concatenate([gone, keys]), np.concatenate([np.full(len(gone), GONE), ids])


def on_base(version: Version, base: Version) -> Version:
    """The same version with its unchanged rows read from a later base, so that memory holds only those
    that changed after it."""
    tables = {name: table.on(base.tables[name], base.number) for name, table in version.tables.items()}
    keys = {name: of_keys.on(base.keys[name], base.number) for name, of_keys in version.keys.items()}
    if version.histories is not None and base.histories is not None:
        later = version.histories.since(base.histories.count)
        version = dataclasses.replace(version, histories=base.histories.appended(later))
    return dataclasses.replace(version, bundle=base.bundle, tables=tables, base=base.number, keys=keys)


def version_at(
    folder: Path | str, number: int | None = None, threads: int = 1, trust: bool = False
) -> Version:
    """A version of a chain, the newest by default, from its latest base."""
    for attempt in range(TRIES):
        versions = versions_in(folder)
        try:
            base, deltas = versions.way(0, number or versions.newest)
            assert base is not None
            opened = open_base(versions.folder, base, threads, trust)
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
