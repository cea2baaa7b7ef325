"""A file store that crashes at any change of the disk, with half a write done, or without power."""

from __future__ import annotations

from tests.faults.commands import computed
from tests.faults.trials import Trial
from tests.support.file_stores import engine
from tests.support.store_crashes import crash_at

_MOST = 100  # changes of the disk that a script makes, about


def crash(trial: Trial) -> str:
    """A script of writes, checkpoints, merges and going back; then what is left, and on from there."""
    number, seed = trial.choose.randrange(_MOST), trial.choose.randrange(10**6)
    with_core, how = trial.choose.random() < 0.7, trial.choose.choice(["", "half", "power"])
    trial.note(f"script {seed}, change {number}, {how or 'whole'}, {'core' if with_core else 'plain'}")
    trial.here.mkdir(parents=True)
    if not computed(_crashed, trial.here / "store", number, seed, how, with_core):
        trial.num_faults += 1
    return "equal"


def _crashed(path, number: int, seed: int, how: str, with_core: bool) -> bool:
    """Whether the script ended before."""
    with engine(with_core, 3000, 3000):
        return crash_at(path, number, seed, half=how == "half", power=how == "power")
