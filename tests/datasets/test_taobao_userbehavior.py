"""Taobao UserBehavior: targets, negatives, histories and days, on real rows."""

from collections import Counter, defaultdict

import pytest

from hotrows.data.datasets import tables
from hotrows.data.datasets.taobao import TARGETS
from tests.data.raw import SAMPLES, sample
from tests.datasets.raw_files import built, lacking, rows_of, write

BEGIN = tables.day("2017-11-25") * 86_400 - 8 * 3600
DAY = 86_400


@pytest.fixture(scope="module")
def log():
    lines = sample("taobao_userbehavior_4k.csv").read_text().splitlines()
    events = [(*map(int, line.split(",")[:3]), *line.split(",")[3:]) for line in lines]
    return [event for event in events if BEGIN <= int(event[4]) < BEGIN + 9 * DAY]


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    sample("taobao_userbehavior_4k.csv")
    return built("taobao_userbehavior", SAMPLES, tmp_path_factory.mktemp("behaviour"))


def test_the_samples_hold_what_the_schema_asks_for(parts):
    assert not lacking("taobao_userbehavior", parts)
    assert all(len(parts[name]) > 200 for name in ("train", "validation", "test"))


def test_a_positive_is_a_view_and_its_negative_was_left_alone(parts, log):
    views = {(user, item, int(time)) for user, item, _, kind, time in log if kind == "pv"}
    touched = {(user, item) for user, item, *_ in log}
    category = {item: category for _, item, category, *_ in log}
    rows = rows_of(parts)
    for positive, negative in zip(rows[::2], rows[1::2], strict=True):
        assert (positive["label"], negative["label"]) == (1, 0)
        assert (positive["user"], positive["item"], positive["time"]) in views
        assert (negative["user"], negative["item"]) not in touched
        assert negative["category"] == category[negative["item"]]
        same = ("user", "time", "history_item", "history_category")
        assert [positive[name] for name in same] == [negative[name] for name in same]


def test_the_history_is_what_the_user_did_before(parts, log):
    by_user = defaultdict(set)
    for user, item, category, kind, time in log:
        by_user[user].add((int(time), item, category, kind))
    for row in rows_of(parts):
        before = sorted(event for event in by_user[row["user"]] if event[0] < row["time"])[-50:]
        assert row["history_item"] == [event[1] for event in before]
        assert row["history_category"] == [event[2] for event in before]


def test_each_user_has_at_most_so_many_targets(parts, log):
    views = Counter(user for user, *_, kind, _ in {tuple(event) for event in log} if kind == "pv")
    targets = Counter(row["user"] for row in rows_of(parts) if row["label"])
    assert targets == {user: min(count, TARGETS) for user, count in views.items()}


def test_the_last_day_tests_and_the_day_before_validates(parts):
    days = {name: {(row["time"] - BEGIN) // DAY for row in rows} for name, rows in parts.items()}
    assert days["validation"] == {7}
    assert days["test"] == {8}
    assert max(days["train"]) == 6


def test_repeated_rows_and_those_outside_the_nine_days_are_left_out(tmp_path):
    lines = [f"1,{10 + i},5,pv,{BEGIN + 100 * i}" for i in range(3)]
    lines += [lines[0], f"1,99,5,pv,{BEGIN - 1}", f"1,98,5,pv,{BEGIN + 9 * DAY}"]
    lines += [f"2,{20 + i},6,buy,{BEGIN}" for i in range(3)]
    raw = write(tmp_path / "raw", {"UserBehavior.csv": lines})
    rows = built("taobao_userbehavior", raw, tmp_path)["train"]
    assert [(row["item"], row["history_item"]) for row in rows[::2]] == [
        *[(10, []), (11, [10]), (12, [10, 11])]
    ]
    assert {row["item"] for row in rows[1::2]} <= {20, 21, 22}
    assert {row["category"] for row in rows[1::2]} == {6}


def test_the_seed_decides_the_targets_and_the_negatives(tmp_path):
    sample("taobao_userbehavior_4k.csv")
    one, again, other = (
        built("taobao_userbehavior", SAMPLES, tmp_path / str(i), seed) for i, seed in enumerate((1, 1, 2))
    )
    assert one == again
    assert one != other
