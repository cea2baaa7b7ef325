"""The commands of the recipes for Kubernetes, SkyPilot and Ray, as local processes and on disks apart."""

import importlib.util
import os
import re
import socket
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from hotrows.engine.distributed.in_process import run as on_threads
from hotrows.train import Trainer
from hotrows.train.config import TrainConfig
from tests.machines.runs import content
from tests.support.forked import Forked

RECIPES = Path(__file__).parents[2] / "examples/machines"
SETTINGS = {"model": "lr", "steps": 3, "batch_size": 64, "linear_paths": "plain", "sharding": "rows"}
SMALL = "--option dim=4 --option hidden=[16] --batch-size 128 --epochs 1 --model deepfm"


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return str(free.getsockname()[1])


def command(recipe):
    """The line that starts a rank, from the recipe's text."""
    text = re.search(r"exec torchrun.*?--resume", (RECIPES / recipe).read_text(), re.S)[0]
    return " ".join(text.replace("\\\n", " ").split())


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["kubernetes.yaml", "sky.yaml"])
def test_the_command_begins_a_run_and_goes_on_with_it(recipe, data, tmp_path):
    (tmp_path / "bucket").mkdir()
    os.symlink(data.path, tmp_path / "bucket/enc")
    for steps in (4, 8):  # as the same job that is started twice
        line, port = command(recipe), free_port()
        for name, value in {
            "exec torchrun": f"exec {sys.executable} -m torch.distributed.run",
            "s3://bucket/": f"file://{tmp_path}/bucket/",
            "hotrows-0.hotrows:29500": f"127.0.0.1:{port}",
            "--master-port 29500": f"--master-port {port}",
            "--model dlrm": f"{SMALL} --steps {steps}",
        }.items():
            line = line.replace(name, value)
        started = [
            subprocess.Popen(
                ["bash", "-c", line],
                stderr=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                text=True,
                env={
                    **os.environ,
                    "OMP_NUM_THREADS": "1",
                    "XDG_CACHE_HOME": str(tmp_path / f"disk-{rank}"),
                    "SKYPILOT_NUM_NODES": "2",
                    "SKYPILOT_NODE_RANK": str(rank),
                    "SKYPILOT_NODE_IPS": "127.0.0.1\n127.0.0.1",
                },
            )
            for rank in (0, 1)
        ]
        said = [process.communicate(timeout=120)[1] for process in started]
        assert [process.returncode for process in started] == [0, 0], said
        assert f"checkpoints/step-{steps}/model.safetensors" in content(tmp_path / "bucket/run")


def as_ray_does(rank, port, data, run, disk):
    """A worker of Ray Train: its process group is there before the function is called."""
    import datetime

    from torch import distributed as dist

    os.environ["XDG_CACHE_HOME"] = disk
    wait = datetime.timedelta(seconds=60)
    dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", wait, world_size=2, rank=rank)
    ray_recipe().train_one({"data": data, "run": run, "settings": SETTINGS})
    dist.destroy_process_group()


def ray_recipe():
    found = importlib.util.spec_from_file_location("ray_train", RECIPES / "ray_train.py")
    recipe = importlib.util.module_from_spec(found)
    found.loader.exec_module(recipe)
    return recipe


def test_the_function_for_ray_train_trains_in_a_group_that_is_there(data, tmp_path):
    port, url = free_port(), f"file://{tmp_path}/bucket/run"
    disks = [str(tmp_path / f"disk-{rank}") for rank in (0, 1)]
    ranks = [Forked(as_ray_does, rank, port, str(data.path), url, disks[rank]) for rank in (0, 1)]
    assert [rank.end(60) for rank in ranks] == [0, 0], [rank.error for rank in ranks]
    assert "checkpoints/step-3/model.safetensors" in content(tmp_path / "bucket/run")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of Ray itself
def test_workers_of_ray_train_leave_the_bytes_of_other_ranks(data, tmp_path, monkeypatch):
    ray = pytest.importorskip("ray")
    pytest.importorskip("ray.train.torch")
    monkeypatch.setenv("HOME", str(tmp_path))  # where Ray keeps its results
    for name in ("RAY_USAGE_STATS_ENABLED", "RAY_TRAIN_ENABLE_STATE_TRACKING"):
        monkeypatch.setenv(name, "0")
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error")
    try:
        for steps in (2, 3):  # the second job resumes what the first has begun
            settings = {**SETTINGS, "steps": steps}
            ray_recipe().main(str(data.path), f"file://{tmp_path}/bucket/run", cpus=1, **settings)
            config = TrainConfig(checkpoint_every=1000, full_every=10, **settings)
            on_threads(partial(fit, data, config, tmp_path / "threads", steps == 3), 2)
    finally:
        ray.shutdown()
    assert content(tmp_path / "bucket/run") == content(tmp_path / "threads")


def fit(data, config, run, resume, ranks):
    return Trainer(data, config, run, ranks=ranks, resume=resume).fit()
