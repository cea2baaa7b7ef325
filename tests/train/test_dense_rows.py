"""Runs whose rows are under a dense optimizer: interrupted, cached, swept, continued, exported."""

import dataclasses

import pytest
import torch
from safetensors.torch import load_file

from hotrows import DenseAdam, DenseAdamW
from hotrows.data import prepare
from hotrows.engine import dense_rows
from hotrows.serving.export.whole import export
from hotrows.train import Interrupted, Trainer, load_run
from tests.support.runs import CONFIG, assert_same_run, interrupt_after, schema, write_rows

pytestmark = pytest.mark.usefixtures("one_thread", "no_pictures")

SMALL = dataclasses.replace(
    CONFIG, batch_size=16, epochs=1, row_optimizer=DenseAdam(lr=0.01, weight_decay=1e-3),
    warmup_steps=20, checkpoint_every=9,
)  # fmt: skip


@pytest.fixture(scope="module")
def encoded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    raw = write_rows(folder / "raw.csv", 1200)
    return prepare([raw], schema(), folder / "enc", split="position:0.6,0.2,0.2")


@pytest.fixture(autouse=True)
def sweeps(monkeypatch):
    """All rows catch up every 17 steps, so that it happens three times in a run of 45."""
    monkeypatch.setattr(dense_rows, "MAX_DEFERRED_STEPS", 17)


@pytest.fixture(scope="module")
def whole(encoded, tmp_path_factory):
    run = tmp_path_factory.mktemp("runs") / "whole"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dense_rows, "MAX_DEFERRED_STEPS", 17)
        return run, Trainer(encoded, SMALL, run).fit()


@pytest.mark.parametrize("store", ["memory", "file"])
def test_an_interrupted_run_behind_a_cache_goes_on_to_the_bits_of_one_in_memory(
    encoded, whole, tmp_path, store
):
    """Its evaluations and checkpoints are at other steps than those of the whole run."""
    path = f"file:{tmp_path / 'store'}" if store == "file" else "memory"
    config = dataclasses.replace(
        SMALL, fast_memory=5000, store=path, full_every=2 if store == "memory" else 1
    )
    with pytest.raises(Interrupted):
        Trainer(encoded, config, tmp_path / "run", progress=interrupt_after(21)).fit()
    result = Trainer(encoded, config, tmp_path / "run", resume=True).fit()
    assert_same_run(tmp_path / "run", result, whole)


def test_a_run_that_was_read_back_predicts_what_it_had_evaluated(encoded, whole, tmp_path):
    predictor = load_run(whole[0])
    assert predictor.evaluate(encoded.parts["test"]) == whole[1].test
    export(whole[0], tmp_path / "out")
    for table in predictor.embedding.tables:
        exported = load_file(tmp_path / "out" / "tables" / f"{table.name}.safetensors")["weight"]
        assert torch.equal(exported, predictor.embedding.weights(table.name))


def test_a_run_continues_with_another_rate_from_the_rows_as_they_were(encoded, whole, tmp_path):
    config = dataclasses.replace(SMALL, start_from=str(whole[0]), row_optimizer=DenseAdamW(lr=0.1))
    later, before = Trainer(encoded, config, tmp_path / "later"), load_run(whole[0])
    rows = later.embedding.packed.dense_rows
    assert rows.now == before.embedding.packed.dense_rows.now > 0 and rows.num_recorded == 0
    for table in before.embedding.tables:
        torch.testing.assert_close(
            later.embedding.weights(table.name), before.embedding.weights(table.name)
        )
    assert later.fit().test.auc > 0.5


def test_clipping_all_gradients_goes_on_to_the_same_bits(encoded, tmp_path):
    """A limit that every step reaches, with an L2 term that is part of the norm."""
    clipped = {"clip_norm": 0.05, "clip_rows": True, "row_optimizer": DenseAdam(lr=0.01, l2=0.01)}
    config = dataclasses.replace(SMALL, **clipped)
    plain = Trainer(encoded, dataclasses.replace(SMALL, clip_norm=0.05), tmp_path / "plain").fit()
    whole = tmp_path / "whole", Trainer(encoded, config, tmp_path / "whole").fit()
    assert whole[1].test != plain.test
    for name, store in (("memory", "memory"), ("file", f"file:{tmp_path / 'store'}")):
        config = dataclasses.replace(config, fast_memory=5000, store=store)
        with pytest.raises(Interrupted):
            Trainer(encoded, config, tmp_path / name, progress=interrupt_after(21)).fit()
        result = Trainer(encoded, config, tmp_path / name, resume=True).fit()
        assert_same_run(tmp_path / name, result, whole)
