"""Shapes in annotations are checked while tests run, and the package needs no checker otherwise."""

import contextlib
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import hotrows
from hotrows import ops
from hotrows.plan import Moves, PackPlan

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


def test_nothing_is_needed_to_import_the_package():
    block = "import sys; sys.modules['jaxtyping'] = sys.modules['beartype'] = None\n"
    use = (
        "import torch; from hotrows.shapes import Int64\n"
        "import hotrows.engine.embedding; assert Int64[torch.Tensor, 'N'] is torch.Tensor"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(hotrows.__file__).parent.parent)}
    done = subprocess.run(
        [sys.executable, "-c", block + use], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr
