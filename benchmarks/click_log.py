"""A click log, by the commands and the code of docs/tutorials/click_log.md: hotrows and LightGBM.

    python -m benchmarks.peers boosting                  # once: the environment of LightGBM
    python -m benchmarks.click_log
    python -m benchmarks.click_log --rows 200000 --numbers     # the same log without its ids

Runs the blocks of the page in their order, with other numbers of rows. Seconds are those of the
processor, for `prepare` and `train` here, for fitting there; both use one thread.
"""

from __future__ import annotations

import argparse
import os
import re
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.harness import ROOT, add, conditions, environment_of
from benchmarks.peers import RECIPES, python_of

NAME, QUESTION, PEERS = "click_log", __doc__.splitlines()[0], "boosting"
PAGE = ROOT / "docs" / "tutorials" / "click_log.md"


def main() -> None:
    parser = argparse.ArgumentParser(description=QUESTION)
    parser.add_argument("--rows", nargs="+", type=int, default=[50_000, 200_000, 1_000_000])
    parser.add_argument("--numbers", action="store_true", help="only the columns of numbers")
    parser.add_argument("--python", default=python_of(PEERS), help="that has LightGBM")
    args = parser.parse_args()
    for rows in args.rows:
        with tempfile.TemporaryDirectory() as folder:
            found = measure(Path(folder), rows, args.numbers, args.python)
        facts = {"question": QUESTION, **conditions(1), "peers": RECIPES[PEERS].installs[0]}
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
