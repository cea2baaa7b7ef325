"""Publisher: sends what training changes to those who serve, as versions in a folder (`serving.chain`).

    trainer.fit(callbacks=[Publisher("published", every="1s")])

    training     .. step | copy | step .. step | copy | ..       the rows touched, the dense part
    publishing                  | write, sync, rename | ..       a delta; now and then a base of them

Training stands still for the copy alone. The first version is whole, as `hotrows export` writes it. A
later base is made of files, an earlier base and the deltas after it. A run that goes on compares its rows
with those of the last version, so that the next delta has all that differs, whatever was lost.
"""

from __future__ import annotations

import logging
import queue
import re
import secrets
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from hotrows.engine.embedding import Embedding
from hotrows.optim import DenseRowOptimizer
from hotrows.planning.packing import rows_of
from hotrows.record import layout_of, views
from hotrows.runtime.atomic_files import make_folder, new_folder, write_first
from hotrows.runtime.locks import Lock
from hotrows.serving import chain, merging, table_rows
from hotrows.serving.deltas import Delta, VersionHead, write_delta
from hotrows.serving.places import Mirror
from hotrows.serving.version import Version, version_at, with_deltas
from hotrows.train.callback import Callback
from hotrows.train.export import write_whole_bundle
from hotrows.train.progress import Progress
from hotrows.train.trainer import Trainer

log = logging.getLogger("hotrows")

_COPIES = "published"  # the folder in that of a run, from which a URL is filled
_MOST_DELTAS = 500  # between two bases
_COMPARED = 1 << 18  # rows at a time


@dataclass(frozen=True)
class Every:
    """How often a delta is published: after so many seconds, or so many batches."""

    seconds: float | None = None
    batches: int | None = None

    @staticmethod
    def parse(text: str) -> Every:
        """What 30s, 0.5s or 500b says."""
        match = re.fullmatch(r"(\d+(?:\.\d+)?)s|(\d+)b", text.strip())
        if match is None or (match[2] is not None and int(match[2]) < 1):
            raise ValueError(
                f"how often to publish is a number of seconds or batches, 30s or 500b, not {text!r}"
            )
        return Every(float(match[1]), None) if match[1] else Every(None, int(match[2]))

    def __str__(self) -> str:
        return f"{self.seconds:g}s" if self.batches is None else f"{self.batches}b"


@dataclass(frozen=True)
class _Snapshot:
    """What a delta is made of: weights [n, D] of ids [n] ascending by table, and the dense part."""

    step: int
    time: float
    rows: Mapping[str, tuple[Tensor, Tensor]]
    dense: Mapping[str, Tensor]


