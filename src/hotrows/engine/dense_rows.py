"""DenseRows: the packs of a rank whose row optimizer is dense, and the steps that their rows miss.

    step t     lookup      rows of the batch make the steps that they missed, in their slots
               update      they make step t with their gradients; all other rows are one more behind
    reading    evaluation, prediction and export catch up copies of rows: what is stored stays
    storing    a checkpoint has rows as they are stored, with the number of steps that each has made
               (int32; -1: no gradient has reached it), and the numbers of the steps since `first`

Since nothing but training writes rows, evaluations and checkpoints change no bit of it. Rows catch up
table by table, in the order of the batch, in memory and behind a cache alike. Every
`MAX_DEFERRED_STEPS` steps all rows catch up (`PackedTables.catch_up`), and the numbers are forgotten.

Records are caught up where they are: on a device by its kernels, which have the numbers of the steps in
its memory, without a wait; copies in host memory by the host.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from hotrows.engine.cached_group import CachedGroup
from hotrows.engine.distributed.comm import Ranks
from hotrows.engine.planning.packing import Group, Pack
from hotrows.engine.storage.cache import chunks
from hotrows.ops import deferred
from hotrows.ops.deferred import Target
from hotrows.ops.deferred.history import MAX_DEFERRED_STEPS, StepHistory
from hotrows.ops.plan import PackPlan
from hotrows.ops.record import RankShard, views
from hotrows.optim import DenseRowOptimizer
from hotrows.runtime.device import Device
from hotrows.runtime.shapes import Float32, Float64, Int64, UInt8

if TYPE_CHECKING:
    from hotrows.engine.read_through import AllInMemory, BehindCache

PREFIX = "rows."  # of the names of `tensors`


@dataclass(frozen=True)
class _DensePack:
    """A pack under a dense optimizer. bounds: [K + 1], the rows where its slices of tables begin and end,
    by kind of device: in host memory, and where training's rows are; scales: [K] ones there. tables: [K],
    of each, by their places among all. counts: [K], 0 for rows that an earlier rank holds, else 1."""

    optimizer: DenseRowOptimizer
    layout: list[int]
    bounds: Mapping[str, Int64[Tensor, "_"]]
    scales: Float64[Tensor, "_"]
    tables: Int64[Tensor, "_"]
    counts: Float64[Tensor, "_"]


class DenseRows:
    """Catches up and updates rows under dense optimizers.

    packs, shards, layouts: of all packs of a rank; those under lazy optimizers are left alone. Raises
    ValueError where a table cannot have such an optimizer.
    numbers: in host memory, the hyperparameters that `begin_step` will be given on a device.
    """

    numbers: Float64[Tensor, "packs _"] | None = None

    def __init__(
        self,
        packs: Sequence[Pack],
        shards: Sequence[RankShard],
        layouts: Sequence[list[int]],
        device: Device,
    ) -> None:
        self._shards = shards
        self._all_tables = sorted(table.name for pack in packs for table in pack.tables)
        self._squares: Tensor | None = None  # [tables] of all ranks, as stored; None: not counted
        self._change = torch.zeros(len(self._all_tables), dtype=torch.float64)  # on this rank since
        self._device = device
        self._packs: dict[int, _DensePack] = {}
        for p, (pack, shard) in enumerate(zip(packs, shards, strict=True)):
            optimizer = pack.tables[0].optimizer
            if isinstance(optimizer, DenseRowOptimizer):
                _check(pack, optimizer)
                self._packs[p] = self._pack(optimizer, shard, layouts[p])
        self._table_packs = {table.name: p for p, pack in enumerate(packs) for table in pack.tables}
        self._begin_at(0)

    def _begin_at(self, now: int) -> None:
        """Lets packs of equal optimizers share a history without steps: every row has made `now`."""
        by_optimizer = {pack.optimizer: StepHistory(now) for pack in self._packs.values()}
        self._histories = {p: by_optimizer[pack.optimizer] for p, pack in self._packs.items()}

    def _pack(self, optimizer: DenseRowOptimizer, shard: RankShard, layout: list[int]) -> _DensePack:
        bounds = [*(piece.first_row for piece in shard.slices), shard.rows]
        tables = [self._all_tables.index(shard.tables[piece.table].name) for piece in shard.slices]
        counts = [float(not piece.shared or shard.rank == 0) for piece in shard.slices]
        on_host, scales = torch.tensor(bounds), torch.ones(len(tables), dtype=torch.float64)
        of_kinds = {"cpu": on_host, self._device.name: self._device.put(on_host)}
        return _DensePack(
            optimizer, layout, of_kinds, self._device.put(scales),
            torch.tensor(tables).long(), torch.tensor(counts).double(),
        )  # fmt: skip

    def __contains__(self, p: object) -> bool:
        return p in self._packs

    @property
    def _distinct(self) -> list[StepHistory]:
        return list({id(history): history for history in self._histories.values()}.values())

    @property
    def now(self) -> int:
        """The number of steps that have been made."""
        return max((history.now for history in self._distinct), default=0)

    @property
    def num_recorded(self) -> int:
        """The number of steps that a row may be behind."""
        return max((history.num_recorded for history in self._distinct), default=0)

    @property
    def is_due(self) -> bool:
        """True if all rows should catch up: each batch pays for the number of steps on record."""
        return self.num_recorded >= MAX_DEFERRED_STEPS

    # ---- rows

    def catch_up(
        self,
        p: int,
        records: UInt8[Tensor, "C _"],
        rows: Int64[Tensor, "U"],
        slots: Int64[Tensor, "U"],
        are_copies: bool = False,
    ) -> None:
        """Lets records at `slots`, those of `rows` (ascending, on a device with padding behind), make the
        steps that they missed."""
        if rows.numel() and self._histories[p].num_recorded:
            kind = self._packs[p].optimizer.deferred
            squares = None if are_copies else self._changes(p)
            deferred.catch_up(kind, self._targets(p, records), slots, self._bounds(p, rows), squares)
            self._note(p, squares)

    def catch_up_all(
        self, p: int, records: UInt8[Tensor, "n _"], squares: Float64[Tensor, "1"] | None = None
    ) -> None:
        """Lets every one of some records, adjacent rows of one table, make the steps that it missed.

        squares: the change of the sum of their squared weights is added to it.
        """
        pack = self._packs[p]
        catch_up_all(pack.optimizer.deferred, self._histories[p], records, pack.layout, squares)

    def update(
        self,
        p: int,
        records: UInt8[Tensor, "C _"],
        part: PackPlan,
        grad: Float32[Tensor, "M D"],
        slots: Int64[Tensor, "{part.num_rows}"],
    ) -> None:
        """Makes the step that `begin_step` has recorded, of the rows of a batch."""
        if not part.num_rows:
            return
        targets, bounds = self._targets(p, records), self._bounds(p, part.rows)
        squares, scales = self._changes(p), self._packs[p].scales
        kind, runs = self._packs[p].optimizer.deferred, (part.order, part.starts, part.bags)
        deferred.update(kind, targets, slots, bounds, *runs, part.weights, grad, scales, squares)
        self._note(p, squares)

    def catch_up_tables(self, rows: AllInMemory | BehindCache, num_ids: Mapping[str, int]) -> list[int]:
        """Lets every row make the steps that it missed, and forgets these; returns the groups that
        have such rows.

        rows: of this rank. num_ids: by table, the ids from this one on have missed none.
        """
        changed = [g for g, group in enumerate(rows.groups) if any(p in self for p in group.packs)]
        for g in changed:
            for k, parts, write in self._chunks(rows, g, num_ids):
                moved = []
                for p, part in parts.items():
                    squares, last = self._changes(p), self._target(p, part).last
                    before = last.clone()
                    self.catch_up_all(p, part, None if squares is None else squares[k : k + 1])
                    self._note(p, squares)
                    moved.append(last != before)
                write(torch.stack(moved).any(0))
        self._begin_at(self.now)
        return changed

    def begun(self, p: int, records: UInt8[Tensor, "U _"]) -> UInt8[Tensor, "U _"]:
        """Makes new records of pack p, which stand for new keys, miss the steps from here on alone."""
        if p in self._packs:
            last = self._target(p, records).last
            last.fill_(self.now)
        return records

    def _chunks(
        self, rows: AllInMemory | BehindCache, g: int, num_ids: Mapping[str, int]
    ) -> Iterator[tuple[int, dict[int, Tensor], Callable[[Tensor], None]]]:
        """Yields adjacent rows of a slice of group g, some at a time: the slice, the records of each pack
        under a dense optimizer, and what stores those that were changed, a bool each."""
        packs = [p for p in rows.groups[g].packs if p in self]
        for k, span in enumerate(self.spans(rows.groups[g], num_ids) if packs else ()):
            for begin, end in chunks(len(span)):
                parts, write = rows.opened(g, span.start + begin, span.start + end)
                yield k, {p: parts[p] for p in packs}, write

    def spans(self, group: Group, num_ids: Mapping[str, int]) -> Iterator[range]:
        """Yields the rows of each slice of a table; num_ids: by table, only those of ids below it."""
        shard = self._shards[group.packs[0]]
        for piece in shard.slices:
            end = min(num_ids.get(shard.tables[piece.table].name, piece.ids.stop), piece.ids.stop)
            num_rows = len(range(piece.first_id, end, piece.id_step))
            yield range(piece.first_row, piece.first_row + num_rows)

    # ---- sums of squared weights, for L2 terms in a clipped norm

    @property
    def counts_squares(self) -> bool:
        """True if the sums of squared weights are followed."""
        return self._squares is not None

    def forget_squares(self) -> None:
        """Ends following the sums of squared weights: there are rows that are not in them."""
        self._squares = None

    def count_squares(self, rows: AllInMemory | BehindCache) -> None:
        """Begins to follow the sums of squared weights, in one pass over the tables; the pipeline is
        paused."""
        self._squares, self._change = torch.zeros_like(self._change), torch.zeros_like(self._change)
        for g in range(len(rows.groups)):
            for k, parts, _ in self._chunks(rows, g, {}):
                for p, part in parts.items():
                    squares = self._changes(p)
                    if squares is not None:
                        squares[k] = self._target(p, part).weights.double().square().sum()
                        self._note(p, squares)

    def catch_up_stored(self, cached: CachedGroup, rows: Int64[Tensor, "U"]) -> None:
        """Lets rows that a batch trains without slots make the steps that they missed, where sums of
        squares are followed: so these are the ones that they would be in slots."""
        if self._squares is None:
            return
        records, places, group = cached.cache.read(rows), torch.arange(len(rows)), cached.group
        for p, part in zip(group.packs, cached.cache.of_packs(records), strict=True):
            if p in self._packs:
                self.catch_up(p, part, rows, places)
        cached.cache.write(rows, records)

    def l2_squares(self, ranks: Ranks) -> Float64[Tensor, "1"]:
        """The sum over all tables of l2^2 |W|^2, rows counted as they are stored; collective."""
        self.share_squares(ranks)
        total = torch.zeros(1, dtype=torch.float64)
        for t, name in enumerate(self._all_tables if self._squares is not None else ()):
            pack = self._packs.get(self._table_packs[name])
            if pack is not None and self._squares is not None:
                total += pack.optimizer.l2**2 * self._squares[t]
        return total

    def share_squares(self, ranks: Ranks) -> None:
        """Adds what has changed on each rank to the sums of all; collective."""
        if self._squares is not None:
            self._squares = self._squares + ranks.all_reduce(self._change).wait()
            self._change = torch.zeros_like(self._change)

    def _changes(self, p: int) -> Float64[Tensor, "_"] | None:
        """[K] zeros for the changes of the sums of squares of a pack's slices; None: not followed."""
        if self._squares is None or not self._packs[p].optimizer.l2:
            return None
        return torch.zeros(len(self._packs[p].tables), dtype=torch.float64)

    def _note(self, p: int, squares: Float64[Tensor, "_"] | None) -> None:
        if squares is not None:
            self._change.index_add_(0, self._packs[p].tables, squares * self._packs[p].counts)

    def _bounds(self, p: int, rows: Int64[Tensor, "U"]) -> Int64[Tensor, "_"]:
        ascending = torch.where(rows < 0, torch.iinfo(torch.int64).max, rows)  # padding behind the last
        return torch.searchsorted(ascending, self._packs[p].bounds[rows.device.type])

    def _target(self, p: int, records: Tensor) -> Target:
        pack = self._packs[p]
        return _target(pack.optimizer.deferred, self._histories[p], records, pack.layout)

    def _targets(self, p: int, records: Tensor) -> list[Target]:
        """One target for each slice of a table, so that no row's group depends on other tables."""
        return [self._target(p, records)] * len(self._packs[p].tables)

    # ---- steps

    def begin_step(self, hyperparameters: Float64[Tensor, "packs _"]) -> None:
        """Records the numbers of a step, [step, 8 numbers] by pack."""
        if self._packs and not self._device.on_host:
            assert self.numbers is not None, "the host has made what the device has"
            hyperparameters = self.numbers
        recorded: set[int] = set()
        for p, history in self._histories.items():
            if id(history) not in recorded:
                history.record(tuple(hyperparameters[p, 1:9].tolist()))
                # On the stream of training, before others read them.
                history.steps_for(self._packs[p].optimizer.deferred, self._device.torch)
                recorded.add(id(history))

    def end_step(self) -> None:
        """Says that the step has been made: rows that were not in its batch are behind."""
        for history in self._distinct:
            history.now += 1

    def tensors(self) -> dict[str, Tensor]:
        """The steps on record, for a checkpoint: their numbers, and by table which of them are its."""
        if not self._packs:
            return {}
        histories = self._distinct
        places = {p: histories.index(history) for p, history in self._histories.items()}
        by_table = [places.get(self._table_packs[name], -1) for name in self._all_tables]
        by_history = {f"{PREFIX}steps.{h}": history.recorded for h, history in enumerate(histories)}
        first = torch.tensor([history.first for history in histories])
        tables = {f"{PREFIX}first": first, f"{PREFIX}tables": torch.tensor(by_table)}
        squares = {} if self._squares is None else {f"{PREFIX}squares": self._squares + self._change}
        return {**tables, **by_history, **squares}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Takes over the steps of a checkpoint of equal tables; none: no step has been made."""
        self._begin_at(0)
        self._squares, self._change = None, torch.zeros_like(self._change)
        if not self._packs or f"{PREFIX}first" not in tensors:
            return
        self._squares = tensors.get(f"{PREFIX}squares")
        saved = saved_histories(tensors, self._all_tables)
        for p in self._packs:
            names = [name for name, of_pack in self._table_packs.items() if of_pack == p]
            if len({id(saved[name]) for name in names}) > 1:
                raise ValueError(
                    f"tables {', '.join(names)} had row optimizers of their own when the checkpoint was "
                    f"written; give them those again"
                )
            self._histories[p] = saved[names[0]]


def saved_histories(tensors: Mapping[str, Tensor], tables: Sequence[str]) -> dict[str, StepHistory]:
    """Returns the steps on record of each table under a dense optimizer, from `DenseRows.tensors`.

    tables: the names of all tables. What one history was is one object again.
    """
    if f"{PREFIX}first" not in tensors:
        return {}
    first = tensors[f"{PREFIX}first"].tolist()
    histories = [StepHistory.from_numbers(n, tensors[f"{PREFIX}steps.{h}"]) for h, n in enumerate(first)]
    places = zip(sorted(tables), tensors[f"{PREFIX}tables"].tolist(), strict=True)
    return {name: histories[h] for name, h in places if h >= 0}


def catch_up_all(
    kind: str,
    history: StepHistory,
    records: UInt8[Tensor, "n _"],
    layout: list[int],
    squares: Float64[Tensor, "1"] | None = None,
) -> None:
    """Lets every one of some records make the steps that it missed; see `ops.deferred.catch_up_all`."""
    if len(records) and history.num_recorded:
        deferred.catch_up_all(kind, [_target(kind, history, records, layout)], squares)


def _target(kind: str, history: StepHistory, records: UInt8[Tensor, "n _"], layout: list[int]) -> Target:
    stored, dim = views(records, layout), layout[0]
    states = stored.state.split(dim, 1) if stored.state.shape[1] else ()
    assert stored.step is not None
    numbers = history.steps_for(kind, records.device)
    return Target(
        stored.weights, tuple(states), stored.step,
        numbers, history.first, history.now, history.first_decay,
    )  # fmt: skip


def _check(pack: Pack, optimizer: DenseRowOptimizer) -> None:
    table, kind = pack.tables[0], optimizer.kind
    if table.dtype != "float32":
        raise ValueError(
            f"table {table.name!r}: {kind} needs float32 weights, not {table.dtype}: most steps of a row "
            f"are tiny, and would be lost in rounding; choose float32, or a lazy row optimizer"
        )
