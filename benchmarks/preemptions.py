"""What is left of a run whose machines are taken away again and again, and come back as more or fewer?

    python -m benchmarks.preemptions [--preemptions N] [--minutes N] [--rows N]

A job of 4, 3 and 1 ranks in turn trains a tiny model at a URL. Each rank has a disk of its own, which
goes with it, and where the system allows it a network address. The machines are taken away at the times
of a published trace, a step for half a minute: all ranks get SIGTERM with a notice, or SIGKILL, in turn.
The same job with `--resume` goes on. Then the steps that were kept are trained again without a
preemption, with as many ranks for each: both are to have the same bits in the end.

Ranks are forked from a process that has imported all, which takes a tenth of a second in place of three.
"""

import argparse
import ctypes
import importlib
import json
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from statistics import median

from benchmarks.machines import make_data, work

QUESTION = "What is left of a run whose machines are taken away again and again?"
SEQUENCE, EVERY, NOTICE = (4, 3, 1), 10, 25.0
# Minutes between two moments at which some of 32 spot machines were taken away, in 11 hours: of the trace
# aws/traces/p3.csv in github.com/JF-D/Parcae (arXiv 2403.14097).
MINUTES = (
    *(17, 2, 1, 1, 2, 2, 18, 2, 6, 2, 2, 16, 2, 33, 1, 1, 1, 21, 4, 10, 4, 10, 26, 12, 5, 1, 1, 8, 16, 4),
    *(2, 2, 14, 2, 14, 6, 33, 2, 2, 4, 2, 6, 2, 18, 8, 20, 2, 2, 2, 16, 19, 6, 2, 4, 8, 4, 2, 31, 2, 2),
    *(2, 2, 6, 13, 2, 16, 2, 2, 24, 12, 2, 4, 16, 4, 2, 53, 14, 2),
)
STEPS_PER_MINUTE = 2
# Whatever follows from the number of samples is given, since a run is shorter as it is trained again; a
# longer run would measure its machines for seconds each time.
SETTINGS = {
    "batch_size": 256,
    "model_options": {"dim": 16, "hidden": [64], "dropout": 0.0, "effects": []},
    "row_optimizer": "adagrad",
    "linear_optimizer": "adagrad",
    "dense_lr": 0.001,
}
TINY = {"epochs": 1000, "every": EVERY, "settings": SETTINGS}
MODULES = (
    *("hotrows.train.loop.trainer", "hotrows.train.callback", "hotrows.train.telling.pictures"),
    *("hotrows.engine.distributed.machines", "hotrows.runtime.remote.files"),
    *(
        "hotrows.data.encode.prepare",
        "fsspec.implementations.local",
        "torch.utils.data",
        "torch.distributed",
    ),
    "tensorboard.summary",
)
_CLONE_NEWNET = 0x40000000
_ports = count(31_000)


def main() -> None:
    from benchmarks.harness import conditions, write

    parser = argparse.ArgumentParser(description=QUESTION)
    parser.add_argument("--preemptions", type=int, default=300)
    parser.add_argument("--minutes", type=float, default=1e6, help="of preemptions, at most")
    parser.add_argument("--rows", type=int, default=10_000)
    args = parser.parse_args()
    begin = time.monotonic()
    for module in MODULES:
        importlib.import_module(module)
    with tempfile.TemporaryDirectory() as name, networks(Path(name)) as addresses:
        folder = Path(name)
        assert Rank(lambda: make_data(folder, args.rows, 2_000)).end()[1] == 0, "data could not be made"
        result = preempted(folder, f"file://{folder}/bucket/run", addresses, args)
        result["equal_bits"] = replayed(folder, result.pop("kept"), addresses)
    result |= {"namespaces": bool(addresses), "minutes": round((time.monotonic() - begin) / 60, 1)}
    print(json.dumps(result, indent=2))
    write("preemptions", {"question": QUESTION, "conditions": conditions(1), "result": result})


@contextmanager
def networks(folder: Path):
    """The addresses of machines in network namespaces, by their names; none where none can be made."""
    from tests.machines.hosts import several

    try:
        with several(max(SEQUENCE), folder, network=8) as machines:
            yield {machine.name: machine.address for machine in machines}
    except PermissionError as error:
        print(f"ranks share this machine's network: {error}", file=sys.stderr)
        yield {}


class Rank:
    """A forked process that calls a function; what it prints can be read."""

    def __init__(self, function, network: str | None = None, **environment: str) -> None:
        reads, writes = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(reads)
            os.dup2(writes, 1)
            os.environ.update(environment)
            try:
                if network:
                    _enter(network)
                function()
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        os.close(writes)
        self.lines = os.fdopen(reads)

    def end(self) -> tuple[list[str], int]:
        """The lines that were not read, and the exit code."""
        with self.lines:
            said = self.lines.read().splitlines()
        return said, os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def _enter(network: str) -> None:
    """Moves this process, which has one thread, into a network namespace."""
    with open(f"/var/run/netns/{network}") as file:
        if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "setns")


