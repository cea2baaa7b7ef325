"""Ali-CCP: nested features, the join over the common ones, and impossible purchases."""

import pytest

from hotrows.data.datasets.ali_ccp import LONGEST
from tests.datasets.layouts.ali_ccp import FILES, nested
from tests.datasets.raw_files import built, lacking, rows_of, write


@pytest.fixture
def parts(tmp_path):
    return built("ali_ccp", write(tmp_path / "raw", FILES), tmp_path)


def rows_by_item(parts):
    return {row["item"]: row for name in ("train", "validation") for row in parts.get(name, [])}


def test_the_samples_hold_what_the_schema_asks_for(parts):
    assert not lacking("ali_ccp", parts)


def test_an_impression_holds_its_own_features_and_those_it_shares(parts):
    (row,) = parts["test"]
    assert row == {
        "click": 0,
        "buy": 0,
        "item": "4327193",
        "item_category": "8316799",
        "item_shop": None,
        "item_brand": None,
        "user_item_category": "9355887",
        "user_item_shop": None,
        "user_item_brand": None,
        "user_item_intention": None,
        "position": "9351665",
        "item_intentions": [],
        "user": "31318",
        "user_profile": "3438658",
        "user_group": None,
        "user_gender": "3438769",
        "user_age": None,
        "user_consumption_1": None,
        "user_consumption_2": None,
        "user_is_occupied": None,
        "user_geography": None,
        "user_categories": ["4516977", "4529273"],
        "user_brands": [],
        "user_intentions": [],
        "user_shops": [str(111 - i) for i in range(LONGEST)],
    }


def test_a_field_that_comes_twice_is_a_list(parts):
    row = rows_by_item(parts)["5"]
    assert (row["click"], row["buy"], row["user"]) == (1, 1, "7")
    assert row["item_intentions"] == ["11", "12"]
    assert row["user_shops"] == []


def test_a_purchase_without_a_click_is_left_out(parts):
    assert set(rows_by_item(parts)) == {"4327193", "5", "8"}


def test_an_impression_whose_common_features_are_absent_stays(parts):
    row = rows_by_item(parts)["8"]
    assert (row["user"], row["user_shops"]) == (None, None)


def test_all_impressions_of_common_features_lie_in_one_part(tmp_path):
    common = [f"{i:016x},1," + nested(("101", i, 1.0)) for i in range(500)]
    skeleton = [f"{i},0,0,{i % 500:016x},1," + nested(("205", i, 1.0)) for i in range(1500)]
    files = FILES | {"common_features_train.csv": common, "sample_skeleton_train.csv": skeleton}
    parts = built("ali_ccp", write(tmp_path / "raw", files), tmp_path)
    users = {name: {row["user"] for row in parts[name]} for name in ("train", "validation")}
    assert not users["train"] & users["validation"]
    assert 25 <= len(users["validation"]) <= 75
    assert len(rows_of(parts)) == 1501


def test_another_layout_is_an_error(tmp_path):
    files = FILES | {"sample_skeleton_train.csv": ["1,0,0,bacff91692951881,1,205:7:1"]}
    with pytest.raises(ValueError, match=r"sample_skeleton_train.csv: expected features as FIELD"):
        built("ali_ccp", write(tmp_path / "raw", files), tmp_path)
