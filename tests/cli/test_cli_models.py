"""The command line with models of histories, of several labels, and of one's own."""

import json
import re
from functools import partial
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from hotrows import data
from hotrows.serving.export.whole import export
from hotrows.train import Trainer, load_run
from tests.support.clicks import SCHEMA, table

QUICK = ["--steps", 4, "--linear-paths", "plain", "--option", "dim=4"]
DIN = ["--model", "din", "--option", "hidden=[8]", *QUICK]
MMOE = ["--model", "mmoe", "--option", "expert_hidden=[8]", "--option", "tower_hidden=[8]", *QUICK]


@pytest.fixture(autouse=True)
def quick(no_pictures, threads):
    threads(1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cli")
    pq.write_table(table(400), folder / "rows.parquet")
    data.prepare(folder / "rows.parquet", SCHEMA, folder / "enc", split="position:0.6,0.2,0.2")
    return folder


def config_of(run):
    return json.loads(Path(run, "config.json").read_text())


def test_options_of_a_model_and_of_rows_are_taken(hotrows):
    form = ["--option", "form=paper", "--option", "activation=prelu"]
    decay = ["--row-option", "weight_decay=1e-2", "--row-option", "decay_by_count=true"]
    told = hotrows("train", "enc", *DIN, *form, *decay, "--run", "runs/din")
    assert told.code == 0 and "test        AUC" in told.out
    config = config_of("runs/din")
    options = {"form": "paper", "activation": "prelu", "hidden": [8], "dim": 4}
    assert config["model_options"] == options
    rows = config["row_optimizer"]
    assert (rows["kind"], rows["weight_decay"], rows["decay_by_count"]) == ("adagrad", 0.01, True)


def test_a_model_of_several_labels_has_a_line_and_a_column_of_each(hotrows):
    told = hotrows("train", "enc", *MMOE, "--label-weight", "buy=2", "--run", "runs/mmoe")
    assert told.code == 0
    assert config_of("runs/mmoe")["label_weights"] == {"buy": 2}
    lines = hotrows("eval", "runs/mmoe").out.splitlines()
    assert [re.match(r"test (click|buy|mean) +AUC 0\.\d+  gAUC", line)[1] for line in lines] == [
        "click", "buy", "mean",
    ]  # fmt: skip
    assert set(lines) < set(told.out.splitlines())
    tasks = json.loads(hotrows("eval", "runs/mmoe", "--json").out)["tasks"]
    assert list(tasks) == ["click", "buy"]
    rows = hotrows("predict", "runs/mmoe", "rows.parquet").out.splitlines()
    columns = [[float(chance) for chance in row.split("\t")] for row in rows]
    assert len(columns) == 400
    assert all(len(row) == 2 and 0 < min(row) < max(row) < 1 for row in columns)


def test_a_model_of_ones_own_is_named_by_its_file_from_anywhere(hotrows, folder, monkeypatch):
    Path("mine.py").write_text("from hotrows.models import DNN\n\n\nclass Mine(DNN):\n    pass\n")
    own = ["--model", "mine.py:Mine", "--option", "hidden=[8]", *QUICK]
    assert "runs/mine-1" in hotrows("train", "enc", *own).out
    Path("elsewhere").mkdir()
    monkeypatch.chdir("elsewhere")
    told = hotrows("eval", "../runs/mine-1", "--model", "../mine.py:Mine")
    assert told.code == 0, told.err
    assert hotrows("eval", "../runs/mine-1", "--trust").code == 0


@pytest.fixture
def foreign(hotrows, tmp_path):
    """A run whose model's file writes `ran` when it is run, and the name of the model."""
    file = tmp_path / "foreign.py"
    harmless = "from hotrows.models import DNN\n\n\nclass Foreign(DNN):\n    pass\n"
    file.write_text(harmless)
    own = ["--model", f"{file}:Foreign", "--option", "hidden=[8]", *QUICK]
    assert hotrows("train", "enc", *own, "--run", tmp_path / "run").code == 0
    file.write_text(f"{harmless}\n\nopen({str(tmp_path / 'ran')!r}, 'w').close()\n")
    return f"{file}:Foreign"


@pytest.mark.parametrize(
    "command",
    [
        "eval {0}/run",
        "predict {0}/run rows.parquet",
        "export {0}/run --out {0}/out",
        "train enc --run {0}/run --resume --steps 6",
        "train enc --from {0}/run --run {0}/new --steps 2",
        "train enc --config {0}/run/config.json --run {0}/new",
    ],
)
def test_code_that_a_folder_names_runs_only_where_it_is_asked_for(hotrows, foreign, tmp_path, command):
    words = command.format(tmp_path).split()
    told = hotrows(*words)
    assert told.code == 1 and not (tmp_path / "ran").exists()
    assert told.err == (
        f"hotrows: {tmp_path}/run/config.json names a model that is code, {foreign}, which runs only "
        f"where it is asked for: name it again (--model {foreign}, or model=), or trust the file "
        f"(--trust-code, or trust=True)\n"
    )
    assert hotrows(*words, *(["--trust"] if "eval" in words else ["--model", foreign])).code == 0
    assert (tmp_path / "ran").exists()


def test_a_module_that_a_folder_names_is_not_imported(hotrows, foreign, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    config = tmp_path / "run" / "config.json"
    fields = {**json.loads(config.read_text()), "model": "foreign:Foreign"}
    del fields["format"], fields["crc32"]  # as of somebody who means it
    config.write_text(json.dumps(fields))
    told = hotrows("eval", "run")
    assert told.code == 1 and "a model that is code, foreign:Foreign" in told.err
    assert not (tmp_path / "ran").exists()


def test_in_python_a_run_names_its_code_or_trusts_it(foreign, tmp_path):
    for function in (load_run, partial(export, out=tmp_path / "out")):
        with pytest.raises(
            ValueError, match=r"name it again .* or trust the file \(--trust-code, or trust=True\)"
        ):
            function(tmp_path / "run")
    assert not (tmp_path / "ran").exists()
    for asked in ({"model": foreign}, {"trust": True}):
        assert type(load_run(tmp_path / "run", **asked).model).__name__ == "Foreign"
    assert (tmp_path / "ran").exists()


def test_ctrl_c_says_how_a_model_of_ones_own_goes_on(hotrows, foreign, tmp_path, monkeypatch):
    def interrupted(trainer, **options):
        raise KeyboardInterrupt("stopped")

    monkeypatch.setattr(Trainer, "fit", interrupted)
    told = hotrows("train", "enc", "--model", foreign, "--run", tmp_path / "new")
    assert told.code == 130 and f"--resume --model {foreign}" in told.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([*DIN, "--option", "dim=x"], "DIN's option dim must be int, such as 16, not 'x'"),
        ([*DIN, "--option", "hiden=8"], "DIN has no option 'hiden'; it has dim, form, attention"),
        ([*DIN, "--option", "form=thesis"], "form must be one of paper, code, not 'thesis'"),
        ([*DIN, "--option", "histories=history"], 'such as ["history"], or of lists'),
        ([*MMOE, "--label-weight", "like=2"], "that the model learns (click, buy), not of 'like'"),
        ([*MMOE, "--label", "click"], "the model learns click, buy together"),
        (["--model", "no.py:Mine"], "model 'Mine': there is no file "),
    ],
)
def test_wrong_options_get_one_line(hotrows, arguments, said):
    told = hotrows("train", "enc", *arguments, "--run", "runs/wrong")
    assert told.code == 1
    assert told.err.startswith("hotrows: ") and told.err.count("\n") == 1
    assert said in told.err
    assert not Path("runs/wrong").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([*DIN, "--row-option", "weight_decay=x"], "adagrad's weight_decay must be a number"),
        ([*DIN, "--row-option", "decay_by_count=no"], "decay_by_count must be true or false"),
        ([*DIN, "--label-weight", "click=x"], "label_weights['click'] must be above 0, not 'x'"),
    ],
)
def test_options_that_no_data_could_make_right_are_wrong_usage(hotrows, arguments, said):
    told = hotrows("train", "enc", *arguments, "--run", "runs/wrong")
    assert told.code == 2
    assert said in told.err.splitlines()[-1]
    assert not Path("runs/wrong").exists()
