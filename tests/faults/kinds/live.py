"""Events that come, training that publishes, and a server that answers requests, killed at any moment.

Lines are appended to a folder; a training learns each once and publishes to another folder; a server
follows that, and is asked again and again. Training or the server is killed and started again as a user
would. At the end each event is in one batch that counts, a run that nobody kills, over the same batches,
has the bits of the last version, every version has what training had at its step, whole, and every
answer is what the version that it names scores. A server never goes back while it lives.
"""

from __future__ import annotations

import http.client
import json
import time
from pathlib import Path
from typing import Any
from unittest import mock

from hotrows.data import EncodedData, prepare
from hotrows.data.streams import StreamConfig
from hotrows.data.streams.line_log import read_lines
from hotrows.optim import Adagrad
from hotrows.serving import Limits, Scorer, chain
from hotrows.serving.export.publisher import Publisher
from hotrows.serving.server import serve
from hotrows.serving.version import version_at
from hotrows.train import Callback, Trainer
from hotrows.train.config import TrainConfig
from tests.faults import commands
from tests.faults.commands import Failed
from tests.faults.jobs import free_port
from tests.faults.kinds.publishing import Process
from tests.faults.trials import Trial
from tests.support.bundles import SMALL, known_program
from tests.support.clicks import SCHEMA, table
from tests.support.published import Contents, contents_of

EVENTS = 2_000
_LONGEST, _IDLE = 0.4, 5.0  # seconds between two kills; without an event after which the stream ends
_ASKED = [{"user": 3, "item": 4, "history": [5, 6]}, {"item": 7}]


def live(trial: Trial) -> str:
    """SIGKILL at random moments to a training on a stream that publishes, and to a server."""
    data = _world(trial.world.folder / "live")
    trial.here.mkdir(exist_ok=True)
    to, run, events = (trial.here / name for name in ("to", "run", "events"))
    events.mkdir()
    every, base_every = trial.choose.choice(["1b", "5b", "0.05s"]), trial.choose.choice([4, 9, 30])
    trial.note(f"published every {every}, a base every {base_every}")
    publish = {"every": every, "base_every": base_every, "keep": 10_000}
    here = trial.here
    trainer = Process(
        here / "said", lambda: _train(data, run, events, Noted(here), Publisher(to, **publish))
    )
    client = Client(free_port())
    server = Process(trial.here / "server", lambda: _serve(to, client.port))
    rows = table(EVENTS, seed=trial.choose.randint(1, 99)).to_pylist()
    lines = [json.dumps(row) + "\n" for row in rows]
    kills, written, patience = trial.choose.randint(6, 16), 0, commands.Patience()
    strike = time.monotonic() + trial.choose.uniform(0, _LONGEST)
    try:
        while not trainer.has_ended:
            more = lines[written : written + trial.choose.randint(0, 20)]
            with open(events / f"{written // 700:03}.jsonl", "a") as file:
                file.write("".join(more))
            written += len(more)
            if client.ask() and more:
                patience.renew()
            if patience.is_over:
                said = f"{written:,} events are written, {len(client.answers):,} requests answered"
                raise Failed("hung", f"{said}\n{trainer.stacks}\n{server.stacks}")
            if time.monotonic() > strike and trial.num_faults < kills:
                strike = time.monotonic() + trial.choose.uniform(0, _LONGEST)
                victim = trial.choose.choice([trainer, trainer, server])
                if victim.kill():
                    trial.struck(f"killed {'training' if victim is trainer else 'the server'}")
                    victim.begin()
                    client.lives += victim is server
            time.sleep(0.01)
        _check_ended(trainer, server, client)
    finally:
        for process in (trainer, server):
            process.kill()
    _compare(trial, data, client.answers)
    return "equal"


class Client:
    """Asks the server, and keeps what it said: which life of it, version and scores."""

    def __init__(self, port: int) -> None:
        self.port, self.lives = port, 0
        self.answers: list[tuple[int, int, list[float]]] = []

    def ask(self, patience: float = 1) -> bool:
        """Whether the server, which may just be away, has answered."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=patience)
        try:
            kind = {"content-type": "application/json"}
            connection.request("POST", "/score", json.dumps(_ASKED), kind)
            answer = connection.getresponse()
            content = answer.read()
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()
        if answer.status != 200:
            raise Failed("different", f"the server answered {answer.status}: {content[:300]!r}")
        number = int(answer.headers["X-Hotrows-Version"])
        self.answers.append((self.lives, number, json.loads(content)["scores"]))
        return True


class Noted(Contents):
    """Writes down what training has after each step, as it may be killed at any."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._path = folder / "contents.jsonl"
        with open(self._path, "a") as file:
            file.write("\n")  # behind a line that a kill has cut

    def on_step_end(self, trainer: Trainer, progress: Any) -> None:
        super().on_step_end(trainer, progress)
        with open(self._path, "a") as file:
            for step, contents in self.by_step.items():
                file.write(json.dumps({"step": step, "contents": contents}) + "\n")
        self.by_step.clear()


