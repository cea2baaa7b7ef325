"""What layers make of users' lists is kept: in the same bits, within a bound, for every version."""

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest

from hotrows.serving import Scorer, user_cache
from hotrows.serving.core_layers import CoreModel, EvolvingInterestLayer, Lists, TransducedInterestLayer
from hotrows.serving.export.whole import export
from hotrows.serving.metrics_page import ServerMetrics
from hotrows.serving.programs import values_of
from hotrows.serving.user_cache import UserCache, key_of
from tests.support.bundles import trained

pytestmark = [
    pytest.mark.usefixtures("one_thread", "no_pictures"),
    pytest.mark.filterwarnings("ignore:values differ from those"),
]
DIM, CAPACITY, STEPS = 6, 20_000, 300
OF_DIEN = {"evolution": "augru", "reset": "after", "sums": True, "attention": None}
OF_HSTU = {"layers": 2, "heads": 2, "places": 9, "eps": 0.01}


@pytest.mark.parametrize(
    ("kind", "options"),
    [(EvolvingInterestLayer, OF_DIEN), (TransducedInterestLayer, OF_HSTU)],
    ids=["dien", "hstu"],
)
def test_a_layer_computes_the_same_bits_with_a_cache(kind, options):
    """Of several users at once, some of one sample, while rows and parameters change and entries go."""
    random, cache = np.random.default_rng(0), UserCache(CAPACITY)
    users = [random.normal(size=(length, DIM)).astype("f4") for length in random.integers(0, 40, 12)]
    layers = [
        kind(options, DIM, [random.normal(size=n).astype("f4") for n in kind.sizes(options, DIM)])
        for _ in range(3)
    ]
    for step in range(STEPS):
        changed = users[random.integers(len(users))]
        if step % 5 == 0 and len(changed):
            changed[random.integers(len(changed))] += 1
        chosen = random.integers(0, len(users), random.integers(1, 5))
        samples = random.integers(1, 4, len(chosen))
        lists = Lists(
            random.normal(size=(samples.sum(), DIM)).astype("f4"),
            np.concatenate([users[user] for user in chosen]),
            np.array([len(users[user]) for user in chosen]),
            samples,
        )
        layer = layers[step // 40 % 3]
        model = CoreModel(None, None, {"interest": layer}, 1)
        got = model.output(SimpleNamespace(name="interest"), lists, cache)
        assert got.tobytes() == layer(lists).tobytes()
        assert cache.num_bytes <= CAPACITY
    assert cache.hits > STEPS // 4 and cache.misses > STEPS // 4


def test_the_least_recently_used_goes_first():
    cache, values = UserCache(3 * 1400), np.zeros(250, np.float32)
    keys = [key_of(None, np.full((1, 1), n, np.float32)) for n in range(4)]
    for key in keys[:3]:
        cache.keep(key, values)
    assert list(cache.find({0: keys[0]})) == [0]
    cache.keep(keys[3], values)
    assert list(cache.find(dict(enumerate(keys)))) == [0, 2, 3]
    cache.keep(key_of(None, values), np.zeros(2000, np.float32))
    assert list(cache.find(dict(enumerate(keys)))) == [0, 2, 3], "what is larger than all pushes none out"
    page = ServerMetrics().page(0, 0, {}, cache=cache).splitlines()
    counts = {"hotrows_user_cache_hits_total 7", "hotrows_user_cache_misses_total 2"}
    assert counts | {"hotrows_user_cache_bytes 4200"} <= set(page)


def test_ages_are_of_what_is_kept(monkeypatch):
    cache, keys = UserCache(3000), [key_of(None, np.full((1, 1), n, np.float32)) for n in range(3)]
    assert cache.ages() == (0, 0)
    clock = iter([10, 20, 30, 40, 50, 60])
    monkeypatch.setattr(user_cache, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    for key in keys[:2]:
        cache.keep(key, np.zeros(250, np.float32))
    cache.find({0: keys[0]})
    assert cache.ages() == (40 - 15, 40 - 20)
    cache.keep(keys[2], np.zeros(250, np.float32))  # for which the second one goes
    page = ServerMetrics().page(0, 0, {}, cache=cache).splitlines()
    assert {"hotrows_user_cache_age_seconds 30.0", "hotrows_user_cache_idle_seconds 30"} <= set(page)


def test_a_cache_without_anything_to_keep_is_refused(din_bundle):
    with pytest.raises(ValueError, match="user_cache is for HSTU and DIEN in the native core"):
        Scorer(din_bundle, user_cache=1 << 20)
    with pytest.raises(ValueError, match="at least one byte"):
        UserCache(0)


@pytest.mark.slow
@pytest.mark.parametrize("model", ["dien", "hstu"])
def test_scores_over_versions_have_the_same_bits(clicks_encoded, tmp_path, model):
    bundle = export(trained(clicks_encoded, tmp_path / "run", model), tmp_path / "b", format="onnx")
    plain, cached = Scorer(bundle), Scorer(bundle, user_cache=4000)
    random, version = np.random.default_rng(0), plain.version
    dense = values_of(version.program.content())
    for number in range(1, 400):
        if number % 3 == 0:  # a delta of a row of a history
            name = version.core.bundle.core_layers[0].sequences[0][1]
            ids = random.integers(0, 9, 1)
            table = version.tables[name]
            rows = (table.stored(ids) + random.normal()).astype("f4")
            tables = {**version.tables, name: table.changed(ids, rows, number)}
            version = dataclasses.replace(version, tables=tables)
        if number % 10 == 0:  # and of the dense part
            name = random.choice(list(dense))
            dense = {**dense, name: dense[name] + np.float32(random.normal() / 9)}
            version = dataclasses.replace(version, core=version.core.with_parameters(dense))
        requests = []
        for _ in range(random.integers(1, 4)):
            history = (random.integers(0, 3) + np.arange(random.integers(0, 9))).tolist()
            rows = [{"item": int(item)} for item in random.integers(0, 9, random.integers(1, 5))]
            shared = {"price": 3.5, "user": 4, "tags": [1, 2], "history": history}
            requests += plain.requests.encode(rows, shared)
        for one, other in zip(*(s.logits_of(requests, version) for s in (plain, cached)), strict=True):
            assert one.tobytes() == other.tobytes()
    assert cached.user_cache.hits > 50 and cached.user_cache.misses > 200
    assert cached.user_cache.num_bytes <= 4000
