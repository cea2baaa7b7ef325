"""Taobao display ads: joins, missing profiles, NULL brands, histories and days, on the public layout."""

import pytest

from tests.datasets.layouts.taobao_ad import FILES, SHOWN
from tests.datasets.raw_files import built, lacking, write

IDS = {
    "cms_segid": 0,
    "cms_group_id": 5,
    "final_gender_code": 2,
    "age_level": 5,
    "pvalue_level": None,
    "shopping_level": 3,
    "occupation": 0,
    "new_user_class_level": 3,
}


@pytest.fixture
def parts(tmp_path):
    return built("taobao_ad", write(tmp_path / "raw", FILES), tmp_path)


def test_the_samples_hold_what_the_schema_asks_for(parts):
    assert not lacking("taobao_ad", parts)


def test_an_impression_is_joined_with_ad_profile_and_the_behaviours_before(parts):
    assert parts["train"] == [
        {
            "user": 581738,
            "time_stamp": SHOWN,
            "adgroup_id": 1,
            "pid": "430548_1007",
            "clk": 0,
            "cate_id": 6406,
            "campaign_id": 83237,
            "customer": 11,
            "brand": 95471,
            "price": 170.0,
            **IDS,
            "history_cate": [6, 5],
            "history_brand": [60, 50],
            "history_btag": ["pv", "cart"],
        }
    ]


def test_the_last_day_tests_and_a_null_brand_is_missing(parts):
    (row,) = parts["test"]
    assert (row["clk"], row["brand"], row["price"]) == (1, None, 99999999.0)
    assert row["history_cate"] == [6, 5, 7, 8]
    assert row["history_brand"] == [60, 50, 70, None]


def test_users_without_a_profile_and_unknown_ads_stay_with_missing_values(parts):
    by_user = {row["user"]: row for row in parts["validation"]}
    assert {by_user[9][name] for name in IDS} == {None}
    assert by_user[9]["history_cate"] == []
    assert by_user[581738]["cate_id"] is None


def test_the_files_may_be_packed_and_go_by_their_older_names(tmp_path):
    files = dict(FILES)
    lines = files.pop("behavior_log.csv")
    files["raw_behavior_log.csv"] = ["nick,time_stamp,btag,cate,brand", *lines[1:]]
    parts = built("taobao_ad", write(tmp_path / "raw", files), tmp_path)
    assert parts["train"][0]["history_cate"] == [6, 5]
