"""Shapes in annotations are checked while tests run, and the package needs no checker otherwise."""

import contextlib
import re
import runpy
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from hotrows import ops
from hotrows.ops.plan import Moves, PackPlan
from hotrows.runtime import shapes

jaxtyping = pytest.importorskip("jaxtyping")
pytest.importorskip("beartype")


def a_pack() -> PackPlan:
    """The ids 7, 3, 7 of a pack."""
    rows, inverse, order, starts = ops.unique(torch.tensor([7, 3, 7]))
    return PackPlan(rows, rows, inverse, order, starts, num_bags=3)


@pytest.mark.parametrize(
    "name, wrong",
    [
        ("slots", torch.arange(3)),  # two rows
        ("order", torch.zeros(2, dtype=torch.int32)),  # three ids
        ("inverse", torch.zeros(3, dtype=torch.int64)),
        ("bags", torch.zeros(4, dtype=torch.int32)),
        ("bag_starts", torch.zeros(3, dtype=torch.int32)),  # three bags have four ends
        ("weights", torch.ones(3, 1)),
    ],
)
def test_a_plan_of_a_wrong_shape_is_refused(name, wrong):
    with pytest.raises(jaxtyping.TypeCheckError, match=name):
        replace(a_pack(), **{name: wrong})


def test_moves_of_a_wrong_shape_are_refused():
    two, three = torch.arange(2), torch.arange(3)
    Moves(two, two, three, three)
    with pytest.raises(jaxtyping.TypeCheckError, match="slots_out"):
        Moves(two, two, three, two)


def test_an_op_refuses_a_wrong_shape():
    pack, grad = a_pack(), torch.ones(3, 2)
    arguments = {"order": pack.order, "starts": pack.starts, "bags": None, "weights": None}
    assert ops.reference.sum_gradients(grad, **arguments).tolist() == [[1, 1], [2, 2]]
    with pytest.raises(jaxtyping.TypeCheckError, match="grad"):
        ops.reference.sum_gradients(grad[:, 0], **arguments)


def test_the_face_of_an_op_refuses_a_wrong_shape():
    records = ops.Records(torch.zeros(2, 16, dtype=torch.uint8), [])
    rule = ops.RowRule("sgd", torch.zeros(2, dtype=torch.float64))
    keys = ops.RowKeys(torch.tensor([0, 9]), torch.zeros(1, 5, dtype=torch.int64))
    with contextlib.suppress(IndexError):  # the shapes are right; records without a layout are not
        ops.update(records, a_pack(), torch.ones(3, 2), rule, keys, slots=torch.arange(2))
    with pytest.raises(jaxtyping.TypeCheckError, match="slots"):
        ops.update(records, a_pack(), torch.ones(3, 2), rule, keys, slots=torch.arange(3))


def test_nothing_is_needed_to_import_the_package(monkeypatch):
    """Without checkers an alias is the plain tensor; no other module knows of them."""
    monkeypatch.setitem(sys.modules, "jaxtyping", None)
    assert runpy.run_path(shapes.__file__)["Int64"][torch.Tensor, "N"] is torch.Tensor
    imports = re.compile(r"^ *(from|import) (jaxtyping|beartype)\b", re.MULTILINE)
    files = Path(shapes.__file__).parent.rglob("*.py")
    assert [path.name for path in files if imports.search(path.read_text())] == ["shapes.py"]
