"""Files of settings, --set, and which of them holds; the learning rate of all, and of one side."""

import importlib.util
import json
from pathlib import Path

import click
import pytest

from hotrows import models
from hotrows.cli import cli, config_files
from hotrows.cli.training import config_with
from hotrows.models.recipes import RECIPES
from hotrows.optim import SGD, Adagrad, LazyAdam
from hotrows.schema import Dense, Schema, Sequence, Sparse
from hotrows.train.config import SETTINGS, TrainConfig

TOML = """
model = "din"
fast_memory = "2GiB"
dense_lr = 0.01
row_optimizer = {kind = "adam", lr = 0.1}
label_weights.buy = 2
[model_options]
dim = 8
hidden = [16, 8]
"""
YAML = """
model: din
fast_memory: 2GiB
dense_lr: 0.01
row_optimizer: {kind: adam, lr: 0.1}
label_weights: {buy: 2}
model_options: {dim: 8, hidden: [16, 8]}
"""
SAME = TrainConfig(
    model="din",
    fast_memory=2 << 30,
    dense_lr=0.01,
    row_optimizer=LazyAdam(lr=0.1),
    label_weights={"buy": 2},
    model_options={"dim": 8, "hidden": [16, 8]},
)
has_yaml = importlib.util.find_spec("yaml") is not None


def written(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text)
    return path


def options_of(*arguments: str) -> dict:
    """What the command line has set among the settings, as train takes it."""
    params = cli.commands["train"].make_context("train", ["enc", *map(str, arguments)]).params
    names = {*SETTINGS, "lr", "embedding_lr", "row_options"}
    return {name: value for name, value in params.items() if name in names}


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_is_found_by_its_name_unless_a_file_has_it(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    config = config_files.read(Path(name), ["batch_size=64"])
    past = [Sequence("past", vocabulary="C1", rows=9)] if name == "rmc1" else []
    sparse = [Sparse(f"C{n}", rows=9) for n in range(26)]
    schema = Schema(features=(*(Dense(f"I{n}") for n in range(13)), *sparse, *past))
    model = models.build(config.model, schema, **config.model_options)
    assert config.batch_size == 64 and config.epochs == 1
    sizes = {"rmc1": (367, 15), "rmc2": (367, 512), "rmc3": (415, 512)}
    assert config.row_optimizer == (Adagrad(lr=0.05) if name == "rmc1" else SGD(lr=0.1))
    first = model.top.layers[0]
    assert (first.in_features, first.out_features) == sizes[name]
    written(tmp_path, name, SAME.to_json())
    assert config_files.read(Path(name)) == SAME


def test_a_file_is_read_as_toml_or_json(tmp_path):
    assert config_files.read(written(tmp_path, "a.toml", TOML)) == SAME
    assert config_files.read(written(tmp_path, "a.json", SAME.to_json())) == SAME
    assert config_files.read(written(tmp_path, "tuned", SAME.to_json())) == SAME


def test_a_file_is_read_as_yaml_where_its_package_is(tmp_path):
    path = written(tmp_path, "a.yaml", YAML)
    if has_yaml:
        assert config_files.read(path) == SAME
    else:
        with pytest.raises(ImportError, match="YAML needs the package PyYAML: pip install pyyaml"):
            config_files.read(path)


def test_set_takes_precedence_over_the_file_and_options_over_set(tmp_path):
    path = written(tmp_path, "a.toml", TOML)
    changes = ["model_options.dim=32", "row_optimizer.lr=0.3", "epochs=2", "seed=4", "fast_memory=1MiB"]
    config = config_files.read(path, changes)
    assert config.model_options == {"dim": 32, "hidden": [16, 8]}
    assert config.row_optimizer == LazyAdam(lr=0.3)
    assert (config.epochs, config.seed, config.fast_memory) == (2, 4, 1 << 20)
    config = config_with(config, options_of("--seed", 5, "--option", "dim=64", "--embedding-lr", 0.4))
    assert (config.epochs, config.seed, config.model_options["dim"]) == (2, 5, 64)
    assert config.row_optimizer == LazyAdam(lr=0.4)


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        ("row_optimizer=sgd", "row_optimizer", SGD()),
        ("row_optimizer.lr=0.5", "row_optimizer", Adagrad(lr=0.5)),
        ("store=file:tables", "store", "file:tables"),
        ("label=1", "label", "1"),
        ("steps=null", "steps", None),
        ("compile=true", "compile", True),
        ("label_weights.buy=2", "label_weights", {"buy": 2}),
    ],
)
def test_set_changes_one_setting(text, name, value):
    config = config_files.changed(TrainConfig(steps=3, fast_memory=1000), [text])
    assert getattr(config, name) == value


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("epoch=2", "--set epoch=2: there is no setting 'epoch'; did you mean 'epochs'?"),
        ("xyzzy=2", "there is no setting 'xyzzy'; there are model, model_options"),
        ("epochs", "--set must be NAME=VALUE, such as epochs=2, not 'epochs'"),
        ("epochs=many", "Error: --set epochs=many: epochs of a training configuration must be"),
        (
            "epochs.x=2",
            "epochs has no entries; model_options, label_weights, row_optimizer, linear_optimizer have",
        ),
    ],
)
def test_a_wrong_set_is_wrong_usage(hotrows, text, hint):
    told = hotrows("train", "enc", "--set", text)
    assert told.code == 2
    assert hint in " ".join(told.err.split())


