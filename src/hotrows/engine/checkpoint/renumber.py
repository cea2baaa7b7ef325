"""Reading a checkpoint whose ids are not those of the model: rows are copied to other ids."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from torch import nn

from hotrows.engine.checkpoint.manifest import Chain, chain, check_files
from hotrows.engine.checkpoint.read import Widen, check_tables, fill_tables, read_dense
from hotrows.engine.checkpoint.reshard import Places
from hotrows.engine.checkpoint.sources import SavedRecords, Tables, in_files
from hotrows.engine.checkpoint.write import State
from hotrows.engine.distributed.all_or_none import together
from hotrows.engine.embedding import Embedding


class _Renumbered:
    """A saved piece with other ids, as `sources.SavedRecords`. new_ids: [rows], -1: left out."""

    def __init__(self, saved: SavedRecords, new_ids: np.ndarray) -> None:
        ids = np.asarray(saved.ids, np.int64)
        ids = np.where(ids < len(new_ids), new_ids[np.minimum(ids, len(new_ids) - 1)], -1)
        places = np.flatnonzero(ids >= 0)
        self._saved, self._places = saved, places[np.argsort(ids[places], kind="stable")]
        self.ids, self.columns = ids[self._places], saved.columns

    def take(self, places: Places) -> np.ndarray:
        return self._saved.take(self._places[places])


def load_renumbered(
    folder: Path | str,
    embedding: Embedding,
    model: nn.Module,
    new_ids: Mapping[str, np.ndarray],
    added: Tables | None = None,
    widen: Widen | None = None,
) -> State:
    """Reads the checkpoint in `folder` into `embedding` and `model`.

    new_ids: by table, for each saved id the one that its row gets, distinct; -1: it is left out. Rows to
    which none goes keep their first values. added: records of tables that the checkpoint lacks; widen:
    see `read_dense`. Collective between the embedding's ranks.
    """
    folder, ranks = Path(folder), embedding.ranks.channel("checkpoint")

    def checked() -> Chain:
        checkpoints = chain(folder)
        manifest = checkpoints[-1][1]
        check_files(checkpoints)
        check_tables(folder, manifest, embedding, added or {}, converts=True)
        if manifest.stores:
            raise ValueError(
                f"checkpoint {folder} has its rows in a file store, from which they do not get other "
                f"ids; train that run with its rows in memory"
            )
        return checkpoints

    checkpoints = together(ranks, checked)
    tables = {
        name: [_Renumbered(piece, new_ids[name]) for piece in pieces]
        for name, pieces in in_files(checkpoints).items()
    }
    fill_tables(embedding, {**tables, **(added or {})})
    return together(ranks, lambda: read_dense(folder, checkpoints[-1][1], model, widen))
