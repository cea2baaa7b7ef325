"""Amazon: DIN's samples of the files of 2014, and DIEN's text."""

import pytest

from tests.datasets.layouts.amazon import REVIEWS, raw
from tests.datasets.raw_files import built, lacking, rows_of, write


def positives(rows):
    return [(row["user"], row["item"], row["history_item"]) for row in rows if row["label"]]


def test_every_review_but_the_first_is_a_target_and_the_last_two_are_held_out(tmp_path):
    parts = built("amazon", raw(tmp_path / "raw"), tmp_path)
    assert not lacking("amazon", parts)
    assert positives(parts["train"]) == [("A", "i3", ["i2"])]
    assert positives(parts["validation"]) == [("A", "i1", ["i2", "i3"])]
    assert positives(parts["test"]) == [("A", "i4", ["i2", "i3", "i1"]), ("B", "i5", ["i1"])]


def test_beside_each_stands_an_item_the_user_never_reviewed(tmp_path):
    rows = rows_of(built("amazon", raw(tmp_path / "raw"), tmp_path))
    reviewed = {(user, item) for user, item, _ in REVIEWS}
    for positive, negative in zip(rows[::2], rows[1::2], strict=True):
        assert (negative["user"], negative["item"]) not in reviewed
        assert negative["history_item"] == positive["history_item"]


def test_the_category_is_the_last_one_and_may_be_missing(tmp_path):
    rows = rows_of(built("amazon", raw(tmp_path / "raw"), tmp_path))
    for row in rows:
        categories = {f"i{i}": f"Men's {i % 2}" for i in range(1, 6)} | {"i6": None}
        assert row["category"] == categories[row["item"]]
        assert row["history_category"] == [categories[item] for item in row["history_item"]]


def test_reviews_that_lack_a_field_are_an_error(tmp_path):
    folder = raw(tmp_path / "raw")
    (folder / "reviews_Electronics_5.json.gz").unlink()
    write(folder, {"reviews_Electronics_5.json": ['{"asin": "i1", "unixReviewTime": 3}']})
    with pytest.raises(ValueError, match=r"expected \['reviewerID'\] in every review"):
        built("amazon", folder, tmp_path)


def test_the_text_of_dien_is_read_as_it_stands(tmp_path):
    line = "1\tAZPJ9LUT0FEPY\t0307744434\tLiterature\t0307248577\x020307461505\tBooks\x02Art's"
    files = {
        "local_train_splitByUser": [line] * 2 + ["0\tB\t7\tBooks\t9\tBooks"],
        "local_test_splitByUser": [line.replace("1\t", "0\t", 1)],
    }
    parts = built("amazon", write(tmp_path / "raw", files), tmp_path)
    assert not lacking("amazon", parts)
    assert parts["test"] == [
        {
            "label": 0,
            "user": "AZPJ9LUT0FEPY",
            "item": "0307744434",
            "category": "Literature",
            "history_item": ["0307248577", "0307461505"],
            "history_category": ["Books", "Art's"],
        }
    ]
    assert len(parts["train"]) + len(parts.get("validation", [])) == 3


def test_a_tenth_of_diens_users_validates(tmp_path):
    lines = [f"{i % 2}\tu{i // 2}\t7\tBooks\t9\tBooks" for i in range(1000)]
    files = {"local_train_splitByUser": lines, "local_test_splitByUser": lines[:2]}
    parts = built("amazon", write(tmp_path / "raw", files), tmp_path)
    users = {name: {row["user"] for row in rows} for name, rows in parts.items()}
    assert not users["train"] & users["validation"]
    assert 30 <= len(users["validation"]) <= 75


def test_a_quote_in_diens_text_is_a_character_like_any_other(tmp_path):
    line = '1\tA\t7\t"Books\t9\x028\tBooks\x02"Art'
    files = {"local_train_splitByUser": [line], "local_test_splitByUser": [line]}
    (row,) = built("amazon", write(tmp_path / "raw", files), tmp_path)["test"]
    assert (row["category"], row["history_category"]) == ('"Books', ["Books", '"Art'])


def test_text_that_is_no_json_is_an_error_that_names_the_file(tmp_path):
    folder = raw(tmp_path / "raw")
    (folder / "reviews_Electronics_5.json.gz").unlink()
    write(folder, {"reviews_Electronics_5.json": ["{'asin': 'i1'}"]})
    with pytest.raises(ValueError, match=r"reviews_Electronics_5.json: expected a JSON object a line"):
        built("amazon", folder, tmp_path)
