"""Writer: writes the checkpoints of a run; full ones and increments, in the background, the last few.

    writer = Writer(run, embedding, model, fingerprint, keep_last=3, full_every=10, background=True)
    writer.save(state, is_best=True)       # returns once the rows are copied; training may go on
    writer.wait()                          # everything is on disk, and pointed at

    training       ... | copy | ...... next steps ...... | wait; copy | ...
    background                | write | agree | publish, point |

An increment holds the rows updated since the checkpoint before it, so its copy is small. At most one
checkpoint is being written; its errors are raised by the next call.
"""

from __future__ import annotations

import logging
import platform
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from torch import nn

from hotrows.engine.changed_rows import ChangeReader
from hotrows.engine.checkpoint.fetch import FOLDER
from hotrows.engine.checkpoint.manifest import bases
from hotrows.engine.checkpoint.pointer import moved_on, point, pointed, retained
from hotrows.engine.checkpoint.run_lock import RunLock
from hotrows.engine.checkpoint.uploads import Uploads
from hotrows.engine.checkpoint.write import Snapshot, State, take, write
from hotrows.engine.distributed.all_or_none import of_rank_0, together
from hotrows.engine.distributed.job import RankLost
from hotrows.engine.distributed.machines import check_room
from hotrows.engine.embedding import Embedding
from hotrows.ops.record import layout_of
from hotrows.runtime.background import Worker
from hotrows.runtime.file_sums import FileSum
from hotrows.runtime.locks import LockLost
from hotrows.runtime.machine import available_memory

log = logging.getLogger("hotrows")

_USUAL_RATE = 100e6  # bytes of a checkpoint that are written in a second, until one was
_SPARE = 0.8  # of the memory that is available, what copies may take
_MOST = 0.5  # of the records, what an increment may hold


@dataclass(frozen=True)
class _Sizes:
    """Bytes of all of a rank's records, and of those touched with their ids; the machine that it runs
    on, and the bytes of memory available on it."""

    full: int
    touched: int
    machine: str
    available: int | None


