"""MovieLens: the public layouts, the layout of the sample, and all of the real 1M."""

import gzip
from collections import defaultdict

import pytest

from hotrows.data.datasets import BY_NAME
from hotrows.data.datasets.dataset import build
from tests.data.raw import SAMPLES, sample
from tests.datasets.layouts.movielens import USERS, raw_1m
from tests.datasets.raw_files import built, lacking, write


def test_ratings_are_joined_and_followed_by_what_was_liked_before(tmp_path):
    parts = built("movielens_1m", raw_1m(tmp_path / "raw"), tmp_path)
    assert not lacking("movielens_1m", parts)
    assert parts["train"][3] == {
        "user": 1,
        "movie": 10,
        "rating": 4.0,
        "time": 300,
        "gender": "F",
        "age": "1",
        "occupation": "10",
        "zip": "48067",
        "genres": "Animation|Children's|Comedy",
        "history": [10, 20],
    }
    assert [row["history"] for row in parts["train"]] == [[], [], [10, 20], [10, 20], [], []]
    assert parts["train"][5]["genres"] is None  # the movie is not in movies.dat


def test_the_last_tenth_of_each_user_tests_and_the_tenth_before_validates(tmp_path):
    ratings = [f"1::{movie}::3::{1000 - movie}" for movie in range(20)]
    ratings += [f"2::{movie}::3::{movie}" for movie in range(5)]
    parts = built("movielens_1m", raw_1m(tmp_path / "raw", ratings), tmp_path)
    assert [row["movie"] for row in parts["test"]] == [0, 1]
    assert [row["movie"] for row in parts["validation"]] == [2, 3]
    assert len(parts["train"]) == 21


def test_a_line_of_another_layout_is_named(tmp_path):
    raw = raw_1m(tmp_path / "raw")
    write(raw / "ml-1m", {"users.dat": [*USERS, "3::M::25"]})
    with pytest.raises(ValueError, match=r"users.dat line 3: expected 5 fields .*, got 3"):
        built("movielens_1m", raw, tmp_path)


def test_20m_is_read_from_csv(tmp_path):
    files = {
        "ratings.csv": ["userId,movieId,rating,timestamp", "7,1,4.0,10", "7,2,3.5,20", "7,1,5.0,30"],
        "movies.csv": [
            "movieId,title,genres",
            '1,"American President, The (1995)",Comedy|Drama',
            "2,Toy Story (1995),(no genres listed)",
        ],
    }
    parts = built("movielens_20m", write(tmp_path / "raw" / "ml-20m", files).parent, tmp_path)
    assert not lacking("movielens_20m", parts)
    assert parts["train"] == [
        {"user": 7, "movie": 1, "rating": 4.0, "time": 10, "genres": "Comedy|Drama", "history": []},
        {
            "user": 7,
            "movie": 2,
            "rating": 3.5,
            "time": 20,
            "genres": "(no genres listed)",
            "history": [1],
        },
        {"user": 7, "movie": 1, "rating": 5.0, "time": 30, "genres": "Comedy|Drama", "history": [1]},
    ]


@pytest.mark.slow
def test_the_whole_of_1m(tmp_path):
    with gzip.open(sample("movielens_1m_ratings.csv.gz"), "rt") as file:
        ratings = [tuple(map(int, line.split(","))) for line in list(file)[1:]]
    build(BY_NAME["movielens_1m"], SAMPLES, tmp_path / "samples")
    from pyarrow import parquet

    tables = {path.stem: parquet.read_table(path) for path in (tmp_path / "samples").glob("*.parquet")}
    assert {name: len(table) for name, table in tables.items()} == {
        "train": 805_443,
        "validation": 97_383,
        "test": 97_383,
    }
    by_user = defaultdict(list)
    for user, movie, rating, place in ratings:
        by_user[user].append((place, movie, rating))
    for row in tables["test"].slice(5000, 300).to_pylist():
        before = sorted(event for event in by_user[row["user"]] if event[0] < row["time"])
        assert row["history"] == [movie for _, movie, rating in before if rating >= 4][-50:]
        assert row["gender"] in "FM"
        assert row["genres"]
        later = [event for event in by_user[row["user"]] if event[0] > row["time"]]
        assert len(later) < len(by_user[row["user"]]) // 10


def test_the_builder_reports_progress(tmp_path):
    seen = []
    raw = raw_1m(tmp_path / "raw")
    build(BY_NAME["movielens_1m"], raw, tmp_path / "samples", 0, lambda *now: seen.append(now))
    assert seen[-1] == ("histories", 6, 6)
