"""The search for quality: what it chooses, how it resumes, and what it refuses."""

import json
import sys

import pytest

from hotrows import Schema, Sparse, TrainConfig, Trainer, load_run
from hotrows.data import EncodedData, prepare
from hotrows.tools.tuning import search as module
from hotrows.tools.tuning.search import JOURNAL, search
from hotrows.tools.tuning.search_space import SearchSpace
from tests.support.runs import encode, schema, write_rows

pytestmark = pytest.mark.usefixtures("one_thread", "no_pictures")

# So few steps that the default rates learn little.
CONFIG = TrainConfig(
    model="dnn", model_options={"hidden": [8]}, steps=8, batch_size=64, evaluate_every=4, seed=1
)


@pytest.fixture(scope="module", autouse=True)
def few_at_random():
    """TPE draws from the fourth trial on."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_RANDOM", 3)
        yield


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return encode(tmp_path_factory.mktemp("search"))


@pytest.fixture(scope="module")
def found(data, tmp_path_factory):
    pytest.importorskip("optuna")
    return search(data, CONFIG, tmp_path_factory.mktemp("whole") / "run", trials=6)


def outcomes(found):
    """The trials but for the time that they took."""
    return [(t.user_attrs["turn"], t.params, t.values, t.user_attrs["note"]) for t in found.trials]


def fits_of(monkeypatch):
    """Counts the runs that are trained."""
    fits, fit = [], Trainer.fit
    monkeypatch.setattr(Trainer, "fit", lambda self, **how: fits.append(self) or fit(self, **how))
    return fits


def test_the_chosen_config_is_better_than_a_bad_default_and_trains_to_the_same_score(
    data, found, tmp_path
):
    best, default = found.trials[0], min(found.trials, key=lambda t: t.number)
    assert default.params == {"model": "dnn", "lr": 1.0, "dense_lr": 1.0, "dim": 16, "dropout": 0.0}
    assert best.value > default.value + 0.01
    found.config.save(tmp_path / "tuned.json")
    again = Trainer(found.data, TrainConfig.load(tmp_path / "tuned.json"), tmp_path / "run").fit()
    assert again.validation.auc == best.value
    assert again.test.auc == found.test.auc == load_run(found.run).evaluate(data.parts["test"]).auc


def test_no_trial_sees_the_test_part_and_only_the_best_run_is_kept(found):
    result = json.loads((found.run / "result.json").read_text())
    assert result["test"] is None and result["validation"]["auc"] == found.trials[0].value
    assert list(found.run.parent.glob("trial-*")) == [found.run]


@pytest.mark.parametrize("stop", [1, 30])  # in the first trial, and in one of TPE
def test_a_search_that_was_stopped_makes_the_trials_that_it_would_have_made(found, data, tmp_path, stop):
    calls = []

    def stops(*what):
        calls.append(what)
        if len(calls) == stop:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt, match=r"interrupted in trial \d; the same call goes on"):
        search(data, CONFIG, tmp_path / "run", trials=6, progress=stops)
    with (tmp_path / "run" / JOURNAL).open("a") as journal:
        journal.write('{"op_code":')  # as a kill may leave it
    assert outcomes(search(data, CONFIG, tmp_path / "run", trials=6)) == outcomes(found)


def test_a_search_that_is_over_trains_no_more(found, data, monkeypatch):
    fits = fits_of(monkeypatch)
    assert outcomes(search(data, CONFIG, found.run.parent, trials=6)) == outcomes(found)
    assert not fits


def test_a_trial_that_time_does_not_suffice_for_is_resumed_by_a_call_with_more(found, data, tmp_path):
    with pytest.raises(ValueError, match=r"no trial ended within 0 s; the same call with more time"):
        search(data, CONFIG, tmp_path / "run", seconds=1e-9)
    assert outcomes(search(data, CONFIG, tmp_path / "run", trials=6)) == outcomes(found)


def test_a_trial_that_fails_is_noted_and_the_search_goes_on(data, tmp_path, monkeypatch):
    pytest.importorskip("optuna")
    config_of = SearchSpace.config_of

    def fails(space, chosen):
        if chosen["lr"] != 1.0 and chosen["lr"] < 5:
            raise RuntimeError("out of memory")
        return config_of(space, chosen)

    monkeypatch.setattr(SearchSpace, "config_of", fails)
    tried = search(data, CONFIG, tmp_path / "run", trials=6).trials
    notes = [trial.user_attrs["note"] for trial in tried]
    assert "failed: out of memory" in notes and notes[0] == ""
    assert len(tried) == 6
    monkeypatch.setattr(SearchSpace, "config_of", lambda space, chosen: 1 / 0)
    with pytest.raises(
        ValueError, match="the first 5 trials failed; the last one failed: division by zero"
    ):
        search(data, CONFIG, tmp_path / "other")


def test_each_min_count_is_prepared_once_as_prepare_does_it(data, tmp_path):
    pytest.importorskip("optuna")
    given = {"model": "lr", "row_optimizer": "sgd", "dense_lr": 0.1, "steps": 2}
    few = TrainConfig(**given, batch_size=64)
    found = search(data, few, tmp_path / "run", raw={"raw": [data.path.parent / "raw.csv"]}, trials=9)
    for trial in found.trials:
        count = trial.params["min_count"]
        assert (tmp_path / f"run/min-count-{count}/data.json").exists() == (count > 0)
    raw, out = data.path.parent / "raw.csv", tmp_path / "by-hand"
    by_hand = prepare(
        [raw],
        schema().with_fields({"a": {"min_count": 2}, "b": {"min_count": 2}}),
        out,
        split="position:0.6,0.2,0.2",
    )
    assert EncodedData.open(tmp_path / "run/min-count-2").fingerprint == by_hand.fingerprint
    with pytest.raises(
        ValueError, match="the raw files make parts of .*'train': 60.* and .*'train': 900"
    ):
        short = write_rows(tmp_path / "short.csv", rows=100)
        search(data, few, tmp_path / "other", raw={"raw": [short]})


@pytest.mark.parametrize(
    ("config", "metric", "said"),
    [
        (CONFIG, "gauc", "the validation part has no gauc; it has AUC, log loss, calibration"),
        (CONFIG, "ndcg@10", "ndcg@10"),
        (TrainConfig(model="dnn", model_options={"hiden": [4]}), "auc", "has no option 'hiden'"),
        (
            TrainConfig(model="lr", row_optimizer="sgd", dense_lr=1),
            "auc",
            "all that a search chooses is given",
        ),
    ],
)
def test_a_search_refuses_what_it_cannot_choose_by(data, tmp_path, config, metric, said):
    pytest.importorskip("optuna")
    with pytest.raises(ValueError, match=said):
        search(data, config, tmp_path / "run", metric=metric)


def test_a_folder_has_one_search(found, data):
    for change, said in (({"seed": 2}, "a search with seed 1, not 2"), ({"steps": 9}, "steps 8, not 9")):
        with pytest.raises(ValueError, match=said):
            search(data, TrainConfig(**{**vars(CONFIG), **change}), found.run.parent)


def test_a_search_needs_a_validation_part(tmp_path):
    pytest.importorskip("optuna")
    raw = write_rows(tmp_path / "raw.csv", rows=100)
    whole = prepare([raw], schema(), tmp_path / "enc", split="fraction:1,0,0")
    with pytest.raises(ValueError, match="a search chooses by the validation part, and .* has none"):
        search(whole, CONFIG, tmp_path / "run")


def test_less_log_loss_is_better(data, tmp_path):
    pytest.importorskip("optuna")
    found = search(data, CONFIG, tmp_path / "run", metric="log_loss", trials=3)
    values = [trial.value for trial in found.trials if not trial.user_attrs["note"]]
    assert values == sorted(values)


def test_models_are_those_that_the_data_and_the_options_allow(data, tmp_path):
    two = Schema((Sparse("a"), Sparse("b")), label=("label", "n"), delimiter=",")
    rows = {"a": ["x", "y"] * 50, "b": ["z"] * 100, "label": [0, 1] * 50, "n": [0, 0, 1, 1] * 25}
    both = prepare(rows, two, tmp_path / "enc")
    for source, config, models in (
        (both, TrainConfig(), ("mmoe", "ple")),
        (both, TrainConfig(label="n"), ("deepfm", "dcnv2", "dnn", "fm")),  # no numbers for dlrm
        (data, TrainConfig(plain=True), ("deepfm", "dcnv2", "dnn", "dlrm", "fm")),
        (data, TrainConfig(plain=True, model_options={"hidden": [8]}), ("deepfm", "dcnv2", "dnn")),
        (data, TrainConfig(plain=True, model="wide_deep"), ("wide_deep",)),
    ):
        assert SearchSpace(source, config, tmp_path, {}).models == models


def test_without_optuna_one_sentence_says_what_to_install(data, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(ImportError, match=r"a search for quality needs optuna .*: pip install.* optuna"):
        search(data, CONFIG, tmp_path / "run")
    assert not (tmp_path / "run").exists()
