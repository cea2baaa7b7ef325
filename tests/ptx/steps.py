"""Captured steps of whole models on the pretended GPU, whose kernels are emulated, against the host's.

python -m pytest -p tests.ptx.plugin tests/ptx/steps.py
"""

import dataclasses

import pyarrow as pa
import pytest

from hotrows import data
from hotrows.train import Trainer
from tests.ptx import launch
from tests.support.captures import Captures
from tests.support.clicks import SCHEMA, table
from tests.support.devices import CONFIG, assert_same, on_device
from tests.support.pretend import PretendDevice
from tests.support.runs import encode

pytestmark = pytest.mark.usefixtures("no_pictures")
ROWS = {"runs._sum_windows", "update._update"}
PLANS = {"pool._gather", "resolve._resolve", "unique_padded._count", "unique_padded._fill"}
LISTS = {"pool._pool", "hstu._attend", "hstu._attend_back", "hstu._keys_back", "hstu._bias_back"}
MODELS = {
    "deepfm": ({"hidden": [8]}, ROWS | PLANS),
    "dlrm": ({"bottom": [8], "top": [8]}, ROWS | PLANS),
    "hstu": ({"hidden": [8]}, ROWS | LISTS),
}


@pytest.mark.parametrize("model", MODELS)
def test_captured_steps_are_those_of_the_host(model, tmp_path, monkeypatch):
    options, kernels = MODELS[model]
    if model == "hstu":
        rows = table(300)  # whose lists are all of one length, so that batches are of one size
        for name in ("history", "tags"):
            lists = pa.array([[n % 7, n % 3, n % 5] for n in range(300)])
            rows = rows.set_column(rows.column_names.index(name), name, lists)
        encoded = data.prepare(rows, SCHEMA, tmp_path / "enc", split="position:0.8,0.1,0.1")
    else:
        encoded = encode(tmp_path)
    config = dataclasses.replace(
        CONFIG, model=model, model_options={"dim": 4, **options}, batch_size=16, evaluate_every=1000,
        steps=6, label="click" if model == "hstu" else None,
    )  # fmt: skip
    Trainer(encoded, config, tmp_path / "host").fit()
    monkeypatch.setattr(PretendDevice, "capture", PretendDevice.capture)  # and back
    captured, seen, launch.setting.seen = Captures(), launch.setting.seen, {}
    captured.of(PretendDevice)
    on_device(encoded, dataclasses.replace(config, cuda_graph=True, device="cuda"), tmp_path / "emulated")
    launched, launch.setting.seen = launch.setting.seen, seen
    for name, launches in launched.items():
        seen.setdefault(name, []).extend(launches)
    assert sum(captured.launched) > 0
    assert kernels <= set(launched), sorted(launched)
    assert_same(tmp_path / "host", tmp_path / "emulated", 1e-4)
