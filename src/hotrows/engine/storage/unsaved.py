"""Stores that were made and never saved: no checkpoint can refer to them, so they may be made anew."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from hotrows.engine.storage.base_file import KIND
from hotrows.engine.storage.store_state import ASIDE, NAME
from hotrows.runtime.locks import NAME as LOCK
from hotrows.runtime.locks import Lock

_FOLDER = re.compile(r"group-\d+|rank-\d+-of-\d+")
_FILE = re.compile(rf"base|log-\d+|{re.escape(LOCK)}|{re.escape(NAME)}|{re.escape(ASIDE)}")


def remove_unsaved(path: Path, others: Sequence[str] = ()) -> bool:
    """Deletes the folder `path` of file stores if none of them ever had a checkpoint; returns whether
    it did. Anything else in there, but for files of the names `others`, or a store that is open, keeps
    all of it."""
    stores = _stores(path, others)
    if stores is None or any(map(_was_saved, stores)):
        return False
    with ExitStack() as locks:
        for store in stores:  # one that is open is being written
            locks.callback(Lock(store).release)
        shutil.rmtree(path)
    return True


def _stores(path: Path, others: Sequence[str] = ()) -> list[Path] | None:
    """The folders of stores below `path`; None where anything else is there."""
    stores: list[Path] = []
    for folder in path.iterdir():
        if folder.name in others:
            continue
        if not (folder.is_dir() and _FOLDER.fullmatch(folder.name)):
            return None
        if folder.name.startswith("rank-"):
            below = _stores(folder)
            if below is None:
                return None
            stores += below
        elif all(_FILE.fullmatch(file.name) for file in folder.iterdir()):
            stores.append(folder)
        else:
            return None
    return stores


def _was_saved(store: Path) -> bool:
    """True if a store has had a checkpoint, as far as its description says; not without one."""
    try:
        fields = json.loads((store / NAME).read_bytes())
    except FileNotFoundError:  # it was not complete yet
        return False
    except (ValueError, RecursionError):
        return True
    if not isinstance(fields, dict) or fields.get("kind") != KIND:
        return True
    is_merged = fields.get("bases") != [] and fields.get("merged") != 0  # format 3 has the latter
    return is_merged or [fields.get(name) for name in ("closed", "retained", "undo")] != [[], [], []]
