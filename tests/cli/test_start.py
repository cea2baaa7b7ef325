"""The start: what is imported to answer help, completion and wrong usage, and what a new user is told."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import hotrows
import hotrows as package
from hotrows import cli
from tests.support.versions import suggests

HEAVY = ("torch", "numpy", "pyarrow", "pandas", "safetensors", "rich", "matplotlib", "tensorboard")
ROOT = Path(__file__).parents[2]


def python(code: str) -> str:
    """What a Python process prints on standard output."""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": str(Path(hotrows.__file__).parents[1])},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_importing_the_package_imports_nothing_heavy():
    names = (*HEAVY, "click")
    code = f"import sys, hotrows; dir(hotrows); print([name for name in {names} if name in sys.modules])"
    assert python(code) == "[]\n"


def test_help_version_first_steps_and_wrong_usage_import_nothing_heavy():
    """`prepare --help` names the public data sets, whose schemas take numpy, and nothing else does."""
    code = f"""
import contextlib, io, sys
from hotrows.cli import cli, main

names = [name for name in cli.commands if name not in ("prepare", "checkpoint")]
lines = [[], ["--version"], ["--help"], *([name, "--help"] for name in names), ["trian"]]
lines += [["checkpoint", name, "--help"] for name in cli.commands["checkpoint"].commands]
lines += [["train", "enc", "--model", "depfm"], ["train", "enc", "--resume"], ["tune"]]
for line in [*lines, ["prepare", "--help"]]:
    sys.stdout = sys.stderr = out = io.StringIO()
    with contextlib.suppress(SystemExit):
        main(line)
    sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__
    assert out.getvalue(), line
    heavy = [name for name in {HEAVY} if name in sys.modules]
    allowed = ["numpy"] if line[:1] == ["prepare"] else []
    print(*line, *heavy) if heavy != allowed else None
"""
    assert python(code) == ""


def test_wrong_paths_are_answered_before_pytorch_is_imported(tmp_path):
    """Which takes seconds; the message came after them."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.json").write_text("{}")
    lines = [
        "train no",
        "train no --from no",
        "tune no",
        "eval no",
        "predict no x.csv",
        "predict run no.csv",
    ]
    lines += ["report run no", "export no --out x", "describe no", "profile no --fast-memory 1MiB"]
    code = f"""
import contextlib, io, os, sys
from hotrows.cli import main

os.chdir({str(tmp_path)!r})
for line in {lines}:
    sys.stderr = out = io.StringIO()
    with contextlib.suppress(SystemExit):
        main(line.split())
    sys.stderr = sys.__stderr__
    assert out.getvalue().startswith("hotrows: ") and "no" in out.getvalue(), (line, out.getvalue())
    assert "torch" not in sys.modules, line
"""
    assert python(code) == ""


def test_modules_are_reachable_and_listed_once_the_package_is_imported():
    code = """
import hotrows
assert hotrows.__version__ and {"__version__", *hotrows.__all__} <= set(dir(hotrows))
assert {"data", "engine", "models", "serving", "tools", "train"} <= set(dir(hotrows))
assert not {"TYPE_CHECKING", "lazy_names", "VERSION", "_native"} & set(dir(hotrows))
print(hotrows.engine.planning.policy.LRU.window, hotrows.models.nn.MLP.__name__)
print(hotrows.tools.tuning.tune.tune.__name__)
print(hotrows.data.datasets.schemas.criteo.name, hotrows.models.tables.__name__)
print(hotrows.train.metrics.Metrics.__name__, hotrows.engine.distributed.process_group.start.__name__)
print("DLRM" in dir(hotrows.models))
"""
    assert python(code).split() == [
        *("0", "MLP", "tune", "criteo", "hotrows.models.tables", "Metrics", "start", "True")
    ]


def test_a_name_that_is_not_there_is_no_attribute():
    assert not hasattr(package, "Embeding") and not hasattr(package, "_native")
    with pytest.raises(AttributeError, match="module 'hotrows.models' has no attribute 'DLMR'"):
        _ = package.models.DLMR


