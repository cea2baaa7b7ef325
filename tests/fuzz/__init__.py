"""A fuzzer of what is read from files: `python -m tests.fuzz --count 1000000 [--target NAME] [--seed N]`.

The claim: whatever bytes stand in a raw file, in a prepared folder, in the state of a preparation that
was interrupted, in a schema file, in the settings of a training or in an archive, the library works or
raises one ValueError whose message is one line and names the file. It never raises anything else,
crashes, hangs, or takes memory without bound; and the native core and plain Python agree, on the rows
or on the message. Of `requests` it is that a server and readers of files make the same ids of a value,
of `answers` that a server answers what the run predicts, or one line.

A case is made of its target and seed alone: valid files, then damaged. Batches run in processes of
their own, so that one that dies names its seed; what was found is made smaller by halves and kept.
"""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path

from tests.fuzz.answers import make_answers, run_answers
from tests.fuzz.case import Broken, Case, Hang, Target, limited, reading_ahead, write_files
from tests.fuzz.foreign import make_archive, make_config, run_archive, run_config
from tests.fuzz.readers import (
    make_arrow,
    make_compressed,
    make_json_lines,
    make_orc,
    make_parquet,
    make_text,
    run_compressed,
    run_text,
)
from tests.fuzz.served import make_requests, run_requests
from tests.fuzz.stored import (
    make_manifest,
    make_schema,
    make_state,
    make_stored,
    run_schema,
    run_state,
    run_stored,
)

CASE_SECONDS = 20.0
TARGETS = {
    "text": Target(make_text, run_text),
    "compressed": Target(make_compressed, run_compressed),
    "parquet": Target(make_parquet, run_compressed),
    "arrow": Target(make_arrow, run_compressed),
    "orc": Target(make_orc, run_compressed),
    "json lines": Target(make_json_lines, run_compressed),
    "stored": Target(make_stored, run_stored),
    "manifest": Target(make_manifest, run_stored),
    "state": Target(make_state, run_state),
    "schema": Target(make_schema, run_schema),
    "config": Target(make_config, run_config),
    "archive": Target(make_archive, run_archive),
    "requests": Target(make_requests, run_requests),
    "answers": Target(make_answers, run_answers),
}


def check(target: str, seed: int, folder: Path) -> None:
    """Runs one case in a folder; raises Broken. The folder is emptied."""
    run_case(target, case_of(target, seed), folder)


def case_of(target: str, seed: int) -> Case:
    return TARGETS[target].make(random.Random(f"{target} {seed}"))


def run_case(target: str, case: Case, folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    before = Path.cwd()
    os.chdir(folder)  # names in messages and identities are the same wherever it runs
    try:
        write_files(case.files)
        with limited(CASE_SECONDS), reading_ahead(case.how.get("ahead", False)):
            TARGETS[target].run(case)
    except Hang:
        raise Broken(f"took more than {CASE_SECONDS:.0f} seconds") from None
    finally:
        os.chdir(before)
