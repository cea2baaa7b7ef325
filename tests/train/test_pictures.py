"""Pictures are drawn, and are well-formed SVG."""

import dataclasses
import json
import math
from xml.etree import ElementTree

import pytest

from hotrows.data.description import Description, PartSize, VocabularyUse
from hotrows.engine.pipeline.trace import Event
from hotrows.runtime.pages import numbers
from hotrows.train.config import TrainConfig
from hotrows.train.metrics import Metrics
from hotrows.train.run.state import best_rule
from hotrows.train.telling import metrics_log, pictures


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


def drawn(path):
    """The texts of a picture, which must be well-formed."""
    root = ElementTree.fromstring(path.read_text())
    assert root.tag.endswith("svg")
    return [text for element in root.iter() if (text := (element.text or "").strip())]


@pytest.mark.parametrize(("evaluations", "labels"), [(True, False), (True, True), (False, False)])
def test_a_run_is_drawn(tmp_path, evaluations, labels):
    run = run_with(tmp_path / "run", evaluations, labels)
    assert pictures.draw_run(run) == run / "report.svg"
    texts = drawn(run / "report.svg")
    assert {"run: dlrm", "Training loss", "Throughput, samples/s", "AUC on validation"} <= set(texts)
    assert ("mean" in texts) == labels


def test_the_picture_marks_the_evaluation_that_the_run_chose(tmp_path):
    """It marked the highest AUC, where the terminal named the one within a standard error of it."""
    texts = drawn(pictures.draw_run(run_with(tmp_path / "run", labels=True)))
    marked = [text for text in texts if text.startswith("best checkpoint 0")]
    assert marked == ["best checkpoint 0.4000", "best checkpoint 0.7800"]  # of step 20, not the last one
    assert texts[-1] == best_rule(TrainConfig("dlrm"), "AUC")


def test_the_lines_of_a_metric_are_those_of_the_labels_their_mean_and_the_best(tmp_path):
    records = metrics_log.read_metrics(run_with(tmp_path / "run", labels=True))
    lines = dict(pictures.metric_lines([r for r in records if r["kind"] == "evaluation"], "log_loss"))
    shown = {name: list(line.y) for name, line in lines.items()}
    assert shown == {"click": [0.4] * 3, "buy": [0.3] * 3, "mean": [0.4] * 3, "": [0.4]}


@pytest.mark.parametrize("auc", [0.75, None])
def test_a_title_has_the_test_only_where_its_metric_is_a_number(tmp_path, auc):
    run = run_with(tmp_path / "run")
    test = Metrics(8, math.nan if auc is None else auc, 0.4, 0.5, 0.5, 1.0, 0.0).to_json()
    (run / "result.json").write_text(json.dumps({"test": test}))
    texts = drawn(pictures.draw_run(run))
    assert any(text.startswith("test AUC 0.7500, ") for text in texts) == (auc is not None)
    assert any(text.startswith("test ") for text in texts) == (auc is not None)
    (run / "result.json").write_text(json.dumps({"test": None}))
    assert not any(text.startswith("test ") for text in drawn(pictures.draw_run(run)))


@pytest.mark.parametrize("vocabularies", [1, 12])
def test_skew_is_drawn(tmp_path, vocabularies):
    picture = tmp_path / "new" / "skew.svg"
    assert pictures.draw_skew(description(vocabularies), picture) == picture
    legend = dict(pictures.skew_chart(description(vocabularies))[1])
    named = min(vocabularies, pictures.NUM_COLORS)
    assert list(legend.values()) == [*range(named), *[pictures.GRAY] * (vocabularies > named)]
    assert ("6 smaller ones" in drawn(picture)) == (vocabularies == 12)


def test_births_and_deaths_of_keys_are_drawn_a_step(tmp_path):
    counts = [(10, 100, 0), (30, 300, 40), (40, 300, 90)]
    lines = [
        {"kind": "train", "step": step, "keys": {"item": {"live": a - e, "admitted": a, "evicted": e}}}
        for step, a, e in counts
    ]
    run = run_with(tmp_path / "run")
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert {"Live keys", "Births a step", "item"} <= set(
        drawn(pictures.draw_keys(run, tmp_path / "k.svg"))
    )
    numbers = {c: list(pictures.key_counts(lines, "item", c)) for c in ("live", "admitted", "evicted")}
    assert numbers == {"live": [100, 260, 210], "admitted": [10, 10, 0], "evicted": [0, 2, 5]}
    (run / "metrics.jsonl").write_text("")
    with pytest.raises(ValueError, match="its log has no keys to draw"):
        pictures.draw_keys(run, tmp_path / "none.svg")


def test_the_stages_of_a_run_are_drawn_as_boxes(tmp_path):
    events = [
        Event(stage, lane, batch, batch + begin, batch + begin + 0.2)
        for batch in range(20)
        for stage, lane, begin in (("plan", "planning", 0.0), ("train", "training", 0.3))
    ]
    texts = drawn(pictures.draw_timeline(events, tmp_path / "trace.svg"))
    assert {"Timeline", "plan", "train"} <= set(texts) and "train of batch 10: 200.00 ms" in texts


def test_names_of_data_are_no_markup(tmp_path):
    odd = description(1)
    used = dataclasses.replace(odd.vocabularies[0], name="<b>&")
    odd = dataclasses.replace(odd, vocabularies=(used,))
    assert any(text.startswith("<b>&, ") for text in drawn(pictures.draw_skew(odd, tmp_path / "s.svg")))


def test_a_run_without_a_step_has_no_picture(tmp_path):
    assert pictures.draw_run(tmp_path) is None


@pytest.mark.parametrize(
    ("value", "said"), [(950, "950"), (1234, "1.23k"), (45e6, "45M"), (2e9, "2G"), (0.5, "0.5")]
)
def test_large_numbers_are_shortened(value, said):
    assert numbers.short(value) == said


@pytest.mark.parametrize(("value", "said"), [(1, "100 %"), (0.01, "1 %"), (0.0001, "0.01 %")])
def test_small_shares_keep_their_digits(value, said):
    assert numbers.percent(value) == said
