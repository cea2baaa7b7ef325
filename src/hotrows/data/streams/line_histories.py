"""LineHistories: the lines of a stream get the histories of their users, and are events of these.

A line whose first label is above 0 is an event of its user, at its time, with the values of its columns.
A line sees the events of earlier seconds that came before it.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from hotrows.data import Encoder
from hotrows.data.encode.events import with_ids
from hotrows.data.raw.cells import Columns, missing_labels
from hotrows.data.raw.values import MISSING_TIME, hash_values
from hotrows.data.stored.histories import END, stream_schema, with_features
from hotrows.data.stored.rows import Rows
from hotrows.data.stored.user_histories import ShortLists, UserHistories


class LineHistories:
    """encoder: of the lines; histories: of the events before the next line; num_short: lines before it
    whose lists may lack events."""

    def __init__(self, encoder: Encoder, histories: UserHistories, num_short: int = 0) -> None:
        if endless := [name for name, length in histories.lengths.items() if length is None]:
            raise ValueError(
                f"history {endless[0]!r} has no max_length, and a stream would keep all events of its "
                f"users in memory: declare one and prepare again, or train on EncodedData.cut(100)"
            )
        self._encoder, self.histories, self.short = encoder, histories, ShortLists(num_short)
        self._names = [feature.name for feature in stream_schema(encoder.schema).id_features]

    def encoded(self, columns: Columns) -> Rows:
        """Encodes lines that are read by `stream_schema`; each list is the value of its line alone."""
        assert columns.times is not None
        if (absent := columns.times == MISSING_TIME).any():
            where = columns.where(int(absent.argmax()))
            raise ValueError(f"{where} has no time, which says where its history ends; give it one")
        by_name = dict(zip(self._names, columns.ids, strict=True))
        ones = np.arange(columns.num_rows + 1)
        for name in self.histories.lengths:
            by_name[name] = dataclasses.replace(by_name.pop(f"{END}/{name}"), offsets=ones)
        return self._encoder.encode_columns(with_ids(columns, self._encoder.schema, by_name))

    def read(self, rows: Rows, columns: Columns, chosen: np.ndarray) -> Rows:
        """Encoded lines [n], of which `columns` has others, too, with their histories; adds the events.

        chosen [n]: where each line is in `columns`.
        """
        assert columns.times is not None
        raw, times = columns.ids[self._names.index(END)], columns.times[chosen]
        users = hash_values(raw)[chosen]
        first_label = rows.labels.reshape(len(rows), -1)[:, 0]
        is_event = (first_label > 0) & ~missing_labels(first_label) & (raw.lengths[chosen] > 0)
        features = self._encoder.schema.id_features
        values = {
            f.name: rows.values(i) for i, f in enumerate(features) if f.name in self.histories.lengths
        }
        lists, num_short, self.histories = self.histories.read(users, times, is_event, values)
        self.short.add(num_short, self.histories)
        return with_features(rows, features, features, lists)
