"""Layers over histories that the native core computes: the scores of ONNX Runtime and of `predict`."""

import dataclasses
import itertools

import numpy as np
import pytest

from hotrows import load_run
from hotrows.runtime.atomic_files import json_text
from hotrows.runtime.tensor_file import EXPORT_FILE
from hotrows.serving import Scorer
from hotrows.serving.bundle import CORE_PROGRAM, open_bundle
from hotrows.serving.core_layers import (
    EvolvingInterestLayer,
    Lists,
    TargetAttentionLayer,
    TransducedInterestLayer,
)
from hotrows.serving.export.whole import export
from tests.support.bundles import expected_logits, furthest, raw_rows, trained

pytestmark = [
    pytest.mark.usefixtures("one_thread", "no_pictures"),
    pytest.mark.filterwarnings("ignore:values differ from those"),
]
USER = {"price": 3.5, "user": 4, "tags": [1, 2]}


@pytest.fixture(scope="module")
def scorers(din_bundle):
    """By the core, and by ONNX Runtime."""
    return Scorer(din_bundle), Scorer(din_bundle, core=False)


def counted(scorer, monkeypatch):
    """How many samples, lists and keys each call of a layer had."""
    calls, layer = [], next(iter(scorer.version.core.layers.values()))

    def noted(lists):
        calls.append((len(lists.queries), len(lists.lengths), len(lists.keys)))
        return layer(lists)

    core = dataclasses.replace(scorer.version.core, layers={"interests.0.attention": noted})
    monkeypatch.setattr(scorer, "_fixed", dataclasses.replace(scorer.version, core=core))
    return calls


def test_the_core_scores_as_onnx_runtime_and_as_predict(din_run, scorers):
    rows, predictor = raw_rows(600), load_run(din_run)
    core, onnx = (scorer.logits(rows) for scorer in scorers)
    assert furthest(core, onnx) <= 1e-6
    assert furthest(core, expected_logits(predictor, rows)) <= 1e-6
    assert core.tobytes() != onnx.tobytes(), "or it is not the core that scores"
    predictor.embedding.close()


@pytest.mark.parametrize("history", [[], [3], [5, 7, 9], list(range(1, 10)) * 7], ids=len)
def test_a_list_is_read_once_for_all_candidates(scorers, history, monkeypatch):
    candidates = [{"item": n % 9} for n in range(40)]
    calls = counted(scorers[0], monkeypatch)
    shared = {**USER, "history": history}
    logits = scorers[0].logits(candidates, shared)
    assert [call[:2] for call in calls] == [(40, 1)] and calls[0][2] <= len(history)
    assert furthest(logits, scorers[1].logits(candidates, shared)) <= 1e-6
    assert logits[:1].tobytes() == scorers[0].logits(candidates[:1], shared).tobytes()


def test_requests_of_several_users_are_one_call(scorers, monkeypatch):
    calls, requests = counted(scorers[0], monkeypatch), []
    for size, history in ((3, [5, 7]), (1, []), (20, [1, 2, 3])):
        shared = {**USER, "history": history}
        requests += scorers[0].requests.encode([{"item": n % 9} for n in range(size)], shared)
    requests += scorers[0].requests.encode(raw_rows(5))
    together = scorers[0].logits_of(requests)
    assert [call[:2] for call in calls] == [(29, 8)]
    for one, request in zip(together, requests, strict=True):
        (alone,) = scorers[1].logits_of([request])
        assert furthest(one, alone) <= 1e-6


@pytest.mark.parametrize("options", [{"attention_activation": "prelu"}, {"form": "paper"}], ids=str)
def test_layers_that_the_core_does_not_have_stay_in_the_program(clicks_encoded, tmp_path, options):
    run = trained(clicks_encoded, tmp_path / "run", "din", **options)
    bundle = open_bundle(export(run, tmp_path / "bundle", format="onnx"))
    assert len(bundle.core_layers) == ("form" not in options)
    assert (bundle.path / CORE_PROGRAM).exists() == bool(bundle.core_layers)
    if bundle.core_layers:
        rows = raw_rows(50)
        core, onnx = (Scorer(bundle.path, core=core).logits(rows) for core in (True, False))
        assert furthest(core, onnx) <= 1e-6


LISTS, SAMPLES = (
    np.array([0, 1, 40, 3]),
    np.array([2, 1, 33, 1]),
)  # of one register of samples, and of more


