"""Attention with products of 16 and 8 bits: the bits of its definition, and bundles that have it."""

import dataclasses
import errno
import json
import os
from functools import partial

import numpy as np
import pytest

from hotrows.cli import main, publishing
from hotrows.engine.distributed.in_process import run as on_threads
from hotrows.runtime import native
from hotrows.serving import Scorer
from hotrows.serving.core_layers import Lists, TargetAttentionLayer
from hotrows.serving.export import bundles, held_out
from hotrows.serving.export.publisher import Publisher
from hotrows.serving.export.whole import export
from hotrows.serving.merging import merge
from hotrows.train import Trainer
from hotrows.train.config import TrainConfig
from tests.support.bundles import SMALL, furthest, raw_rows, trained

pytestmark = [
    pytest.mark.usefixtures("one_thread", "no_pictures"),
    pytest.mark.filterwarnings("ignore:values differ from those"),
]
LENGTHS, SAMPLES = np.array([0, 1, 40, 3, 16, 33]), np.array([2, 1, 19, 1, 1, 2])
ROUNDER, LEAST = np.float32(12582912), np.float32(2.0**-100)


def lists_of(random, dim):
    sizes = SAMPLES.sum(), LENGTHS.sum()
    return Lists(*(random.normal(size=(n, dim)).astype("f4") for n in sizes), LENGTHS, SAMPLES)


def layer_of(
    random, dim, hidden, precision, activation="sigmoid", normalize=False, plain=False, without=None
):
    """without: the number of a parameter whose last value is NaN."""
    options = {"sizes": list(hidden), "activation": activation, "scale": 0.25, "normalize": normalize}
    sizes = TargetAttentionLayer.sizes(options, dim)
    parameters = [(random.normal(size=n) / max(n, 1) ** 0.25).astype("f4") for n in sizes]
    if without is not None:
        parameters[without][-1] = np.nan
    return TargetAttentionLayer(options, dim, parameters, precision, plain), parameters


@pytest.fixture(params=["instructions", "plain", "core_v2"])
def level(request, monkeypatch):
    """Whether the layer may use the instructions, with the core for old processors too."""
    if request.param == "core_v2":
        library = native._open("core_v2")
        if library is None:
            pytest.skip("a core of another processor")
        monkeypatch.setattr(native, "load", lambda: library)
    return request.param


# ---- the definition, in numpy


def of_bits(bits):
    return bits.astype(np.uint32).view(np.float32)


def rounded(x):
    """To the nearest bfloat16, ties away from zero; zero below 2^-55."""
    bits = np.ascontiguousarray(x).view(np.uint32)
    out = of_bits((bits + np.uint32(0x8000)) & np.uint32(0xFFFF0000))
    out = np.where(np.abs(x) < np.float32(2.0**-55), np.float32(0), out)
    return np.where(np.isnan(x), np.float32(np.nan), out)


def fma(a, b, c):
    """a b + c, rounded once: the sum in float64 is rounded to odd, so the float32 is the nearest one."""
    product = a.astype(float) * b  # exact
    total = product + c
    of_c = total - product
    lost = (product - (total - of_c)) + (c - of_c)
    is_even = np.ascontiguousarray(total).view(np.int64) % 2 == 0
    odd = np.nextafter(total, np.copysign(np.inf, lost))
    return np.where((np.abs(lost) > 0) & is_even, odd, total).astype("f4")


def sigmoid(u, size):
    """Of u / 2, times `size`: 31 parabolas through Chebyshev's points, on a grid of 2^-20."""
    n, edge = np.arange(-16, 16), 0.1875**0.5
    left, middle, right = (size / (1 + np.exp(-(n + r) / 2)) for r in (-edge, 0, edge))
    rows = middle, (right - left) / (2 * edge), (right + left - 2 * middle) / (2 * edge * edge)
    rows = [np.float32(np.round(row * 2**20) / 2**20) for row in rows]
    u = np.clip(u, np.float32(-15.49), np.float32(15.49))
    nearest = (u + ROUNDER) - ROUNDER
    at = np.nan_to_num(nearest).astype(int) + 16
    return fma(u - nearest, fma(u - nearest, rows[2][at], rows[1][at]), rows[0][at])


