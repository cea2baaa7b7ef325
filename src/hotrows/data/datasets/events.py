"""Samples made of the events of a log: histories without a look into the future, and negatives.

**The history of a sample** is the last L events of its user strictly before its time. An event of the
same time is no history: it may be the sample itself, or what followed from it.

    events   user 7 at times 1 3 3 5, user 9 at time 2
    samples  (7, 3) -> [1]      (7, 4) -> [1 3 3]      (7, 9), L = 2 -> [3 5]      (8, 3) -> []

Events are sorted once, so that a binary search finds where a history ends. Times are numbers of any kind
whose order is the order of the events.

**A negative** is an item that a user never chose, for logs that hold positives only. It is drawn by its
popularity to a power (0: uniformly; 0.75: as in word2vec) and drawn again while it is a positive of the
user anywhere in the log, later ones included. That a user never chose an item is known only after the
full log; every published recipe uses it in this way. A positive and its negative share user, time and
history; they differ in item, category and label.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from hotrows.data.datasets.tables import lists
from hotrows.data.rows import ends_of
from hotrows.data.stored.histories import SortedEvents, places_between
from hotrows.runtime.arrow import pa

_ROUNDS = 100


@dataclass(frozen=True)
class Histories:
    """The history of sample s: events index[offsets[s]] .. index[offsets[s + 1] - 1] of the log."""

    offsets: np.ndarray
    index: np.ndarray

    def column(self, values: Any) -> Any:
        """An Arrow column of lists: values of the events, of which it has one each."""
        return lists(self.offsets, values.take(self.index))


def sort_events(users: np.ndarray, times: np.ndarray) -> SortedEvents:
    """Sorts events; `numbers` are their places in the log."""
    return SortedEvents.joined({"users": users, "times": times, "numbers": np.arange(len(users))})


def histories(events: SortedEvents, users: np.ndarray, times: np.ndarray, length: int) -> Histories:
    """Finds the last `length` events of each sample's user strictly before its time, oldest first."""
    begins, ends = events.before(users, times)
    begins = np.maximum(begins, ends - length)
    return Histories(ends_of(ends - begins), events.columns["numbers"][places_between(begins, ends)])


def places(users: np.ndarray, times: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the place of each event among its user's, from 0, and the user's number of events.

    users = [7, 9, 7], times = [5, 2, 1]  ->  [1, 0, 0], [2, 1, 2]
    """
    events = sort_events(users, times)
    begins, counts, order = events.starts[:-1], np.diff(events.starts), events.columns["numbers"]
    place, total = np.empty(len(users), np.int64), np.empty(len(users), np.int64)
    place[order] = np.arange(len(users)) - np.repeat(begins, counts)
    total[order] = np.repeat(counts, counts)
    return place, total


@dataclass(frozen=True)
class Catalog:
    """Items to draw from, ascending, and the running sum of their shares."""

    items: np.ndarray
    cumulative: np.ndarray


def catalog(items: np.ndarray, counts: np.ndarray, power: float = 0.0) -> Catalog:
    """Builds a catalog whose items are drawn in proportion to their count to the power."""
    order = np.argsort(items, kind="stable")
    shares = np.cumsum(counts[order].astype(np.float64) ** power)
    return Catalog(items[order], shares / shares[-1])


def negatives(
    catalog: Catalog,
    users: np.ndarray,
    positive_users: np.ndarray,
    positive_items: np.ndarray,
    random: np.random.Generator,
) -> np.ndarray:
    """Draws one item per user in `users` that is no positive of that user.

    positive_users, positive_items: all pairs of the log, in any order.
    """
    known, user_of_pair = np.unique(positive_users, return_inverse=True)
    num_items = len(catalog.items)
    pairs = np.unique(user_of_pair * num_items + np.searchsorted(catalog.items, positive_items))
    user = np.minimum(np.searchsorted(known, users), len(known) - 1)
    num_positives = np.bincount(pairs // num_items, minlength=len(known))
    if len(full := np.flatnonzero(num_positives[user] >= num_items)):
        raise ValueError(
            f"user {known[user[full[0]]]} chose all {num_items:,} items, so that there is no negative "
            f"to draw; leave this user out, or draw from more items"
        )
    drawn = np.empty(len(users), np.int64)
    left = np.arange(len(users))
    for _ in range(_ROUNDS):
        drawn[left] = np.searchsorted(catalog.cumulative, random.random(len(left)), side="right")
        keys = user[left] * num_items + drawn[left]
        left = left[pairs[np.minimum(np.searchsorted(pairs, keys), len(pairs) - 1)] == keys]
        if not len(left):
            break
    for sample in left:  # users who chose nearly everything
        drawn[sample] = _draw_exactly(catalog, pairs, int(user[sample]), random)
    return catalog.items[drawn]


def _draw_exactly(catalog: Catalog, pairs: np.ndarray, user: int, random: np.random.Generator) -> int:
    """Draws one item by the shares of the items that the user did not choose."""
    num_items = len(catalog.items)
    shares = np.diff(catalog.cumulative, prepend=0.0)
    shares[pairs[pairs // num_items == user] % num_items] = 0.0
    cumulative = np.cumsum(shares)
    return int(np.searchsorted(cumulative, random.random() * cumulative[-1], side="right"))


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
    events: SortedEvents,
    targets: np.ndarray,
    negative_items: np.ndarray,
    length: int,
    user_names: Any | None = None,
) -> Any:
    """Builds two rows for each of `targets`, which are events of the log: an Arrow table.

    events: events of the log that count as history, sorted.
    """
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
