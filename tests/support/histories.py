"""Events and samples of users at random, with equal times, and the same data with copied lists."""

import numpy as np
import pandas as pd

from hotrows import Schema, Sequence, Sparse, Time

LENGTHS = {"history": 5, "kinds": 8}
COLUMNS = {"history": "item", "kinds": "kind"}


def schema(by_reference=True, lengths=LENGTHS, **fields):
    sequences = (
        Sequence(
            "history", COLUMNS["history"] if by_reference else None, "item", max_length=lengths["history"]
        ),
        Sequence("kinds", COLUMNS["kinds"] if by_reference else None, max_length=lengths["kinds"]),
    )
    events = {"user": "user", "histories": ("history", "kinds")} if by_reference else {}
    features = (Sparse("user"), Sparse("item"), *sequences)
    return Schema(features, label="click", time=Time("at"), **events, **fields)


def events_and_samples(seed=0, events=300, samples=200, users=12, moments=30):
    """Frames of events and samples; some users have no events, and times are often equal, or negative."""
    random = np.random.default_rng(seed)

    def drawn(size, users):
        columns = {"user": users, "at": moments, "item": 25, "kind": 4}
        rows = {name: random.integers(0, most, size) for name, most in columns.items()}
        return pd.DataFrame({**rows, "at": rows["at"] - 5})

    of_samples = drawn(samples, users + 3).drop(columns="kind")
    return drawn(events, users), of_samples.assign(click=random.integers(0, 2, samples))


def copied(events, samples):
    """The samples with their histories as lists, made one by one."""
    ordered = events.sort_values("at", kind="stable")
    lists = {name: [] for name in COLUMNS}
    for user, at in zip(samples["user"], samples["at"], strict=True):
        past = ordered[(ordered["user"] == user) & (ordered["at"] < at)]
        for name, column in COLUMNS.items():
            lists[name].append(past[column].tolist())
    return samples.assign(**lists)