def activated(x, activation, slopes):
    if activation == "sigmoid":
        return sigmoid(x, 1)
    if activation == "tanh":
        return sigmoid(x, 1) * 2 - 1
    if activation == "relu":
        return np.where(x < 0, np.float32(0), x)
    (slope,) = slopes if activation == "prelu" else [1]
    return np.where(x > 0, x, x * np.float32(slope))


def pairs(x, w, bias):
    """[N, in] times [in, out]: of two inputs the odd one first."""
    total = np.broadcast_to(bias, (len(x), w.shape[1]))
    for i in range(0, len(w), 2):
        for k in (i + 1, i)[i + 1 == len(w) :]:
            total = total + rounded(x[:, k, None]) * rounded(w[k])
    return total


def codes(x):
    """Of each row codes of 8 bits, a scale, and NaN where a value is no finite number."""
    with np.errstate(invalid="ignore"):
        wrong = (x * np.float32(0)).sum(1)
        highest = np.abs(np.where(np.isnan(x), 0, x)).max(1)
        highest[highest < LEAST] = 0
        share = np.where(highest > 0, np.float32(127) / np.maximum(highest, LEAST), 0).astype("f4")
        code = np.where(np.isnan(wrong)[:, None], 0, (x * share[:, None] + ROUNDER) - ROUNDER)
    return code, (highest / np.float32(127) + wrong)


def scores(layer_parameters, hidden, dim, lists, precision, activation):
    """[N']: the scores of all keys, times 0.25."""
    weight, bias, *others = layer_parameters
    weight = weight.reshape(hidden[0], 4, dim)
    factor = np.float32({"sigmoid": 2, "tanh": 4}.get(activation, 1))
    of_query, of_key, of_product = weight[:, 0] + weight[:, 2], weight[:, 1] - weight[:, 2], weight[:, 3]
    slopes = others[2 * len(hidden) :]
    ends, parts = LENGTHS.cumsum(), []
    for q, r in zip(lists.queries, np.repeat(np.arange(len(LENGTHS)), SAMPLES), strict=True):
        x, terms = lists.keys[ends[r] - LENGTHS[r] : ends[r]], bias
        for d in range(dim):
            terms = terms + q[d] * of_query[:, d]
        matrix, terms = ((of_key + q * of_product) * factor).T, terms * factor
        terms = np.where(np.abs(terms) < LEAST, np.float32(0), terms)
        if precision == "bfloat16":
            x = pairs(x, matrix, terms)
        else:
            (events, scales), (w, of_w) = codes(x), codes(matrix.T)
            wrong = scales * np.float32(0) + ((terms * 0).sum() + (of_w * 0).sum())
            x = fma((events @ w.T).astype("f4") * scales[:, None], of_w, terms)
        for n, size in enumerate([*hidden[1:], 1]):
            w, b, is_last = others[2 * n].reshape(size, -1), others[2 * n + 1], n + 1 == len(hidden)
            by = np.float32(1) if is_last else factor
            if precision == "int8":
                (w, of_w), share = codes(w * by), np.float32(1 / 255)
                wrong = wrong + ((of_w * 0).sum() + (b * by * 0).sum())
                events = np.nan_to_num((sigmoid(x, 255) + ROUNDER) - ROUNDER)
                x = fma((events @ w.T).astype("f4") * share, of_w, b * by)
                continue
            x = activated(x, activation, slopes[n : n + 1])
            x = pairs(x, w.T * by, b * by)
        x = x[:, 0] * np.float32(0.25)
        parts.append(x + wrong if precision == "int8" else x)
    return np.concatenate(parts)


KINDS = [
    ("bfloat16", "sigmoid"),
    ("bfloat16", "prelu"),
    ("bfloat16", "relu"),
    ("bfloat16", "tanh"),
    ("bfloat16", "none"),
    ("int8", "sigmoid"),
]


