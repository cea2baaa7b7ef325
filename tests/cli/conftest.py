"""The folder in which commands run: raw data, encoded data and a run, or what a module makes."""

import os
import shutil

import pytest

from hotrows import cli
from tests.support.commands import SMALL


@pytest.fixture(scope="module")
def folder(made, tmp_path_factory):
    return shutil.copytree(made, tmp_path_factory.mktemp("cli") / "folder")


@pytest.fixture(scope="session")
def made(tmp_path_factory):
    """raw/train.txt, enc and the run deepfm, made by the commands themselves."""
    folder = tmp_path_factory.mktemp("cli")
    for arguments in (
        ["synth", "criteo", "--rows", "3000", "--out", "raw", "--cardinality-scale", "0.001"],
        ["prepare", "raw/train.txt", "--schema", "criteo", "--split", "position:0.8"],
        ["train", "enc", "--model", "deepfm", "--epochs", "1", "--seed", "1"],
    ):
        extra = {
            "synth": [],
            "prepare": ["--out", "enc"],
            "train": ["--batch-size", "512", "--run", "runs/a", *SMALL],
        }[arguments[0]]
        before = os.getcwd()
        os.chdir(folder)
        try:
            cli.main([*arguments, *extra])
        except SystemExit as left:
            assert not left.code
        finally:
            os.chdir(before)
    return folder


@pytest.fixture(autouse=True)
def inside_folder(folder, monkeypatch):
    monkeypatch.chdir(folder)