def start(
    folder: Path, run: str, disks: str, num_ranks: int, addresses: dict[str, str], **how
) -> list[Rank]:
    """Starts the ranks of a job, each with a disk of its own; how: see `work`."""
    port, names = str(next(_ports)), [*addresses]
    fields = json.dumps({"data": str(folder / "enc"), "run": run, "started": time.time(), **TINY, **how})
    sys.argv = ["preemptions", fields]
    return [
        Rank(
            work,
            names[rank] if names else None,
            RANK=str(rank),
            WORLD_SIZE=str(num_ranks),
            LOCAL_RANK="0" if names else str(rank),
            LOCAL_WORLD_SIZE="1" if names else str(num_ranks),
            MASTER_ADDR=addresses[names[0]] if names else "127.0.0.1",
            MASTER_PORT=port,
            XDG_CACHE_HOME=str(folder / f"{disks}-{rank}"),
            **({"GLOO_SOCKET_IFNAME": "eth0"} if names else {}),
        )
        for rank in range(num_ranks)
    ]


def pointed(run: Path) -> int:
    """The step of the last checkpoint that the bucket names; 0: none."""
    pointer = run / "checkpoints.json"
    return int(json.loads(pointer.read_text())["last"].rpartition("-")[2]) if pointer.exists() else 0


def preempted(folder: Path, run: str, addresses: dict[str, str], args: argparse.Namespace) -> dict:
    """Takes the machines of a run away so often. kept: ranks, and the step up to which they trained."""
    bucket, end = folder / "bucket/run", time.monotonic() + 60 * args.minutes
    last_step, lost, kept, twice, answers, starts = 0, 0, [], [[], []], [], []
    for number in range(args.preemptions):
        if time.monotonic() > end:
            break
        num_ranks, has_notice = SEQUENCE[number % len(SEQUENCE)], number % 2 == 0
        wanted, safe, disks = (
            STEPS_PER_MINUTE * MINUTES[number % len(MINUTES)],
            pointed(bucket),
            f"disk-{number}",
        )
        how = {"say": True, "resume": number > 0, **({"notice": NOTICE} if has_notice else {})}
        begin = time.monotonic()
        ranks, first, step = start(folder, run, disks, num_ranks, addresses, **how), None, 0
        for line in ranks[0].lines:
            step = int(line)
            if first is None:
                first = step
                starts.append(time.monotonic() - begin)
            if step - first + 1 >= wanted:
                break
        if first is None:
            raise SystemExit(f"preemption {number}: {num_ranks} ranks ended before their first step")
        lost += first - 1 != safe
        if kept:
            kept[-1] = (kept[-1][0], first - 1)
            twice[(number - 1) % 2].append(last_step - (first - 1))
        begin = time.time()
        for rank in ranks:
            os.kill(rank.pid, signal.SIGTERM if has_notice else signal.SIGKILL)
        ended = [rank.end() for rank in ranks]
        said = ended[0][0]
        last_step = max([step, *(int(line) for line in said if line.isdecimal())])
        if has_notice:
            assert all(code == 0 for _, code in ended), ended
            answers.append(json.loads(said[-1])["left"] - begin)
        kept.append((num_ranks, last_step))
        for rank in range(num_ranks):
            shutil.rmtree(folder / f"{disks}-{rank}", ignore_errors=True)
        words = f"{number + 1} of {args.preemptions}: {num_ranks} ranks, steps {first} to {last_step}"
        print(f"{words}, {time.monotonic():.1f} s", file=sys.stderr, flush=True)
    kept[-1] = (kept[-1][0], pointed(bucket))
    return {
        "preemptions": len(kept),
        "with_notice": len(answers),
        "ranks": SEQUENCE,
        "steps": kept[-1][1],
        "checkpoints_lost": lost,
        "seconds_to_answer_a_notice": round(max(answers), 1),
        "seconds_to_the_first_step": round(median(starts), 1),
        "steps_made_twice_after_notice": max(twice[0], default=0),
        "steps_made_twice_after_kill": max(twice[1], default=0),
        "checkpoint_every_steps": EVERY,
        "kept": kept,
    }


def replayed(folder: Path, kept: list[tuple[int, int]], addresses: dict[str, str]) -> bool:
    """Trains the steps that were kept once more, undisturbed, in a folder; returns whether the last
    checkpoints have the same rows and parameters."""
    other, done = folder / "undisturbed", 0
    for number, (num_ranks, step) in enumerate(kept):
        if step > done:
            how = {"resume": done > 0, "steps": step}
            ranks = start(folder, str(other), f"again-{number}", num_ranks, addresses, **how)
            assert all(code == 0 for _, code in [rank.end() for rank in ranks]), (number, step)
            done = step
            print(f"again: {num_ranks} ranks to step {step}", file=sys.stderr, flush=True)
    from hotrows.engine import checkpoint

    contents = []
    for name, run in (("a", folder / "bucket/run"), ("b", other)):
        merged = checkpoint.merge(checkpoint.folder_of(run, "last"), folder / name)
        files = [path for path in merged.rglob("*") if path.suffix in (".records", ".safetensors")]
        contents.append({path.name: path.read_bytes() for path in files if path.stem != "trainer"})
    return contents[0] == contents[1]


if __name__ == "__main__":
    os.environ["OMP_NUM_THREADS"] = "1"
    main()
