"""The passes of `prepare` over datasets of Ray: this process hands out blocks and takes results in order.

    blocks, in the order of their rows  ->  count   run files, in the folder
    run files                           ->  write   vocabularies, each merged by one task
    blocks again                        ->  encode  pieces: rows of a part, in the cluster's memory
    pieces of 524,288 rows in all       ->  write   shards

Events that are histories this process sorts before and counts after `count`; tasks map the sorted files.
Of a dataset they are executed once, and pass through this process block by block.

All bytes are those of one machine that reads the same rows:

    vocabularies   values are ranked by count and bytes, which do not depend on the order of counting
    statistics     are sums in the order of the rows: this process adds the numbers
    splits         a row has its number, and of a stratified split that among the rows of its label, from
                   the blocks before
    shards         are cut by the rows of the part

Neighbouring blocks are joined, for a task each: starting one takes milliseconds, and counts are merged.
Blocks stay in the cluster's memory between passes where all fit in a third of it; else the datasets are
executed again.

Memory is bounded: tasks that count have a quarter of the cluster's object store, those that encode
128 MiB each, and pieces wait until they fill a shard. Tasks write into the folder, which all machines
see: the shards do not pass through one of them.
"""

from __future__ import annotations

import shutil
import uuid
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar, cast

from hotrows.data.columns.number import ColumnMoments
from hotrows.data.columns.of_schema import SchemaColumns
from hotrows.data.encode.cluster import tasks
from hotrows.data.encode.cluster.tasks import BlockPlace, ClusterWork, Surveyed
from hotrows.data.encode.encoder import Encoder, owners_of
from hotrows.data.encode.passes import Executor, Job, Totals
from hotrows.data.encode.split import SharedChecks, Sharing
from hotrows.data.encode.vocabulary import Counts, IdCounts, Values
from hotrows.data.raw.tables import RayBlock, RayInput
from hotrows.data.stored.encoded import Extremes
from hotrows.data.stored.part import NAMES
from hotrows.data.stored.shards import Tally, Written, no_tally, rows_per_shard, written_of
from hotrows.schema import Schema

_RETRIES = 10  # of a task whose worker or machine was killed; an error of its own is not retried
_COUNTED_BYTES = 1 << 30  # of blocks that one task counts, at most
_ENCODED_BYTES = 1 << 27  # of blocks that one task encodes; of those that one counts, at least
_KEPT_SHARE = 3  # one part in so many of the object store may hold blocks between passes
_T = TypeVar("_T")


class RayCluster:
    """The cluster that this process is connected to."""

    def __init__(self) -> None:
        import ray

        self._ray = ray
        resources = ray.cluster_resources()
        self.num_processors = max(1, int(resources.get("CPU", 1)))
        self.num_machines = max(1, sum(node["Alive"] for node in ray.nodes()))
        self.store_bytes = int(resources.get("object_store_memory", 1 << 30))

    def share(self, value: Any) -> Any:
        """A reference to a value, for tasks."""
        return self._ray.put(value)

    def submit(self, task: Callable[..., Any], *arguments: Any, results: int = 1) -> list[Any]:
        """Starts a task; returns references to its results. References among the arguments stand for what
        they refer to."""
        options = {
            "num_cpus": 1,
            "num_returns": results,
            "max_retries": _RETRIES,
            "name": f"hotrows {task.__name__}",
        }
        submitted = self._ray.remote(task).options(**options).remote(*arguments)
        return [submitted] if results == 1 else submitted

    def result(self, reference: Any) -> Any:
        """Waits for a result; raises what the task raised."""
        try:
            return self._ray.get(reference)
        except self._ray.exceptions.RayTaskError as failure:
            raise failure.cause from None

    def stop(self, references: Iterable[Any]) -> None:
        """Stops tasks whose results are not wanted, and waits until they have ended."""
        left = list(references)
        for reference in left:
            self._ray.cancel(reference)
        if left:
            self._ray.wait(left, num_returns=len(left), timeout=60, fetch_local=False)


