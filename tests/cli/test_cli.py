"""The command line end to end: what it prints, what it refuses, and how it exits."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from unittest import mock

import pytest

from hotrows import cli
from hotrows.runtime import native
from hotrows.runtime.measurements import Measurement
from tests.support.commands import SMALL

pytestmark = pytest.mark.usefixtures("one_thread")


def launch(*arguments, module="hotrows"):
    """Runs a command in a process of its own."""
    command = [sys.executable, "-m", module, *map(str, arguments)]
    source = os.pathsep.join(map(str, [Path(cli.__file__).parents[2], Path(__file__).parents[2]]))
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": source},
    )


def test_train_leaves_a_run(folder):
    assert {"result.json", "checkpoints.json", "metrics.jsonl"} <= set(os.listdir("runs/a"))
    config = json.loads((folder / "runs/a/config.json").read_text())
    assert (config["model"], config["batch_size"], config["seed"]) == ("deepfm", 512, 1)
    assert config["model_options"] == {"hidden": [16], "dim": 4}


def test_eval_prints_auc_and_log_loss_of_the_held_out_part(hotrows, folder):
    told = hotrows("eval", "runs/a")
    kept = json.loads((folder / "runs/a/result.json").read_text())["test"]
    line = r"test +AUC (\S+)  log loss (\S+) \(base rate \S+\)  calibration \S+  \(600 samples\)\n"
    found = re.fullmatch(line, told.out)
    assert told.code == 0
    assert float(found[1]) == pytest.approx(kept["auc"], abs=1e-6)
    assert float(found[2]) == pytest.approx(kept["log_loss"], abs=1e-6)
    as_json = json.loads(hotrows("eval", "runs/a", "--json").out)
    assert as_json == kept


def test_ctrl_c_while_an_error_is_explained_is_one_line(hotrows, monkeypatch):
    monkeypatch.setattr(cli, "_message", mock.Mock(side_effect=KeyboardInterrupt))
    told = hotrows("describe", "nowhere")
    assert (told.code, told.err) == (130, "hotrows: interrupted\n")


def test_a_system_without_threads_is_refused_in_one_line(hotrows, monkeypatch, tmp_path):
    start = mock.Mock(side_effect=RuntimeError("can't start new thread"))
    names = {"_start_joinable_thread", "_start_new_thread"}  # from Python 3.13 on, before it
    monkeypatch.setattr(threading, *names & vars(threading).keys(), start)
    told = hotrows("train", "enc", "--model", "deepfm", *SMALL, "--run", tmp_path / "run")
    assert told.code == 1
    assert re.fullmatch(r"hotrows: out of memory: .*no more threads; .*\n", told.err)


def test_predict_gives_one_probability_per_row_in_order(hotrows):
    told = hotrows("predict", "runs/a", "raw/train.txt")
    chances = [float(line) for line in told.out.splitlines()]
    assert len(chances) == 3000
    assert all(0 < chance < 1 for chance in chances)
    with open("raw/train.txt") as rows:
        lines = rows.read().splitlines()
    with open("turned.txt", "w") as rows:  # the other way round, without labels, with a new value
        rows.write("".join(line.split("\t", 1)[1] + "\n" for line in reversed(lines)))
        rows.write("\t".join(["1"] * 13 + ["0badcafe"] * 26) + "\n")
    assert hotrows("predict", "runs/a", "turned.txt", "--out", "out.txt").code == 0
    with open("out.txt") as file:
        turned = [float(line) for line in file]
    assert len(turned) == 3001
    assert turned[:-1] == pytest.approx(chances[::-1], rel=1e-4)


@pytest.mark.filterwarnings("default:values differ")
def test_rates_of_unknown_and_missing_values_are_said_beside_the_results(hotrows):
    """Rows in another spelling were predicted, and no word said that most values were unknown."""
    usual = hotrows("predict", "runs/a", "raw/train.txt")
    rates, metrics = usual.err.splitlines()
    assert re.fullmatch(r"3,000 samples; missing: \S+% of the values, .*; unknown: .*", rates)
    assert re.match(r"labels +AUC \S+ ", metrics)
    with open("raw/train.txt") as rows, open("upper.txt", "w") as upper:
        upper.write(rows.read().upper())
    told = hotrows("predict", "runs/a", "upper.txt")
    assert told.code == 0 and len(told.out.splitlines()) == len(usual.out.splitlines()) == 3000
    warning, summary, _ = told.err.splitlines()
    assert re.match(
        r"hotrows: warning: values differ .*: 'C\d+' \S+% unknown \(such as '[0-9A-F]+'\), exp", warning
    )
    assert summary.startswith("3,000 samples; ")
    assert hotrows("eval", "runs/a").err.startswith("600 samples; missing: ")
    assert hotrows("prepare", "raw/train.txt", "--like", "enc", "--out", "alike").err == ""
    later = hotrows("prepare", "upper.txt", "--like", "enc", "--out", "later")
    assert later.err.startswith("hotrows: warning: values differ from those")
    assert re.search(r"^C1 +3,000 +", later.out, re.MULTILINE)
    measured = hotrows("eval", "runs/a", "--data", "later", "--json")
    assert "hotrows: warning: values differ" in measured.err and json.loads(measured.out)["samples"]


def test_describe_prints_sizes_and_draws_the_skew(hotrows):
    told = hotrows("describe", "enc", "--picture", "skew.svg")
    assert "2,160 samples" in told.out
    assert "hottest 1 %" in told.out
    assert len(re.findall(r"^C\d+ ", told.out, re.MULTILINE)) == 26
    assert json.loads(hotrows("describe", "enc", "--json").out)["parts"]["test"]["rows"] == 600


def test_doctor_says_what_was_found(hotrows):
    told = hotrows("doctor")
    for word in ("cores", "native core", "torch", "threads", "huge pages", "gpu"):
        assert re.search(rf"^{word} ", told.out, re.MULTILINE), word
    assert not re.search(rf"\b{re.escape(os.uname().nodename)}\b", told.out)


def test_doctor_names_extras_with_versions_or_how_to_install_them(hotrows, monkeypatch):
    needed = [
        "numpy>=1",
        'onnx>=1.17; extra == "export"',
        "nosuch; extra == 'wandb'",
        'ruff; extra == "dev"',
    ]
    monkeypatch.setattr("hotrows.cli.doctor.metadata.requires", lambda name: needed)
    lines = dict(line.split(maxsplit=1) for line in hotrows("doctor").out.splitlines() if " " in line)
    assert lines["export"].startswith("onnx ") and "dev" not in lines
    assert lines["wandb"] == "without nosuch: pip install 'hotrows[wandb]'"


def test_doctor_says_what_is_kept_and_forgets_it(hotrows, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    Measurement("machine", {}).write({})
    for arguments, num_kept in ((), 1), (("--renew",), 0), ((), 0):
        told = hotrows("doctor", *arguments)
        assert re.search(rf"^measurements +{num_kept} kept in {tmp_path}", told.out, re.MULTILINE)


@pytest.mark.parametrize(
    "command", ["", "synth", "prepare", "describe", "train", "eval", "predict", "doctor"]
)
def test_help_teaches(hotrows, command):
    told = hotrows(*command.split(), "--help")
    assert told.code == 0
    assert "hotrows " + command in told.out
    if command:
        assert "Examples:" in told.out


def test_module_and_version():
    process = launch("--version")
    assert process.communicate(timeout=60)[0].startswith("hotrows, version ")


def test_a_run_goes_where_there_is_room_by_default(hotrows, no_pictures):
    said = [hotrows("train", "enc", "--model", "dcnv2", "--steps", 2).out for _ in range(2)]
    assert "runs/dcnv2-1" in said[0]
    assert "runs/dcnv2-2" in said[1]


def test_ctrl_c_saves_says_how_to_go_on_and_exits_with_130(hotrows, no_pictures):
    settings = ["--model", "deepfm", "--steps", 4000, "--batch-size", 32, *SMALL]
    settings += ["--run", "runs/cut", "--stop-patience", 1000]
    process = launch("train", "enc", *settings, module="tests.support.plain_command")
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if os.path.exists("runs/cut/metrics.jsonl") and os.path.getsize("runs/cut/metrics.jsonl"):
            break
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=60)[1]
    assert process.returncode == 130
    step = re.search(r"^hotrows: stopped after step ([\d,]+) of 4,000", said, re.MULTILINE)
    assert "go on with: hotrows train enc --run runs/cut --resume" in said
    assert "Traceback" not in said
    enough = int(step[1].replace(",", "")) + 5
    told = hotrows("train", "enc", "--run", "runs/cut", "--resume", "--steps", enough)
    assert told.code == 0
    assert "test        AUC" in told.out


def test_a_run_that_ends_at_once_says_so_and_how_to_go_on(hotrows):
    """The third Ctrl-C raises an interruption without a word, which stood there as an empty one."""
    with mock.patch("hotrows.train.loop.trainer.Trainer.fit", side_effect=KeyboardInterrupt):
        told = hotrows("train", "enc", "--model", "lr", "--run", "runs/ended")
    assert told.code == 130
    assert "hotrows: interrupted; go on with: hotrows train enc --run runs/ended --resume" in told.err


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["train"], 2, "Missing argument 'DATA'"),
        (["train", "enc", "--model", "gpt"], 2, "'gpt' is none of"),
        (["train", "enc", "--resume"], 2, "--resume needs the run to go on with: --run FOLDER"),
        (["train", "enc", "--option", "dim"], 2, "--option must be NAME=VALUE"),
        (["train", "enc", "--epochs", "0"], 2, "epochs must be at least 1, not 0"),
        (["train", "enc", "--row-bits", "5"], 2, "'5' is not one of '32', '16', '8', '4'"),
        (
            ["train", "enc", "--row-bits", "4", "--option", "dim=7"],
            1,
            "rows of int4 need an even dim, not 7",
        ),
        (["train", "enc", "--row-bits", "8", "--table-dtype", "float32"], 2, "give one of the two"),
        (
            ["train", "enc", "--run", "runs/a", "--resume", "--row-bits", "8"],
            1,
            "run runs/a was begun with table_dtype='float32', not 'int8'",
        ),
        (["train", "nowhere"], 1, "nowhere does not exist"),
        (["train", "enc", "--run", "runs/a"], 1, "runs/a exists already: resume it"),
        (["train", "enc", "--run", "runs/no", "--resume"], 1, "there is no run to resume in"),
        (
            ["train", "enc", "--run", "runs/a", "--resume", "--batch-size", "64"],
            1,
            "run runs/a was begun with batch_size=512, not 64",
        ),
        (["eval", "runs"], 1, "runs is not a run folder: it has no config.json"),
        (["predict", "runs/a", "no.txt"], 1, "no.txt"),
        (["prepare", "no.txt", "--schema", "criteo", "--out", "x"], 1, "no.txt"),
        (["prepare", "raw/train.txt", "--schema", "imagenet", "--out", "x"], 1, "'imagenet'"),
        (["prepare", "raw/train.txt", "--schema", "criteo", "--out", "enc"], 1, "enc"),
        (["describe", "raw"], 1, "raw holds no prepared data"),
        (["train", "runs/a"], 1, "runs/a is a run; name the folder of prepared data"),
        (["predict", "runs/a", "enc"], 1, "enc is prepared data, not raw rows; name the files"),
        (["synth", "criteo", "--rows", "0", "--out", "x"], 2, "--rows"),
    ],
)
def test_wrong_usage_gets_one_line_and_an_exit_code(hotrows, arguments, code, said):
    told = hotrows(*arguments)
    assert told.code == code
    assert said in told.err
    assert "Traceback" not in told.err
    if code == 1:
        assert told.err.startswith("hotrows: ")
        assert told.err.count("\n") == 1


def test_installed_packages_are_not_taken_for_the_users_code(hotrows, tmp_path, monkeypatch):
    """Those of a parent environment or of a user, which every error then seemed to come from:
    `hotrows: .../site-packages/click/core.py line 911: nowhere does not exist`."""
    folder = tmp_path / "elsewhere" / "site-packages"
    folder.mkdir(parents=True)
    (folder / "theirs.py").write_text("raise ValueError('of theirs')")
    (tmp_path / "mine.py").write_text("import theirs")
    monkeypatch.syspath_prepend(folder)
    said = hotrows("train", "enc", "--model", f"{tmp_path}/mine.py:M").err
    assert (
        said == f"hotrows: {tmp_path}/mine.py line 1: of theirs (hotrows --debug shows the traceback)\n"
    )


def test_debug_shows_the_traceback():
    with pytest.raises(ValueError, match="holds no prepared data"):
        cli.main(["--debug", "describe", "raw"])


def test_an_error_of_the_system_is_shown_without_its_number():
    for arguments in ((28, "no room for 9 bytes"), ("no room for 9 bytes",)):
        assert cli._message(OSError(*arguments)) == "no room for 9 bytes"


def test_a_core_of_other_sources_is_said_in_one_line(tmp_path):
    source, core = tmp_path / "csrc", tmp_path / "src" / "hotrows" / "_native" / "core_v3.so"
    source.mkdir()
    core.parent.mkdir(parents=True)
    core.with_suffix(".id").write_text("of older functions")
    with pytest.raises(ImportError) as raised:
        native._check_interface(core)
    assert "built from other sources" in cli._message(raised.value)
    by_python = ImportError("cannot import name 'nosuch'", name="hotrows")  # needs its traceback
    assert cli._message(by_python) is None


def test_a_closed_pipe_is_no_error():
    process = launch("predict", "runs/a", "raw/train.txt")
    process.stdout.close()
    said = process.stderr.read()
    process.wait(timeout=60)
    process.stderr.close()
    assert "Traceback" not in said


def test_new_rows_go_on_with_the_model_of_a_run(hotrows, no_pictures):
    """`train --from` asked for a DLRM, whatever the run had trained."""
    grown = hotrows("prepare", "raw/train.txt", "--extend", "enc", "--out", "enc2")
    assert grown.code == 0 and "unseen" in grown.out
    assert hotrows("train", "enc2", "--from", "runs/a", "--steps", 5, "--run", "runs/grown").code == 0
    ours, theirs = (json.loads(Path(f"runs/{run}/config.json").read_text()) for run in ("grown", "a"))
    for name in ("model", "model_options", "row_optimizer", "linear_optimizer", "dense_optimizer"):
        assert ours[name] == theirs[name]


@pytest.mark.parametrize("bits", [8, 4])
def test_a_run_of_few_bits_begins_with_the_rows_of_one_of_32(hotrows, no_pictures, bits):
    arguments = ["--from", "runs/a", "--row-bits", bits, "--steps", 5, "--run", f"runs/bits{bits}"]
    told = hotrows("train", "enc", *arguments)
    assert told.code == 0, told.err
    tables = json.loads(hotrows("checkpoint", "inspect", f"runs/bits{bits}", "--json").out)["tables"]
    assert {(table["dim"] > 2, table["dtype"]) for table in tables} == {
        (True, f"int{bits}"),
        (False, "float32"),
    }
    assert hotrows("predict", f"runs/bits{bits}", "raw/train.txt").code == 0
    assert hotrows("train", "enc", "--run", f"runs/bits{bits}", "--resume", "--steps", 8).code == 0


def test_train_says_what_batches_in_flight_pin(hotrows, no_pictures):
    run = ["--model", "deepfm", "--batch-size", "64", *SMALL, "--steps", "6", "--run", "runs/pins"]
    told = hotrows("train", "enc", *run, "--fast-memory", "64KiB", "--plan-depth", "0")
    assert told.code == 0, told.err
    pinned = (
        r"fast memory: [\d,]+ slots; 4 batches in flight pinned at most [\d,]+ rows, and \d of 6 batches"
    )
    assert re.search(pinned, told.err)
    config = json.loads(Path("runs/pins/config.json").read_text())
    assert config["plan_depth"] == 0
