"""Checkpoints: everything that a run needs to resume or to predict, in plain files.

    RUN/checkpoints.json           which folder is the last, which the best, which others stay
    RUN/checkpoints/step-1200/
        manifest.json              tables by pieces: ids, columns, file, offset; checksums
        pack-0.records             the records of one pack, raw: weights and optimizer state
        model.safetensors          the dense part
        trainer.safetensors        its optimizer's state, the random state
        keys.safetensors           of dynamic features: which key has which row, as of the batches trained

Each of several ranks writes its own records, `rank-1/pack-0.records`, and rank 0 those that all
ranks have, `shared/pack-0.records`; any number of ranks with any sharding reads them (`reshard`). An
increment has the records of some rows and their ids, `pack-0.ids`, on top of its base checkpoint.

Tables in a file store stay there: the manifest has the generations of the stores (see
`hotrows.engine.storage.file_store`) in place of the records.

A folder is written aside, synced and renamed, then the pointer is replaced, then folders are deleted
that the pointer does not name and that are no base: a crash at any moment leaves a complete
checkpoint. Records are identified by table and id, so a table may have more rows when it is loaded
than when it was saved; the new ones keep their initial values.
"""

from hotrows.engine.checkpoint.convert import dims_used as dims_used
from hotrows.engine.checkpoint.convert import merge
from hotrows.engine.checkpoint.manifest import Manifest as Manifest
from hotrows.engine.checkpoint.manifest import chain as chain
from hotrows.engine.checkpoint.manifest import read_manifest as read_manifest
from hotrows.engine.checkpoint.pointer import Pointer as Pointer
from hotrows.engine.checkpoint.pointer import folder_of as folder_of
from hotrows.engine.checkpoint.pointer import generations as generations
from hotrows.engine.checkpoint.pointer import point as point
from hotrows.engine.checkpoint.pointer import pointed as pointed
from hotrows.engine.checkpoint.pointer import retained as retained
from hotrows.engine.checkpoint.read import fill_tables as fill_tables
from hotrows.engine.checkpoint.read import load
from hotrows.engine.checkpoint.read import read_state as read_state
from hotrows.engine.checkpoint.renumber import load_renumbered as load_renumbered
from hotrows.engine.checkpoint.summary import checkpoints_of as checkpoints_of
from hotrows.engine.checkpoint.summary import key_tables as key_tables
from hotrows.engine.checkpoint.summary import problems as problems
from hotrows.engine.checkpoint.summary import summary as summary
from hotrows.engine.checkpoint.write import State, save
from hotrows.engine.checkpoint.writer import Writer

__all__ = ["State", "Writer", "load", "merge", "save"]
