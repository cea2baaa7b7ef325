"""Kept tables: tables of the user's model that live in a store, behind a cache in fast memory.

    Keeper      of all tables of one width and rule: a store, a cache, a map of slots
      row         tables end to end: row `first_row` + i is row i of a table
      record      | D weights | D numbers of each state | int32: steps that it has been through |
    KeptTable   one of these tables; its parameter has the shape of the table, and no memory
    Place       where the rows of one lookup are: in slots, or copied aside for this lookup alone

Without a look ahead (`ahead`), a lookup that learns brings its rows into slots and waits. A batch of
more rows than slots, and anything that is looked up while a look ahead moves rows, is copied aside;
rows that are stepped there are written back at once. A step looks whether the rows of its gradient
still have the slots in which they were looked up, and brings them again where they have not.
"""

from __future__ import annotations

import shutil
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from hotrows.capture.rules import BY_OPTIMIZER, Rule
from hotrows.capture.table import Table
from hotrows.ops import deferred
from hotrows.ops.deferred import Target
from hotrows.planning.budget import divide
from hotrows.planning.packing import Group
from hotrows.planning.policy import Lookahead
from hotrows.planning.slots import SlotMap
from hotrows.record import RecordLayout, RecordViews, views
from hotrows.storage.cache import CHUNK_ROWS, Cache, chunks
from hotrows.storage.file import FileStore
from hotrows.storage.store import HostStore, MemoryStore, Store
from hotrows.tiers import Caching

if TYPE_CHECKING:
    from hotrows.capture.ahead import Coming
    from hotrows.pipeline.runner import Overlapped

_WAITS = 8  # lookups that wait for their rows before it is said that they need not


def why_not_kept(modules: Sequence[nn.Module], weight: Tensor, rule: Rule) -> str:
    """Why a table stays in memory where others are kept behind a cache; empty: it need not."""
    if weight.dtype != torch.float32:
        return f"its weights are {str(weight.dtype).removeprefix('torch.')}, not float32"
    if rule.kind == BY_OPTIMIZER:
        return "its optimizer goes over rows itself, with these options"
    if not weight.numel():
        return "it is empty"
    for module in modules:
        if getattr(module, "scale_grad_by_freq", False):
            return "scale_grad_by_freq makes dense gradients"
        if getattr(module, "mode", None) == "max":
            return "mode='max' makes dense gradients"
    return ""


@dataclass(frozen=True)
class ToKeep:
    """A table that is to be kept: what `Table` takes."""

    names: tuple[str, ...]
    weight: nn.Parameter
    rule: Rule
    optimizer: Optimizer


def keep(tables: Sequence[ToKeep], caching: Caching) -> list[KeptTable]:
    """Moves tables into stores, one after the other; their own memory is given back."""
    sets: dict[tuple[int, Rule], list[ToKeep]] = {}
    for table in tables:
        sets.setdefault((table.weight.shape[1], table.rule), []).append(table)
    if not sets:
        return []
    groups: list[Group] = []
    layouts: list[RecordLayout] = []
    for (dim, rule), members in sets.items():
        layouts.append(RecordLayout(dim, state_width=dim * len(rule.states), has_step=True))
        rows = sum(len(table.weight) for table in members)
        groups.append(Group((len(groups),), rows, (layouts[-1].stride,), len(members)))
    slots = divide(caching.fast_memory, groups, caching.memory_split)
    if caching.path is not None:
        _check_fresh(caching.path)
    kept, keepers = [], []
    try:
        for g, (group, members) in enumerate(zip(groups, sets.values(), strict=True)):
            names = [table.names[0] for table in members]
            store = _store(caching.path, g, group, layouts[g], names)
            keepers.append(Keeper(layouts[g], group.rows, slots[g], store))
            for table in members:
                kept.append(
                    KeptTable(table.names, table.weight, table.rule, table.optimizer, keepers[-1])
                )
            keepers[-1].tidy()
    except BaseException:
        for one in kept:
            one.move_out()
        for keeper in keepers:
            keeper.close()
        if caching.path is not None:
            shutil.rmtree(caching.path, ignore_errors=True)
        raise
    return kept


