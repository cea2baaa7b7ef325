"""Jobs on machines that share nothing but a bucket, by the commands that the pages give."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hotrows.data import prepare
from tests.machines.hosts import OUTSIDE, several, torchrun
from tests.machines.proxy import KINDS, bucket
from tests.support.runs import schema, write_rows

TRAIN = (
    *("train", "s3://bucket/enc", "--model", "deepfm", "--option", "dim=4", "--option", "hidden=[16]"),
    *("--batch-size", "128", "--seed", "3", "--linear-paths", "plain", "--sharding", "rows"),
    *("--checkpoint-every", "5", "--full-every", "3", "--keep-last", "2", "--timeout", "60"),
)


@pytest.fixture
def machines(tmp_path):
    try:
        with several(2, tmp_path) as machines:
            yield machines
    except PermissionError as error:
        pytest.skip(f"needs namespaces: {error}")


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("prepared")
    raw = write_rows(folder / "raw.csv", 2000)
    prepare([raw], schema(), folder / "enc", split="position:0.8,0.1,0.1")
    return folder / "enc"


def s3(environment, action):
    """Calls action(file system) in a process that has the bucket."""
    code = f"import fsspec; files = fsspec.filesystem('s3'); {action}"
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, **environment})


def content(run):
    files = [*Path(run, "checkpoints").rglob("*"), Path(run, "checkpoints.json")]
    return {str(file.relative_to(run)): file.read_bytes() for file in files if file.is_file()}


def wait(processes, saids, seconds=120):
    codes = [process.wait(seconds) for process in processes]
    return codes, "".join(said.read_text() for said in saids)


@pytest.mark.slow
def test_machines_that_share_a_bucket_leave_the_bytes_of_a_shared_folder(prepared, machines, tmp_path):
    with bucket(OUTSIDE) as (proxy, environment):
        s3(environment, f"files.put({str(prepared)!r}, 'bucket/enc', recursive=True)")
        proxy.rate, saids = 0.15, [tmp_path / f"said-{k}" for k in (0, 1)]
        line = (*TRAIN, "--run-dir", "s3://bucket/run")
        started = [
            machine.start(torchrun(machines, k, *line), saids[k], **environment)
            for k, machine in enumerate(machines)
        ]
        codes, said = wait(started, saids)
        assert codes == [0, 0], said
        assert set(proxy.faults) == {*KINDS}
        proxy.rate = 0.0
        s3(environment, f"files.get('bucket/run', {str(tmp_path / 'found')!r}, recursive=True)")
    one = [*torchrun(machines[:1], 0)[:3], "--standalone", "--nproc-per-node", "2", "-m", "hotrows"]
    line = [str(prepared) if word == "s3://bucket/enc" else word for word in TRAIN]
    subprocess.run([*one, *line, "--run-dir", str(tmp_path / "shared")], check=True, capture_output=True)
    assert content(tmp_path / "found") == content(tmp_path / "shared")
    assert all("checkpoints" in str(path) or "s3:" not in path.parts for path in tmp_path.rglob("*"))


@pytest.mark.slow
def test_what_differs_between_machines_ends_both_in_seconds(prepared, machines, tmp_path):
    shutil.copytree(prepared, machines[0].folder / "enc")
    begin, saids = time.monotonic(), [tmp_path / f"said-{k}" for k in (0, 1)]
    line = ["enc" if word == "s3://bucket/enc" else word for word in TRAIN]
    started = [
        machine.start(torchrun(machines, k, *line, "--run-dir", "run"), saids[k])
        for k, machine in enumerate(machines)
    ]
    codes, said = wait(started, saids)
    assert codes == [1, 1] and said.count("enc does not exist") >= 2, said
    assert time.monotonic() - begin < 60


BEGINS = """
import time
from hotrows.engine.distributed import machines, process_group
ranks = process_group.start(300)
with machines.watched(ranks):
    print("begun", flush=True)
    time.sleep(300 * ranks.rank)
    ranks.barrier()
"""


@pytest.mark.slow
def test_a_link_that_is_cut_during_the_start_ends_the_other_machine_in_seconds(machines, tmp_path):
    saids = [tmp_path / f"said-{k}" for k in (0, 1)]
    job = {"MASTER_ADDR": machines[0].address, "MASTER_PORT": "29873", "WORLD_SIZE": "2"}
    started = [
        machine.start([sys.executable, "-c", BEGINS], saids[k], **job, RANK=str(k))
        for k, machine in enumerate(machines)
    ]
    try:
        end = time.monotonic() + 60
        while not all("begun" in said.read_text() for said in saids):
            assert time.monotonic() < end, saids[0].read_text() + saids[1].read_text()
            time.sleep(0.1)
        machines[1].plug(False)
        begin = time.monotonic()
        assert started[0].wait(60) == 1 and time.monotonic() - begin < 20
        assert "rank 0: waited more than 10 s for another of the 2 ranks" in saids[0].read_text()
    finally:
        for process in started:
            process.kill()


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_notice_is_answered_in_time_whatever_storage_does(prepared, tmp_path, kind):
    with bucket() as (proxy, environment):
        s3(environment, f"files.put({str(prepared)!r}, 'bucket/enc', recursive=True)")
        environment |= {"XDG_CACHE_HOME": str(tmp_path / "cache"), "OMP_NUM_THREADS": "1"}
        line = [*TRAIN, "--epochs", "1000", "--run", "s3://bucket/run", "--notice", "8s"]
        command = [sys.executable, "-m", "hotrows", *line]
        with open(tmp_path / "said", "w") as said:
            process = subprocess.Popen(command, stderr=said, env={**os.environ, **environment})
        pointer = "import sys; sys.exit(not files.exists('bucket/run/checkpoints.json'))"
        end = time.monotonic() + 60
        while time.monotonic() < end:
            try:
                s3(environment, pointer)
                break
            except subprocess.CalledProcessError:
                time.sleep(0.5)
        proxy.rate, proxy.kinds, proxy.stall = (1.0 if kind in ("503", "stall") else 0.5), (kind,), 30.0
        begin = time.monotonic()
        process.send_signal(signal.SIGTERM)
        code = process.wait(60)
        seconds, text = time.monotonic() - begin, (tmp_path / "said").read_text()
        assert code == 75 and seconds < 8, (code, seconds, text)
        assert "the checkpoint is in s3://bucket/run: step-" in text and "--resume" in text
        proxy.rate = 0.0
        again = [*command, "--resume", "--steps", "1"]
        done = subprocess.run(again, env={**os.environ, **environment}, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
