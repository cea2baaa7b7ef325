"""Samples of logs that hold positives only: each positive is followed by a negative.

A positive and its negative share user, time and history; they differ in item, category and label.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from hotrows.data.datasets.history import Events, histories
from hotrows.data.datasets.tables import lists


@dataclass(frozen=True)
class ClickLog:
    """Events of users with items; categories[i] is that of item i, items counted from 0.

    names, category_names: Arrow arrays, the values in the samples for item i and category c.
    """

    users: np.ndarray
    items: np.ndarray
    times: np.ndarray
    categories: np.ndarray
    names: Any
    category_names: Any


def samples_of(
    log: ClickLog,
    events: Events,
    targets: np.ndarray,
    negative_items: np.ndarray,
    length: int,
    user_names: Any | None = None,
) -> Any:
    """Builds two rows for each of `targets`, which are events of the log: an Arrow table.

    events: events of the log that count as history, sorted.
    """
    import pyarrow as pa

    twice = np.repeat(targets, 2)
    items = log.items[twice]
    items[1::2] = negative_items
    users, times = log.users[twice], log.times[twice]
    history = histories(events, users, times, length)
    past = log.items[history.index]
    columns = {
        "user": pa.array(users) if user_names is None else user_names.take(users),
        "item": log.names.take(items),
        "category": log.category_names.take(log.categories[items]),
        "label": pa.array(np.tile(np.array([1, 0], np.int8), len(targets))),
        "time": pa.array(times),
        "history_item": lists(history.offsets, log.names.take(past)),
        "history_category": lists(history.offsets, log.category_names.take(log.categories[past])),
    }
    return pa.table(columns)
