"""The examples run as they stand, and the pages that quote them say what they say."""

import importlib
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from starlette.testclient import TestClient
from torch.nn.functional import binary_cross_entropy_with_logits

import hotrows
from hotrows import Dense, Schema, Sequence, Sparse
from hotrows.data import Encoder, prepare
from hotrows.models import Model, tables
from tests.support.clicks import table

ROOT = Path(__file__).parents[1]


@pytest.fixture
def told_by(tmp_path, monkeypatch, capsys, no_pictures):
    """Runs an example in this process, in the folder `tmp_path`, and returns what it prints."""

    def run(example):
        script = str(ROOT / "examples" / example)
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", [script])
        runpy.run_path(script, run_name="__main__")
        return capsys.readouterr().out

    return run


def auc_of(told):
    """The test AUC that an example prints."""
    return float(re.search(r"test AUC (0\.\d+)", told).group(1))


def test_the_loop_of_ones_own_learns(told_by):
    told = told_by("own_loop.py")
    assert "pack-0: 26 tables" in told
    assert auc_of(told) > 0.7


def test_the_model_of_ones_own_learns_and_leaves_nothing_behind(told_by, tmp_path):
    assert auc_of(told_by("own_model.py")) > 0.8
    assert not list(tmp_path.iterdir())


def test_models_of_thirteen_papers_learn_in_at_most_25_lines_each(no_pictures, one_thread, capsys):
    zoo = importlib.import_module("examples.zoo")
    settings = {"batch_size": 64, "dense_lr": 0.005, "linear_paths": "plain"}
    aucs = zoo.main(rows=6_000, steps=160, **settings)
    told = re.findall(r"^(\w+) +(\d+) +(0\.\d{4})$", capsys.readouterr().out, re.MULTILINE)
    assert [name for name, *_ in told] == [model.__name__ for model in zoo.ZOO] and len(told) == 13
    assert all(15 <= int(lines) <= 25 for _, lines, _ in told)
    assert min(aucs.values()) > 0.55, aucs


def test_any_model_ends_with_the_weights_of_plain_pytorch(told_by):
    told = told_by("any_model.py")
    assert "6 lookups of 6 tables in 1 pack" in told
    assert float(re.search(r"weights differ by (\S+)", told).group(1)) < 1e-4


def test_requests_are_scored_as_the_run_predicts_and_misspelt_ones_refused(tmp_path):
    schema = Schema((Dense("price"), Sparse("user"), Sparse("item")), label="click")
    rows = table(400).select(["click", "price", "user", "item"])
    data = prepare(rows, schema, tmp_path / "enc")
    hotrows.Trainer(data, hotrows.TrainConfig(model="fm", steps=3), tmp_path / "run").fit()
    scorer = runpy.run_path(str(ROOT / "examples" / "online.py"))["scorer"]
    client = TestClient(scorer(str(tmp_path / "run"), str(tmp_path / "enc")))
    some = rows.drop_columns(["click"]).slice(0, 7)

    answer = client.post("/score", json=some.to_pylist())

    (expected,) = hotrows.load_run(tmp_path / "run").predict(Encoder.open(tmp_path / "enc").encode(some))
    assert answer.json() == pytest.approx(expected.tolist(), rel=1e-6)
    for wrong, why in (
        ([{"usr": 3}], "no column 'usr' is read; did you mean 'user'?"),
        ([{"user": 3}, {"user": "a"}], "Could not convert"),
        ([{"price": "much"}], "expected a number, found 'much'"),
        ([{"user": {"name": 3}}], "expected ids"),
        ([], "expected 1 to 1000 rows, found 0"),
    ):
        refused = client.post("/score", json=wrong)
        assert refused.status_code == 422
        assert why in refused.json()["detail"]


@pytest.fixture
def blocks():
    """The Python of the page: the example, the tables, the loop."""
    page = (ROOT / "docs" / "your_own_model.md").read_text()
    return re.findall(r"```python\n(.*?)```", page, re.DOTALL)


def test_the_page_has_the_example_as_it_is(blocks):
    assert blocks[0] == (ROOT / "examples" / "own_model.py").read_text()


def test_the_tables_of_the_page_are_tables(blocks):
    schema = Schema((Sparse("user", rows=4), Sparse("item", rows=5)))
    names = {"self": Model(), "schema": schema, "dim": 8, "tables": tables, "hotrows": hotrows}
    exec(blocks[1], names)
    engine = hotrows.Embedding.for_model(names["self"], schema)
    assert [(t.name, t.dim) for t in engine.tables] == [
        ("user", 8), ("item", 8), ("user.linear", 1), ("item.linear", 1), ("item.bias", 1),
    ]  # fmt: skip


def test_the_loop_of_the_page_trains(blocks, tmp_path):
    history = Sequence("history", vocabulary="item", max_length=5)
    schema = Schema((Dense("price"), Sparse("user"), Sparse("item"), history), label="click")
    names = {
        **runpy.run_path(str(ROOT / "examples" / "own_model.py")),
        "data": prepare(table(400), schema, tmp_path / "enc"),
        "torch": torch,
        "binary_cross_entropy_with_logits": binary_cross_entropy_with_logits,
    }
    exec(blocks[2], names)
    assert names["loss"].isfinite()


def told_by_process(example, folder):
    """What an example prints that starts processes or threads of its own; `folder` is where it is run."""
    environment = {**os.environ, "PYTHONPATH": str(Path(hotrows.__file__).parents[1])}
    command = [sys.executable, ROOT / "examples" / example]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_new_clicks_change_the_scores_that_are_served(tmp_path):
    told = told_by_process("click_to_score.py", tmp_path)
    scores = [float(score) for score in re.findall(r"scores (0\.\d+)", told)]
    assert len(scores) == 7 and max(scores[:2]) < 0.3 < 0.6 < scores[-1]
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_the_stream_of_clicks_is_trained_while_it_is_written(tmp_path):
    told = told_by_process("stream.py", tmp_path)
    aucs = [float(auc) for auc in re.findall(r"clicks: AUC (0\.\d+) of the last", told)]
    assert len(aucs) == 10 and aucs[0] > 0.7  # the first model, on what it has not seen
    assert min(aucs[5:7]) < 0.5 < aucs[-1]  # tastes change, and are learned anew
    assert not list(tmp_path.iterdir())