def lists_of(random, dim):
    sizes = SAMPLES.sum(), LISTS.sum()
    return Lists(*(random.normal(size=(n, dim)).astype("f4") for n in sizes), LISTS, SAMPLES)


def parameters(random, sizes):
    return [(random.normal(size=size) / max(size, 1) ** 0.25).astype("f4") for size in sizes]


def each_sample(lists):
    """Each sample's query and keys, in float64."""
    keys = np.split(lists.keys.astype(float), LISTS.cumsum()[:-1])
    return zip(lists.queries.astype(float), np.repeat(np.arange(4), SAMPLES), itertools.repeat(keys))


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


@pytest.mark.parametrize("hidden", [(80, 40), (5,)], ids=str)
@pytest.mark.parametrize("dim", [1, 3, 7, 16, 17, 64, 100])
def test_target_attention_equals_its_formula(dim, hidden):
    random, lists = np.random.default_rng(dim), lists_of(np.random.default_rng(1), dim)
    options = {"sizes": list(hidden), "activation": "sigmoid", "scale": 0.25, "normalize": True}
    given = parameters(random, TargetAttentionLayer.sizes(options, dim))
    layers = [(w.reshape(len(b), -1), b) for w, b in zip(given[::2], given[1::2], strict=True)]
    out = TargetAttentionLayer(options, dim, given)(lists)
    for (q, r, all_keys), got in zip(each_sample(lists), out, strict=True):
        keys = all_keys[r]
        x = np.concatenate([np.broadcast_to(q, keys.shape), keys, q - keys, q * keys], 1)
        for weight, bias in layers[:-1]:
            x = sigmoid(x @ weight.T + bias)
        scores = np.exp((x @ layers[-1][0].T + layers[-1][1])[:, 0] * 0.25)
        expected = (scores / scores.sum()) @ keys if len(keys) else np.zeros(dim)
        np.testing.assert_allclose(got, expected, atol=5e-6)


@pytest.mark.parametrize("evolution", ["augru", "augru_code", "agru"])
@pytest.mark.parametrize("dim", [1, 3, 7, 16, 17, 64, 100])
def test_evolving_interest_equals_its_formula(dim, evolution):
    """That of DIEN, with the reset gate after and before the product."""
    random, lists = np.random.default_rng(dim), lists_of(np.random.default_rng(1), dim)
    for reset in ("after", "before"):
        options = {"evolution": evolution, "reset": reset, "sums": dim == 3, "attention": None}
        given = parameters(random, EvolvingInterestLayer.sizes(options, dim))
        out = EvolvingInterestLayer(options, dim, given)(lists)
        for (q, r, all_keys), got in zip(each_sample(lists), out, strict=True):
            keys = all_keys[r]
            states = gru(keys, None, given[:4], "gru", reset)
            scores = np.exp(states @ (given[8].reshape(dim, dim) @ q))
            expected = gru(states, scores / scores.sum(), given[4:8], evolution, reset)
            expected = expected[-1] if len(keys) else np.zeros(dim)
            if options["sums"]:
                expected = np.concatenate([expected, keys.sum(0), keys.sum(0) * q])
            np.testing.assert_allclose(got, expected, atol=1e-5)


def gru(x, attention, given, kind, reset):
    """The states [L, D], by the formulas of `ops.layers.recurrent`."""
    dim, h, states = x.shape[1], np.zeros(x.shape[1]), []
    (w_r, w_z, w_n), (u_r, u_z, u_n) = (p.astype(float).reshape(3, dim, dim) for p in given[:2])
    (b_r, b_z, b_n), (c_r, c_z, c_n) = (p.astype(float).reshape(3, dim) for p in given[2:])
    for t, now in enumerate(x):
        r = sigmoid(w_r @ now + b_r + u_r @ h + c_r)
        z = sigmoid(w_z @ now + b_z + u_z @ h + c_z)
        inner = r * (u_n @ h + c_n) if reset == "after" else u_n @ (r * h) + c_n
        n, a = np.tanh(w_n @ now + b_n + inner), 0 if attention is None else attention[t]
        share = {"gru": 1 - z, "augru": a * z, "augru_code": 1 - (1 - a) * z, "agru": a}[kind]
        h = h + share * (n - h)
        states.append(h)
    return np.array(states).reshape(-1, dim)


