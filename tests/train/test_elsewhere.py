"""What a process has that a run does not: a working directory, links, defaults of PyTorch, versions."""

import json
import logging
import subprocess
from pathlib import Path

import pytest
import torch

from hotrows import TrainConfig, Trainer, load_run, prepare
from hotrows.cli import main
from hotrows.data import EncodedData
from hotrows.runtime import machine
from hotrows.runtime.atomic_files import absolute
from hotrows.train.run import folder as run_folder
from tests.support.runs import CONFIG, encode, schema

pytestmark = pytest.mark.usefixtures("one_thread", "no_pictures")

CACHE = {"fast_memory": 3000, "store": "file:store"}
BATCH = {"n": [1], "a": ["v1"], "b": ["w2"]}


def short(**changes):
    fields = {"model": "fm", "steps": 2, "batch_size": 64, "row_optimizer": CONFIG.row_optimizer}
    return TrainConfig(**fields, **changes)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with data, and a run on it."""
    folder = tmp_path_factory.mktemp("all")
    data = encode(folder)
    Trainer(data, short(), folder / "run").fit()
    return folder


@pytest.mark.parametrize("cache", [{}, CACHE], ids=["memory", "file"])
def test_the_working_directory_may_change_once_an_object_is_made(folder, tmp_path, monkeypatch, cache):
    """ "%cd" in a notebook: `fit` said that the run was deleted, `predict` that its data came encoded."""
    monkeypatch.chdir(folder)
    data, predictor = EncodedData.open("enc"), load_run("run")
    monkeypatch.chdir(tmp_path)
    trainer = Trainer(data, short(**cache), "run", trace="trace.json")
    (tmp_path / "other").mkdir()
    monkeypatch.chdir("other")
    trainer.fit()
    assert trainer.predict(BATCH) == load_run("../run").predict(BATCH) == predictor.predict(BATCH)
    assert predictor.vectors("a").num_rows and not list(Path().iterdir())
    assert {"run", "trace.json"} <= {path.name for path in tmp_path.iterdir()}


USES = [
    lambda path, folder: Trainer(folder / "enc", short(), path),
    lambda path, folder: Trainer(folder / "enc", short(), path, resume=True),
    lambda path, folder: Trainer(path, short(), folder / "new"),
    lambda path, folder: load_run(path),
    lambda path, folder: prepare(folder / "raw.csv", schema(), path),
]


@pytest.mark.parametrize("use", USES)
def test_a_name_that_no_file_can_have_is_refused(folder, tmp_path, use):
    """It was a bare OSError: File name too long."""
    with pytest.raises(ValueError, match=r"n{40}\.\. has 300 bytes, and names have at most 255"):
        use(tmp_path / ("n" * 300), folder)


def test_a_link_to_nothing_is_named(folder, tmp_path):
    """It was a bare OSError: File exists."""
    (tmp_path / "link").symlink_to("nowhere")
    with pytest.raises(
        ValueError, match="link is a link to nowhere, which is not there: correct or remove it"
    ):
        USES[0](tmp_path / "link" / "in", folder)
    for use in USES[1:4]:
        with pytest.raises(ValueError, match=r"link does not exist|no run to resume in .*link"):
            use(tmp_path / "link", folder)
    USES[0](tmp_path / "link", folder)  # the run is where the link points to
    assert (tmp_path / "nowhere" / "config.json").exists() and (tmp_path / "link").is_symlink()


def test_a_path_stays_where_it_is(tmp_path, monkeypatch):
    (tmp_path / "whole").mkdir()
    (tmp_path / "link").symlink_to("whole")
    monkeypatch.chdir(tmp_path)
    assert absolute("link/x") == tmp_path / "link" / "x"


@pytest.mark.parametrize(
    "switch, back, message",
    [
        (lambda: torch.set_default_dtype(torch.float64), lambda: torch.set_default_dtype(torch.float32),
         r"tensors of torch.float64 on cpu by default.*call torch.set_default_dtype\(torch.float32\)"),
        (lambda: torch.set_default_device("meta"), lambda: torch.set_default_device("cpu"),
         "tensors of torch.float32 on meta by default"),
        (lambda: torch.set_autocast_enabled("cpu", True),
         lambda: torch.set_autocast_enabled("cpu", False),
         r"autocast is on here: .* outside of torch.autocast; .*precision='bfloat16'"),
    ],
    ids=["dtype", "device", "autocast"],
)  # fmt: skip
def test_defaults_of_pytorch_that_models_do_not_have_are_refused(folder, tmp_path, switch, back, message):
    """It was a RuntimeError about mat1 and mat2; under autocast the run had other weights, silently."""
    predictor, trainer = load_run(folder / "run"), Trainer(folder / "enc", short(), tmp_path / "run")
    switch()
    try:
        for use in (
            lambda: Trainer(folder / "enc", short(), tmp_path / "other"),
            lambda: load_run(folder / "run"),
            lambda: predictor.predict(BATCH),
            trainer.fit,
        ):
            with pytest.raises(ValueError, match=message):
                use()
    finally:
        back()


def test_a_run_that_goes_on_says_in_what_the_environment_differs(folder, caplog, monkeypatch):
    run_folder.compare_environment(folder / "run")
    assert not caplog.records
    then = json.loads((folder / "run" / "environment.json").read_text())
    now = then | {"torch": "9.9", "threads": 7, "memory_gib": 1}
    monkeypatch.setattr(run_folder, "environment", lambda: now)
    caplog.set_level(logging.WARNING)
    Trainer(folder / "enc", short(), folder / "run", resume=True)
    (line,) = [r.getMessage() for r in caplog.records if "environment" in r.getMessage()]
    assert f"(torch {then['torch']} then, 9.9 now; threads {then['threads']} then, 7 now)" in line
    assert "memory" not in line and "weights then differ" in line


def test_the_commit_is_that_of_hotrows_wherever_it_runs(tmp_path, monkeypatch):
    here = machine._commit()
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    author = ["-c", "user.name=n", "-c", "user.email=e"]
    subprocess.run(["git", *author, "commit", "-q", "--allow-empty", "-m", "x"], cwd=tmp_path, check=True)
    monkeypatch.chdir(tmp_path)
    assert machine._commit() == here
    monkeypatch.setattr(machine, "__file__", str(tmp_path / "venv.py"))  # in it, but no file of it
    assert machine._commit() is None


def test_the_command_prints_its_result_as_json(folder, tmp_path, capsys):
    run = str(tmp_path / "run")
    main(["train", str(folder / "enc"), "--model", "fm", "--steps", "2", "--run", run, "--json"])
    result = json.loads(capsys.readouterr().out)
    assert result["steps"] == 2 and result["run"] == run
