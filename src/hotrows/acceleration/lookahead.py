"""Look-ahead: the rows of batches to come are moved into fast memory while earlier ones are trained.

    for batch in lookahead(loader, model):      yields the loader's own batches, in order

The loader is read a few batches ahead, on the caller's thread, so that it and the model draw random
numbers in a fixed order. For each batch the model's forward is run up to its first lookup, which gives
the ids; nothing is computed. Threads do what follows (`LookaheadRunner`):

    plan     distinct rows, their slots, their moves           thread `plan`
    move     missing rows: store -> slots; victims -> buffer   thread `move`
    train    the caller's loop
    write    victims: buffer -> store                          thread `write`

When the loop looks up the ids that were planned, their rows are in slots, and stay there until it
takes the next batch. Any other lookup is read through the cache while nothing moves: right, and slower.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from hotrows.acceleration.accelerate import Acceleration, acceleration_of, check_model
from hotrows.acceleration.bags import LookupCall
from hotrows.acceleration.batch_arguments import CallRecorder, Inputs, call_arguments
from hotrows.acceleration.cached_group import CachedRows, CachedTableGroup, PlannedBatch
from hotrows.acceleration.lookup import PLANNING, PlannedLookups
from hotrows.acceleration.lookup_plan import group_of, ids_of, plan_rows, signature_of
from hotrows.engine.pipeline.runner import TRAIN, NoMore, Overlapped
from hotrows.engine.pipeline.schedule import Stage, Work
from hotrows.engine.storage.cache import Transfer
from hotrows.runtime.device import Mark
from hotrows.runtime.transfer import to_device
from hotrows.runtime.user_warnings import warn

_MAX_FAILURES = 3  # batches from which the arguments could not be learned, before it gives up
_MAX_UNPLANNED = 32  # lookups, before a look-ahead that has planned fewer stops
_RUN_AHEAD = 1  # batches planned beyond those that move rows


def lookahead(
    loader: Iterable, model: nn.Module, inputs: Inputs | None = None, in_flight: int = 4
) -> LookaheadLoader:
    """Iterates over a loader, while rows of the batches to come are moved into fast memory.

    model: accelerated with fast_memory, or a module that contains such a model; for any other model,
    the result iterates over the loader alone.
    inputs: a function from a batch to the arguments of the
    model: a tensor, a tuple, or a dictionary of arguments by name; None: learned from the first batch.
    in_flight: number of batches whose rows are in slots or move at once.

    >>> model = torch.nn.Embedding(1000, 8)
    >>> optimizer = torch.optim.SGD(model.parameters(), 0.1)
    >>> model, optimizer = hotrows.accelerate(model, optimizer, fast_memory="1MiB")
    >>> batches = [torch.tensor([3, 4]), torch.tensor([5, 6])]
    >>> [model(batch).shape[0] for batch in hotrows.lookahead(batches, model)]
    [2, 2]
    """
    if in_flight < 1:
        raise ValueError(f"in_flight must be at least 1, not {in_flight}")
    check_model(model, "hotrows.lookahead(loader, model)")
    states = [state for x in model.modules() if (state := acceleration_of(x)) is not None]
    if not states:
        raise ValueError(
            "lookahead takes a model that hotrows.accelerate(model, optimizer, fast_memory=...) has "
            "accelerated; this one is not"
        )
    state = next((state for state in states if state.groups), states[0])
    return LookaheadLoader(loader, model, state, inputs, in_flight)


class LookaheadLoader:
    """The result of `lookahead`; may be iterated over as often as the loader."""

    def __init__(
        self, loader: Iterable, model: nn.Module, state: Acceleration, inputs: Inputs | None,
        in_flight: int,
    ) -> None:  # fmt: skip
        self._loader, self._model, self._state = loader, model, state
        self._inputs, self._in_flight = inputs, in_flight

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Any]:
        batches = iter(self._loader)
        groups = self._state.groups
        if not groups or self._is_running():
            yield from batches
            return
        if self._inputs is None:
            yield from self._learn(batches)
            if self._inputs is None or self._is_running():
                yield from batches
                return
        probe = IdProbe(self._model, self._state, self._inputs)
        runner = LookaheadRunner(batches, probe, groups, self._in_flight)
        try:
            yield from runner
        finally:
            runner.close()

    def _is_running(self) -> bool:
        """True if some look-ahead moves rows of this model."""
        return any(group.runner is not None for group in self._state.groups)

    def _learn(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Yields one batch or a few, and learns where the model's arguments are in them."""
        num_failures = 0
        for batch in batches:
            recorder = CallRecorder()
            self._state.recorders.append(recorder)
            try:
                yield batch
            finally:
                self._state.recorders.remove(recorder)
            try:
                self._inputs = recorder.inputs_from(batch)
            except LookupError as error:
                num_failures += 1
                if num_failures == _MAX_FAILURES:
                    self._warn_unknown(error)
                    return
            if self._inputs is not None:
                return

    def _warn_unknown(self, error: LookupError) -> None:
        warn(
            f"lookahead cannot tell how a batch becomes the arguments of "
            f"{type(self._model).__name__}: {error}. Rows are not moved ahead; pass inputs=, a "
            f"function from a batch to the arguments of model(...)"
        )


