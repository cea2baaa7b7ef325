"""Publisher: sends what training changes to those who serve, as versions in a folder (`serving.chain`).

    trainer.fit(callbacks=[Publisher("published", every="1s")])

    training     .. step | copy | step .. step | copy | ..       the rows touched, the dense part
    publishing                  | write, sync, rename | ..       a delta
    base                                              | ..       now and then, of files, beside deltas

Training stands still for the copy alone. The first version is whole, as `hotrows export` writes it. A
later base is made of files, an earlier base and the deltas after it. A run that goes on compares its rows
with those of the last version, so that the next delta has all that differs, whatever was lost.
"""

from __future__ import annotations

import logging
import queue
import re
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from hotrows.data.stored.histories import UserHistories
from hotrows.engine.changed_rows import ChangeReader, spans_of
from hotrows.engine.embedding import Embedding
from hotrows.engine.keys.partitions import KeyChanges
from hotrows.engine.planning.packing import rows_of
from hotrows.optim import DenseRowOptimizer
from hotrows.runtime.atomic_files import absolute, address, make_folder, new_folder, write_text
from hotrows.runtime.background import Worker
from hotrows.runtime.locks import Lock
from hotrows.runtime.random_numbers import restored
from hotrows.runtime.remote import is_url
from hotrows.serving import chain, merging, table_rows
from hotrows.serving.bundle import PRECISIONS
from hotrows.serving.deltas import Delta, VersionHead, write_delta
from hotrows.serving.export.bundles import BundleForm
from hotrows.serving.export.published import Published, num_events
from hotrows.serving.export.whole import write_whole_bundle
from hotrows.serving.key_ids import GONE, last_of_each
from hotrows.serving.places import Mirror
from hotrows.serving.version import Version, version_at, with_deltas
from hotrows.train.callback import Callback, Training
from hotrows.train.telling.progress import Progress
from hotrows.train.telling.result import Result

log = logging.getLogger("hotrows")

_COPIES = "published"  # the folder in that of a run, from which a URL is filled
_LEAST_DELTAS, _MOST_DELTAS = 64, 500  # between two bases
_COMPARED = 1 << 18  # rows at a time


@dataclass(frozen=True)
class Every:
    """How often a delta is published: after so many seconds, or so many batches."""

    seconds: float | None = None
    batches: int | None = None

    @staticmethod
    def parse(text: str) -> Every:
        """Parses 30s, 0.5s or 500b."""
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
    """The content of a delta: weights [n, D] of ids [n] ascending by table, the dense part, and by
    vocabulary, keys [n] whose rows are others, and their ids, `GONE` where they have none; the histories
    of users, all of them."""

    progress: Published
    time: float
    rows: Mapping[str, tuple[Tensor, Tensor]]
    dense: Mapping[str, Tensor]
    keys: Mapping[str, np.ndarray]
    histories: UserHistories | None


