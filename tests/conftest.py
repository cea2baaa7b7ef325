"""One way to compare tensors, for every test."""

import pytest
import torch


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


@pytest.fixture
def threads():
    """Sets the number of threads for one test: threads(1)."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)
