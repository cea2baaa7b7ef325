"""store.json: the form and the checkpoints of a file store; read and checked, replaced durably."""

from __future__ import annotations

import dataclasses
import json
import os
import threading
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path

from hotrows.engine.storage.base_file import KIND, Form
from hotrows.engine.storage.disk_io import Disk, RecordFile, explained, sync_folder
from hotrows.runtime.json_file import JsonFile, build

NAME = "store.json"
ASIDE = "store.json.part"
FILE = JsonFile("bring back the file", number=3, editable=False)
Named = tuple[int, int, int]  # a log or journal: number, bytes, checksum


@dataclass(frozen=True)
class StoreState:
    """The fields of store.json besides the form of the store."""

    open: int = 1  # the generation that is being written
    merged: int = 0  # `base` holds all generations up to this one
    closed: tuple[Named, ...] = ()  # later complete ones: their logs
    retained: tuple[int, ...] = ()  # must stay restorable
    undo: tuple[Named, ...] = ()  # journals that count

    @property
    def restorable(self) -> list[int]:
        last = max(self.retained, default=self.merged)
        return sorted({*self.retained, *(g for g, *_ in self.closed if g > last)})

    @property
    def files(self) -> set[str]:
        logs = {f"log-{g}" for g in (self.open, *(g for g, *_ in self.closed))}
        return logs | {f"undo-{g}" for g, *_ in self.undo}

    def back_to(self, generation: int) -> StoreState:
        """The state without later generations, but with all undo journals."""
        closed = tuple(log for log in self.closed if log[0] <= generation)
        retained = tuple(g for g in self.retained if g <= generation)
        return StoreState(self.open + 1, min(self.merged, generation), closed, retained, self.undo)


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
        fields = FILE.read(file)
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
