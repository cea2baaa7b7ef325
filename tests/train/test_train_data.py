"""Training on what data may bring: lists, weights, several labels, groups, and new ids."""

import dataclasses
import json
import math

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import torch.nn.functional as F

from hotrows import data, models
from hotrows.optim import SGD, Adagrad
from hotrows.schema import Label, Schema, Sparse
from hotrows.table import Table
from hotrows.train import Trainer, load_run
from hotrows.train.config import TrainConfig
from hotrows.train.loop.recommender import Recommender
from hotrows.train.metrics import Metrics
from hotrows.train.run import folder as run_folder
from hotrows.train.run.data import id_counts
from tests.support.clicks import SCHEMA, table

CONFIG = TrainConfig(
    model="deepfm",
    model_options={"dim": 4, "hidden": [16]},
    epochs=2,
    batch_size=64,
    row_optimizer=Adagrad(lr=0.1),
    linear_paths="plain",
)


@pytest.fixture(autouse=True)
def quick(no_pictures, threads):
    threads(1)


@pytest.fixture(scope="module")
def encoded(tmp_path_factory):
    return data.prepare(table(), SCHEMA, tmp_path_factory.mktemp("d") / "enc", split="position:0.8")


def test_it_learns_from_lists_and_reports_grouped_auc(encoded, tmp_path):
    result = Trainer(encoded, CONFIG, tmp_path / "run").fit()
    assert result.test.auc > 0.6
    assert 0.5 < result.test.gauc < 1


def test_each_label_can_be_trained(encoded, tmp_path):
    config = dataclasses.replace(CONFIG, label="buy")
    result = Trainer(encoded, config, tmp_path / "run").fit()
    assert result.test.auc > 0.6
    assert result.test.samples < encoded.parts["test"].rows  # those without the label do not count
    with pytest.raises(ValueError, match="label must be one of click, buy, not 'like'"):
        Trainer(encoded, dataclasses.replace(CONFIG, label="like"), tmp_path / "other")


def test_the_cache_gives_the_same_bits_with_lists(encoded, tmp_path):
    Trainer(encoded, CONFIG, tmp_path / "whole").fit()
    cached = dataclasses.replace(CONFIG, fast_memory=8_000)
    Trainer(encoded, cached, tmp_path / "cached").fit()
    stored = dataclasses.replace(cached, store=f"file:{tmp_path / 'store'}")
    Trainer(encoded, stored, tmp_path / "stored").fit()
    one, *others = (load_run(tmp_path / name) for name in ("whole", "cached", "stored"))
    for other in others:
        for of in one.embedding.tables:
            assert torch.equal(one.embedding.weights(of.name), other.embedding.weights(of.name))


def test_weights_multiply_the_loss(tmp_path):
    """Two samples of weight one and one of weight two are the same to a step of SGD."""
    rows = table(64)
    twice = pa.concat_tables([rows, rows])
    single = rows.set_column(rows.schema.names.index("weight"), "weight", pa.array(np.full(64, 2.0)))
    double = twice.set_column(2, "weight", pa.array(np.ones(128)))
    grads = []
    for name, of in (("single", single), ("double", double)):
        prepared = data.prepare(of, SCHEMA, tmp_path / name, split="fraction:1,0,0")
        # Shared ids need equal vocabularies: counts double, their order stays.
        trainer = Trainer(prepared, dataclasses.replace(CONFIG, steps=1), tmp_path / f"run-{name}")
        loader = data.Loader(prepared.parts["train"], 128, shuffle=False)
        (batch,) = loader.batches(0)
        plan = trainer.embedding.plan(batch)
        vectors = trainer.embedding.lookup(plan)
        to = trainer.recommender.targets(batch)
        logits = trainer.model(vectors, batch.dense)
        loss = torch.nn.functional.binary_cross_entropy_with_logits(
            logits, to.labels, to.weights, reduction="sum"
        )
        loss.backward()
        grads.append([p.grad for p in trainer.model.parameters()])
    for one, other in zip(*grads, strict=True):
        torch.testing.assert_close(one, other)


