"""Ranks that die, hang, lag or fail in one of their stages; under torchrun; on two hosts."""

from __future__ import annotations

import traceback
from dataclasses import replace

from tests.faults import cases, jobs, network, torchruns
from tests.faults.commands import Failed, computed
from tests.faults.inject import OF_RANK_0, STAGES, Fault
from tests.faults.trials import Trial

_OF_CHECKPOINTS = {"snapshot", "writing", "written", *OF_RANK_0}
_EACH = {
    "kill": cases.a_rank_is_killed, "raise": cases.a_rank_raises, "stop": cases.a_rank_hangs,
    "lag": cases.a_rank_lags, "full": cases.a_disk_is_full, "fill": cases.a_disk_is_full,
}  # fmt: skip
_COMMON = ("planning", "planned", "rows", "forward", "backward", "gradients", "update")


def stages(trial: Trial) -> str:
    """One rank of two, or of four, is struck in one of its stages."""
    choose = trial.choose
    kind = choose.choices(list(_EACH), [6, 2, 1, 1, 1, 1])[0]
    num_ranks = choose.choices([2, 4], [4, 1])[0]
    fault = _fault(choose, kind, num_ranks)
    trial.struck(f"{num_ranks} ranks: {fault}")
    if kind == "fill":
        with cases.small_disk(trial.here) as disk:
            fault = replace(fault, path=str(disk / "ballast"))
            _claim(_EACH[kind], _data(trial), disk / "run", num_ranks, fault)
        return "equal"
    _claim(_EACH[kind], _data(trial), trial.here / "run", num_ranks, fault)
    return "equal"


def _fault(choose, kind: str, num_ranks: int) -> Fault:
    if kind in ("full", "fill"):
        return Fault(kind, "writing", choose.randrange(num_ranks), choose.randint(1, 4))
    stage = choose.choice(list(STAGES) if kind == "kill" else _COMMON)
    rank = 0 if stage in OF_RANK_0 else choose.randrange(num_ranks)
    most = {"start": 1, "evaluation": 3, "half written": 8}.get(
        stage, 3 if stage in _OF_CHECKPOINTS else 12
    )
    return Fault(kind, stage, rank, choose.randint(1, most))


def torchrun(trial: Trial) -> str:
    """torchrun restarts a job until it is done, however often a rank is killed."""
    choose = trial.choose
    faults = tuple(
        Fault("kill", choose.choice(_COMMON), choose.randrange(2), choose.randint(1, 4), attempt=attempt)
        for attempt in range(choose.randint(1, 3))
    )
    trial.struck("; ".join(map(str, faults)))
    data, run = _data(trial), trial.here / "run"
    code, said = torchruns.on_this_host(data, run, 2, "--max-restarts", "4", faults=faults)
    if code:
        raise Failed("lost", said)
    if jobs.checksums(run) != cases.undisturbed(data, 2):
        raise Failed("different", said)
    return "equal"


def cut_network(trial: Trial) -> str:
    """The cable between two hosts is slow, or unplugged for a while or for good."""
    case = trial.choose.choice([
        network.a_short_cut_is_waited_out, network.a_short_cut_is_a_restart,
        network.a_cut_for_good_ends_the_ranks, network.a_slow_cable_is_waited_for,
    ])  # fmt: skip
    trial.struck(case.__name__)
    trial.here.mkdir(parents=True)
    with torchruns.two_hosts() as hosts:
        _claim(case, _data(trial), trial.here / "run", hosts)
    return "equal"


def _data(trial: Trial):
    folder = trial.world.folder / "ranks"
    if not folder.exists():
        folder.mkdir()
        computed(_prepare, folder)
    return folder / "enc"


def _prepare(folder) -> None:
    cases.tiny_data(folder)


def _claim(case, *arguments) -> None:
    try:
        case(*arguments)
    except AssertionError as error:
        raise Failed("lost", f"{traceback.format_exc(limit=-2)}\n{error}") from error
