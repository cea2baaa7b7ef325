"""What is it worth that the model which serves is fresh? AUC against how often a model is published.

    python -m benchmarks.freshness_ladder [movielens_1m | drift] [--raw FOLDER]     a minute or two each

One model learns every event in the order of time, in batches of a second. Copies of it serve: each takes
over all that was learned every second, minute, half hour, five hours or day of event time, and scores
the events of the time until then, which it has not seen. The first day is trained by all, and not scored.

MovieLens 1M: an event is a rating, liked or not (4 stars of 5). One user in 16. The file at hand has the
order of each user's ratings, and no clock: users come evenly over six days, in the order of falling
numbers, as they did in 2000, and rate a movie every 20 s. Drift: clicks drawn here; new items come every
hour, and what users like of each changes in the course of hours.
"""

import argparse
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch.nn.functional import binary_cross_entropy_with_logits

import hotrows
from benchmarks import figures
from benchmarks.accuracy_data import RAW
from benchmarks.harness import ROOT, conditions, stored, write
from hotrows import Schema, Sparse
from hotrows.metrics.binary import auc
from hotrows.models import FM

LABELS = {"movielens_1m": "MovieLens 1M", "drift": "clicks with drift"}
DAY = 86_400
RUNGS = {"1 s": 1, "1 min": 60, "30 min": 1800, "5 h": 18_000, "1 day": DAY}
DAYS, ONE_USER_IN, GAP = 6, 16, 20  # of MovieLens; GAP: seconds between two ratings of a user
EVENTS, USERS, NEW_ITEMS, LIFE = 60_000, 400, 5, 12 * 3600  # of drift; new items an hour; seconds


@dataclass(frozen=True)
class Events:
    """Events by time: ids [F, N], labels [N] and seconds [N]."""

    schema: Schema
    ids: torch.Tensor
    labels: torch.Tensor
    times: np.ndarray

    def batch(self, first: int, end: int) -> hotrows.Batch:
        names = tuple(feature.name for feature in self.schema.id_features)
        ids = self.ids[:, first:end].reshape(-1)
        return hotrows.Batch(names, ids, torch.zeros(end - first, 0), self.labels[first:end])


def main() -> None:
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", choices=list(LABELS), default=list(LABELS))
    parser.add_argument("--raw", type=Path, default=RAW, help="A folder with the files of MovieLens 1M.")
    given = parser.parse_args()
    for name in given.names:
        events = drift() if name == "drift" else movielens(given.raw)
        save(name, {"events": len(events.times), **ladder(events)})


def save(name: str, found: dict[str, float]) -> None:
    """Adds what was found to the results, and draws all of them."""
    print(name, found, flush=True)
    result = {**stored("freshness_ladder").get("auc", {}), name: found}
    write("freshness_ladder", {"days": DAYS, "one_user_in": ONE_USER_IN, "auc": result, **conditions(1)})
    draw(result)


def ladder(events: Events) -> dict[str, float]:
    """The AUC of all events after the first day, by rung."""
    times, learner = events.times, Model(events.schema)
    served = {name: Model(events.schema) for name in RUNGS}
    starts = np.flatnonzero(np.diff(times, prepend=-1))  # of each second with events
    scored = dict.fromkeys(RUNGS, 0)
    logits = {name: torch.full((len(times),), torch.nan) for name in RUNGS}
    for number, (first, end) in enumerate(zip(starts, [*starts[1:], len(times)], strict=True)):
        last_second = times[first - 1] if first else 0
        for name, seconds in RUNGS.items():
            if times[first] // seconds > last_second // seconds:  # what came until then, and a new copy
                begin, scored[name] = scored[name], int(first)
                if last_second >= DAY:
                    logits[name][begin:first] = served[name].scores(events.batch(begin, int(first)))
                served[name].take_over(learner)
        learner.train(events.batch(int(first), int(end)), number)
    later = torch.from_numpy(times >= DAY)
    result = {}
    for name in RUNGS:
        rest = events.batch(scored[name], len(times))
        logits[name][scored[name] :] = served[name].scores(rest)
        is_scored = later & logits[name].isfinite()
        result[name] = round(auc(logits[name][is_scored], events.labels[is_scored]), 4)
    return result


class Model:
    """A factorization machine whose rows learn by Adagrad."""

    def __init__(self, schema: Schema) -> None:
        torch.manual_seed(0)
        self.model = FM(schema, dim=8)
        self.embedding = hotrows.Embedding.for_model(
            self.model, schema, optimizer=hotrows.Adagrad(lr=0.1), seed=1
        )
        self.dense = torch.optim.SGD(self.model.parameters(), lr=0.01)

    def train(self, batch: hotrows.Batch, step: int) -> None:
        plan = self.embedding.plan(batch, step)
        vectors = self.embedding.lookup(plan)
        binary_cross_entropy_with_logits(self.model(vectors, batch.dense), batch.labels).backward()
        self.embedding.update(plan, vectors)
        self.dense.step()
        self.dense.zero_grad()

    def scores(self, batch: hotrows.Batch) -> torch.Tensor:
        with torch.no_grad():
            return self.model(self.embedding.lookup(self.embedding.plan(batch)), batch.dense)

    def take_over(self, other: "Model") -> None:
        for table in self.embedding.tables:
            self.embedding.weights(table.name).copy_(other.embedding.weights(table.name))
        self.model.load_state_dict(other.model.state_dict())