def test_a_model_goes_on_with_tables_grown(encoded, tmp_path):
    Trainer(encoded, CONFIG, tmp_path / "day1").fit()
    before = load_run(tmp_path / "day1")
    day2 = table(600, seed=5, first_user=10)
    grown = data.prepare(day2, None, tmp_path / "d2", extend=encoded.path, split="position:0.8")
    assert grown.schema.rows_of("user") == encoded.schema.rows_of("user") + 10
    config = dataclasses.replace(CONFIG, epochs=1, start_from=str(tmp_path / "day1"))
    trainer = Trainer(grown, config, tmp_path / "day2")
    for of in before.embedding.tables:
        old = before.embedding.weights(of.name)
        assert torch.equal(trainer.embedding.weights(of.name)[: len(old)], old)
    for name, parameter in before.model.state_dict().items():
        assert torch.equal(trainer.model.state_dict()[name], parameter)
    assert trainer.fit().test.auc > 0.6
    with pytest.raises(ValueError, match="belongs to data of another schema or encoding"):
        other = data.prepare(table(100, seed=9), SCHEMA, tmp_path / "other")
        Trainer(other, config, tmp_path / "day3")


@pytest.mark.filterwarnings("ignore:values differ")
def test_probabilities_of_rows_with_new_ids_and_other_columns(encoded, tmp_path):
    Trainer(encoded, CONFIG, tmp_path / "run").fit()
    predictor, encoder = load_run(tmp_path / "run"), run_folder.open_encoder(tmp_path / "run")
    rows = table(50, seed=3, first_user=15)
    whole = torch.cat(list(predictor.predict(encoder.encode(rows))))
    names = [name for name in reversed(rows.schema.names) if name not in ("click", "buy", "weight")]
    moved = rows.select(names).append_column("more", pa.array(["x"] * 50))
    pq.write_table(moved, tmp_path / "moved.parquet", row_group_size=7)
    again = torch.cat(list(predictor.predict(encoder.encode(tmp_path / "moved.parquet"))))
    torch.testing.assert_close(again, whole)  # smaller batches round otherwise
    without = torch.cat(list(predictor.predict(encoder.encode(moved.drop(["history", "tags"])))))
    assert len(without) == 50 and not torch.equal(without, whole)
    assert all(math.isfinite(p) and 0 < p < 1 for p in without.tolist())


def test_labels_of_other_kinds_train_alike(tmp_path):
    rows = table(300)
    rating = pa.array([5 if c else 2 for c in rows["click"].to_pylist()])
    word = pa.array(["yes" if c else "no" for c in rows["click"].to_pylist()])
    rows = rows.append_column("rating", rating).append_column("word", word)
    results = []
    for label in (
        "click",
        Label("click", "rating", at_least=4),
        Label("click", "word", positive=("yes",)),
    ):
        schema = Schema(SCHEMA.features, label=label)
        of = str(len(results))
        prepared = data.prepare(rows, schema, tmp_path / of)
        results.append(Trainer(prepared, CONFIG, tmp_path / f"run{of}").fit().test)
    assert results[0] == results[1] == results[2]


class Shared(models.Model):
    """Two logits from one layer, and a loss of its own in training."""

    def __init__(self, schema, dim=4, own_loss=0.0):
        super().__init__()
        self.labels = ("click", "buy")
        self.own_loss = own_loss
        self.tables = models.tables.vector_tables(schema, dim)
        self.layer = torch.nn.Linear(len(schema.id_features) * dim, 2)

    def forward(self, vectors, dense):
        logits = self.layer(vectors.stack().flatten(1))
        own = self.own_loss * self.layer.weight.square().sum()
        return (logits, own) if self.training else logits


OWN = f"{__name__}:Shared"


