"""What is recorded, and what must be found in every state that a crash may leave."""

from __future__ import annotations

import json
import shutil
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor

from hotrows.data import EncodedData, prepare
from hotrows.data.streams import StreamConfig
from hotrows.dynamic import Dynamic
from hotrows.engine import checkpoint
from hotrows.engine.checkpoint import State, Writer
from hotrows.engine.embedding import Embedding
from hotrows.engine.storage.file_store import FileStore
from hotrows.serving import chain
from hotrows.serving.export.publisher import Publisher
from hotrows.serving.export.whole import export
from hotrows.serving.version import version_at
from hotrows.train import Trainer
from hotrows.train.config import TrainConfig
from hotrows.train.telling import metrics_log, pictures
from tests.crash_consistency.recording import record_into, say
from tests.support.checkpoints import TABLES, dense, state
from tests.support.embeddings import batches_of
from tests.support.embeddings import train as train_rows
from tests.support.file_stores import META, engine, first_values
from tests.support.published import contents_of, is_of, train_published, undisturbed
from tests.support.runs import CONFIG, same_bits, schema, weights_of, write_rows
from tests.support.store_script import NUM_ROWS, STRIDE, Books, check_what_is_left, play, script


@dataclass(frozen=True)
class Scenario:
    """prepare(root) makes what is there at the beginning; act(root) is recorded; check(root, said) looks
    at a state, where `said` are the marks before the crash, and fails where something is lost."""

    act: Callable[[Path], None]
    check: Callable[[Path, list[str]], None]
    prepare: Callable[[Path], None] = lambda root: None


# ---- checkpoints of tables in memory: full ones, increments, the last two, the best


def _digest(embedding: Embedding) -> int:
    return zlib.crc32(b"".join(bytes(store.records.numpy()) for store in embedding.stores))


def save_checkpoints(root: Path) -> None:
    embedding, model = Embedding(TABLES, seed=3), dense()
    writer = Writer(root / "run", embedding, model, keep_last=2, full_every=3)
    for step, batch in enumerate(batches_of("single", 6, 6)):
        train_rows(embedding, [batch])
        say(f"begun {step} {_digest(embedding)}")
        writer.save(state(step), is_best=step in (0, 2))
        say(f"saved {step}")


def check_checkpoints(root: Path, said: list[str]) -> None:
    digests = {int(words[1]): int(words[2]) for words in map(str.split, said) if words[0] == "begun"}
    saved = max((int(text.split()[1]) for text in said if text.startswith("saved")), default=None)
    pointer = checkpoint.pointed(root / "run") if (root / "run").exists() else None
    if pointer is None:
        assert saved is None, "no checkpoint is left"
        return
    for name in pointer.names:
        embedding = Embedding(TABLES, seed=8)
        step = checkpoint.load(root / "run" / "checkpoints" / name, embedding, dense()).step
        assert _digest(embedding) == digests[step], f"checkpoint {name} has other rows"
        if name == pointer.last:
            assert step == max(digests) or step == saved, "an earlier checkpoint is the last one"
    best = int(pointer.best.removeprefix("step-"))
    assert best == (0 if max(digests) < 2 else best), "the best is another one"
    assert saved is None or best == max(step for step in (0, 2) if step <= max(saved, best))


# ---- a file store: writes, checkpoints, merges, going back


def write_store(root: Path) -> None:
    steps = list(script(4, 5))
    with engine(False, 3000, 3000):
        store = FileStore.open(root / "store", NUM_ROWS, STRIDE, first_values, META)
        store.restore(None)
        play(store, steps, lambda result: say(f"done {result}"), Books())


def create_store(root: Path) -> None:
    FileStore.create(root / "store", NUM_ROWS, STRIDE, first_values, META, log_rows=100).close()


def check_store(root: Path, said: list[str]) -> None:
    results = [int(text.split()[1]) for text in said]
    with engine(False, 3000, 3000):
        check_what_is_left(root / "store", list(script(4, 5)), results, Books()).close(merge=False)


# ---- data being prepared


def prepare_data(root: Path) -> None:
    prepare([root.with_name("raw.csv")], schema(), root / "enc", split="position:0.6,0.2,0.2")
    say("prepared")


def check_data(root: Path, said: list[str]) -> None:
    if not (root / "enc").exists():
        assert "prepared" not in said
        prepare([root.with_name("raw.csv")], schema(), root / "enc", split="position:0.6,0.2,0.2")
    prepare([root.with_name("raw.csv")], schema(), root / "again", split="position:0.6,0.2,0.2")
    assert _files(root / "enc") == _files(root / "again")


def _files(folder: Path) -> dict[str, bytes]:
    """All but the two that are deleted once the folder has its name, and say nothing then."""
    files = [
        path for path in folder.rglob("*") if path.is_file() and path.name not in ("job.json", "lock")
    ]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


# ---- whole runs: in memory, of dynamic ids, on a stream, and behind a cache over a file store

_EVENTS = StreamConfig(stop_when_idle=0.0, window=300)


def _config(root: Path, of: str) -> TrainConfig:
    small = replace(CONFIG, epochs=1, checkpoint_every=6)
    if of == "file":
        return replace(small, fast_memory=40 * 40, in_flight=2, store=f"file:{root / 'rows'}")
    if of == "keys":
        return replace(small, checkpoint_every=4, full_every=3, keep_last=2)
    if of == "stream":
        return replace(small, epochs=None, checkpoint_every=4)
    return replace(small, full_every=2, keep_last=2)


