"""Every kind of label, from raw rows to metrics and predictions."""

import dataclasses
import json
import logging
import math
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from hotrows import cli, data, losses
from hotrows.optim import Adagrad
from hotrows.schema import Label, Schema, Sparse
from hotrows.train import Trainer, load_run
from hotrows.train.config import TrainConfig
from hotrows.train.loop.recommender import Recommender
from hotrows.train.metrics import Metrics
from hotrows.train.run import data as run_data
from hotrows.train.start.defaults import settle
from tests.support.runs import same_bits

CONFIG = TrainConfig(
    model="fm",
    model_options={"dim": 4},
    epochs=3,
    batch_size=32,
    row_optimizer=Adagrad(lr=0.3),
    linear_paths="plain",
)
FEATURES = (Sparse("user"), Sparse("item"))


def table(rows=1000, seed=0) -> pa.Table:
    """Ratings from 1 to 5, watched shares, visits and clicks that depend on user and item; by user."""
    rng = np.random.default_rng(seed)
    user, item = np.sort(rng.integers(40, size=rows)), rng.integers(25, size=rows)
    taste = (user % 7 - 3) * 0.3 + (item % 5 - 2) * 0.5
    return pa.table(
        {
            "user": user,
            "item": item,
            "rating": np.clip(np.round(3 + taste + rng.normal(0, 0.4, rows)), 1, 5),
            "share": np.clip(1 / (1 + np.exp(-taste)) + rng.normal(0, 0.05, rows), 0, 1),
            "visits": rng.poisson(np.exp(taste)),
            "click": (rng.random(rows) < 1 / (1 + np.exp(-2.5 * taste))).astype(np.int8),
        }
    )


def schema(name, loss, **more):
    label = Label(name, loss=loss) if loss else name
    return Schema(FEATURES, label, group="user", **{"name": "shop", **more})


@pytest.fixture(autouse=True)
def quick(no_pictures, threads):
    threads(1)


@pytest.fixture(scope="module")
def rated(tmp_path_factory):
    folder = tmp_path_factory.mktemp("d") / "enc"
    return data.prepare(table(), schema("rating", "squared"), folder, split="fraction:0.7,0.1,0.2")


def stored(encoded, part="train"):
    return np.concatenate(
        [rows.arrays["labels"] for rows in encoded.parts[part].mapped(0, encoded.parts[part].rows)]
    )


def test_numbers_are_stored_as_they_are(rated):
    ratings = np.concatenate([stored(rated, part) for part in rated.parts])
    assert ratings.dtype == np.float32
    assert sorted(ratings.tolist()) == sorted(table()["rating"].to_pylist())
    assert data.EncodedData.open(rated.path).schema == rated.schema
    assert rated.parts["train"].constant_labels == {}


@pytest.mark.parametrize(
    ("label", "loss", "better", "than"),
    [
        ("rating", "squared", "rmse", 0.8),  # the deviation of the ratings is 0.97
        ("rating", "huber:0.5", "mae", 0.6),
        ("share", "soft", "log_loss", 0.66),
        ("visits", "poisson", "poisson_deviance", 1.6),
        ("click", "focal", "auc", 0.6),
        ("click", "weighted:4", "auc", 0.6),
    ],
)
def test_each_loss_learns(label, loss, better, than, tmp_path):
    encoded = data.prepare(table(), schema(label, loss), tmp_path / "enc", split="fraction:0.7,0.1,0.2")
    result = Trainer(encoded, CONFIG, tmp_path / "run").fit()
    metrics = result.test
    assert metrics.decides == better
    value = metrics.value(better)
    assert value < than if better != "auc" else value > than
    assert result.validation.score == Metrics.from_json(result.validation.to_json()).score
    kept = json.loads((tmp_path / "run/result.json").read_text())["test"]
    assert kept[better] == value


