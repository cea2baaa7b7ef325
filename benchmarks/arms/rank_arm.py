"""What arms of several ranks share: one process starts the ranks, times their steps, adds up.

    this process   starts ranks -> "steps 0 to 7" -> waits        ... prints one line of JSON
    rank 0                         takes them, answers with its loss
    rank 1                         takes them, answers with its loss

It sleeps while the ranks work; a window of many steps is one message to each of them. Ranks get what
`torchrun` would give them: RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT. A rank ends when this process
does, whatever ended it.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from benchmarks.arms import arm
from benchmarks.processes import loopback, peak_rss_mb
from benchmarks.workload import measure_runs

Step = Callable[[int], float | None]
COLLECTIVE_TIMEOUT = 120  # seconds that a rank waits for the others
ANSWER_TIMEOUT = 600  # seconds for tables to be made, or for one window of steps


def parse(**options: tuple[str, ...]) -> argparse.Namespace:
    return finish(parser(**options).parse_args())


def parser(**options: tuple[str, ...]) -> argparse.ArgumentParser:
    parser = arm.parser(**options)
    parser.add_argument("--ranks", type=int, default=2, help="share --threads between them")
    return parser


def finish(args: argparse.Namespace) -> argparse.Namespace:
    args = arm.finish(args)
    if args.threads % args.ranks or args.batch_size % args.ranks:
        raise ValueError(
            f"{args.ranks} ranks must share {args.threads} threads and batches of"
            f" {args.batch_size} samples evenly; choose --threads and --batch-size so"
        )
    return args


def share(batch_size: int, rank: int, num_ranks: int) -> slice:
    """The samples of a global batch that a rank trains on."""
    size = batch_size // num_ranks
    return slice(rank * size, (rank + 1) * size)


def report(
    args: argparse.Namespace, make_step: Callable[[argparse.Namespace], Step], *packages: str
) -> None:
    """Times the steps of all ranks; prints figures.

    make_step: a function of a module; each rank calls it with `args` in a process of its own.
    samples_per_s counts the samples of the global batch. wire_mb and wire_packets: what went over
    the loopback interface in a step; collectives: calls of PyTorch's process groups in a step.
    """
    losses, num_steps = [], 0
    with Ranks(make_step, args) as ranks:
        before = loopback()

        def run(first: int, num: int) -> None:
            nonlocal num_steps
            losses.append(mean_of(ranks.ask((first, num))))
            num_steps += num

        timing = measure_runs(run, windows=args.windows, max_seconds=args.max_seconds, pids=ranks.pids)
        after, rss = loopback(), peak_rss_mb(ranks.pids)
        collectives = ranks.ask(None)[0]
    arm.print_figures(
        args,
        timing,
        losses,
        packages,
        peak_rss_mb=rss,
        ranks=args.ranks,
        wire_mb=(after.num_bytes - before.num_bytes) / num_steps / 1e6,
        wire_packets=(after.num_packets - before.num_packets) / num_steps,
        collectives=collectives / num_steps,
    )


def mean_of(losses: Sequence[float | None]) -> float | None:
    known = [loss for loss in losses if loss is not None]
    return sum(known) / len(known) if known else None


@dataclass(frozen=True)
class Worker:
    name: str
    process: BaseProcess
    channel: Connection


class Ranks:
    """Processes that answer each question in turn; none outlives the `with`."""

    def __init__(self, make_step: Callable[[argparse.Namespace], Step], args: argparse.Namespace):
        self.workers: list[Worker] = []
        self.make_step, self.args = make_step, args

    @property
    def pids(self) -> list[int]:
        return [worker.process.pid for worker in self.workers]

    def __enter__(self) -> Ranks:
        try:
            for rank, place in enumerate(places(self.args.ranks, self.args.threads)):
                self.workers.append(start(f"rank {rank}", place, work, self.make_step, self.args))
            self._answers()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        stop(self.workers)

    def ask(self, question: Any) -> list[Any]:
        for worker in self.workers:
            worker.channel.send(question)
        return self._answers()

    def _answers(self) -> list[Any]:
        """One answer of each rank, as they come: what fails first is what is reported."""
        answers = {}
        while len(answers) < len(self.workers):
            open_ones = [worker for worker in self.workers if worker.name not in answers]
            worker = next_of(open_ones)
            answers[worker.name] = received(worker)
        return [answers[worker.name] for worker in self.workers]


def places(num_ranks: int, threads: int) -> list[dict[str, str]]:
    """The environment of each rank, as `torchrun` makes it, and its threads."""
    common = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_ports(1)[0]),
        "WORLD_SIZE": str(num_ranks),
        "LOCAL_WORLD_SIZE": str(num_ranks),
        "OMP_NUM_THREADS": str(threads // num_ranks),
        "MKL_NUM_THREADS": str(threads // num_ranks),
    }
    if sys.platform == "linux":
        common["GLOO_SOCKET_IFNAME"] = "lo"
    return [common | {"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(num_ranks)]


def free_ports(num: int) -> list[int]:
    sockets = [socket.socket() for _ in range(num)]
    try:
        for opened in sockets:
            opened.bind(("127.0.0.1", 0))
        return [opened.getsockname()[1] for opened in sockets]
    finally:
        for opened in sockets:
            opened.close()


def start(
    name: str, environment: Mapping[str, str], target: Callable[..., None], *arguments: Any
) -> Worker:
    """A new process that calls target(channel, *arguments) in the environment added to ours."""
    ours, theirs = multiprocessing.Pipe()
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=_run, args=(target, theirs, *arguments), name=name, daemon=True)
    before = dict(os.environ)
    os.environ.update(environment)  # a spawned process reads it when it begins: OpenMP does too
    try:
        process.start()
    finally:
        os.environ.clear()
        os.environ.update(before)
    theirs.close()
    return Worker(name, process, ours)


def next_of(workers: Sequence[Worker]) -> Worker:
    """The one that answers, or ends, first."""
    by_handle = {worker.channel: worker for worker in workers}
    by_handle |= {worker.process.sentinel: worker for worker in workers}
    ready = wait(list(by_handle), ANSWER_TIMEOUT)
    if not ready:
        names = ", ".join(worker.name for worker in workers)
        raise TimeoutError(f"no answer of {names} within {ANSWER_TIMEOUT} s")
    return by_handle[ready[0]]


def received(worker: Worker) -> Any:
    try:
        answer = worker.channel.recv()
    except EOFError:
        worker.process.join(5)
        raise RuntimeError(f"{worker.name} ended with exit status {worker.process.exitcode}") from None
    if isinstance(answer, Failure):
        print(answer.trace, file=sys.stderr)
        raise RuntimeError(f"{worker.name}: {answer.message}")
    return answer


def stop(workers: Sequence[Worker]) -> None:
    for worker in workers:
        worker.process.terminate()
    for worker in workers:
        worker.process.join(5)
        if worker.process.is_alive():
            worker.process.kill()
            worker.process.join()


# ---- in the ranks


@dataclass(frozen=True)
class Failure:
    message: str
    trace: str


def work(
    channel: Connection, make_step: Callable[[argparse.Namespace], Step], args: argparse.Namespace
) -> None:
    """Takes the steps it is told to, answering with the last one's loss; then counts collectives."""
    step = make_step(args)
    before = _num_collectives()
    channel.send(None)
    while (steps := channel.recv()) is not None:
        first, num = steps
        for k in range(first, first + num):
            loss = step(k)
        channel.send(loss)
    channel.send(_num_collectives() - before)
    channel.recv()  # all stay until this process is told to end: others may still need its answers


def _num_collectives() -> int:
    """Calls of every process group of PyTorch so far, those of DistributedDataParallel too."""
    from torch.distributed import distributed_c10d as groups

    return sum(group._get_sequence_number_for_group() for group in groups._world.pg_map)


def _run(target: Callable[..., None], channel: Connection, *arguments: Any) -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        target(channel, *arguments)
    except (EOFError, KeyboardInterrupt):
        pass
    except BaseException as error:
        channel.send(Failure(f"{type(error).__name__}: {error}", traceback.format_exc()))
        channel.recv()  # leaves the other ranks to fail on their own account


def _end_with_parent() -> None:
    wait([multiprocessing.parent_process().sentinel])
    os._exit(1)