class Publisher(Callback):
    """Publishes the model that a trainer trains.

    to: a folder, or a URL of a place (`serving.places`): the run's folder then has a copy.
    every: the interval between versions: 30s, 0.5s or 500b (batches).
    format: onnx or pt2.
    table_dtype: number format of published rows: float32, float16, int8 or int4.
    shared: features that all rows of a request have in common, see `export`.
    precision: number format of attention when serving: float32, bfloat16 or int8.
    base_every: deltas between bases (default: until they are as large as a base).
    keep: how many of the last bases stay, with the deltas after them.

    >>> publisher = Publisher("versions", every="500b")  # trainer.fit(callbacks=[publisher])
    >>> print(publisher.every)
    500b
    """

    def __init__(
        self,
        to: Path | str,
        every: str = "30s",
        *,
        format: str = "onnx",
        table_dtype: str = "float32",
        shared: Sequence[str] = (),
        precision: str = "float32",
        base_every: int | None = None,
        keep: int = 2,
    ) -> None:
        if format not in ("onnx", "pt2") or table_dtype not in table_rows.DTYPES:
            raise ValueError(
                f"what is published is onnx or pt2 with rows of {', '.join(table_rows.DTYPES)}, not "
                f"{format!r} with {table_dtype!r}"
            )
        if precision not in PRECISIONS:
            raise ValueError(
                f"precision must be one of {', '.join(PRECISIONS)}, not {precision!r}: training "
                f"changes what auto measures"
            )
        for name, value in (("keep", keep), ("base_every", base_every)):
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, not {value}")
        self.to, self.every = address(to) if is_url(to) else absolute(to), Every.parse(every)
        self.form = BundleForm(format, table_dtype, tuple(shared), precision)
        self._base_every, self._keep = base_every, keep
        self._changed: ChangeReader | None = None
        self._keys: dict[str, _ChangedKeys] = {}
        self._work: queue.Queue[_Snapshot | None] = queue.Queue(1)
        self._returned: queue.Queue[_Snapshot] = queue.Queue()  # that could not be written
        self._worker: Worker[None] | None = None
        self._base_worker: Worker[None] | None = None
        self._base_problem = ""
        self._stack = ExitStack()
        self.error: Exception | None = None

    # ---- called by training

    def on_begin(self, trainer: Training) -> None:
        """Makes the first version, or finds what differs from the last one of this run."""
        embedding = trainer.embedding
        _check(trainer)
        self._mirror = Mirror.open(self.to, trainer.run / _COPIES)
        self.folder = self._mirror.folder if self._mirror else Path(self.to)
        make_folder(self.folder)
        self._stack.callback(Lock(self.folder).release)
        changed = embedding.packed.changed
        self._changed = changed.reader("deltas (publish)")
        self._stack.callback(changed.readers.remove, self._changed)
        of_keys = embedding.dynamic.keys
        self._keys = {name: _ChangedKeys() for name in of_keys.vocabularies}
        of_keys.observers.append(self._note_keys)
        self._stack.callback(of_keys.observers.remove, self._note_keys)
        with restored():
            self._version = self._first_version(trainer)
        self._head, self._published_at = self._version.head, time.monotonic()
        known = self._version.histories
        self._num_appended = 0 if known is None else known.count  # events that the last version has
        assert self._head is not None
        calibration = self._version.calibration
        self._published = Published.before(self._head, trainer.state, self._differs, calibration)
        self._base, self._bytes, self._bytes_of_base = self._version.base, 0, 0
        self._dtypes = {table.name: table.dtype for table in self._version.bundle.tables}
        self._names = tuple(self._version.program.parameter_names())
        stop = partial(self._work.put, None)
        self._worker = Worker("hotrows publishing", self._publish_all, stop, patience=None)

    def on_step_end(self, trainer: Training, progress: Progress | None = None) -> None:
        """Hands the changes since the last delta to the thread that publishes, where that is due."""
        since = self._published.batches_since(trainer.state, trainer.recommender.calibration)
        seconds, batches = self.every.seconds, self.every.batches
        if since < 1:
            return
        if batches is not None:
            is_due = since >= batches
        else:
            is_due = time.monotonic() - self._published_at >= (seconds or 0.0)
        if is_due and not self._work.unfinished_tasks:
            self._hand_over(trainer)

    def on_idle(self, trainer: Training) -> None:
        """Publishes what the last batches of a stream changed, where no others come."""
        self.on_step_end(trainer)

    def on_training_end(self, trainer: Training) -> None:
        """Publishes the last state of training, and waits until it is there."""
        self._work.join()
        calibration = trainer.recommender.calibration
        if self._published.batches_since(trainer.state, calibration) or not self._returned.empty():
            self._hand_over(trainer)
        self.wait()
        if self._mirror and self._base_worker is not None and self.error is None:
            self._mirror.push()
        if self.error is not None:
            raise OSError(
                f"the last version could not be published to {self.to}: {self.error}; mend that, then "
                f"go on with the run"
            ) from self.error

    def wait(self) -> None:
        """Waits until what training has handed over is published, and until a base is made."""
        self._work.join()
        if self._base_worker is not None:
            self._base_worker.wait()

    def on_end(self, trainer: Training, result: Result | None, error: BaseException | None) -> None:
        """Waits for what is being published, and publishes no more."""
        if self._worker is not None:
            self._worker.close()
            self._worker = None
        if self._base_worker is not None:
            self._base_worker.wait()
        self._stack.close()

    def _note_keys(self, vocabulary: str, changes: KeyChanges) -> None:
        self._keys[vocabulary].add(changes.gone.numpy(), GONE)
        self._keys[vocabulary].add(changes.keys.numpy(), changes.ids.numpy())

    def _hand_over(self, trainer: Training) -> None:
        while not self._returned.empty():
            lost = self._returned.get()
            self._mark(trainer.embedding, {name: ids for name, (ids, _) in lost.rows.items()})
            for name, (keys, ids) in lost.keys.items():
                self._keys[name].add_before(keys, ids)
        self._published_at, calibration = time.monotonic(), trainer.recommender.calibration
        self._published = Published.from_state(trainer.state, calibration)
        with trainer.steps.paused() if trainer.cached_tables else nullcontext():
            self._work.put(self._snapshot(trainer))

    def _snapshot(self, trainer: Training) -> _Snapshot:
        embedding = trainer.embedding
        assert self._changed is not None
        rows: dict[str, tuple[Tensor, Tensor]] = {}
        for group, changed in zip(embedding.groups, self._changed.take(), strict=True):
            for p in group.packs:
                pack = embedding.packs[p]
                weights = embedding.packed.weights_of(p, changed)
                spans = spans_of(changed, pairwise(pack.first_rows))
                for table, first, span in zip(pack.tables, pack.first_rows, spans, strict=False):
                    if span.stop > span.start and table.name in self._dtypes:
                        rows[table.name] = changed[span] - first, weights[span]
        model = trainer.model
        tensors = dict([*model.named_parameters("model"), *model.named_buffers("model")])
        dense = {name: tensors[name].detach().cpu().clone() for name in self._names}
        keys = {name: changed.take() for name, changed in self._keys.items()}
        histories = trainer.steps.batches.histories
        return _Snapshot(self._published, time.time(), rows, dense, keys, histories)

    def _mark(self, embedding: Embedding, ids: Mapping[str, Tensor]) -> None:
        """Notes that ids of tables have changed."""
        assert self._changed is not None
        groups = {p: g for g, group in enumerate(embedding.groups) for p in group.packs}
        for name, of_table in ids.items():
            p, first, _ = rows_of(embedding.packs, name)
            self._changed.add(groups[p], of_table + first)

    # ---- the first version

    def _first_version(self, trainer: Training) -> Version:
        """The last version of the run, with all rows marked that differ; a new one if there is none."""
        versions, name = chain.look(self.folder), _chain_of(trainer.run)
        head = chain.head_of(versions, versions.newest) if versions.newest else None
        if head is not None and head.chain != name:  # before its program is opened, which may be code
            raise ValueError(
                f"{self.folder} has the versions of another run, up to step {head.step:,}; "
                f"publish each run into a folder of its own"
            )
        # Write the whole model where there is no version yet, and push it.
        chain.sweep(self.folder, ".part", ".gone")
        if head is None:
            with new_folder(chain.base_path(self.folder, 1)) as part:
                state, step = trainer.state, trainer.state.step
                trainer.recommender.histories = trainer.steps.batches.histories
                write_whole_bundle(part, trainer.recommender, trainer.run, f"step {step}", self.form)
                first = VersionHead(name, 1, step, time.time(), num_events(state))
                chain.write_base_head(part, first)
        if self._mirror:
            try:
                self._mirror.push()
            except OSError as error:
                if head is None:
                    raise
                log.error("versions could not be published to %s: %s", self.to, error)
        # Else mark the rows in which the last version differs, keys too.
        version, self._differs = version_at(self.folder, trust=True), False
        if head is None:
            return version
        differences = dict(_differences(trainer.embedding, version))
        self._differs = any(map(len, differences.values()))
        self._mark(trainer.embedding, differences)
        for name, changed in self._keys.items():
            ids, keys = (tensor.numpy() for tensor in trainer.embedding.dynamic.keys.live(name))
            changed.add(version.keys[name].pairs()[0], GONE)
            changed.add(keys, ids)
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
        step, num, before = snapshot.progress.step, snapshot.progress.events, head.checksum
        following = VersionHead(head.chain, number, step, snapshot.time, num, previous_checksum=before)
        rows = {
            name: (ids.numpy(), table_rows.encode(weights.float().numpy(), self._dtypes[name]))
            for name, (ids, weights) in snapshot.rows.items()
        }
        path = chain.delta_path(self.folder, number)
        dense = {name: values.numpy() for name, values in snapshot.dense.items()}
        live = {name: pairs[:, pairs[1] != GONE] for name, pairs in snapshot.keys.items()}
        keys = {name: (pairs[0], pairs[1]) for name, pairs in live.items() if pairs.size}
        gone = {name: pairs[0, pairs[1] == GONE] for name, pairs in snapshot.keys.items()}
        gone = {name: keys for name, keys in gone.items() if len(keys)}
        histories = snapshot.histories
        events = {} if histories is None else histories.since(self._num_appended)
        scales = np.array(snapshot.progress.calibration.scales)
        self._head = write_delta(path, Delta(following, rows, dense, scales, keys, gone, events))
        self._num_appended = self._num_appended if histories is None else histories.count
        self._bytes += path.stat().st_size
        if self._wants_base(number):
            make_base = partial(self._make_base, number, self._bytes)
            self._base_worker = Worker("hotrows base", make_base, patience=None)
        if self._mirror:
            self._mirror.pull_pin()
        chain.prune(self.folder, self._keep)
        if self._mirror:
            self._mirror.push()

    def _wants_base(self, number: int) -> bool:
        if self._base_worker is not None and self._base_worker.is_alive():
            return False
        deltas = number - self._base
        if self._base_every is not None:
            return deltas >= self._base_every
        base = sum(of_file.bytes for of_file in self._version.bundle.files.values())
        num_bytes = self._bytes - self._bytes_of_base
        return deltas >= _MOST_DELTAS or (deltas >= _LEAST_DELTAS and num_bytes >= base)

    def _make_base(self, number: int, num_bytes: int) -> None:
        """Makes a base of this version out of the last one and the deltas since; num_bytes: of all deltas
        that this process has written so far."""
        try:
            before = version_at(self.folder, self._base, trust=True)
            version = with_deltas(before, self.folder, range(self._base + 1, number + 1))
            with new_folder(chain.base_path(self.folder, number)) as part:
                merging.write(version, part)
        except Exception as error:
            if str(error) != self._base_problem:
                log.error("a base could not be written to %s: %s; deltas go on", self.to, error)
            self._base_problem = str(error)
        else:
            self._base, self._bytes_of_base, self._base_problem = number, num_bytes, ""