def _world(folder: Path) -> Path:
    """Prepared data, and the program of the model; made once."""
    if not folder.exists():
        folder.mkdir()
        commands.computed(_prepare, folder)
    return folder / "enc"


def _prepare(folder: Path) -> None:
    prepare(table(400), SCHEMA, folder / "enc", split="position:0.8")
    events = folder / "events"
    events.mkdir()
    (events / "0.jsonl").write_text("".join(json.dumps(row) + "\n" for row in table(40).to_pylist()))
    _train(folder / "enc", folder / "run", events, Publisher(folder / "to", "50b"))


def _train(data: Path, run: Path, events: Path, *callbacks: Callback, repeat: Path | None = None) -> None:
    config = TrainConfig(
        model="dlrm", model_options=SMALL["dlrm"], batch_size=32, row_optimizer=Adagrad(lr=0.1),
        dense_lr=0.02, seed=3, linear_paths="plain", checkpoint_every=7, full_every=3, keep_last=2,
        epochs=1,
    )  # fmt: skip
    stream = StreamConfig(max_wait=0.02, stop_when_idle=_IDLE if repeat is None else None)
    resume = (run / "config.json").exists()
    with (
        known_program(data.parent / "program.onnx"),
        mock.patch("hotrows.train.telling.pictures.draw_run"),
    ):
        trainer = Trainer(EncodedData.open(data), config, run, resume=resume)
        trainer.fit_stream(f"folder:{events}", stream, repeat=repeat, callbacks=callbacks, verbose=False)


def _serve(to: Path, port: int) -> None:
    while not chain.look(to).newest:
        time.sleep(0.01)
    serve(Scorer.watch(to, every=0.01), "127.0.0.1", port, Limits(seconds=60))


def _check_ended(trainer: Process, server: Process, client: Client) -> None:
    if trainer.code:
        raise Failed("traceback", trainer.text)
    patience = commands.Patience()
    while not client.ask():
        if server.has_ended:
            raise Failed("lost", f"the server has ended: {server.stacks}")
        if patience.is_over:
            raise Failed("hung", server.stacks)
        time.sleep(0.05)


def _compare(trial: Trial, data: Path, answers: list[tuple[int, int, list[float]]]) -> None:
    trained = sum(line["size"] for line in read_lines(trial.here / "run" / "stream.jsonl"))
    if trained != EVENTS:
        raise Failed("lost", f"{EVENTS:,} events were written, and {trained:,} trained")
    steps: dict[int, list[dict[str, int]]] = {}
    for line in (trial.here / "contents.jsonl").read_text().splitlines():
        if line.startswith("{") and line.endswith("}"):
            fields = json.loads(line)
            steps.setdefault(fields["step"], []).append(fields["contents"])
    expected = commands.computed(_offline, data, trial.here)
    asked = sorted({number for _, number, _ in answers})
    versions = commands.computed(_versions, trial.here / "to", asked)
    last = versions[-1]
    if not _is_same(last["contents"], expected):
        raise Failed("different", f"the last version, of step {last['step']}, is not that of the run")
    for version in versions[1:]:
        if not any(_is_same(version["contents"], contents) for contents in steps[version["step"]]):
            raise Failed("different", f"{version['number']} is not what step {version['step']} was")
    scores = {version["number"]: version["scores"] for version in versions}
    for number, answer in enumerate(answers):
        before = answers[max(0, number - 1)]
        if answer[0] == before[0] and answer[1] < before[1]:
            raise Failed("different", f"the server went back from version {before[1]} to {answer[1]}")
        if answer[2] != scores[answer[1]]:
            raise Failed("different", f"version {answer[1]} scores {scores[answer[1]]}, not {answer[2]}")


def _offline(data: Path, here: Path) -> dict[str, int]:
    """What a run has at its end that makes the same batches of the same events, and that nobody kills."""
    contents = Contents()
    _train(data, here / "again", here / "events", contents, repeat=here / "run")
    return contents.by_step[max(contents.by_step)]


def _versions(to: Path, asked: list[int]) -> list[dict[str, Any]]:
    """Of each version: its step, what it has, and, where it was asked, its scores."""
    scorer, versions = Scorer(chain.base_path(to, 1)), []
    requests = scorer.requests.encode(_ASKED)
    for number in range(1, chain.look(to).newest + 1):
        version = version_at(to, number)
        assert version.head is not None
        (logits,) = scorer.logits_of(requests, version)
        scores = scorer.predictions(logits).tolist() if number in asked else None
        fields = {"number": number, "step": version.head.step, "scores": scores}
        versions.append({**fields, "contents": contents_of(version)})
    return versions


def _is_same(contents: dict[str, int], expected: dict[str, int]) -> bool:
    return all(expected[name] == checksum for name, checksum in contents.items())
