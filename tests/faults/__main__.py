"""All faults there are: `python -m tests.faults [FOLDER]`, about twenty minutes on two cores.

Every stage on two and on four ranks, hangs and errors in every stage, full disks, torchrun, and two
hosts with one and with two ranks each. Prints a line per case; exits with 1 where one fell short.
"""

from __future__ import annotations

import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.faults import cases, jobs, network, torchruns
from tests.faults.inject import Fault

_EACH_KIND = ("planning", "planned", "rows", "forward", "backward", "gradients", "update", "writing")


def on_one_host(data: Path, folder: Path) -> Iterator[tuple[str, Callable[[], object]]]:
    """The name of every case, and what runs it."""
    number = 0

    def case_of(what, num_ranks: int, fault: Fault):
        nonlocal number
        number += 1
        run = folder / f"run-{number}"
        return f"{num_ranks} ranks: {fault}", lambda: what(data, run, num_ranks, fault)

    for num_ranks in (2, 4):
        last = num_ranks - 1
        for fault in cases.kills(num_ranks):
            yield case_of(cases.a_rank_is_killed, num_ranks, fault)
        for stage in _EACH_KIND:
            yield case_of(cases.a_rank_raises, num_ranks, Fault("raise", stage, last, 3))
            yield case_of(cases.a_rank_hangs, num_ranks, Fault("stop", stage, last, 3))
        yield case_of(cases.a_rank_lags, num_ranks, Fault("lag", "forward", last))
        yield case_of(cases.a_rank_lags, num_ranks, Fault("lag", "planning", 0))
        yield case_of(cases.a_disk_is_full, num_ranks, Fault("full", "writing", last, 3))
        yield f"{num_ranks} ranks: full disk", lambda n=num_ranks: full_disk(data, folder, n)
        yield f"{num_ranks} ranks: --max-restarts", lambda n=num_ranks: restarts(data, folder, n)


def full_disk(data: Path, folder: Path, num_ranks: int) -> None:
    with cases.small_disk(folder / f"disk-{num_ranks}") as disk:
        fault = Fault("fill", "writing", num_ranks - 1, 3, path=str(disk / "ballast"))
        cases.a_disk_is_full(data, disk / "run", num_ranks, fault)


def restarts(data: Path, folder: Path, num_ranks: int) -> None:
    faults = (
        Fault("kill", "forward", num_ranks - 1, 5),
        Fault("kill", "written", 0, 2, attempt=1),
        Fault("kill", "evaluation", 1, 1, attempt=2),
    )
    run = folder / f"restarts-{num_ranks}"
    code, said = torchruns.on_this_host(data, run, num_ranks, "--max-restarts", "3", faults=faults)
    assert code == 0, said
    assert jobs.checksums(run) == cases.undisturbed(data, num_ranks)


def on_two_hosts(data: Path, folder: Path) -> Iterator[tuple[str, Callable[[], object]]]:
    for per_host in (1, 2):
        for what in (
            network.a_short_cut_is_waited_out,
            network.a_short_cut_is_a_restart,
            network.a_cut_for_good_ends_the_ranks,
        ):
            name = what.__name__.replace("_", " ")
            run = folder / f"{what.__name__}-{per_host}"

            def case(what=what, run=run, per_host=per_host) -> None:
                with torchruns.two_hosts() as hosts:
                    what(data, run, hosts, per_host)

            yield f"2 hosts of {per_host} ranks: {name}", case


def main(folder: Path) -> int:
    data = cases.tiny_data(folder)
    failed = 0
    for name, case in (*on_one_host(data, folder), *on_two_hosts(data, folder)):
        begun = time.monotonic()
        try:
            case()
            result = "ok"
        except PermissionError as error:
            result = f"not run: {error}"
        except Exception:
            failed += 1
            result = f"FAILED\n{traceback.format_exc()}"
        print(f"{time.monotonic() - begun:6.1f} s  {name}: {result}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        sys.exit(main(Path(sys.argv[1] if len(sys.argv) > 1 else temporary)))