@pytest.mark.parametrize(("precision", "activation"), KINDS)
@pytest.mark.parametrize("dim", [1, 3, 7, 16, 17, 64, 100])
def test_scores_have_the_bits_of_their_definition(dim, precision, activation, level):
    random, hidden = np.random.default_rng(dim), [(80, 40), (5,), (3, 2, 7)][dim % 3]
    lists = lists_of(random, dim)
    lists.keys[0, 0], lists.keys[5, 0], lists.keys[9, 0], lists.queries[4, 0] = (
        np.nan,
        np.inf,
        1e-40,
        3e30,
    )
    lists.queries[-1, 0], lists.queries[-2] = np.nan, 0
    layer, parameters = layer_of(random, dim, hidden, precision, activation, plain=level == "plain")
    with np.errstate(over="ignore", invalid="ignore"):
        expected = scores(parameters, hidden, dim, lists, precision, activation)
    np.testing.assert_array_equal(layer.weights(lists), expected)
    assert np.isfinite(expected).mean() > 0.8 and np.isnan(expected).any()


def test_a_sum_just_above_a_tie_is_rounded_up(level):
    """In float64 1 + 2^-24 (1 + 2^-30) is the tie 1 + 2^-24, and rounding that again gives 1."""
    options = {"sizes": [1], "activation": "sigmoid", "scale": 1.0, "normalize": False}
    code = 55  # of the sigmoid, times 127 for the code of its weight, over 255; the weight over 127
    hidden, weight = np.log(code / (255 - code)), np.float32(2.763488e-07)
    parameters = [np.array(x, "f4") for x in ([0, 0, 0, 0], [hidden], [weight], [1])]
    lists = Lists(*np.zeros((2, 1, 1), "f4"), np.array([1]), np.array([1]))
    layer = TargetAttentionLayer(options, 1, parameters, "int8", level == "plain")
    above = np.float32(1 + 2**-23)
    assert layer.weights(lists) == above
    share = np.float32(code * 127) * np.float32(1 / 255)
    assert fma(share, weight / np.float32(127), np.float32(1)) == above
    assert np.float32(float(share) * float(weight / np.float32(127)) + 1) == 1, "or it is no such case"


@pytest.mark.parametrize("number", range(6))
@pytest.mark.parametrize("precision", ["bfloat16", "int8"])
def test_a_parameter_that_is_no_number_leaves_no_score(precision, number, level):
    random, hidden, dim = np.random.default_rng(1), (5, 3), 3
    lists, plain = lists_of(random, dim), level == "plain"
    layer, parameters = layer_of(random, dim, hidden, precision, plain=plain, without=number)
    expected = scores(parameters, hidden, dim, lists, precision, "sigmoid")
    np.testing.assert_array_equal(layer.weights(lists), expected)
    assert np.isnan(expected).all()


@pytest.mark.parametrize("kind", ["augru", "augru_code", "agru"])
@pytest.mark.parametrize("dim", [1, 3, 7, 16, 17, 64])
def test_states_have_the_bits_of_their_definition(dim, kind, level):
    random, lists = np.random.default_rng(dim), lists_of(np.random.default_rng(1), dim)
    parts = random.normal(size=(len(lists.keys), 3 * dim)).astype("f4")
    parts[0, 0], parts[5, 0] = np.nan, np.inf
    attention = random.random(lists.num_pairs).astype("f4")
    weight, bias = (random.normal(size=n).astype("f4") for n in ((3 * dim, dim), 3 * dim))
    for after in (0, 1):
        out = np.empty_like(lists.queries)
        number = native.codes("recurrent_kind", "gru", "augru", "augru_code", "agru")[kind]
        native.call(
            "last_states", parts, attention, *lists.places, len(LENGTHS), weight, bias, dim, number,
            after, 16, int(level == "plain"), out,
        )  # fmt: skip
        expected = states(parts, attention, weight, bias, kind, after)
        np.testing.assert_array_equal(out, expected)
        assert np.isfinite(expected).mean() > 0.8 and np.isnan(expected).any()


def states(parts, attention, weight, bias, kind, after):
    """The last states [B, D], their products in bfloat16."""
    dim, last, sample = weight.shape[1], [], 0
    (of_gates, of_candidate), ends = np.split(weight.T, [2 * dim], 1), LENGTHS.cumsum()
    for r, count in enumerate(SAMPLES):
        h = np.zeros((count, dim), "f4")
        for t, x in enumerate(parts[ends[r] - LENGTHS[r] : ends[r]]):
            begin, y = x + bias, h
            r_gate, z = np.split(sigmoid(pairs(h, of_gates, begin[: 2 * dim]) * 2, 1), 2, 1)
            q = pairs(h if after else r_gate * h, of_candidate, (bias if after else begin)[2 * dim :])
            q = fma(r_gate, q, x[2 * dim :]) if after else q
            candidate = sigmoid(q * 4, 1) * 2 - 1
            a = attention[sample + t : sample + t + count * LENGTHS[r] : LENGTHS[r], None]
            share = {"augru": a * z, "augru_code": 1 - (1 - a) * z, "agru": a}[kind]
            h = fma(share, candidate - y, y)
        last.append(h)
        sample += count * LENGTHS[r]
    return np.concatenate(last)


