"""Values in notebooks: tables of HTML that say what they are, with nothing of the data as markup."""

import torch

import hotrows
from hotrows import Dense, Label, Schema, Sequence, Sparse, Table, TrainConfig
from hotrows.runtime.pages import notebook
from tests.support.clicks import table as clicks

SCHEMA = Schema(
    (
        Dense("price", transform="standard"),
        Sparse("<b>", column="item"),
        Sequence("past", vocabulary="<b>"),
    ),
    label=Label("click", column="rating", at_least=15),
)


def test_a_schema_shows_its_labels_and_features_escaped():
    shown = SCHEMA._repr_html_()
    assert "<b>" not in shown and "&lt;b&gt;" in shown
    assert "transform=standard" in shown and "at_least=15" in shown
    assert shown.count("<tr>") == 1 + 1 + 3


def test_a_long_table_is_cut_and_says_so():
    shown = notebook.table("numbers", ["n"], [[n] for n in range(100)])
    assert shown.count("<tr>") == 42 and "and 60 more" in shown


def test_data_and_a_run_show_samples_and_metrics(tmp_path):
    schema = Schema((Dense("price"), Sparse("item")), label="click")
    data = hotrows.prepare(clicks(300), schema, tmp_path / "enc")
    shown = data._repr_html_()
    assert f"{data.parts['train'].rows:,}" in shown and "mean click" in shown

    result = hotrows.Trainer(data, TrainConfig(model="lr", steps=2), tmp_path / "run").fit()
    assert f"{result.test.auc:.4f}" in result._repr_html_() and "2 steps" in result._repr_html_()


def test_a_plan_shows_what_it_reads():
    embedding = hotrows.Embedding([Table("item", 10, 4, ("item",))])
    batch = hotrows.Batch(("item",), torch.tensor([1, 3, 3, 1, 1]), torch.zeros(5, 0))
    shown = embedding.plan(batch)._repr_html_()
    cells = [cell for cell in ("<td", ">5<", ">2<") if cell in shown]
    assert len(cells) == 3 and "5 samples" in shown
