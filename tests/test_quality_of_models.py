"""The benchmark of models: runs that are continued."""

from benchmarks import models


def test_runs_of_equal_settings_are_continued_and_have_the_commit_that_made_them():
    row = {"model": "dnn", "options": {"dim": 8}, "settings": {}}
    stored = row | {"commit": "b", "auc": 0.7, "runs": [{"seed": 0, "commit": "a"}, {"seed": 1}]}
    assert models.earlier(stored, row) == {0: {"seed": 0, "commit": "a"}, 1: {"seed": 1, "commit": "b"}}
    assert models.earlier(stored, row | {"options": {"dim": 16}}) == models.earlier(None, row) == {}