@pytest.mark.parametrize("precision", ["bfloat16", "int8"])
@pytest.mark.parametrize("dim", [3, 16, 100])
def test_sums_are_near_those_of_float32(dim, precision):
    lists, out = lists_of(np.random.default_rng(1), dim), []
    for which in ("float32", precision):
        layer, _ = layer_of(np.random.default_rng(dim), dim, (80, 40), which, normalize=True)
        out.append(layer(lists))
    assert 0 < np.abs(out[1] - out[0]).max() < 0.02
    assert (out[1][:2] == 0).all(), "of an empty list"


def test_many_candidates_of_one_list_score_as_each_alone():
    random = np.random.default_rng(0)
    keys, queries = random.normal(size=(70, 16)).astype("f4"), random.normal(size=(5000, 16)).astype("f4")
    layer, _ = layer_of(random, 16, (8,), "bfloat16")
    together = layer(Lists(queries, keys, np.array([70]), np.array([5000])))
    alone = Lists(queries[777:778], keys, np.array([70]), np.array([1]))
    assert layer(alone).tobytes() == together[777:778].tobytes()


# ---- bundles


@pytest.mark.parametrize("precision", ["bfloat16", "int8", "auto"])
def test_a_bundle_has_the_precision_that_was_asked_for(din_run, din_bundle, tmp_path, precision):
    out, rows = export(din_run, tmp_path / "out", format="onnx", precision=precision), raw_rows(300)
    said = json.loads((out / "export.json").read_text())
    errors = said["precisions"]
    assert list(errors) == ["float32", "bfloat16", "int8"] and errors["float32"]["prediction"] == 0
    chosen = held_out.smallest(errors) if precision == "auto" else precision
    assert said["precision"] == chosen != "float32"
    plain, narrow = Scorer(din_bundle), Scorer(out)
    assert 0 < np.abs(plain.score(rows) - narrow.score(rows)).max() < 0.005
    assert furthest(Scorer(out, core=False).logits(rows), plain.logits(rows)) < 1e-6


def test_auto_keeps_float32_where_scores_would_be_too_far(din_run, din_bundle, tmp_path, monkeypatch):
    monkeypatch.setattr(held_out, "_PREDICTION", dict.fromkeys(("float32", "bfloat16", "int8"), 1e-9))
    out, rows = export(din_run, tmp_path / "out", format="onnx", precision="auto"), raw_rows(50)
    assert Scorer(out).logits(rows).tobytes() == Scorer(din_bundle).logits(rows).tobytes()


@pytest.mark.slow
def test_errors_of_a_regression_are_in_standard_deviations(clicks_encoded, tmp_path, capsys):
    options = {"model": "din", "model_options": SMALL["din"], "loss": "squared", "linear_paths": "plain"}
    Trainer(clicks_encoded, TrainConfig(steps=2, batch_size=32, **options), tmp_path / "run").fit()
    to = str(tmp_path / "out")
    main(["export", str(tmp_path / "run"), "--out", to, "--format", "onnx", "--precision", "auto"])
    lines = [line for line in capsys.readouterr().out.splitlines() if "predictions differ" in line]
    assert len(lines) == 2 and all(" in standard deviations, their mean by " in line for line in lines)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"format": "pt2", "precision": "int8"}, "is for format onnx, not 'int8' for pt2"),
        ({"precision": "auto"}, "is for format onnx, not 'auto' for safetensors"),
        ({"format": "onnx", "precision": "int4"}, "one of float32, bfloat16, int8, auto"),
    ],
)
def test_a_precision_that_cannot_be_is_refused(din_run, tmp_path, arguments, message):
    with pytest.raises(ValueError, match=message):
        export(din_run, tmp_path / "out", **arguments)