@dataclass
class _GroupLookups:
    """The lookups of a batch that read one group: their plan, and what planning and moving need.

    calls: until the rows are known. transfer: of its rows, once they move. trained: the mark behind the
    training of the batch.
    """

    planned: PlannedBatch
    calls: list[LookupCall] | None = None
    transfer: Transfer | None = None
    trained: Mark = None


_Batch = list[_GroupLookups]  # one for each group


class IdProbe:
    """Gets the ids of batches from a model, by running its forward up to its first lookup."""

    def __init__(self, model: nn.Module, state: Acceleration, inputs: Inputs) -> None:
        self._state, self._inputs = state, inputs
        self._model = next(x for x in model.modules() if x.__dict__.get("_hotrows") is state)
        self.failed = False

    def lookups_of(self, batch: Any) -> _Batch:
        """The first lookups of a batch, by group."""
        lookups = [_GroupLookups(PlannedBatch(group)) for group in self._state.groups]
        reached = None if self.failed else self._run(batch)
        if reached is not None:
            packs = {group_of(calls[0].weight): calls for calls in reached.packs()}
            for of_group in lookups:
                calls = packs.get(of_group.planned.group)
                if calls is not None:
                    of_group.planned.signature = signature_of(calls)
                    of_group.planned.ids = ids_of(calls).cpu()
                    # Their other tensors are read when the lookup is made.
                    copies = of_group.planned.ids.split([call.ids.numel() for call in calls])
                    of_group.calls = [
                        replace(call, ids=ids, offsets=None, samples=None)
                        for call, ids in zip(calls, copies, strict=True)
                    ]
        return lookups

    def _run(self, batch: Any) -> PlannedLookups | None:
        random_state = torch.get_rng_state()
        buffers = [(buffer, buffer.clone()) for buffer in self._model.buffers()]
        PLANNING.is_on = True
        try:
            arguments = call_arguments(self._inputs(batch))
            self._state.forward(self._model, arguments.args, arguments.kwargs)
        except PlannedLookups as reached:
            return reached
        except Exception as error:
            self.failed = True
            warn(
                f"lookahead could not ask {type(self._model).__name__} for the ids of a batch "
                f"({type(error).__name__}: {error}); rows are no longer moved ahead. Does inputs= give "
                f"the arguments of model(...)?"
            )
        finally:
            PLANNING.is_on = False
            torch.set_rng_state(random_state)
            with torch.no_grad():
                for buffer, before in buffers:
                    if not torch.equal(buffer, before):
                        buffer.copy_(before)
        return None