def test_several_labels_are_learned_together(encoded, tmp_path):
    config = dataclasses.replace(CONFIG, model=OWN, model_options={})
    result = Trainer(encoded, config, tmp_path / "run").fit()
    click, buy = result.test.tasks["click"], result.test.tasks["buy"]
    assert min(click.auc, buy.auc, click.gauc) > 0.55
    assert result.test.auc == pytest.approx((click.auc + buy.auc) / 2)
    assert buy.samples < click.samples == encoded.parts["test"].rows
    predictor = load_run(tmp_path / "run", trust=True)
    rows = next(predictor.predict(data.Loader(encoded.parts["test"], 50, shuffle=False).batches(0)))
    assert rows.shape == (50, 2) and predictor.labels == ("click", "buy")
    again = Metrics.from_json(json.loads(json.dumps(result.test.to_json())))
    assert again == result.test


def test_missing_labels_count_for_nothing_and_weights_of_labels_scale(encoded, tmp_path):
    config = dataclasses.replace(CONFIG, model=OWN, model_options={"own_loss": 0.5})
    weighted = dataclasses.replace(config, label_weights={"buy": 3.0})
    batch = next(data.Loader(encoded.parts["train"], 64, shuffle=False).batches(0))
    logits = torch.randn(64, 2)
    present = ~batch.labels.isnan()
    losses = F.binary_cross_entropy_with_logits(logits, batch.labels.nan_to_num(), reduction="none")
    each = (losses * present * batch.sample_weights[:, None]).sum(0) / 64
    plain, scaled = (Recommender(of, encoded.schema) for of in (config, weighted))
    assert not present.all()
    torch.testing.assert_close(plain.loss(logits, batch), each.sum())
    torch.testing.assert_close(scaled.loss((logits, torch.tensor(2.0)), batch), each[0] + 3 * each[1] + 2)
    with pytest.raises(ValueError, match=r"must return logits \[64, 2\] for labels click, buy"):
        plain.loss(logits[:, 0], batch)


class Whole(Shared):
    """Its loss is a function: written out, that of the labels."""

    def forward(self, vectors, dense):
        logits = super().forward(vectors, dense)
        if not self.training:
            return logits
        return logits[0], lambda *of: 2 * F.binary_cross_entropy_with_logits(*of)


def test_a_function_that_a_model_returns_is_the_whole_loss(encoded, tmp_path):
    runs = {}
    for kind in (Shared, Whole):
        config = dataclasses.replace(CONFIG, model=f"{__name__}:{kind.__name__}", model_options={})
        runs[kind] = Trainer(encoded, config, tmp_path / kind.__name__).fit()
    assert runs[Whole].test == runs[Shared].test
    batch = next(data.Loader(encoded.parts["train"], 64, shuffle=False).batches(0))
    logits, seen = torch.randn(64, 2), []

    def loss(*of):
        seen.extend(of)
        return of[0].sum()

    weights = (~batch.labels.isnan()) * batch.sample_weights[:, None] * torch.tensor([1.0, 3.0])
    config = dataclasses.replace(config, label_weights={"buy": 3.0})
    assert Recommender(config, encoded.schema).loss((logits, loss), batch) == logits.sum()
    for found, expected in zip(seen, (logits, batch.labels.nan_to_num(), weights), strict=True):
        torch.testing.assert_close(found, expected)


def test_wrong_labels_of_a_model_of_several_are_refused(encoded):
    config = dataclasses.replace(CONFIG, model=OWN, model_options={})
    with pytest.raises(ValueError, match="learns click, buy together, so label='buy'"):
        Recommender(dataclasses.replace(config, label="buy"), encoded.schema)
    with pytest.raises(ValueError, match=r"that the model learns \(click, buy\), not of 'like'"):
        Recommender(dataclasses.replace(config, label_weights={"like": 2.0}), encoded.schema)
    with pytest.raises(ValueError, match=r"label_weights\['buy'\] must be above 0, not 0"):
        dataclasses.replace(config, label_weights={"buy": 0})


