"""Compares arms side by side: in turn, over several rounds, each time in a process of its own.

    round 1: A B C    round 2: A B C    round 3: A B C

A machine drifts: other load, clock rates, memory. Arms that run in turn drift together, so what is
compared is always two runs of one round; the figures are medians over the rounds. A round in which
other programs took more than `QUIET` cores beside an arm is marked, left out of medians and ratios, and
repeated, until there are twice the rounds asked for. All arms get the same settings of threads.
"""

import argparse
import fcntl
import functools
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.peers import python_of

ROOT = Path(__file__).parent.parent
RESULTS = Path(__file__).parent / "results"
OURS = "ours"  # the environment that runs this script
TIMEOUT = 1200  # seconds for one arm in one round
QUIET = 0.12  # cores that other programs may take in a round that counts
PACKAGES = ("hotrows", "torch", "numpy", "pyarrow")
UNCOUNTED = (":!benchmarks/results", ":!docs/pictures")  # what benchmarks write


@dataclass(frozen=True)
class Arm:
    environment: str
    module: str  # in benchmarks/arms
    arguments: str = ""
    note: str = ""  # how it differs from what it is compared with


ARMS = {
    "hotrows": Arm(OURS, "hotrows_arm"),
    "hotrows-inline": Arm(OURS, "hotrows_arm", "--plan inline", "plans in the step itself"),
    "plain-torch": Arm(OURS, "plain_torch"),
    "fbgemm": Arm("torchrec", "fbgemm", "--api tbe"),
    "torchrec": Arm("torchrec", "fbgemm", "--api torchrec"),
    "glued": Arm("torchrec", "glued"),
    "tensorflow": Arm("tensorflow", "tensorflow"),
    "deepctr-torch": Arm("ctr", "ctr_libraries", "--library deepctr-torch", "dense Adam"),
    "fuxictr": Arm("ctr", "ctr_libraries", "--library fuxictr", "dense Adam"),
    "torch-rechub": Arm("ctr", "ctr_libraries", "--library torch-rechub", "dense Adam"),
}


@dataclass(frozen=True)
class Comparison:
    """One setting, and the peers that can run it; hotrows always can."""

    setting: str  # arguments of every arm
    peers: tuple[str, ...]
    baseline: str = "plain-torch"
    ours: tuple[str, ...] = ("hotrows",)

    @property
    def arms(self) -> tuple[str, ...]:
        return (*self.ours, *self.peers)


def main(question: str, comparisons: dict[str, Comparison], known: Mapping[str, Arm] = ARMS) -> None:
    """The command line of a benchmark: runs, prints and writes its comparisons, one by one.

    known: the arms that there are, by name.
    """
    benchmark = Path(sys.argv[0]).stem
    args = _arguments(question, comparisons, known)
    for name in args.comparisons or comparisons:
        comparison = comparisons[name]
        arms = [arm for arm in comparison.arms if not args.arms or arm in args.arms]
        print(f"\n{benchmark}-{name}: {comparison.setting}, {args.threads} threads", flush=True)
        setting = (
            f"{comparison.setting} --threads {args.threads}"
            f" --windows {args.windows} --max-seconds {args.max_seconds}"
        )
        rounds = run(arms, setting, args.rounds, args.threads, known)
        figures = summarize(rounds, args.baseline or comparison.baseline, known)
        print(table(figures))
        if not args.quick:
            facts = {"question": question, "setting": setting, "num_rounds": args.rounds}
            write(f"{benchmark}-{name}", facts | conditions(args.threads) | {"arms": figures})


def run(
    arms: Iterable[str], setting: str, num_rounds: int, threads: int, known: Mapping[str, Arm] = ARMS
) -> dict[str, list[dict]]:
    """Each arm's figures, round by round, until as many rounds were quiet, twice as many at most.

    An arm that fails is left out of later rounds. Figures of a disturbed round say so.
    """
    rounds = {arm: [] for arm in arms}
    number = num_quiet = 0
    while num_quiet < num_rounds and number < 2 * num_rounds:
        number += 1
        measured = []
        for arm, figures in rounds.items():
            if any("error" in seen for seen in figures):
                continue
            figures.append(_measure(known[arm], setting, threads))
            speed = figures[-1].get("samples_per_s")
            outcome = figures[-1]["error"] if speed is None else f"{speed:,.0f} samples/s"
            print(f"  round {number}: {arm}: {outcome}", flush=True)
            measured += [] if speed is None else [figures[-1]]
        if not measured:
            break
        others = max(figures["other_cores"] for figures in measured)
        if others <= QUIET:
            num_quiet += 1
            continue
        print(f"  round {number}: others used {others:.2f} cores; it does not count", flush=True)
        for figures in measured:
            figures["disturbed"] = True
    return rounds