class Publisher(Callback):
    """Publishes the model that a trainer trains.

    to: a folder, or a URL of a place (`serving.places`): the run's folder then has a copy. every: such as
    "30s" or "500b". format: of the program, onnx or pt2; table_dtype: of served rows, float32, float16,
    int8 or int4. base_every: deltas between bases (default: until they are as large as a base). keep: how
    many of the last bases stay, with the deltas after them.
    """

    def __init__(
        self,
        to: Path | str,
        every: str = "30s",
        *,
        format: str = "onnx",
        table_dtype: str = "float32",
        base_every: int | None = None,
        keep: int = 2,
    ) -> None:
        if format not in ("onnx", "pt2") or table_dtype not in table_rows.DTYPES:
            raise ValueError(
                f"what is published is onnx or pt2 with rows of {', '.join(table_rows.DTYPES)}, not "
                f"{format!r} with {table_dtype!r}"
            )
        for name, value in (("keep", keep), ("base_every", base_every)):
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, not {value}")
        self.to, self.every = to, Every.parse(every)
        self._format, self.table_dtype = format, table_dtype
        self._base_every, self._keep = base_every, keep
        self._marks: list[_Marks] = []
        self._work: queue.Queue[_Snapshot | None] = queue.Queue(1)
        self._returned: queue.Queue[_Snapshot] = queue.Queue()  # that could not be written
        self._thread: threading.Thread | None = None
        self._stack = ExitStack()
        self.error: Exception | None = None

    # ---- called by training

    def begin(self, trainer: Trainer) -> None:
        """Makes the first version, or finds what differs from the last one of this run."""
        embedding = trainer.embedding
        _check(trainer)
        self._mirror = Mirror.open(self.to, trainer.run / _COPIES)
        self.folder = self._mirror.folder if self._mirror else Path(self.to)
        make_folder(self.folder)
        self._stack.callback(Lock(self.folder).release)
        chain.sweep(self.folder)
        self._marks = [_Marks(group.rows) for group in embedding.groups]
        observers = embedding.packed.observers
        observers.append(self._note)
        self._stack.callback(observers.remove, self._note)
        with torch.random.fork_rng(devices=[]):
            self._version = self._first_version(trainer)
        self._head, self._published_at = self._version.head, time.monotonic()
        assert self._head is not None
        self._published_step = self._head.step
        self._base, self._bytes = self._version.base, 0
        self._dtypes = {table.name: table.dtype for table in self._version.bundle.tables}
        self._names = tuple(self._version.program.parameter_names())
        self._thread = threading.Thread(target=self._publish_all, name="hotrows publishing", daemon=True)
        self._thread.start()

    def after_step(self, trainer: Trainer, progress: Progress | None = None) -> None:
        """Hands the changes since the last delta to the thread that publishes, where that is due."""
        since = trainer.state.step - self._published_step
        seconds, batches = self.every.seconds, self.every.batches
        if since < 1:  # a resumed run that is not yet where its last version was
            return
        if batches is not None:
            is_due = since >= batches
        else:
            is_due = time.monotonic() - self._published_at >= (seconds or 0.0)
        if is_due and not self._work.unfinished_tasks:
            self._hand_over(trainer)

    def while_idle(self, trainer: Trainer) -> None:
        """Publishes what the last batches of a stream changed, where no others come."""
        self.after_step(trainer)

    def end(self, trainer: Trainer) -> None:
        """Publishes the last state of training, and waits until it is there."""
        self._work.join()
        if trainer.state.step > self._published_step or not self._returned.empty():
            self._hand_over(trainer)
            self._work.join()
        if self.error is not None:
            raise OSError(
                f"the last version could not be published to {self.to}: {self.error}; mend that, then "
                f"go on with the run"
            ) from self.error

    def close(self) -> None:
        """Waits for what is being published, and publishes no more."""
        if self._thread is not None:
            self._work.put(None)
            self._thread.join()
            self._thread = None
        self._stack.close()

    def _note(self, g: int, rows: Tensor) -> None:
        self._marks[g].add(rows)

    def _hand_over(self, trainer: Trainer) -> None:
        while not self._returned.empty():
            lost = self._returned.get()
            self._mark(trainer.embedding, {name: ids for name, (ids, _) in lost.rows.items()})
        self._published_at, self._published_step = time.monotonic(), trainer.state.step
        with trainer.steps.paused() if trainer.cached_tables else nullcontext():
            self._work.put(self._snapshot(trainer))

    def _snapshot(self, trainer: Trainer) -> _Snapshot:
        embedding = trainer.embedding
        rows: dict[str, tuple[Tensor, Tensor]] = {}
        for g, group in enumerate(embedding.groups):
            touched = self._marks[g].take()
            for p in group.packs:
                pack = embedding.packs[p]
                weights = _weights(embedding, p, touched)
                cuts = torch.searchsorted(touched, torch.tensor(pack.first_rows)).tolist()
                for t, table in enumerate(pack.tables):
                    part = slice(cuts[t], cuts[t + 1])
                    if part.stop > part.start:
                        rows[table.name] = touched[part] - pack.first_rows[t], weights[part]
        model = trainer.model
        tensors = dict([*model.named_parameters("model"), *model.named_buffers("model")])
        dense = {name: tensors[name].detach().cpu().clone() for name in self._names}
        return _Snapshot(trainer.state.step, time.time(), rows, dense)

    def _mark(self, embedding: Embedding, ids: Mapping[str, Tensor]) -> None:
        """Marks ids of tables as touched."""
        groups = {p: g for g, group in enumerate(embedding.groups) for p in group.packs}
        for name, of_table in ids.items():
            p, first, _ = rows_of(embedding.packs, name)
            self._marks[groups[p]].add(of_table + first)

    # ---- the first version

    def _first_version(self, trainer: Trainer) -> Version:
        """The last version of the run, with all rows marked that differ; a new one if there is none."""
        versions, name = chain.look(self.folder), _chain_of(trainer.run)
        if not versions.newest:
            path = chain.base_path(self.folder, 1)
            with new_folder(path) as part:
                settings = f"step {trainer.state.step}", self._format, self.table_dtype
                write_whole_bundle(part, trainer.recommender, trainer.run, *settings)
                chain.write_base_head(part, VersionHead(name, 1, trainer.state.step, time.time()))
            if self._mirror:
                self._mirror.push()
            return version_at(self.folder, trust=True)
        head = chain.head_of(versions, versions.newest)
        if head.chain != name:  # before its program is opened, which may be code
            raise ValueError(
                f"{self.folder} has the versions of another run, up to step {head.step:,}; "
                f"publish each run into a folder of its own"
            )
        version = version_at(self.folder, trust=True)
        self._mark(trainer.embedding, dict(_differences(trainer.embedding, version)))
        return version

    # ---- the thread that publishes

    def _publish_all(self) -> None:
        while (snapshot := self._work.get()) is not None:
            try:
                self._publish(snapshot)
                self.error = None
            except Exception as error:
                if self.error is None:
                    log.error("a version could not be published to %s: %s", self.to, error)
                self.error = error
                self._returned.put(snapshot)
            finally:
                self._work.task_done()
        self._work.task_done()

    def _publish(self, snapshot: _Snapshot) -> None:
        head = self._head
        assert head is not None
        number = head.number + 1
        following = VersionHead(
            head.chain, number, snapshot.step, snapshot.time, previous_checksum=head.checksum
        )
        rows = {
            name: (ids.numpy(), table_rows.encode(weights.float().numpy(), self._dtypes[name]))
            for name, (ids, weights) in snapshot.rows.items()
        }
        path = chain.delta_path(self.folder, number)
        dense = {name: values.numpy() for name, values in snapshot.dense.items()}
        self._head = write_delta(path, Delta(following, rows, dense))
        self._bytes += path.stat().st_size
        if self._wants_base(number):
            self._make_base(number)
        if self._mirror:
            self._mirror.pull_pin()
        chain.prune(self.folder, self._keep)
        if self._mirror:
            self._mirror.push()

    def _wants_base(self, number: int) -> bool:
        deltas = number - self._base
        if self._base_every is not None:
            return deltas >= self._base_every
        base = sum(of_file.bytes for of_file in self._version.bundle.files.values())
        return deltas >= _MOST_DELTAS or (deltas >= 16 and self._bytes >= base)

    def _make_base(self, number: int) -> None:
        """Makes a base of this version out of the last one and the deltas since."""
        before = version_at(self.folder, self._base, trust=True)
        version = with_deltas(before, self.folder, range(self._base + 1, number + 1))
        with new_folder(chain.base_path(self.folder, number)) as part:
            merging.write(version, part)
        self._base, self._bytes = number, 0


