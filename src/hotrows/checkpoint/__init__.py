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
`hotrows.storage.file_store`) in place of the records.

A folder is written aside, synced and renamed, then the pointer is replaced, then folders are deleted
that the pointer does not name and that are no base: a crash at any moment leaves a complete
checkpoint. Records are identified by table and id, so a table may have more rows when it is loaded
than when it was saved; the new ones keep their initial values.
"""

from hotrows.checkpoint.convert import merge
from hotrows.checkpoint.manifest import Manifest, chain, read_manifest
from hotrows.checkpoint.pointer import Pointer, folder_of, generations, point, pointed, retained
from hotrows.checkpoint.read import fill_tables, load, read_state
from hotrows.checkpoint.renumber import load_renumbered
from hotrows.checkpoint.summary import checkpoints_of, key_tables, problems, summary
from hotrows.checkpoint.write import State, save
from hotrows.checkpoint.writer import Writer

__all__ = [
    "Manifest",
    "Pointer",
    "State",
    "Writer",
    "chain",
    "checkpoints_of",
    "fill_tables",
    "folder_of",
    "generations",
    "key_tables",
    "load",
    "load_renumbered",
    "merge",
    "point",
    "pointed",
    "problems",
    "read_manifest",
    "read_state",
    "retained",
    "save",
    "summary",
]