class Keeper:
    """Where tables of one width and rule are kept; see above.

    runner: the look ahead that moves rows at present. handed: its batch that is being trained.
    num_unplanned: lookups that learn and that the look ahead did not know of.
    counts: lookups whose rows had been moved ahead; were brought into slots; were copied aside.
    """

    def __init__(self, layout: RecordLayout, num_rows: int, num_slots: int, store: Store) -> None:
        self.layout, self.num_rows, self.tables = layout, num_rows, list[KeptTable]()
        self.store = store
        self.cache = Cache(num_slots, (layout.stride,), store)
        self.arena = self.views_of(self.cache.arenas[0])
        self.slots: Any = SlotMap(num_slots, Lookahead(1), 1)
        self.runner: Overlapped | None = None
        self.handed: Coming | None = None
        self.num_unplanned = 0
        self.counts = {"ahead": 0, "brought": 0, "copied": 0}
        self._waits = 0
        self._broken: BaseException | None = None
        self._finalizer = weakref.finalize(self, _close, store)

    def views_of(self, records: Tensor) -> RecordViews:
        return views(records, self.layout.as_ints())

    def add(self, table: KeptTable) -> int:
        """The first row of one more table."""
        self.tables.append(table)
        return sum(len(one.values) for one in self.tables[:-1])

    # ---- rows for lookups and steps

    def place(self, rows: Tensor, learns: bool) -> Place:
        """Rows [U], distinct and ascending, to be looked up; learns: they may be stepped."""
        with self.resting():
            slots = self._bring(rows) if learns and self.runner is None else None
            if learns and self.runner is None:
                self._say_waiting()
            elif learns:
                self.num_unplanned += 1
            self.counts["copied" if slots is None else "brought"] += 1
            if slots is not None:
                return Place(self, rows, slots, self.arena)
            return Place(self, rows, torch.arange(rows.numel()), self.copies(rows), True)

    @contextmanager
    def held(self, place: Place) -> Iterator[tuple[RecordViews, Tensor]]:
        """Rows to be stepped: records, and where in them each row is; afterwards they are kept."""
        self.check()
        if place.is_pinned:
            yield self.arena, place.slots
            self.cache.changed(place.slots)
            return
        with self.resting():
            slots = None
            if self.runner is None:
                slots = place.slots if self._has(place) else self._bring(place.rows)
            if slots is not None:
                yield self.arena, slots
                self.cache.changed(slots)
                return
            records = self.cache.read(place.rows)
            yield self.views_of(records), torch.arange(place.rows.numel())
            self.cache.write(place.rows, records)

    def copies(self, rows: Tensor) -> RecordViews:
        """Records of rows as they are at present; writing them changes no table."""
        with self.resting():
            return self.views_of(self.cache.read(rows))

    def resting(self) -> AbstractContextManager[None]:
        """Nothing moves within."""
        return nullcontext() if self.runner is None else self.runner.paused(trained=False)

    def check(self) -> None:
        """Takes what users have written to copies of tables; says what is broken."""
        if self._broken is not None:
            raise RuntimeError(
                "rows of the tables were lost when moving them failed; make the model anew and load a "
                "state that you saved"
            ) from self._broken
        for table in self.tables:
            table.take_back()

    def broke(self, error: BaseException) -> None:
        """Moving rows has failed, so some may be lost."""
        self._broken = error

    def _has(self, place: Place) -> bool:
        """Whether each row is still in the slot where it was looked up."""
        return not place.is_aside and self.cache.holds(place.slots, place.rows)

    def _bring(self, rows: Tensor) -> Tensor | None:
        """Brings rows into slots; None where there are more than slots."""
        self.slots.end()
        taken = self.slots.take(rows)
        self.move(taken.moves)
        return None if taken.moves.passes_through else taken.slots

    def move(self, moves: Any) -> None:
        """Everything that a plan moves, in line."""
        transit = self.cache.collect(moves)
        self.cache.insert(moves, transit)
        self.cache.write_back(transit)
        self.tidy()

    def tidy(self) -> None:
        """Bounds the log of a file store, after writes."""
        if isinstance(self.store, FileStore) and self.store.wants_checkpoint:
            self.store.retain([self.store.checkpoint()])

    def _say_waiting(self) -> None:
        self._waits += 1
        if self._waits == _WAITS:
            warnings.warn(
                "training waits for its rows at every lookup; `for batch in "
                "hotrows.lookahead(loader, model)` moves them while earlier batches are trained",
                stacklevel=2,
            )

    # ---- looking ahead

    def begin(self, runner: Overlapped) -> None:
        self.runner, self._waits = runner, _WAITS + 1

    def fit(self, in_flight: int) -> None:
        """Makes the map of slots one for so many batches on their way at once."""
        self.check()
        if self.slots.in_flight == in_flight:
            return
        rows = self.cache.rows
        self.cache.flush(keeps=False)
        self.cache.clear()
        self.slots = SlotMap(self.cache.num_slots, Lookahead(in_flight), in_flight)
        self.cache.warm(self.slots.warm(rows))

    # ---- all rows

    def read(self, begin: int, end: int) -> Tensor:
        """[m, stride]: copies of consecutive records."""
        with self.resting():
            return self.cache.read(torch.arange(begin, end))

    def write(self, rows: Tensor, records: Tensor) -> None:
        with self.resting():
            self.cache.write(rows, records)
            self.tidy()

    def close(self) -> None:
        """Gives the store free; the rows are elsewhere, or wanted no more."""
        self._finalizer()


