"""From a raw folder to encoded data: what `prepare` is asked, and what is left behind."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from hotrows import data
from hotrows.data import datasets
from hotrows.data.datasets import BY_NAME, Samples, schemas
from hotrows.data.datasets.dataset import build
from hotrows.schema import Schema
from tests.datasets.raw_files import write

ADULT = BY_NAME["adult"]


class Stopped(BaseException):
    """As an interruption."""


@pytest.fixture
def calls(monkeypatch):
    """What `hotrows.data.encode.prepare` was asked; it encodes nothing."""
    calls = []

    def prepare(raw, schema, out, **how):
        assert all(Path(path).exists() for path in raw)
        calls.append({"raw": raw, "schema": schema, "out": out, **how})
        if "fails" in how:
            raise how["fails"]
        return "encoded"

    monkeypatch.setattr(data, "prepare", prepare)
    return calls


def test_the_parts_of_a_builder_are_those_of_the_encoded_data(tmp_path, calls):
    assert datasets.prepare(ADULT, None, tmp_path / "enc", seed=3, threads=2) == "encoded"
    (call,) = calls
    names = {part: [path.name for path in call[part]] for part in ("raw", "validation", "test")}
    assert names == {"raw": ["train.csv"], "validation": ["validation.csv"], "test": ["test.csv"]}
    assert call["schema"] is ADULT.schema
    assert (call["out"], call["seed"], call["threads"]) == (tmp_path / "enc", 3, 2)
    assert call["split"] == "fraction:1,0,0"
    assert list(tmp_path.iterdir()) == []


def test_a_set_that_comes_as_one_part_is_split(tmp_path, calls):
    raw = write(tmp_path / "raw", {"train.txt": ["1"]})
    datasets.prepare(BY_NAME["criteo"], raw, tmp_path / "enc")
    datasets.prepare(BY_NAME["criteo"], raw, tmp_path / "enc", split="position:0.8")
    assert [call["split"] for call in calls] == ["stratified:0.8,0.1,0.1", "position:0.8"]
    assert calls[0]["raw"] == [raw / "train.txt"]
    assert (raw / "train.txt").exists()


def test_a_set_that_comes_in_parts_takes_no_split(tmp_path, calls):
    with pytest.raises(ValueError, match="'adult' comes in parts, so split must be None"):
        datasets.prepare(ADULT, None, tmp_path / "enc", split="position:0.8")


def test_samples_are_kept_where_asked_and_built_once(tmp_path, calls):
    for _ in range(2):
        datasets.prepare(ADULT, None, tmp_path / "enc", samples=tmp_path / "kept")
    names = {path.name for path in (tmp_path / "kept").iterdir()}
    assert names == {"train.csv", "validation.csv", "test.csv", "samples.json"}
    assert calls[0]["raw"] == calls[1]["raw"] == [tmp_path / "kept" / "train.csv"]


def test_samples_of_something_else_are_not_taken(tmp_path):
    build(ADULT, None, tmp_path / "kept")
    with pytest.raises(ValueError, match=r"holds samples of .*'seed': 0.* were asked for; delete it"):
        build(ADULT, None, tmp_path / "kept", seed=1)


def test_an_error_leaves_nothing_and_an_interruption_the_samples(tmp_path, calls):
    with pytest.raises(ValueError, match="bad row"):
        datasets.prepare(ADULT, None, tmp_path / "enc", fails=ValueError("bad row"))
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(Stopped):
        datasets.prepare(ADULT, None, tmp_path / "enc", fails=Stopped())
    assert [path.name for path in tmp_path.iterdir()] == ["enc.samples"]
    datasets.prepare(ADULT, None, tmp_path / "enc")
    assert list(tmp_path.iterdir()) == []


def test_a_builder_that_fails_leaves_nothing(tmp_path):
    def fails(raw, samples, seed, progress) -> Samples:
        (samples / "train.csv").write_text("half")
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        build(replace(ADULT, build=fails), None, tmp_path / "kept")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("data_set", datasets.ALL, ids=lambda data_set: data_set.name)
def test_every_set_is_described_and_its_schema_can_be_stored(data_set):
    assert schemas.load(data_set.name) is data_set.schema
    assert Schema.from_json(data_set.schema.to_json()) == data_set.schema
    assert data_set.schema.name == data_set.name
    page = (Path(__file__).parents[2] / "docs" / "reference" / "data_sets.md").read_text()
    (page,) = re.findall(rf"^## {data_set.name}\n.*?(?=^## |\Z)", page, re.M | re.S)
    assert f"hotrows data {data_set.name}" in page
    assert f"{data_set.rows:,}" in page
    for source in data_set.sources:
        assert not source.md5 or source.md5 in page, source.file


def test_the_manifest_says_what_the_samples_were_built_of(tmp_path):
    raw = write(tmp_path / "raw", {"train.txt": ["1"]})
    build(BY_NAME["criteo"], raw, tmp_path / "kept", seed=4)
    manifest = json.loads((tmp_path / "kept" / "samples.json").read_text())
    assert manifest.pop("format") == 1 and manifest.pop("crc32")
    assert manifest == {
        "name": "criteo",
        "raw": str(raw),
        "seed": 4,
        "files": {"train": [str(raw / "train.txt")], "validation": [], "test": []},
    }