class LookaheadRunner:
    """The pipeline of one iteration over a loader: iterate over it, then `close` it."""

    def __init__(
        self, batches: Iterator[Any], probe: IdProbe, groups: Sequence[CachedTableGroup], in_flight: int
    ) -> None:
        self._batches, self._probe, self._groups = batches, probe, groups
        self._window = in_flight
        # With so many beyond those trained, the planning thread never waits for another batch.
        self._depth = in_flight + _RUN_AHEAD + self._window
        for group in groups:
            group.set_in_flight(in_flight)
        self._counts_before = self._counts()
        self._bases = [group.slots.num_allocated for group in groups]
        self._read: deque[_Batch | None] = deque()  # None: the loader has no more
        self._to_yield: deque[Any] = deque()
        self._fed: deque[_Batch] = deque()
        self._unmoved: deque[_Batch] = deque()
        self._num_fed = self._num_read = self._num_yielded = 0
        self._all_read = self._all_fed = self._closed = False
        self._training: _Batch | None = None
        self._written: dict[CachedTableGroup, Mark] = {}  # behind what has left last
        self._error: BaseException | None = None
        self._loader_error: BaseException | None = None
        self._read_ahead()
        self._runner = Overlapped(self._stages(), run_ahead=_RUN_AHEAD)
        for group in groups:
            group.begin(self._runner)

    def __iter__(self) -> Iterator[Any]:
        while True:
            self._finish_training()
            self._read_ahead()
            try:
                work = next(self._runner)
            except StopIteration:
                if self._loader_error is not None:
                    raise self._loader_error from None
                return
            self._training = work.item
            self._num_yielded += 1
            for lookups in work.item:
                lookups.planned.group.train(lookups.planned)
            yield self._to_yield.popleft()
            if self._is_useless():
                self.close()
                yield from self._remaining()
                return

    def _remaining(self) -> Iterator[Any]:
        """The remaining batches of the loader, without looking ahead."""
        while self._to_yield:
            yield self._to_yield.popleft()
        if self._loader_error is not None:
            raise self._loader_error
        if not self._all_read:
            yield from self._batches

    def _is_useless(self) -> bool:
        """True if most lookups were not planned, so that they wait until moves pause."""
        planned, unplanned = (
            now - before for now, before in zip(self._counts(), self._counts_before, strict=True)
        )
        if self._probe.failed:  # which has warned
            return True
        if unplanned <= max(planned, _MAX_UNPLANNED):
            return False
        warn(
            "most lookups of this model are made after its first ones, or not with the ids of the "
            "batch, so lookahead does not know them; it stops, and training waits for its rows. "
            "hotrows.explain(model, *example) says what keeps lookups from being made together"
        )
        return True

    def _counts(self) -> tuple[int, int]:
        """The number of lookups that were planned ahead, and of those that were not."""
        return (
            sum(group.counts["ahead"] for group in self._groups),
            sum(group.num_unplanned for group in self._groups),
        )

    def close(self) -> None:
        """Ends the threads; planned moves are made all the same, so that caches agree with slot maps."""
        if self._closed:
            return
        self._closed = True
        self._finish_training()
        self._runner.close()
        for group in self._groups:
            group.runner = None
        if self._error is not None:
            for group in self._groups:
                group.error = self._error
            return
        for group in self._groups:
            group.cache.write_back_all()
        for batch in self._unmoved:
            for lookups in batch:
                assert lookups.planned.moves is not None
                lookups.planned.group.move(lookups.planned.moves)
        for group in self._groups:
            group.slots.end()
        for batch in self._fed:
            for lookups in batch:
                group = lookups.planned.group
                group.move(group.slots.allocate(lookups.planned.rows).moves)

    def _finish_training(self) -> None:
        """Notes that the batch yielded last has been trained: its rows may leave their slots."""
        if self._training is not None:
            for lookups in self._training:
                lookups.planned.is_over, lookups.planned.group.training_batch = True, None
                lookups.trained = lookups.planned.group.device.mark()
            self._training = None

    def _read_ahead(self) -> None:
        """Reads the loader, and the ids of its batches."""
        while not self._all_read and self._num_read < self._num_yielded + self._depth:
            try:
                batch = next(self._batches)
            except BaseException as error:  # raised in its place, after the batches before it
                self._loader_error = None if isinstance(error, StopIteration) else error
                self._all_read = True
                self._read.append(None)
                return
            self._to_yield.append(batch)
            self._read.append(self._probe.lookups_of(batch))
            self._num_read += 1

    # ---- stages

    def _stages(self) -> list[Stage]:
        return [
            Stage("plan", "plan", run=self._noting_errors(self._plan)),
            Stage("move", "move", enters=True, run=self._noting_errors(self._move)),
            Stage(TRAIN, TRAIN),
            Stage("write back", "write", run=self._noting_errors(self._write_back)),
        ]

    def _noting_errors(self, run: Callable[[Work], None]) -> Callable[[Work], None]:
        def run_noting(work: Work) -> None:
            try:
                run(work)
            except NoMore:
                raise
            except BaseException as error:
                self._error = self._error or error
                raise

        return run_noting

    def _plan(self, work: Work) -> None:
        while not self._all_fed and self._num_fed <= work.number + self._window:
            self._feed()
        if not self._fed:
            raise NoMore
        batch = self._fed.popleft()
        waits_for = -1
        for lookups, base in zip(batch, self._bases, strict=True):
            planned, group = lookups.planned, lookups.planned.group
            taken = group.slots.allocate(planned.rows)
            planned.moves = taken.moves
            waits_for = max(waits_for, taken.waits_for - base)
            if planned.plan is not None and not taken.moves.bypasses_cache:
                planned.locations = CachedRows(
                    group, planned.rows, taken.slots, group.arena, batch=planned
                )
        self._unmoved.append(batch)
        work.item, work.waits_for = batch, waits_for

    def _feed(self) -> None:
        batch = self._read.popleft()
        if batch is None:
            self._all_fed = True
            for group in self._groups:
                group.slots.end()
            return
        self._num_fed += 1
        for lookups in batch:
            if lookups.calls is not None:
                with suppress(IndexError):  # ids outside of their table: raised by the lookup
                    lookups.planned.plan = plan_rows(lookups.calls)
                lookups.calls = None
            lookups.planned.group.slots.feed(lookups.planned.rows)
        self._fed.append(batch)

    def _move(self, work: Work) -> None:
        for lookups in work.item:
            planned, group = lookups.planned, lookups.planned.group
            assert planned.moves is not None
            slots = None if planned.locations is None else planned.locations.slots
            copy = to_device(group.device, (planned.moves, slots))
            moves, slots = copy.value
            lookups.transfer = group.cache.collect(
                planned.moves, moves, [copy.mark, self._written.get(group)]
            )
            planned.ready, planned.blocks = [group.cache.insert(lookups.transfer)], copy.blocks
            if planned.locations is not None:
                planned.locations = replace(planned.locations, slots=slots)
        self._unmoved.popleft()

    def _write_back(self, work: Work) -> None:
        for lookups in work.item:
            group = lookups.planned.group
            self._written[group] = group.cache.write_back(lookups.transfer, [lookups.trained])
            lookups.planned.group.bound_log()
