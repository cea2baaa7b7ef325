"""A file store as one of its checkpoints left it, for reading; and a store that only reads."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from hotrows.engine.storage import record_io
from hotrows.engine.storage.base_file import Base, FillInitial, Form
from hotrows.engine.storage.log import RecordLog
from hotrows.engine.storage.old_store import SPARSE, UNTOUCHED, SparseBase, UndoJournal
from hotrows.engine.storage.record_io import ABSENT, Fetcher
from hotrows.engine.storage.store_state import StoreState, check_restorable, name_of, read_state

Source = RecordLog | UndoJournal | Base


class StoreView:
    """The rows as they were at a checkpoint, to read from; the store may have gone on since: its files
    never change, and those that are open stay, even once they are deleted."""

    def __init__(
        self, path: Path, form: Form, state: StoreState, generation: int, initial_values: FillInitial
    ) -> None:
        check_restorable(path, state, generation)
        self.path, self.stride, self.num_rows = path, form.stride, form.rows
        self._form, self._initial_values = form, initial_values
        self._sources = open_sources(path, form, state.files_of(generation))
        self._reader, self._open = record_io.Fetcher(form.stride), True

    def read(self, rows: Tensor, out: Tensor) -> None:
        """Fills out [m, stride] uint8 with the records of `rows` [m] int64, distinct, ascending."""
        if not self._open:
            raise ValueError("this view of a store is closed; open another")
        numbers, records = checked(rows, out, self._form, filled=True)
        read_rows(self._sources, self._reader, self._initial_values, numbers, records)

    def close(self) -> None:
        """Closes the files."""
        if self._open:
            self._open = False
            for source in self._sources:
                source.close()

    def __enter__(self) -> StoreView:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def open_sources(path: Path, form: Form, files: StoreState) -> list[Source]:
    """The files of a generation, opened, those that come first in reading first: logs, the newest of them
    first, undo journals, the oldest of them first, and the base."""
    sources: list[Source] = []
    try:
        for number, length, checksum in reversed(files.closed):
            file = path / f"log-{number}"
            align = record_io.alignment(file)
            log = RecordLog(file, number, form.stride, align, length, checksum, form.rows)
            sources.append(log)
            log.index_segments()
        for number, length, checksum in sorted(files.undo):
            journal = path / f"undo-{number}"
            sources.append(UndoJournal(journal, number, form.stride, length, checksum))
        sources.append(open_base(path, form, files))
    except BaseException:
        for source in sources:
            source.close()
        raise
    return sources


def open_base(path: Path, form: Form, files: StoreState) -> Base:
    """The newest base file of these."""
    if not files.bases:
        return Base(form)
    _, length, checksum = files.bases[-1]
    file = path / name_of(files.bases[-1])
    return SparseBase(form, file) if length == SPARSE else Base(form, file, length, checksum)


def read_rows(
    sources: Sequence[Source],
    fetcher: Fetcher,
    initial_values: FillInitial,
    rows: np.ndarray,
    out: np.ndarray,
) -> int:
    """Fills out [m, stride]: each row from the first source that has it, else with its initial values;
    returns how many rows had initial values."""
    left, untouched = np.arange(rows.size), []
    for source in sources:
        if not left.size:
            break
        places = source.find(rows[left])
        is_stored = places >= 0
        if source.file is not None:
            fetcher.fetch(source.file, places[is_stored], left[is_stored], out)
        untouched.append(left[places == UNTOUCHED])
        left = left[places == ABSENT]
    new = np.sort(np.concatenate([*untouched, left]))
    if new.size:
        records = torch.empty(new.size, out.shape[1], dtype=torch.uint8)
        initial_values(torch.from_numpy(rows[new]), records)
        out[new] = records.numpy()
    return new.size


def checked(
    rows: Tensor, records: Tensor, form: Form, filled: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """Rows and records as arrays; filled: the records are to be written to."""
    assert records.is_contiguous() or not filled, "records that are filled are contiguous"
    if records.shape != (rows.numel(), form.stride) or records.dtype != torch.uint8:
        raise ValueError(
            f"{rows.numel():,} rows have records of [{rows.numel()}, {form.stride}] uint8, not "
            f"{list(records.shape)} {records.dtype}"
        )
    numbers = rows.contiguous().numpy()
    if numbers.size and (numbers[0] < 0 or numbers[-1] >= form.rows or not (np.diff(numbers) > 0).all()):
        raise ValueError(
            f"rows of a store are distinct, ascending and from 0 to {form.rows - 1:,}; these go "
            f"from {numbers.min():,} to {numbers.max():,}"
        )
    return numbers, records.numpy()


class RecordSource(Protocol):
    """Records of a group that can be read, and closed."""

    def read(self, rows: Tensor, out: Tensor) -> None:
        """Fills out [m, stride] uint8 with the records of `rows` [m] int64, distinct, ascending."""

    def close(self) -> None:
        """Reads no more."""


class ReadOnlyStore:
    """A file store that is not open for training. source: one of its checkpoints, once it is known."""

    def __init__(self, stride: int, source: RecordSource | None = None) -> None:
        self.stride = stride
        self._source = source

    def read(self, rows: Tensor, out: Tensor) -> None:
        if self._source is None:
            raise ValueError("the tables are in a file store: load a checkpoint of the run first")
        self._source.read(rows, out)

    def write(self, rows: Tensor, records: Tensor, keeps: bool = False) -> None:
        raise ValueError("this file store is open for reading alone; train with `Trainer`")

    def close(self) -> None:
        if self._source is not None:
            self._source.close()


def view_at(
    path: Path | str,
    rows: int,
    stride: int,
    initial_values: FillInitial,
    meta: dict[str, Any],
    generation: int,
) -> StoreView:
    """A restorable checkpoint of a file store, which another process may write meanwhile."""
    path, form = Path(path), Form(rows, stride, json.loads(json.dumps(meta)))
    while True:
        state = read_state(path, form)
        try:
            return StoreView(path, form, state, generation, initial_values)
        except (ValueError, FileNotFoundError):
            if read_state(path, form) == state:
                raise  # else a file was merged and deleted before it was opened