@pytest.mark.parametrize("places", [1, 6, 60])
@pytest.mark.parametrize(("dim", "heads"), [(1, 1), (3, 3), (7, 1), (16, 2), (17, 1), (64, 4), (100, 5)])
def test_transduced_interest_equals_its_formula(dim, heads, places):
    """That of HSTU: each query is the last element of its list, elements read those up to themselves."""
    random, lists = np.random.default_rng(dim), lists_of(np.random.default_rng(1), dim)
    options = {"layers": 2, "heads": heads, "places": places, "eps": 0.01}
    given = parameters(random, TransducedInterestLayer.sizes(options, dim))
    out = TransducedInterestLayer(options, dim, given)(lists)
    for (q, r, all_keys), got in zip(each_sample(lists), out, strict=True):
        x = np.concatenate([all_keys[r], q[None]])
        for first in (0, 11):
            x = transduced(x, [p.astype(float) for p in given[first : first + 11]], heads)
        np.testing.assert_allclose(got, x[-1], atol=1e-5)


def transduced(x, given, heads):
    """One layer, [L, D] -> [L, D]."""

    def linear(x, weight, bias):
        return x @ weight.reshape(-1, x.shape[1]).T + bias

    def normed(x, weight, bias):
        return (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 0.01) * weight + bias

    (gates, q), (k, v) = (
        np.split(y * sigmoid(y), 2, 1)
        for y in (linear(normed(x, *given[:2]), *given[at : at + 2]) for at in (4, 6))
    )
    distances, attended = given[10].reshape(heads, -1), []
    distance = np.subtract.outer(np.arange(len(x)), np.arange(len(x)))
    is_read = (distance >= 0) & (distance < distances.shape[1])
    for h, parts in enumerate(zip(*(np.split(y, heads, 1) for y in (q, k, v)), strict=True)):
        score = parts[0] @ parts[1].T + distances[h][np.where(is_read, distance, 0)]
        attended.append(is_read * score * sigmoid(score) / distances.shape[1] @ parts[2])
    return linear(normed(np.concatenate(attended, 1), *given[2:4]) * gates, *given[8:10]) + x


@pytest.fixture(scope="module")
def hstu_run(clicks_encoded, tmp_path_factory):
    return trained(clicks_encoded, tmp_path_factory.mktemp("hstu") / "run", "hstu", layers=2)


@pytest.mark.slow
def test_hstu_scores_as_onnx_runtime_and_as_predict(hstu_run, tmp_path):
    bundle, rows = export(hstu_run, tmp_path / "bundle", format="onnx"), raw_rows(300)
    core, onnx = (Scorer(bundle, core=core) for core in (True, False))
    assert [layer.kind for layer in core.bundle.core_layers] == ["transduced_interest"]
    predictor = load_run(hstu_run)
    assert furthest(core.logits(rows), expected_logits(predictor, rows)) <= 1e-6
    assert furthest(core.logits(rows), onnx.logits(rows)) <= 1e-6
    predictor.embedding.close()
    for history in ([], [3], [5, 7, 9] * 5):
        shared, candidates = {**USER, "history": history}, [{"item": n % 9} for n in range(40)]
        together = core.logits(candidates, shared)
        assert furthest(together, onnx.logits(candidates, shared)) <= 1e-6
        assert furthest(together[:1], core.logits(candidates[:1], shared)) <= 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"form": "paper", "attention": None}], ids=str)
def test_the_gated_units_of_dien_score_as_onnx_runtime(clicks_encoded, tmp_path, options):
    run = trained(clicks_encoded, tmp_path / "run", "dien", **options)
    bundle, rows = export(run, tmp_path / "bundle", format="onnx"), raw_rows(300)
    core, onnx = (Scorer(bundle, core=core) for core in (True, False))
    assert [layer.kind for layer in core.bundle.core_layers] == ["evolving_interest"]
    assert furthest(core.logits(rows), onnx.logits(rows)) <= 1e-6


def test_parameters_of_other_sizes_are_refused(din_bundle, tmp_path):
    fields = EXPORT_FILE.read(din_bundle / "export.json")
    fields["core_layers"][0]["options"]["sizes"] = [9]
    copied = tmp_path / "bundle"
    copied.mkdir()
    for path in din_bundle.iterdir():
        (copied / path.name).symlink_to(path)
    (copied / "export.json").unlink()
    (copied / "export.json").write_text(json_text(EXPORT_FILE.sign(fields)))
    with pytest.raises(ValueError, match=r"layer 'interests.0.attention' needs parameters of \[144, 9"):
        Scorer(copied)
