"""Look ahead: the rows of batches to come are moved into fast memory while earlier ones are trained.

    for batch in lookahead(loader, model):      yields the loader's own batches, in order

The loader is read a few batches ahead, on the caller's thread, so that it and the model draw random
numbers in an order that is always the same. Of each batch the model's forward is run up to its first
lookup, which says the ids; nothing of it is computed. What follows goes on aside:

    plan     distinct rows, their slots, what moves            thread `plan`
    move     missing rows: store -> slots; victims -> buffer   thread `move`
    train    the caller's loop
    write    victims: buffer -> store                          thread `write`

When the loop looks up the ids that were planned, its rows are there, and stay until the next batch is
asked for. Whatever else it looks up is read through the cache while nothing moves: right, and slower.
"""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from hotrows.capture.acceleration import Acceleration, acceleration_of
from hotrows.capture.kept import Keeper, Place
from hotrows.capture.lookup import PLANNING, Asked, Planned, Runs, runs_of
from hotrows.capture.parameter import NO_TORCH_FUNCTION
from hotrows.pipeline.runner import TRAIN, NoMore, Overlapped
from hotrows.pipeline.schedule import Stage, Work
from hotrows.plan import Moves

Inputs = Callable[[Any], Any]
Arguments = tuple[tuple, dict[str, Any]]

_LEARNS_FROM, _MOST_CALLS = 3, 8  # batches, and calls for each, before it gives up
_MOST_UNKNOWN = 32  # lookups, before a look ahead that knows fewer stops
_RUN_AHEAD = 1  # batches planned beyond those that move rows
_NO_ROWS = torch.empty(0, dtype=torch.int64)


def lookahead(
    loader: Iterable, model: nn.Module, inputs: Inputs | None = None, in_flight: int = 4
) -> Lookahead:
    """Goes through a loader, while rows of the batches to come are moved into fast memory.

    model: accelerated with fast_memory, or a module that holds such a one; for any other, this is the
    loader. inputs: what of a batch the model is called with: a tensor, a tuple, or a dictionary of
    arguments by name; None: seen at the first batch. in_flight: how many batches may be on their way.
    """
    if in_flight < 1:
        raise ValueError(f"in_flight must be at least 1, not {in_flight}")
    states = [state for of in model.modules() if (state := acceleration_of(of)) is not None]
    if not states:
        raise ValueError(
            "lookahead takes a model that hotrows.accelerate(model, optimizer, fast_memory=...) has "
            "accelerated; this one is not"
        )
    state = next((of for of in states if of.keepers), states[0])
    return Lookahead(loader, model, state, inputs, in_flight)


