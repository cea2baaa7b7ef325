"""What is left of a run whose machines are taken away again and again, and come back as more or fewer?

    python -m benchmarks.preemptions [--preemptions N] [--minutes N] [--rows N] [--seed N]

A job of 4, 3 and 1 ranks in turn trains a tiny model at a URL; each has a disk of its own, which goes
with it. After a number of steps that is drawn, all ranks get SIGTERM with a notice, or SIGKILL, in turn.
The same job with `--resume` goes on. Then the steps that were kept are trained again without a
preemption, with as many ranks for each: both are to have the same bits in the end.
"""

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.machines import ended, make_data, start

QUESTION = "What is left of a run whose machines are taken away again and again?"
SEQUENCE, EVERY, NOTICE = (4, 3, 1), 10, 25.0


def main() -> None:
    from benchmarks.harness import conditions, write

    parser = argparse.ArgumentParser(description=QUESTION)
    parser.add_argument("--preemptions", type=int, default=300)
    parser.add_argument("--minutes", type=float, default=1e6, help="of preemptions, at most")
    parser.add_argument("--rows", type=int, default=40_000)
    parser.add_argument("--seed", type=int, default=3)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_data(folder, args.rows)
        result = preempted(folder, f"file://{folder}/bucket/run", args)
        result["equal_bits"] = replayed(folder, result.pop("kept"))
    print(json.dumps(result, indent=2))
    write("preemptions", {"question": QUESTION, "conditions": conditions(1), "result": result})


def preempted(folder: Path, run: str, args: argparse.Namespace) -> dict:
    """Takes the machines of a run away so often. kept: ranks, and the step up to which they trained."""
    draw, last_step, kept, twice, lost, answers = random.Random(args.seed), 0, [], [], 0, []
    end = time.monotonic() + 60 * args.minutes
    for number in range(args.preemptions):
        if time.monotonic() > end:
            break
        num_ranks, has_notice, disks = SEQUENCE[number % len(SEQUENCE)], number % 2 == 0, f"disk-{number}"
        how = {"epochs": 10_000, "say": True, "every": EVERY, "resume": number > 0, "ranks": num_ranks}
        ranks = start(folder, run, disks, **how, **({"notice": NOTICE} if has_notice else {}))
        wanted, first, step = draw.randint(1, 3 * EVERY), None, 0
        for line in ranks[0].stdout:
            step = int(line)
            first = step if first is None else first
            if step - first + 1 >= wanted:
                break
        if first is None:
            raise SystemExit(
                f"preemption {number}: the job of {num_ranks} ranks ended before its first step"
            )
        twice.append(last_step - (first - 1))
        lost += first == 1 and bool(kept)
        if kept:
            kept[-1] = (kept[-1][0], first - 1)
        begin = time.time()
        for rank in ranks:
            rank.send_signal(signal.SIGTERM if has_notice else signal.SIGKILL)
        said = [rank.communicate(timeout=300)[0].splitlines() for rank in ranks]
        last_step = max([step, *(int(line) for line in said[0] if line.isdecimal())])
        if has_notice:
            answers.append(json.loads(said[0][-1])["left"] - begin)
        kept.append((num_ranks, last_step))
        for rank in range(num_ranks):
            shutil.rmtree(folder / f"{disks}-{rank}", ignore_errors=True)
        print(
            f"{number + 1} of {args.preemptions}: {num_ranks} ranks, steps {first} to {last_step}",
            file=sys.stderr,
        )
    pointer = json.loads((folder / "bucket/run/checkpoints.json").read_text())
    kept[-1] = (kept[-1][0], int(pointer["last"].rpartition("-")[2]))
    return {
        "preemptions": len(kept),
        "ranks": SEQUENCE,
        "steps": kept[-1][1],
        "checkpoints_lost": lost,
        "seconds_to_answer_a_notice": round(max(answers), 1),
        "steps_made_twice_after_notice": max(twice[1::2], default=0),
        "steps_made_twice_after_kill": max(twice[2::2], default=0),
        "checkpoint_every_steps": EVERY,
        "kept": kept,
    }


def replayed(folder: Path, kept: list[tuple[int, int]]) -> bool:
    """Trains the steps that were kept once more, undisturbed, in a folder; returns whether the last
    checkpoints have the same rows and parameters."""
    from hotrows.engine import checkpoint

    other, done = folder / "undisturbed", 0
    for number, (num_ranks, step) in enumerate(kept):
        if step > done:
            how = {
                "epochs": 10_000,
                "every": EVERY,
                "resume": done > 0,
                "ranks": num_ranks,
                "steps": step,
            }
            ended(start(folder, str(other), f"again-{number}", **how))
            done = step
    contents = []
    for name, run in (("a", folder / "bucket/run"), ("b", other)):
        merged = checkpoint.merge(checkpoint.folder_of(run, "last"), folder / name)
        files = [path for path in merged.rglob("*") if path.suffix in (".records", ".safetensors")]
        contents.append({path.name: path.read_bytes() for path in files if path.stem != "trainer"})
    return contents[0] == contents[1]


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
