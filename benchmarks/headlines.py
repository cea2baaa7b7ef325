"""Measures again what README.md and the first page of evidence quote, on the present commit.

    python -m benchmarks.headlines               # what this commit has not measured; 3 hours in all
    python -m benchmarks.headlines --minutes 20  # parts that fit into so long; call it again for others
    python -m benchmarks.headlines --older 400   # what no commit of the latest 400 has measured
    python -m benchmarks.headlines dlrm prepare --again
    python -m benchmarks.evidence                # then: the tables of docs/evidence

Each part is a benchmark with few rounds, which writes its own file of results. Long parts run when they
are named. It needs the peers (`python -m benchmarks.peers`), a committed tree, and a quiet machine.
"""

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from benchmarks.evidence.records import Origin, result
from benchmarks.harness import ROOT, conditions, git
from benchmarks.workload import DATA
from hotrows.runtime.moved import MOVED

FOLDER = "FOLDER"  # in a command: a temporary folder
STEP = "--rounds 3 --arms hotrows plain-torch fbgemm tensorflow glued"
TABLES = "--rounds 3 --arms hotrows plain-torch fbgemm tensorflow"
RANKS = (
    "--arms hotrows-ranks hotrows hotrows-histories torchrec-ranks torchrec-ranks-pipeline plain-ranks"
)
SERVERS = "tensorflow-ps tensorflow-ps-packed"
SCORED = "dien-1000 din-1000 din-100 hstu-1000"
STEPS = ("engine", "models", "ops")
ACCELERATED = ("acceleration", "engine", "ops")
RELIABLE = ("engine", "storage", "train", "distributed")


@dataclass(frozen=True)
class Part:
    """A figure. source: the record of a results file (see `Origin`) that the last command writes;
    minutes: that it takes on two cores; packages: of src/hotrows, whose speed it says; is_long: whether
    it runs only when it is named."""

    source: str
    minutes: float
    commands: tuple[str, ...]
    packages: tuple[str, ...] = STEPS
    is_long: bool = False

    @property
    def code(self) -> tuple[str, ...]:
        """What a figure of another commit may differ by: the library, the harness, its own benchmark."""
        modules = {module_of(command).replace(".", "/") for command in self.commands}
        own = {f"{module}{end}" for module in modules for end in (".py", "/")}
        return ("src", "csrc", "benchmarks/harness.py", "benchmarks/arms", *sorted(own))


def module_of(command: str) -> str:
    """Of `benchmarks`, unless its name says another package."""
    name = command.split(maxsplit=1)[0]
    return name if name.startswith(("tests.", "hotrows")) else f"benchmarks.{name}"


def _accelerated(shape: str, minutes: float) -> dict[str, Part]:
    """A model of each library in tables of a shape."""
    return {
        f"accelerate-{shape}-{library}": Part(
            f"accelerate-{shape}-{library}",
            minutes,
            (f"accelerate {shape}-{library} --rounds 1",),
            ACCELERATED,
        )
        for library in ("deepctr", "fuxictr", "rechub")
    }


def _ranks() -> dict[str, Part]:
    """Two ranks of each model; without the arms of `PADDED`, which the table of ranks does not show."""
    return {
        f"ranks-{model}": Part(
            f"ranks-{model}",
            5,
            (f"ranks {model} --rounds 2 {RANKS} {SERVERS}",),
            ("engine", "distributed", "models", "ops"),
        )
        for model in ("dlrm", "deepfm", "461-tables", "din", "dien")
    }


