"""On a device: nothing that a step does makes the host wait, and a captured step can be replayed."""

import pytest
import torch

from hotrows import SGD
from tests.support.op_arguments import arguments
from tests.support.row_rules import hyper_tensor

pytestmark = pytest.mark.gpu
WAIT = ("unique", "initialize")


@pytest.mark.parametrize("name", sorted(set(arguments("cpu")) - set(WAIT)))
def test_the_host_does_not_wait(name):
    args = arguments("cuda")[name]
    getattr(torch.ops.hotrows, name)(*args)  # compiled at the first call
    torch.cuda.set_sync_debug_mode("error")
    try:
        getattr(torch.ops.hotrows, name)(*args)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_a_captured_update_reads_the_numbers_of_each_step():
    args = arguments("cuda")["update"]
    records, hyper = args[0], next(arg for arg in args[10:] if isinstance(arg, torch.Tensor))
    torch.ops.hotrows.update(*args)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        torch.ops.hotrows.update(*args)
    before = records.clone()
    hyper.copy_(hyper_tensor(SGD(lr=0.0), 1))
    graph.replay()
    assert torch.equal(records, before)
    hyper.copy_(hyper_tensor(SGD(lr=1.0), 2))
    graph.replay()
    assert not torch.equal(records, before)
