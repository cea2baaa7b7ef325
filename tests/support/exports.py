"""How exported tables and models are compared with the run that they come from."""

import json

import torch
from safetensors.torch import load_file

from hotrows.train import load_run


def assert_exported(run, out, which="best"):
    """Every parameter and row of the run stands in `out`, and `export.json` names them all."""
    predictor, listing = load_run(run, which), json.loads((out / "export.json").read_text())
    parameters, expected = load_file(out / listing["parameters"]), predictor.model.state_dict()
    assert parameters.keys() == expected.keys()
    assert all(torch.equal(parameters[name], expected[name]) for name in expected)
    tables = {table.name: table for table in predictor.embedding.tables}
    assert [table["name"] for table in listing["tables"]] == list(tables)
    for entry in listing["tables"]:
        weights = load_file(out / entry["file"])
        expected = predictor.embedding.weights(entry["name"])
        assert weights.keys() == {"weight"} and weights["weight"].dtype == expected.dtype
        assert torch.equal(weights["weight"], expected)
        assert list(expected.shape) == [entry["rows"], entry["dim"]]
        assert entry["dtype"] == str(expected.dtype).removeprefix("torch.")
    predictor.embedding.close()
    return listing
