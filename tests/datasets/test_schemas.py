"""The built-in schemas, on real rows, and schemas of the user's own."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from hotrows.data import Encoder, Loader, describe, prepare
from hotrows.data.datasets import schemas
from hotrows.schema import Schema
from tests.data.raw import SCHEMA, files_of, read, sample
from tests.reference.rows_of_data import use_plain_python


def test_criteo_rows_survive_the_way(tmp_path):
    raw = sample("criteo_kaggle_10k.tsv")
    data = prepare([raw], schemas.criteo, tmp_path / "out", split="position:0.8")
    assert [part.rows for part in data.parts.values()] == [7200, 800, 2000]
    lines = raw.read_text().splitlines()[:7200]
    _, dense, labels = read(data)
    first = [float(x) if x else 0.0 for x in lines[0].split("\t")[1:14]]
    assert np.allclose(dense[0], np.log1p(np.maximum(first, 0)))
    assert labels.tolist() == [float(line[0]) for line in lines]
    description = describe(data)
    assert description.parts["train"].positive_rates["label"] == pytest.approx(0.218, abs=0.01)
    assert {field.name: field for field in description.fields}["C22"].missing["train"] > 0.7


def test_criteo_is_read_alike_in_plain_python(tmp_path, monkeypatch):
    raw = tmp_path / "raw"
    raw.write_bytes(b"".join(sample("criteo_kaggle_10k.tsv").read_bytes().splitlines(True)[:500]))
    prepare([raw], schemas.criteo, tmp_path / "native")
    use_plain_python(monkeypatch)
    prepare([raw], schemas.criteo, tmp_path / "plain")
    assert files_of(tmp_path / "native") == files_of(tmp_path / "plain")


def test_criteo_rows_without_labels_are_encoded(tmp_path):
    raw = sample("criteo_kaggle_10k.tsv")
    prepare([raw], schemas.criteo, tmp_path / "out")
    lines = raw.read_bytes().splitlines(True)
    (tmp_path / "test.txt").write_bytes(b"".join(line[2:] for line in lines))
    encoder = Encoder.open(tmp_path / "out")
    for one, other in zip(encoder.encode(raw), encoder.encode(tmp_path / "test.txt"), strict=True):
        assert torch.equal(one.ids, other.ids)
        assert torch.equal(one.dense, other.dense)
        assert (one.labels is None, other.labels is None) == (False, True)


def test_avazu_rows_survive_the_way(tmp_path):
    data = prepare([sample("avazu_14k.csv")], schemas.avazu, tmp_path / "out")
    assert sum(part.rows for part in data.parts.values()) == 14_077
    clicks = sum(part.clicks[0] for part in data.parts.values())
    assert clicks / 14_077 == pytest.approx(0.173, abs=0.001)
    assert (len(data.schema.dense), len(data.schema.sparse)) == (0, 24)
    batches = list(Loader(data.parts["train"], 1000, shuffle=True).batches(0))
    assert sum(batch.size for batch in batches) == data.parts["train"].rows


def test_a_schema_is_found_by_name_or_file(tmp_path):
    assert schemas.load("criteo") is schemas.BY_NAME["criteo"]
    SCHEMA.save(tmp_path / "mine.json")
    assert schemas.load(tmp_path / "mine.json") == SCHEMA
    (tmp_path / "mine.py").write_text(
        "from hotrows import Schema, Sparse\nschema = Schema(features=(Sparse('user'),))\n"
    )
    assert schemas.load(str(tmp_path / "mine.py")).sparse[0].name == "user"


def test_the_schema_of_the_documentation_is_one():
    page = (Path(__file__).parents[2] / "docs" / "data.md").read_text()
    python = re.search(r"```python\n(from hotrows import Dense.*?)```", page, re.DOTALL)[1]
    defined: dict = {}
    exec(python, defined)
    of_json = json.loads(re.search(r"```json\n(.*?)```", page, re.DOTALL)[1])
    assert json.loads(defined["schema"].to_json())["features"][-2:] == of_json["features"]
    assert Schema.from_json(defined["schema"].to_json()) == defined["schema"]


def test_every_min_count_can_be_set_at_once():
    schema = schemas.with_min_count(schemas.criteo, 3)
    assert {feature.min_count for feature in schema.sparse} == {3}
    assert schema.dense == schemas.criteo.dense


def test_what_is_no_schema_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"'critoe' is unknown: give one of .*'avazu', 'criteo'"):
        schemas.load("critoe")
    with pytest.raises(ValueError, match=r"mine\.json does not exist"):
        schemas.load(tmp_path / "mine.json")
    (tmp_path / "mine.json").write_text('{"features": [{"kind": "wide", "name": "x"}]}')
    with pytest.raises(ValueError, match="cannot be read: feature kind must be one of"):
        schemas.load(tmp_path / "mine.json")
    (tmp_path / "mine.py").write_text("scheme = 1\n")
    with pytest.raises(ValueError, match="must define `schema`"):
        schemas.load(tmp_path / "mine.py")
