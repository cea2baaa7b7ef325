"""Rows of requests: what rows of a request share is there once.

    rows                  0 1 2 | 3 4              requests 2, starts 0 3 5
    item, of every row    7 8 9 | 4 7
    user, of a request    5     | 6

Consecutive rows are of one request where they say so and all that is shared is equal: whatever is written
so can be expanded into what it was.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from hotrows.data.rows import Room, Rows, Section, gathered


@dataclass(frozen=True)
class Division:
    """Which sections are of every row, and which of a request; of `dense`, which places."""

    sections: tuple[Section, ...]

    def of_samples(self, rows: Rows) -> Rows:
        return self._part(rows, False)

    def of_requests(self, rows: Rows) -> Rows:
        """What is shared, of rows as if each were a request."""
        return self._part(rows, True)

    def _part(self, rows: Rows, shared: bool) -> Rows:
        arrays = {s.name: rows.arrays[s.name] for s in self.sections if s.shared == shared}
        for section in self.wide:
            arrays[section.name] = rows.arrays[section.name][:, places_of(section, shared)]
        owners = {name.partition("/")[2] for name in arrays}
        return Rows(len(rows), arrays, {n: b for n, b in rows.bounds.items() if n in owners})

    def joined(self, samples: Rows, repeated: Rows) -> Rows:
        """Rows with all their sections. repeated: what each shares with its request."""
        wide = {}
        for section in self.wide:
            parts = samples.arrays[section.name], repeated.arrays[section.name]
            values = np.empty(section.shape(len(samples)), section.dtype)
            for part, shared in zip(parts, (False, True), strict=True):
                values[:, places_of(section, shared)] = part
            wide[section.name] = values
        return samples.with_arrays({**repeated.arrays, **wide}, repeated.bounds)

    @property
    def wide(self) -> list[Section]:
        """The sections of which some places may be shared."""
        return [section for section in self.sections if section.names is not None]

    def differences(self, rows: Rows) -> dict[str, np.ndarray]:
        """By shared feature, whether it differs between a row and the one before: [rows - 1] bool."""
        differing: dict[str, np.ndarray] = {}
        for section in self.sections:
            if section.shared and "/" in section.name:
                bounds, values = rows.bounds_of(section.name), rows.values(section.name)
                differs = values[1:] != values[:-1] if bounds is None else _lists_differ(values, bounds)
                differing[section.owner] = differs | differing.get(section.owner, False)
            for place in section.shared_places:
                assert section.names is not None
                column = rows.arrays[section.name][:, place]
                differing[section.names[place]] = column[1:] != column[:-1]
        return differing


def places_of(section: Section, shared: bool) -> list[int]:
    """The places of a wide section that are shared, or all others."""
    return [place for place in range(section.width or 0) if (place in section.shared_places) == shared]


@dataclass(frozen=True)
class RequestRows:
    """Rows of R requests.

    samples: every row, with the sections that are not shared; shared: a row of each request, with the
    others, and with `requests`, the numbers by which rows say of which request they are. starts: [R + 1]
    integers.
    """

    division: Division
    samples: Rows
    shared: Rows
    starts: np.ndarray

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, chosen: slice) -> RequestRows:
        """Returns consecutive rows without a copy; a request that is cut stays with both parts."""
        first, end, _ = chosen.indices(len(self))
        low = int(np.searchsorted(self.starts, first, side="right")) - 1
        high = int(np.searchsorted(self.starts, end)) if first < end else low
        starts = np.clip(self.starts[low : high + 1].astype(np.int64), first, max(first, end)) - first
        return RequestRows(self.division, self.samples[first:end], self.shared[low:high], starts)

    def take(self, order: np.ndarray) -> RequestRows:
        """Copies the rows `order` [n]; neighbours of a request stay one."""
        return gathered_requests([self], order, (Room(), Room()))

    @property
    def request(self) -> np.ndarray:
        """The number of the request of each row: [rows] int64."""
        starts = self.starts.astype(np.int64)
        return np.repeat(np.arange(len(self.shared)), starts[1:] - starts[:-1])

    @property
    def groups(self) -> np.ndarray | None:
        """[rows] int64: the group of each row, by default its request."""
        if (groups := self.samples.get("groups")) is not None:
            return groups
        requests = self.shared.get("requests")
        return None if requests is None else requests[self.request]

    def with_wide(self) -> Rows:
        """The samples with all places of wide sections, copied, and with the groups that they have."""
        wide = Rows(len(self), {s.name: self.shared.arrays[s.name] for s in self.division.wide}, {})
        groups = self.groups
        samples = self.samples if groups is None else self.samples.with_arrays({"groups": groups}, {})
        return self.division.joined(samples, wide.take(self.request))

    def expanded(self) -> Rows:
        """Copies the rows with all their features."""
        return self.division.joined(self.samples, self.shared.take(self.request))


def packed(rows: Rows, division: Division) -> RequestRows:
    """Finds the requests of rows, and keeps once what they share."""
    requests = rows.arrays["requests"]
    same = requests[1:] == requests[:-1]
    for differs in division.differences(rows).values():
        same = same & ~differs
    firsts = np.flatnonzero(np.concatenate([np.ones(min(len(rows), 1), bool), ~same]))
    samples, shared = division.of_samples(rows), division.of_requests(rows)
    return RequestRows(division, samples, shared.take(firsts), np.append(firsts, len(rows)))


def _lists_differ(ids: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """True if each list but the first is another than the one before: [rows - 1] bool."""
    lengths = offsets[1:].astype(np.int64) - offsets[:-1]
    differs = lengths[1:] != lengths[:-1]
    of_element = np.repeat(np.arange(len(lengths)), lengths)
    before = np.arange(len(ids)) - lengths[of_element]  # where lengths are equal, its place before
    wrong = ids != ids[np.maximum(before, 0)]
    differs |= np.bincount(of_element, weights=wrong, minlength=len(lengths))[1:] > 0
    return differs


def gathered_requests(
    pieces: Sequence[RequestRows], order: np.ndarray, rooms: tuple[Room, Room]
) -> RequestRows:
    """Copies the rows `order` [n] of one or more pieces, counted through all of them, into rooms for rows
    and for requests. Neighbours of a request are one request."""
    request = numbered(pieces)[order]
    starts = np.flatnonzero(
        np.concatenate([np.ones(min(len(order), 1), bool), request[1:] != request[:-1]])
    )
    samples = gathered([piece.samples for piece in pieces], order, rooms[0])
    shared = gathered([piece.shared for piece in pieces], request[starts], rooms[1])
    return RequestRows(pieces[0].division, samples, shared, np.append(starts, len(order)))


def numbered(pieces: Sequence[RequestRows]) -> np.ndarray:
    """The request of each row of some pieces, both counted through all of them: [rows] int64."""
    firsts = np.cumsum([0, *(len(piece.shared) for piece in pieces)])
    return np.concatenate([piece.request + first for piece, first in zip(pieces, firsts, strict=False)])


def gathered_pieces(
    pieces: Sequence[Rows | RequestRows], order: np.ndarray, rooms: tuple[Room, Room]
) -> Rows | RequestRows:
    """Copies the rows `order` [n] of one or more pieces of one kind; see `gathered`."""
    of_requests = [piece for piece in pieces if isinstance(piece, RequestRows)]
    if of_requests:
        return gathered_requests(of_requests, order, rooms)
    return gathered([piece for piece in pieces if isinstance(piece, Rows)], order, rooms[0])


def bounds_between(starts: Iterator[np.ndarray], block_rows: int) -> list[int]:
    """Bounds of blocks of about `block_rows` rows that cut no request. starts: of each shard."""
    bounds, first = [0], 0
    for of_shard in starts:
        rows = int(of_shard[-1])
        wanted = np.arange(block_rows, rows, block_rows)
        inside = of_shard[np.searchsorted(of_shard, wanted)].astype(np.int64)
        bounds += [first + bound for bound in np.unique(inside).tolist() if 0 < bound < rows]
        first += rows
        bounds += [first] if rows else []
    return bounds
