"""The key tables of dynamic features in checkpoints: whole, or what changed since a base checkpoint.

An increment has, of each key table, the keys that batches since the base have read, and a bit for each
row: whether it stands for a key at present. So keys that were evicted are gone, and all others stand as
some earlier checkpoint has them. Counts of keys that wait for admission, sketches and clocks are whole.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import numpy as np
import torch
from safetensors.torch import load as tensors_from_bytes
from torch import Tensor

from hotrows.engine.checkpoint import files
from hotrows.engine.checkpoint.manifest import Chain

_BY_KEY = ("ids", "keys", "last_use", "counts")
_LIVE = "live"


def changes(state: Mapping[str, Tensor], since: Mapping[str, int]) -> dict[str, Tensor]:
    """A state without what is in the base. since: by key table, the number of batches when its base was
    written."""
    out = dict(state)
    for name, first_batch in since.items():
        ids = state[f"{name}/ids"]
        is_live = np.zeros(int(ids[-1]) + 1 if len(ids) else 0, bool)
        is_live[ids.numpy()] = True
        out[f"{name}/{_LIVE}"] = torch.from_numpy(np.packbits(is_live))
        was_read = state[f"{name}/last_use"] >= first_batch
        out |= {f"{name}/{what}": state[f"{name}/{what}"][was_read] for what in _BY_KEY}
    return out


def read(checkpoints: Chain) -> dict[str, Tensor]:
    """The state that a checkpoint has, with its bases, the oldest first; empty: no feature is dynamic."""
    state: dict[str, Tensor] = {}
    for folder, manifest in checkpoints:
        earlier, state = state, {}
        for name in manifest.keys_files:
            state |= tensors_from_bytes(files.read_file(folder / name, manifest.files[name]))
        for table in tables_of(state):
            if f"{table}/{_LIVE}" in state:
                state |= _joined(table, earlier, state)
                del state[f"{table}/{_LIVE}"]
    return state


def tables_of(state: Iterable[str]) -> list[str]:
    """The names of key tables: a vocabulary, or a partition of one."""
    return sorted({name.rpartition("/")[0] for name in state})


def vocabulary_of(table: str) -> str:
    """The vocabulary of a key table."""
    return re.sub(r"/\d+ of \d+$", "", table)


def _joined(table: str, earlier: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The columns of all keys that are live, of an earlier state and what changed since."""
    is_live = np.unpackbits(state[f"{table}/{_LIVE}"].numpy()).astype(bool)
    ids, old_ids = state[f"{table}/ids"].numpy(), earlier[f"{table}/ids"].numpy()
    stays = np.zeros(len(old_ids), bool)
    stays[old_ids < len(is_live)] = is_live[old_ids[old_ids < len(is_live)]]
    stays &= ~np.isin(old_ids, ids, assume_unique=True)
    order = torch.from_numpy(np.argsort(np.concatenate([old_ids[stays], ids]), kind="stable"))
    kept = torch.from_numpy(stays)
    columns = (f"{table}/{what}" for what in _BY_KEY)
    return {name: torch.cat([earlier[name][kept], state[name]])[order] for name in columns}
