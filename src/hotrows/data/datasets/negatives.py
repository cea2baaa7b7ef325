"""Negative items, which a user never chose, for logs that hold positives only.

An item is drawn by its popularity to a power (0: uniformly; 0.75: as in word2vec) and drawn again
while it is a positive of the user anywhere in the log, later ones included. That a user never chose an
item is known only after the full log; every published recipe uses it in this way.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

_ROUNDS = 100


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
    _check_choice(known, np.bincount(pairs // num_items, minlength=len(known)), user, num_items)
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


def _check_choice(known: np.ndarray, num_positives: np.ndarray, user: np.ndarray, num_items: int) -> None:
    full = np.flatnonzero(num_positives[user] >= num_items)
    if len(full):
        raise ValueError(
            f"user {known[user[full[0]]]} chose all {num_items:,} items, so that there is no negative "
            f"to draw; leave this user out, or draw from more items"
        )


def _draw_exactly(catalog: Catalog, pairs: np.ndarray, user: int, random: np.random.Generator) -> int:
    """Draws one item by the shares of the items that the user did not choose."""
    num_items = len(catalog.items)
    shares = np.diff(catalog.cumulative, prepend=0.0)
    shares[pairs[pairs // num_items == user] % num_items] = 0.0
    cumulative = np.cumsum(shares)
    return int(np.searchsorted(cumulative, random.random() * cumulative[-1], side="right"))