def movielens(raw: Path) -> Events:
    """Ratings of one user in ONE_USER_IN: user, movie, genres, gender, age and occupation."""
    import gzip

    with gzip.open(raw / "movielens_1m_ratings.csv.gz") as file:
        user, movie, rating, place = np.loadtxt(file, np.int64, delimiter=",", skiprows=1).T
    chosen = user % ONE_USER_IN == 0
    user, movie, rating, place = (column[chosen] for column in (user, movie, rating, place))
    of_user, user_id = np.unique(-user, return_inverse=True)  # in the order in which they came
    times = (user_id * (DAYS * DAY / len(of_user))).astype(np.int64) + place * GAP
    about = dict(_lines(raw / "movielens_1m_users.dat"))
    people = [about[-number] for number in of_user.tolist()]
    columns = {"user": user_id, "movie": np.unique(movie, return_inverse=True)[1]}
    for number, name in enumerate(("gender", "age", "occupation")):
        values = np.unique([person[number] for person in people], return_inverse=True)[1]
        columns[name] = values[user_id]
    of_movie = {number: fields[1] for number, fields in _lines(raw / "movielens_1m_movies.dat")}
    genres = [of_movie[number].partition("|")[0] for number in np.unique(movie).tolist()]
    columns["genre"] = np.unique(genres, return_inverse=True)[1][columns["movie"]]
    return _by_time(columns, (rating >= 4).astype(np.float32), times)


def _lines(path: Path) -> list[tuple[int, list[str]]]:
    rows = (line.split("::") for line in path.read_text("latin-1").splitlines() if line)
    return [(int(first), others) for first, *others in rows]


def drift() -> Events:
    """Clicks of users on items that are a day old at most; tastes go another way in hours."""
    random, hours = np.random.default_rng(0), DAYS * 24
    times = np.sort(random.integers(0, DAYS * DAY, EVENTS))
    user = random.integers(0, USERS, EVENTS)
    newest = times // 3600 * NEW_ITEMS
    age = (random.exponential(6 * NEW_ITEMS, EVENTS)).astype(np.int64)
    item = np.maximum(newest + NEW_ITEMS - 1 - age, 0) + random.integers(0, NEW_ITEMS, EVENTS)
    num_items = hours * NEW_ITEMS + 2 * NEW_ITEMS
    angle = 2 * np.pi * (random.random(num_items)[item] + times / LIFE)  # of each item, and its drift
    kind = 2 * np.pi * random.integers(0, 8, USERS)[user] / 8
    signal = 1.5 * np.cos(angle - kind) + random.normal(0, 1, num_items)[item] - 0.5
    clicked = random.random(EVENTS) < 1 / (1 + np.exp(-signal))
    columns = {"user": user, "item": item, "kind": (kind * 4 / np.pi).round().astype(np.int64)}
    return _by_time(columns, clicked.astype(np.float32), times)


def _by_time(columns: dict[str, np.ndarray], labels: np.ndarray, times: np.ndarray) -> Events:
    order = times.argsort(kind="stable")
    features = tuple(Sparse(name, rows=int(column.max()) + 1) for name, column in columns.items())
    ids = torch.from_numpy(np.stack([column[order] for column in columns.values()]))
    return Events(Schema(features), ids, torch.from_numpy(labels[order]), times[order])


def draw(result: dict[str, dict[str, float]]) -> None:
    figure = figures.new_figure(1.5 + 4.5 * len(result), 4.4)
    if figure is None:
        return
    with figures.style():
        colors = {"movielens_1m": figures.BLUE, "drift": figures.ORANGE}
        panels = figure.subplots(1, len(result), squeeze=False)[0]
        for axes, (name, values) in zip(panels, result.items(), strict=True):
            heights = [values[rung] for rung in RUNGS]
            axes.plot(list(RUNGS), heights, "o-", color=colors[name], linewidth=2)
            for place, height in enumerate(heights):
                axes.annotate(f"{height:.3f}", (place, height), (5, 5), textcoords="offset points")
            room = max(heights) - min(heights) or 0.01
            axes.set_ylim(min(heights) - 0.2 * room, max(heights) + 0.25 * room)
            axes.set_title(LABELS[name])
            axes.set_xlabel("published every (event time)")
            axes.set_ylabel("AUC of events not seen")
        figures.set_title(figure, "What freshness is worth", "one model, served by copies of other ages")
        figures.save(figure, ROOT / "docs" / "pictures" / "freshness-ladder.png")


if __name__ == "__main__":
    main()
