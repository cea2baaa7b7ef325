"""Options of models: what a class does not have or cannot use is refused in one sentence."""

import pytest

from hotrows import models
from hotrows.schema import Schema, Sequence, Sparse
from tests.models.looked_up import DENSE, HISTORY, LABELS, SPARSE, build

SCHEMA = Schema(
    features=(
        *DENSE,
        *SPARSE,
        Sparse("tags", many=True, rows=5),
        HISTORY,
        Sequence("searches", rows=7),
        Sequence("words", vocabulary="tags", rows=5),
    ),
    label=LABELS,
)


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("wide_deep", {"crosses": [["C0", "I0"]]}, "'I0' cannot be crossed: only sparse .* C0, C1"),
        ("wide_deep", {"crosses": [["C0", "tags"]]}, "'tags' cannot be crossed: only sparse"),
        ("wide_deep", {"crosses": ["C0", "C1"]}, "must be lists of features, such as .*, not .C0."),
        ("wide_deep", {"crosses": [["C0"]]}, "two or more different features"),
        ("wide_deep", {"l1": -1.0}, "l1 and l2 of at least 0 and wide_lr above 0"),
        ("dcnv2", {"experts": 2}, "needs a rank for its 2 experts"),
        ("dcnv2", {"experts": 0, "rank": 2}, "at least one layer and one expert"),
        ("mmoe", {"num_experts": 0}, "at least one expert with at least one layer"),
        ("mmoe", {"expert_hidden": ()}, "at least one expert with at least one layer"),
        ("mmoe", {"labels": ["share"]}, "labels of the schema, each once: some of click, buy"),
        ("mmoe", {"labels": []}, "labels of the schema, each once: some of click, buy"),
        ("mmoe", {"labels": ["buy", "buy"]}, "labels of the schema, each once: some of click, buy"),
        ("din", {"form": "thesis"}, "form must be one of paper, code, not 'thesis'"),
        ("dien", {"form": "thesis"}, "form must be one of paper, code, not 'thesis'"),
        ("dien", {"evolution": "lstm"}, "one of augru, augru_code, agru, aigru, not 'lstm'"),
        ("dien", {"auxiliary": -1.0}, "auxiliary must be at least 0, not -1.0"),
        ("can", {"base": "mean"}, "base must be one of pooled, din, dien, not 'mean'"),
        ("can", {"pairs": [["C0", "past"]]}, r"\(C0, C1, .*also history\).*not \['C0', 'past'\]"),
        ("can", {"pairs": [["history", "C0"]]}, r"that gives weights .*not \['history', 'C0'\]"),
        ("can", {"pairs": [["C0"]]}, r"not \['C0'\]"),
        ("can", {"pairs": []}, r"not \[\]"),
        ("din", {"histories": ["past"]}, r"DIN: 'past' is none of the sequences \['history', "),
        ("din", {"histories": ["searches"]}, "'searches' needs .*with vocabulary='searches'"),
        ("din", {"histories": ["words"]}, "'words' needs a feature of one id per sample"),
        ("din", {"histories": "history"}, "must be a list of sequences, .*not 'history'"),
        ("din", {"histories": []}, r"must be a list of sequences, such as .*not \[\]"),
        ("din", {"histories": [["history"], []]}, "must be a list of sequences, such as"),
    ],
)
def test_options_that_a_model_cannot_use_are_refused(name, options, said):
    with pytest.raises(ValueError, match=said):
        build(name, SCHEMA, **options)


def test_an_option_that_a_model_does_not_have_is_refused_with_those_that_it_has():
    with pytest.raises(ValueError, match="DNN has no option 'width'; it has dim, hidden, dropout"):
        models.build("dnn", SCHEMA, width=8)
    with pytest.raises(ValueError, match="LR has no option 'dim'; it has none"):
        models.build("lr", SCHEMA, dim=8)


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("dnn", {"dim": "x"}, "DNN's option dim must be int, such as 16, not 'x'"),
        ("dnn", {"dim": 4.5}, "dim must be int, such as 16, not 4.5"),
        ("dnn", {"dim": True}, "dim must be int, such as 16, not True"),
        ("dnn", {"hidden": 8}, r"hidden must be Sequence\[int\], such as \(400, 400, 400\), not 8"),
        ("dnn", {"hidden": ["a"]}, r"hidden must be Sequence\[int\], .*not \['a'\]"),
        ("dnn", {"hidden": "x"}, r"hidden must be Sequence\[int\], .*not 'x'"),
        ("dnn", {"dims": 8}, r"dims must be Mapping\[str, int\] \| None, not 8"),
        ("dnn", {"dims": {"user": "x"}}, r"dims must be Mapping\[str, int\] .*not \{'user': 'x'\}"),
        ("dnn", {"dims": {"nobody": 8}}, "dims names 'nobody', which is no vocabulary of the schema"),
        ("dnn", {"dropout": None}, "dropout must be float, such as 0.0, not None"),
        ("dnn", {"batch_norm": "yes"}, "batch_norm must be bool, such as False, not 'yes'"),
        ("dcnv2", {"rank": "all"}, r"DCNv2's option rank must be int \| None, not 'all'"),
        ("din", {"histories": 3}, r"histories must be Sequence\[str \| Sequence\[str\]\] \| None"),
    ],
)
def test_an_option_of_a_wrong_type_is_refused_with_the_right_one(name, options, said):
    with pytest.raises(ValueError, match=said):
        models.build(name, SCHEMA, **options)


def test_whole_numbers_are_numbers_and_lists_are_sequences():
    model = build("wide_deep", SCHEMA, l1=1, hidden=[16], crosses=[("C0", "C1")])
    assert model.tables[-1].optimizer.l1 == 1


OWN = """
from __future__ import annotations
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from hotrows.models import DNN
if TYPE_CHECKING:
    from nowhere import Width


@dataclass
class Sizes:
    hidden: int = 4


class Bare(DNN):
    def __init__(self, schema, dim=8):
        super().__init__(schema, int(dim))


class Anything(DNN):
    def __init__(self, schema, dim: Any = 8):
        super().__init__(schema, int(dim))


class Unknown(DNN):
    def __init__(self, schema, dim: Width = 8):
        super().__init__(schema, int(dim))


class Rest(DNN):
    def __init__(self, schema, **rest):
        super().__init__(schema, int(rest["dim"]))
"""


@pytest.mark.parametrize("kind", ["Bare", "Anything", "Unknown", "Rest"])
def test_options_of_ones_own_model_may_have_any_type_or_none(tmp_path, kind):
    (tmp_path / "mine.py").write_text(OWN)
    model = models.build(f"{tmp_path / 'mine.py'}:{kind}", SCHEMA, dim="4")
    assert {table.dim for table in model.tables} == {4}


def test_a_history_needs_a_feature_of_its_vocabulary():
    schema = Schema(features=(*SPARSE, Sequence("searches", rows=7)))
    for name in ("din", "dien", "can", "tbsm"):
        with pytest.raises(ValueError, match="the schema has no such pair: declare Sequence"):
            build(name, schema)
