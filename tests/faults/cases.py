"""The cases on one host: a job with a fault, and what must hold of it.

Each case is a job that is struck, looked at, and gone on with.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from hotrows.data import prepare
from tests.faults import jobs
from tests.faults.inject import Fault
from tests.support.runs import schema, write_rows

SECONDS = 20  # within which the ranks that are left must end


def tiny_data(folder: Path) -> Path:
    """Prepared data of 16 batches of 50."""
    raw = write_rows(folder / "raw.csv", 1310)
    return prepare([raw], schema(), folder / "enc", split="position:0.6,0.2,0.2").path


@cache
def undisturbed(data: Path, num_ranks: int) -> dict[str, int]:
    """What a run ends with that nothing happens to."""
    run = data.parent / f"undisturbed-{num_ranks}"
    ended = jobs.train(data, run, num_ranks)
    assert not ended.failed, ended
    return jobs.checksums(run)


def a_rank_is_killed(data: Path, run: Path, num_ranks: int, fault: Fault) -> None:
    ended = jobs.train(data, run, num_ranks, faults=(fault,))
    assert ended.codes[fault.rank] == -9, ended
    assert ended.seconds < SECONDS, ended
    others_say(ended, num_ranks, fault.rank, r"(lost another|waited more than|did not meet)")
    goes_on(data, run, num_ranks)


def a_rank_raises(data: Path, run: Path, num_ranks: int, fault: Fault) -> None:
    ended = jobs.train(data, run, num_ranks, faults=(fault,))
    line = ended.said[fault.rank].splitlines()[_before(ended.said[fault.rank])]
    said = rf"hotrows: rank {fault.rank}: \S*inject.py line \d+: RuntimeError: this {fault.stage} failed"
    assert re.match(said, line), line  # an error in the code of a model's author
    assert ended.seconds < SECONDS and ended.codes == (1,) * num_ranks, ended
    others_say(ended, num_ranks, fault.rank, "lost another")
    goes_on(data, run, num_ranks)


def a_rank_hangs(data: Path, run: Path, num_ranks: int, fault: Fault, timeout: float = 5) -> None:
    """It is silent for good; its connections stay."""
    ended = jobs.train(data, run, num_ranks, faults=(fault,), timeout=timeout)
    assert ended.codes[fault.rank] is None, ended
    assert ended.seconds < timeout + 5, ended
    others_say(ended, num_ranks, fault.rank, rf"(waited more than {timeout:g} s.*--timeout|lost another)")
    assert any(f"waited more than {timeout:g} s" in said for said in ended.said)
    goes_on(data, run, num_ranks)


def a_rank_lags(data: Path, run: Path, num_ranks: int, fault: Fault) -> None:
    ended = jobs.train(data, run, num_ranks, faults=(fault,))
    assert not ended.failed, ended
    assert jobs.checksums(run) == undisturbed(data, num_ranks)


def a_disk_is_full(data: Path, run: Path, num_ranks: int, fault: Fault) -> None:
    """For one rank alone, or for all; then there is room again. Which rank finds out first, and
    whether with its log or with its part of the checkpoint, is as it comes; and with more than two ranks,
    which of them hear of it before one that has heard of it is gone."""
    ended = jobs.train(data, run, num_ranks, faults=(fault,))
    assert ended.codes == (1,) * num_ranks and ended.seconds < SECONDS, ended
    know = 0
    for rank, said in enumerate(ended.said):
        one_line = "".join(said.split())  # messages on the way are wrapped
        knows = re.search(
            rf"couldnotwrite(checkpoint)?{run}.*(Filetoolarge|Nospaceleft).*makeroom,thenresume", one_line
        )
        assert knows or (num_ranks > 2 and "lost another of the" in said), said
        know += knows is not None
        assert said.splitlines()[-1].startswith(f"hotrows: rank {rank}: ")
        assert "Traceback" not in said
    assert know, ended
    if fault.path:
        Path(fault.path).unlink()
    goes_on(data, run, num_ranks)


def others_say(ended: jobs.Ended, num_ranks: int, struck: int, words: str) -> None:
    """Every other rank ended by itself, and said so in one line."""
    for rank in set(range(num_ranks)) - {struck}:
        lines = ended.said[rank].splitlines()
        assert ended.codes[rank] == 1, ended
        assert re.fullmatch(rf"hotrows: rank {rank}: .*{words}.*", lines[-1]), ended.said[rank]
        assert len(lines) == _before(ended.said[rank]) + 1, ended.said[rank]


def goes_on(data: Path, run: Path, num_ranks: int) -> None:
    """What was saved last is whole, and leads to the bits of a run that nothing happened to."""
    if jobs.step_of(run):
        jobs.checksums(run)
    again = jobs.train(data, run, num_ranks)
    assert not again.failed, again
    assert jobs.checksums(run) == undisturbed(data, num_ranks)


@contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """A file system of 8 MiB; PermissionError where none may be mounted."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(folder)]
    mounted = subprocess.run(mount, capture_output=True, text=True, check=False)
    if mounted.returncode:
        raise PermissionError(mounted.stderr.strip())
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def _before(said: str) -> int:
    """How many lines the first rank says of the run as it goes: packs, evaluations."""
    lines = said.splitlines()
    return next((n for n, line in enumerate(lines) if line.startswith("hotrows:")), len(lines))
