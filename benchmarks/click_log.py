"""A click log, by the commands and the code of docs/tutorials/click_log.md: hotrows and LightGBM.

    python -m benchmarks.peers boosting                  # once: the environment of LightGBM
    python -m benchmarks.click_log
    python -m benchmarks.click_log --rows 200000 --numbers     # the same log without its ids
    python -m benchmarks.click_log --whole --rows 10000000     # from a CSV to a served score; an hour

Runs the blocks of the page in their order, with other numbers of rows. Seconds are those of the
processor, for `prepare` and `train` here, for fitting there; both use one thread.

With `--whole` both threads are used, and each arm is measured from the file to its scores: `hotrows`
(schema, prepare, train, export, the first score of a bundle), LightGBM by its defaults, and the `fit` of
FuxiCTR's DeepFM (`python -m benchmarks.peers ctr`), which reads arrays that hotrows prepared. Figures go
to results/click_log_whole.json.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks import user_path
from benchmarks.harness import ROOT, add, conditions, environment_of
from benchmarks.peers import RECIPES, python_of

NAME, QUESTION, PEERS = "click_log", __doc__.splitlines()[0], "boosting"
THREADS = 2  # of each arm, with --whole
COLUMNS = ("click", *(f"I{n}" for n in range(1, 14)), *(f"C{n}" for n in range(1, 27)))
SPLIT = ("--split", "position:0.8,0.1,0.1")
SCORE = """
from hotrows.serving import Scorer
print(Scorer("bundle").score([{"I1": 1.0, "C1": "never seen"}]))
"""
PAGE = ROOT / "docs" / "tutorials" / "click_log.md"


def main() -> None:
    parser = argparse.ArgumentParser(description=QUESTION)
    parser.add_argument("--rows", nargs="+", type=int, default=[50_000, 200_000, 1_000_000])
    parser.add_argument("--numbers", action="store_true", help="only the columns of numbers")
    parser.add_argument("--python", default=python_of(PEERS), help="that has LightGBM")
    parser.add_argument("--whole", action="store_true", help="from a CSV to a served score")
    parser.add_argument("--folder", type=Path, help="for the files of --whole, while it runs")
    parser.add_argument("--dry", action="store_true", help="write nothing")
    args = parser.parse_args()
    for rows in args.rows if args.whole else ():
        with tempfile.TemporaryDirectory(dir=args.folder) as folder:
            arms = whole(Path(folder), rows, args.python)
        facts = {"question": QUESTION, **conditions(THREADS), "peers": RECIPES[PEERS].installs[0]}
        if not args.dry:
            add("click_log_whole", ["rows", str(rows)], arms, facts)
    for rows in () if args.whole else args.rows:
        with tempfile.TemporaryDirectory() as folder:
            found = measure(Path(folder), rows, args.numbers, args.python)
        facts = {"question": QUESTION, **conditions(1), "peers": RECIPES[PEERS].installs[0]}
        if not args.dry:
            add(NAME, ["numbers" if args.numbers else "all", str(rows)], found, facts)
        print(rows, found, flush=True)


def measure(folder: Path, rows: int, only_numbers: bool, python: str) -> dict[str, Any]:
    """AUC, log loss and seconds of hotrows, and of LightGBM by default and tuned."""
    blocks = re.findall(r"^```(sh|python)\n(.*?)^```", PAGE.read_text(), re.S | re.M)
    _, make_log, prepare_and_train, _ = (code for language, code in blocks if language == "sh")
    make, boost = (code for language, code in blocks if language == "python")
    if only_numbers:
        make = make.replace("log.to_parquet", 'log[["click", *numbers]].to_parquet')
    (folder / "boosting.py").write_text(boost)
    run(folder, "sh", "-ec", make_log.replace("200000", str(rows)))
    run(folder, python, "-c", make)
    before = processor_seconds()
    said = run(folder, "sh", "-ec", prepare_and_train)
    test = re.search(r"test +AUC ([\d.]+) +log loss ([\d.]+)", said)
    assert test is not None, said
    seconds = round(processor_seconds() - before, 1)
    found: dict[str, Any] = {"hotrows": [float(test[1]), float(test[2]), seconds]}
    said = run(folder, python, "boosting.py")
    for line in re.findall(r"^(\w+): AUC ([\d.]+), log loss ([\d.]+), ([\d.]+) s", said, re.M):
        found[f"LightGBM, {line[0]}"] = [float(value) for value in line[1:]]
    return found


def whole(folder: Path, rows: int, python: str) -> dict[str, Any]:
    """Of each arm: seconds, seconds of the processor, peak memory, test AUC; and seconds by step."""
    hotrows, csv = [sys.executable, "-m", "hotrows"], "clicks.csv"
    run(folder, *hotrows, "synth", "criteo", "--rows", str(rows), "--out", "log")
    run(folder, "sh", "-ec", f"(echo {','.join(COLUMNS)}; tr '\\t' , < log/train.txt) > {csv}")
    steps = {
        "schema": [*hotrows, "schema", csv, "--out", "clicks.json"],
        "prepare": [*hotrows, "prepare", csv, "--schema", "clicks.json", *SPLIT, "--out", "clicks"],
        "train": [*hotrows, "train", "clicks", "--run", "run"],
        "export": [*hotrows, "export", "run", "--format", "onnx", "--out", "bundle"],
        "score": [sys.executable, "-c", SCORE],
    }
    done = {step: measured(folder, command) for step, command in steps.items()}
    test = re.search(r"test +AUC ([\d.]+)", done["train"]["printed"])
    arms = {"hotrows": {**summed(done), "auc": float(test[1]) if test else None}}
    boosted = [python, str(ROOT / "benchmarks" / "arms" / "boosted_log.py"), csv, str(THREADS)]
    arms["LightGBM, default"] = of_peer(measured(folder, boosted))
    # Not counted: the arrays that FuxiCTR reads, which have the same rows in each part.
    run(folder, *hotrows, "prepare", "log/train.txt", "--schema", "criteo", *SPLIT, "--out", "data")
    user_path.write_arrays(folder)
    fit = "-W ignore -m benchmarks.arms.user_path fuxictr"
    fuxictr = [str(python_of("ctr")), *fit.split(), str(folder.absolute()), "deepfm", "4096"]
    arms["FuxiCTR's fit"] = of_peer(measured(ROOT, fuxictr))
    for arm, figures in arms.items():
        print(f"{rows:,} rows, {arm}: {figures}", flush=True)
    return arms


def measured(folder: Path, command: list[str]) -> dict[str, Any]:
    """Of a command: seconds, seconds of the processor, peak memory of a process, and what it printed."""
    begin = time.monotonic()
    with tempfile.TemporaryFile("w+") as out:
        process = subprocess.Popen(command, cwd=folder, env=environment_of(THREADS), stdout=out)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        return {
            "seconds": round(time.monotonic() - begin, 1),
            "cpu_seconds": round(used.ru_utime + used.ru_stime, 1),
            "peak_mb": round(used.ru_maxrss / 1024),
            "status": process.returncode,
            "printed": out.read(),
        }


def summed(steps: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The figures of commands one after the other, of which each must have ended well."""
    failed = [step for step, figures in steps.items() if figures["status"]]
    assert not failed, failed
    sums = {key: round(sum(f[key] for f in steps.values()), 1) for key in ("seconds", "cpu_seconds")}
    peak = max(figures["peak_mb"] for figures in steps.values())
    return {**sums, "peak_mb": peak, "steps": {step: f["seconds"] for step, f in steps.items()}}


def of_peer(figures: dict[str, Any]) -> dict[str, Any]:
    """Figures of a process whose last line is JSON; a peer may fail, for example for want of memory."""
    printed, status = figures.pop("printed"), figures.pop("status")
    if status:
        return {**figures, "error": f"exit status {status}"}
    return {**figures, "auc": round(json.loads(printed.splitlines()[-1])["auc"], 6)}


def run(folder: Path, *command: str) -> str:
    paths = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**environment_of(1), "PATH": paths}
    done = subprocess.run(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True, check=True
    )
    return done.stdout


def processor_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
