"""Items that a user left alone, for logs that hold positives only.

An item is drawn by its popularity to a power (0: evenly; 0.75: as word2vec does) and drawn again
while it is a positive of the user anywhere in the log, later ones included. A negative says "this user
never chose this item", which is known only after the whole log; so does every published recipe.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

_ROUNDS = 100


@dataclass(frozen=True)
class Catalog:
    """The items to draw from, ascending, and the running sum of their shares."""

    items: np.ndarray
    cumulative: np.ndarray


def catalog(items: np.ndarray, counts: np.ndarray, power: float = 0.0) -> Catalog:
    """Items, each drawn in proportion to its count to the power."""
    order = np.argsort(items, kind="stable")
    shares = np.cumsum(counts[order].astype(np.float64) ** power)
    return Catalog(items[order], shares / shares[-1])


def negatives(
    of: Catalog,
    users: np.ndarray,
    positive_users: np.ndarray,
    positive_items: np.ndarray,
    random: np.random.Generator,
) -> np.ndarray:
    """One item for each of `users` that is none of that user's positives.

    positive_users, positive_items: the whole log, a pair each, in any order.
    """
    known, user_of_pair = np.unique(positive_users, return_inverse=True)
    num_items = len(of.items)
    pairs = np.unique(user_of_pair * num_items + np.searchsorted(of.items, positive_items))
    user = np.minimum(np.searchsorted(known, users), len(known) - 1)
    _check_choice(known, np.bincount(pairs // num_items, minlength=len(known)), user, num_items)
    drawn = np.empty(len(users), np.int64)
    left = np.arange(len(users))
    for _ in range(_ROUNDS):
        drawn[left] = np.searchsorted(of.cumulative, random.random(len(left)), side="right")
        left = left[_contains(pairs, user[left] * num_items + drawn[left])]
        if not len(left):
            break
    for sample in left:  # users who chose nearly everything
        drawn[sample] = _draw_exactly(of, pairs, int(user[sample]), random)
    return of.items[drawn]


def _check_choice(
    known: np.ndarray, num_positives: np.ndarray, user: np.ndarray, num_items: int
) -> None:
    full = np.flatnonzero(num_positives[user] >= num_items)
    if len(full):
        raise ValueError(
            f"user {known[user[full[0]]]} chose all {num_items:,} items, so that there is no negative "
            f"to draw; leave this user out, or draw from more items"
        )


def _draw_exactly(of: Catalog, pairs: np.ndarray, user: int, random: np.random.Generator) -> int:
    """By the shares of the items that are left."""
    num_items = len(of.items)
    shares = np.diff(of.cumulative, prepend=0.0)
    shares[pairs[pairs // num_items == user] % num_items] = 0.0
    cumulative = np.cumsum(shares)
    return int(np.searchsorted(cumulative, random.random() * cumulative[-1], side="right"))


def _contains(sorted_keys: np.ndarray, keys: np.ndarray) -> np.ndarray:
    place = np.minimum(np.searchsorted(sorted_keys, keys), len(sorted_keys) - 1)
    return sorted_keys[place] == keys