def test_decay_by_count_is_counted_from_the_data(encoded, tmp_path):
    config = dataclasses.replace(CONFIG, row_optimizer=SGD(lr=0.1, weight_decay=5.0), steps=8)
    by_count = dataclasses.replace(config.row_optimizer, decay_by_count=True)
    Trainer(encoded, config, tmp_path / "plain").fit()
    Trainer(encoded, dataclasses.replace(config, row_optimizer=by_count), tmp_path / "by-count").fit()
    strong, weak = (load_run(tmp_path / name).embedding.weights("user") for name in ("plain", "by-count"))
    assert strong.norm() < 0.5 * weak.norm()


def test_weights_of_single_ids_are_counted_by_batches(encoded):
    """A batch decays a row once, however often it has its id: a frequent one would hardly decay."""
    roles = [Table(role, 50, 1, ("user",), role=role) for role in ("vector", "linear")]
    occurrences, batches = id_counts(encoded, roles, (), 10).values()
    assert occurrences.max() > 20 and batches.max() < 10
    often = occurrences.argmax()
    assert batches[often] == pytest.approx(10 * (1 - math.exp(-float(occurrences[often]) / 10)))
    assert ((batches == 0) == (occurrences == 0)).all()


def test_a_model_of_ones_own_is_found_by_its_file(encoded, tmp_path):
    (tmp_path / "mine.py").write_text(
        "from hotrows.models import DeepFM\n\n\nclass Mine(DeepFM):\n    pass\n\n\nnot_a_model = 3\n"
    )
    mine = f"{tmp_path / 'mine.py'}:Mine"
    config = dataclasses.replace(CONFIG, model=mine, model_options={"hidden": [8]}, steps=5)
    Trainer(encoded, config, tmp_path / "run").fit()
    assert type(load_run(tmp_path / "run", model=mine).model).__name__ == "Mine"
    for name, message in (
        (f"{tmp_path / 'mine.py'}:not_a_model", "has no class 'not_a_model' made of"),
        (f"{tmp_path / 'his.py'}:Mine", "there is no file .*his.py"),
        ("no_such_module:Mine", "cannot be imported: No module named .no_such_module."),
        ("transformer", "or your own as file.py:Class, not 'transformer'"),
    ):
        with pytest.raises(ValueError, match=message):
            models.build(name, encoded.schema)
    with pytest.raises(ValueError, match="DeepFM has no option 'dims'; it has dim, hidden"):
        models.build("deepfm", encoded.schema, dims=3)


@pytest.mark.parametrize("label", ["click", Label("click", loss="squared"), ("click", "buy")])
def test_a_validation_part_that_weighs_nothing_ends_no_training(tmp_path, label):
    """Its metrics are nan, and the last checkpoint counts as the best."""
    rows = {
        "click": [i % 3 // 2 for i in range(300)],
        "buy": [i % 5 // 4 for i in range(300)],
        "user": [i * 7 % 20 for i in range(300)],
        "w": [float(i < 200) for i in range(300)],
    }
    schema = Schema((Sparse("user"),), label=label, weight="w")
    encoded = data.prepare(rows, schema, tmp_path / "enc", split="position:2/3,1/6,1/6")
    result = Trainer(encoded, dataclasses.replace(CONFIG, stop_patience=1), tmp_path / "run").fit()
    assert result.best_step == result.steps == 2 * 4
    assert math.isnan(result.test.auc) and math.isnan(result.test.log_loss) and not result.test.samples
    assert all(map(math.isfinite, load_run(tmp_path / "run").predict(rows)))


def test_a_label_that_the_validation_part_lacks_counts_not_in_its_mean(tmp_path):
    rows = {
        "click": [i % 3 // 2 for i in range(300)],
        "rating": [i % 5 / 2 if i < 200 else None for i in range(300)],
        "user": [i * 7 % 20 for i in range(300)],
    }
    schema = Schema((Sparse("user"),), label=("click", Label("rating", loss="squared")))
    encoded = data.prepare(rows, schema, tmp_path / "enc", split="position:2/3,1/6,1/6")
    config = dataclasses.replace(CONFIG, model="mmoe", model_options={"dim": 4})
    metrics = Trainer(encoded, config, tmp_path / "run").fit().validation
    assert metrics.score == metrics.tasks["click"].score > 0
    assert metrics.tasks["rating"].samples == 0
