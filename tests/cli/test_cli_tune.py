"""hotrows tune, and train with what it has written."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from hotrows import cli
from tests.support.commands import SMALL

pytestmark = pytest.mark.usefixtures("one_thread")

TUNE = ["tune", "enc", "--model", "deepfm", "--batch-size", "64", *SMALL, "--seconds", "2"]


def test_tune_prints_every_decision_and_writes_what_train_reads(hotrows):
    told = hotrows(*TUNE, "--seconds", "4", "--fast-memory", "64KiB", "--config", "fast.json")
    assert told.code == 0, told.err
    measured = json.loads(Path("fast.measurements.json").read_text())
    written = json.loads(Path("fast.json").read_text())
    assert written["model_options"] == {"hidden": [16], "dim": 4}
    assert written["fast_memory"] == 64 << 10
    for name, value in measured["changes"].items():
        assert written[name] == value
    assert measured["decisions"]
    for of in measured["decisions"]:
        assert of["knob"] not in ("linear_paths", "batch_size", "precision")  # given, or not asked for
        assert re.search(rf"^{of['knob']} +", told.out, re.MULTILINE)
    assert "configuration  fast.json" in told.out
    assert "tuned for speed; for quality: --for auc" in told.out
    assert not [name for name in os.listdir() if "trial" in name]
    run = hotrows("train", "enc", "--config", "fast.json", "--steps", "5", "--run", "runs/tuned")
    assert run.code == 0, run.err
    config = json.loads(Path("runs/tuned/config.json").read_text())
    assert config["steps"] == 5  # what is said comes first
    assert {name: config[name] for name in ("model", "batch_size", "fast_memory", "in_flight")} == {
        name: written[name] for name in ("model", "batch_size", "fast_memory", "in_flight")
    }


def test_tune_for_a_metric_prints_its_trials_and_one_test_and_writes_what_train_reads(hotrows):
    pytest.importorskip("optuna")
    search = ["tune", "enc", "--for", "auc", "--model", "dnn", "--option", "hidden=[4]", "--steps", "4"]
    told = hotrows(*search, "--trials", "2", "--lr", "0.01", "--minutes", "9", "--config", "auc.json")
    assert told.code == 0, told.err
    assert re.search(r"^trial +auc +± +model +dim +dropout +seconds +note$", told.out, re.MULTILINE)
    assert re.search(r"^validation +auc 0\.\d{4}; of the defaults 0\.\d{4}$", told.out, re.MULTILINE)
    assert len(re.findall(r"^test +AUC", told.out, re.MULTILINE)) == 1
    assert "configuration  auc.json: hotrows train enc --config auc.json" in told.out
    assert os.path.isdir("runs/tune-auc")
    assert hotrows("train", "enc", "--config", "auc.json", "--run", "runs/chosen").code == 0
    again = hotrows(*search, "--trials", "2", "--config", "more.json")
    assert again.code == 1 and "has a search with row_optimizer" in again.err


@pytest.mark.slow
def test_tune_runs_under_torchrun(folder):
    source = str(Path(cli.__file__).parents[2])
    done = subprocess.run(
        [
            sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "hotrows",
            *TUNE, "--may-change", "wire_dtype", "--config", "ranks.json",
        ],
        cwd=folder, capture_output=True, text=True, timeout=120,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": source},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("configuration  ranks.json") == 1
    assert "sharding" in done.stdout
    assert json.loads((folder / "ranks.json").read_text())["model"] == "deepfm"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--may-change", "seed"], "any of precision, table_dtype, wire_dtype"),
        (["--seconds", "0"], "it must be a finite number above 0, not 0"),
        (["--config", "enc"], "is a directory"),
        (["--config", "raw/train.txt"], "raw/train.txt exists; name another file"),
        (["--precision", "bfloat16", "--may-change", "precision"], "precision is given, and stays"),
        (["--fast-memory", "10"], "fast memory must hold a row of every group"),
        (["--steps", "0"], "steps must be at least 1, not 0"),
        (["--minutes", "1"], "--seconds and --minutes are both the time: give one of the two"),
        (["--trials", "3"], "--trials goes with --for auc"),
        (["--for", "auc", "--may-change", "precision"], "--may-change goes with --for speed"),
        (["--for", "acu"], "'acu' is none of speed, auc, logloss"),
    ],
)
def test_tune_refuses_what_is_wrong_before_it_measures(hotrows, arguments, said):
    told = hotrows(*TUNE, *arguments)
    assert told.code in (1, 2)
    assert said in told.err
    assert not Path("tuned.json").exists()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "there is no some.json; `hotrows tune` writes one"),
        ("{", "some.json cannot be read"),
        ("[1]", "some.json cannot be read"),
        ('{"modle": "dlrm"}', "has no field 'modle'"),
        ('{"in_flight": 0}', "in_flight must be at least 1, not 0"),
    ],
)
def test_train_refuses_a_file_that_is_no_configuration(hotrows, text, said):
    path = Path("some.json")
    path.unlink(missing_ok=True)
    if text is not None:
        path.write_text(text)
    told = hotrows("train", "enc", "--config", "some.json", "--run", "runs/none")
    assert told.code == 1
    assert said in told.err
    assert not Path("runs/none").exists()


def test_a_run_that_goes_on_keeps_its_own_settings(hotrows):
    told = hotrows("train", "enc", "--config", "fast.json", "--run", "runs/a", "--resume")
    assert told.code == 2
    assert "leave out --config" in told.err
