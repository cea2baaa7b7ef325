"""One way to compare tensors, for every test; and kernels without the device that they are for."""

import os

import pytest
import torch

if not torch.cuda.is_available():
    # Read when Triton is first imported: its kernels then run on the CPU, element by element.
    os.environ.setdefault("TRITON_INTERPRET", "1")


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


@pytest.fixture
def threads():
    """Sets the number of threads for one test: threads(1)."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)