def summarize(
    rounds: dict[str, list[dict]], baseline: str, known: Mapping[str, Arm] = ARMS
) -> dict[str, dict]:
    """The medians over the quiet rounds, over all where none was; `ratio` is the median of the speeds
    relative to the baseline's.

    speeds of a = [10, 20], of the baseline = [5, 20]  ->  a's ratio is the median of [2, 1], 1.5
    """
    return {
        arm: asdict(known[arm]) | _medians(figures, rounds.get(baseline, [])) | {"rounds": figures}
        for arm, figures in rounds.items()
    }


def table(figures: dict[str, dict]) -> str:
    width = max(14, *map(len, figures))
    speed = f"{'samples/s':>11} {'(lowest - highest)':>21}"
    lines = [f"{'arm':{width}} {speed} {'ms':>9} {'ratio':>6} {'MB':>7}"]
    for arm, row in figures.items():
        if "error" in row:
            lines.append(f"{arm:{width}} failed: {row['error']}")
            continue
        spread = f"({row['samples_per_s_lowest']:,.0f} - {row['samples_per_s_highest']:,.0f})"
        ratio = "-" if row["ratio"] is None else f"{row['ratio']:.2f}"
        busy = "" if row["quiet_rounds"] else f"no quiet round: {row['other_cores']:.2f} cores of others"
        lines.append(
            f"{arm:{width}} {row['samples_per_s']:11,.0f} {spread:>21} {row['ms']:9.1f} {ratio:>6}"
            f" {row['peak_rss_mb']:7,.0f}  {'; '.join(filter(None, [row['note'], busy]))}".rstrip()
        )
        if "wire_mb" in row:
            messages = f", {row['collectives']:.1f} collectives" if "collectives" in row else ""
            lines[-1] += (
                f"  loopback {row['wire_mb']:.1f} MB in {row['wire_packets']:,.0f} packets"
                f"{messages} a step"
            )
    return "\n".join(lines)


