"""Kills of trainings with dynamic features: which keys are live, too, is as if nothing had happened."""

from __future__ import annotations

import functools
import shutil
from pathlib import Path

from hotrows import Dense, Dynamic, Schema, Sparse
from tests.faults.kinds.processes import kill_job
from tests.faults.trials import Trial
from tests.faults.worlds import TRAININGS, World

POLICIES = {
    "the past": (
        Dynamic(capacity=20, evict="lru"),
        Dynamic(capacity=12, admit="after:2,sketch", evict="lfu:4"),
    ),
    "ahead": (
        Dynamic(capacity=12, admit="ahead:2", evict="ahead", window=3),
        Dynamic(capacity=25, admit="after:2", evict="idle:2"),
    ),
}


def kill(trial: Trial) -> str:
    """`processes.kill`, of trainings on keys that come and go."""
    policy = trial.choose.choice(list(POLICIES))
    trial.note(f"keys are evicted by {policy}")
    trial.world = _world(trial.world.folder / "keys" / policy.replace(" ", "-"), policy)
    try:
        job = trial.choose.choice(list(TRAININGS))
        return kill_job(trial, job, job)
    finally:
        shutil.rmtree(trial.world.here, ignore_errors=True)


@functools.cache
def _world(folder: Path, policy: str) -> World:
    a, b = POLICIES[policy]
    features = (Dense("n", transform="standard"), Sparse("a", dynamic=a), Sparse("b", dynamic=b))
    return World(folder, Schema(features, delimiter=",", name="keys"))
