"""predict: files of probabilities beside columns of the input, and metrics where labels are."""

import csv
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from hotrows.cli.predictions import predictions_to
from hotrows.train import load_run
from hotrows.train.run import folder as run_folder
from tests.support import clicks

pytestmark = pytest.mark.usefixtures("one_thread", "no_pictures")
NAMES = ["label", *(f"I{i}" for i in range(1, 14)), *(f"C{i}" for i in range(1, 27))]


@pytest.fixture(scope="module")
def lines(folder):
    with open(folder / "raw/train.txt") as file:
        return [line.split("\t") for line in file.read().splitlines()]


@pytest.fixture(scope="module")
def expected(folder):
    predictor = load_run(folder / "runs/a")
    return [f"{p:.7g}" for p in predictor.predict(folder / "raw/train.txt").tolist()]


def rows_of(path, delimiter=","):
    with open(path, newline="") as file:
        header, *rows = csv.reader(file, delimiter=delimiter)
    return header, [list(column) for column in zip(*rows, strict=True)]


def test_csv_has_the_columns_as_they_are_in_the_input(hotrows, lines, expected):
    told = hotrows("predict", "runs/a", "raw/train.txt", "--out", "some.csv", "--columns", "C1,I2,label")
    assert (told.code, told.out) == (0, "")
    header, (c1, i2, label, probability) = rows_of("some.csv")
    assert header == ["C1", "I2", "label", "probability"] and probability == expected
    places = [NAMES.index(name) for name in ("C1", "I2", "label")]
    assert [c1, i2, label] == [[line[place] for line in lines] for place in places]


def test_all_columns_go_to_tabs_and_probabilities_alone_to_csv(hotrows, lines, expected):
    assert hotrows("predict", "runs/a", "raw/train.txt", "--out", "all.tsv", "--columns", "all").code == 0
    header, columns = rows_of("all.tsv", "\t")
    assert header == [*run_folder.read_schema(Path("runs/a")).columns, "probability"]
    assert [list(row[:-1]) for row in zip(*columns, strict=True)] == lines
    assert hotrows("predict", "runs/a", "raw/train.txt", "--out", "alone.csv").code == 0
    assert rows_of("alone.csv") == (["probability"], [expected])


def test_a_file_with_tabs_has_no_quotes_as_it_is_read(tmp_path):
    kept = pa.table({"word": ['say "no"', '"']})
    with predictions_to(tmp_path / "out.tsv", ["probability"], True) as write:
        write(torch.tensor([0.5, 0.25]), kept)
    assert (tmp_path / "out.tsv").read_text() == 'word\tprobability\nsay "no"\t0.5\n"\t0.25\n'
    for value in ("two\tfields", "two\nlines"):
        with (
            pytest.raises(ValueError, match=r"a value has a tab or a line end, .* write --out FILE\.csv"),
            predictions_to(tmp_path / "other.tsv", ["probability"], True) as write,
        ):
            write(torch.tensor([0.5]), pa.table({"word": [value]}))
        assert not (tmp_path / "other.tsv").exists()


def test_standard_output_is_csv_where_columns_are_kept(hotrows, lines, expected):
    told = hotrows("predict", "runs/a", "raw/train.txt", "--columns", "C3")
    rows = told.out.splitlines()
    assert rows[0] == "C3,probability" and rows[1] == f"{lines[0][NAMES.index('C3')]},{expected[0]}"
    assert len(rows) == 3001


def test_metrics_are_said_where_labels_are(hotrows, lines):
    told = hotrows("predict", "runs/a", "raw/train.txt")
    measured = re.search(r"^labels +AUC (0\.\d+)  log loss .* \(3,000 samples\)$", told.err, re.MULTILINE)
    assert 0.5 < float(measured[1]) < 1 and "AUC" not in told.out
    with open("unlabelled.txt", "w") as file:
        file.write("".join("\t".join(line[1:]) + "\n" for line in lines[:50]))
    told = hotrows("predict", "runs/a", "unlabelled.txt")
    assert told.code == 0 and len(told.out.splitlines()) == 50 and "AUC" not in told.err