class Writer:
    """Writes the checkpoints of `run`; every call but `close` is collective between ranks.

    fingerprint: of the data's schema and encoders.
    keep_last: number of latest checkpoints to keep, in addition to the best one (default 1).
    full_every: write a full checkpoint every N saves, increments between (default 1).
    background: copy the rows, and write them while training goes on, where memory has room for the copy.
    Rows in file stores are made durable by the stores, at once.
    leaves: note changed rows for a last increment, `save(leaving=True)`, whatever full_every says.
    lock: of the run, where the caller has taken it; None: taken here, until `close`.

    >>> embedding = hotrows.Embedding([hotrows.Table("user", rows=100, dim=8, features=("user",))])
    >>> model = torch.nn.Linear(8, 1)
    >>> writer = Writer(f"{folder}/run", embedding, model)
    >>> writer.save(State(step=1, fields={}, tensors={}), is_best=True)
    >>> writer.close()
    >>> hotrows.engine.checkpoint.folder_of(f"{folder}/run", "best").name
    'step-1'
    """

    def __init__(
        self, run: Path | str, embedding: Embedding, model: nn.Module, fingerprint: str = "", *,
        keep_last: int = 1, full_every: int = 1, background: bool = False, leaves: bool = False,
        lock: RunLock | None = None,
    ) -> None:  # fmt: skip
        for name, value in (("keep_last", keep_last), ("full_every", full_every)):
            if value < 1:
                raise ValueError(f"{name} must be at least 1, not {value}")
        self.run, self.embedding, self.model = Path(run), embedding, model
        self._fingerprint, self._keep_last, self._full_every = fingerprint, keep_last, full_every
        self._ranks = embedding.ranks.channel("checkpoint")
        self._lock, self._is_lock_ours = lock or RunLock(self.run, self._ranks), lock is None
        self._in_files = embedding.cached_tables.is_in_files
        self._uploads: Uploads | None = None
        if (url := self._lock.url) is not None:
            if self._in_files:
                raise ValueError(
                    f"the run is at {url}, and its rows are in a file store on this machine: train in a "
                    f"folder, or without --store file:, where checkpoints have the rows"
                )
            self._uploads = Uploads(self.run, url, self._ranks, self._lock)
        self._background = background and not self._in_files
        self._increments = (full_every > 1 or leaves) and not self._in_files
        self._last: str | None = None  # the checkpoint since which changed rows are noted
        self._num_increments = 0
        self._has_warned = self._leaving = False
        self._rate = _USUAL_RATE
        self._worker: Worker[None] | None = None
        self._changed: ChangeReader | None = None
        if self._increments:  # before planning begins, which must be on the host then
            self._changed = embedding.packed.changed.reader("increments of checkpoints (full_every)")

    def check_room(self) -> None:
        """Raises ValueError where a disk has no room for a full checkpoint."""
        check_room(self._ranks, self.run, self._sizes().full)

    def stops_with(self, is_stopping: Callable[[], bool]) -> None:
        """Lets training wait for storage only until this says that the run is to stop."""
        if self._uploads is not None:
            self._uploads.is_stopping = is_stopping

    def leaves_within(self, end: float) -> bool:
        """Collective: whether a last checkpoint would be written, and sent, by this time of
        `time.monotonic`, as fast as the ones before; it is then an increment if it can be one."""
        self._leaving = True
        self.wait()
        sizes = self._ranks.gather_objects(self._sizes())
        num_bytes = self._sizes().touched if self._may_be_increment(sizes) else self._sizes().full
        seconds = num_bytes / self._rate
        if self._uploads is not None:
            seconds += self._uploads.seconds_for(num_bytes)
        return max(self._ranks.gather_objects(seconds)) <= end - time.monotonic()

    def save(self, state: State, is_best: bool = True) -> None:
        """Writes a checkpoint and makes it the last one, and the best one if it is."""
        self.wait()
        sizes = self._ranks.gather_objects(self._sizes())
        base = self._last if self._may_be_increment(sizes) else None
        needed = [size.touched if base else size.full for size in sizes]
        in_background = self._background and self._fits(sizes, needed)

        def snapshot() -> Snapshot:
            embedding, model, fingerprint = self.embedding, self.model, self._fingerprint
            changed = self._changed.take() if self._changed and base else None
            return take(embedding, model, state, fingerprint, base, changed, in_background)

        with self._marks(base):
            if not in_background:
                self._write(state.step, snapshot, is_best)
                return
            taken = together(self._ranks, snapshot)
        write_taken = partial(self._write, state.step, lambda: taken, is_best)
        self._worker = Worker("checkpoint", write_taken, patience=None)

    def wait(self) -> None:
        """Returns once the last checkpoint is written and pointed at; raises its error, if any."""
        if self._worker is not None:
            self._worker.wait()
            error, self._worker = self._worker.error, None
            if error is not None:
                self._last = None
                raise error

    def send(self, end: float | None = None) -> None:
        """Waits until the checkpoints of a run at a URL are there, or until this time of
        `time.monotonic`, when it gives up. Raises the error of one that could not be sent."""
        self.wait()
        if self._uploads is not None and not self._uploads.finish(end):
            self._uploads.stop()

    def safe(self) -> str:
        """The name of the last complete checkpoint, of a run at a URL of the last one there; "": none."""
        if self._uploads is not None:
            return self._uploads.safe
        pointer = pointed(self.run)
        return pointer.last if pointer else ""

    def went_to(self, folder: Path | str) -> None:
        """Notes that the embedding has the rows of this checkpoint of the run, which was just loaded."""
        self.wait()
        if self._increments:
            self._last, self._num_increments = Path(folder).name, len(bases(Path(folder)))
        self._forget_changes()

    def close(self) -> None:
        """Waits for the checkpoint that is being written, and saves no more; logs its error, except for
        `RankLost` and `LockLost`, with which the run ends anyway."""
        try:
            self.wait()
            if not self._leaving:
                self.send()
        except (RankLost, LockLost):
            pass
        except Exception as error:
            log.error("%s", error)
        finally:
            if self._uploads is not None and not self._leaving:
                self._uploads.close()
            if self._changed is not None:
                self.embedding.packed.changed.readers.remove(self._changed)
                self._changed = None
            if self._is_lock_ours:
                self._lock.release()

    # ---- full or increment, in the background or not

    def _sizes(self) -> _Sizes:
        stores, groups = self.embedding.stores, self.embedding.groups
        pairs = zip(self._changed.counts() if self._changed else [], groups, strict=False)
        rows = self.embedding.num_rows()
        unused = sum((t.rows - rows[t.name]) * layout_of(t).stride for t in self.embedding.tables)
        return _Sizes(
            full=sum(store.num_bytes for store in stores) - (unused if stores else 0),
            touched=sum(rows * (group.stride + 8 * len(group.packs)) for rows, group in pairs),
            machine=platform.node(),
            available=available_memory(),
        )

    def _may_be_increment(self, sizes: list[_Sizes]) -> bool:
        if self._last is None or (self._num_increments + 1 >= self._full_every and not self._leaving):
            return False
        return sum(size.touched for size in sizes) <= _MOST * sum(size.full for size in sizes)

    def _fits(self, sizes: list[_Sizes], needed: list[int]) -> bool:
        """True if every machine has the memory for the copies of its ranks; equal on all ranks."""
        for machine in {size.machine for size in sizes}:
            local = [k for k, size in enumerate(sizes) if size.machine == machine]
            known = [num for k in local if (num := sizes[k].available) is not None]
            copies, available = sum(needed[k] for k in local), min(known, default=None)
            if available is not None and copies > _SPARE * available:
                if not self._has_warned and self._ranks.rank == 0:
                    log.warning(
                        f"a copy of the rows takes {copies / 2**30:.1f} GiB and {available / 2**30:.1f} "
                        f"GiB of memory are available: training waits while checkpoints are written"
                    )
                self._has_warned = True
                return False
        return True

    @contextmanager
    def _marks(self, base: str | None) -> Iterator[None]:
        """Notes changed rows from the snapshot on, once it was taken."""
        try:
            yield
        except BaseException:
            self._last = None  # the next one is full
            raise
        self._num_increments = self._num_increments + 1 if base else 0
        self._forget_changes()

    def _forget_changes(self) -> None:
        if self._changed is not None:
            self._changed.forget()

    def _write(self, step: int, snapshot: Callable[[], Snapshot], is_best: bool) -> None:
        run, ranks, keep_last = self.run, self._ranks, self._keep_last

        apart = self._uploads is not None
        on_first = together if apart else of_rank_0

        def point_to(name: str, manifest: FileSum) -> None:
            self._lock.check()
            used = self._uploads.names if self._uploads else ()
            point(run, moved_on(pointed(run), name, is_best, keep_last), manifest, used)

        try:
            on_first(ranks, self._lock.check)
            begin = time.monotonic()
            name, manifest = write(run, step, ranks, snapshot, apart)
            self._rate = _bytes_of(run, name) / max(time.monotonic() - begin, 1e-3)
            on_first(ranks, lambda: point_to(name, manifest))
            if self._uploads is not None:
                self._uploads.add(name)
        except (OSError, ValueError):
            self._lock.check()  # a folder that was deleted is no full disk, and no damaged checkpoint
            raise
        self._last = name if self._increments else None
        cached_tables = self.embedding.cached_tables
        if self._in_files:
            together(ranks, lambda: cached_tables.retain(retained(run, ranks.rank, ranks.num_ranks)))


def _bytes_of(run: Path, name: str) -> int:
    """The bytes of the files of a checkpoint."""
    return sum(path.stat().st_size for path in (run / FOLDER / name).rglob("*"))
