"""A feed of short videos, drawn: is a video watched, given all that the feed showed the user before?

    logit of watching = video + taste + interest + author - repeats

  video     quality of the video and of its author, and its length
  taste     of the user for the video's category, which never changes
  interest  REACH * tanh(sum of WORTH of each earlier signal in the category, halved every two days)
  author    LAST, by the user's last signal to a video of the author
  repeats   WEARY for each video of the category on the page before, if that was less than an hour ago

The shape is KuaiRand's: four weeks, popularity by a power law, several signals, users of 8 to 160 pages
in bursts. A page is a request of eight candidates: two at random, six chosen for the user by taste and
interest, so that interests drift with what was shown. 13 days are history alone, ten train, one
validates, four test. The probability is known, so that the best AUC is, too. Models see no times of
events. Constants were set before any model was trained, the size after a run of seed 0 on 500 users and
5,000 videos, where no model reached 0.63.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hotrows import Dense, Schema, Sequence, Sparse, Time, metrics, prepare
from hotrows.data import EncodedData
from hotrows.data.stored.part import NAMES

Array = np.ndarray[Any, Any]
SIGNALS = np.array(["skipped", "watched", "watched long", "liked"])
WORTH = np.array([-0.15, 0.2, 0.4, 0.8])
LAST = np.array([-0.8, 0.0, 0.5, 1.0, 0.0])  # the last one, at -1: never shown
BIAS, REACH, WEARY = -0.9, 1.5, 0.3
CANDIDATES, RANDOM, POOL = 8, 2, 64
HOUR, DAY = 3_600, 86_400
HALF_LIFE, BEGIN = 2 * DAY, 1_650_000_000
ENDS = np.array([13, 23, 24, 28]) * DAY  # of history, training, validation and test
LENGTH = 128  # of histories, at most
EVENT = ("video", "author", "category", "signal")
HISTORIES = [[f"past_{name}" for name in EVENT]]  # for models that compare them with the candidate

_PAST = (
    *(Sequence(f"past_{name}", column=name, vocabulary=name, max_length=LENGTH) for name in EVENT),
    # What a model that pools could not see in lists apart: which category had which signal.
    Sequence("past_reaction", column="reaction", max_length=LENGTH),
)
SCHEMA = Schema(
    features=(Dense("pause"), Dense("seconds"), *map(Sparse, ("user", *EVENT)), *_PAST),
    label="label",
    time=Time("at"),
    user="user",
    histories=tuple(feature.name for feature in _PAST),
    request="request",
    shared=("pause", "user", *(feature.name for feature in _PAST)),
)


@dataclass(frozen=True)
class Size:
    users: int = 1_200
    videos: int = 3_000
    authors: int = 500
    categories: int = 30
    pages: float = 40  # of the median user


class Feed:
    """What is constant, and what the past of each user has left behind."""

    def __init__(self, size: Size, random: np.random.Generator) -> None:
        self.random = random
        # 1. Videos.
        main = random.integers(0, size.categories, size.authors)
        self.author = random.integers(0, size.authors, size.videos)
        is_other = random.random(size.videos) < 0.2
        others = random.integers(0, size.categories, size.videos)
        self.category = np.where(is_other, others, main[self.author])
        length = random.normal(0, 1, size.videos)
        self.seconds = np.round(np.exp(3 + 0.8 * length))
        self.quality = BIAS + random.normal(0, 0.5, size.videos) - 0.2 * length
        self.quality += random.normal(0, 0.3, size.authors)[self.author]
        self.popularity = np.cumsum(np.arange(1.0, size.videos + 1) ** -0.8)
        # 2. Users.
        self.taste = random.normal(0, 0.6, (size.users, size.categories))
        self.interest = np.zeros_like(self.taste)
        self.before = np.zeros_like(self.taste)  # videos of each category on the page before
        self.last = np.full((size.users, size.authors), -1)  # signal
        self.seen = np.zeros((size.users, size.videos), bool)
        self.at = np.zeros(size.users)

    def page(self, users: Array, at: Array) -> dict[str, Array]:
        """A page for each of some users at a time in seconds: columns of [users, CANDIDATES]."""
        # 1. Let time pass.
        pause = at - self.at[users]
        self.interest[users] *= (0.5 ** (pause / HALF_LIFE))[:, None]
        moving = REACH * np.tanh(self.interest[users])
        moving -= WEARY * self.before[users] * (pause < HOUR)[:, None]
        # 2. Show videos and let the users react.
        video = self._candidates(users, self.taste[users] + moving)
        category, author, who = self.category[video], self.author[video], users[:, None]
        constant = self.quality[video] + self.taste[who, category]
        logit = constant + np.take_along_axis(moving, category, 1) + LAST[self.last[who, author]]
        probability = 1 / (1 + np.exp(-logit))
        watched, long, liked = self.random.random((3, *video.shape))
        signal = (watched < probability) * (1 + (long < probability) * (1 + (liked < 0.2)))
        # 3. Remember.
        np.add.at(self.interest, (who, category), WORTH[signal])
        self.before[users] = 0
        np.add.at(self.before, (who, category), 1)
        for place in range(CANDIDATES):  # in order: the last one of an author counts
            self.last[users, author[:, place]] = signal[:, place]
        self.seen[who, video] = True
        self.at[users] = at
        figures = {"video": video, "author": author, "category": category, "signal": signal}
        figures |= {"seconds": self.seconds[video], "logit": logit, "constant": constant}
        rows = {"user": users, "page": at, "pause": pause / HOUR}
        return figures | {n: np.repeat(row[:, None], CANDIDATES, 1) for n, row in rows.items()}

    def _candidates(self, users: Array, affinity: Array) -> Array:
        """Videos that a user has not seen: the best of a pool of popular ones, and some at random."""
        drawn = self.random.random((len(users), POOL)) * self.popularity[-1]
        pool = np.sort(np.searchsorted(self.popularity, drawn), 1)
        worth = np.take_along_axis(affinity, self.category[pool], 1) + self.random.gumbel(size=pool.shape)
        worth[self.seen[users[:, None], pool]] -= 1e3
        worth[:, 1:][pool[:, 1:] == pool[:, :-1]] = -1e6
        best = np.argpartition(-worth, CANDIDATES - RANDOM, 1)[:, : CANDIDATES - RANDOM]
        at_random = self.random.integers(0, len(self.author), (len(users), RANDOM))
        shown = np.concatenate([np.take_along_axis(pool, best, 1), at_random], 1)
        return self.random.permuted(shown, axis=1)


def drawn(seed: int, size: Size = Size()) -> dict[str, Array]:
    """All that was shown, page by page in order of time: a column for each figure of `Feed.page`."""
    random = np.random.default_rng(seed)
    feed, times = Feed(size, random), _times(size, random)
    pages = []
    for at in times.T:
        users = np.flatnonzero(at >= 0)
        pages.append(feed.page(users, at[users]))
    shown = {name: np.concatenate([page[name] for page in pages]) for name in pages[0]}
    order = np.lexsort((shown["user"][:, 0], shown["page"][:, 0]))
    return {name: column[order].reshape(-1) for name, column in shown.items()}


def _times(size: Size, random: np.random.Generator) -> Array:
    """[users, pages] when each user asks for a page, in bursts of three on average; -1: never."""
    num_pages = np.exp(np.log(size.pages) + 0.7 * random.normal(size=size.users)).clip(8, 160).astype(int)
    page = np.arange(num_pages.max())
    is_page = page < num_pages[:, None]
    starts = np.sort(np.where(is_page, random.random(is_page.shape), 2), 1) * (ENDS[-1] - HOUR)
    is_first = (random.random(is_page.shape) < 1 / 3) | (page == 0)
    first = np.maximum.accumulate(np.where(is_first, page, 0), 1)
    times = np.take_along_axis(starts, first, 1) + 120 * (page - first)
    times = np.maximum.accumulate(times - 60 * page, 1) + 60 * page  # a minute apart at least
    return np.where(is_page, times.astype(np.int64), -1)


def tables(shown: dict[str, Array]) -> tuple[dict[str, dict[str, Array]], dict[str, Array]]:
    """The samples of each part, and the events: every video that was shown is one."""
    place = np.arange(len(shown["user"])) % CANDIDATES
    category, signal = shown["category"], SIGNALS[shown["signal"]]
    common = {name: shown[name] for name in ("user", "video", "author", "category")}
    events = common | {"at": BEGIN + shown["page"] + 5 * (place + 1), "signal": signal}
    events["reaction"] = np.char.add(np.char.add(category.astype(str), " "), signal)
    samples = common | {name: shown[name] for name in ("pause", "seconds")}
    samples |= {"at": BEGIN + shown["page"], "request": np.arange(len(place)) // CANDIDATES}
    samples |= {"label": (shown["signal"] > 0).astype(np.int64), "signal": np.full(len(place), "shown")}
    part = part_of(shown)
    return {
        name: {n: column[part == k] for n, column in samples.items()} for k, name in enumerate(NAMES)
    }, events


def part_of(shown: dict[str, Array]) -> Array:
    """The place of each sample's part in NAMES; -1: history alone."""
    return np.searchsorted(ENDS, shown["page"], side="right") - 1


def make(folder: Path, seed: int, size: Size = Size()) -> EncodedData:
    import pyarrow as pa

    samples, events = tables(drawn(seed, size))
    parts = {name: pa.table(columns) for name, columns in samples.items()}
    return prepare(parts.pop("train"), SCHEMA, folder, **parts, events=pa.table(events))


def known(seed: int, size: Size = Size()) -> dict[str, dict[str, float]]:
    """Figures of the test part by the true probability, and by what of it no history changes."""
    shown = drawn(seed, size)
    tests = part_of(shown) == NAMES.index("test")
    labels = torch.from_numpy(shown["signal"][tests] > 0).float()
    pages = torch.arange(len(labels)) // CANDIDATES
    found = {}
    for name, column in {"true probability": "logit", "without history": "constant"}.items():
        of_test = metrics.compute_metrics(torch.from_numpy(shown[column][tests]), labels, groups=pages)
        found[name] = {key: getattr(of_test, key) for key in ("auc", "gauc", "log_loss")}
    return found