class _ChangedKeys:
    """The keys of a vocabulary that have got rows, or lost them, since they were taken last."""

    def __init__(self) -> None:
        self._parts = [np.zeros((2, 0), np.int64)]

    def add(self, keys: np.ndarray, ids: np.ndarray | int) -> None:
        """Notes keys [n], distinct ones, that have these ids from here on."""
        if len(keys):
            self._parts.append(np.stack([keys, np.broadcast_to(ids, keys.shape)]))

    def add_before(self, keys: np.ndarray, ids: np.ndarray) -> None:
        """Notes keys that had these ids before all that was noted."""
        self._parts.insert(0, np.stack([keys, ids]))

    def take(self) -> np.ndarray:
        """[2, n]: the keys, ascending, and the ids that they have now; none is noted then."""
        pairs = last_of_each(np.concatenate(self._parts, 1))
        self._parts = [np.zeros((2, 0), np.int64)]
        return pairs


def _check(trainer: Training) -> None:
    """Refuses runs whose changes no delta can say."""
    if trainer.ranks.num_ranks > 1:
        raise ValueError("a run of one rank can be published so far: start one, or publish its exports")
    for table in trainer.embedding.tables:
        if isinstance(table.optimizer, DenseRowOptimizer):
            raise ValueError(
                f"table {table.name!r} is trained by {table.optimizer.kind}, which changes all rows in "
                f"every step, so that a delta would be all of it: use a lazy optimizer, such as adagrad"
            )


def _chain_of(run: Path) -> str:
    """The name of a run's chain of versions, chosen at random once."""
    path = run / "chain.txt"
    if not path.exists():  # the run is locked: nobody else writes it
        write_text(path, secrets.token_hex(8))
    return path.read_text()


def _differences(embedding: Embedding, version: Version) -> Iterator[tuple[str, Tensor]]:
    """By table, the ids whose rows are others than those of a version."""
    for table in (table for table in embedding.tables if table.name in version.tables):
        stored, first, ids = version.tables[table.name], 0, []
        num_rows = embedding.num_rows()[table.name]
        for weights in embedding.weight_chunks(table.name, min(num_rows, stored.rows)):
            for begin in range(0, len(weights), _COMPARED):
                part = weights[begin : begin + _COMPARED].float().numpy()
                numbers = np.arange(first, first + len(part))
                before, now = stored.stored(numbers), table_rows.encode(part, stored.dtype)
                differ = (before.view(np.uint8) != np.ascontiguousarray(now).view(np.uint8)).any(1)
                ids.append(numbers[differ])
                first += len(part)
        ids.append(np.arange(first, num_rows))  # new ones
        yield table.name, torch.from_numpy(np.concatenate(ids))
