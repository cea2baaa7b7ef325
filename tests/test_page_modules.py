"""Every module that a page tells the reader to run starts: its `--help` ends with 0."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import hotrows
from tests.support.page_code import PAGES, ROOT

# Runs each in one process: what they import is then imported once.
HELP = """
import contextlib, io, json, runpy, sys
failed = {}
for module in sys.argv[1:]:
    sys.argv = [module, "--help"]
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as end:
        code = end.code
    except BaseException as error:
        code = repr(error)
    if code not in (0, None) or "--help" not in printed.getvalue():
        failed[module] = f"{code}: {printed.getvalue()[:200]}"
print(json.dumps(failed))
"""


# After `-m`, or in the columns of commands that leave it out; scripts at an older commit are not here.
COMMAND = re.compile(r"(?:-m |`)((?:benchmarks|tests)\.[\w.]*\w)(?![^`\n]*` at `)")


def test_every_module_that_a_page_names_starts():
    """Four did not: what they imported had moved, and nobody had run them since."""
    text = "".join(page.read_text() for page in PAGES)
    named = sorted(set(COMMAND.findall(text)))
    assert len(named) > 40 and "benchmarks.break_even" in named
    # The package of this process: a source tree without a native core cannot start them.
    package = Path(hotrows.__file__).parents[1]
    environment = {**os.environ, "PYTHONPATH": f"{package}{os.pathsep}{ROOT}"}
    done = subprocess.run(
        [sys.executable, "-c", HELP, *named], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == {}
