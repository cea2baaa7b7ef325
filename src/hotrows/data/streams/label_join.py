"""LabelJoin: impressions that are held for labels which come later, joined by an id.

    add        encoded impressions, each with its id and its time
    label      labels by id: of an impression that is held, or of one that is still to come
    advance    event time: what is due until then becomes ready, in the order of time
    take       samples that are ready, as rows with their labels

By `wait` an impression becomes one sample: at the time of its label, or at the end of the window with
the label that it has itself, or 0. By `weight` it becomes one at once, and a second one at the time of a
label above 0. Among equal times impressions keep their order, so that samples follow from events alone.

A value that a batch or a checkpoint has is never changed: what a join holds is `HeldImpressions`.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from hotrows.data.columns.label import missing_labels
from hotrows.data.rows import Room, Rows, gathered
from hotrows.data.streams.state import LabelState
from hotrows.runtime.units import format_bytes

IDS, TIMES = "joined_ids", "joined_times"  # sections of impressions
_NEVER = np.iinfo(np.int64).max
_BITS = 24  # of the place of an impression among those that were added with it
_PIECE = 4096  # impressions of a checkpoint that are held together


@dataclass(frozen=True, eq=False)
class Labels:
    """Labels by id: ids, times [n] int64, values [n, T] float32, NaN where one says none."""

    ids: np.ndarray
    times: np.ndarray
    values: np.ndarray

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, chosen: np.ndarray) -> Labels:
        return Labels(self.ids[chosen], self.times[chosen], self.values[chosen])

    @staticmethod
    def joined(*parts: Labels) -> Labels:
        pairs = zip(*(vars(part).values() for part in parts), strict=True)
        return Labels(*map(np.concatenate, pairs))


@dataclass(frozen=True, eq=False)
class _Piece:
    """Impressions that were added together.

    rows: None once no sample is made of them any more. due [n]: when a sample of each is, or never;
    labels: what is known of each; trained [n]: whether it was a sample.
    """

    rows: Rows | None
    due: np.ndarray
    trained: np.ndarray
    labels: Labels  # their times are those of the impressions
    label_times: np.ndarray
    last: int  # the time of the newest one


@dataclass(frozen=True, eq=False)
class HeldImpressions:
    """What a join holds. ready: samples to take; waiting: labels whose impression did not come yet."""

    pieces: tuple[_Piece, ...] = ()
    ready: tuple[Rows, ...] = ()
    waiting: Labels | None = None

    @property
    def num_untrained(self) -> int:
        """How many impressions are no samples yet."""
        waiting = [int((~piece.trained).sum()) for piece in self.pieces if piece.rows is not None]
        return sum(waiting) + sum(map(len, self.ready))

    def arrays(self) -> dict[str, np.ndarray]:
        """All of it by name, for a checkpoint."""
        arrays = {} if self.waiting is None else _named("waiting", vars(self.waiting))
        if rows := [piece for piece in self.ready if len(piece)]:
            arrays |= _arrays_of("ready", rows)
        for name, wanted in (("past", False), ("held", True)):
            pieces = [piece for piece in self.pieces if (piece.rows is not None) is wanted]
            if not pieces:
                continue
            parts = [
                {"due": p.due, "trained": p.trained, "label_times": p.label_times, **vars(p.labels)}
                for p in pieces
            ]
            columns = {key: np.concatenate([one[key] for one in parts]) for key in parts[0]}
            arrays |= _named(name, columns)
            arrays |= _arrays_of(name, [p.rows for p in pieces if p.rows is not None]) if wanted else {}
        return arrays

    @staticmethod
    def of_arrays(arrays: Mapping[str, np.ndarray]) -> HeldImpressions:
        """What `arrays` were made of."""
        waiting = _part(arrays, "waiting")
        ready, pieces = _rows_of(arrays, "ready"), []
        for name in ("past", "held"):
            columns, rows = _part(arrays, name), _rows_of(arrays, name)
            size = len(columns.get("ids", ()))
            for first in range(0, size, _PIECE):
                span = slice(first, min(first + _PIECE, size))
                labels = Labels(*(columns[key][span] for key in ("ids", "times", "values")))
                some = None if rows is None else rows.take(np.arange(span.start, span.stop))
                due, trained, label_times = (columns[k][span] for k in ("due", "trained", "label_times"))
                pieces.append(_Piece(some, due, trained, labels, label_times, int(labels.times.max())))
        known = Labels(*(waiting[key] for key in ("ids", "times", "values"))) if waiting else None
        return HeldImpressions(tuple(pieces), () if ready is None else (ready,), known)


class LabelJoin:
    """Joins labels to impressions.

    window: seconds of event time in which a label counts. weights: whether impressions are samples at
    once. memory: bytes that impressions may take. state, held: of an earlier process.
    """

    def __init__(
        self, window: int, weights: bool, memory: int, state: LabelState, held: HeldImpressions
    ) -> None:
        self._window, self._weights, self._memory = window, weights, memory
        self.state = state
        self._pieces: dict[int, _Piece] = {}
        self._index: dict[int, int] = {}  # of an id, number of the piece and place in it
        self._due: list[tuple[int, int]] = []  # a heap: when a piece has something due
        self._open: deque[int] = deque()  # pieces that still have rows
        self._ready, self._waiting = deque(held.ready), held.waiting
        self._next = self._bytes = 0
        for piece in held.pieces:
            self._append(piece)

    @property
    def held(self) -> HeldImpressions:
        return HeldImpressions(tuple(self._pieces.values()), tuple(self._ready), self._waiting)

    @property
    def _until(self) -> int:
        return -_NEVER if self.state.until is None else self.state.until

    def add(self, rows: Rows, num_labels: int) -> None:
        """Adds impressions in order."""
        ids, times = rows.arrays[IDS], rows.arrays[TIMES]
        values = np.full((len(rows), num_labels), np.nan, np.float32)
        due = times if self._weights else times + self._window
        labels = Labels(ids, times, values)
        piece = _Piece(rows, due, np.zeros(len(rows), bool), labels, times, int(times.max()))
        before = len(self._index)
        self._append(piece)
        self._count(repeated=len(rows) - (len(self._index) - before))
        if self._bytes > self._memory:
            num = sum(len(self._pieces[number].due) for number in self._open)
            raise ValueError(
                f"{num:,} impressions are held for their labels and take "
                f"{format_bytes(self._bytes)}, more than label_memory={format_bytes(self._memory)}: "
                f"shorten label_window, or raise label_memory (--label-memory)"
            )
        if self._waiting is not None and (matches := np.isin(self._waiting.ids, ids)).any():
            labels, self._waiting = self._waiting[matches], self._waiting[~matches]
            self.label(labels)

    def label(self, labels: Labels) -> None:
        """Takes labels in order; of several of one id each in turn."""
        index = self._index
        places = np.array([index.get(id_, -1) for id_ in labels.ids.tolist()], np.int64)
        if (unknown := places < 0).any():
            early = [labels[unknown]] if self._waiting is None else [self._waiting, labels[unknown]]
            self._waiting = Labels.joined(*early)
        left = np.flatnonzero(~unknown)
        while len(left):
            first = np.sort(np.unique(places[left], return_index=True)[1])
            numbers = places[left[first]] >> _BITS
            for number in np.unique(numbers).tolist():
                chosen = left[first[numbers == number]]
                self._label(number, places[chosen] & ((1 << _BITS) - 1), labels[chosen])
            left = np.delete(left, first)

    def advance(self, until: int) -> None:
        """Lets event time come to `until`: what is due becomes ready, and what is over is forgotten."""
        if until < self._until:
            return
        self.state = replace(self.state, until=until)
        due = []
        while self._due and self._due[0][0] <= until:
            number = heapq.heappop(self._due)[1]
            if number in self._pieces:
                due += self._due_of(number, until)
        if due:
            self._ready.append(self._samples(due))
        self._forget(until)

    def take(self, limit: int) -> list[Rows]:
        """The next samples, `limit` at most."""
        taken: list[Rows] = []
        while limit and self._ready:
            rows = self._ready.popleft()
            if len(rows) > limit:
                self._ready.appendleft(rows[limit:])
                rows = rows[:limit]
            taken.append(rows)
            limit -= len(rows)
        self._count(released=sum(map(len, taken)))
        return taken

    def _append(self, piece: _Piece) -> None:
        number, self._next = self._next, self._next + 1
        first = number << _BITS
        self._index.update(
            zip(piece.labels.ids.tolist(), range(first, first + len(piece.due)), strict=True)
        )
        self._pieces[number] = piece
        heapq.heappush(self._due, (int(piece.due.min()), number))
        if piece.rows is not None:
            self._open.append(number)
            self._bytes += _size(piece.rows)

    def _label(self, number: int, places: np.ndarray, labels: Labels) -> None:
        """Joins labels to different impressions of a piece."""
        piece = self._pieces[number]
        known, values = piece.labels.values[places], labels.values
        ends = piece.labels.times[places] + self._window
        is_gone = ends + self._window < np.maximum(labels.times, self._until)
        is_new = (np.isnan(known) & ~np.isnan(values)).any(1) & ~is_gone
        is_open = ends >= self._until if self._weights else ~piece.trained[places]
        joins = is_new & is_open & (labels.times <= ends)
        self._count(
            joined=int(joins.sum()),
            late=int((is_new & ~joins).sum()),
            duplicates=int((~is_new & ~is_gone).sum()),
            unmatched=int(is_gone.sum()),
        )
        places, known, values = places[joins], known[joins], values[joins]
        if not len(places):
            return
        now, times = np.where(np.isnan(known), values, known), labels.times[joins]
        times = np.maximum(times, piece.labels.times[places])
        all_values, due, label_times = (
            a.copy() for a in (piece.labels.values, piece.due, piece.label_times)
        )
        all_values[places], label_times[places] = now, times
        is_due = piece.trained[places] & (now > 0).any(1) if self._weights else ~np.isnan(now).any(1)
        due[places[is_due]] = times[is_due]
        all_labels = replace(piece.labels, values=all_values)
        self._pieces[number] = replace(piece, labels=all_labels, due=due, label_times=label_times)
        if is_due.any():
            heapq.heappush(self._due, (int(times[is_due].min()), number))

    def _due_of(self, number: int, until: int) -> list[tuple[np.ndarray, ...]]:
        """Takes what is due of a piece: number, places, times, and whether each is a second sample."""
        piece = self._pieces[number]
        places = np.flatnonzero(piece.due <= until)
        if not len(places):
            return []
        second, times = piece.trained[places], piece.due[places]
        due, trained = piece.due.copy(), piece.trained.copy()
        due[places], trained[places] = _NEVER, True
        if self._weights:  # labels that came before their impression was a sample
            again = places[~second & (piece.labels.values[places, 0] > 0)]
            due[again] = piece.label_times[again]
        self._pieces[number] = replace(piece, due=due, trained=trained)
        if (least := int(due.min())) < _NEVER:
            heapq.heappush(self._due, (least, number))
        return [(np.full(len(places), number), places, times, second)]

    def _samples(self, due: Sequence[tuple[np.ndarray, ...]]) -> Rows:
        """The samples of impressions that are due, in order."""
        numbers, places, times, second = (np.concatenate(column) for column in zip(*due, strict=True))
        order = np.lexsort((second, places, numbers, times))
        chosen, of_piece = np.unique(numbers, return_inverse=True)
        pieces = [self._pieces[number] for number in chosen.tolist()]
        firsts = np.cumsum([0, *(len(piece.due) for piece in pieces)])[of_piece]
        samples = gathered(
            [p.rows for p in pieces if p.rows is not None], (firsts + places)[order], Room()
        )
        values = np.concatenate([piece.labels.values for piece in pieces])[(firsts + places)[order]]
        counts = ~np.isnan(values) & (second[order, None] | (not self._weights))
        labels = samples.arrays["labels"]  # that impressions have themselves
        labels = np.where(missing_labels(labels), 0, labels).astype(labels.dtype)
        known = np.where(counts, values, labels.reshape(values.shape)).astype(labels.dtype)
        return samples.with_arrays({"labels": known.reshape(labels.shape)}, {})

    def _forget(self, until: int) -> None:
        """Drops rows whose window is over, ids a window later, and labels that no impression came for."""
        while self._open and self._pieces[self._open[0]].last + self._window < until:
            number = self._open.popleft()
            piece = self._pieces[number]
            assert piece.rows is not None
            self._bytes -= _size(piece.rows)
            self._pieces[number] = replace(piece, rows=None)
        while self._pieces:
            number, piece = next(iter(self._pieces.items()))
            if piece.rows is not None or piece.last + 2 * self._window >= until:
                break
            del self._pieces[number]
            for id_ in piece.labels.ids.tolist():
                if self._index.get(id_, -1) >> _BITS == number:
                    del self._index[id_]
        if self._waiting is not None and (over := self._waiting.times < until).any():
            self._waiting = self._waiting[~over]
            self._count(unmatched=int(over.sum()))

    def _count(self, **more: int) -> None:
        changed = {name: getattr(self.state, name) + num for name, num in more.items() if num}
        self.state = replace(self.state, **changed) if changed else self.state


def _size(rows: Rows) -> int:
    return sum(array.nbytes for array in (*rows.arrays.values(), *rows.bounds.values()))


def _named(prefix: str, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {f"{prefix}.{name}": array for name, array in arrays.items()}


def _part(arrays: Mapping[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    names = {name: name.partition(".") for name in arrays}
    return {after: arrays[name] for name, (first, _, after) in names.items() if first == prefix}


def _arrays_of(prefix: str, pieces: Sequence[Rows]) -> dict[str, np.ndarray]:
    """Rows as arrays, from which `_rows_of` makes them again."""
    rows = gathered(pieces, np.arange(sum(map(len, pieces))), Room())
    return _named(f"{prefix}_arrays", rows.arrays) | _named(f"{prefix}_bounds", rows.bounds)


def _rows_of(arrays: Mapping[str, np.ndarray], prefix: str) -> Rows | None:
    columns, bounds = _part(arrays, f"{prefix}_arrays"), _part(arrays, f"{prefix}_bounds")
    return Rows(len(columns[IDS]), columns, bounds) if columns else None
