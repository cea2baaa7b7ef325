"""The folder of a run's file store, which says whose it is once the run has begun."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from hotrows.config import TrainConfig
from hotrows.distributed.all_or_none import together
from hotrows.distributed.comm import Ranks
from hotrows.runtime.atomic_files import write_text
from hotrows.storage.unsaved import remove_unsaved
from hotrows.train.run_folder import log

_RUN = "run"  # a file with the path of the run


def make_way(config: TrainConfig, ranks: Ranks) -> None:
    """Refuses a store that exists, since a run begins with a new one; but deletes one that was made for
    a run that did not come to begin. Collective."""
    path = _path(config)
    for rank in range(ranks.num_ranks if path else 0):  # in turn: they may see one folder
        together(ranks, partial(_make_way, path if rank == ranks.rank else None))


def claim(config: TrainConfig, run: Path) -> None:
    """Notes in the store, if there is one, that it belongs to a run that has begun."""
    path = _path(config)
    if path is not None and not (path / _RUN).exists():
        write_text(path / _RUN, f"{run.resolve()}\n")


def _path(config: TrainConfig) -> Path | None:
    caching = config.caching()
    return caching.path if caching else None


def _make_way(path: Path | None) -> None:
    if path is None or not path.exists() or (path.is_dir() and not any(path.iterdir())):
        return
    if path.is_dir() and remove_unsaved(path):
        log.warning(f"the store in {path} was made for a run that never began: it is made anew")
        return
    run = f", {(path / _RUN).read_text().strip()}" if (path / _RUN).is_file() else ""
    raise ValueError(
        f"store {path} exists already: go on with its run{run} (resume=True, --resume), or name a new "
        f"folder; delete it if no run needs it"
    )