class OnRay(Executor):
    """Runs the functions on blocks of rows, as tasks of a cluster.

    threads: tasks that run at once, by default one per processor.
    """

    def __init__(self, job: Job, threads: int | None) -> None:
        self._cluster = RayCluster()
        at_once = self._cluster.num_processors if threads is None else threads
        super().__init__(replace(job, threads=at_once))
        self._threads_here = job.threads
        self._digest = 0  # of the rows that were counted
        self._kept: dict[int, list[RayBlock]] = {}  # by dataset, its blocks that stay between passes
        self._room = self._cluster.store_bytes // _KEPT_SHARE

    def num_rows(self) -> int:
        if self.job.schema.request is None:
            return sum(source.count_rows(self.job.schema) for source in self.job.shared)
        work = self._work(self.job.schema, Path())  # rows may have lists of candidates
        return sum(place.rows or 0 for place, _ in self._placed(work, shared=True))

    def times(self) -> IdCounts:
        work, seen = self._work(self.job.schema, Path()), IdCounts()
        calls = (
            (None, self._cluster.submit(tasks.count_times, work, place, block.ref))
            for place, block in self._placed(work, shared=True)
        )
        for _, counts, _ in self._in_order(calls):
            seen.join(*counts)
        return seen

    def count(self, folder: Path, sharing: Sharing, state: Any) -> tuple[Totals, VocabularyRuns]:
        job, progress = self.job, self.job.progress_of("count")
        known = {} if job.stored is None else job.stored.vocabularies
        files = {name: job.stored.path.resolve() / v.file for name, v in known.items() if job.stored}
        work = self._work(job.schema, folder, known=files, **sharing.settled)
        totals = Totals(ColumnMoments(len(SchemaColumns(job.schema).numbers.standard)))
        runs: list[tuple[tuple[int, ...], ...]] = []
        placed = self._placed(work)
        calls = (
            (None, self._cluster.submit(tasks.count, work, number, places, *blocks))
            for number, (places, blocks) in enumerate(self._groups(placed, _COUNTED_BYTES))
        )
        self._digest = num_tasks = 0
        for num_tasks, (_, counts, _) in enumerate(self._in_order(calls), 1):
            totals.add(counts.counted, 1)
            self._digest += counts.digest
            runs.append(counts.runs)
            if self.events is not None:
                self.events.matches = self.events.matches.joined(counts.matches)
                self.events.refer_all(num_tasks - 1)
            progress(totals.rows, totals.rows)
        if self.events is not None:
            memory, owners = job.counts_memory, owners_of(job.schema)
            of_events = Counts(owners, self.events.folder, memory, self._threads_here)
            self.events.count(of_events, progress)
            runs.append(tasks.keep_runs(of_events, owners, folder, num_tasks))
        by_vocabulary = [list(chain(*numbers)) for numbers in zip(*runs, strict=True)]
        return totals, VocabularyRuns(self._cluster, work, by_vocabulary)

    def encode(
        self, encoder: Encoder, folder: Path, state: dict[str, Any]
    ) -> tuple[dict[str, Written], Extremes]:
        progress = self.job.progress_of("encode")
        if self.events is not None:
            self.events.write(encoder, progress)
        columns = encoder.columns_with("references", self.events)
        facts = {name: state[name] for name in ("total", "before", "encoders")}
        work = self._work(encoder.schema, folder, **facts)
        shards = [PartShards(self._cluster, work, name, columns, folder) for name in NAMES]
        placed = self._placed(work, keep=False)
        calls = (
            (places, self._cluster.submit(tasks.encode, work, places, *blocks, results=1 + len(NAMES)))
            for places, blocks in self._groups(placed, _ENCODED_BYTES)
        )
        extremes, digest, num_rows, shared = Extremes(), 0, 0, SharedChecks(columns)
        try:
            for places, encoded, pieces in self._in_order(calls):
                if encoded.first is not None:  # may be of the request of the last sample before
                    shared.check(*encoded.first)
                    shared.last = encoded.last
                for part, piece, rows in zip(shards, pieces, encoded.rows, strict=True):
                    part.append(piece, rows)
                extremes = extremes.joined(encoded.extremes)
                if self.events is not None:
                    self.events.matches = self.events.matches.joined(encoded.matches)
                digest, num_rows = digest + encoded.digest, num_rows + sum(p.rows or 0 for p in places)
                progress(num_rows, state["rows"] or num_rows)
            # The second pass must have seen the rows of the first.
            if state["rows"] is not None:
                self._check_same(state["rows"], num_rows, digest)
            written = {part.name: part.close() for part in shards}
        finally:
            for part in shards:
                part.stop()
        for left in folder.glob(tasks.ATTEMPT + "*"):
            shutil.rmtree(left, ignore_errors=True)
        return written, extremes

    def _check_same(self, counted: int, rows: int, digest: int) -> None:
        """Raises an error where the rows that were encoded are not those that were counted."""
        if rows != counted or (digest - self._digest) % (1 << 64):
            raise ValueError(
                f"the Ray dataset gave other rows, or the rows in another order, when it was executed a "
                f"second time ({counted:,} rows, then {rows:,}): give its shuffles a seed, or pass "
                f"dataset.materialize()"
            )

    def _work(self, schema: Schema, folder: Path, **fields: Any) -> Any:
        """A reference to what the tasks of a pass have in common."""
        job = self.job
        memory = job.counts_memory // -(-job.threads // self._cluster.num_machines)
        of_split = {"split": job.split, "seed": job.seed, **fields}
        work = ClusterWork(uuid.uuid4().hex, schema, folder.resolve(), memory, **of_split)
        return self._cluster.share(work)

    def _placed(
        self, work: Any, shared: bool = False, keep: bool = True
    ) -> Iterator[tuple[BlockPlace, RayBlock]]:
        """Yields the blocks of all datasets with their places. shared: only of those whose rows the split
        shares out; keep: for another pass."""
        job, row, sharing = self.job, 0, Counter[str]()
        surveyed = job.schema.request is not None or job.split.kind == "stratified"
        for number, (source, part) in enumerate(zip(job.inputs, job.declared_parts, strict=True)):
            if shared and part is not None:
                continue
            first, columns = 0, job.reading.columns
            blocks = self._blocks(number, cast("RayInput", source), columns, keep)
            as_they_are = ((block, Surveyed(block.rows, {})) for block in blocks)  # each row is a sample
            for block, summary in self._surveys(work, blocks) if surveyed else as_they_are:
                yield (
                    BlockPlace(source.name, first, row, summary.rows, block.cut, part, dict(sharing)),
                    block,
                )
                if summary.rows is None:
                    return
                first, row = first + block.rows, row + summary.rows
                if part is None:
                    sharing.update(summary.sharing)
            if not first:
                raise ValueError(f"{source.name} has no rows")

    def _blocks(
        self, number: int, source: RayInput, columns: tuple[str, ...], keep: bool
    ) -> Iterator[RayBlock]:
        """Yields the blocks of a dataset: those that were kept, or of a new execution. number: of the
        dataset; keep: them for another pass, if there is room."""
        if number in self._kept:
            yield from self._kept[number]
            return
        blocks, room = [], self._room
        for block in source.blocks(columns):
            if keep and room >= 0:
                room -= block.size
                blocks.append(block)
            if room < 0:
                blocks.clear()
            yield block
        if keep and room >= 0:
            self._kept[number], self._room = blocks, room

    def _surveys(self, work: Any, blocks: Iterator[RayBlock]) -> Iterator[tuple[RayBlock, Surveyed]]:
        calls = (
            (block, self._cluster.submit(tasks.survey, work, BlockPlace("", 0, cut=block.cut), block.ref))
            for block in blocks
        )
        return ((block, summary) for block, summary, _ in self._in_order(calls))

    def _groups(
        self, placed: Iterator[tuple[BlockPlace, RayBlock]], most: int
    ) -> Iterator[tuple[list[BlockPlace], list[Any]]]:
        """Joins neighbouring blocks, of at most so many bytes but for the last one: the more, the longer
        the data is, so that fewer runs are to be merged."""
        processors = self._cluster.num_processors
        most = min(most, self._cluster.store_bytes // (8 * processors))
        places, blocks, size, total = [], [], 0, 0
        for place, block in placed:
            places.append(place)
            blocks.append(block.ref)
            size, total = size + block.size, total + block.size
            if size >= min(most, max(_ENCODED_BYTES, total // (4 * processors))):
                yield places, blocks
                places, blocks, size = [], [], 0
        if places:
            yield places, blocks

    def _in_order(self, calls: Iterable[tuple[_T, list[Any]]]) -> Iterator[tuple[_T, Any, list[Any]]]:
        """Yields of each call its first result, and references to the others. As many tasks again as run
        at once are submitted ahead."""
        pending: deque[tuple[_T, list[Any]]] = deque()
        try:
            for call in calls:
                pending.append(call)
                if len(pending) >= 2 * self.job.threads:
                    item, (first, *others) = pending.popleft()
                    yield item, self._cluster.result(first), others
            while pending:
                item, (first, *others) = pending.popleft()
                yield item, self._cluster.result(first), others
        finally:
            self._cluster.stop(references[0] for _, references in pending)


@dataclass(frozen=True)
class VocabularyRuns:
    """Run files of all vocabularies, in the folder."""

    cluster: RayCluster
    work: Any
    runs: list[list[int]]

    def write(self, v: int, path: Path, name: str, min_count: int, known: Values | None = None) -> int:
        """Writes vocabulary v, as `vocabulary.Counts.write` does; several threads may call it."""
        arguments = self.work, v, self.runs[v], path.name, name, min_count
        (num_distinct,) = self.cluster.submit(tasks.write_vocabulary, *arguments)
        return self.cluster.result(num_distinct)


class PartShards:
    """The shards of a part: pieces are collected until one is full, which a task then writes."""

    def __init__(
        self, cluster: RayCluster, work: Any, name: str, columns: SchemaColumns, folder: Path
    ) -> None:
        self.name, self._columns, self._rows_per_shard = name, columns, rows_per_shard(columns)
        self._folder = folder
        self._cluster, self._work = cluster, work
        self._spans: list[slice] = []
        self._pieces: list[Any] = []
        self._size = self._num_shards = 0
        self._pending: deque[Any] = deque()
        self._shards: list[tuple[str, int]] = []
        self._tallies: list[Tally] = []

    def append(self, piece: Any, rows: int) -> None:
        """Adds a piece of so many rows. piece: a reference to it."""
        first = 0
        while first < rows:
            end = min(rows, first + self._rows_per_shard - self._size)
            self._spans.append(slice(first, end))
            self._pieces.append(piece)
            self._size, first = self._size + end - first, end
            if self._size == self._rows_per_shard:
                self._write()

    def close(self) -> Written:
        """Writes the last shard, and waits for all."""
        if self._size:
            self._write()
        while self._pending:
            self._await()
        tally = sum(self._tallies, no_tally(self._columns))
        return written_of(self._shards, tally, self._columns, self._folder)

    def stop(self) -> None:
        self._cluster.stop(self._pending)

    def _write(self) -> None:
        arguments = self._work, self.name, self._num_shards, self._spans, *self._pieces
        self._pending += self._cluster.submit(tasks.write_shard, *arguments)
        self._spans, self._pieces, self._size = [], [], 0
        self._num_shards += 1
        if len(self._pending) > self._cluster.num_processors:
            self._await()

    def _await(self) -> None:
        file, rows, tally = self._cluster.result(self._pending.popleft())
        self._shards.append((file, rows))
        self._tallies.append(Tally.from_json(tally))