def _train(root: Path, run: Path, of: str) -> None:
    """Begins a run, or goes on with it."""
    data, resumes = EncodedData.open(root.with_name("enc")), (run / "config.json").exists()
    with _without_what_nothing_reads():
        if of == "stream":
            trainer = Trainer(data, _config(root, of), run, resume=resumes)
            trainer.fit_stream(f"folder:{root.with_name('events')}", _EVENTS)
        else:
            Trainer(data, _config(root, of), run, resume=resumes).fit()


def make_data(root: Path, of: str) -> None:
    raw = write_rows(root.with_name("raw.csv"))
    dynamic = Dynamic(capacity=18, admit="after:2", evict="lru", partitions=2) if of == "keys" else None
    prepare([raw], schema(dynamic=dynamic), root.with_name("enc"), split="position:0.6,0.2,0.2")
    root.with_name("events").mkdir()
    events = write_rows(root.with_name("events") / "a.csv", rows=900, seed=7)
    events.write_text(events.read_text().replace("\n1,", "\nx,", 9))  # which are dead letters
    expected = root.with_name("expected")
    _train(expected, expected, of)


def train_run(root: Path, of: str) -> None:
    save = Writer.save

    def saved(writer: Writer, state: State, is_best: bool = True) -> None:
        save(writer, state, is_best)
        writer.wait()
        say(f"saved {state.step}")

    with patch.object(Writer, "save", saved):
        _train(root, root / "run", of)
    say("trained")


def check_run(root: Path, said: list[str], of: str) -> None:
    run, expected = root / "run", root.with_name("expected")
    saved = max((int(text.split()[1]) for text in said if text.startswith("saved")), default=None)
    if saved is not None:
        assert int(checkpoint.folder_of(run, "last").name.removeprefix("step-")) >= saved
    _train(root, run, of)
    if of in ("memory", "keys"):
        assert same_bits(run, expected)
    for name in ("stream.jsonl", "dead_letters.jsonl") if of == "stream" else ():
        assert (run / name).read_bytes() == (expected / name).read_bytes()
    pairs = zip(weights_of(run), _expected_weights(expected), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


@contextmanager
def _without_what_nothing_reads() -> Iterator[None]:
    """Without events of TensorBoard, by which a third of the states would differ alone, and without the
    picture, which takes five times as long as the training."""
    events = patch.object(metrics_log, "_open_events", return_value=None)
    with events, patch.object(pictures, "draw_run"):
        yield


@cache
def _expected_weights(run: Path) -> list[Tensor]:
    return weights_of(run)


# ---- an export, which begins anew


def export_run(root: Path) -> None:
    export(root.with_name("expected"), root / "model")
    say("exported")


def check_export(root: Path, said: list[str]) -> None:
    out = root / "model"
    if not out.exists():
        assert "exported" not in said
        if (part := root / "model.part").exists():
            with pytest.raises(ValueError, match="was killed; delete it if none runs"):
                export(root.with_name("expected"), out)
            shutil.rmtree(part)
        export(root.with_name("expected"), out)
    assert checkpoint.problems(out) == []
    export(root.with_name("expected"), root / "again")
    assert _files(out) == _files(root / "again")


# ---- a run that publishes a model: deltas, and bases made of them

_STEPS = 24


def publish_run(root: Path) -> None:
    publish = Publisher._publish

    def published(publisher: Publisher, snapshot: Any) -> None:
        publish(publisher, snapshot)
        say(f"published {snapshot.progress.step}")

    with patch.object(Publisher, "_publish", published):
        _publish(root)


def _publish(root: Path) -> None:
    publisher = Publisher(root / "to", "3b", base_every=2, keep=1)
    with _without_what_nothing_reads():
        train_published(root.with_name("enc"), root / "run", _STEPS, publisher)


def make_published(root: Path) -> None:
    expected = undisturbed(root.with_name("enc"), root.with_name("expected"), _STEPS)
    root.with_name("expected.json").write_text(json.dumps(expected))


def check_published(root: Path, said: list[str]) -> None:
    expected, to = json.loads(root.with_name("expected.json").read_text()), root / "to"
    there = _versions(to, expected)
    assert max(there, default=0) >= max((int(text.split()[1]) for text in said), default=0)
    _publish(root)
    assert max(_versions(to, expected)) == _STEPS
    assert [path for path in to.iterdir() if path.suffix in (".part", ".gone")] == []


def _versions(to: Path, expected: dict[str, Any]) -> list[int]:
    """The steps of the versions in a folder, each of which is what the undisturbed run had then."""
    found = chain.look(to)
    numbers = range(found.bases[0], found.newest + 1) if found.newest else []
    versions = [version_at(to, number) for number in numbers]
    steps = [version.head.step for version in versions if version.head is not None]
    sums = map(contents_of, versions)
    assert all(is_of(of_one, expected[str(step)]) for step, of_one in zip(steps, sums, strict=True))
    return steps


def _run(of: str) -> Scenario:
    act, check, made = (partial(f, of=of) for f in (train_run, check_run, make_data))
    return Scenario(act, check, made)


SCENARIOS = {
    "checkpoints": Scenario(save_checkpoints, check_checkpoints, lambda root: (root / "run").mkdir()),
    "store": Scenario(write_store, check_store, create_store),
    "data": Scenario(prepare_data, check_data, lambda root: write_rows(root.with_name("raw.csv"), 200)),
    "export": Scenario(export_run, check_export, partial(make_data, of="memory")),
    "publishing": Scenario(publish_run, check_published, make_published),
    "run": _run("memory"),
    "run with dynamic ids": _run("keys"),
    "run on a stream": _run("stream"),
    "run behind a cache": _run("file"),
}

if __name__ == "__main__":
    for name, folder in zip(sys.argv[1::2], map(Path, sys.argv[2::2]), strict=True):
        record_into(folder / "root", folder / "log")
        SCENARIOS[name].act(folder / "root")
