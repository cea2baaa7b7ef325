"""Writes the tables of docs/evidence/, and of two other pages, between their markers.

python -m benchmarks.evidence
"""

import argparse
import sys

from benchmarks.evidence import claims, papers, performance, quality, reliability, studies
from benchmarks.evidence.records import Table
from benchmarks.harness import ROOT
from benchmarks.markdown import put

DOCS = ROOT / "docs"
PAGES: dict[str, list[Table]] = {
    "evidence/index.md": [claims.TABLE, studies.TABLE],
    "evidence/performance.md": performance.TABLES,
    "evidence/quality.md": quality.TABLES,
    "evidence/reliability.md": reliability.TABLES,
    "evidence/papers.md": papers.TABLES,
    "reference/models.md": quality.MODEL_TABLES,
    "tutorials/click_log.md": quality.CLICK_LOG,
}


def main() -> int:
    argparse.ArgumentParser(prog="benchmarks.evidence", description=__doc__).parse_args()
    for page, tables in PAGES.items():
        put(DOCS / page, {table.name: table.text() for table in tables})
    return 0


if __name__ == "__main__":
    sys.exit(main())
