"""Bundles of dynamic features: keys have the rows that they have in training, version after version."""

import dataclasses
import shutil

import numpy as np
import pytest

from hotrows.data import prepare
from hotrows.dynamic import Dynamic
from hotrows.engine.distributed.in_process import run as on_threads
from hotrows.optim import Adagrad
from hotrows.schema import MISSING_KEY, Dense, Schema, Sparse
from hotrows.serving import Scorer, chain, merging
from hotrows.serving.deltas import read_delta, write_delta
from hotrows.serving.export.publisher import Publisher
from hotrows.serving.export.whole import export
from hotrows.serving.key_ids import GONE, KeyIds
from hotrows.serving.version import version_at
from hotrows.train import Callback, Trainer, load_run
from hotrows.train.config import TrainConfig
from tests.support.bundles import expected_logits, furthest, raw_rows
from tests.support.clicks import table

pytestmark = [
    pytest.mark.usefixtures("one_thread", "no_pictures"),
    pytest.mark.filterwarnings("ignore:values differ from those"),
]
FEW, GROWING = Dynamic(capacity=12, evict="lru"), Dynamic(partitions=2)
STEPS = 8
ROWS = raw_rows(60)


@pytest.fixture(scope="module")
def encoded(tmp_path_factory):
    history = Sparse("history", vocabulary="item", many=True, dynamic=GROWING, num_unknown=2)
    item = Sparse("item", dynamic=GROWING, num_unknown=2)
    schema = Schema((Dense("price"), Sparse("user", dynamic=FEW), item, history), label="click")
    return prepare(table(400), schema, tmp_path_factory.mktemp("keys") / "enc", split="position:0.8")


def config(**settings):
    return TrainConfig(
        model="deepfm", model_options={"dim": 4, "hidden": [8]}, steps=STEPS, batch_size=16,
        evaluate_every=STEPS, row_optimizer=Adagrad(lr=0.1), dense_lr=0.05, seed=3, linear_paths="plain",
        shuffle=False, **settings,
    )  # fmt: skip


class Keys(Callback):
    """By step and table the weights of each live key; each version is written before the next step."""

    def __init__(self, publisher):
        self._publisher, self.by_step = publisher, {}

    def on_step_end(self, trainer, progress):
        embedding, states = trainer.embedding, {}
        with trainer.steps.paused():
            for t in embedding.tables:
                ids, keys = embedding.dynamic.live(t)
                parts = embedding.weight_chunks(t.name, embedding.num_rows()[t.name])
                weights = np.concatenate([part.numpy() for part in parts])
                states[t.name] = dict(zip(keys.tolist(), map(bytes, weights[ids.numpy()]), strict=True))
        self.by_step[trainer.state.step] = states
        self._publisher.wait()


def published(encoded, folder, **settings):
    publisher = Publisher(folder / "to", "1b", base_every=3, keep=9)
    keys = Keys(publisher)
    Trainer(encoded, config(**settings), folder / "run").fit(callbacks=[keys, publisher])
    return folder / "to", keys.by_step, folder / "run"


@pytest.fixture(scope="module")
def versions(encoded, tmp_path_factory, one_program):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hotrows.train.telling.pictures.draw_run", lambda run: None)
        return published(encoded, tmp_path_factory.mktemp("dynamic"))


def served(version):
    """By table, the weights of each live key of a version."""
    features = {t.name: t.features[0] for t in version.bundle.tables}
    of_feature = {f: version.keys[k.vocabulary] for k in version.bundle.keys for f in k.features}
    return {
        name: dict(zip(pairs[0].tolist(), map(bytes, version.tables[name][pairs[1]]), strict=True))
        for name, feature in features.items()
        for pairs in [of_feature[feature].pairs()]
    }


def test_each_version_has_the_keys_and_the_rows_of_its_step(versions):
    to, by_step, _ = versions
    deltas = [read_delta(chain.delta_path(to, number)) for number in chain.look(to).deltas]
    assert any("user" in delta.gone for delta in deltas) and any("item" in delta.keys for delta in deltas)
    for number in range(2, STEPS + 2):
        version = version_at(to, number)
        assert served(version) == by_step[version.head.step], number


