"""The core's tests under a sanitizer: python -m tests.sanitizers address|undefined|thread [TESTS ...]"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import click

from tests import sanitizers

# All tests that call the core, but for those that bound the addresses of a process, of which a sanitizer
# takes terabytes, those that measure, and Triton's, which its interpreter runs.
TESTS = ["tests/ops", "tests/nn", "tests/planning", "tests/storage", "tests/engine", "tests/data",
         "tests/runtime", "tests/models", "tests/pipeline", "--ignore=tests/ops/triton"]  # fmt: skip


@click.command(help=__doc__, context_settings={"ignore_unknown_options": True})
@click.argument("kind", type=click.Choice(["address", "undefined", "thread"]))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def main(kind: str, arguments: tuple[str, ...]) -> None:
    if (reason := sanitizers.why_not(kind)) is not None:
        raise click.ClickException(reason)
    with tempfile.TemporaryDirectory(prefix=f"hotrows-{kind}-") as folder:
        reports = Path(folder) / "reports"
        print("building the core", flush=True)
        package = sanitizers.copy_package(kind, Path(folder))
        environment = sanitizers.environment(kind, reports, package)
        # Hypothesis' profile for slow machines has no deadlines.
        pytest = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "--hypothesis-profile", "ci"]
        pytest += ["--capture=sys"]  # what a check of the core says goes out with the process
        pytest += arguments or TESTS
        code = subprocess.run(
            sanitizers.command(kind, *pytest), cwd=sanitizers.ROOT, env=environment
        ).returncode
        found = sanitizers.found(reports)
    print(*found, f"{len(found)} processes with findings", sep="\n")
    sys.exit(1 if found else code)


if __name__ == "__main__":
    main()
