"""Publisher: sends what training changes to those who serve, as versions in a folder (`serving.chain`).

    trainer.fit(callbacks=[Publisher("published", every="1s")])

    training     .. step | copy | step .. step | copy | ..       the rows touched, the dense part
    publishing                  | write, sync, rename | ..       a delta
    base                                              | ..       now and then, of files, beside deltas

Training stands still for the copy alone. The first version is whole, as `hotrows export` writes it. A
later base is made of files, an earlier base and the deltas after it. A run that goes on compares its rows
with those of the last version, so that the next delta has all that differs, whatever was lost. Of several
ranks the first one writes, and gets the changed rows of all.
"""

from __future__ import annotations

import logging
import queue
import re
import secrets
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
from torch import Tensor

from hotrows.data.stored.user_histories import UserHistories
from hotrows.engine.changed_rows import ChangeReader, spans_of
from hotrows.engine.distributed.all_or_none import of_rank_0, together
from hotrows.engine.distributed.comm import any_rank
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
from hotrows.serving.export.published import ChangedKeys, Published, differences, num_events
from hotrows.serving.export.whole import write_whole_bundle
from hotrows.serving.key_ids import GONE
from hotrows.serving.places import Mirror
from hotrows.serving.version import Version, version_at, with_deltas
from hotrows.train.callback import Callback, Training
from hotrows.train.telling.progress import Progress
from hotrows.train.telling.result import Result

log = logging.getLogger("hotrows")

