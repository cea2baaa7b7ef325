"""Two processes in one folder: the same command twice, another one, and readers beside a trainer."""

from __future__ import annotations

import json

from tests.faults.commands import Command, Ended, Failed
from tests.faults.kinds.processes import a_job
from tests.faults.trials import Trial
from tests.faults.worlds import OF_KEYS, TRAININGS


def two_at_once(trial: Trial) -> str:
    """The same command twice at about one time, from the beginning or going on, or with another seed:
    one of them does its work, as if it were alone."""
    job, run_of = a_job(trial)
    trial.note(f"{job}, on {run_of}")
    undisturbed = trial.world.undisturbed(job, run_of)
    trial.world.begin(job, run_of)
    if job in TRAININGS and trial.choose.random() < 0.5:  # both resume
        first = trial.command(job)
        first.lives_for(trial.choose.uniform(0, undisturbed.seconds))
        first.send(9)
        first.end()
    seeds = (3, 3)
    if job in TRAININGS and not (trial.here / "run").exists() and trial.choose.random() < 0.3:
        seeds = (3, 4)
    ended = _both(trial, job, seeds, undisturbed.seconds)
    trial.num_faults += 1
    for one in ended:
        trial.note(one)
    done = [seed for seed, one in zip(seeds, ended, strict=True) if one.is_done]
    seed = _seed_of(trial) if job in TRAININGS else 3
    if seed is not None and done and seed not in done:
        raise Failed("lost", f"seed {done} was done, and the folder is of seed {seed}")
    trial.finish_and_compare(job, run_of, seed or 3)
    return "refused" if len(done) < 2 else "equal"


def _both(trial: Trial, job: str, seeds: tuple[int, int], seconds: float) -> list[Ended]:
    commands = []
    for number, seed in enumerate(seeds):
        if number:
            commands[0].lives_for(trial.choose.choice([0, 0.01, trial.choose.uniform(0, seconds)]))
        commands.append(trial.command(job, seed))
    return [command.end() for command in commands]


def _seed_of(trial: Trial) -> int | None:
    """The seed of the run that is in the folder."""
    path = trial.here / "run" / "config.json"
    return json.loads(path.read_text())["seed"] if path.exists() else None


_READERS = (
    ("predict", "run", "RAW", "--out", "out"),
    ("predict", "run", "RAW", "--out", "out", "--checkpoint", "last"),
    ("eval", "run"), ("checkpoint", "inspect", "run", "--verify"), ("checkpoint", "merge", "run", "out"),
    ("export", "run", "--out", "out"), ("describe", "DATA"),
)  # fmt: skip


def readers(trial: Trial) -> str:
    """Commands that read a run while it is trained: each does its work or says why not, the training is
    as if it were alone, and what was predicted is what one of its checkpoints predicts."""
    job = trial.choose.choice([job for job in TRAININGS if job != OF_KEYS])  # which predict the same
    trial.note(job)
    predictions = trial.world.predictions  # made in the same folder: before the trainer is there
    trial.world.begin(job)
    trainer = trial.command(job)
    outcome = "equal"
    while trainer.lives_for(trial.choose.uniform(0, 0.1)):
        trial.num_faults += 1
        number = trial.num_faults
        named = {"RAW": str(trial.world.raw), "DATA": str(trial.world.data), "out": f"out-of-{number}"}
        words = [named.get(word, word) for word in trial.choose.choice(_READERS)]
        reader = Command(trial.here, *words)
        ended = reader.end()
        trial.note(ended)
        if not ended.is_done:
            outcome = "refused"
        elif words[0] == "predict":
            predicted = (trial.here / f"out-of-{number}").read_text()
            if predicted not in predictions:
                raise Failed("different", "predicted what no checkpoint of the run predicts")
    ended = trainer.end()
    if not ended.is_done:
        raise Failed("lost", str(ended))
    trial.compare(ended, job)
    return outcome
