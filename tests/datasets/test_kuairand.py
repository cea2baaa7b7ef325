"""KuaiRand: joins, histories of clicks and days, on the public layout."""

import pytest

from hotrows.data.datasets.kuairand import USER_FEATURES
from tests.datasets.layouts.kuairand import FILES, LOG
from tests.datasets.raw_files import built, lacking, write


@pytest.fixture
def parts(tmp_path):
    raw = write(tmp_path / "raw" / "KuaiRand-Pure" / "data", FILES).parents[1]
    return built("kuairand", raw, tmp_path)


def test_the_samples_hold_what_the_schema_asks_for(parts):
    assert not lacking("kuairand", parts)


def test_a_row_is_joined_with_its_user_and_its_video(parts):
    row = parts["train"][2]
    assert {name: row[name] for name in ("user_id", "video_id", "is_click", "is_like", "long_view")} == {
        "user_id": 3,
        "video_id": 300,
        "is_click": 0,
        "is_like": 1,
        "long_view": 1,
    }
    assert [row[name] for name in USER_FEATURES[:8]] == [
        *["full_active", "0", "0", "1", "(0,10]", "[100,1k)", "0", "730+"]
    ]
    assert (row["onehot_feat16"], row["onehot_feat17"]) == ("16", None)
    assert (row["author_id"], row["music_id"], row["tag"]) == (441, "989206467", "8")
    assert (row["duration_ms"], row["tab"]) == (104400.0, 1)


def test_the_history_is_what_was_clicked_in_the_standard_log_before(parts):
    assert [row["history_video"] for row in parts["train"]] == [[], [], [100]]
    assert parts["validation"][0]["history_video"] == [100]
    by_user = {row["user_id"]: row for row in parts["test"]}
    assert by_user[3]["history_video"] == [100, 200]
    assert by_user[3]["history_author"] == [441, 442]
    assert by_user[4]["history_video"] == []


def test_what_is_not_known_of_user_or_video_is_missing(parts):
    by_user = {row["user_id"]: row for row in parts["test"]}
    assert by_user[3]["author_id"] is None  # video 999
    assert by_user[4]["user_active_degree"] is None
    assert parts["validation"][0]["tag"] is None


def test_nothing_of_the_outcome_is_in_the_samples(parts):
    assert not {"play_time_ms", "comment_stay_time", "is_comment"} & set(parts["train"][0])


def test_the_files_of_27k_come_in_parts(tmp_path):
    first, second = (FILES[name] for name in list(FILES)[:2])
    files = {
        "log_standard_4_08_to_4_21_27k_part1.csv": first[:2],
        "log_standard_4_08_to_4_21_27k_part2.csv": [LOG, *first[2:]],
        "log_standard_4_22_to_5_08_27k_part1.csv": second,
        "user_features_27k.csv": FILES["user_features_pure.csv"],
        "video_features_basic_27k.csv": FILES["video_features_basic_pure.csv"],
    }
    parts = built("kuairand", write(tmp_path / "raw", files), tmp_path)
    assert [len(parts[name]) for name in ("train", "validation", "test")] == [3, 1, 2]
