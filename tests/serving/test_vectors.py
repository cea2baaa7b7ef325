"""Vectors of a feature's values in files, and the example that retrieves by them."""

import json
import runpy
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from hotrows import cli, load_run
from tests.support.bundles import SMALL

ROOT = Path(__file__).parents[2]


def test_vectors_are_written_as_numpy_arrow_and_parquet(din_run, tmp_path, capsys):
    predictor = load_run(din_run)
    expected = predictor.vectors("item")
    predictor.embedding.close()
    for suffix in ("npy", "arrow", "parquet"):
        cli.main(
            ["export", str(din_run), "--vectors", "item", "--out", str(tmp_path / f"items.{suffix}")]
        )
    assert f"{expected.num_rows} vectors of {SMALL['din']['dim']} numbers" in capsys.readouterr().out
    assert pa.ipc.open_file(tmp_path / "items.arrow").read_all().equals(expected)
    assert pyarrow.parquet.read_table(tmp_path / "items.parquet").equals(expected)
    assert np.load(tmp_path / "items.npy").tolist() == expected["vector"].to_pylist()
    values = json.loads((tmp_path / "items.values.json").read_text())
    assert values == expected["value"].to_pylist()

    pytest.importorskip("faiss")  # whose newest version needs NumPy 2, without saying so
    nearest = runpy.run_path(str(ROOT / "examples" / "retrieval.py"))["nearest"]
    vectors = {
        value: row / np.linalg.norm(row)
        for value, row in zip(values, np.load(tmp_path / "items.npy"), strict=True)
    }
    for value, others in nearest(str(tmp_path / "items.npy"), 2).items():
        cosines = sorted((float(vectors[value] @ vectors[o]) for o in values if o != value), reverse=True)
        assert [float(vectors[value] @ vectors[o]) for o in others] == pytest.approx(
            cosines[:2], abs=1e-5
        )


def test_vectors_are_refused_in_words(din_run, tmp_path, capsys):
    for arguments, why in (
        (["--vectors", "item", "--out", "items.csv"], "FILE.npy, .arrow or .parquet, not 'items.csv'"),
        (["--vectors", "itm", "--out", "items.npy"], "did you mean 'item'"),
        (["--vectors", "item", "--out", "x.npy", "--format", "onnx"], "--vectors writes vectors alone"),
    ):
        with pytest.raises(SystemExit):
            cli.main(["export", str(din_run), *arguments])
        assert why in capsys.readouterr().err
