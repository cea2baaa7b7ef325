"""The benchmark of models: drawn short videos, whose best AUC is known, and runs that are continued."""

import math

import numpy as np
import pytest
from benchmarks import models
from benchmarks import short_videos as videos

from hotrows.data import Loader

SMALL = videos.Size(users=40, videos=3_000, authors=60, categories=6)
EVENT = ("category", "author", "signal", "page")


@pytest.fixture(scope="module")
def shown():
    return videos.drawn(0, SMALL)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return videos.make(tmp_path_factory.mktemp("videos") / "data", 0, SMALL)


def share_of_the_past(past, category, author, page):
    """What the past of a user adds to a logit, as the head of the file says it."""
    interest = sum(
        videos.WORTH[signal] * 0.5 ** ((page - at) / videos.HALF_LIFE)
        for of, _, signal, at in past
        if of == category
    )
    last = [signal for _, of, signal, _ in past if of == author][-1:]
    before = past[-videos.CANDIDATES :]
    is_recent = bool(before) and page - before[0][3] < videos.HOUR
    repeats = sum(of == category for of, *_ in before) if is_recent else 0
    return videos.REACH * math.tanh(interest) + sum(videos.LAST[last], start=0.0) - videos.WEARY * repeats


def test_the_logit_is_that_of_all_that_was_shown_before_and_of_its_order(shown):
    changed = 0
    for user in range(5):
        rows = np.flatnonzero(shown["user"] == user)
        events = list(zip(*(shown[name][rows].tolist() for name in EVENT), strict=True))
        for n, (row, (category, author, _, page)) in enumerate(zip(rows, events, strict=True)):
            past = events[: n - n % videos.CANDIDATES]
            share = share_of_the_past(past, category, author, page)
            assert shown["constant"][row] + share == pytest.approx(shown["logit"][row])
            signals = [event[2] for event in past[::-1]]
            turned = [(*e[:2], signal, e[3]) for e, signal in zip(past, signals, strict=True)]
            changed += abs(share_of_the_past(turned, category, author, page) - share) > 0.1
    assert changed > 500


def test_a_seed_draws_one_feed_and_no_user_sees_a_chosen_video_twice(shown):
    again, other = videos.drawn(0, SMALL), videos.drawn(1, SMALL)
    assert all(np.array_equal(column, again[name]) for name, column in shown.items())
    assert not np.array_equal(shown["video"][:1000], other["video"][:1000])
    pairs = shown["user"] * SMALL.videos + shown["video"]
    assert len(np.unique(pairs)) > 0.9 * len(pairs)  # random ones may come back


def test_true_probabilities_are_calibrated_and_the_past_is_worth_a_lot(shown):
    probability = 1 / (1 + np.exp(-shown["logit"]))
    assert (shown["signal"] > 0).mean() == pytest.approx(probability.mean(), abs=0.02)
    known = videos.known(0, SMALL)
    assert known["without history"]["auc"] + 0.03 < known["true probability"]["auc"] < 0.9


def test_samples_have_long_histories_and_nothing_of_their_outcome(data, shown):
    assert [part.rows for part in data.parts.values()] == np.bincount(videos.part_of(shown) + 1)[
        1:
    ].tolist()
    batch = next(Loader(data.parts["test"], 512).batches(0))
    lengths = batch.expanded(("past_video",)).offsets.diff()
    first = np.flatnonzero(videos.part_of(shown) == 2)[:512]
    pages = [(shown["user"][:n] == shown["user"][n]).sum() // videos.CANDIDATES for n in first]
    expected = [min(videos.LENGTH, videos.CANDIDATES * number) for number in pages]
    assert lengths.tolist() == expected and np.mean(expected) > 100
    assert len(batch.expanded(("signal",)).ids.unique()) == 1  # "shown", of every candidate


def test_runs_of_equal_settings_are_continued_and_have_the_commit_that_made_them():
    row = {"model": "dnn", "options": {"dim": 8}, "settings": {}}
    stored = row | {"commit": "b", "auc": 0.7, "runs": [{"seed": 0, "commit": "a"}, {"seed": 1}]}
    assert models.earlier(stored, row) == {0: {"seed": 0, "commit": "a"}, 1: {"seed": 1, "commit": "b"}}
    assert models.earlier(stored, row | {"options": {"dim": 16}}) == models.earlier(None, row) == {}


def test_only_models_that_compare_a_history_get_those_of_the_data():
    of = models.SETS["short_videos"].options_of
    assert of("hstu") == {"dim": 8, "histories": videos.HISTORIES} and of("dnn") == {"dim": 8}
    assert models.SETS["movielens"].options_of("hstu") == {}
