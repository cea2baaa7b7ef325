"""hotrows data: lists, says where files are, and prepares."""

from types import SimpleNamespace

import pytest

from hotrows import cli, data
from hotrows.data import datasets
from hotrows.schema import Dense


@pytest.fixture
def hotrows(capsys):
    """Runs a command in this process: exit code, output, messages."""

    def run(*arguments):
        with pytest.raises(SystemExit) as left:
            cli.main(["data", *map(str, arguments)])
            raise SystemExit(0)
        said = capsys.readouterr()
        return left.value.code, said.out, said.err

    return run


def test_all_sets_are_listed(hotrows):
    code, out, _ = hotrows()
    assert code == 0
    lines = out.splitlines()
    assert len(lines) == len(datasets.ALL) + 1
    for data_set, line in zip(datasets.ALL, lines[1:], strict=True):
        assert line.startswith(f"{data_set.name} ")
        assert f" {data_set.rows:,} " in line
        assert data_set.licence in line


def test_one_set_says_how_to_get_it(hotrows):
    assert "sign in at https://tianchi.aliyun.com/dataset/56, accept" in hotrows("taobao_ad")[1]
    assert "comes with hotrows: hotrows data adult --out enc" in hotrows("adult")[1]
    assert "hotrows data movielens_1m --raw DIR --download" in hotrows("movielens_1m")[1]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["movielens"], 2, "'movielens' is none of"),
        (["criteo", "--download"], 2, "--download needs the folder for the raw files: --raw DIR"),
        (["criteo", "--out", "enc"], 2, "say where the raw files of criteo are: --raw DIR"),
        (["criteo", "--raw", ".", "--out", "enc"], 1, ". must hold train.txt, plain or as .gz"),
        (["avazu", "--raw", "raw", "--download"], 1, "put train.gz (or train.csv) into raw"),
        (["adult", "--out", "enc", "--split", "fraction:0.8"], 1, "'adult' comes in parts"),
    ],
)
def test_wrong_usage_gets_one_line(hotrows, tmp_path, monkeypatch, arguments, code, message):
    monkeypatch.chdir(tmp_path)
    exit_code, _, err = hotrows(*arguments)
    assert exit_code == code
    assert message in err
    assert "Traceback" not in err
    assert list(tmp_path.iterdir()) == []


def test_a_set_is_prepared_with_its_schema_and_what_was_asked(hotrows, tmp_path, monkeypatch):
    arguments_passed = {}

    def prepare(raw, schema, out, **how):
        arguments_passed.update(how, schema=schema)
        return SimpleNamespace(parts={"train": SimpleNamespace(rows=29_305)})

    monkeypatch.setattr(data, "prepare", prepare)
    out = tmp_path / "enc"
    arguments = ["--min-count", 7, "--memory", "3MiB", "--threads", 1, "--seed", 5]
    code, said, _ = hotrows("adult", "--out", out, *arguments)
    assert (code, said) == (0, f"{out}: 29,305 train\n")
    features = arguments_passed["schema"].features
    assert {f.min_count for f in features if not isinstance(f, Dense)} == {7}
    assert (arguments_passed["memory"], arguments_passed["threads"], arguments_passed["seed"]) == (
        3 << 20,
        1,
        5,
    )
