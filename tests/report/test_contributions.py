"""What the values of a row add to its prediction, against frames in which they are replaced by hand."""

import json
import re

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from hotrows import Schema, Sparse, TrainConfig, Trainer, prepare
from hotrows.losses import Calibration, parse
from hotrows.tools.report.contributions import contributions, prediction_of
from hotrows.train import load_run
from hotrows.train.telling.row_sample import rows_of, sample_of
from tests.support.clicks import SCHEMA, table

pytestmark = [
    pytest.mark.usefixtures("one_thread", "no_pictures"),
    pytest.mark.filterwarnings("ignore:values differ from those"),
]
ROWS, OTHERS = table(400).slice(0, 30), table(400).slice(100, 60)
MODELS = {
    "lr": {},
    "din": {"dim": 4, "attention": [8], "hidden": [8]},
    "mmoe": {"dim": 4, "num_experts": 2, "expert_hidden": [8], "tower_hidden": [4]},
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("contributions")
    data = prepare(table(400), SCHEMA, folder / "enc")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hotrows.train.telling.pictures.draw_run", lambda run: None)
        for model, options in MODELS.items():
            config = TrainConfig(
                model, options, steps=8, batch_size=32, dense_lr=0.05, linear_paths="plain"
            )
            Trainer(data, config, folder / model).fit(verbose=False)
    return folder


@pytest.mark.parametrize(
    "link, output, prediction", [("sigmoid", 0.0, 0.5), ("exp", 0.0, 1.0), ("identity", 3.5, 3.5)]
)
def test_an_output_becomes_the_prediction_that_people_read(link, output, prediction):
    assert prediction_of(link, output) == prediction


def sample(predictor, rows):
    names = [feature.name for feature in predictor.schema.id_features]
    return rows_of([batch.expanded(names) for batch in predictor.encoder.encode(rows)], names, len(rows))


def outputs(predictor, rows):
    """The mean logit of the predictions of rows by label."""
    predictions = torch.from_numpy(predictor.predict(rows)).view(len(rows), -1).double()
    return dict(zip(predictor.labels, predictions.logit().mean(0).tolist(), strict=True))


@pytest.mark.parametrize("model", MODELS)
def test_a_feature_adds_what_is_lost_where_it_has_the_values_of_other_rows(runs, model):
    predictor = load_run(runs / model)
    focal = Calibration(dict.fromkeys(predictor.labels, parse("focal:2")))
    predictor.calibration = focal.with_scales([(0.5, -0.3)] * len(predictor.labels))
    found = contributions(predictor, sample(predictor, ROWS), 7, sample(predictor, OTHERS))
    row = ROWS.take(pa.array([7] * len(OTHERS)))
    assert found.row == pytest.approx(outputs(predictor, row), abs=1e-5)
    assert found.usual == pytest.approx(outputs(predictor, OTHERS), abs=1e-5)
    named = [name for names in found.adds for name in names]
    assert sorted(named) == sorted(feature.name for feature in predictor.schema.features)
    for names, adds in found.adds.items():
        replaced = row
        for name in names:
            column = predictor.schema.column_of(next(f for f in SCHEMA.features if f.name == name))
            place = replaced.column_names.index(column)
            replaced = replaced.set_column(place, column, OTHERS.column(column))
        without = outputs(predictor, replaced)
        expected = {label: found.row[label] - without[label] for label in without}
        assert adds == pytest.approx(expected, abs=1e-5), names
    sizes = [max(map(abs, adds.values())) for adds in found.adds.values()]
    assert sizes == sorted(sizes, reverse=True) and sizes[0] > 1e-3


def test_weights_of_single_features_leave_nothing_over(runs):
    predictor = load_run(runs / "lr")
    for number in range(0, 30, 5):
        found = contributions(predictor, sample(predictor, ROWS), number, sample(predictor, OTHERS))
        assert found.left_over == pytest.approx(dict.fromkeys(found.row, 0.0), abs=1e-4)


@pytest.mark.parametrize("by_groups", [True, False])
def test_rows_to_compare_with_are_of_all_groups(tmp_path, by_groups):
    """One user with a quarter of the rows was all that others were compared with."""
    users = [0] * 1000 + [n % 300 + 1 for n in range(3000)]
    schema = Schema((Sparse("user"),), label="click", group="user")
    data = prepare(
        {"user": users, "click": [n % 2 for n in range(4000)]},
        schema,
        tmp_path / "enc",
        split="position:1,0,0",
    )
    whole = sample_of(data.parts["train"], 4000, 0, by_groups)
    drawn = whole.drawn(400)
    heavy = (drawn.rows.groups == drawn.rows.groups.mode().values).double().mean()
    assert len(drawn) == 400 and 0.17 < heavy < 0.33
    assert len(drawn.rows.groups.unique()) > 150


def test_a_cut_history_shows_its_newest(runs, hotrows, monkeypatch):
    monkeypatch.chdir(runs)
    rows = ROWS.set_column(
        ROWS.column_names.index("history"), "history", pa.array([[*range(10, 40), 7]] * len(ROWS))
    )
    pq.write_table(rows, "long.parquet")
    told = hotrows("contributions", "din", "long.parquet", "--others", "5")
    shown = next(line for line in told.out.splitlines() if line.split()[0] == "history")
    assert re.search(r"…[\d, ]+38, 39, 7\]", shown), told.out


def test_the_command_names_values_and_refuses_rows_that_are_not_there(runs, hotrows, monkeypatch):
    monkeypatch.chdir(runs)
    pq.write_table(ROWS, "rows.parquet")
    told = hotrows("contributions", "mmoe", "rows.parquet", "--row", "8", "--others", "20")
    assert told.code == 0, told.err
    lines = told.out.splitlines()
    assert re.match(r"click: 0\.\d+, of a typical row 0\.\d+; features add log odds", lines[0])
    assert lines[1].startswith("  raised ") and lines[2].startswith("  lowered ")
    assert lines[3].startswith("buy: 0.")
    assert "adds to click" in lines[6] and lines[-1].split()[0] == "together"
    user = next(line.split() for line in lines if line.split()[0] == "user")
    assert user[1] == str(ROWS["user"][7].as_py())
    told = hotrows("contributions", "mmoe", "rows.parquet", "--row", "8", "--others", "20", "--json")
    click = json.loads(told.out)["click"]
    assert (click["unit"], len(click["adds"])) == ("log odds", 5) and 0 < click["prediction"] < 1
    assert {"features": ["user"], "value": user[1]}.items() <= next(
        one.items() for one in click["adds"] if one["features"] == ["user"]
    )
    told = hotrows("contributions", "mmoe", "rows.parquet", "--row", "31")
    assert told.code == 1 and "--row 31: rows.parquet has 30 rows" in told.err
