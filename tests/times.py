"""How long tests take, from reports of pytest: `python -m tests.times 1.xml 2.xml 3.xml`.

Make three on a quiet machine of two cores: `python3 tasks.py test --long --junitxml=1.xml`, and so on.
This writes tests/times.json: of each test the seconds of all its cases and of the slowest one, in the
median of the reports, where that takes more than a tenth of a second. `tests/support/tiers.py` reads it.
"""

import argparse
import json
import statistics
import xml.etree.ElementTree as Tree
from collections import defaultdict
from pathlib import Path

from tests.support.tiers import LONG, ROOT, TIMES


def of_report(path):
    """{test: (seconds of all cases, seconds of the slowest)} of a report in JUnit's format."""
    cases = defaultdict(list)
    for case in Tree.parse(path).iter("testcase"):
        parts = case.get("classname", "").split(".")
        while parts and not (ROOT / f"{'/'.join(parts)}.py").exists():
            parts.pop()  # the names of classes
        if parts and case.find("skipped") is None:
            name = case.get("name").partition("[")[0]
            cases[f"{'/'.join(parts)}.py::{name}"].append(float(case.get("time")))
    return {test: (sum(times), max(times)) for test, times in cases.items()}


def merged(reports):
    """The medians of several reports."""
    tests = sorted(set().union(*reports))
    found = {test: [report[test] for report in reports if test in report] for test in tests}
    medians = {
        test: [round(statistics.median(part), 2) for part in zip(*times, strict=True)]
        for test, times in found.items()
    }
    return {test: times for test, times in medians.items() if times[0] >= 0.1}


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("reports", nargs="+", type=Path, help="reports of pytest --junitxml")
    times = merged([of_report(path) for path in parser.parse_args().reports])
    lines = [f"  {json.dumps(test)}: {json.dumps(seconds)}" for test, seconds in times.items()]
    TIMES.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    long = {test: total for test, (total, slowest) in times.items() if slowest > LONG}
    everything = sum(total for total, _ in times.values())
    print(f"{len(long)} of {len(times)} tests are of the second tier: {sum(long.values()):.0f} s")
    print(f"the others take {everything - sum(long.values()):.0f} s")


if __name__ == "__main__":
    main()