@dataclass(frozen=True)
class Place:
    """Where the rows of a lookup are.

    rows: [U] distinct rows of the keeper, ascending. slots: [U], where in `records` each of them is.
    is_aside: records are copies, made for this lookup. coming: the batch whose rows they are, which
    has them as long as it is being trained.
    """

    keeper: Keeper
    rows: Tensor
    slots: Tensor
    records: RecordViews
    is_aside: bool = False
    coming: Coming | None = None

    def part(self, begin: int, end: int) -> Place:
        return replace(self, rows=self.rows[begin:end], slots=self.slots[begin:end])

    @property
    def is_pinned(self) -> bool:
        """Whether its batch is being trained, so that no row leaves."""
        return self.coming is not None and not self.coming.is_over

    def weights(self) -> Tensor:
        """[U, D]: the weights of its rows."""
        with nullcontext() if self.is_pinned else self.keeper.resting():
            if self.slots.numel() == self.rows.numel() and (
                self.is_aside or self.is_pinned or self.keeper.cache.holds(self.slots, self.rows)
            ):
                return self.records.weights[self.slots]
            found = []
            for table in self.keeper.tables:
                own = self.rows - table.first_row
                own = own[(own >= 0) & (own < len(table.values))]
                found.append(table.read_rows(own))
            return torch.cat(found)

    def changed(self) -> None:
        """The rows were brought up to date where they are."""
        if not self.is_aside:
            self.keeper.cache.changed(self.slots)


