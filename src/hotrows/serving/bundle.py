"""Bundle: the folder of a model that serves, and what its `export.json` says.

    OUT/export.json            the fields of `Bundle`, with size and checksum of every file
    OUT/model.onnx, model.pt2  the program: vectors and dense values in, logits out
    OUT/model.core.onnx        the program behind layers that the native core computes; see `core_layers`
    OUT/tables/<table>.npy     the rows of a table, mapped into memory; see `table_rows`
    OUT/keys/<vocabulary>.npy  of dynamic features: which key has which row; see `key_ids`
    OUT/encoders/              vocabularies and statistics, which turn raw rows into ids

Nothing in it is unpickled or run but the program: ONNX Runtime computes the graph of a `model.onnx`.
PyTorch's reader of a `model.pt2` evaluates expressions of the file, so only a trusted one is opened.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hotrows.losses import Calibration, StoredLoss
from hotrows.runtime import file_sums
from hotrows.runtime.atomic_files import absolute
from hotrows.runtime.file_names import file_name
from hotrows.runtime.file_sums import FileSum
from hotrows.runtime.json_file import build
from hotrows.runtime.tensor_file import EXPORT_FILE
from hotrows.table import Cross

MANIFEST, ENCODERS = "export.json", "encoders"
PROGRAMS = {"onnx": "model.onnx", "pt2": "model.pt2"}
SHARED_PROGRAMS = {"onnx": "model.shared.onnx", "pt2": "model.shared.pt2"}
CORE_PROGRAM = "model.core.onnx"
PRECISIONS = ("float32", "bfloat16", "int8")  # of products in layers of the core
INPUT_KINDS = ("dense", "pooled", "sequence", "lengths", "layer")
_REMEDY = "export again"


@dataclass(frozen=True)
class ProgramInput:
    """A tensor that a program takes, by name.

    kind: `dense` [B, num_dense]; `pooled` [B, F, D], a vector for each of F reads; `sequence` [B, T, D],
    the vectors of the one feature read, zeros behind each list; `lengths` [B] int64, of the lists of a
    feature; `layer` [B, D], what a layer of the core makes of D values of the features read.
    reads: (feature, table), the table empty for lengths and dense values, of which none means all.
    shared: whether it is that of one sample, [1, ..], which all samples share.
    """

    name: str
    kind: str
    reads: tuple[tuple[str, str], ...] = ()
    shared: bool = False


@dataclass(frozen=True)
class CoreLayer:
    """A layer over a history, which the native core computes into the input `name` of the program
    `CORE_PROGRAM`.

    kind: one of `core_layers.KINDS`. targets, sequences: (feature, table) of its queries and of its keys,
    side by side. parameters: names in the program, in the order of the core; options: of its kind.
    """

    name: str
    kind: str
    targets: tuple[tuple[str, str], ...]
    sequences: tuple[tuple[str, str], ...]
    parameters: tuple[str, ...]
    options: dict[str, Any]

    @property
    def can_be_narrow(self) -> bool:
        """Whether it has products that another precision than float32 makes faster."""
        return self.kind in ("target_attention", "evolving_interest")

    @property
    def reads(self) -> tuple[tuple[str, str], ...]:
        return (*self.targets, *self.sequences)


@dataclass(frozen=True)
class StoredTable:
    """A table of a bundle: rows and dim, and how its rows are stored.

    dtype: one of `table_rows.DTYPES`. largest_error, rms_error: of weights as they are read back,
    against those of the run: the largest difference, and the root of the mean square.
    most_rows: that it may grow to as training goes on; None: it does not grow.
    """

    name: str
    role: str
    features: tuple[str, ...]
    rows: int
    dim: int
    dtype: str
    file: str
    largest_error: float = 0.0
    rms_error: float = 0.0
    most_rows: int | None = None


@dataclass(frozen=True)
class StoredKeys:
    """The keys of a vocabulary of dynamic features, in a file of `key_ids.KeyIds`."""

    vocabulary: str
    features: tuple[str, ...]
    num_unknown: int
    file: str


@dataclass(frozen=True)
class Bundle:
    """The content of a bundle's `export.json`, checked; path: of the folder.

    program: its file; inputs: the tensors it takes, in order; equal_lengths: groups of sequences whose
    lists are of equal length in each sample; losses: by label, in the order of the outputs; keys: of
    dynamic features. shared: features that all rows of a request may have in common, which
    `shared_program`, its inputs `shared_inputs`, then computes once; shared_lists: also layers over the
    elements of lists, so that a request in pieces would compute them again and again. core_layers: those
    that the native core computes, and the program `CORE_PROGRAM`, its inputs
    `core_inputs`, what is behind them. precision: of their products, one of `PRECISIONS`.
    """

    path: Path
    program: str
    inputs: tuple[ProgramInput, ...]
    tables: tuple[StoredTable, ...]
    crosses: tuple[Cross, ...]
    equal_lengths: tuple[tuple[str, ...], ...]
    losses: dict[str, StoredLoss]
    files: dict[str, FileSum]
    keys: tuple[StoredKeys, ...] = ()
    shared: tuple[str, ...] = ()
    shared_program: str = ""
    shared_inputs: tuple[ProgramInput, ...] = ()
    shared_lists: bool = False
    core_layers: tuple[CoreLayer, ...] = ()
    core_inputs: tuple[ProgramInput, ...] = ()
    precision: str = "float32"

    @property
    def format(self) -> str:
        """`onnx` or `pt2`."""
        return next(name for name, file in PROGRAMS.items() if file == self.program)

    @property
    def calibration(self) -> Calibration:
        """What turns outputs into predictions; of a version of a chain see `Version`."""
        return Calibration.of_stored(self.losses)

    def verify(self, name: str) -> None:
        """Compares a file with its checksum; ValueError where it was damaged."""
        file_sums.verify(self.path / name, self.files[name], _REMEDY)


def table_file(table: str, tables: Iterable[str] = ()) -> str:
    """The file of a table; tables: the names of all of them."""
    return f"tables/{file_name(table, tables)}.npy"


def keys_file(vocabulary: str, vocabularies: Iterable[str] = ()) -> str:
    """The file of the keys of a vocabulary; vocabularies: the names of all of them."""
    return f"keys/{file_name(vocabulary, vocabularies)}.npy"


def open_bundle(path: Path | str) -> Bundle:
    """Reads and checks what a bundle says of itself, and the sizes of its files; ValueError names what
    does not fit."""
    path = absolute(path)
    if not (path / MANIFEST).exists():
        raise ValueError(
            f"{path} is not an export: it has no {MANIFEST}; name a folder of `hotrows export`"
        )
    fields = EXPORT_FILE.read(path / MANIFEST)
    if "program" not in fields:
        raise ValueError(
            f"{path} is an export of weights alone (--format safetensors), and has no program to serve; "
            f"export the run with --format onnx"
        )
    with EXPORT_FILE.naming(path / MANIFEST):
        wanted = {name: fields[name] for name in _FIELDS if name in fields}
        bundle = build(Bundle, {"path": path, **wanted}, "bundle")
        _check(bundle)
    for name, expected in bundle.files.items():
        file_sums.check_size(path / name, expected, _REMEDY)
    return bundle


def fields_of(bundle: Bundle) -> dict[str, Any]:
    """The fields of a bundle for its `export.json`."""
    fields = dataclasses.asdict(bundle)
    return {name: fields[name] for name in _FIELDS}


_WITH_TABLES = ("pooled", "sequence", "layer")
_FIELDS = tuple(field.name for field in dataclasses.fields(Bundle) if field.name != "path")


def _check(bundle: Bundle) -> None:
    tables = {table.name: table for table in bundle.tables}
    files = {bundle.program, *(t.file for t in bundle.tables), *(k.file for k in bundle.keys)}
    files |= {bundle.shared_program} if bundle.shared else set()
    files |= {CORE_PROGRAM} if bundle.core_layers else set()
    if bundle.program not in PROGRAMS.values() or not files <= set(bundle.files):
        raise ValueError(f"expected files that it lists, found {sorted(files - set(bundle.files))}")
    if any(Path(name).is_absolute() or ".." in Path(name).parts for name in bundle.files):
        raise ValueError("a file is outside of the folder")
    if bundle.precision not in PRECISIONS:
        raise ValueError(f"precision is one of {', '.join(PRECISIONS)}, not {bundle.precision!r}")
    for entry in (*bundle.inputs, *bundle.shared_inputs, *bundle.core_inputs):
        names = [table for _, table in entry.reads] if entry.kind in _WITH_TABLES else []
        if entry.kind not in INPUT_KINDS or not set(names) <= set(tables):
            raise ValueError(f"input {entry.name!r} reads no table of it")
        if len({tables[name].dim for name in names}) > 1:
            raise ValueError(f"input {entry.name!r} reads tables of several widths")
    _ = bundle.calibration
