"""A file store as one of its checkpoints left it, for reading; and a store that only reads."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from hotrows.engine.storage import record_io
from hotrows.engine.storage.base_file import BaseFile, FillInitial, Form
from hotrows.engine.storage.log import UNTOUCHED, RecordLog, UndoJournal
from hotrows.engine.storage.record_io import ABSENT, Fetcher
from hotrows.engine.storage.store_state import Named, StoreState, check_restorable, read_state


class StoreView:
    """The rows as they were at a checkpoint, to read from; the store may have gone on since.

    on_close: called once, when the view is closed. state_now: reads the state of a store that another
    process may write, and merge, meanwhile; None: nobody does.
    """

    def __init__(
        self,
        path: Path,
        form: Form,
        state: StoreState,
        generation: int,
        initial_values: FillInitial,
        on_close: Callable[[], None] = lambda: None,
        state_now: Callable[[], StoreState] | None = None,
    ) -> None:
        check_restorable(path, state, generation)
        self.path, self.stride, self.num_rows = path, form.stride, form.rows
        self._generation, self._state_now = generation, state_now
        self._form, self._initial_values, self._on_close = form, initial_values, on_close
        self._base = BaseFile(path / "base", form, os.O_RDONLY)
        self._sources: list[RecordLog | UndoJournal] = []
        for number, length, checksum in reversed(state.closed):
            if number <= generation:
                align = self._base.file.align
                log = RecordLog(
                    path / f"log-{number}", number, form.stride, align, length, checksum, form.rows
                )
                self._sources.append(log)
                log.index_segments()
        self._journals: set[Named] = set()
        self._add_journals(state)
        self._reader, self._open = record_io.Fetcher(form.stride), True

    def read(self, rows: Tensor, out: Tensor) -> None:
        """Fills out [m, stride] uint8 with the records of `rows` [m] int64, distinct, ascending."""
        if not self._open:
            raise ValueError("this view of a store is closed; open another")
        numbers, records = checked(rows, out, self._form, filled=True)
        read_rows(self._sources, self._base, self._reader, self._initial_values, numbers, records)
        while self._was_overwritten():
            read_rows(self._sources, self._base, self._reader, self._initial_values, numbers, records)

    def _was_overwritten(self) -> bool:
        """True if another process may have merged into `base` what came after `generation`: it has then
        named the undo journal, with the records of before, in the state."""
        if self._state_now is None:
            return False
        state = self._state_now()
        if self._generation not in state.restorable:
            raise ValueError(
                f"checkpoint {self._generation} of store {self.path} was dropped while it was read: its "
                f"run trains on; read the run again, or when it has ended"
            )
        return self._add_journals(state)

    def _add_journals(self, state: StoreState) -> bool:
        """Reads later undo journals, too; of several, the oldest has the records right after
        `generation`."""
        new = [j for j in sorted(state.undo) if j[0] > self._generation and j not in self._journals]
        for number, length, checksum in new:
            journal = UndoJournal(self.path, number, self.stride, length, checksum, records=True)
            self._sources.append(journal)
        self._journals.update(new)
        return bool(new)

    def close(self) -> None:
        """Closes the files. To be called: a store merges nothing while it has an open view."""
        if self._open:
            self._open = False
            for source in (*self._sources, self._base):
                source.close()
            self._on_close()

    def __enter__(self) -> StoreView:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def read_rows(
    sources: Sequence[RecordLog | UndoJournal],
    base: BaseFile,
    fetcher: Fetcher,
    initial_values: FillInitial,
    rows: np.ndarray,
    out: np.ndarray,
) -> int:
    """Fills out [m, stride]: each row from the first source that has it, else from `base`, else with
    its initial values; returns how many rows had initial values."""
    left, untouched = np.arange(rows.size), []
    for source in sources:
        if left.size:
            places = source.find(rows[left])
            is_stored = places >= 0
            fetcher.fetch(source.file, places[is_stored], left[is_stored], out)
            untouched.append(left[places == UNTOUCHED])
            left = left[places == ABSENT]
    written = base.marked(rows[left])
    base.fetch(fetcher, rows[left[written]], left[written], out)
    new = np.sort(np.concatenate([*untouched, left[~written]]))
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

    def state_now() -> StoreState:
        return read_state(path, form)

    while True:
        state = state_now()
        try:
            return StoreView(path, form, state, generation, initial_values, state_now=state_now)
        except ValueError:
            if state_now() == state:
                raise  # else a log was merged and deleted before it was opened
