"""A machine that is taken away says so by SIGTERM: what fits into the time left is saved, and no more."""

import dataclasses
import os
import signal
import time

import pytest

from hotrows.engine import checkpoint
from hotrows.engine.checkpoint import writer
from hotrows.train import Callback, Interrupted, Trainer
from hotrows.train.run.signals import stop_signals
from tests.machines.runs import CONFIG, content, fit
from tests.machines.storage import make_faulty

pytestmark = pytest.mark.usefixtures("one_thread", "no_pictures")


class Notice(Callback):
    """Sends this process a signal after a step."""

    def __init__(self, step, number=signal.SIGTERM):
        self.step, self.number = step, number

    def on_step_end(self, trainer, progress):
        if trainer.state.step == self.step:
            os.kill(os.getpid(), self.number)
            time.sleep(0.2)


@pytest.mark.parametrize(
    ("notice", "number", "rate", "code", "step"),
    [
        (None, signal.SIGTERM, 1e9, 130, 8),
        (25.0, signal.SIGINT, 1e9, 130, 8),
        (25.0, signal.SIGTERM, 1e9, 75, 8),
        (25.0, signal.SIGTERM, 1.0, 75, 6),  # bytes in a second: no time for another checkpoint
    ],
)
def test_a_checkpoint_that_fits_into_the_notice_is_written(
    data, tmp_path, monkeypatch, notice, number, rate, code, step
):
    run = tmp_path / "run"
    config = dataclasses.replace(CONFIG, notice=notice, full_every=1)
    trainer = Trainer(data, config, run)
    save = checkpoint.Writer.save

    def saved(self, *arguments):
        save(self, *arguments)
        self.wait()
        self._rate = rate

    monkeypatch.setattr(checkpoint.Writer, "save", saved)
    monkeypatch.setattr(writer, "_MOST", 2.0)  # a batch reads nearly all of these few rows
    with pytest.raises(Interrupted, match=f"stopped after step 8 of 13; .*run: step-{step}$") as stopped:
        trainer.fit(callbacks=[Notice(8, number)])
    assert stopped.value.exit_code == code
    is_increment = checkpoint.read_manifest(checkpoint.folder_of(run, "last")).base is not None
    assert is_increment == (code == 75 and step == 8), "an increment, whatever full_every says"
    fit(data, run, 1, full_every=1)
    fit(data, tmp_path / "undisturbed", 1, full_every=1)
    last = {name: file for name, file in content(run).items() if "step-13" in name}
    assert last and last.items() <= content(tmp_path / "undisturbed").items()


def test_storage_that_hangs_does_not_keep_a_machine_beyond_its_notice(data, tmp_path, monkeypatch):
    url = f"file://{tmp_path}/bucket/run"
    faulty = make_faulty(url, monkeypatch)
    config = dataclasses.replace(CONFIG, notice=2.0, scratch=str(tmp_path / "disks"))
    trainer, begun = Trainer(data, config, url), []

    class Hangs(Notice):
        def on_step_end(self, trainer, progress):
            if trainer.state.step == self.step:
                while not (tmp_path / "bucket/run/checkpoints.json").exists():
                    time.sleep(0.01)
                faulty._rate = 1.0  # from now on every call fails
                begun.append(time.monotonic())
            super().on_step_end(trainer, progress)

    with pytest.raises(Interrupted, match=r"bucket/run: step-\d$") as stopped:
        trainer.fit(callbacks=[Hangs(8)])
    assert stopped.value.exit_code == 75 and time.monotonic() - begun[0] < 6


def test_a_signal_is_timed_from_its_arrival():
    with stop_signals() as request:
        assert request.noticed_at is None and not request()
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.3)
        assert request() and time.monotonic() - request.noticed_at >= 0.25