PARTS = {
    "dlrm": Part("end_to_end-dlrm-adagrad", 5, (f"end_to_end dlrm-adagrad {STEP} torchrec",)),
    "dlrm-bfloat16": Part(
        "end_to_end-dlrm-adagrad-bfloat16", 5, (f"end_to_end dlrm-adagrad-bfloat16 {STEP} torchrec",)
    ),
    "deepfm": Part("end_to_end-deepfm-adagrad", 5, (f"end_to_end deepfm-adagrad {STEP}",)),
    "461-fields": Part("end_to_end-461-tables-adagrad", 4, (f"end_to_end 461-tables-adagrad {TABLES}",)),
    "1000-fields": Part(
        "end_to_end-many-tables-adagrad", 4, (f"end_to_end many-tables-adagrad {TABLES}",)
    ),
    "embedding": Part("embedding-adagrad", 6, ("embedding adagrad --rounds 3",)),
    "din": Part("sequence_step-din-dim16", 4, ("sequence_step din-dim16 --rounds 2",)),
    "dien": Part("sequence_step-dien-dim16", 7, ("sequence_step dien-dim16 --rounds 2",)),
    "user-path": Part("user_path", 12, ("user_path --rounds 1",), ("train", *STEPS)),
    **_accelerated("criteo", 5),
    **_accelerated("461", 5),
    "break-even": Part("break_even", 8, ("break_even",), ACCELERATED),
    "tenth-in-memory": Part("tiers-dim16", 9, ("tiers dim16",)),
    **{
        f"misses-{stream}": Part(f"misses-{stream}", 2, (f"misses {stream}",), ("engine",))
        for stream in ("zipf", "criteo", "drift")
    },
    **_ranks(),
    "prepare": Part("prepare", 3, ("prepare --rows 1000000 --rounds 3",), ("data",)),
    "loader": Part("loader", 5, ("loader --rounds 3",), ("data",)),
    "requests": Part("requests", 10, ("requests",), ("data", "models", "ops")),
    "serving": Part(
        "serving", 3, (f"serving make {FOLDER}", f"serving measure {FOLDER}"), ("serving", "models")
    ),
    "scoring": Part(
        "serving_core",
        10,
        (f"serving make {FOLDER} {SCORED}", f"serving core {FOLDER} {SCORED}"),
        ("serving", "models"),
    ),
    "event-to-score": Part(
        "freshness/figures/5000",
        5,
        ("freshness --rates 1000,5000,10000,20000",),
        ("serving", "data/streams", "train"),
    ),
    "click-log": Part(
        "click_log",
        6,
        ("click_log --rows 20000 --numbers", "click_log --rows 20000 50000 200000"),
        ("data", "train", "models"),
    ),
    "click-log-whole": Part(
        "click_log_whole",
        90,
        ("click_log --whole --rows 10000000",),
        ("data", "train", "models", "serving"),
        is_long=True,
    ),
    "machines": Part("machines/conditions", 8, ("machines",), RELIABLE),
    "boosting": Part(
        "boosting",
        30,
        (
            "boosting --arms ours --again",
            "boosting --arms lightgbm catboost --seeds 0 --again",
            "boosting --compare",
        ),
        ("train", "models"),
        is_long=True,
    ),
    "boosting-larger": Part(
        "boosting-larger",
        30,
        (
            "boosting --larger --arms ours once --seeds 1 2 --again",
            "boosting --larger --arms lightgbm --seeds 1 --again",
        ),
        ("train", "models"),
        is_long=True,
    ),
    "any-model": Part(
        "any_model/fuxictr/models/AFM", 45, ("any_model",), ("acceleration",), is_long=True
    ),
    "billion": Part(
        "tiers-billion-criteo", 60, ("tiers billion --streams criteo --seconds 3400",), is_long=True
    ),
    "prepare-bounded": Part(
        "prepare-bounded",
        30,
        (
            f"hotrows synth criteo --rows 84000000 --out {FOLDER}",
            f"prepare --raw {FOLDER}/train.txt --limit 2GiB",
        ),
        ("data",),
        is_long=True,
    ),
    "preemptions": Part(
        "preemptions/conditions", 180, ("preemptions --preemptions 300",), RELIABLE, is_long=True
    ),
    "faults": Part(
        "faults/campaigns/-1",
        60,
        ("tests.faults --minutes 60 --record benchmarks/results/faults.json",),
        RELIABLE,
        is_long=True,
    ),
    "fuzz": Part(
        "fuzz/runs/-1",
        30,
        ("tests.fuzz --seconds 1800 --record benchmarks/results/fuzz.json",),
        ("data", "serving", "storage"),
        is_long=True,
    ),
    "model-checker": Part(
        "model_checker/runs/-1",
        60,
        ("tests.model_checker --minutes 60 --record benchmarks/results/model_checker.json",),
        ("engine",),
        is_long=True,
    ),
}
# Figures of README.md that studies measured.
STUDIES = ("papers-scratchpipe", "papers-fae")


def chosen(names: Sequence[str], minutes: float | None, present: Mapping[str, bool]) -> list[str]:
    """The parts to run, in order: those named or all but long ones, without those that are `present`,
    as far as they fit into so many minutes."""
    parts, left = [], float("inf") if minutes is None else minutes
    for name in names or [name for name, part in PARTS.items() if not part.is_long]:
        if not present[name] and PARTS[name].minutes <= left:
            parts.append(name)
            left -= PARTS[name].minutes
    return parts


