"""Synthetic samples of many fields: as declared, reproducible, and worth learning from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import hotrows
from hotrows import Adagrad, TrainConfig, Trainer
from hotrows.data.datasets.product import BLOCK, DIMS, product_fields, synth_product
from hotrows.schema import Schema


def test_equal_seeds_write_equal_bytes_and_fewer_rows_the_first_of_them(tmp_path: Path) -> None:
    first = synth_product(BLOCK + 9, tmp_path / "a", num_fields=9, seed=3).read_bytes()
    assert synth_product(BLOCK + 9, tmp_path / "b", num_fields=9, seed=3).read_bytes() == first
    fewer = synth_product(40, tmp_path / "c", num_fields=9, seed=3).read_bytes()
    assert first.startswith(fewer) and fewer.count(b"\n") == 40
    assert synth_product(40, tmp_path / "d", num_fields=9, seed=4).read_bytes() != fewer


def test_fields_are_of_many_dims_sizes_and_skews_and_some_are_lists() -> None:
    fields = product_fields(1834)
    assert product_fields(100) == fields[:100]
    assert {field.dim for field in fields} == set(DIMS)
    assert 0.1 < sum(field.mean_length > 0 for field in fields) / len(fields) < 0.15
    sizes = [field.skew.num_places for field in fields]
    assert min(sizes) < 20 and max(sizes) > 900_000
    exponents = [field.skew.exponent for field in fields]
    assert min(exponents) < 0.65 and max(exponents) > 1.35


@pytest.mark.parametrize("rows, num_fields", [(0, 26), (10, 3), (10, 5000)])
def test_what_cannot_be_made_is_refused(tmp_path: Path, rows: int, num_fields: int) -> None:
    with pytest.raises(ValueError, match=r"rows of 1 or more and num_fields from 4 to 4,096, not"):
        synth_product(rows, tmp_path, num_fields=num_fields)


def test_a_model_of_the_dims_suggested_learns_it(tmp_path: Path) -> None:
    """The base rate's AUC is 0.5; the settings written beside the samples are those that train."""
    raw = synth_product(12_000, tmp_path / "raw", num_fields=26)
    schema = Schema.load(raw.with_name("schema.json"))
    data = hotrows.prepare(raw, schema, tmp_path / "enc", split="position:0.8,0.1,0.1")
    settings = json.loads(raw.with_name("wide_deep.json").read_text())
    settings["model_options"]["hidden"] = [32]
    config = TrainConfig(**settings, epochs=2, batch_size=256, row_optimizer=Adagrad(lr=0.05), seed=1)
    trainer = Trainer(data, config, run=tmp_path / "run")
    result = trainer.fit(verbose=False)
    assert {table.dim for table in trainer.recommender.embedding.tables} >= {1, 4, 8, 16, 32}
    assert result.test is not None and result.test.auc > 0.65, result.test
