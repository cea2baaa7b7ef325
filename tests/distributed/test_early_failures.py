"""What fails on one rank before the first step ends all ranks, with one sentence, in seconds.

Two processes over Gloo, each in a folder of its own, as on two machines without a shared disk.
"""

import os
import socket
import sys
import time

import pytest

from hotrows import Schema, Sparse, TrainConfig, Trainer, cli, prepare
from hotrows.engine.checkpoint import run_lock
from hotrows.engine.distributed import job
from hotrows.engine.distributed.in_process import run as on_threads
from tests.support.forked import Forked

pytestmark = pytest.mark.usefixtures("one_thread", "no_pictures")
SCHEMA = Schema((Sparse("user"),), label="click")
TRAIN = "train enc --model lr --steps 2 --batch-size 8 --linear-paths plain --run-dir run --timeout 60"


def rows(num_users):
    return {"click": [i % 3 // 2 for i in range(90)], "user": [f"u{i % num_users}" for i in range(90)]}


@pytest.fixture(scope="module")
def machines(tmp_path_factory):
    """Two folders with equal data, `enc`; in the second one `other` has other data."""
    folders = [tmp_path_factory.mktemp(f"machine{rank}") for rank in (0, 1)]
    for folder in folders:
        prepare(rows(9), SCHEMA, folder / "enc", split="position:0.8,0.1,0.1")
    prepare(rows(7), SCHEMA, folders[1] / "other", split="position:0.8,0.1,0.1")
    return folders


def command(rank, port, folder, line):
    """Runs a command as one rank of two; its messages go to FOLDER/err."""
    of_job = {"RANK": rank, "WORLD_SIZE": 2, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1}
    os.environ.update({name: str(value) for name, value in of_job.items()})
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    os.chdir(folder)
    sys.stderr = open("err", "w")  # noqa: SIM115
    cli.main(line.split())


@pytest.mark.parametrize(
    ("of_rank_0", "of_rank_1", "words"),
    [
        (TRAIN, TRAIN.replace("enc", "absent"), "rank 1: absent does not exist; make it"),
        (TRAIN + " --epochs x", TRAIN, "'x' is not a valid int"),
        (TRAIN, TRAIN + " --config absent.json", "rank 1: there is no absent.json"),
        (TRAIN, TRAIN + " --init-from absent", "rank 1: absent does not exist"),
        (TRAIN, TRAIN.replace("enc", "other"), "rank 1 has other data in"),
        (TRAIN, TRAIN + " --optimizer sgd", "rank 1 has row_optimizer=SGD("),
    ],
)
def test_a_failure_of_one_rank_is_that_of_both(machines, of_rank_0, of_rank_1, words):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    lines, begin = (of_rank_0, of_rank_1), time.monotonic()
    ranks = [Forked(command, rank, port, machines[rank], lines[rank]) for rank in (0, 1)]
    for rank in ranks:
        rank.process.join(40)
    told = [(folder / "err").read_text() for folder in machines]
    assert all(rank.process.exitcode in (1, 2) for rank in ranks), told
    assert all(words.removeprefix("rank 1: ") in text.splitlines()[-1] for text in told), told
    assert any(words in text for text in told) and time.monotonic() - begin < 40


def test_a_folder_that_is_not_shared_is_noticed_before_anything_is_written(machines, monkeypatch):
    monkeypatch.setattr(run_lock, "_LOOKS", 2)
    config = TrainConfig(model="lr", steps=2, batch_size=8, linear_paths="plain")
    for is_there in (False, True):  # a folder of that name, which is another one
        if is_there:
            (machines[1] / "run").mkdir()
        with pytest.raises(ValueError, match=r"run is not shared: \S+ does not see there what rank 0"):
            on_threads(
                lambda r: Trainer(machines[0] / "enc", config, machines[r.rank] / "run", ranks=r), 2
            )
        assert not (machines[0] / "run").exists(), "the next try begins anew"


def test_the_command_to_go_on_names_torchrun(monkeypatch):
    assert job.command() == ["hotrows"]
    of_torchrun = {"TORCHELASTIC_RUN_ID": "a", "LOCAL_WORLD_SIZE": "4", "GROUP_WORLD_SIZE": "1"}
    for name, value in of_torchrun.items():
        monkeypatch.setenv(name, value)
    assert " ".join(job.command()) == "torchrun --nproc-per-node 4 -m hotrows"
    others = {"GROUP_WORLD_SIZE": "2", "GROUP_RANK": "1", "MASTER_ADDR": "a", "MASTER_PORT": "9"}
    for name, value in others.items():
        monkeypatch.setenv(name, value)
    where = "--nnodes 2 --node-rank 1 --master-addr a --master-port 9"
    assert " ".join(job.command()) == f"torchrun --nproc-per-node 4 {where} -m hotrows"
