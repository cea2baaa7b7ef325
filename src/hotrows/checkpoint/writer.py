"""Writer: the checkpoints of a run, one after the other; increments, in the background, the last few.

    writer = Writer(run, embedding, model, fingerprint, keep_last=3, full_every=10, background=True)
    writer.save(state, is_best=True)       # returns once the rows are copied; training may go on
    writer.wait()                          # everything is on disk, and pointed at

    training       ... | copy | ...... next steps ...... | wait for it; copy | ...
    background                | write | agree | publish, point |

An increment holds the rows updated since the checkpoint before it, so its copy is small. One
checkpoint is on its way at a time; what went wrong with it is raised by the next call.
"""

from __future__ import annotations

import logging
import platform
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from hotrows.checkpoint.manifest import bases
from hotrows.checkpoint.pointer import FOLDER, moved_on, point, pointed, retained
from hotrows.checkpoint.together import of_rank_0, together
from hotrows.checkpoint.write import Snapshot, State, take, write
from hotrows.embedding import Embedding
from hotrows.environment import available_memory
from hotrows.exchange.processes import RankLost

log = logging.getLogger("hotrows")

_SPARE = 0.8  # of the memory that is available, what copies may take
_MOST = 0.5  # of the records, what an increment may hold


@dataclass(frozen=True)
class _Sizes:
    """Bytes of a rank's records, and of those touched with their ids; which machine it runs on."""

    whole: int
    touched: int
    machine: str
    available: int | None


class Writer:
    """Writes the checkpoints of `run`; every call but `close` is collective between ranks.

    fingerprint: of the data's schema and encoders. keep_last: how many checkpoints stay beside the
    best one. full_every: every so-manieth holds all rows, those between what has changed.
    background: copies the rows and writes them while training goes on, where there is memory for the
    copy. Rows in file stores are made durable by the stores, at once.
    """

    def __init__(
        self, run: Path, embedding: Embedding, model: nn.Module, fingerprint: str = "", *,
        keep_last: int = 1, full_every: int = 1, background: bool = False,
    ) -> None:  # fmt: skip
        for name, value in (("keep_last", keep_last), ("full_every", full_every)):
            if value < 1:
                raise ValueError(f"{name} must be at least 1, not {value}")
        self.run, self.embedding, self.model = run, embedding, model
        self._fingerprint, self._keep_last, self._full_every = fingerprint, keep_last, full_every
        self._ranks = embedding.ranks.channel("checkpoint")
        self._in_files = embedding.tiers is not None and embedding.tiers.caching.path is not None
        self._background = background and not self._in_files
        self._increments = full_every > 1 and not self._in_files
        self._last: str | None = None  # what `touched` counts from
        self._num_increments = 0
        self._has_said = False
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        if self._increments:
            embedding.note_touched()  # before planning begins, which must be on the host then

    def save(self, state: State, is_best: bool = True) -> None:
        """Writes a checkpoint and makes it the last one, and the best one if it is."""
        self.wait()
        sizes = self._ranks.gather_objects(self._sizes())
        base = self._last if self._may_be_increment(sizes) else None
        needed = [of.touched if base else of.whole for of in sizes]
        in_background = self._background and self._fits(sizes, needed)

        def snapshot() -> Snapshot:
            return take(
                self.embedding, self.model, state, self._fingerprint, base=base, copied=in_background
            )  # fmt: skip

        with self._marks(base):
            if not in_background:
                self._write(state.step, snapshot, is_best)
                return
            taken = together(self._ranks, snapshot)
        self._start(lambda: self._write(state.step, lambda: taken, is_best))

    def wait(self) -> None:
        """Returns once the last checkpoint is written and pointed at; raises what went wrong."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._error is not None:
            error, self._error = self._error, None
            self._last = None
            raise error

    def went_to(self, folder: Path) -> None:
        """The embedding now has the rows of this checkpoint of the run: it has just been loaded."""
        self.wait()
        if self._increments:
            self._last, self._num_increments = folder.name, len(bases(folder))
            self.embedding.note_touched()

    def close(self) -> None:
        """Waits for what is being written; a failure is said, not raised, but that of a lost rank:
        the run ends with that already."""
        try:
            self.wait()
        except RankLost:
            pass
        except Exception as error:
            log.error("%s", error)

    # ---- what to write

    def _sizes(self) -> _Sizes:
        stores, groups = self.embedding.stores, self.embedding.groups
        touched = [int(of.sum()) for of in self.embedding.touched] if self._last else []
        pairs = zip(touched, groups, strict=False)
        return _Sizes(
            whole=sum(store.num_bytes for store in stores),
            touched=sum(rows * (group.stride + 8 * len(group.packs)) for rows, group in pairs),
            machine=platform.node(),
            available=available_memory(),
        )

    def _may_be_increment(self, sizes: list[_Sizes]) -> bool:
        if self._last is None or self._num_increments + 1 >= self._full_every:
            return False
        return sum(of.touched for of in sizes) <= _MOST * sum(of.whole for of in sizes)

    def _fits(self, sizes: list[_Sizes], needed: list[int]) -> bool:
        """Whether every machine has the memory for the copies of its ranks; the same on all."""
        for machine in {of.machine for of in sizes}:
            here = [(n, of) for n, of in zip(needed, sizes, strict=True) if of.machine == machine]
            available = min(
                (of.available for _, of in here if of.available is not None), default=None
            )
            copies = sum(n for n, _ in here)
            if available is not None and copies > _SPARE * available:
                self._say_once(copies, available)
                return False
        return True

    def _say_once(self, copies: int, available: int) -> None:
        if not self._has_said and self._ranks.rank == 0:
            log.warning(
                "a copy of the rows takes %.1f GiB and %.1f GiB of memory are available: training "
                "waits while checkpoints are written",
                copies / 2**30,
                available / 2**30,
            )
        self._has_said = True

    @contextmanager
    def _marks(self, base: str | None) -> Iterator[None]:
        """What is touched counts from the snapshot on, once it is taken."""
        try:
            yield
        except BaseException:
            self._last = None  # the next one is full
            raise
        self._num_increments = self._num_increments + 1 if base else 0
        if self._increments:
            self.embedding.note_touched()

    # ---- writing it

    def _start(self, job: Callable[[], None]) -> None:
        def work() -> None:
            try:
                job()
            except BaseException as error:
                self._error = error

        self._thread = threading.Thread(target=work, name="checkpoint")
        self._thread.start()

    def _write(self, step: int, snapshot: Callable[[], Snapshot], is_best: bool) -> None:
        name = write(self.run, step, self._ranks, snapshot)
        of_rank_0(self._ranks, lambda: self._point(name, is_best))
        self._last = name if self._increments else None
        tiers = self.embedding.tiers
        if self._in_files and tiers:
            rank, num_ranks = self._ranks.rank, self._ranks.num_ranks
            together(self._ranks, lambda: tiers.retain(retained(self.run, rank, num_ranks)))

    def _point(self, name: str, is_best: bool) -> None:
        point(self.run, moved_on(pointed(self.run), name, is_best, self._keep_last))


__all__ = ["FOLDER", "State", "Writer"]