def test_a_model_without_attention_in_the_core_is_refused(clicks_encoded, tmp_path):
    run = trained(clicks_encoded, tmp_path / "run", "fm")
    with pytest.raises(ValueError, match="this FM has none: leave it out"):
        export(run, tmp_path / "out", format="onnx", precision="bfloat16")
    out = export(run, tmp_path / "out", format="onnx", precision="auto")
    assert Scorer(out).bundle.precision == "float32"


def test_a_command_that_goes_on_publishes_in_the_precision(tmp_path):
    words = publishing.words([Publisher(tmp_path, precision="int8", shared=["a", "b"])])
    expected = {
        "": tmp_path,
        "-every": "30s",
        "-dtype": "float32",
        "-shared": "a,b",
        "-precision": "int8",
    }
    assert words == [word for name, x in expected.items() for word in (f"--publish{name}", str(x))]


@pytest.mark.slow
def test_published_versions_have_the_precision(clicks_encoded, tmp_path):
    for how in ({"precision": "auto"}, {"precision": "int8", "format": "pt2"}):
        with pytest.raises(ValueError, match=f"not '{how['precision']}' for {how.get('format', 'onnx')}"):
            Publisher(tmp_path / "to", **how)
    publisher = Publisher(tmp_path / "to", "2b", precision="bfloat16", base_every=2)
    config = TrainConfig(
        model="din", model_options=SMALL["din"], steps=5, batch_size=32, linear_paths="plain"
    )
    Trainer(clicks_encoded, config, tmp_path / "run").fit(callbacks=[publisher])
    merge(tmp_path / "to", tmp_path / "merged")
    last = export(tmp_path / "run", tmp_path / "out", "last", format="onnx", precision="bfloat16")
    followed, rows = Scorer.watch(tmp_path / "to", every=None), raw_rows(100)
    expected = Scorer(last).logits(rows)
    assert followed.logits(rows).tobytes() == expected.tobytes()
    assert Scorer(tmp_path / "merged").logits(rows).tobytes() == expected.tobytes()
    assert furthest(Scorer(last, core=False).logits(rows), expected) > 1e-6, "or it is float32"
    followed.close()


@pytest.mark.slow
def test_versions_of_several_ranks_have_the_precision_and_a_later_run_keeps_it(
    clicks_encoded, tmp_path, caplog
):
    config = TrainConfig(model="din", model_options=SMALL["din"], steps=2, batch_size=32, sharding="rows")

    def fit(ranks, precision, steps):
        run, resume = tmp_path / "run", steps > 2
        settings = dataclasses.replace(config, steps=steps)
        trainer = Trainer(clicks_encoded, settings, run, ranks=ranks, resume=resume)
        trainer.fit(callbacks=[Publisher(tmp_path / "to", "1b", precision=precision)])

    for precision, steps in (("bfloat16", 2), ("int8", 4)):
        on_threads(partial(fit, precision=precision, steps=steps), 2)
    scorer = Scorer.watch(tmp_path / "to", every=None)
    assert (scorer.version.bundle.precision, scorer.version.head.step) == ("bfloat16", 4)
    assert "keeps the precision bfloat16 of its first version, not int8" in caplog.text
    scorer.close()


@pytest.mark.parametrize("step", [None, "_write_table", "_write_keys", "_compared"])
def test_all_ranks_hear_why_the_first_version_cannot_be_written(
    clicks_encoded, tmp_path, monkeypatch, step
):
    """Rank 0 failed alone, and others waited for it until the timeout."""
    config = TrainConfig(model="fm", steps=2, batch_size=32, sharding="rows")
    message = "is full after|No space left" if step else "this FM has none: leave it out"

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    if step:
        monkeypatch.setattr(bundles, step, full)

    def refused(ranks):
        trainer = Trainer(clicks_encoded, config, tmp_path / "run", ranks=ranks)
        precision = "float32" if step else "int8"
        with pytest.raises((ValueError, OSError), match=message):
            trainer.fit(callbacks=[Publisher(tmp_path / "to", "1b", precision=precision)])

    on_threads(refused, 2)
    assert not [*(tmp_path / "to").glob("base-*")]
