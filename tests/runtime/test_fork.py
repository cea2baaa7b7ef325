"""After a fork: a child computes what its parent would, and neither waits for threads that are gone."""

import contextlib
import os
import signal
import subprocess
import sys
import textwrap

import pytest

from tests.support import runs

_SECONDS = 120  # of a process that takes five; one that hangs never ends

_SCRIPT = """
    import multiprocessing, os, sys, threading
    import torch
    from hotrows import TrainConfig, Trainer, data
    from hotrows.data import Encoder
    from hotrows.engine.planning.threads import Threads
    from hotrows.train.telling import metrics_log
    from hotrows.train.telling import pictures

    folder = sys.argv[1]
    pictures.draw_run = metrics_log._open_events = lambda *of: None  # imported by each child
    planning = Threads(2)

    def encode():
        return next(iter(Encoder.open(f"{folder}/enc", threads=4).encode([f"{folder}/raw.csv"])))

    def work(run):
        assert encode().ids.equal(ids)
        assert torch.get_num_threads() == 3
        assert planning.map(abs, [-1, -2]) == [1, 2]
        options = {"dim": 4, "hidden": [16]}
        config = TrainConfig("dnn", options, steps=2, batch_size=64, seed=3, linear_paths="plain")
        Trainer(data.EncodedData.open(f"{folder}/enc"), config, f"{folder}/{run}").fit()

    def fork(run):
        child = multiprocessing.get_context("fork").Process(target=work, args=(run,))
        child.start()
        child.join()
        assert child.exitcode == 0

    def fork_on_a_thread():
        torch.set_num_threads(3)
        encode()
        fork("of-a-thread")

    class Encoded(torch.utils.data.IterableDataset):
        def __iter__(self):
            yield encode().ids

    torch.set_num_threads(3)
    ids = encode().ids
    planning.map(abs, [1, 2])
    torch.ones(1000, 1000).mm(torch.ones(1000, 1000))

    print("os.fork", flush=True)
    child = os.fork()
    if not child:
        work("forked")
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0

    print("a DataLoader's worker", flush=True)
    loader = torch.utils.data.DataLoader(
        Encoded(), batch_size=None, num_workers=1, multiprocessing_context="fork"
    )
    assert [batch.equal(ids) for batch in loader] == [True]

    print("the parent", flush=True)
    work("parent")

    print("a process of a parent that has trained", flush=True)
    fork("later")

    print("a process that a thread forks", flush=True)
    thread = threading.Thread(target=fork_on_a_thread)
    thread.start()
    thread.join()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_forked_child_encodes_plans_and_trains(tmp_path):
    runs.encode(tmp_path)
    with open(tmp_path / "said.txt", "w+") as said:
        command = [sys.executable, "-c", textwrap.dedent(_SCRIPT), str(tmp_path)]
        parent = subprocess.Popen(command, stdout=said, stderr=said, start_new_session=True)
        try:
            code = parent.wait(_SECONDS)
        except subprocess.TimeoutExpired:
            code = "hangs"
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(parent.pid, signal.SIGKILL)  # a child that hangs, too
            parent.wait()
        said.seek(0)
        assert code == 0, said.read()
    for run in ("forked", "later", "of-a-thread"):
        assert runs.same_bits(tmp_path / run, tmp_path / "parent")
