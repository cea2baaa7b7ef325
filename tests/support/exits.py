"""Starts many processes that end with threads at work, and looks at their exit codes.

    python -m tests.support.exits --ranks 500 --lanes 200           # --fresh: a new interpreter for each

ranks: two processes over Gloo that made collectives; lanes: a process with an open pipeline. Every third
ends by an error, every third by Ctrl-C. A process is forked off one that has imported PyTorch and has no
threads: it ends as any does, and is there in milliseconds.
"""

import argparse
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time

import torch

from hotrows.engine.distributed import process_group
from hotrows.engine.pipeline.runner import Overlapped
from hotrows.engine.pipeline.schedule import Stage

CODES = {"normal": 0, "error": 1, "interrupted": -signal.SIGINT}  # of the endings


def ranks():
    """Collectives on two channels; rank 0 ends while a thread of Gloo is at the last of them, whose end
    it is to note in Python."""
    mine = process_group.start(20)
    mine.notes_times = True
    others = mine.channel("others")
    for channel in (mine, others):
        for dtype in (torch.float32, torch.bfloat16):
            rows = torch.ones(8, 3, dtype=dtype)
            assert channel.all_to_all(rows, [4, 4], [4, 4]).wait().equal(rows)
    assert mine.all_reduce(torch.ones(100)).wait()[0] == 2
    assert others.gather_objects(mine.rank) == [0, 1]
    mine.barrier()
    time.sleep(0.3 * mine.rank)
    last = mine.all_reduce(torch.ones(100))
    if mine.rank:
        last.wait()
    return mine, others, last


def lanes():
    """A pipeline that nobody closes, whose stages are inside of PyTorch."""
    rows = torch.randn(200, 200)
    stages = [Stage(name, name, run=lambda work: rows @ rows @ rows) for name in ("plan", "fetch")]
    runner = Overlapped([*stages, Stage("train", "train")], run_ahead=10_000)
    time.sleep(0.02)
    return runner


def one(work, ending):
    """What a process does; it ends once its caller does."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
    torch.set_num_threads(1)
    globals()["kept"] = {"ranks": ranks, "lanes": lanes}[work]()  # as a script's own variables are
    if ending == "error":
        raise RuntimeError("as a user's code may")
    if ending == "interrupted":
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(5)


def start(work, ending, environment, log, fresh):
    """The function that waits for the exit code of a new process."""
    if fresh:
        command = [sys.executable, "-m", "tests.support.exits", "--one", work, ending]
        return subprocess.Popen(command, env={**os.environ, **environment}, stderr=log).wait
    child = os.fork()
    if not child:
        os.environ.update(environment)
        os.dup2(log.fileno(), 2)
        one(work, ending)
        sys.exit()
    return lambda: os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def started(work, ending, fresh):
    """Whether processes that were started have ended as they should; says how they did otherwise."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
    several = [{**place, "RANK": f"{rank}", "WORLD_SIZE": "2"} for rank in range(2)]
    with tempfile.TemporaryFile() as log:
        waits = [start(work, ending, e, log, fresh) for e in (several if work == "ranks" else [{}])]
        codes = [wait() for wait in waits]
        log.seek(0)
        told = log.read().decode()
    right = codes == [CODES[ending]] * len(codes) and "terminate called" not in told
    if not right:
        print(work, ending, codes, told[-1000:], flush=True)
    return right


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, default=0)
    parser.add_argument("--lanes", type=int, default=0)
    parser.add_argument("--fresh", action="store_true")
    parser.add_argument("--one", nargs=2)
    args = parser.parse_args()
    if args.one:
        one(*args.one)
        return
    wrong = 0
    for work, num in (("ranks", args.ranks), ("lanes", args.lanes)):
        for n in range(num):
            wrong += not started(work, list(CODES)[n % len(CODES)], args.fresh)
            if n % 10 == 9 or n == num - 1:
                print(f"{work}: {n + 1} of {num} started, {wrong} wrong so far", flush=True)
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