def test_a_rating_from_the_command_line_to_predictions(rated, tmp_path, capsys):
    run = str(tmp_path / "run")
    command = ["train", str(rated.path), "--model", "fm", "--option", "dim=4", "--epochs", "8"]
    cli.main([*command, "--lr", "0.2", "--batch-size", "64", "--run", run])
    out, err = capsys.readouterr()
    assert "RMSE" in out and "MAE" in out and "AUC" not in out
    assert "validation RMSE" in err
    rows = table(50, seed=1)
    pq.write_table(rows.select(["user", "item"]), tmp_path / "new.parquet")
    cli.main(["predict", run, str(tmp_path / "new.parquet")])
    predicted = [float(line) for line in capsys.readouterr().out.split()]
    errors = np.array(predicted) - rows["rating"].to_numpy()
    assert np.sqrt((errors**2).mean()) < 0.8
    cli.main(["eval", run, "--metrics", "ndcg@3,hit@1,mrr", "--json"])
    metrics = json.loads(capsys.readouterr().out)
    assert metrics["decides"] == "rmse" and set(metrics["ranking"]) == {"ndcg@3", "hit@1", "mrr"}


def test_the_picture_of_a_rating_is_drawn(rated, tmp_path, monkeypatch):
    monkeypatch.undo()
    Trainer(rated, CONFIG, tmp_path / "run").fit()
    assert (tmp_path / "run/report.svg").stat().st_size > 10_000


def test_a_run_stopped_and_resumed_has_the_same_bits(rated, tmp_path):
    config = dataclasses.replace(CONFIG, checkpoint_every=5)
    Trainer(rated, config, tmp_path / "whole").fit()
    stopped = Trainer(rated, dataclasses.replace(config, epochs=1), tmp_path / "stopped")
    stopped.fit()
    Trainer(rated, config, tmp_path / "stopped", resume=True).fit()
    assert same_bits(tmp_path / "whole", tmp_path / "stopped")


def test_the_loss_of_the_configuration_takes_precedence(rated, tmp_path):
    result = Trainer(rated, dataclasses.replace(CONFIG, loss="huber:2"), tmp_path / "run").fit()
    assert result.test.decides == "mae"
    assert load_run(tmp_path / "run").losses == (losses.Huber(2.0),)


def priced(folder, times, loss="squared"):
    """The ratings times a number, as prices are."""
    rows = table()
    prices = pa.array(rows["rating"].to_numpy() * times)
    rows = rows.set_column(rows.schema.get_field_index("rating"), "rating", prices)
    return data.prepare(rows, schema("rating", loss), folder, split="fraction:0.7,0.1,0.2")


@pytest.mark.parametrize("loss", ["squared", "huber:1"])
@pytest.mark.parametrize("times", [1e-4, 1.0, 250.0, 1e7])
def test_labels_of_any_unit_are_learned_alike(rated, times, loss, tmp_path):
    """The learning rates are for numbers that deviate by about 1; R2 was 0 for prices of millions."""
    result = Trainer(priced(tmp_path / "enc", times, loss), CONFIG, tmp_path / "run").fit()
    assert result.test.r2 > 0.3
    (stored,) = load_run(tmp_path / "run").calibration.stored().values()
    unit = losses.parse(stored.loss).unit
    assert unit == (1 if times == 1 else pytest.approx(1.1 * times, rel=0.05))


def test_a_run_on_prices_resumes_and_begins_others_in_its_unit(tmp_path, caplog):
    encoded, config = priced(tmp_path / "enc", 1000.0), dataclasses.replace(CONFIG, checkpoint_every=5)
    whole = Trainer(encoded, config, tmp_path / "whole")
    whole.fit()
    Trainer(encoded, dataclasses.replace(config, epochs=1), tmp_path / "stopped").fit()
    Trainer(encoded, config, tmp_path / "stopped", resume=True).fit()
    assert same_bits(tmp_path / "whole", tmp_path / "stopped")
    later = dataclasses.replace(config, start_from=str(tmp_path / "whole"))
    with caplog.at_level(logging.WARNING, "hotrows"):
        trainer = Trainer(priced(tmp_path / "cheaper", 500.0), later, tmp_path / "later")
    assert trainer.config.loss == whole.config.loss and "was learned by" not in caplog.text
    given = Trainer(encoded, dataclasses.replace(config, loss="squared:1"), tmp_path / "given")
    assert given.config.loss == "squared:1"


