"""LineHistories: the lines of a stream get the histories of their users, and are events of these.

A line whose first label is above 0 is an event of its user, at its time, with the values of its columns.
A line sees the events of earlier seconds that came before it.
"""

from __future__ import annotations

import numpy as np

from hotrows.data import Encoder
from hotrows.data.columns.history import USERS
from hotrows.data.columns.label import missing_labels
from hotrows.data.raw.values import MISSING_TIME, hash_values
from hotrows.data.rows import RawRows, Rows
from hotrows.data.stored.histories import ShortLists, UserHistories

_SECTIONS = "line_users", "has_user", "line_times"


class LineHistories:
    """encoder: of the lines; histories: of the events before the next line; num_short: lines before it
    whose lists may lack events."""

    def __init__(self, encoder: Encoder, histories: UserHistories, num_short: int = 0) -> None:
        if endless := [name for name, length in histories.lengths.items() if length is None]:
            raise ValueError(
                f"history {endless[0]!r} has no max_length, and a stream would keep all events of its "
                f"users in memory: declare one and prepare again, or train on EncodedData.cut(100)"
            )
        self.histories, self.short = histories, ShortLists(num_short)

    def sections(self, raw: RawRows) -> dict[str, np.ndarray]:
        """What `read` needs of lines; raises ValueError where one has no time."""
        if (absent := raw.values["times"] == MISSING_TIME).any():
            where = raw.where(int(absent.argmax()))
            raise ValueError(f"{where} has no time, which says where its history ends; give it one")
        users = raw.values[USERS]
        values = hash_values(users).view(np.int64), users.lengths > 0, raw.values["times"]
        return dict(zip(_SECTIONS, values, strict=True))

    def read(self, rows: Rows) -> Rows:
        """Encoded lines with these sections, and their histories in place of the value of the line alone;
        adds the events."""
        users, has_user, times = (rows.arrays[name] for name in _SECTIONS)
        rows = rows.without(*_SECTIONS)
        first_label = rows.arrays["labels"].reshape(len(rows), -1)[:, 0]
        is_event = (first_label > 0) & ~missing_labels(first_label) & has_user
        values = {name: rows.values(f"ids/{name}") for name in self.histories.lengths}
        lists, num_short, self.histories = self.histories.read(
            users.view(np.uint64), times, is_event, values
        )
        self.short.add(num_short, self.histories)
        ids = {f"ids/{name}": ids for name, (ids, _) in lists.items()}
        return rows.with_arrays(ids, {name: bounds for name, (_, bounds) in lists.items()})