def test_one_that_follows_has_what_a_base_has(versions, tmp_path):
    to = shutil.copytree(versions[0], tmp_path / "to")
    bases = chain.look(to).bases[1:]
    for number in bases:
        chain.base_path(to, number).rename(tmp_path / str(number))
    scorer = Scorer.watch(to, every=None)
    whole = scorer.logits(ROWS).tobytes()
    assert scorer.version.base == 1 and served(scorer.version) == versions[1][STEPS]
    (tmp_path / str(bases[-1])).rename(chain.base_path(to, bases[-1]))
    scorer.follower.look()
    assert scorer.version.base == bases[-1] and scorer.logits(ROWS).tobytes() == whole


def test_the_last_version_is_an_export_of_its_step_and_scores_as_the_run(versions, tmp_path):
    to, _, run = versions
    bundle, merged = export(run, tmp_path / "bundle", "last", format="onnx"), tmp_path / "merged"
    merging.merge(to, merged)
    exported, followed = Scorer(bundle, verify=True), Scorer.watch(to, every=None)
    assert exported.logits(ROWS).tobytes() == followed.logits(ROWS).tobytes()
    assert Scorer(merged, verify=True).logits(ROWS).tobytes() == exported.logits(ROWS).tobytes()
    for name in exported.bundle.files:
        if not name.startswith("tables/item"):  # between partitions are rows that no key had yet
            assert (bundle / name).read_bytes() == (merged / name).read_bytes(), name
    assert furthest(exported.logits(ROWS), expected_logits(load_run(run, "last"), ROWS)) < 1e-6


def test_a_run_that_goes_on_publishes_the_keys_that_differ(encoded, versions, tmp_path, one_program):
    to, run = tmp_path / "to", tmp_path / "run"
    for source, target in zip((versions[0], versions[2]), (to, run), strict=True):
        shutil.copytree(source, target)
    for number in chain.look(to).deltas[3:]:
        chain.delta_path(to, number).unlink()
    for number in chain.look(to).bases[1:]:
        shutil.rmtree(chain.base_path(to, number))
    publisher = Publisher(to, "1b")
    Trainer(encoded, config(), run, resume=True).fit(callbacks=[publisher])
    version = version_at(to)
    assert version.head.step == STEPS and served(version) == versions[1][STEPS]


def test_the_versions_of_several_ranks_have_the_rows_and_keys_of_all(encoded, tmp_path, one_program):
    def work(ranks):
        trainer = Trainer(encoded, config(sharding="rows"), tmp_path / "run", ranks=ranks)
        trainer.fit(callbacks=[Publisher(tmp_path / "to", "2b")])

    on_threads(work, 3)
    scorer = Scorer.watch(tmp_path / "to", every=None)
    assert scorer.version.head.step == STEPS
    expected = expected_logits(load_run(tmp_path / "run", "last"), ROWS)
    assert furthest(scorer.logits(ROWS), expected) < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{"fast_memory": 2000, "in_flight": 2}])
def test_versions_behind_a_cache_have_the_same_keys_and_rows(
    encoded, versions, tmp_path, settings, one_program
):
    to, by_step, _ = published(encoded, tmp_path, **settings)
    assert by_step == versions[1]
    assert served(version_at(to)) == by_step[STEPS]


def test_keys_of_another_vocabulary_are_refused(versions, tmp_path):
    to = shutil.copytree(versions[0], tmp_path / "to")
    for number in chain.look(to).bases[1:]:
        shutil.rmtree(chain.base_path(to, number))
    path = chain.delta_path(to, 2)
    delta = read_delta(path)
    write_delta(path, dataclasses.replace(delta, gone={"shop": np.array([3])}))
    with pytest.raises(ValueError, match="has keys or tables that the base does not have"):
        version_at(to, 2)


def test_keys_find_their_ids_and_all_others_unknown_ones(tmp_path):
    path = tmp_path / "keys.npy"
    np.save(path, np.array([[-4, 12, 90], [7, 3, 4]]))
    base = KeyIds(path, num_unknown=1)
    later = base.changed(np.array([12, 55]), np.array([GONE, 3]), 2)
    again = later.changed(np.array([12, 55]), np.array([3, GONE]), 3)
    asked = np.array([90, 12, 55, MISSING_KEY, -4])
    assert base[asked].tolist() == [4, 3, 2, 1, 7]
    assert later[asked].tolist() == [4, 2, 3, 1, 7]
    assert again[asked].tolist() == base[asked].tolist() and (base.pairs() == again.pairs()).all()
    np.save(path, later.pairs())
    assert again.on(KeyIds(path, 1), 2)[asked].tolist() == again[asked].tolist()
    np.save(path, np.array([[12, -4], [3, 7]]))
    with pytest.raises(ValueError, match="expected keys that rise"):
        KeyIds(path, 1)