@pytest.mark.parametrize(
    ("labels", "prices", "loss"),
    [
        (("price", "click"), [100.0, 300.0, 200.0, 400.0], "price=squared:110,click=log_loss"),
        (("price", "click"), [None] * 4, "price=squared:1,click=log_loss"),
        (("price", "click"), [7.0] * 4, "price=squared:1,click=log_loss"),
        (("price,euro", "click"), [100.0, 300.0, 200.0, 400.0], None),
    ],
)
def test_units_of_several_labels(labels, prices, loss, tmp_path):
    """Of no prices, equal ones, or none at all there is none, nor in a text that a comma would part."""
    of_all = Schema((Sparse("user"),), (Label(labels[0], loss="squared"), labels[1]))
    rows = pa.table(
        {
            "user": ["a", "b"] * (len(prices) // 2),
            labels[0]: pa.array(prices, pa.float64()),
            labels[1]: [0, 1] * (len(prices) // 2),
        },
        pa.schema([("user", pa.string()), (labels[0], pa.float64()), (labels[1], pa.int64())]),
    )
    encoded = data.prepare(rows, of_all, tmp_path / "enc", split="fraction:1,0,0")
    assert settle(TrainConfig(model="mmoe"), encoded).loss == loss


@pytest.mark.parametrize("again", [None, "squared", "squared:1100"])
def test_a_run_goes_on_in_its_unit_where_the_one_that_it_began_with_is_gone(tmp_path, again):
    first, config = priced(tmp_path / "enc", 1000.0), dataclasses.replace(CONFIG, epochs=1)
    Trainer(first, config, tmp_path / "first").fit()
    cheaper = priced(tmp_path / "cheaper", 500.0)
    later = dataclasses.replace(config, start_from=str(tmp_path / "first"))
    Trainer(cheaper, later, tmp_path / "run").fit()
    shutil.rmtree(tmp_path / "first")
    on = dataclasses.replace(later, epochs=2, loss=again)
    resumed = Trainer(cheaper, on, tmp_path / "run", resume=True)
    assert resumed.config.loss == "squared:1100"
    resumed.fit()


def test_several_labels_each_have_a_loss(tmp_path):
    both = Schema(FEATURES, (Label("rating", loss="squared"), "click"), group="user")
    rows = table()
    missing = [None if i % 10 == 0 else y for i, y in enumerate(rows["click"].to_pylist())]
    rows = rows.set_column(5, "click", pa.array(missing, pa.int8()))
    encoded = data.prepare(rows, both, tmp_path / "enc", split="fraction:0.7,0.1,0.2")
    assert np.isnan(stored(encoded)[:, 1]).mean() == pytest.approx(0.1, abs=0.03)
    small = {"expert_hidden": [8], "tower_hidden": [4], "gate_hidden": [], "num_experts": 2, "dim": 4}
    config = dataclasses.replace(CONFIG, model="mmoe", model_options=small, calibration="none")
    result = Trainer(encoded, config, tmp_path / "run").fit()
    rating, click = result.test.tasks["rating"], result.test.tasks["click"]
    assert rating.rmse < 0.95 and math.isnan(rating.auc) and math.isnan(click.rmse)
    assert result.test.score == pytest.approx((rating.score + click.score) / 2)
    predictor = load_run(tmp_path / "run")
    outputs = torch.tensor([[3.5, 0.0]])
    assert predictor.predictions(outputs).tolist() == [[3.5, 0.5]]

    batch = next(iter(data.Loader(encoded.parts["train"], 32, shuffle=False).batches(0)))
    torch.manual_seed(0)
    logits = torch.randn(32, 2)
    present = ~batch.labels[:, 1].isnan()
    entropy = torch.nn.functional.binary_cross_entropy_with_logits(
        logits[present, 1], batch.labels[present, 1], reduction="sum"
    )
    expected = (logits[:, 0] - batch.labels[:, 0]).square().mean() + 3 * entropy / 32
    weighted = dataclasses.replace(config, label_weights={"click": 3})
    found = Recommender(weighted, encoded.schema).loss((logits, torch.tensor(2.0)), batch)
    assert found.item() == pytest.approx(expected.item() + 2, rel=1e-5)


def test_bpr_ranks_within_groups(tmp_path, caplog):
    """Users differ in how often they click at all, which an order within users must not need."""
    encoded = data.prepare(
        table(), schema("rating", "bpr"), tmp_path / "enc", split="position:0.8,0.1,0.1"
    )
    for shuffle in (True, False):
        config = dataclasses.replace(CONFIG, model="fm", shuffle=shuffle, epochs=6)
        with caplog.at_level(logging.WARNING, "hotrows"):
            result = Trainer(encoded, config, tmp_path / f"run-{shuffle}").fit()
        assert "far from one another" not in caplog.text
        assert result.test.decides == "ndcg@10"
        assert result.test.value("ndcg@10") > 0.9


@pytest.mark.parametrize(("order", "shuffle", "said"), [
    ("rounds", False, "0 of the 400 in the first 13 batches have another label of their group"),
    ("rounds", True, None),  # which keeps groups together
    ("users", False, None),
    ("single", True, "0 of the 400 in the first 13 batches"),
    ("equal labels", True, "so nothing is learned"),
    ("missing", True, "0 of the 0 in the first 13 batches"),
])  # fmt: skip
def test_groups_that_never_meet_in_a_batch_are_warned_of(tmp_path, caplog, order, shuffle, said):
    """The loss was 0.0 in every step, without a word."""
    users = {"users": np.arange(400) // 10, "single": np.arange(400)}.get(order, np.arange(400) % 40)
    labels = users % 2 if order == "equal labels" else np.arange(400) // 7 % 3
    users = [None] * 400 if order == "missing" else users
    rows = pa.table({"user": users, "item": np.arange(400) % 9, "rating": labels})
    encoded = data.prepare(rows, schema("rating", "bpr"), tmp_path / "enc", split="fraction:1,0,0")
    config = dataclasses.replace(CONFIG, model="lr", model_options={}, shuffle=shuffle, epochs=1)
    with caplog.at_level(logging.WARNING, "hotrows"):
        Trainer(encoded, config, tmp_path / "run").fit()
    assert said in caplog.text if said else "of their group" not in caplog.text


def test_bpr_of_large_data_wants_rows_sorted_by_group(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(run_data, "POOL_ROWS", 500)
    rows = table()
    mixed = rows.take(np.random.default_rng(0).permutation(len(rows)))
    for name, ordered in (("sorted", rows), ("mixed", mixed)):
        encoded = data.prepare(
            ordered, schema("rating", "bpr"), tmp_path / name, split="position:0.8,0.1,0.1"
        )
        with caplog.at_level(logging.WARNING, "hotrows"):
            Trainer(encoded, dataclasses.replace(CONFIG, model="fm"), tmp_path / f"{name}-run")
        assert ("sort the rows by 'user'" in caplog.text) == (name == "mixed")


@pytest.mark.parametrize(
    ("rows", "loss", "message"),
    [
        ("rating\n4", None, r"line 2, column 'rating': expected a label 0 or 1, found '4'; .*at_least="),
        ("rating\n4", None, r"loss='squared'.*several classes are not learned as one label"),
        ("rating\nred", None, r"expected a label 0 or 1, found 'red'; .*positive=\('VALUE',\)"),
        ("rating\n1.5", "soft", "line 2, column 'rating': expected a label from 0 to 1, found '1.5'"),
        (
            "rating\n3\n-1",
            "poisson",
            "line 3, column 'rating': expected a label of at least 0, found '-1'",
        ),
        ("rating\nx", "squared", "expected a number that float32 can hold, found 'x'"),
        ("rating\n1e39", "squared", "expected a number that float32 can hold, found '1e39'"),
        ("rating\n\n", "squared", "expected a number that float32 can hold, found nothing"),
    ],
)
def test_a_label_that_the_loss_does_not_admit_is_refused(rows, loss, message, tmp_path):
    lines = [f"{line},u,i" for line in rows.split("\n")]
    lines[0] = "rating,user,item"
    (tmp_path / "raw.csv").write_text("\n".join(lines) + "\n")
    with pytest.raises(ValueError, match=message):
        data.prepare(
            tmp_path / "raw.csv",
            schema("rating", loss, delimiter=","),
            tmp_path / "enc",
            split="fraction:1,0,0",
        )


def test_a_loss_that_the_stored_labels_do_not_fit_is_refused_before_training(rated, tmp_path):
    for loss in ("log_loss", "soft", "focal"):
        with pytest.raises(
            ValueError, match=r"'rating': the loss .* admits .*, found \d in row \d+ of the"
        ):
            Trainer(rated, dataclasses.replace(CONFIG, loss=loss), tmp_path / "run")
    Trainer(rated, dataclasses.replace(CONFIG, loss="poisson"), tmp_path / "fits")
    for loss, message in (
        ("stars=squared", "losses are of the labels that the model learns .rating., not of 'stars'"),
        ("hinge", "a loss must be one of log_loss, .*, not 'hinge'"),
    ):
        with pytest.raises(ValueError, match=message):
            Trainer(rated, dataclasses.replace(CONFIG, loss=loss), tmp_path / "run")


def test_what_needs_groups_or_classes_says_so(tmp_path):
    with pytest.raises(ValueError, match="compares samples of a group; say which column that is"):
        Schema(FEATURES, Label("rating", loss="bpr"))
    ungrouped = Schema(FEATURES, "click")
    encoded = data.prepare(table(), ungrouped, tmp_path / "enc", split="fraction:0.7,0.1,0.2")
    for change in ({"loss": "bpr"}, {"metrics": "ndcg@10"}):
        with pytest.raises(ValueError, match="group=COLUMN, and prepare again"):
            Trainer(encoded, dataclasses.replace(CONFIG, **change), tmp_path / "run")
    with pytest.raises(ValueError, match="'rating' is a number; split in another way"):
        data.prepare(
            table(), schema("rating", "squared"), tmp_path / "no", split="stratified:0.8,0.1,0.1"
        )


def test_numbers_train_straight_from_parquet(tmp_path):
    rows = table()
    pq.write_table(rows, tmp_path / "rows.parquet")
    features = tuple(dataclasses.replace(feature, rows=50) for feature in FEATURES)
    straight = Schema(features, (Label("visits", loss="poisson"), "click"))
    encoded = data.open_parquet(straight, tmp_path / "rows.parquet")
    batch = next(iter(data.Loader(encoded.parts["train"], 2000, shuffle=False).batches(0)))
    assert batch.labels[:, 0].tolist() == rows["visits"].to_pylist()
    assert batch.labels[:, 1].tolist() == rows["click"].to_pylist()
    negative = Schema(features, Label("visits", loss="soft"))
    with pytest.raises(ValueError, match=r"column 'visits': expected a label from 0 to 1, found '?\d"):
        part = data.open_parquet(negative, tmp_path / "rows.parquet").parts["train"]
        next(iter(data.Loader(part, 9, shuffle=False).batches(0)))
    with pytest.raises(ValueError, match="the schema lets 'visits' be a label of at least 0"):
        config = dataclasses.replace(CONFIG, label="visits", loss="soft")
        Trainer(encoded, config, tmp_path / "run")


def test_a_schema_without_a_loss_reads_as_before():
    """The text of a schema is a part of fingerprints."""
    plain = Schema(FEATURES, (Label("click", positive=("1",)), "buy"))
    assert "loss" not in plain.to_json()
    assert Schema.from_json(plain.to_json()) == plain
    numbers = schema("rating", "huber:2")
    assert Schema.from_json(numbers.to_json()) == numbers


def test_a_count_of_255_is_not_a_missing_label(tmp_path):
    """Missing labels of 0 and 1 are stored as 255."""
    rows = table(300)
    visits = pa.array([255 if i % 3 else None for i in range(300)])
    rows = rows.set_column(4, "visits", visits)
    both = Schema(FEATURES, (Label("visits", loss="poisson"), "click"))
    encoded = data.prepare(rows, both, tmp_path / "enc", split="fraction:1,0,0")
    batch = next(iter(data.Loader(encoded.parts["train"], 300, shuffle=False).batches(0)))
    raw = next(data.Encoder.open(tmp_path / "enc").encode(rows))
    for labels in (batch.labels, raw.labels):
        assert labels[:, 0].isnan().sum() == 100 and (labels[:, 0] == 255).sum() == 200
    assert encoded.parts["train"].labelled == (200, 300)


def test_regrouped_numbers_stay_numbers(rated, tmp_path):
    sizes = {"user": 64, "item": 64}
    profile = data.profile(rated, bytes_per_row=sizes, fast_memory=64 * 30, sample=0.5)
    regrouped = data.regroup(rated, profile, tmp_path / "hot", force=True)
    assert sorted(stored(regrouped).tolist()) == sorted(stored(rated).tolist())
