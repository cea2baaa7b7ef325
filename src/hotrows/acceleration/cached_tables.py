"""CachedTable: a table of the user's model behind a cache; `cache_tables` moves tables into stores.

The parameter of a cached table has the shape of the table, and no memory.
"""

from __future__ import annotations

import shutil
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from operator import attrgetter
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from hotrows.acceleration.cached_group import CachedRows, CachedTableGroup
from hotrows.acceleration.dynamic_embedding import DynamicEmbedding
from hotrows.acceleration.exclusive import exclusive
from hotrows.acceleration.rules import BY_OPTIMIZER, Rule
from hotrows.acceleration.table import RowTable, TableArguments
from hotrows.acceleration.table_state import Values
from hotrows.engine.caching import Caching
from hotrows.engine.planning.packing import Group
from hotrows.engine.planning.slot_budget import divide
from hotrows.engine.storage.cache import CHUNK_ROWS, chunks
from hotrows.engine.storage.file_store import FileStore
from hotrows.engine.storage.store import HostStore, MemoryStore, Store
from hotrows.ops import deferred
from hotrows.ops.deferred import Target
from hotrows.ops.record import RecordLayout, RecordViews
from hotrows.runtime import device as devices
from hotrows.runtime.device import Device


def why_not_cached(modules: Sequence[nn.Module], weight: Tensor, rule: Rule) -> str:
    """The reason why a table must stay in memory where others are cached; "" where there is none."""
    if weight.dtype != torch.float32:
        return f"its weights are {str(weight.dtype).removeprefix('torch.')}, not float32"
    if rule.kind == BY_OPTIMIZER:
        return "its optimizer goes over rows itself, with these options"
    if not weight.numel():
        return "it is empty"
    for module in modules:
        if isinstance(module, DynamicEmbedding):
            return "its rows come and go with keys"
        if getattr(module, "scale_grad_by_freq", False):
            return "scale_grad_by_freq makes dense gradients"
        if getattr(module, "mode", None) == "max":
            return "mode='max' makes dense gradients"
    return ""


def cache_tables(tables: Sequence[TableArguments], caching: Caching) -> list[CachedTable]:
    """Moves tables into stores, one after the other, and frees their own memory."""
    members: dict[tuple[int, Rule, torch.device], list[TableArguments]] = {}
    for table in tables:
        key = table.weight.shape[1], table.rule, table.weight.device
        members.setdefault(key, []).append(table)
    if not members:
        return []
    groups: list[Group] = []
    layouts: list[RecordLayout] = []
    for (dim, rule, _), of_group in members.items():
        layouts.append(RecordLayout(dim, state_width=dim * len(rule.states), has_step=True))
        rows = sum(len(table.weight) for table in of_group)
        groups.append(Group((len(groups),), rows, (layouts[-1].stride,), len(of_group)))
    slots = divide(caching.fast_memory, groups, caching.memory_split)
    if caching.path is not None:
        _check_fresh(caching.path)
    cached: list[CachedTable] = []
    opened: list[CachedTableGroup] = []
    try:
        for g, (group, of_group) in enumerate(zip(groups, members.values(), strict=True)):
            names, device = (
                [table.names[0] for table in of_group],
                devices.device_of(of_group[0].weight.device),
            )
            store = _store(caching.path, g, group, layouts[g], names, device)
            opened.append(CachedTableGroup(layouts[g], group, slots[g], store, device))
            for table in of_group:
                cached.append(CachedTable(*table, opened[-1]))
            opened[-1].bound_log()
    # Put everything back where one cannot be moved.
    except BaseException:
        for moved in cached:
            moved.make_plain()
        for table_group in opened:
            table_group.close()
        if caching.path is not None:
            shutil.rmtree(caching.path, ignore_errors=True)
        raise
    return cached


