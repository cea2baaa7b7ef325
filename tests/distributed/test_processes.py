"""Ranks that are processes: here one of them, on a process group of its own."""

import pytest
import torch
from torch import distributed as dist

from hotrows.distributed.process_group import Processes


@pytest.fixture
def alone(tmp_path):
    store = dist.FileStore(str(tmp_path / "store"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield Processes(timeout=10)
    dist.destroy_process_group()


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.float16, torch.int32, torch.int64]
)
@pytest.mark.parametrize("shape", [(6,), (6, 3), (0,), (0, 3)])
def test_rows_of_any_type_travel(alone, dtype, shape):
    """Gloo refuses the two of 16 bits as they are; bytes of them it takes."""
    rows = torch.arange(torch.Size(shape).numel()).view(shape).to(dtype)
    found = alone.all_to_all(rows, [len(rows)], [len(rows)]).wait()
    assert found.dtype == dtype
    assert torch.equal(found, rows)
