"""Processes that are killed, interrupted and paused, at any moment of any command."""

from __future__ import annotations

import os
import signal
import time

from tests.faults.commands import Ended, Failed
from tests.faults.trials import Trial, same
from tests.faults.worlds import JOBS, RANKS_TRAIN, TRAININGS, Changes

_TRAINING_SHARE = 0.6
_REAL_SHARE = 0.05
_REAL_START = 2.5  # seconds until `python -m hotrows` has imported everything, about


def a_job(trial: Trial) -> tuple[str, str]:
    """A job, and the training whose run it reads."""
    run_of = trial.choose.choice(list(TRAININGS))
    if trial.choose.random() < _TRAINING_SHARE:
        return trial.choose.choice(list(TRAININGS)), run_of
    job = trial.choose.choice([job for job in JOBS if job not in TRAININGS])
    if job.startswith("checkpoint") and run_of == "train in a file store":
        run_of = "train in memory"  # rows in stores are of their run alone
    return job, run_of


def kill(trial: Trial) -> str:
    """SIGKILL at a random moment or change of the disk, again while it goes on, then to the end."""
    return kill_job(trial, *a_job(trial))


def kill_job(trial: Trial, job: str, run_of: str) -> str:
    """What `kill` does, to a job that reads the run of a training, if any."""
    trial.note(f"{job}, on {run_of}")
    undisturbed = trial.world.undisturbed(job, run_of)
    trial.world.begin(job, run_of)
    for _ in range(trial.choose.choice([1, 1, 2, 3, 4])):
        saved, at_a_change = trial.saved, trial.choose.random() < 0.5
        ended = (
            _killed_at_a_change(trial, job, undisturbed.num_changes)
            if at_a_change
            else _killed_at_a_moment(trial, job, undisturbed.seconds)
        )
        if ended.code != -signal.SIGKILL:
            _ = ended.is_done  # before it was killed; or refused, and what that asks for is done below
            break
        trial.num_faults += 1
        if trial.saved < saved:
            raise Failed("lost", f"the checkpoint of step {saved} was the last one, now {trial.saved} is")
    return trial.finish_and_compare(job, run_of)


def _killed_at_a_change(trial: Trial, job: str, num_changes: int) -> Ended:
    last = trial.choose.randint(1, max(num_changes, 1))
    trial.note(f"killed at change {last} of the disk")

    def strike(number: int) -> None:
        if number == last:
            os.kill(os.getpid(), signal.SIGKILL)

    return trial.command(job, before=lambda: Changes().count(strike)).end()


def _killed_at_a_moment(trial: Trial, job: str, seconds: float) -> Ended:
    is_real = trial.choose.random() < _REAL_SHARE
    moment = trial.choose.uniform(0, seconds * 1.1) + (_REAL_START if is_real else 0)
    trial.note(f"killed after {moment:.3f} s" + " as python -m hotrows" * is_real)
    command = trial.command(job, is_real=is_real)
    command.lives_for(moment)
    command.send(signal.SIGKILL)
    return command.end()


def interrupt(trial: Trial) -> str:
    """Ctrl-C or SIGTERM, once or several times in a row; then the command again."""
    job, run_of = a_job(trial)
    trial.note(f"{job}, on {run_of}")
    undisturbed = trial.world.undisturbed(job, run_of)
    trial.world.begin(job, run_of)
    for _ in range(trial.choose.choice([1, 1, 2, 3])):
        number = trial.choose.choice([signal.SIGINT, signal.SIGINT, signal.SIGTERM])
        moments = [trial.choose.uniform(0, undisturbed.seconds)]
        for _ in range(trial.choose.choice([0, 0, 1, 2])):
            moments.append(trial.choose.choice([0.0, 0.001, 0.02, 0.1]))
        command = trial.command(job)
        for moment in moments:
            command.lives_for(moment)
            if command.send(number):
                trial.struck(f"{number.name} after {moment:.3f} s more")
        ended = command.end()
        if ended.code == -signal.SIGTERM and number == signal.SIGTERM:
            continue  # as the system does where a command has nothing to save
        if ended.is_done:
            break
        if ended.code != 130:
            trial.note(ended)
            break
    return trial.finish_and_compare(job, run_of)


def pause(trial: Trial) -> str:
    """SIGSTOP and SIGCONT, several times."""
    job, run_of = a_job(trial)
    trial.note(f"{job}, on {run_of}")
    undisturbed = trial.world.undisturbed(job, run_of)
    trial.world.begin(job, run_of)
    command = trial.command(job)
    for _ in range(trial.choose.randint(1, 4)):
        command.lives_for(trial.choose.uniform(0, undisturbed.seconds / 2))
        if command.send(signal.SIGSTOP):
            trial.struck("paused")
            time.sleep(trial.choose.choice([0.01, 0.1, 0.5]))
            command.send(signal.SIGCONT)
    ended = command.end()
    if not ended.is_done:
        raise Failed("lost", str(ended))
    trial.compare(ended, job, run_of)
    return "equal"


def kill_ranks(trial: Trial) -> str:
    """Kills one of two ranks at a random moment, and again while they resume; the other one ends by
    itself."""
    expected = trial.world.undisturbed_ranks()
    trial.world.begin(RANKS_TRAIN)
    for _ in range(trial.choose.choice([1, 1, 2])):
        ranks = trial.world.start_ranks()
        struck = trial.choose.randrange(len(ranks))
        moment = trial.choose.uniform(0, expected.seconds * 1.1)
        ranks[struck].lives_for(moment)
        if ranks[struck].send(signal.SIGKILL):
            trial.struck(f"rank {struck} killed after {moment:.3f} s")
        for ended in [command.end() for command in ranks]:
            if ended.code != -signal.SIGKILL and not ended.is_done:
                trial.note(ended)
    for ended in [command.end() for command in trial.world.start_ranks()]:
        if not ended.is_done:
            raise Failed("lost", str(ended))
    same(trial.world.result(RANKS_TRAIN), expected.result)
    return "equal"
