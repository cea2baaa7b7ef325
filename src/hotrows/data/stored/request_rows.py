"""Rows of requests: what rows of a request share is there once.

    rows                  0 1 2 | 3 4              requests 2, starts 0 3 5
    item, of every row    7 8 9 | 4 7
    user, of a request    5     | 6

Consecutive rows are of one request where they say so and all that is shared is equal: whatever is written
so can be expanded into what it was.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from hotrows.data.stored.rows import Room, Rows, gathered
from hotrows.schema import IdFeature, Schema


@dataclass(frozen=True)
class Division:
    """Which columns are of every row, and which of a request: positions among those of a schema; weights
    of ids are behind the ids."""

    samples: tuple[int, ...]
    shared: tuple[int, ...]
    sample_dense: tuple[int, ...]
    shared_dense: tuple[int, ...]


@lru_cache(maxsize=64)
def division_of(schema: Schema) -> Division:
    shared = set(schema.shared)

    def places(features: Sequence, of_requests: bool) -> tuple[int, ...]:
        return tuple(place for place, f in enumerate(features) if (f.name in shared) == of_requests)

    ids, dense = (*schema.id_features, *schema.weighted), schema.dense
    return Division(places(ids, False), places(ids, True), places(dense, False), places(dense, True))


def id_features(schema: Schema, of_requests: bool) -> tuple[IdFeature, ...]:
    """The features with ids that are of requests, or of every row."""
    shared = set(schema.shared)
    return tuple(f for f in schema.id_features if (f.name in shared) == of_requests)


@dataclass(frozen=True)
class RequestRows:
    """Rows of R requests.

    samples: every row, with the features that are not shared, and with groups where these are no
    requests; shared: a row of each request, with the shared features; its labels say nothing, and
    `requests` are the numbers by which rows say of which request they are. starts: [R + 1] integers.
    """

    schema: Schema
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
        return RequestRows(self.schema, self.samples[first:end], self.shared[low:high], starts)

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
        if self.samples.groups is not None:
            return self.samples.groups
        return None if self.shared.requests is None else self.shared.requests[self.request]

    @property
    def dense(self) -> np.ndarray:
        """The single numbers of all rows, shared ones too, copied."""
        division = division_of(self.schema)
        dense = np.empty((len(self), len(self.schema.dense)), np.float32)
        dense[:, division.sample_dense] = self.samples.dense
        if division.shared_dense:
            dense[:, division.shared_dense] = self.shared.dense[self.request]
        return dense

    def expanded(self) -> Rows:
        """Copies the rows with all their features."""
        division, repeated = division_of(self.schema), self.shared.take(self.request)
        ids, offsets = [*self.samples.ids, *repeated.ids], [*self.samples.offsets, *repeated.offsets]
        order = np.argsort((*division.samples, *division.shared))
        return replace(
            self.samples,
            ids=tuple(ids[place] for place in order),
            offsets=tuple(offsets[place] for place in order),
            dense=self.dense,
            groups=repeated.requests if self.samples.groups is None else self.samples.groups,
            requests=repeated.requests,
        )


def packed(rows: Rows, schema: Schema) -> RequestRows:
    """Finds the requests of rows, and keeps once what they share."""
    assert rows.requests is not None
    division, same = division_of(schema), rows.requests[1:] == rows.requests[:-1]
    for differs in differences(rows, schema).values():
        same = same & ~differs
    firsts = np.flatnonzero(np.concatenate([np.ones(min(len(rows), 1), bool), ~same]))
    samples = replace(
        rows,
        ids=tuple(rows.ids[f] for f in division.samples),
        offsets=tuple(rows.offsets[f] for f in division.samples),
        dense=rows.dense[:, division.sample_dense],
        groups=None if schema.group is None else rows.groups,
        requests=None,
    )
    shared = Rows(
        ids=tuple(rows.ids[f] for f in division.shared),
        offsets=tuple(rows.offsets[f] for f in division.shared),
        dense=rows.dense[:, division.shared_dense],
        labels=no_labels_of(len(rows)),
        requests=rows.requests,
    )
    return RequestRows(schema, samples, shared.take(firsts), np.append(firsts, len(rows)))


def no_labels_of(num_rows: int) -> np.ndarray:
    """Labels for requests, which have none; they take no memory."""
    return np.broadcast_to(np.uint8(0), (num_rows,))


def differences(rows: Rows, schema: Schema) -> dict[str, np.ndarray]:
    """By shared feature, whether it differs between a row and the one before: [rows - 1] bool."""
    division = division_of(schema)
    differing: dict[str, np.ndarray] = {}
    columns = (*schema.id_features, *schema.weighted)
    for f in division.shared:
        bounds, ids = rows.offsets[f], rows.values(f)
        differs = ids[1:] != ids[:-1] if bounds is None else _lists_differ(ids, bounds)
        name = columns[f].name
        differing[name] = differs | differing.get(name, False)
    for f in division.shared_dense:
        column = rows.dense[:, f]
        differing[schema.dense[f].name] = column[1:] != column[:-1]
    return differing


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
    return RequestRows(pieces[0].schema, samples, shared, np.append(starts, len(order)))


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