class Lookahead:
    """What `lookahead` returns; see there. May be gone through several times, as the loader may."""

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
        keepers = self._state.keepers
        if not keepers or any(keeper.runner is not None for keeper in keepers):
            yield from batches
            return
        if self._inputs is None:
            yield from self._learn(batches)
            if self._inputs is None or any(keeper.runner is not None for keeper in keepers):
                yield from batches
                return
        ids = Ids(self._model, self._state, self._inputs)
        moving = Moving(batches, ids, keepers, self._in_flight)
        try:
            yield from moving
        finally:
            moving.close()

    def _learn(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Hands out a batch or a few, and looks where the model's arguments are in them."""
        failed = 0
        for batch in batches:
            seen = Seen()
            self._state.seen.append(seen)
            try:
                yield batch
            finally:
                self._state.seen.remove(seen)
            try:
                self._inputs = seen.places_in(batch)
            except LookupError as error:
                failed += 1
                if failed == _LEARNS_FROM:
                    self._say_unknown(error)
                    return
            if self._inputs is not None:
                return

    def _say_unknown(self, error: LookupError) -> None:
        warnings.warn(
            f"lookahead cannot tell how a batch becomes the arguments of "
            f"{type(self._model).__name__}: {error}. Rows are not moved ahead; pass inputs=, a "
            f"function from a batch to the arguments of model(...)",
            stacklevel=4,
        )


class Seen:
    """The arguments of a model's calls for one batch, while a look ahead learns how it is called."""

    def __init__(self) -> None:
        self.calls: list[Arguments] = []

    def see(self, args: tuple, kwargs: Mapping[str, Any]) -> None:
        if len(self.calls) < _MOST_CALLS:
            self.calls.append((args, dict(kwargs)))

    def places_in(self, batch: Any) -> Inputs | None:
        """Where the arguments of the first call that takes them from a batch are in it.

        None: there was no call; LookupError: none takes them from there.
        """
        error: LookupError | None = None
        for args, kwargs in self.calls:
            try:
                return places_in(batch, args, kwargs)
            except LookupError as of_call:
                error = error or of_call
        if error is not None:
            raise error
        return None


# ---- which rows a batch will look up


@dataclass
class Coming:
    """What a batch to come looks up of one keeper.

    signature: of each lookup, whose weight and how many ids; ids: [N], of all. place: where the rows
    are, once it is known; None: nowhere, the lookup reads through. is_over: it has been trained.
    """

    keeper: Keeper
    signature: tuple = ()
    ids: Tensor = _NO_ROWS
    asked: list[Asked] | None = None
    runs: Runs | None = None
    moves: Moves | None = None
    place: Place | None = None
    is_over: bool = False

    @property
    def rows(self) -> Tensor:
        return _NO_ROWS if self.runs is None else self.runs.rows

    def is_for(self, asked: Sequence[Asked]) -> bool:
        """Whether these are the lookups that were planned."""
        return (
            self.place is not None
            and self.signature == _signature(asked)
            and torch.equal(self.ids, _ids(asked))
        )


def _signature(asked: Sequence[Asked]) -> tuple:
    return tuple((id(of.weight), of.ids.numel()) for of in asked)


def _ids(asked: Sequence[Asked]) -> Tensor:
    """[N]: the ids of lookups, as a copy."""
    return torch.cat([of.ids.reshape(-1) for of in asked])


class Ids:
    """Asks a model for the ids of a batch."""

    def __init__(self, model: nn.Module, state: Acceleration, inputs: Inputs) -> None:
        self._state, self._inputs = state, inputs
        self._model = next(of for of in model.modules() if of.__dict__.get("_hotrows") is state)
        self.failed = False

    def of(self, batch: Any) -> list[Coming]:
        """What a batch looks up first, of each keeper."""
        comings = [Coming(keeper) for keeper in self._state.keepers]
        planned = None if self.failed else self._ask(batch)
        if planned is not None:
            packs = {of[0].weight.table.keeper: of for of in planned.packs() if _is_kept(of[0])}  # type: ignore[attr-defined]
            for coming in comings:
                asked = packs.get(coming.keeper)
                if asked is not None:
                    coming.signature, coming.ids = _signature(asked), _ids(asked)
                    coming.asked = _with_ids(asked, coming.ids)
        return comings

    def _ask(self, batch: Any) -> Planned | None:
        random = torch.get_rng_state()
        buffers = [(of, of.clone()) for of in self._model.buffers()]
        PLANNING.is_on = True
        try:
            args, kwargs = _arguments(self._inputs(batch))
            self._state.forward(self._model, args, kwargs)
        except Planned as planned:
            return planned
        except Exception as error:
            self.failed = True
            warnings.warn(
                f"lookahead could not ask {type(self._model).__name__} for the ids of a batch "
                f"({type(error).__name__}: {error}); rows are no longer moved ahead. Does inputs= give "
                f"the arguments of model(...)?",
                stacklevel=2,
            )
        finally:
            PLANNING.is_on = False
            torch.set_rng_state(random)
            with torch.no_grad():
                for of, before in buffers:
                    if not torch.equal(of, before):
                        of.copy_(before)
        return None


def _is_kept(asked: Asked) -> bool:
    with NO_TORCH_FUNCTION():
        table = getattr(asked.weight, "table", None)
        return table is not None and table.keeper is not None


def _with_ids(asked: Sequence[Asked], ids: Tensor) -> list[Asked]:
    """The same lookups on a copy of their ids; what else they hold is read when they are made."""
    parts = ids.split([of.ids.numel() for of in asked])
    return [
        Asked(of.lookup, of.weight, ids, None, None) for of, ids in zip(asked, parts, strict=True)
    ]


@dataclass(frozen=True)
class Given:
    """Arguments of a model."""

    args: tuple
    kwargs: dict[str, Any]


def _arguments(given: Any) -> Arguments:
    if isinstance(given, Given):
        return given.args, given.kwargs
    if isinstance(given, Mapping):
        return (), dict(given)
    return (tuple(given), {}) if isinstance(given, tuple) else ((given,), {})


# ---- moving


class Moving:
    """The pipeline of one pass through a loader: iterate over it, then `close` it."""

    def __init__(
        self, batches: Iterator[Any], ids: Ids, keepers: Sequence[Keeper], in_flight: int
    ) -> None:
        self._batches, self._ids, self._keepers = batches, ids, keepers
        self._window = in_flight
        # With so many beyond those trained, planning on its thread never waits for another one.
        self._depth = in_flight + _RUN_AHEAD + self._window
        for keeper in keepers:
            keeper.fit(in_flight)
        self._known_before = self._counts()
        self._bases = [keeper.slots.taken for keeper in keepers]
        self._asked: deque[_Batch | None] = deque()  # None: the loader has no more
        self._to_give: deque[Any] = deque()
        self._fed: deque[_Batch] = deque()
        self._unmoved: deque[_Batch] = deque()
        self._num_fed = self._num_asked = self._num_handed = 0
        self._all_asked = self._all_fed = self._closed = False
        self._handed: _Batch | None = None
        self._failed: BaseException | None = None
        self._of_loader: BaseException | None = None
        self._ask()
        self._runner = Overlapped(self._stages(), run_ahead=_RUN_AHEAD)
        for keeper in keepers:
            keeper.begin(self._runner)

    def __iter__(self) -> Iterator[Any]:
        while True:
            self._let_go()
            self._ask()
            try:
                work = next(self._runner)
            except StopIteration:
                if self._of_loader is not None:
                    raise self._of_loader from None
                return
            self._handed = work.batch
            self._num_handed += 1
            for coming in work.batch.comings:
                coming.keeper.handed = coming
            yield self._to_give.popleft()
            if self._is_in_the_way():
                self.close()
                yield from self._in_line()
                return

    def _in_line(self) -> Iterator[Any]:
        """The rest of the loader, without looking ahead."""
        while self._to_give:
            yield self._to_give.popleft()
        if self._of_loader is not None:
            raise self._of_loader
        if not self._all_asked:
            yield from self._batches

    def _is_in_the_way(self) -> bool:
        """Whether most lookups are others than those known ahead, and wait for rows to rest."""
        known, unknown = (
            now - before for now, before in zip(self._counts(), self._known_before, strict=True)
        )
        if self._ids.failed:  # and it was said
            return True
        if unknown <= max(known, _MOST_UNKNOWN):
            return False
        warnings.warn(
            "most lookups of this model are made after its first ones, or not with the ids of the "
            "batch, so lookahead does not know them; it stops, and training waits for its rows. "
            "hotrows.explain(model, *example) says what keeps lookups from being made together",
            stacklevel=4,
        )
        return True

    def _counts(self) -> tuple[int, int]:
        """How many lookups were known ahead, and how many were not."""
        return (
            sum(keeper.counts["ahead"] for keeper in self._keepers),
            sum(keeper.num_unplanned for keeper in self._keepers),
        )

    def close(self) -> None:
        """Ends the threads; what was planned is moved all the same, so that caches agree with maps."""
        if self._closed:
            return
        self._closed = True
        self._let_go()
        self._runner.close()
        for keeper in self._keepers:
            keeper.runner = None
        if self._failed is not None:
            for keeper in self._keepers:
                keeper.broke(self._failed)
            return
        for keeper in self._keepers:
            keeper.cache.settle()
        for batch in self._unmoved:
            for coming in batch.comings:
                assert coming.moves is not None
                coming.keeper.move(coming.moves)
        for keeper in self._keepers:
            keeper.slots.end()
        for batch in self._fed:
            for coming in batch.comings:
                coming.keeper.move(coming.keeper.slots.take(coming.rows).moves)

    def _let_go(self) -> None:
        """The batch handed out has been trained: its rows may leave."""
        if self._handed is not None:
            for coming in self._handed.comings:
                coming.is_over, coming.keeper.handed = True, None
            self._handed = None

    def _ask(self) -> None:
        """Reads the loader ahead."""
        while not self._all_asked and self._num_asked < self._num_handed + self._depth:
            try:
                given = next(self._batches)
            except BaseException as error:  # in its place, after the batches before it
                self._of_loader = None if isinstance(error, StopIteration) else error
                self._all_asked = True
                self._asked.append(None)
                return
            self._to_give.append(given)
            self._asked.append(_Batch(self._ids.of(given)))
            self._num_asked += 1

    # ---- stages

    def _stages(self) -> list[Stage]:
        return [
            Stage("plan", "plan", run=self._noting(self._plan)),
            Stage("move", "move", enters=True, run=self._noting(self._move)),
            Stage(TRAIN, TRAIN),
            Stage("write back", "write", run=self._noting(self._write_back)),
        ]

    def _noting(self, run: Callable[[Work], None]) -> Callable[[Work], None]:
        def noting(work: Work) -> None:
            try:
                run(work)
            except NoMore:
                raise
            except BaseException as error:
                self._failed = self._failed or error
                raise

        return noting

    def _plan(self, work: Work) -> None:
        while not self._all_fed and self._num_fed <= work.number + self._window:
            self._feed()
        if not self._fed:
            raise NoMore
        batch = self._fed.popleft()
        waits_for = -1
        for coming, base in zip(batch.comings, self._bases, strict=True):
            taken = coming.keeper.slots.take(coming.rows)
            coming.moves = taken.moves
            waits_for = max(waits_for, taken.waits_for - base)
            if coming.runs is not None and not taken.moves.passes_through:
                coming.place = Place(
                    coming.keeper, coming.rows, taken.slots, coming.keeper.arena, coming=coming
                )
        self._unmoved.append(batch)
        work.batch, work.waits_for = batch, waits_for

    def _feed(self) -> None:
        batch = self._asked.popleft()
        if batch is None:
            self._all_fed = True
            for keeper in self._keepers:
                keeper.slots.end()
            return
        self._num_fed += 1
        for coming in batch.comings:
            if coming.asked is not None:
                with suppress(IndexError):  # ids outside of their table: the loop will be told
                    coming.runs = runs_of(coming.asked)
                coming.asked = None
            coming.keeper.slots.feed(coming.rows)
        self._fed.append(batch)

    def _move(self, work: Work) -> None:
        work.transits = []
        for coming in work.batch.comings:
            cache = coming.keeper.cache
            transit = cache.collect(coming.moves)
            cache.insert(coming.moves, transit)
            work.transits.append(transit)
        self._unmoved.popleft()

    def _write_back(self, work: Work) -> None:
        for coming, transit in zip(work.batch.comings, work.transits, strict=True):
            coming.keeper.cache.write_back(transit)
            coming.keeper.tidy()


@dataclass
class _Batch:
    """What a batch of the loader looks up."""

    comings: list[Coming] = field(default_factory=list)


# ---- where a model's arguments are in a batch

_CONSTANTS = (type(None), bool, int, float, str)
_Path = tuple[Any, ...]


def places_in(batch: Any, args: tuple, kwargs: Mapping[str, Any]) -> Inputs:
    """The function that finds arguments like these in batches like this one; LookupError: none does."""
    known = _Known(batch)
    positional = [known.find(value, f"argument {i + 1}") for i, value in enumerate(args)]
    named = {name: known.find(value, f"argument {name!r}") for name, value in kwargs.items()}

    def inputs(batch: Any) -> Any:
        return Given(
            tuple(find(batch) for find in positional),
            {name: find(batch) for name, find in named.items()},
        )

    return inputs


class _Known:
    """Everything in a batch, by identity and, for tensors, by the memory that they show."""

    def __init__(self, batch: Any) -> None:
        self._by_id: dict[int, _Path] = {}
        self._by_memory: dict[tuple, _Path] = {}
        self._note(batch, ())

    def _note(self, value: Any, path: _Path) -> None:
        if isinstance(value, _CONSTANTS):
            return
        self._by_id.setdefault(id(value), path)
        if isinstance(value, Tensor):
            self._by_memory.setdefault(_memory(value), path)
        elif isinstance(value, Mapping):
            for key, each in value.items():
                self._note(each, (*path, key))
        elif isinstance(value, list | tuple):
            for i, each in enumerate(value):
                self._note(each, (*path, i))

    def find(self, value: Any, name: str) -> Callable[[Any], Any]:
        if isinstance(value, _CONSTANTS):
            return lambda batch: value
        path = self._by_id.get(id(value))
        if path is None and isinstance(value, Tensor):
            path = self._by_memory.get(_memory(value))
        if path is not None:
            return lambda batch: _at(batch, path)
        if isinstance(value, dict):
            found = {key: self.find(each, f"{name}[{key!r}]") for key, each in value.items()}
            return lambda batch: {key: find(batch) for key, find in found.items()}
        if type(value) in (list, tuple):
            each = [self.find(each, f"{name}[{i}]") for i, each in enumerate(value)]
            return lambda batch: type(value)(find(batch) for find in each)
        raise LookupError(f"{name} is not in the batch as the loader gave it")


def _memory(tensor: Tensor) -> tuple:
    return (
        tensor.untyped_storage().data_ptr(), tensor.storage_offset(), tuple(tensor.shape),
        tensor.stride(), tensor.dtype,
    )  # fmt: skip


def _at(batch: Any, path: _Path) -> Any:
    for key in path:
        batch = batch[key]
    return batch