class _Marks:
    """The rows of a group that have changed since they were taken last; by what they cost alone, not by
    the rows that there are."""

    def __init__(self, num_rows: int) -> None:
        self._is_marked = torch.from_numpy(np.zeros(num_rows, bool))
        self._parts: list[Tensor] = []

    def add(self, rows: Tensor) -> None:
        """Marks rows, distinct ones."""
        new = rows[~self._is_marked[rows]]
        self._is_marked[new] = True
        self._parts.append(new)

    def take(self) -> Tensor:
        """The marked rows, ascending; none is marked then."""
        rows = torch.cat([torch.empty(0, dtype=torch.int64), *self._parts]).sort().values
        self._is_marked[rows] = False
        self._parts = []
        return rows


def _check(trainer: Trainer) -> None:
    """Refuses runs whose changes no delta can say."""
    if trainer.ranks.num_ranks > 1:
        raise ValueError("a run of one rank can be published so far: start one, or publish its exports")
    for table in trainer.embedding.tables:
        if isinstance(table.optimizer, DenseRowOptimizer):
            raise ValueError(
                f"table {table.name!r} is trained by {table.optimizer.kind}, which changes all rows in "
                f"every step, so that a delta would be all of it: use a lazy optimizer, such as adagrad"
            )


def _weights(embedding: Embedding, p: int, rows: Tensor) -> Tensor:
    """A copy in host memory of the weights of rows of pack p, [n, D], distinct and ascending."""
    if embedding.cached_tables is None:
        store = embedding.stores[p]
        return store.views.weights[rows.to(store.records.device)].cpu()
    layout = layout_of(embedding.packs[p].tables[0]).as_ints()
    return views(embedding.packed.copies(p, rows), layout).weights


def _chain_of(run: Path) -> str:
    """The name of a run's chain of versions, chosen at random once."""
    path = run / "chain.txt"
    chain_name = secrets.token_hex(8)
    write_first(path, chain_name)
    return path.read_text()


def _differences(embedding: Embedding, version: Version) -> Iterator[tuple[str, Tensor]]:
    """By table, the ids whose rows are others than those of a version."""
    for table in embedding.tables:
        stored, first, ids = version.tables[table.name], 0, []
        for weights in embedding.weight_chunks(table.name):
            for begin in range(0, len(weights), _COMPARED):
                part = weights[begin : begin + _COMPARED].float().numpy()
                numbers = np.arange(first, first + len(part))
                before, now = stored.stored(numbers), table_rows.encode(part, stored.dtype)
                differ = (before.view(np.uint8) != np.ascontiguousarray(now).view(np.uint8)).any(1)
                ids.append(numbers[differ])
                first += len(part)
        yield table.name, torch.from_numpy(np.concatenate(ids))
