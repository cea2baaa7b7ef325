"""What do the three papers claim, and what does hotrows reach? In parts of minutes.

    python -m benchmarks.papers --list                 # what has run, and what is pending
    python -m benchmarks.papers                        # the pending parts of all three
    python -m benchmarks.papers fae --only skew speed --again
    python -m benchmarks.papers --quick                # the logic of every part, in seconds
    python -m benchmarks.papers --tables               # prints what the results have

Every part writes results/papers-PAPER.json whenever it has found something; a cut one goes on where it
was, and says so of arms that earlier code has measured. docs/evidence/papers.md has the findings. A
part that ran on this commit and machine in this setting is not run again. With --quick nothing is
written unless --out says where.
"""

import argparse
import sys
from pathlib import Path

import torch

from benchmarks.gpu_parts.part import Findings, read, run_part
from benchmarks.harness import RESULTS
from benchmarks.papers import fae, picasso, scratchpipe
from benchmarks.papers.part import Paper, Setting
from benchmarks.peers import python_of
from benchmarks.pictures import OUT as PICTURES

PAPERS = {paper.name: paper for paper in (picasso.PAPER, scratchpipe.PAPER, fae.PAPER)}
DEVICES = ("cpu", "cuda")
NOT_YET = "Not measured yet: `python -m benchmarks.papers {} --only {}`."


def main(argv: list[str] | None = None) -> int:
    """Returns how many parts went wrong."""
    args = _arguments(argv)
    papers = [PAPERS[name] for name in args.papers or PAPERS]
    out = args.out or (None if args.quick else RESULTS)
    pictures = PICTURES if out == RESULTS else out
    setting = Setting(args.device, args.quick, pictures=pictures, tensorflow=args.tensorflow)
    wrong = 0
    for paper in papers:
        path = None if out is None else results_of(paper, setting.device, out)
        if args.list:
            print(listed(paper, read(path or results_of(paper, setting.device)), setting))
            continue
        if args.tables:
            print(
                "\n\n".join(f"## {paper.name} {name}\n\n{text}" for name, text in tables(paper).items())
            )
            continue
        for name in args.only or paper.parts:
            if name in paper.parts:
                wrong += not _run(paper, name, setting, path, args.again)
    return wrong


def results_of(paper: Paper, device: str, folder: Path | None = None) -> Path:
    """The file of a paper's results on a device."""
    name = f"papers-{paper.name}" + ("" if device == "cpu" else f"-{device}")
    return (folder or RESULTS) / f"{name}.json"


def _run(paper: Paper, name: str, setting: Setting, path: Path | None, again: bool) -> bool:
    """Runs a part unless it has run; whether all went well."""
    part = paper.parts[name]
    if setting.device not in part.devices:
        print(f"{paper.name} {name}: runs on {', '.join(part.devices)}, not on {setting.device}")
        return True
    findings = Findings(name, part.question, setting, path)
    earlier = {} if path is None or again else read(path).get(name, {})
    if has_run(earlier, findings.record()):
        print(f"{paper.name} {name}: has run; --again runs it once more")
        return True
    if earlier:
        findings.go_on_from(earlier, keep_older=not earlier["complete"])
    return run_part(findings, part.run)


def has_run(earlier: dict, now: dict) -> bool:
    """Whether a part ran to its end at this commit, on this machine, in this setting."""
    same = earlier and all(earlier[key] == now[key] for key in ("setting", "commit", "machine"))
    return bool(same and earlier["complete"])


def tables(paper: Paper) -> dict[str, str]:
    """The tables of each part, one for each device, and under them where and when they were measured."""
    by_device = [read(results_of(paper, device)) for device in DEVICES]
    made = {}
    for name, part in paper.parts.items():
        records = [records[name] for records in by_device if records.get(name, {}).get("arms")]
        found = [f"{part.table(record['arms'])}\n\n{_measured(record)}" for record in records]
        made[name] = "\n\n".join(found) or NOT_YET.format(paper.name, name)
    return made


def _measured(record: dict) -> str:
    machine, failed = record["machine"], [c for c, s in record["checks"].items() if s != "passed"]
    words = [
        f"*{record['date'][:10]}, commit {(record['commit'] or 'unknown')[:12]}",
        record.get("gpu", {}).get("name") or f"{machine['cores']} cores of {machine['cpu']}",
        f"load {record['load']} when it began",
        *([f"{record['seconds']:,.0f} s"] if "seconds" in record else []),
        *(
            ["some arms by earlier code"]
            if any("source" in arm for arm in record["arms"].values())
            else []
        ),
        *([] if record["complete"] else ["cut: some arms are missing"]),
        *([f"checks that failed: {'; '.join(failed)}"] if failed else []),
    ]
    return ", ".join(words) + ".*"


def listed(paper: Paper, records: dict[str, dict], setting: Setting) -> str:
    lines = [f"{paper.name}: {paper.title}"]
    for name, part in paper.parts.items():
        state, record = "pending", records.get(name)
        if record:
            now = Findings(name, part.question, setting, None).record()
            state = "done" if has_run(record, now) else "done elsewhere" if record["complete"] else "cut"
            state += f", {len(record['arms'])} arms, commit {(record['commit'] or 'unknown')[:12]}"
            state += f", {record['seconds']:,.0f} s" if "seconds" in record else ""
            state += f", {record['error']}" if record["error"] else ""
        lines.append(f"  {name:16} {state:46} {part.question}")
    return "\n".join(lines)


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.papers", description=__doc__.splitlines()[0])
    parser.add_argument("papers", nargs="*", metavar="PAPER", help=", ".join(PAPERS))
    parser.add_argument("--device", default="cpu", choices=DEVICES)
    parser.add_argument("--quick", action="store_true", help="tiny sizes; nothing is written")
    parser.add_argument("--only", nargs="+", metavar="PART", help="only these parts")
    parser.add_argument("--again", action="store_true", help="run parts that have run")
    parser.add_argument("--list", action="store_true", help="which parts have run")
    parser.add_argument("--tables", action="store_true", help="print the tables of the results")
    parser.add_argument("--out", type=Path, help="folder of the JSON; default: results/")
    parser.add_argument(
        "--tensorflow",
        metavar="PYTHON",
        default=_tensorflow(),
        help="an interpreter with tensorflow-cpu and tf-keras, for TensorFlow's arm; default: what "
        "`python -m benchmarks.peers tensorflow` has made, if it has",
    )
    args = parser.parse_args(argv)
    if unknown := set(args.papers) - set(PAPERS):
        parser.error(f"no paper {', '.join(sorted(unknown))}; there are {', '.join(PAPERS)}")
    chosen = {part for name in args.papers or PAPERS for part in PAPERS[name].parts}
    if unknown := set(args.only or ()) - chosen:
        parser.error(f"no part {', '.join(sorted(unknown))}; there are {', '.join(sorted(chosen))}")
    if args.device == "cuda" and not torch.cuda.is_available():
        parser.error("PyTorch sees no GPU; leave out --device")
    return args


def _tensorflow() -> str | None:
    python = python_of("tensorflow")
    return str(python) if python.exists() else None


if __name__ == "__main__":
    sys.exit(main())
