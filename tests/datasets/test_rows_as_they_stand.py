"""Sets whose files are samples already: Criteo, Avazu and Adult."""

import gzip

import pytest

from hotrows.data.datasets import BY_NAME
from hotrows.data.datasets.dataset import build
from tests.data.raw import SAMPLES, sample
from tests.datasets.raw_files import write


@pytest.mark.parametrize(("name", "file"), [("criteo", "train.txt"), ("avazu", "train.gz")])
def test_files_of_samples_are_taken_as_they_stand(tmp_path, name, file):
    raw = write(tmp_path / "raw", {file: ["1"]})
    samples = build(BY_NAME[name], raw, tmp_path / "samples")
    assert samples.train == (raw / file,)
    assert samples.validation == samples.test == ()


def test_the_halves_of_the_last_day_validate_and_test(tmp_path):
    raw = write(tmp_path / "raw", {"day_0": ["a"], "day_10": ["k", "l", "m"], "other": []})
    (raw / "day_9.gz").write_bytes(gzip.compress(b"j\n"))
    samples = build(BY_NAME["criteo_1tb"], raw, tmp_path / "samples")
    assert samples.train == (raw / "day_0", raw / "day_9.gz")
    assert samples.validation[0].read_text() == "k\n"
    assert samples.test[0].read_text() == "l\nm\n"


def test_one_day_alone_cannot_be_cut(tmp_path):
    raw = write(tmp_path / "raw", {"day_3": ["a"]})
    with pytest.raises(ValueError, match="holds day_3 alone, but the last day is kept for validation"):
        build(BY_NAME["criteo_1tb"], raw, tmp_path / "samples")


def test_adult_comes_with_the_package(tmp_path):
    samples = build(BY_NAME["adult"], None, tmp_path / "samples")
    parts = [paths[0].read_text().splitlines() for paths in (samples.train, samples.validation)]
    test = samples.test[0].read_text().splitlines()
    assert [len(rows) for rows in (*parts, test)] == [29_305, 3_256, 16_281]
    labels = BY_NAME["adult"].schema.labels[0].positive
    for rows, positives in ((parts[0] + parts[1], 7841), (test, 3846)):
        assert sum(row.split(", ")[-1] in labels for row in rows) == positives
        assert {row.count(",") for row in rows} == {len(BY_NAME["adult"].schema.columns) - 1}


def test_adult_equals_the_sample(tmp_path):
    samples = build(BY_NAME["adult"], None, tmp_path / "samples")
    train = sample("adult.data").read_text().splitlines()
    assert samples.train[0].read_text().splitlines() == train[:29_305]
    assert samples.test[0].read_text().splitlines() == (SAMPLES / "adult.test").read_text().splitlines()


def test_adult_is_read_from_a_folder_that_holds_it(tmp_path):
    files = {"adult.data": ["39, x", ""], "adult.test": ["|1x3 Cross validator", "25, y", ""]}
    samples = build(BY_NAME["adult"], write(tmp_path / "raw", files), tmp_path / "samples")
    assert samples.train[0].read_text() == "39, x\n"
    assert samples.test[0].read_text() == "25, y\n"


def test_avazu_makes_hour_weekday_and_weekend_of_the_time():
    schema = BY_NAME["avazu"].schema
    assert [schema.column_of(feature) for feature in schema.sparse[:3]] == ["hour"] * 3
    assert len(schema.sparse) == 24