def is_present(part: Part) -> bool:
    """True if the record of a part is of a commit with the present code, and was made without changes."""
    origin = Origin(part.source, "")
    result.cache_clear()
    try:
        is_clean = not origin.known("uncommitted_changes")
        return is_clean and git("diff", "--quiet", origin.known("commit"), "--", *part.code) is not None
    except (OSError, KeyError):  # never measured
        return False


def is_newer(part: Part, commits: int | None) -> bool:
    """True if a part was measured at most so many commits ago."""
    measured = Origin(part.source, "").known("commit")
    count = git("rev-list", "--count", f"{measured}..HEAD") if commits is not None and measured else None
    return count is not None and int(count) <= commits


def age(part: Part) -> tuple[int, float] | None:
    """Commits since a part was measured that changed its packages, and the share of their lines that
    are new since; None where git does not know the part's commit."""
    commit = Origin(part.source, "").known("commit")
    paths = tuple(f"src/hotrows/{package}/" for package in part.packages)
    before = {old: f"src/hotrows/{new.replace('.', '/')}/" for old, new in MOVED.items()}
    moved = [
        f"src/hotrows/{old.replace('.', '/')}" for old, new in before.items() if new.startswith(paths)
    ]
    count = git("rev-list", "--count", f"{commit}..HEAD", "--", *paths, *moved)
    changes = git("diff", "--numstat", "-M", commit, "--", "src/hotrows")
    if count is None or changes is None:
        return None
    added = 0
    for line in changes.splitlines():
        new, _, file = line.split("\t")
        file = re.sub(r"\{.* => (.*)\}", r"\1", file).replace("//", "/")  # a file that was moved
        added += int(new) if new.isdigit() and file.startswith(paths) else 0
    files = [file for path in paths for file in (ROOT / path).rglob("*.py")]
    lines = sum(len(file.read_text().splitlines()) for file in files)
    return int(count), added / lines


def ended(program: list[str], seconds: float) -> int | None:
    """Runs a program; its status, or None where it took longer: then its own processes end, too."""
    running = subprocess.Popen(program, cwd=ROOT, start_new_session=True)
    try:
        return running.wait(seconds)
    except subprocess.TimeoutExpired:
        return None
    finally:
        with suppress(ProcessLookupError):
            os.killpg(running.pid, signal.SIGKILL)
        running.wait()


def run(name: str, part: Part) -> bool:
    """Runs the commands of a part, three times as long as expected at most; True if they ended well."""
    begin = time.monotonic()
    DATA.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=DATA) as folder:
        for command in part.commands:
            module, words = module_of(command), command.replace(FOLDER, folder).split()
            print(f"\n== {name}: python -m {module} {' '.join(words[1:])}", flush=True)
            left = 3 * 60 * part.minutes - (time.monotonic() - begin)
            program = [sys.executable, "-m", module, *words[1:]]
            status = ended(program, max(left, 1))
            if status != 0:
                what = f"more than {3 * part.minutes:g} minutes" if status is None else f"status {status}"
                print(f"{name}: {what}", flush=True)
                return False
    print(f"{name}: {time.monotonic() - begin:.0f} s", flush=True)
    return True


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--minutes", type=float, help="start only parts that fit into so long")
    parser.add_argument("--again", action="store_true", help="also what this commit has measured")
    parser.add_argument("--older", type=int, metavar="N", help="only what N commits have not measured")
    args = parser.parse_args()
    if unknown := set(args.parts) - set(PARTS):
        parser.error(f"no part {sorted(unknown)}; there are {', '.join(PARTS)}")
    now = conditions(2)
    if now["uncommitted_changes"]:
        parser.error("the tree has uncommitted changes; commit them, so that figures have a commit")
    present = {
        name: not args.again and (is_present(part) or is_newer(part, args.older))
        for name, part in PARTS.items()
    }
    parts = chosen(args.parts, args.minutes, present)
    failed = [name for name in parts if not run(name, PARTS[name])]
    done = [name for name, part in PARTS.items() if is_present(part)]
    print(f"\nmeasured at {str(now['commit'])[:8]}: {', '.join(done) or 'nothing'}")
    print(f"not yet: {', '.join(name for name in PARTS if name not in done) or 'nothing'}")
    print("\n".join(f"failed: {name}" for name in failed))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
