"""Pictures are drawn, are pictures, and are missed in one sentence."""

import json
import logging
import sys

import pytest

from hotrows.config import TrainConfig
from hotrows.data.description import Description, PartSize, VocabularyUse
from hotrows.runtime import figures
from hotrows.train import pictures
from hotrows.train.run_state import best_rule

PNG = b"\x89PNG"


def run_with(folder, evaluations=True, labels=False):
    folder.mkdir()
    TrainConfig("dlrm", batch_size=64, epochs=1).save(folder / "config.json")
    lines = []
    for step in range(1, 40):
        line = {"loss": 1 / step, "samples_per_second": 1e6, "stall_seconds": 0.0, "seconds": 0.1}
        lines.append({"kind": "train", "step": step, **line})
        if evaluations and step % 10 == 0:
            found = {"auc": 0.8 - step / 1000 if step > 10 else None, "log_loss": 0.4}
            tasks = {"click": found, "buy": {"auc": 0.6, "log_loss": 0.3}}
            more = {"is_best": step < 30} | ({"tasks": tasks} if labels else {})
            lines.append({"kind": "evaluation", "step": step, **found, **more})
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def description(vocabularies=12):
    curve = ((0.001, 0.3), (0.01, 0.6), (0.1, 0.9), (1.0, 1.0))
    used = tuple(
        VocabularyUse(f"C{i}", (f"C{i}",), 10**i + 3, 10**i, 100, 0.3, {0.01: 0.6}, 1.1, curve, 64)
        for i in range(vocabularies)
    )
    return Description({"train": PartSize(10, 0.2)}, (), used, 16)


@pytest.mark.parametrize(
    "evaluations, labels",
    [pytest.param(True, False, marks=pytest.mark.slow), (True, True), (False, False)],
)
def test_a_run_is_drawn(tmp_path, evaluations, labels):
    pytest.importorskip("matplotlib")
    run = run_with(tmp_path / "run", evaluations, labels)
    assert pictures.draw_run(run) == run / "report.png"
    assert (run / "report.png").read_bytes().startswith(PNG)


def test_the_picture_marks_the_evaluation_that_the_run_chose(tmp_path, monkeypatch):
    """It marked the highest AUC, where the terminal named the one within a standard error of it."""
    pytest.importorskip("matplotlib")
    drawn = []
    monkeypatch.setattr(figures, "save", lambda figure, path: drawn.append(figure))
    pictures.draw_run(run_with(tmp_path / "run", labels=True))
    axes = {one.get_title(loc="left"): one for one in drawn[0].axes}
    assert {"Training loss", "Log loss on validation", "AUC on validation"} < set(axes)
    marked = [text.get_text() for text in axes["AUC on validation"].texts]
    assert marked == ["best checkpoint 0.7800"]  # of step 20, not the last one that is no better
    lines = {line.get_label(): list(line.get_ydata()) for line in axes["Log loss on validation"].lines}
    assert (lines["click"], lines["buy"], lines["mean"]) == ([0.4] * 3, [0.3] * 3, [0.4] * 3)
    assert len(axes["Training loss"].lines) == 2
    assert drawn[0].get_supxlabel() == best_rule(TrainConfig("dlrm"), "AUC")


@pytest.mark.parametrize("vocabularies", [1, 12])
def test_skew_is_drawn(tmp_path, vocabularies):
    pytest.importorskip("matplotlib")
    picture = tmp_path / "new" / "skew.png"
    assert pictures.draw_skew(description(vocabularies), picture) == picture
    assert picture.read_bytes().startswith(PNG)


def test_births_and_deaths_of_keys_are_drawn_a_step(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    drawn, save = [], figures.save
    monkeypatch.setattr(
        figures, "save", lambda figure, path: [drawn.append(figure), save(figure, path)][1]
    )
    counts = [(10, 100, 0), (30, 300, 40), (40, 300, 90)]
    lines = [
        {"kind": "train", "step": step, "keys": {"item": {"live": a - e, "admitted": a, "evicted": e}}}
        for step, a, e in counts
    ]
    run = run_with(tmp_path / "run")
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert pictures.draw_keys(run, tmp_path / "keys.png").read_bytes().startswith(PNG)
    axes = {axes.get_title(loc="left"): list(axes.lines[0].get_ydata()) for axes in drawn[0].axes}
    expected = {"Live keys": [100, 260, 210], "Births a step": [10, 10, 0], "Deaths a step": [0, 2, 5]}
    assert axes == expected
    (run / "metrics.jsonl").write_text("")
    with pytest.raises(ValueError, match="its log has no keys to draw"):
        pictures.draw_keys(run, tmp_path / "none.png")


def test_a_run_without_a_step_has_no_picture(tmp_path):
    assert pictures.draw_run(tmp_path) is None


def test_without_matplotlib_one_sentence_is_said(tmp_path, monkeypatch, caplog):
    run = run_with(tmp_path / "run")
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with caplog.at_level(logging.INFO, "hotrows"):
        assert pictures.draw_run(run) is None
    assert set(caplog.messages) == {
        "matplotlib is not installed, so no picture is drawn: pip install 'hotrows[report]'"
    }
    assert not (run / "report.png").exists()


@pytest.mark.parametrize(
    ("value", "said"), [(950, "950"), (1234, "1.23k"), (45e6, "45M"), (2e9, "2G"), (0.5, "0.5")]
)
def test_large_numbers_are_shortened(value, said):
    assert figures.short(value) == said


@pytest.mark.parametrize(("value", "said"), [(1, "100 %"), (0.01, "1 %"), (0.0001, "0.01 %")])
def test_small_shares_keep_their_digits(value, said):
    assert figures.percent(value) == said
