"""MovieLens 1M and 20M: does a user like a movie (at least four stars of five)?

A sample is a rating; its history are the movies that the user liked before. The last tenth of each
user's ratings tests, the tenth before validates, so that every user is known when tested.
"""

from __future__ import annotations

from collections.abc import Sequence as Names
from pathlib import Path
from typing import Any

import numpy as np

from hotrows.data.datasets import tables
from hotrows.data.datasets.dataset import DataSet, Progress, Samples, Source
from hotrows.data.datasets.events import histories, places, sort_events
from hotrows.data.datasets.tables import TEST, TRAIN, VALIDATION, Directory, find, integers
from hotrows.runtime.arrow import pa
from hotrows.schema import Label, Schema, Sequence, Sparse

LIKED = 4
HISTORY = 50
_RATINGS = {"user": "int64", "movie": "int64", "rating": "float64", "time": "int64"}
_ALSO = {"userId": "user", "movieId": "movie", "timestamp": "time", "pos": "time"}

_MOVIE = (
    Sparse("movie"),
    Sparse("genres", many=True, separator="|", pooling="mean"),
    Sequence("history", vocabulary="movie", max_length=HISTORY),
)
_LIKED = Label("liked", column="rating", at_least=LIKED)

schema_1m = Schema(
    name="movielens_1m",
    label=_LIKED,
    group="user",
    features=(Sparse("user"), *map(Sparse, ("gender", "age", "occupation", "zip")), *_MOVIE),
)
schema_20m = Schema(
    name="movielens_20m",
    label=_LIKED,
    group="user",
    missing=("(no genres listed)",),
    features=(Sparse("user"), *_MOVIE),
)


def build_1m(raw: Path | None, samples: Path, seed: int, progress: Progress) -> Samples:
    """ratings.dat, users.dat and movies.dat; or ratings as CSV with a place in time per user."""
    path = find(raw, "ratings.dat", "movielens_1m_ratings.csv")
    ratings = _dat_ratings(path) if ".dat" in path.name else tables.read_csv(path, _RATINGS, also=_ALSO)
    path = find(raw, "users.dat", "movielens_1m_users.dat")
    users = _dat(path, ("user", "gender", "age", "occupation", "zip"))
    path = find(raw, "movies.dat", "movielens_1m_movies.dat")
    movies = _dat(path, ("movie", "title", "genres")).drop_columns(["title"])
    about = {"user": tables.directory(users, "user"), "movie": tables.directory(movies, "movie")}
    return _write(ratings, about, samples, progress)


def build_20m(raw: Path | None, samples: Path, seed: int, progress: Progress) -> Samples:
    """ratings.csv and movies.csv."""
    ratings = tables.read_csv(find(raw, "ratings.csv"), _RATINGS, also=_ALSO)
    path, also = find(raw, "movies.csv"), {"movieId": "movie"}
    movies = tables.read_directory(path, "movie", {"genres": "string"}, also=also)
    return _write(ratings, {"movie": movies}, samples, progress)


def _write(ratings: Any, about: dict[str, Directory], folder: Path, progress: Progress) -> Samples:
    """Writes samples in the order of the raw ratings, in blocks."""
    users, times = integers(ratings["user"]), integers(ratings["time"])
    liked = np.flatnonzero(ratings["rating"].to_numpy() >= LIKED)
    events = sort_events(users[liked], times[liked])
    movies = pa.array(integers(ratings["movie"])[liked])
    parts = _parts(users, times)
    with tables.written(folder) as writer:
        done = 0
        for block in tables.slices(ratings):
            past = histories(events, integers(block["user"]), integers(block["time"]), HISTORY)
            for key, directory in about.items():
                block = tables.joined(block, directory, integers(block[key]))
            rows = block.append_column("history", past.column(movies))
            writer.write(rows, parts[done:][: len(block)])
            done += len(block)
            progress("histories", done, len(users))
    return writer.samples


def _parts(users: np.ndarray, times: np.ndarray) -> np.ndarray:
    """Assigns the last tenth of each user's ratings to test, the tenth before to validation."""
    place, total = places(users, times)
    tenth = total // 10
    return np.select([place >= total - tenth, place >= total - 2 * tenth], [TEST, VALIDATION], TRAIN)


def _dat_ratings(path: Path) -> Any:
    """user::movie::rating::time; a reader that separates at ':' sees empty columns in between."""
    columns = ("user", "a", "movie", "b", "rating", "c", "time")
    return tables.read_csv(path, _RATINGS, columns=columns, delimiter=":")


def _dat(path: Path, names: Names[str]) -> Any:
    """A small file of fields between '::', in latin-1; the first column is a whole number."""
    rows = [line.split("::") for line in path.read_text(encoding="latin-1").splitlines() if line]
    for number, row in enumerate(rows, 1):
        if len(row) != len(names):
            raise ValueError(
                f"{path} line {number}: expected {len(names)} fields between '::' "
                f"({', '.join(names)}), got {len(row)}; download it again"
            )
    columns = list(zip(*rows, strict=True))
    first = pa.array(list(map(int, columns[0])), pa.int64())
    return pa.table([first, *map(pa.array, columns[1:])], names=list(names))


_TERMS = "research, no redistribution"
_HOME = "https://grouplens.org/datasets/movielens"
_FILES = "https://files.grouplens.org/datasets/movielens"

movielens_1m = DataSet(
    name="movielens_1m",
    title="MovieLens 1M: ratings",
    schema=schema_1m,
    rows=1_000_209,
    size="25 MB",
    licence=_TERMS,
    home=f"{_HOME}/1m/",
    sources=(
        Source("ml-1m.zip", f"{_FILES}/ml-1m.zip", "c4d9eecfca2ab87c1945afe126590906"),
        *map(Source, ("ratings.dat", "users.dat", "movies.dat")),
    ),
    build=build_1m,
)

movielens_20m = DataSet(
    name="movielens_20m",
    title="MovieLens 20M: ratings",
    schema=schema_20m,
    rows=20_000_263,
    size="0.9 GB",
    licence=_TERMS,
    home=f"{_HOME}/20m/",
    sources=(
        Source("ml-20m.zip", f"{_FILES}/ml-20m.zip", "cd245b17a1ae2cc31bb14903e1204af3"),
        *map(Source, ("ratings.csv", "movies.csv")),
    ),
    build=build_20m,
)
