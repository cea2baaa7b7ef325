"""store.json: the form and the checkpoints of a file store; read and checked, replaced durably."""

from __future__ import annotations

import dataclasses
import json
import os
import threading
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from hotrows.engine.storage.base_file import KIND, Form
from hotrows.engine.storage.disk_io import Disk, RecordFile, explained, sync_folder
from hotrows.engine.storage.old_store import SPARSE
from hotrows.runtime.json_file import JsonFile, build, parse

NAME = "store.json"
ASIDE = "store.json.part"
FILE = JsonFile("bring back the file", number=4, editable=False)
Named = tuple[int, int, int]  # a file: number, bytes, checksum
_OLD = replace(FILE, number=3)


@dataclass(frozen=True)
class StoreState:
    """The fields of store.json besides the form of the store."""

    open: int = 1  # the generation that is being written
    bases: tuple[Named, ...] = ()  # base files that have all generations up to theirs, the newest last
    closed: tuple[Named, ...] = ()  # logs of complete generations
    retained: tuple[int, ...] = ()  # must stay restorable
    undo: tuple[Named, ...] = ()  # journals of a store of format 3, over its sparse base

    @property
    def merged(self) -> int:
        """The generation up to which the newest base has all."""
        return self.bases[-1][0] if self.bases else 0

    @property
    def restorable(self) -> list[int]:
        last = max(self.retained, default=self.merged)
        return sorted({*self.retained, *(g for g, *_ in self.closed if g > last)})

    @property
    def files(self) -> set[str]:
        logs = {f"log-{g}" for g in (self.open, *(g for g, *_ in self.closed))}
        return logs | {name_of(base) for base in self.bases} | {f"undo-{g}" for g, *_ in self.undo}

    def files_of(self, generation: int) -> StoreState:
        """What a generation is read from: a base at most, the logs since, and undo journals."""
        older = [base for base in self.bases if base[0] <= generation or base[1] == SPARSE]
        base = tuple(older[-1:])
        first = base[0][0] if base else 0
        logs = tuple(log for log in self.closed if first < log[0] <= generation)
        is_sparse = bool(base) and base[0][1] == SPARSE
        undo = tuple(u for u in self.undo if is_sparse and u[0] > min(first, generation))
        return StoreState(generation, base, logs, (), undo)

    def back_to(self, generation: int) -> StoreState:
        """The state without later generations. A sparse base is taken for one of theirs, since journals
        make up for what is later in it."""
        bases = tuple(
            (min(g, generation) if size == SPARSE else g, size, checksum)
            for g, size, checksum in self.bases
            if g <= generation or size == SPARSE
        )
        closed = tuple(log for log in self.closed if log[0] <= generation)
        retained = tuple(g for g in self.retained if g <= generation)
        return StoreState(self.open + 1, bases, closed, retained, self.undo).without_unneeded()

    def without_unneeded(self) -> StoreState:
        """The state without files that neither a retained generation is read from nor the present."""
        needed = [self.files_of(generation) for generation in (*self.retained, self.open)]

        def kept(files: str) -> tuple[Named, ...]:
            some = {file for one in needed for file in getattr(one, files)}
            return tuple(file for file in getattr(self, files) if file in some)

        return replace(self, bases=kept("bases"), closed=kept("closed"), undo=kept("undo"))


def name_of(base: Named) -> str:
    return "base" if base[1] == SPARSE else f"base-{base[0]}"


class StateFile:
    """store.json of the store in `folder`, and the state that it holds.

    lock: whoever reads the state, decides and saves another one holds it meanwhile.
    """

    def __init__(self, folder: Path, form: Form, state: StoreState) -> None:
        self.folder, self.form, self.state = folder, form, state
        self.lock = threading.RLock()

    def save(self, state: StoreState) -> None:
        """Replaces store.json, durably, along with the names of files made before.

        Then deletes the files that it no longer names; after a crash, the next `restore` does.
        """
        fields = FILE.sign(self.form.as_json() | asdict(state))
        text = json.dumps(fields, indent=1).encode() + b"\n"
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC
        with closing(RecordFile(self.folder / ASIDE, 0, flags=flags)) as aside:
            aside.write(text, 0)
            aside.sync()
        with explained(self.folder / NAME, len(text)):
            Disk.replace(aside.path, self.folder / NAME)
            sync_folder(self.folder)
        before, self.state = self.state, state
        for name in before.files - state.files:
            if (self.folder / name).exists():  # a crash comes between naming a log and making it
                Disk.unlink(self.folder / name)


def check_restorable(folder: Path, state: StoreState, generation: int) -> None:
    if generation not in state.restorable:
        raise ValueError(
            f"{folder} has no checkpoint {generation} to go to; it has {state.restorable or 'none'}"
        )


def read_state(folder: Path, form: Form) -> StoreState:
    """The state in store.json, if it is of a store of this form."""
    file = folder / NAME
    try:
        fields = _fields(file)
    except FileNotFoundError:
        raise ValueError(f"{folder} holds no store ({NAME} is missing); create one there") from None
    expected = form.as_json()
    if fields.get("kind") != KIND:
        raise ValueError(f"{file} is not the description of a {KIND}; choose another folder")
    for name, value in expected.items():
        if fields.get(name) != value:
            raise ValueError(
                f"{file} says {name} {fields.get(name)!r}, but {value!r} was asked for; open it "
                f"as it was created, or create another store"
            )
    with FILE.naming(file):
        of_state = {name: one for name, one in fields.items() if name not in expected}
        state = build(StoreState, of_state)
        if absent := sorted(
            field.name for field in dataclasses.fields(state) if field.name not in fields
        ):
            raise ValueError(f"it lacks the fields {absent}")
        return state


def _fields(file: Path) -> dict[str, Any]:
    """The fields of store.json, of format 3, too."""
    content = file.read_bytes()
    try:
        is_old = parse(content)["format"] == _OLD.number
    except (ValueError, LookupError, TypeError):
        is_old = False
    if not is_old:
        return FILE.check(file, content)
    fields = _OLD.check(file, content)
    merged = fields.pop("merged", 0)
    return fields | {"bases": [[merged, SPARSE, 0]] if merged else []}