class CachedTable(RowTable):
    """A table behind a cache. values: [R, D] without memory, for its shape and dtype."""

    def __init__(
        self, names: tuple[str, ...], weight: nn.Parameter, rule: Rule, optimizer: Optimizer,
        group: CachedTableGroup,
    ) -> None:  # fmt: skip
        self._is_stored = self._has_states = False
        self._shown: tuple[Tensor, int] | None = None  # the copy that users see, its checksum
        self._shape, self._place = weight.shape, weight.device
        super().__init__(names, weight, rule, optimizer)
        self.group = group
        self.first_row = group.add(self)
        self._write_all(self.values, self.states, self.last)
        self._is_stored = True
        self.release_states()

    # ---- the parameter and the optimizer's state

    @exclusive
    def adopt_weight(self) -> None:
        super().adopt_weight()
        if self._is_stored:
            self._check_values(self.values)
            self._shown = None
            self.write_weights(self.values)
            self.release_states()

    @exclusive
    def adopt_states(self) -> None:
        if self._is_stored:
            self.last = self._read_all(attrgetter("step"), self.values.new_empty(self._shape[:1]))
        super().adopt_states()
        self._has_states = bool(self.states)
        if self._is_stored:
            self._write_all(None, self.states, self.last)
            self.release_states()

    def make_states(self) -> None:
        self._has_states = bool(self.rule.states)

    @property
    def has_states(self) -> bool:
        return self._has_states

    def change_rule(self, rule: Rule) -> None:
        needs = f"the states {list(rule.states)}" if rule.states else "other states"
        raise RuntimeError(
            f"table {self.names[0]} is kept behind a cache, whose rows have the states "
            f"{list(self.rule.states)}, and the settings of its optimizer were changed so that they need "
            f"{needs}: call hotrows.restore(model) before the change, and accelerate again"
        )

    @exclusive
    def _present_states(self, before: Values) -> Values:
        if self._has_states:
            self.states = {
                name: self._read_all(partial(self._state, s)) for s, name in enumerate(self.rule.states)
            }
        try:
            return super()._present_states(before)
        finally:
            self.states = {}

    def make_plain(self) -> None:
        weights = self._read_all(lambda records: records.weights)
        super().make_plain()
        with torch._C.DisableTorchFunctionSubclass():
            self.weight.data = weights

    @exclusive
    def release_states(self) -> None:
        with torch._C.DisableTorchFunctionSubclass():
            unread = self.values.new_full((1,), torch.nan, dtype=torch.float32)  # seen if it were read
            self.weight.data = unread.expand(self._shape)
            self.values = self.weight.detach()
        self.states, self.last = {}, torch.empty(0, dtype=torch.int32)
        if self.entry is not None and not self.is_left_plain:
            self.entry.forget(self.rule.states)

    def _check_values(self, values: Tensor) -> None:
        is_same = values.dtype == torch.float32 and values.shape == self._shape
        if not is_same or values.device != self._place:
            self.release_states()
            raise RuntimeError(
                f"table {self.names[0]} is kept behind a cache as float32 {list(self._shape)} on "
                f"{self._place} and cannot become {values.dtype} {list(values.shape)} on "
                f"{values.device}; hotrows.restore(model) first"
            )

    # ---- memory of the rows

    @property
    def target(self) -> Target:
        return self.group.target_of(self, self.group.arena)

    def locate(self, rows: Tensor) -> CachedRows:
        slots = torch.empty(0, dtype=torch.int64)  # none yet
        return CachedRows(self.group, rows.cpu() + self.first_row, slots, self.group.arena, is_copy=True)

    @contextmanager
    def writing(self, rows: Tensor) -> Iterator[tuple[Target, Tensor]]:
        with self.locate(rows).writing([self]) as (targets, slots):
            yield targets[0], slots

    def _bring_all(self, step: int) -> None:
        with self.group.paused():
            for begin, end in self._chunks():
                records = self.group.read(begin, end)
                target = self.group.target_of(self, self.group.views_of(records)).until(step)
                before = target.last.clone()
                deferred.catch_up_all(self.rule.kind, [target])
                moved = (target.last != before).nonzero().squeeze(1)
                if moved.numel():
                    self.group.write(moved + begin, records[moved])

    @exclusive
    def caught_up(self) -> Tensor:
        """[R, D]: a copy of the present weight, the one that users see if there is one."""
        self.store_writes()
        if self._shown is not None:
            return self._shown[0].detach()
        return self._read_all(lambda records: records.weights)

    @exclusive
    def read_rows(self, rows: Tensor) -> Tensor:
        self.group.synchronize()
        records = self.group.read_copies(rows.cpu() + self.first_row)
        self._catch_up_copies(records)
        return records.weights.to(self._place)

    @exclusive
    def write_weights(self, values: Tensor) -> None:
        shown, self._shown = self._shown, None
        self.catch_up()
        self.before_write()
        self._write_all(values, None, None)
        if shown is not None:
            self.show(shown[0].copy_(values))

    @exclusive
    def show(self, copy: Tensor) -> None:
        if self._shown is None:
            copy = copy.detach()
            self._shown = copy, _checksum(copy)

    @exclusive
    def store_writes(self, forget: bool = False) -> None:
        if self._shown is not None and _checksum(self._shown[0]) != self._shown[1]:
            self.write_weights(self._shown[0])
        self._shown = None if forget else self._shown

    def present_squares(self) -> float:
        total = 0.0
        for begin, end in self._chunks():
            weights = self.group.views_of(self.group.read(begin, end)).weights
            total += float(torch.linalg.vector_norm(weights, dtype=torch.float64) ** 2)
        return total

    # ---- all rows

    def _read_all(self, select: Callable[[RecordViews], Tensor], out: Tensor | None = None) -> Tensor:
        """[R, D]: one part of all records, up to date. out: where it goes, if not to a new tensor."""
        self.store_writes()
        out = self.values.new_empty(self._shape) if out is None else out
        with self.group.paused():
            for begin, end in self._chunks():
                records = self.group.views_of(self.group.read(begin, end))
                self._catch_up_copies(records)
                out[begin - self.first_row : end - self.first_row] = select(records)
        return out

    def _write_all(
        self, weights: Tensor | None, states: Mapping[str, Tensor] | None, last: Tensor | None
    ) -> None:
        """Writes parts of all rows, where they are not None; states without a name become zeros."""
        is_complete = weights is not None and states is not None and last is not None
        with self.group.paused():
            for begin, end in self._chunks():
                rows = slice(begin - self.first_row, end - self.first_row)
                size = (end - begin, self.group.layout.stride)
                records = (
                    torch.zeros(size, dtype=torch.uint8) if is_complete else self.group.read(begin, end)
                )
                into = self.group.views_of(records)
                if weights is not None:
                    into.weights.copy_(weights[rows])
                for s, name in enumerate(self.rule.states if states is not None else ()):
                    if states and name in states:
                        self._state(s, into).copy_(states[name][rows])
                    else:
                        self._state(s, into).zero_()
                if last is not None:
                    assert into.step is not None
                    into.step.copy_(last[rows])
                self.group.write(torch.arange(begin, end), records)

    def _state(self, s: int, records: RecordViews) -> Tensor:
        """[m, D]: one of the states of rows."""
        dim = self.group.layout.dim
        return records.state[:, s * dim : (s + 1) * dim]

    def _catch_up_copies(self, records: RecordViews) -> None:
        if self.can_be_behind:
            target = self.group.target_of(self, records)
            deferred.catch_up_all(self.rule.kind, [target])

    def _chunks(self) -> Iterator[tuple[int, int]]:
        for begin, end in chunks(len(self.values), CHUNK_ROWS):
            yield self.first_row + begin, self.first_row + end


def _checksum(weights: Tensor) -> int:
    """A number that changes with the weights: writes through an array of NumPy count no version."""
    return zlib.crc32(weights.cpu().contiguous().numpy().data)


# ---- the stores


def _check_fresh(path: Path) -> None:
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise ValueError(
            f"store='file:{path}' must be a new folder, but it exists: tables of a model are moved "
            f"into it. Delete it, or choose another"
        )


def _store(
    path: Path | None, g: int, group: Group, layout: RecordLayout, names: Sequence[str], device: Device
) -> Store:
    if path is None:
        store = MemoryStore.empty(layout, group.rows)
        device.page_lock(store.records)
        return HostStore([store])
    meta = {"tables": list(names), **layout.to_json()}
    return FileStore.create(path / f"tables-{g}", group.rows, group.stride, _never_read, meta)


def _never_read(rows: Tensor, records: Tensor) -> None:
    """Refuses to make first values: every row is written when its table moves in."""
    raise AssertionError(f"row {int(rows[0])} was read before it was written")