@pytest.mark.parametrize(
    ("name", "text", "hint"),
    [
        ("a.toml", "modle = 'din'", "has no field 'modle'; did you mean 'model'?"),
        ("a.toml", "model = ", "a.toml cannot be read"),
        ("a.json", '{"xyzzy": 1}', "has no field 'xyzzy'; a model's own arguments are in model_options"),
        ("a.json", "[1]", "a.json cannot be read"),
        ("a.toml", "fast_memory = '2 bits'", "a size must be a number of bytes"),
    ],
)
def test_a_wrong_file_is_refused_by_name(tmp_path, name, text, hint):
    with pytest.raises(ValueError, match="cannot be read") as refused:
        config_files.read(written(tmp_path, name, text), ["epochs=2"])
    assert hint in str(refused.value)


def test_a_wrong_set_is_not_blamed_on_the_file(tmp_path):
    with pytest.raises(click.UsageError, match="--set epochs=many: epochs of a training"):
        config_files.read(written(tmp_path, "a.toml", TOML), ["epochs=many"])


def test_the_config_of_a_run_can_be_fed_back(hotrows):
    again = ["--set", "seed=2", "--steps", "3", "--run", "runs/again"]
    told = hotrows("train", "enc", "--config", "runs/a/config.json", *again)
    assert told.code == 0, told.err
    first, second = (json.loads(Path("runs", run, "config.json").read_text()) for run in ("a", "again"))
    del first["crc32"], second["crc32"]
    assert second == first | {"seed": 2, "steps": 3}


def test_one_learning_rate_is_that_of_both_sides():
    stored = TrainConfig(row_optimizer=Adagrad(), linear_optimizer=Adagrad(lr=0.2))
    for before in (TrainConfig(), stored):
        config = config_with(before, options_of("--lr", 0.1))
        assert (config.row_optimizer, config.dense_lr) == (Adagrad(lr=0.1), 0.1)
        assert config.linear_optimizer is None  # that of rows


@pytest.mark.parametrize(
    ("arguments", "rows", "dense"),
    [
        (["--embedding-lr", 0.1], Adagrad(lr=0.1), None),
        (["--dense-lr", 0.1], None, 0.1),
        (["--lr", 0.1, "--embedding-lr", 0.2], Adagrad(lr=0.2), 0.1),
        (["--lr", 0.1, "--dense-lr", 0.2], Adagrad(lr=0.1), 0.2),
        (["--optimizer", "adam", "--embedding-lr", 0.2], LazyAdam(lr=0.2), None),
    ],
)
def test_a_learning_rate_of_one_side_leaves_the_other_side(arguments, rows, dense):
    config = config_with(TrainConfig(), options_of(*arguments))
    assert (config.row_optimizer, config.dense_lr) == (rows, dense)


# The options of train in the first version of the command line.
FIRST = """
    --schema --validation --test --run --run-dir --config --resume --trace --model --option --label
    --label-weight --from --epochs --steps --batch-size --optimizer --lr --row-option --dense-optimizer
    --dense-lr --clip-norm --precision --table-dtype --seed --shuffle --no-shuffle --evaluate-every
    --checkpoint-every --keep-last --full-every --background-checkpoints --no-background-checkpoints
    --warmup-steps --decay-factor --decay-patience --stop-patience --fast-memory --store --policy
    --in-flight --linear-paths --micro-batches --pack-parts --planning-threads --planning --sharding
    --wire-dtype --timeout --device --cache-transfer --compile --no-compile --cuda-graph --no-cuda-graph
    --streams
"""


def test_options_that_were_typed_before_are_understood():
    params = cli.commands["train"].params
    known = {name for param in params for name in (*param.opts, *param.secondary_opts)}
    assert set(FIRST.split()) <= known
