"""What all rows of a request share is computed once: the same scores as row by row, up to rounding."""

import numpy as np
import pytest
import torch
from torch.nn.functional import linear

from hotrows.data import prepare
from hotrows.models.nn import AttentionalGRU
from hotrows.ops.layers.padded import PaddedLists
from hotrows.schema import Dense, Schema, Sequence, Sparse
from hotrows.serving import Scorer, programs
from hotrows.serving.export.shared_program import _cat, _Each, _Once, _product, _Run
from hotrows.serving.export.whole import export
from tests.support.bundles import furthest, raw_rows, trained
from tests.support.clicks import table

pytestmark = [
    pytest.mark.usefixtures("one_thread", "no_pictures"),
    pytest.mark.filterwarnings("ignore:values differ from those"),
]
SHARED = ("price", "user", "tags", "history")
CANDIDATES = 40
MODELS = ("lr", "fm", "dnn", "wide_deep", "dlrm", "dcnv2", "din", "dien", "can", "hstu", "mmoe", "tbsm")
WITH_LAYERS_OVER_LISTS = ("dien", "hstu")  # TBSM has all elements of all samples in one layer


@pytest.fixture(scope="module")
def encoded(tmp_path_factory):
    features = (
        Dense("price"),
        Dense("weight"),
        Sparse("user"),
        Sparse("item"),
        Sparse("tags", many=True, pooling="mean"),
        Sparse("again", column="item"),
        Sequence("history", vocabulary="item", max_length=6),
    )
    schema = Schema(features, label="click")
    return prepare(table(400), schema, tmp_path_factory.mktemp("shared") / "enc", split="position:0.8")


def request(seed, **user):
    """Many candidates of a user, as `shared` and as rows."""
    rows = raw_rows(CANDIDATES, seed)
    candidates = [{"item": i, "weight": (i or 0) / 9} for i in rows["item"].to_pylist()]
    first = {"price": 3.5, "user": 4, "tags": [1, 2], "history": [5, 7, 9]} | user
    return candidates, first


@pytest.fixture(scope="module")
def run(encoded, tmp_path_factory):
    return trained(encoded, tmp_path_factory.mktemp("run") / "run", "deepfm")


@pytest.fixture(scope="module")
def bundle(run, tmp_path_factory):
    return export(run, tmp_path_factory.mktemp("bundle") / "b", format="onnx", shared=SHARED)


def check(bundle, monkeypatch):
    """Requests score as row by row, and the program gets one sample of what their rows share."""
    scorer, given = Scorer(bundle, trust=True, core=False), []
    kind = type(scorer.version.shared_program)
    monkeypatch.setattr(kind, "__call__", noting(kind.__call__, given))
    for user in ({}, {"history": []}, {"history": None, "user": 10**6, "tags": None, "price": None}):
        candidates, shared = request(1, **user)
        del given[:]
        logits = scorer.logits(candidates, shared)
        sizes = {name: len(array) for name, array in given[-1].items()}
        expected = {e.name: 1 if e.shared else CANDIDATES for e in scorer.bundle.shared_inputs}
        assert sizes == expected and set(sizes.values()) == {1, CANDIDATES}
        one_by_one = np.concatenate([scorer.logits([row | shared]) for row in candidates])
        assert furthest(logits, one_by_one) < 3e-6


def test_a_linear_layer_over_both_is_a_sum_of_two():
    once, others, weight = torch.randn(1, 3), torch.randn(5, 4), torch.randn(6, 7)
    pieces = [_Once(once[:, :2], 0), _Each(others), _Once(once[:, 2:], 0)]
    joined = torch.cat([once[:, :2].expand(5, 2), others, once[:, 2:].expand(5, 1)], 1)
    both = _cat(pieces)
    of_once, of_others = both.split(weight)
    total = linear(both.once, of_once) + linear(both.by_sample, of_others)
    torch.testing.assert_close(total, linear(joined, weight))


