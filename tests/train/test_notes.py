"""What a run says of itself, from Python as on the command line, and of parts that say nothing."""

import logging
import math
import subprocess
import sys

import pytest

from hotrows import Classifier, Dense, Label, Schema, Sparse, TrainConfig, Trainer, load_run, prepare
from hotrows.train.telling import notes

pytestmark = [
    pytest.mark.usefixtures("one_thread", "no_pictures"),
    pytest.mark.filterwarnings("ignore:'ts' has numbers beyond 2"),
]

ROWS = 1000
FIRST = 600  # rows of training
SHORT = {"batch_size": 64, "linear_paths": "plain"}
EMPTY = "no sample has this label and a weight above 0, so there are no metrics"


def frame(**columns):
    return {
        "click": [i * i % 7 // 3 % 2 for i in range(ROWS)],
        "user": [f"u{i * 7 % 60}" for i in range(ROWS)],
        "group": [i // 10 for i in range(ROWS)],
        **columns,
    }


def prepared(folder, columns, **options):
    features = (*(Dense(n, transform="none") for n in columns if n == "ts"), Sparse("user"))
    schema = Schema(features, **{"label": "click", "group": "group", **options})
    return prepare(frame(**columns), schema, folder / "enc", split="position:0.6,0.2,0.2")


def warnings_of(caplog):
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.fixture(scope="module")
def diverged(tmp_path_factory):
    """Data and a run whose predictions are far off: times in seconds, read as they are."""
    folder = tmp_path_factory.mktemp("diverged")
    data = prepared(folder, {"ts": [1.7e9 + 60 * i for i in range(ROWS)]})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hotrows.train.telling.pictures.draw_run", lambda run: None)
        trainer = Trainer(data, TrainConfig(model="dnn", epochs=1, **SHORT), folder / "run")
        trainer.fit()
        return data, trainer


def test_a_run_worse_than_its_base_rate_says_so_from_python_once(diverged, tmp_path, caplog):
    """A model 30 million times worse than the base rate was returned to a notebook without a word."""
    data, trainer = diverged
    with caplog.at_level(logging.WARNING, "hotrows"):
        Trainer(data, trainer.config, tmp_path / "run").fit()
    for part in ("validation", "test"):
        said = [line for line in warnings_of(caplog) if line.startswith(f"{part}: log loss ")]
        assert len(said) == 1 and "that of the base rate alone" in said[0]
    caplog.clear()
    load_run(trainer.run).evaluate(data.parts["test"])
    trainer.evaluate("test")
    load_run(trainer.run).evaluate(frame(ts=[1.7e9 + 60 * i for i in range(ROWS)]))
    said = [line.partition(" is above")[0] for line in warnings_of(caplog) if "log loss" in line]
    assert [line.partition(":")[0] for line in said] == ["test", "test", "rows"] and said[0] == said[1]


def test_the_command_line_prints_the_same_lines(diverged, caplog):
    trainer = diverged[1]
    trainer.evaluate("test")
    said = warnings_of(caplog)
    command = [sys.executable, "-m", "hotrows", "eval", str(trainer.run)]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    assert len(said) == 2 and all(printed.count(f"hotrows: warning: {line}\n") == 1 for line in said)


def test_a_classifier_says_it_too(caplog):
    columns = frame(ts=[1.7e9 + 60 * i for i in range(ROWS)])
    del columns["group"]
    schema = Schema((Dense("ts", transform="none"), Sparse("user")), label="click")
    Classifier("dnn", schema=schema, steps=5, **SHORT).fit(columns, "click")
    assert any(line.startswith("validation: log loss") for line in warnings_of(caplog))


def test_what_was_chosen_is_noted_at_the_start(diverged, tmp_path, caplog):
    data, _ = diverged
    with caplog.at_level(logging.INFO, "hotrows"):
        cached = TrainConfig(steps=3, fast_memory=1 << 14, **SHORT)
        Trainer(data, cached, tmp_path / "run").fit()
    text = caplog.text
    assert "model: deepfm (sequences none, 1 id features, 1 dense); choose with --model" in text
    assert "few samples, and no column of more than 60 values: gradient boosting" in text
    assert "batches in flight pinned at most" in text
    caplog.clear()
    with caplog.at_level(logging.INFO, "hotrows"):
        notes.of_tables(
            [f"reason {number}" for number in range(10)], ["a: 3 of 5 rows"], tmp_path / "run"
        )
    lines = [record.getMessage() for record in caplog.records]
    assert lines[7:] == [
        "reason 7",
        f"and 2 more in {tmp_path / 'run' / 'placing.json'}",
        "a: 3 of 5 rows",
    ]


@pytest.mark.few(6)
@pytest.mark.parametrize("loss", [None, "soft", "squared", "huber", "poisson", "bpr"])
@pytest.mark.parametrize("held_out", ["no weight", "no label of one of two"])
def test_a_part_without_a_usable_label_has_no_metrics_and_ends_no_run(tmp_path, caplog, loss, held_out):
    """Training died at its first evaluation. Of a part that says nothing, the last checkpoint is the
    best, as without a validation part, and no rate falls."""
    if held_out == "no weight":
        data = prepared(tmp_path, {"w": [float(i < FIRST) for i in range(ROWS)]}, weight="w")
        config = TrainConfig(model="dnn", epochs=6, loss=loss, **SHORT)
    else:
        buy = [float(i % 5 // 4) if i < FIRST else None for i in range(ROWS)]
        labels = (Label("click"), Label("buy", loss=loss))
        data = prepared(tmp_path, {"buy": buy}, label=labels)
        config = TrainConfig(model="dnn", epochs=6, label="buy", **SHORT)
    trainer = Trainer(data, config, tmp_path / "run")
    result = trainer.fit()
    assert result.steps == result.best_step == 60 and trainer.state.lr_decay == 1
    assert result.validation.samples == 0 and math.isnan(result.validation.score)
    said = warnings_of(caplog)
    assert [said.count(f"{part}: {EMPTY}") for part in ("validation", "test")] == [1, 1]
    metrics = load_run(tmp_path / "run").evaluate(data.parts["test"])
    assert metrics.samples == 0 and math.isnan(metrics.auc) and math.isnan(metrics.log_loss)
    assert any(math.isnan(value) for value in metrics.shown().values())


def test_of_two_labels_the_one_that_a_part_has_decides(tmp_path, caplog):
    buy = [float(i % 5 // 4) if i < FIRST else None for i in range(ROWS)]
    data = prepared(tmp_path, {"buy": buy}, label=(Label("click"), Label("buy", loss="squared")))
    result = Trainer(data, TrainConfig(model="mmoe", epochs=2, **SHORT), tmp_path / "run").fit()
    assert result.validation.score == result.validation.tasks["click"].score
    assert f"validation buy: {EMPTY}" in warnings_of(caplog)


def test_groups_without_a_label_above_0_decide_nothing(tmp_path, caplog):
    """All evaluations scored 0: the first checkpoint was the best, and training stopped early."""
    data = prepared(tmp_path, {"click": [int(i % 3 == 2 and i < FIRST) for i in range(ROWS)]})
    config = TrainConfig(model="dnn", epochs=6, loss="bpr", **SHORT)
    result = Trainer(data, config, tmp_path / "run").fit()
    assert result.best_step == result.steps == 60
    assert "validation: no group has a label above 0, so there is no NDCG@10" in warnings_of(caplog)


@pytest.mark.parametrize(
    "clicks, said",
    [
        (lambda i: i % 4 == 0, None),
        (lambda i: i % (20 if i >= 800 else 2) == 0, "high"),
        (lambda i: i % (2 if i >= 800 else 20) == 0, "low"),
        (lambda i: i % (10 if i >= 800 else 9) == 0, None),
    ],
    ids=["alike", "rarer", "more frequent", "nearly alike"],
)
def test_a_label_that_is_far_more_frequent_in_another_part_is_warned_of(tmp_path, caplog, clicks, said):
    """Negatives left out of the training rows alone made every prediction too high, without a word."""
    data = prepared(tmp_path, {"click": [int(clicks(i)) for i in range(ROWS)]})
    with caplog.at_level(logging.WARNING, "hotrows"):
        trainer = Trainer(data, TrainConfig(model="lr", steps=2, **SHORT), tmp_path / "run")
    lines = [line for line in warnings_of(caplog) if line.startswith("label 'click' is 1 in ")]
    assert len(lines) == (said is not None)
    if said is not None:
        rates = ["50.00%", "5.00%"] if said == "high" else ["5.00%", "50.00%"]
        assert f"{rates[0]} of the training samples and in {rates[1]} of the test samples" in lines[0]
        assert f"too {said} there" in lines[0]
    trainer.fit(verbose=False)
    caplog.clear()
    with caplog.at_level(logging.WARNING, "hotrows"):
        Trainer(data, trainer.config, tmp_path / "run", resume=True)
    assert not [line for line in warnings_of(caplog) if line.startswith("label ")]


def test_weights_that_undo_what_was_left_out_are_no_other_rate(tmp_path, caplog):
    """Rows were counted without their weights, and predictions said to be too high."""
    rows = {"click": [int(i % (20 if i >= 800 else 2) == 0) for i in range(ROWS)]}
    rows["w"] = [1.0 if click or i >= 800 else 19.0 for i, click in enumerate(rows["click"])]
    rows["item"] = [i % 30 for i in range(ROWS)]
    schema = Schema((Sparse("item"),), label="click", weight="w")
    data = prepare(rows, schema, tmp_path / "enc", split="position:0.6,0.2,0.2")
    Trainer(data, TrainConfig(model="lr", steps=2, **SHORT), tmp_path / "run")
    assert not [line for line in warnings_of(caplog) if line.startswith("label 'click' is 1 in ")]


@pytest.mark.parametrize("values, said", [(500, True), (1_001, False)])
def test_boosting_is_named_where_no_column_has_many_values(tmp_path, caplog, values, said):
    data = prepare(
        {"click": [i % 3 % 2 for i in range(2_000)], "user": [f"u{i % values}" for i in range(2_000)]},
        Schema((Sparse("user"),), label="click"),
        tmp_path / "enc",
        split="position:0.8,0.1,0.1",
    )
    with caplog.at_level(logging.INFO, "hotrows"):
        Trainer(data, TrainConfig(steps=1, **SHORT), tmp_path / "run")
    assert ("gradient boosting" in caplog.text) == said