_COPIES = "published"  # the folder in that of a run, from which a URL is filled
_LEAST_DELTAS, _MOST_DELTAS = 64, 500  # between two bases


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
    """Publishes the model that a trainer trains; of several ranks each one has such a callback.

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
        if precision not in PRECISIONS or (precision != "float32" and format != "onnx"):
            raise ValueError(
                f"precision must be one of {', '.join(PRECISIONS)} (training changes what auto "
                f"measures), and is for format onnx, not {precision!r} for {format}"
            )
        for name, value in (("keep", keep), ("base_every", base_every)):
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, not {value}")
        self.to, self.every = address(to) if is_url(to) else absolute(to), Every.parse(every)
        self.form = BundleForm(format, table_dtype, tuple(shared), precision)
        self._base_every, self._keep = base_every, keep
        self._changed: ChangeReader | None = None
        self._keys: dict[str, ChangedKeys] = {}
        self._names: tuple[str, ...] = ()  # of the dense part's parameters, on the first rank
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
        self._ranks = trainer.ranks
        last = of_rank_0(self._ranks, partial(self._open, trainer.run))
        changed = embedding.packed.changed
        self._changed = changed.reader("deltas (publish)")
        self._stack.callback(changed.readers.remove, self._changed)
        of_keys = embedding.dynamic.keys
        self._keys = {name: ChangedKeys() for name in of_keys.vocabularies}
        of_keys.observers.append(self._note_keys)
        self._stack.callback(of_keys.observers.remove, self._note_keys)
        with restored() if trainer.is_first else nullcontext():  # ranks may be threads, and it locks
            version = self._first_version(trainer, last)
        published = None
        if version is not None:
            assert version.head is not None
            published = Published.before(version.head, trainer.state, self._differs, version.calibration)
        self._published, self._published_at = self._ranks.gather_objects(published)[0], time.monotonic()
        if version is not None:
            self._begin_to_write(version)

    def _begin_to_write(self, version: Version) -> None:
        """Starts the thread that publishes what comes after a version."""
        self._version, self._head, known = version, version.head, version.histories
        self._num_appended = 0 if known is None else known.count  # events that the last version has
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
        if any_rank(self._ranks, trainer.is_first and is_due and not self._work.unfinished_tasks):
            self._hand_over(trainer)

    def on_idle(self, trainer: Training) -> None:
        """Publishes what the last batches of a stream changed, where no others come."""
        self.on_step_end(trainer)

    def on_training_end(self, trainer: Training) -> None:
        """Publishes the last state of training, and waits until it is there."""
        of_rank_0(self._ranks, self._work.join)
        calibration = trainer.recommender.calibration
        since = self._published.batches_since(trainer.state, calibration)
        if since or any_rank(self._ranks, not self._returned.empty()):
            self._hand_over(trainer)
        of_rank_0(self._ranks, self._finish)

    def _finish(self) -> None:
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
        lost_rows: list[dict[str, Tensor]] = []
        while not self._returned.empty():
            lost = self._returned.get()
            lost_rows.append({name: ids for name, (ids, _) in lost.rows.items()})
            for name, (keys, ids) in lost.keys.items():
                self._keys[name].add_before(keys, ids)
        for rows in self._ranks.gather_objects(lost_rows)[0]:
            self._mark(trainer.embedding, rows)
        self._published_at, calibration = time.monotonic(), trainer.recommender.calibration
        self._published = Published.from_state(trainer.state, calibration)
        with trainer.steps.paused() if trainer.cached_tables else nullcontext():
            snapshot = self._snapshot(trainer)
        if trainer.is_first:
            self._work.put(snapshot)

    def _snapshot(self, trainer: Training) -> _Snapshot:
        embedding = trainer.embedding
        assert self._changed is not None
        rows: dict[str, tuple[Tensor, Tensor]] = {}
        for group, changed in zip(embedding.groups, self._changed.take(), strict=True):
            for p in group.packs:
                pack = embedding.packs[p]
                of_pack, weights = embedding.packed.gathered_weights(p, changed)
                spans = spans_of(of_pack, pairwise(pack.first_rows))
                for table, first, span in zip(pack.tables, pack.first_rows, spans, strict=False):
                    if span.stop > span.start and table.name in self._dtypes:
                        rows[table.name] = of_pack[span] - first, weights[span]
        model = trainer.model
        tensors = dict([*model.named_parameters("model"), *model.named_buffers("model")])
        dense = {name: tensors[name].detach().cpu().clone() for name in self._names}
        keys = {name: changed.take(self._ranks) for name, changed in self._keys.items()}
        histories = trainer.steps.batches.histories
        return _Snapshot(self._published, time.time(), rows, dense, keys, histories)

    def _mark(self, embedding: Embedding, ids: Mapping[str, Tensor]) -> None:
        """Notes that ids of tables have changed, those that this rank has."""
        assert self._changed is not None
        groups = {p: g for g, group in enumerate(embedding.groups) for p in group.packs}
        for name, of_table in ids.items():
            p, first, _ = rows_of(embedding.packs, name)
            sharding = embedding.packs[p].sharding(self._ranks.num_ranks)
            self._changed.add(groups[p], sharding.local_rows(of_table + first, self._ranks.rank)[0])

    # ---- the first version

    def _open(self, run: Path) -> VersionHead | None:
        """Opens the folder for this process alone; returns its last version. None: it has none."""
        self._mirror = Mirror.open(self.to, run / _COPIES)
        self.folder = self._mirror.folder if self._mirror else Path(self.to)
        make_folder(self.folder)
        self._stack.callback(Lock(self.folder).release)
        versions, name = chain.look(self.folder), _chain_of(run)
        head = chain.head_of(versions, versions.newest) if versions.newest else None
        if head is not None and head.chain != name:  # before its program is opened, which may be code
            raise ValueError(
                f"{self.folder} has the versions of another run, up to step {head.step:,}; "
                f"publish each run into a folder of its own"
            )
        chain.sweep(self.folder, ".part", ".gone")
        return head

    def _first_version(self, trainer: Training, last: VersionHead | None) -> Version | None:
        """The last version of the run, rows marked that differ, or a new one; on rank 0, else None."""
        is_first, recommender, state = trainer.is_first, trainer.recommender, trainer.state
        if last is None:
            recommender.histories = trainer.steps.batches.histories
            which = f"step {state.step}"
            with new_folder(chain.base_path(self.folder, 1)) if is_first else nullcontext() as part:
                write_whole_bundle(part, recommender, trainer.run, which, self.form)
                if part:
                    chain_name, events = _chain_of(trainer.run), num_events(state)
                    first = VersionHead(chain_name, 1, state.step, time.time(), events)
                    chain.write_base_head(part, first)
        of_rank_0(self._ranks, partial(self._push, is_new=last is None))
        # Mark the rows in which an earlier version differs, keys too.
        version = together(self._ranks, lambda: version_at(self.folder, trust=True) if is_first else None)
        self._differs = False
        kept = self.form.precision if version is None else version.bundle.precision
        if kept != self.form.precision:
            log.warning(
                f"{self.to} keeps the precision {kept} of its first version, not {self.form.precision}: "
                f"publish into a new folder to change it"
            )
        for name, ids in differences(trainer, version) if last is not None else ():
            self._differs |= len(ids) > 0
            self._mark(trainer.embedding, {name: ids})
        for name, changed in self._keys.items() if last is not None else ():
            live_ids, keys = (t.numpy() for t in trainer.embedding.dynamic.keys.live(name))
            if version is not None:
                changed.add(version.keys[name].pairs()[0], GONE)
                changed.add(keys, live_ids)
        return version

    def _push(self, is_new: bool) -> None:
        try:
            if self._mirror:
                self._mirror.push()
        except OSError as error:
            if is_new:
                raise
            log.error("versions could not be published to %s: %s", self.to, error)

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


def _check(trainer: Training) -> None:
    """Refuses runs whose changes no delta can say."""
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
