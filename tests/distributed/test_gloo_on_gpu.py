"""Ranks whose tensors are on one real GPU, exchanged by Gloo, as NCCL refuses two ranks on one."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.harness import ROOT

import hotrows

RANK = """
import sys
from unittest import mock
from benchmarks.arms import gpu_ranks
from hotrows.engine.distributed import process_group

sys.argv = ["gpu_ranks", sys.argv[1], sys.argv[2], "60", "--small"]
with mock.patch.object(process_group, "_backend", lambda: "gloo"):
    gpu_ranks.main()
"""


def ranks_on(device, work, num=4):
    """How ranks end that check this; see `benchmarks.arms.gpu_ranks`."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    paths = os.pathsep.join([str(Path(hotrows.__file__).parents[1]), str(ROOT)])
    meet = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(num)}
    environment = {**os.environ, **meet, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "LOCAL_RANK": "0"}
    ranks = [
        subprocess.Popen([sys.executable, "-c", RANK, work, device], stderr=subprocess.PIPE, text=True,
                         env={**environment, "RANK": str(rank)}, stdout=subprocess.DEVNULL)
        for rank in range(num)
    ]  # fmt: skip
    try:
        said = [rank.communicate(timeout=300)[1] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [0] * num, said


@pytest.mark.gpu
@pytest.mark.parametrize("work", ["collectives", "rows"])
def test_ranks_on_one_gpu_have_the_bits_of_ranks_on_processors(work):
    ranks_on("cuda", work)


@pytest.mark.slow
@pytest.mark.parametrize("work", ["collectives", "rows"])
def test_the_same_on_processors(work):
    """What the test above does, as far as it goes without a GPU."""
    ranks_on("cpu", work)