def conditions(threads: int) -> dict:
    """Where and when: what a figure means nothing without."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "commit": git("rev-parse", "HEAD"),
        "uncommitted_changes": bool(git("status", "--porcelain", *UNCOUNTED)),
        "machine": {
            "cpu": _cpu(),
            "cores": os.cpu_count(),
            "memory_gib": round(memory / 2**30, 1),
            "system": platform.system(),
        },
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in PACKAGES},
        "threads": threads,
        "omp_wait_policy": os.environ.get("OMP_WAIT_POLICY", "default"),
    }


def stored(name: str) -> dict[str, Any]:
    """The result that a benchmark wrote before; empty if there is none."""
    path = RESULTS / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else {}


def add(name: str, keys: Sequence[str], figures: Any, facts: dict[str, Any]) -> None:
    """Writes figures below the keys of the stored result, with new facts; processes may add at once."""
    folder = os.open(RESULTS, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        place = result = stored(name)
        for key in keys[:-1]:
            place = place.setdefault(key, {})
        place[keys[-1]] = figures
        write(name, {**facts, **{key: result[key] for key in result if key not in facts}})
    finally:
        os.close(folder)


def measured(name: str, keys: Sequence[str]) -> Any:
    """The figures below the keys of the stored result; None where there are none."""
    place: Any = stored(name)
    for key in keys:
        place = (place or {}).get(key)
    return place


def write(name: str, result: dict) -> None:
    write_to(RESULTS / f"{name}.json", result)


def write_to(path: Path, result: dict) -> None:
    """Writes aside and renames, so that a result is whole or absent; says which one it replaces."""
    before = json.loads(path.read_text()) if path.exists() else {}
    if before.get("commit") != result.get("commit"):
        of = f"{before.get('date', 'an unknown day')} at {str(before.get('commit'))[:8]}"
        print(f"{path.name} replaces the result of {of}" if before else f"{path.name} is new", flush=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_suffix(".json.partial")
    aside.write_text(json.dumps(result, indent=1) + "\n")
    aside.replace(path)


def _arguments(
    question: str, comparisons: dict[str, Comparison], known: Mapping[str, Arm]
) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=question)
    parser.add_argument("comparisons", nargs="*", metavar="COMPARISON", help=", ".join(comparisons))
    parser.add_argument("--arms", nargs="+", choices=known, help="only these")
    parser.add_argument("--baseline", choices=known, help="of the ratios; default: the comparison's")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--windows", type=int, default=5, help="measured in each round")
    parser.add_argument("--max-seconds", type=float, default=60, help="of waiting for quiet ones")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--quick", action="store_true", help="one short round; nothing is written")
    args = parser.parse_args()
    if unknown := set(args.comparisons) - set(comparisons):
        parser.error(f"no comparison {sorted(unknown)}; there are {', '.join(comparisons)}")
    if args.quick:
        args.rounds, args.windows, args.max_seconds = 1, 2, 5
    return args


def _measure(arm: Arm, setting: str, threads: int) -> dict:
    python = sys.executable if arm.environment == OURS else python_of(arm.environment)
    if not Path(python).exists():
        return {"error": f"run `python -m benchmarks.peers {arm.environment}` first"}
    command = f"-m benchmarks.arms.{arm.module} {arm.arguments} {setting}".split()
    environment = environment_of(threads)
    try:
        done = subprocess.run(
            [python, "-W", "ignore", *command],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
        )
    except subprocess.TimeoutExpired:
        return {"error": f"took more than {TIMEOUT} s"}
    if done.returncode:
        last_line = (done.stderr.strip().splitlines() or ["no message"])[-1]
        message = last_line.replace(f"{python}: ", "").replace(f"{ROOT}/", "")  # no local paths
        return {"error": f"exit status {done.returncode}: {message}"}
    return json.loads(done.stdout.splitlines()[-1])


def environment_of(threads: int) -> dict[str, str]:
    """The environment of every arm: hotrows' own choice of how long threads spin is all others', too."""
    spins = {} if "OMP_WAIT_POLICY" in os.environ else {"GOMP_SPINCOUNT": "3000"}
    return spins | os.environ | {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}


def _medians(figures: list[dict], baseline: list[dict]) -> dict:
    for seen in figures:
        if "error" in seen:
            return {"error": seen["error"]}
    num_quiet = sum(not seen.get("disturbed") for seen in figures)
    counted = [n for n, seen in enumerate(figures) if not num_quiet or not seen.get("disturbed")]
    bases = [baseline[n].get("samples_per_s") if n < len(baseline) else None for n in counted]
    figures = [figures[n] for n in counted]
    speeds = [seen["samples_per_s"] for seen in figures]
    ratios = [speed / base for speed, base in zip(speeds, bases, strict=True) if base]
    return {
        "samples_per_s": median(speeds),
        "samples_per_s_lowest": min(speeds),
        "samples_per_s_highest": max(speeds),
        "ms": median(seen["ms"] for seen in figures),
        "ratio": median(ratios) if ratios else None,
        "peak_rss_mb": max(seen["peak_rss_mb"] for seen in figures),
        "other_cores": max(seen["other_cores"] for seen in figures),
        "quiet_rounds": num_quiet,
    } | {
        name: median(seen[name] for seen in figures)
        for name in ("wire_mb", "wire_packets", "collectives")  # of one step; arms of several ranks
        if name in figures[0]
    }


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


@functools.cache
def git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)
    except FileNotFoundError:
        return None
    return None if done.returncode else done.stdout.strip()


def _cpu() -> str:
    if Path("/proc/cpuinfo").exists():
        facts = dict(
            line.replace("\t", "").split(":", 1)
            for line in Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines()
        )
        model = facts.get("model name", platform.machine()).strip()
        return f"{model}, family{facts.get('cpu family', '')} model{facts.get('model', '')}"
    return platform.processor()
