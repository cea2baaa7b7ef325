"""Models on a pretended GPU whose tables are accelerated.

with pretend_tables.gpu() as device:
    model, optimizer = hotrows.accelerate(model.cuda(), optimizer)
"""

from contextlib import ExitStack, contextmanager
from unittest import mock

import torch

from hotrows.acceleration import parameter
from hotrows.acceleration.parameter import TableParameter
from tests.support import pretend


class PretendTable(TableParameter, pretend.PretendTensor):
    """A weight on the device whose reads are intercepted."""


@contextmanager
def gpu(*delay):
    make = torch.Tensor._make_wrapper_subclass

    def make_wrapper(cls, shape, *, device=None, **options):
        # As the form of a `PretendTensor`: PyTorch's C++ sees `meta`.
        is_there = device is not None and torch.device(device).type == "cuda"
        return make(cls, shape, device="meta" if is_there else device, **options)

    with ExitStack() as stack:
        device = stack.enter_context(pretend.gpu(*delay))
        classes = {pretend.PretendTensor: PretendTable}
        stack.enter_context(mock.patch.dict(parameter.CLASSES, classes))
        parameter.PLAIN.add(pretend.PretendTensor)
        stack.callback(parameter.PLAIN.discard, pretend.PretendTensor)
        stack.enter_context(mock.patch.object(torch.Tensor, "_make_wrapper_subclass", make_wrapper))
        yield device