class KeptTable(Table):
    """A table whose rows are kept. values: [R, D] of no memory, for its shape and dtype."""

    def __init__(
        self, names: tuple[str, ...], weight: nn.Parameter, rule: Rule, optimizer: Optimizer,
        keeper: Keeper,
    ) -> None:  # fmt: skip
        self._is_in, self._made, self._lent = False, False, list[_Lent]()
        self._shape = weight.shape
        super().__init__(names, weight, rule, optimizer)
        self.keeper: Keeper = keeper
        self.first_row = keeper.add(self)
        self._write_all(self.values, self.states, self.last)
        self._is_in = True
        self._let_go()

    # ---- what it stands on

    def adopt_weight(self) -> None:
        super().adopt_weight()
        if self._is_in:
            self._check_values(self.values)
            self.write_whole(self.values)
            self._let_go()

    def adopt_states(self) -> None:
        super().adopt_states()
        self._made = bool(self.states)
        if self._is_in:
            self._write_all(None, self.states, self.last)
            self._let_go()

    def make_states(self) -> None:
        self._made = True

    def publish(self) -> None:
        if self._made:
            self.states = {
                name: self._read_all(partial(self._state, s))
                for s, name in enumerate(self.rule.states)
            }
            self.optimizer.state[self.weight].update(self.states)
        super().publish()
        self.states = {}

    def hide(self) -> None:
        """Takes the states of rows back from the optimizer; whoever asked for them has them."""
        self._let_go()

    def move_out(self) -> None:
        """The weight and its states are plain again; every row had been caught up."""
        weights = self._read_all(lambda of: of.weights)
        self.publish()
        with torch._C.DisableTorchFunctionSubclass():
            self.weight.data = weights

    def _let_go(self) -> None:
        """Gives back the memory of the weight and the states."""
        with torch._C.DisableTorchFunctionSubclass():
            self.weight.data = torch.zeros(1, dtype=torch.float32).expand(self._shape)
            self.values = self.weight.detach()
        self.states, self.last = {}, torch.empty(0, dtype=torch.int32)
        state: Mapping[str, Any] = self.optimizer.state.get(self.weight, {})
        if any(name in state for name in self.rule.states):
            rest = {name: of for name, of in state.items() if name not in self.rule.states}
            self.optimizer.state[self.weight] = rest

    def _check_values(self, values: Tensor) -> None:
        is_same = values.dtype == torch.float32 and values.shape == self._shape
        if not is_same or values.device.type != "cpu":
            self._let_go()
            raise RuntimeError(
                f"table {self.names[0]} is kept behind a cache as float32 {list(self._shape)} on the "
                f"CPU and cannot become {values.dtype} {list(values.shape)} on {values.device}; "
                f"hotrows.restore(model) first"
            )

    # ---- reading

    def target_in(self, records: RecordViews) -> Target:
        """The table as the kernels take it, with its rows at places in these records."""
        history, dim = self.history, self.keeper.layout.dim
        assert records.step is not None
        return Target(
            records.weights, records.state.split(dim, 1) if records.state.shape[1] else (),
            records.step, history.steps, history.first, history.now, history.first_decay,
        )  # fmt: skip

    @property
    def target(self) -> Target:
        return self.target_in(self.keeper.arena)

    def place_of(self, rows: Tensor) -> Place:
        """Rows [U] of this table that have no slots yet."""
        none = torch.empty(0, dtype=torch.int64)
        return Place(self.keeper, rows + self.first_row, none, self.keeper.arena, True)

    @contextmanager
    def held(self, rows: Tensor) -> Iterator[tuple[Target, Tensor]]:
        with self.keeper.held(self.place_of(rows)) as (records, slots):
            yield self.target_in(records), slots

    def catch_up(self) -> None:
        if not self.is_behind:
            return
        if self._made or not self.rule.states:
            with self.keeper.resting():
                for begin, end in self._chunks():
                    records = self.keeper.read(begin, end)
                    target = self.target_in(self.keeper.views_of(records))
                    before = target.last.clone()
                    deferred.catch_up_all(self.rule.kind, target, self.squares_out)
                    moved = (target.last != before).nonzero().squeeze(1)
                    if moved.numel():
                        self.keeper.write(moved + begin, records[moved])
        self._split_off()
        self.history.forget()

    def caught_up(self) -> Tensor:
        """[R, D]: a copy of the weight as it is."""
        return self._read_all(lambda of: of.weights)

    def catch_up_rows(self, rows: Tensor) -> None:
        if self.is_behind:
            with self.held(rows) as (target, slots):
                bounds = torch.tensor([0, rows.numel()])
                deferred.catch_up(self.rule.kind, [target], slots, bounds, self.squares_out)

    def read_rows(self, rows: Tensor) -> Tensor:
        self.keeper.check()
        records = self.keeper.copies(rows + self.first_row)
        self._catch_up_copies(records)
        return records.weights

    def sum_of_squares(self) -> float:
        if self._is_summed_exactly:
            return float(self.caught_up().double().square().sum())
        if self._squares is None:
            self.catch_up()
            total = 0.0
            for begin, end in self._chunks():
                weights = self.keeper.views_of(self.keeper.read(begin, end)).weights
                total += float(torch.linalg.vector_norm(weights, dtype=torch.float64) ** 2)
            self._squares = torch.tensor([total], dtype=torch.float64)
        return self._sum_as_stored()

    # ---- reading and writing as a whole

    def write_whole(self, values: Tensor) -> None:
        """Makes these its weights, [R, D]."""
        self._lent.clear()
        self.catch_up()
        self._write_all(values, None, None)
        self.written()

    def lend(self, copy: Tensor, seen: Sequence[Tensor]) -> None:
        """A copy of the weight that users see through tensors `seen`, and may write."""
        self._lent.append(_Lent(copy, tuple((of, of._version) for of in seen)))

    def take_back(self) -> None:
        """Takes what users have written to copies since."""
        lent, self._lent = self._lent, []
        for one in lent:
            if any(of._version != version for of, version in one.seen):
                self.write_whole(one.copy)

    def _read_all(self, part: Callable[[RecordViews], Tensor]) -> Tensor:
        """[R, D] of all rows, up to date."""
        self.take_back()
        out = torch.empty(self.values.shape, dtype=self.values.dtype)
        with self.keeper.resting():
            for begin, end in self._chunks():
                records = self.keeper.views_of(self.keeper.read(begin, end))
                self._catch_up_copies(records)
                out[begin - self.first_row : end - self.first_row] = part(records)
        return out

    def _write_all(
        self, weights: Tensor | None, states: Mapping[str, Tensor] | None, last: Tensor | None
    ) -> None:
        """Writes what is given of all rows; of states, those not given begin with zeros."""
        with self.keeper.resting():
            for begin, end in self._chunks():
                rows = slice(begin - self.first_row, end - self.first_row)
                size = (end - begin, self.keeper.layout.stride)
                whole = all(of is not None for of in (weights, states, last))
                records = (
                    torch.zeros(size, dtype=torch.uint8) if whole else self.keeper.read(begin, end)
                )
                into = self.keeper.views_of(records)
                if weights is not None:
                    into.weights.copy_(weights[rows])
                if states is not None:
                    for s, name in enumerate(self.rule.states):
                        of = states.get(name)
                        if of is None:
                            self._state(s, into).zero_()
                        else:
                            self._state(s, into).copy_(of[rows])
                if last is not None:
                    assert into.step is not None
                    into.step.copy_(last[rows])
                self.keeper.write(torch.arange(begin, end), records)

    def _state(self, s: int, records: RecordViews) -> Tensor:
        """[m, D]: one of the states of rows."""
        dim = self.keeper.layout.dim
        return records.state[:, s * dim : (s + 1) * dim]

    def _catch_up_copies(self, records: RecordViews) -> None:
        if self.is_behind and (self._made or not self.rule.states):
            deferred.catch_up_all(self.rule.kind, self.target_in(records), None)

    def _chunks(self) -> Iterator[tuple[int, int]]:
        for begin, end in chunks(len(self.values), CHUNK_ROWS):
            yield self.first_row + begin, self.first_row + end


@dataclass(frozen=True)
class _Lent:
    """A copy of a weight in users' hands, through tensors seen at some versions."""

    copy: Tensor
    seen: tuple[tuple[Tensor, int], ...]


# ---- the stores


def _check_fresh(path: Path) -> None:
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise ValueError(
            f"store='file:{path}' must be a new folder, but it exists: tables of a model are moved "
            f"into it. Delete it, or choose another"
        )


def _store(
    path: Path | None, g: int, group: Group, layout: RecordLayout, names: Sequence[str]
) -> Store:
    if path is None:
        return HostStore([MemoryStore.empty(layout, group.rows)])
    meta = {"tables": list(names), **layout.to_json()}
    return FileStore.create(path / f"tables-{g}", group.rows, group.stride, _never_read, meta)


def _never_read(rows: Tensor, records: Tensor) -> None:
    """Every row is written when its table moves in."""
    raise AssertionError(f"row {int(rows[0])} was read before it was written")


def _close(store: Store) -> None:
    if isinstance(store, FileStore):
        store.close(merge=False)
