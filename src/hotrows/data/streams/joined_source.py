"""JoinedSource: impressions and the labels that come for them later, two sources that are read as one.

What is behind in event time is read first, so that neither is read far ahead: labels until they are newer
than the newest impression, or until there are no more at present.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from hotrows.data.raw.reading import Reading
from hotrows.data.streams.events import LineEvents, RawEvents
from hotrows.data.streams.source import EventSource, open_source
from hotrows.schema import Schema, Sparse, column_of

_NONE = LineEvents("", b"")


@dataclass(frozen=True)
class JoinedEvents:
    """Events of one read. has_all_labels: there were no more labels when the impressions were read."""

    impressions: RawEvents = _NONE
    labels: RawEvents = _NONE
    has_all_labels: bool = False

    def __len__(self) -> int:
        return len(self.impressions) + len(self.labels)


class JoinedSource:
    """Reads impressions and labels.

    join_on: the column that both have. wants_labels: whether labels are behind in event time, as whoever
    decodes events says.

    >>> from pathlib import Path
    >>> from hotrows.data.streams import open_joined
    >>> schema = Schema((Sparse("item"),), label="click", time=hotrows.Time("at"))
    >>> shown, clicks = Path(folder, "shown"), Path(folder, "clicks")
    >>> shown.mkdir(), clicks.mkdir()
    (None, None)
    >>> open_joined(f"folder:{shown}", f"folder:{clicks}", schema, "impression_id").wants_labels
    False
    """

    def __init__(self, impressions: EventSource, labels: EventSource, join_on: str) -> None:
        if impressions.name == labels.name:
            raise ValueError(
                f"impressions and labels are both of {labels.name}: labels are a stream of their own"
            )
        self._impressions, self._labels, self.join_on = impressions, labels, join_on
        self.name = f"{impressions.name} with labels of {labels.name}"
        self.names = impressions.name, labels.name
        self.wants_labels = self._has_ended = False

    @property
    def position(self) -> dict[str, Any]:
        return {"impressions": self._impressions.position, "labels": self._labels.position}

    def seek(self, position: dict[str, Any]) -> None:
        self._impressions.seek(position["impressions"])
        self._labels.seek(position["labels"])

    def read(self, limit: int, wait: float) -> JoinedEvents | None:
        has_all = False
        if self.wants_labels:
            labels = self._labels.read(limit, 0)
            has_all = labels is None or getattr(self._labels, "is_at_end", True)
            if labels is not None and not len(labels) and not has_all:
                labels = self._labels.read(limit, wait)  # a broker has not answered yet
            if labels is not None and (len(labels) or not has_all):
                return JoinedEvents(labels=labels)
        if self._has_ended:
            return None
        impressions = self._impressions.read(limit, wait)
        self._has_ended = impressions is None
        return JoinedEvents(_NONE if impressions is None else impressions, has_all_labels=has_all)

    def read_to(self, position: dict[str, Any], wait: float) -> JoinedEvents | None:
        if not self._labels.has_reached(position["labels"]):
            labels = self._labels.read_to(position["labels"], wait)
            return None if labels is None else JoinedEvents(labels=labels)
        impressions = self._impressions.read_to(position["impressions"], wait)
        return None if impressions is None else JoinedEvents(impressions)

    def has_reached(self, position: dict[str, Any]) -> bool:
        reached = self._impressions.has_reached(position["impressions"])
        return reached and self._labels.has_reached(position["labels"])

    def close(self) -> None:
        self._impressions.close()
        self._labels.close()


def open_joined(
    impressions: EventSource | str, labels: EventSource | str, schema: Schema, join_on: str
) -> JoinedSource:
    """Opens impressions and their labels, each a source or a text that names one. schema: of the data;
    join_on: the column with the id of an impression."""
    if schema.time is None:
        raise ValueError(
            "labels are joined by the time of events: say in the schema which column it is, "
            "time=Time(COLUMN)"
        )
    if isinstance(impressions, str):
        impressions = open_source(impressions, reading_of_impressions(schema, join_on))
    if isinstance(labels, str):
        labels = open_source(labels, reading_of_labels(schema, join_on))
    return JoinedSource(impressions, labels, join_on)


def reading_of_impressions(schema: Schema, join_on: str, threads: int = 1) -> Reading:
    """How impressions are read, whose labels may be absent."""
    optional = tuple(column_of(label) for label in schema.labels)
    return Reading(schema, threads, by=join_on, histories="lines", optional=optional)


def reading_of_labels(schema: Schema, join_on: str, threads: int = 1) -> Reading:
    """How labels are read: an id, a time, and values, which may be absent of a label of 0 or 1."""
    of_labels = {column_of(label) for label in schema.labels}
    bare = dataclasses.replace(
        schema, features=(Sparse(join_on),), shared=(), user=None, histories=(), columns=None
    )
    needed = {join_on} if len(of_labels) > 1 or schema.labels[0].values.binary else {join_on, *of_labels}
    assert schema.time is not None
    optional = set(bare.raw_columns) - needed - {schema.time.column}
    return Reading(bare, threads, by=join_on, histories="lines", optional=tuple(sorted(optional)))