def test_a_product_with_what_is_shared_is_one_of_all_samples():
    queries, keys = torch.randn(2, 5, 1, 3), torch.randn(2, 1, 3, 4)  # of heads and samples
    product = _product(_Each(queries), _Once(keys, 1))
    torch.testing.assert_close(product.tensor, queries @ keys)
    assert _product(_Once(keys.transpose(2, 3), 1), _Each(queries)) is None
    assert _product(_Each(queries.expand(2, 5, 6, 3)), _Once(keys, 1)) is None
    of_elements = _Each(torch.randn(10, 1, 3)), _Once(torch.randn(2, 3, 4), 0)  # lists of 2, end to end
    assert _product(*of_elements) is None, "not one matrix for all, which once gave another shape"


def test_a_sum_with_a_factor_is_computed_for_each_sample():
    """`torch.add(x, y, alpha=2)`, whose factor was once lost."""
    values = _Once(torch.ones(1, 3), 0), _Each(torch.ones(5, 3))
    graph = torch.fx.Graph()
    plain, scaled = (
        graph.call_function(torch.ops.aten.add.Tensor, values, named) for named in ({}, {"alpha": 2})
    )
    run = _Run.__new__(_Run)
    assert run._side_by_side(plain, values, values).tensor.tolist() == [[2.0] * 3] * 5
    assert run._side_by_side(scaled, values, values) is None


@pytest.mark.slow
def test_shared_features_are_computed_once_and_score_alike(bundle, monkeypatch):
    check(bundle, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("format", ["onnx", "pt2"])
@pytest.mark.parametrize("model", MODELS)
def test_so_they_are_in_every_model(encoded, tmp_path, model, format, monkeypatch):
    run = trained(encoded, tmp_path / "run", model)
    bundle = export(run, tmp_path / "bundle", format=format, shared=SHARED)
    check(bundle, monkeypatch)
    assert Scorer(bundle, trust=True).bundle.shared_lists == (model in WITH_LAYERS_OVER_LISTS)


@torch.no_grad()
def test_a_program_of_pytorch_takes_other_sizes_than_it_was_traced_with():
    layer, (samples, places) = (
        AttentionalGRU(4, 3),
        (torch.export.Dim("samples"), torch.export.Dim("places")),
    )

    class Padded(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = layer

        def forward(self, x, weights, lengths):
            lists = PaddedLists(lengths, x.shape[1])
            return self.layer(x.flatten(0, 1), weights.flatten(), lists)

    def inputs(num, longest):
        return torch.randn(num, longest, 4), torch.rand(num, longest), torch.full((num,), longest)

    both = {0: samples, 1: places}
    program = torch.export.export(
        Padded(), inputs(5, 3), dynamic_shapes=(both, both, {0: samples}),
        strict=False, prefer_deferred_runtime_asserts_over_guards=True,
    )  # fmt: skip
    given = inputs(2, 7)
    torch.testing.assert_close(program.module()(*given), Padded()(*given))


def noting(call, given):
    def noted(program, inputs):
        given.append(inputs)
        return call(program, inputs)

    return noted


@pytest.mark.slow
def test_rows_that_share_less_take_the_ordinary_program(bundle):
    scorer = Scorer(bundle)
    candidates, shared = request(2)
    (one,) = scorer.requests.encode(candidates, shared)
    (other,) = scorer.requests.encode([row | shared | {"user": n} for n, row in enumerate(candidates)])
    assert one.shared == set(SHARED) and "user" not in other.shared
    alone = [scorer.logits_of([request])[0] for request in (one, other)]
    together = scorer.logits_of([one, other, one])
    assert together[0].tobytes() == together[2].tobytes() == alone[0].tobytes()
    assert furthest(together[1], alone[1]) < 1e-6
    names = set(programs.parameters(scorer.version.shared_program.content()))
    assert names and names <= set(scorer.version.program.parameter_names())


def test_features_that_cannot_be_shared_are_refused(encoded, run, tmp_path):
    everything = [feature.name for feature in encoded.schema.features]
    for shared, why in (
        (["usr"], "'usr' is none; did you mean 'user'"),
        (everything, "all features are"),
    ):
        with pytest.raises(ValueError, match=why):
            export(run, tmp_path / "out", format="onnx", shared=shared)
    with pytest.raises(ValueError, match="give format onnx or pt2"):
        export(run, tmp_path / "out", shared=["user"])
    assert not (tmp_path / "out").exists()