def test_without_arguments_three_commands_to_a_first_model_are_taught_and_work(
    hotrows, tmp_path, monkeypatch, threads, no_pictures
):
    threads(1)
    monkeypatch.chdir(tmp_path)
    told = hotrows()
    commands = re.findall(r"^  hotrows (.+ (?:adult|runs/first).*)$", told.out, re.MULTILINE)
    assert (told.code, told.err, len(commands)) == (0, "", 3)
    for line in commands:
        done = hotrows(*line.split(), *(["--steps", "20"] if line.startswith("train") else []))
        assert done.code == 0, done.err
    auc = re.search(r"test +AUC (\S+)", done.out)
    assert 0.5 < float(auc[1]) < 1


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        pytest.param(["trian"], "Did you mean 'train'?", marks=suggests),
        pytest.param(["train", "enc", "--modl", "dlrm"], "'--model'", marks=suggests),
        (["train", "enc", "--learning-rate", "1"], "Did you mean --lr or --embedding-lr or --dense-lr?"),
        # Not the sixteen whose help begins so.
        pytest.param(["train", "enc", "--s", "1"], "No such option '--s'.\n", marks=suggests),
        (["train", "enc", "--model", "DeepFM"], "did you mean 'deepfm'?"),
        (["train", "enc", "--set", "epoch=2"], "there is no setting 'epoch'; did you mean 'epochs'?"),
        (["data", "adlt"], "did you mean 'adult'?"),
        (["prepare", "no.txt", "--schema", "critoe", "--out", "x"], "did you mean 'criteo'?"),
        (["plan", "criteo-1t", "--ranks", "2"], "did you mean 'criteo-1tb'?"),
        (["train", "enc", "--model", "dnn", "--option", "hiden=[8]"], "did you mean 'hidden'?"),
        (["train", "enc", "--label", "Label"], "label must be one of"),
    ],
)
def test_a_misspelt_name_is_answered_with_the_closest_one(hotrows, arguments, hint):
    told = hotrows(*arguments)
    assert told.code in (1, 2)
    assert hint in told.err


@pytest.mark.parametrize(
    ("words", "completions"),
    [
        ("hotrows tra", {"train"}),
        ("hotrows train enc --model de", {"deepfm"}),
        ("hotrows train enc --embedding-", {"--embedding-lr"}),
        ("hotrows data movie", {"movielens_1m", "movielens_20m"}),
        ("hotrows checkpoint ", {"inspect", "merge"}),
    ],
)
def test_the_shell_completes_commands_options_and_names(hotrows, monkeypatch, words, completions):
    monkeypatch.setenv("_HOTROWS_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(len(words.split(" ")) - 1))
    lines = hotrows().out.splitlines()
    assert completions <= {line.partition(",")[2] for line in lines if line.startswith("plain,")}


def test_the_page_sets_up_the_completion_that_there_is(hotrows, monkeypatch):
    page = (ROOT / "docs" / "installation.md").read_text()
    for shell in ("bash", "zsh", "fish"):
        variable, value = re.search(rf"(_HOTROWS_COMPLETE)=({shell}_source) hotrows", page).groups()
        monkeypatch.setenv(variable, value)
        assert "hotrows" in hotrows().out


@pytest.mark.parametrize("command", ["train", "tune"])
def test_help_lists_every_setting_in_its_group(hotrows, command):
    from hotrows.train.config import GROUPS, SETTINGS

    told = hotrows(command, "--help=all").out
    sections = re.split(r"^(\w.*):\n", told, flags=re.MULTILINE)
    options = dict(zip(sections[1::2], sections[2::2], strict=True))
    left_out = cli.tuning._NOT_OF_A_STEP if command == "tune" else ()
    for title, names in GROUPS.items():
        for name in names:
            if SETTINGS[name].option_name and name not in left_out:
                assert f"  {SETTINGS[name].option_name} " in options[title], name
    assert ("--shares" in told) == (command == "train")  # tune measured equal ones whatever they were
    assert "--embedding-lr" in options["Optimisation"] and "--schema" in options["Data and run"]
    assert "-h, --help" in options["Options"]


@pytest.mark.parametrize("arguments", [["describe", "enc", "--json"], ["eval", "runs/a", "--json"]])
def test_standard_output_is_data_alone(hotrows, arguments):
    told = hotrows(*arguments)
    json.loads(told.out)
    assert "Traceback" not in told.err and "Warning" not in told.err


def test_the_page_lists_the_exit_codes():
    page = (ROOT / "docs" / "reference" / "command_line.md").read_text()
    codes = re.findall(r"^\| (\d+) \| ", page, re.MULTILINE)
    assert codes == ["0", "1", "2", "75", "130"]  # test_cli.py and test_notice.py have a case of each