@pytest.fixture(scope="module")
def clicks_run(folder):
    """A run of two labels, and raw rows with lists, in Parquet."""
    from hotrows import TrainConfig, Trainer
    from hotrows.data import prepare

    table = clicks.table(400).append_column("number", pa.array(range(400)))
    pq.write_table(table, folder / "clicks.parquet", row_group_size=150)
    data = prepare(table, clicks.SCHEMA, folder / "enc-clicks")
    options = {"dim": 4, "num_experts": 2, "expert_hidden": [8], "tower_hidden": [4]}
    trainer = Trainer(data, TrainConfig("mmoe", options, steps=3), folder / "runs/clicks")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hotrows.train.telling.pictures.draw_run", lambda run: None)
        trainer.fit()
    return table


def test_parquet_has_the_types_of_the_input_and_a_column_for_each_label(hotrows, clicks_run):
    told = hotrows("predict", "runs/clicks", "clicks.parquet", "--out", "all.parquet", "--columns", "all")
    assert told.code == 0, told.err
    found = pq.read_table("all.parquet")
    assert found.column_names == [*clicks_run.column_names, "probability_click", "probability_buy"]
    assert found.select(clicks_run.column_names).equals(clicks_run)
    assert found["probability_buy"].to_numpy().tolist() == pytest.approx(
        load_run("runs/clicks").predict(clicks_run)[:, 1].tolist()
    )
    assert re.search(r"^labels buy +AUC", told.err, re.MULTILINE)
    assert hotrows("predict", "runs/clicks", "clicks.parquet", "--out", "alone.parquet").code == 0
    assert pq.read_table("alone.parquet").column_names == ["probability_click", "probability_buy"]


def test_a_score_keeps_clear_of_a_column_of_its_name(hotrows, clicks_run):
    table = clicks_run.append_column("probability_click", clicks_run["number"])
    pq.write_table(table, "scored.parquet")
    names = "number,probability_click"
    told = hotrows("predict", "runs/clicks", "scored.parquet", "--out", "again.csv", "--columns", names)
    assert told.code == 0, told.err
    header, columns = rows_of("again.csv")
    assert header == ["number", "probability_click", "probability_click_", "probability_buy"]
    assert columns[1] == [str(i) for i in range(400)]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--columns", "C1", "--out", "x.txt"], 2, "--columns needs --out FILE with .csv, .tsv"),
        (["--columns", "C99"], 1, "has no column 'C99' to keep; it has .*; did you mean 'C9'?"),
    ],
)
def test_columns_that_are_not_there_are_refused(hotrows, arguments, code, message):
    told = hotrows("predict", "runs/a", "raw/train.txt", *arguments)
    assert told.code == code and re.search(message, told.err), told.err


@pytest.mark.filterwarnings("ignore:values differ")
def test_strict_fails_where_values_are_far_from_those_of_training(hotrows, lines, tmp_path):
    far = tmp_path / "far.txt"
    far.write_text("".join("\t".join([*line[:14], *["zz"] * 26]) + "\n" for line in lines[:400]))
    plain = hotrows("predict", "runs/a", far, "-o", tmp_path / "plain.txt")
    assert plain.code == 0 and (tmp_path / "plain.txt").exists()
    strict = hotrows("predict", "runs/a", far, "-o", tmp_path / "strict.txt", "--strict")
    assert strict.code == 1 and "--strict: " in strict.err and "unknown" in strict.err
    assert not (tmp_path / "strict.txt").exists()
    quiet = hotrows("predict", "runs/a", "raw/train.txt", "-q", "-o", tmp_path / "quiet.txt", "--strict")
    assert (quiet.code, quiet.out) == (0, "") and "rows; missing" not in quiet.err


def test_lists_are_no_column_of_csv(hotrows, clicks_run):
    told = hotrows("predict", "runs/clicks", "clicks.parquet", "--columns", "tags")
    assert told.code == 1 and "column 'tags' has lists, which CSV has not" in told.err


def test_training_prints_which_step_was_best_and_not_the_rule(hotrows):
    """The rule is in docs/reference/settings.md."""
    told = hotrows("train", "enc", "--model", "lr", "--steps", "4", "--run", "runs/rule")
    assert told.code == 0, told.err
    assert re.search(r"^steps +4, best at 4$", told.out, re.MULTILINE)
    assert "standard error" not in told.out + told.err
