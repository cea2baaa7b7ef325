"""Launches in many orders of their warps and programs, whose results must be the same bits."""

import torch

from tests.ptx import launch, plugin  # isort: skip  before anything imports Triton
from hotrows import RowWiseAdagrad
from hotrows.ops import triton as kernels
from tests.ops.triton import cases, layer_cases
from tests.support.row_rules import hyper_tensor


def differences(count: int) -> int:
    """How many of so many launches give other bits than the first one of their kind."""
    plugin.install()
    found, expected = 0, {}
    for seed in range(count):
        name = list(CALLS)[seed % len(CALLS)]
        launch.setting.seed = 1000 * seed
        torch.manual_seed(0)
        results = CALLS[name]()
        if name in expected:
            found += not all(map(torch.equal, results, expected[name]))
        else:
            expected[name] = results
    return found


def _resolved():
    ids = torch.randint(-1, 19, (3 * 70,))
    tables = torch.tensor([2, 0, 0, 1]), torch.arange(4) * 19, torch.full((4,), 20)
    return kernels.resolve(ids, None, 70, *tables, 2)


def _updated():
    optimizer, layout = RowWiseAdagrad(lr=0.1), cases.layout_of(RowWiseAdagrad(), 16, "int8")
    records, ids = cases.new_records(layout), cases.hot_ids()
    rows, order, starts = cases.runs_of(ids)
    step = optimizer.kind, hyper_tensor(optimizer, 0), cases.FIRST_ROWS, cases.pieces(16)
    kernels.update(
        records, layout.as_ints(), rows, rows, order, starts, None, None, torch.randn(200, 16), *step
    )
    return [records]


def _of_layer(name, place):
    def call():
        arguments = [a for op, a in layer_cases.calls() if op == name][place]
        results = layer_cases.kernel(name)(*arguments)
        return [t for t in (results if isinstance(results, tuple) else [results]) if t is not None]

    return call


CALLS = {
    "resolve": _resolved, "update": _updated, "co_action": _of_layer("co_action_backward", 0),
    "recurrent": _of_layer("recurrent_backward", 0), "attention": _of_layer("pointwise_attention", 2),
    "projection": _of_layer("target_projection", 0),
}  # fmt: skip
