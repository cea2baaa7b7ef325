"""Deltas: what is served after each is what training had, bit for bit; chains are whole, or refused."""

import dataclasses
import errno
import gc
import json
import os
import shutil
import threading
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from starlette.testclient import TestClient

from hotrows.cli import main
from hotrows.data.streams import StreamConfig
from hotrows.optim import Adagrad, DenseAdam
from hotrows.runtime import atomic_files
from hotrows.serving import Limits, Scorer, application, chain, merging, programs
from hotrows.serving.deltas import read_delta, write_delta
from hotrows.serving.export import program
from hotrows.serving.export import publisher as publisher_module
from hotrows.serving.export.publisher import Publisher
from hotrows.serving.export.whole import export
from hotrows.serving.places import Mirror, open_place
from hotrows.serving.version import version_at, with_deltas
from hotrows.train import Callback, Trainer
from hotrows.train.config import TrainConfig
from tests.support.bundles import SMALL, raw_rows
from tests.support.clicks import table as clicks

pytestmark = [
    pytest.mark.usefixtures("one_thread", "no_pictures"),
    pytest.mark.filterwarnings("ignore:values differ from those"),
]

ROWS = raw_rows(30)
STEPS = 8


def config(**settings):
    defaults = {
        "model": "dlrm", "model_options": SMALL["dlrm"], "steps": STEPS, "batch_size": 32,
        "row_optimizer": Adagrad(lr=0.1), "dense_lr": 0.05, "seed": 3, "linear_paths": "plain",
        "evaluate_every": STEPS,
    }  # fmt: skip
    return TrainConfig(**{**defaults, **settings})


class States(Callback):
    """The weights of all tables and of the dense part after each step; stops after `last`."""

    def __init__(self, last=None):
        self.tables, self.dense, self._last = {}, {}, last

    def on_step_end(self, trainer, progress):
        step, embedding = trainer.state.step, trainer.embedding
        with trainer.steps.paused():
            self.tables[step] = {
                t.name: embedding.weights(t.name).clone().numpy() for t in embedding.tables
            }
        state = trainer.model.state_dict().items()
        self.dense[step] = {f"model.{name}": value.clone().numpy() for name, value in state}
        if step == self._last:
            raise KeyboardInterrupt


class Paced(Callback):
    """Lets each version be written before the next step."""

    def __init__(self, publisher):
        self._publisher = publisher

    def on_step_end(self, trainer, progress):
        self._publisher.wait()


@pytest.fixture(scope="module")
def published(clicks_encoded, tmp_path_factory, one_program):
    """A run of 8 steps with a version after each, bases of versions 1, 4 and 7, and its states."""
    folder = tmp_path_factory.mktemp("published")
    states = States()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hotrows.train.telling.pictures.draw_run", lambda run: None)
        publisher = Publisher(folder / "to", "1b", base_every=3, keep=9)
        callbacks = [states, publisher, Paced(publisher)]
        Trainer(clicks_encoded, config(), folder / "run").fit(callbacks=callbacks)
    return folder / "to", states, folder / "run"


@pytest.fixture
def to(published, tmp_path):
    """A copy of the folder of versions that a test may change."""
    return Path(shutil.copytree(published[0], tmp_path / "to"))


def values_of(version):
    """The dense values of an ONNX version, by name."""
    content = version.program.content()
    return {name: content[b:e] for name, (b, e) in programs.parameters(content).items()}


def test_each_version_has_the_rows_and_the_dense_part_of_its_step(published):
    folder, states, _ = published
    found = chain.look(folder)
    assert (found.bases, found.deltas) == ((1, 4, 7), tuple(range(2, STEPS + 2)))
    for number in found.deltas:
        version = version_at(folder, number)
        step = version.head.step
        assert step == number - 1
        for name, weights in states.tables[step].items():
            served = version.tables[name].stored(np.arange(len(weights)))
            assert served.tobytes() == weights.tobytes(), (number, name)
        dense = values_of(version)
        assert dense and all(dense[name] == states.dense[step][name].tobytes() for name in dense)


def test_the_last_version_scores_as_an_export_of_the_same_step(published, tmp_path, monkeypatch):
    folder, _, run = published
    for make in (program.torch_program, program.onnx_program):  # made anew for it
        monkeypatch.setattr(f"hotrows.serving.export.bundles.{make.__name__}", make)
    bundle = export(run, tmp_path / "bundle", "last", format="onnx")
    exported, served = Scorer(bundle), Scorer.watch(folder, every=None)
    assert exported.logits(ROWS).tobytes() == served.logits(ROWS).tobytes()
    merged = merging.merge(folder, tmp_path / "merged")
    assert merged.number == STEPS + 1
    for name in exported.bundle.files:
        assert (bundle / name).read_bytes() == (tmp_path / "merged" / name).read_bytes(), name
    assert (
        Scorer(tmp_path / "merged", verify=True).logits(ROWS).tobytes() == exported.logits(ROWS).tobytes()
    )


def test_a_base_has_the_bytes_of_the_deltas_before_it(published):
    folder, *_ = published
    whole = Scorer(chain.base_path(folder, 7), verify=True).logits(ROWS)
    found = chain.look(folder)
    others = dataclasses.replace(found, bases=(1,))
    assert others.way(0, 7) == (1, range(2, 8))
    first = Scorer(chain.base_path(folder, 1)).version
    replayed = with_deltas(first, folder, range(2, 8))
    scorer = Scorer(chain.base_path(folder, 1))
    requests = scorer.requests.encode(ROWS)
    assert np.concatenate(scorer.logits_of(requests, replayed)).tobytes() == whole.tobytes()


def without(folder, *numbers):
    """Takes deltas away; returns how to bring each back."""
    aside = {n: (chain.delta_path(folder, n), chain.delta_path(folder, n).read_bytes()) for n in numbers}
    for path, _ in aside.values():
        path.unlink()
    return {n: partial(path.write_bytes, content) for n, (path, content) in aside.items()}


def only_first_base(folder):
    for number in chain.look(folder).bases[1:]:
        shutil.rmtree(chain.base_path(folder, number))


def test_one_that_follows_goes_on_by_deltas_and_stays_whole(to, published):
    only_first_base(to)
    back = without(to, *range(2, STEPS + 2))
    scorer = Scorer.watch(to, every=None)
    assert scorer.version.number == 1
    for number in range(2, STEPS + 2):
        before, logits = scorer.version, scorer.logits(ROWS).tobytes()
        back[number]()
        assert scorer.follower.look() == 1 and scorer.version.number == number
        requests = scorer.requests.encode(ROWS)
        assert np.concatenate(scorer.logits_of(requests, before)).tobytes() == logits
        assert scorer.logits(ROWS).tobytes() != logits
    assert scorer.follower.look() == 0 and scorer.follower.applied == STEPS
    expected = Scorer.watch(published[0], every=None).logits(ROWS).tobytes()
    assert scorer.logits(ROWS).tobytes() == expected


def test_memory_has_only_rows_that_changed_since_the_last_base(to):
    bases = {n: chain.base_path(to, n).rename(to / f"aside-{n}") for n in (4, 7)}
    scorer = Scorer.watch(to, every=None)
    logits, changed = scorer.logits(ROWS), [t.changed_ids() for t in scorer.version.tables.values()]
    bases[7].rename(chain.base_path(to, 7))
    assert scorer.follower.look() == 0 and scorer.version.bundle.path.name == "base-0000000007"
    assert scorer.logits(ROWS).tobytes() == logits.tobytes()
    later = [t.changed_ids() for t in scorer.version.tables.values()]
    assert sum(map(len, later)) < sum(map(len, changed))
    of_deltas = [read_delta(chain.delta_path(to, n)).rows for n in (8, 9)]
    for table, ids in zip(scorer.version.tables, later, strict=True):
        assert set(ids) == {i for rows in of_deltas if table in rows for i in rows[table][0].tolist()}


def test_a_pinned_version_is_gone_back_to_and_kept(to, capsys):
    scorer = Scorer.watch(to, every=None)
    newest = scorer.logits(ROWS).tobytes()
    main(["versions", str(to), "--pin", "3"])
    scorer.follower.look()
    assert scorer.version.number == 3 and scorer.logits(ROWS).tobytes() != newest
    chain.prune(to, keep=1)
    assert chain.look(to).bases == (1, 4, 7)
    capsys.readouterr()
    main(["versions", str(to), "--json"])
    (pinned,) = [one for one in json.loads(capsys.readouterr().out) if one["pinned"]]
    assert (pinned["version"], pinned["step"], pinned["kinds"]) == (3, 2, ["delta"])
    main(["versions", str(to), "--unpin"])
    scorer.follower.look()
    assert scorer.logits(ROWS).tobytes() == newest
    chain.prune(to, keep=1)
    assert (chain.look(to).bases, chain.look(to).deltas) == ((7,), (8, 9))
    with pytest.raises(ValueError, match="has no version 30"):
        chain.pin(to, 30)


def test_a_gap_is_refused_in_words_and_what_is_before_it_served(to):
    only_first_base(to)
    without(to, 5)
    back = without(to, *(n for n in range(2, STEPS + 2) if n != 5))
    scorer = Scorer.watch(to, every=None)
    for bring in back.values():
        bring()
    with pytest.raises(ValueError, match="version 9 cannot be made: the delta of version 5 is missing"):
        scorer.follower.look()
    assert scorer.version.number == 4


def refused(folder, version, **changes):
    """What is said of a delta whose head is another."""
    path = chain.delta_path(folder, version)
    delta, content = read_delta(path), path.read_bytes()
    write_delta(path, dataclasses.replace(delta, head=dataclasses.replace(delta.head, **changes)))
    with pytest.raises(ValueError) as error:
        version_at(folder, version)
    path.write_bytes(content)
    return str(error.value)


def test_deltas_of_another_model_or_on_another_version_are_refused(to):
    only_first_base(to)
    assert "is of another model: its chain is 0123" in refused(to, 3, chain="0123")
    assert "is not a delta on version 3" in refused(to, 4, previous_checksum=1)
    assert "on another version 7" in refused(to, 6, number=8)


@pytest.mark.parametrize("where", ["size", "header", "head", "data", "end"])
def test_a_damaged_delta_is_refused_and_the_version_stays(to, where):
    only_first_base(to)
    back = without(to, *range(2, STEPS + 2))
    scorer = Scorer.watch(to, every=None)
    logits = scorer.logits(ROWS).tobytes()
    back[2]()
    path = chain.delta_path(to, 2)
    content = bytearray(path.read_bytes())
    size = int.from_bytes(content[:8], "little")
    if where == "end":
        del content[-1:]
    else:
        place = {"size": 1, "header": content.index(b"data_offsets") + 17, "head": 60, "data": size + 20}
        content[place[where]] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"delta-0000000002.safetensors"):
        scorer.follower.look()
    assert (scorer.version.number, scorer.logits(ROWS).tobytes()) == (1, logits)
    back[2]()
    assert scorer.follower.look() == 1


def test_what_is_before_a_damaged_delta_is_served_and_a_base_behind_it_is_gone_to(to, published):
    """Good deltas that came with a damaged one waited for it, as did all versions behind it, even
    if a later base was there."""
    back = {n: chain.base_path(to, n).rename(to / f"aside-{n}") for n in (4, 7)}
    for number in range(2, STEPS + 2):
        chain.delta_path(to, number).rename(to / f"aside-{number}.delta")
    scorer = Scorer.watch(to, every=None)
    for number in range(2, STEPS + 2):
        (to / f"aside-{number}.delta").rename(chain.delta_path(to, number))
    damaged = chain.delta_path(to, 6)
    content = damaged.read_bytes()
    damaged.write_bytes(content[:-1])
    for _ in range(2):
        with pytest.raises(ValueError, match=r"delta-0000000006\.safetensors"):
            scorer.follower.look()
        assert scorer.version.number == 5
        assert scorer.logits(ROWS).tobytes() == logits_at(published[0], 5)
    back[7].rename(chain.base_path(to, 7))
    assert scorer.follower.look() == 4 and scorer.version.number == STEPS + 1
    assert scorer.logits(ROWS).tobytes() == logits_at(published[0], STEPS + 1)


def test_a_server_starts_before_a_damaged_delta_but_not_at_another_than_the_pinned_version(to, caplog):
    """A server that was restarted while a damaged delta was the newest did not start."""
    only_first_base(to)
    damaged = chain.delta_path(to, 6)
    content = damaged.read_bytes()
    damaged.write_bytes(content[:-1])
    scorer = Scorer.watch(to, every=None)
    assert (scorer.version.number, scorer.follower.errors) == (5, 1)
    assert caplog.text.count("version 5 stays: ") == 1 and damaged.name in caplog.text
    (to / chain.PIN).write_text('{"version": 7}')
    with pytest.raises(ValueError, match=damaged.name):
        Scorer.watch(to, every=None)
    (to / chain.PIN).unlink()
    damaged.write_bytes(content)
    assert scorer.follower.look() == STEPS + 1 - 5


def logits_at(folder, number):
    scorer = Scorer(chain.base_path(folder, 1))
    requests = scorer.requests.encode(ROWS)
    return np.concatenate(scorer.logits_of(requests, version_at(folder, number))).tobytes()


@pytest.mark.parametrize("inner", ["{}/evil", "../../evil", "tables/../../../evil"])
def test_a_file_of_a_place_stays_in_the_folder_of_its_version(tmp_path, inner):
    """`/etc/x` below a folder is `/etc/x`."""

    class Place:
        def names(self):
            return {f"base-0000000001/{chain.HEAD}", f"base-0000000001/{inner.format(tmp_path)}"}

        def get(self, name, file):
            file.write_text("written")

    with pytest.raises(ValueError, match="is no name of a file of a version"):
        Mirror(Place(), tmp_path / "deep" / "to").pull()
    assert not list(tmp_path.rglob("evil"))


def test_a_stream_that_goes_on_by_other_batches_is_published_at_its_end(clicks_encoded, tmp_path):
    """The run that was killed had trained the events in more batches, and published the last of them; the
    one that goes on has fewer steps, and its versions were held back until it would pass that step."""
    lines = [json.dumps(row) + "\n" for row in clicks(80).to_pylist()]
    events = tmp_path / "events"
    events.mkdir()

    class Trickle(Callback):
        """Writes 20 events at a time; ends the run after four steps as a kill would."""

        _written = 0

        def on_idle(self, trainer):
            (events / f"{self._written}.jsonl").write_text("".join(lines[self._written :][:20]))
            self._written += 20

        def on_step_end(self, trainer, progress):
            publisher.wait()
            if trainer.state.step == 4:
                raise KeyboardInterrupt

    def train_on(idle, *callbacks):
        stream = StreamConfig(max_wait=0.001 if idle is None else 1.0, stop_when_idle=idle)
        run, settings = tmp_path / "run", config(steps=None, epochs=1, evaluate_every=None)
        trainer = Trainer(clicks_encoded, settings, run, resume=run.exists())
        trainer.fit_stream(f"folder:{events}", stream, callbacks=callbacks)

    publisher = Publisher(tmp_path / "to", "1b")
    with pytest.raises(KeyboardInterrupt):
        train_on(None, publisher, Trickle())
    assert version_at(tmp_path / "to").head.step == 4
    publisher, states = Publisher(tmp_path / "to", "1b"), States()
    train_on(0.0, states, publisher)
    version = version_at(tmp_path / "to")
    assert (version.head.step, version.head.events) == (3, 80)
    assert all(values == states.dense[3][name].tobytes() for name, values in values_of(version).items())


def test_the_server_says_which_version_answered_and_how_old_it_is(to):
    scorer = Scorer.watch(to, every=None)
    with TestClient(application(scorer, Limits(seconds=60))) as client:
        answer = client.post("/score", json=[{"user": 3}])
        assert answer.headers["x-hotrows-version"] == "9"
        chain.pin(to, 2)
        scorer.follower.look()
        answer = client.post("/score", json=[{"user": 3}])
        assert answer.headers["x-hotrows-version"] == "2"
        assert client.get("/healthz").json()["version"] == 2
        lines = client.get("/metrics").text.splitlines()
    assert {"hotrows_version 2", "hotrows_version_step 1", "hotrows_follow_errors_total 0"} <= set(lines)
    (staleness,) = [float(line.split()[1]) for line in lines if line.startswith("hotrows_staleness")]
    assert 0 < staleness < 10_000


def test_a_scorer_that_is_dropped_looks_no_more(published):
    """Its thread stayed for ever, with all tables."""
    scorer = Scorer.watch(published[0], every=0.01)
    thread = scorer.follower._worker
    assert thread.is_alive()
    del scorer
    gc.collect()
    assert not thread.is_alive()


def test_a_temporary_copy_goes_with_what_made_it(published, tmp_path):
    pytest.importorskip("fsspec")
    url = f"memory://{tmp_path.name}/temporary"
    Mirror.open(url, Path(shutil.copytree(published[0], tmp_path / "to"))).push()
    scorer = Scorer.watch(url, every=None)
    copy, expected = scorer.follower.folder, scorer.logits(ROWS).tobytes()
    version = scorer.version
    assert copy.is_dir() and scorer.logits(ROWS).tobytes() == expected
    scorer.close()
    del scorer
    gc.collect()
    assert not copy.exists()
    assert version.tables  # whoever still has a version has its rows, too
    for table in version.tables.values():
        assert len(table[np.zeros(1, np.int64)]) == 1


@pytest.mark.parametrize("place", ["fsspec", "redis"])
def test_a_place_has_the_same_versions(published, tmp_path, request, place):
    if place == "redis":
        port = request.getfixturevalue("redis_server").port
        url = f"redis://127.0.0.1:{port}/0?name=clicks"
    else:
        pytest.importorskip("fsspec")
        url = f"memory://{tmp_path.name}/model"
    Mirror.open(url, Path(shutil.copytree(published[0], tmp_path / "to"))).push()
    scorer = Scorer.watch(url, every=None, cache=tmp_path / "cache")
    expected = Scorer.watch(published[0], every=None).logits(ROWS).tobytes()
    assert scorer.logits(ROWS).tobytes() == expected
    mirror = Mirror.open(url, tmp_path / "other")
    mirror.pin(3)
    scorer.follower.look()
    assert scorer.version.number == 3
    mirror.pin(None)
    scorer.follower.look()
    assert scorer.logits(ROWS).tobytes() == expected
    chain.prune(tmp_path / "to", keep=1)
    Mirror.open(url, tmp_path / "to").push()
    assert {name.partition("/")[0] for name in mirror.place.names()} == {
        "base-0000000007", "delta-0000000008.safetensors", "delta-0000000009.safetensors",
    }  # fmt: skip
    scorer.follower.look()
    assert chain.look(scorer.follower.folder).bases == (7,)
    assert Scorer.watch(url, every=None).logits(ROWS).tobytes() == expected


@pytest.fixture(params=["memory", "file", "redis"])
def empty_place(request, tmp_path):
    """The URL of a place without versions."""
    if request.param == "redis":
        return f"redis://127.0.0.1:{request.getfixturevalue('redis_server').port}/0?name={tmp_path.name}"
    pytest.importorskip("fsspec")
    return f"memory://{tmp_path.name}/model" if request.param == "memory" else f"file://{tmp_path}/place"


def test_a_place_whose_disk_is_full_keeps_no_part_of_a_file(tmp_path, monkeypatch):
    """A part of the file that says whose chain a place holds stayed, and no run could publish there."""
    pytest.importorskip("fsspec")
    file = tmp_path / "head"
    file.write_bytes(b"whole")
    place = open_place(f"file://{tmp_path}/place")

    def full(path):
        assert not place.names(), "a kill would leave a part of it under its name"
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched, pytest.raises(OSError, match="No space"):
        patched.setattr(atomic_files, "sync", full)
        place.put_new("head", file)
    assert not [*(tmp_path / "place").iterdir()]
    assert place.put_new("head", file) and not place.put_new("head", file)


def test_a_file_system_without_hard_links_takes_a_first_file(tmp_path, monkeypatch):
    def refused(*_):
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", refused)
    assert atomic_files.write_first(tmp_path / "head", b"a")
    assert not atomic_files.write_first(tmp_path / "head", b"b")
    assert (tmp_path / "head").read_bytes() == b"a" and len([*tmp_path.iterdir()]) == 1


def contents(place, folder):
    """The bytes of all files of a place, by name."""
    names = sorted(place.names())
    for number, name in enumerate(names):
        place.get(name, folder / f"content-{number}")
    return {name: (folder / f"content-{number}").read_bytes() for number, name in enumerate(names)}


def renamed_chain(published, folder, name, indent=1):
    """A copy of the first version of the chain, as one of another run. indent: of its manifest, by which
    models of other weights are told apart."""
    base = chain.base_path(folder, 1)
    shutil.copytree(chain.base_path(published[0], 1), base)
    head = dataclasses.replace(chain.base_head(base), chain=name, checksum=0)
    fields = json.loads((base / "export.json").read_text())
    (base / "export.json").write_text(json.dumps(fields, indent=indent))
    chain.write_base_head(base, head)
    return folder


def test_files_that_are_no_versions_stay_in_a_place(to, empty_place, tmp_path):
    """Publishing to s3://bucket/models deleted all other files below it, of any name and depth."""
    others = [
        "README.md",
        "other-team/weights.bin",
        "base-1/export.json",
        "delta-0000000002.txt",
        "pin.json",
    ]
    mirror = Mirror.open(empty_place, to)
    (tmp_path / "other").write_text('{"version": 3}')
    for name in others:
        mirror.place.put(name, tmp_path / "other")
    mirror.push()
    others += ["base-0000000003/weights.bin", "base-0000000099/weights.bin"]  # of another team
    for name in others[-2:]:
        mirror.place.put(name, tmp_path / "other")
    mirror.push()
    chain.prune(to, keep=1)
    for again in (mirror, Mirror.open(empty_place, to)):
        again.push()
    versions = {"base-0000000007", "delta-0000000008.safetensors", "delta-0000000009.safetensors"}
    kept = {name for name in mirror.place.names() if name.partition("/")[0] not in versions}
    assert kept == {*others}


@pytest.mark.parametrize("there", ["base", "delta", "begun", "damaged"])
def test_a_place_with_versions_of_another_run_is_refused_and_stays_as_it_is(
    published, to, empty_place, tmp_path, there
):
    other = Mirror.open(empty_place, tmp_path / "other")
    if there == "delta":
        delta = read_delta(chain.delta_path(to, 9))
        path = chain.delta_path(tmp_path / "other", 9)
        write_delta(path, dataclasses.replace(delta, head=dataclasses.replace(delta.head, chain="0123")))
        other.place.put(path.name, path)
    else:
        base = chain.base_path(renamed_chain(published, tmp_path / "other", "0123"), 1)
        if there == "damaged":
            (base / chain.HEAD).write_text("{}")
        elif there == "begun":
            (base / chain.HEAD).unlink()
        for file in (file for file in base.rglob("*") if file.is_file()):
            other.place.put(file.relative_to(other.folder).as_posix(), file)
    before = contents(other.place, tmp_path)
    for _ in range(2):
        with pytest.raises(ValueError, match="not of this run, or is damaged: publish each run to a URL"):
            Mirror.open(empty_place, to).push()
    assert contents(other.place, tmp_path) == before


@pytest.mark.parametrize("alike", [True, False], ids=["the same seed", "another seed"])
def test_of_two_runs_that_push_to_one_place_at_once_one_is_refused(
    published, empty_place, tmp_path, alike
):
    mirrors = [
        Mirror.open(
            empty_place, renamed_chain(published, tmp_path / name, name, 1 if alike else len(name))
        )
        for name in ("a", "bb")
    ]
    together, refusals = threading.Barrier(2), []

    def push(mirror):
        together.wait()
        try:
            mirror.push()
        except ValueError as error:
            refusals.append(str(error))

    threads = [threading.Thread(target=push, args=(mirror,)) for mirror in mirrors]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(refusals) == 1 and "publish each run to a URL of its own" in refusals[0]
    assert Scorer.watch(empty_place, every=None).version.number == 1  # whole, and of one of them


def test_what_a_killed_push_has_left_is_written_again_or_removed(published, to, empty_place, tmp_path):
    """A delta of which a part was written had its name, and was never written again."""
    mirror = Mirror.open(empty_place, to)
    mirror.push()
    (tmp_path / "part").write_bytes(chain.delta_path(to, 8).read_bytes()[:-9])
    mirror.place.put("delta-0000000008.safetensors", tmp_path / "part")
    mirror.place.remove("delta-0000000009.safetensors")
    for base in (1, 7):  # one that was being deleted, one that was being written
        mirror.place.remove(f"base-{base:010}/{chain.HEAD}")
    mirror.place.remove("base-0000000007/model.onnx")
    chain.prune(to, keep=2)
    Mirror.open(empty_place, to).push()
    assert not any(name.startswith("base-0000000001") for name in mirror.place.names())
    expected = Scorer.watch(published[0], every=None).logits(ROWS).tobytes()
    assert Scorer.watch(empty_place, every=None).logits(ROWS).tobytes() == expected


def test_a_run_whose_copy_is_gone_does_not_replace_what_it_had_published(to, empty_place, tmp_path):
    Mirror.open(empty_place, to).push()
    for number in (4, 7):
        shutil.rmtree(chain.base_path(to, number))
    without(to, *range(2, STEPS + 2))
    with pytest.raises(ValueError, match="does not have it: bring that folder back from a copy"):
        Mirror.open(empty_place, to).push()
    assert Scorer.watch(empty_place, every=None).version.number == STEPS + 1


def test_a_run_is_refused_at_a_url_of_another_one_before_it_trains(
    clicks_encoded, tmp_path, one_program, empty_place
):
    for name, url in (
        ("a", empty_place),
        ("b", empty_place),
        ("b", f"{empty_place}-of-b"),
        ("b", empty_place),
    ):
        run, states = tmp_path / name, States()
        trainer = Trainer(clicks_encoded, config(steps=2, evaluate_every=2), run, resume=run.exists())
        callbacks = [states, Publisher(url, "1b")]
        if name == "b" and url == empty_place:
            with pytest.raises(ValueError, match="base-0000000001, which is not of this run"):
                trainer.fit(callbacks=callbacks)
            assert not states.tables
        else:
            trainer.fit(callbacks=callbacks)
    for name, url in (("a", empty_place), ("b", f"{empty_place}-of-b")):
        version = Scorer.watch(url, every=None).version
        assert version.head.step == 2
        assert version.head.chain == (tmp_path / name / "chain.txt").read_text()


def test_a_copy_for_serving_is_not_made_among_versions_of_another_run(published, empty_place, tmp_path):
    Mirror.open(empty_place, renamed_chain(published, tmp_path / "a", "a")).push()
    mine = renamed_chain(published, tmp_path / "b", "b")
    for url in (empty_place, f"{empty_place}-without"):
        with pytest.raises(
            ValueError, match="has versions of another run than the place; choose an empty"
        ):
            Scorer.watch(url, every=None, cache=mine)
    assert chain.base_head(chain.base_path(mine, 1)).chain == "b"


def test_only_what_a_killed_run_has_left_of_versions_is_swept(to):
    mine = [to / "base-images.part", to / "base-notes.gone", to / "delta-x.part"]
    left = [to / "base-0000000010.part", to / "base-0000000001.gone"]
    for path in (*mine, *left):
        path.mkdir()
    (to / "delta-0000000010.safetensors.part").touch()
    chain.sweep(to, ".part", ".gone")
    assert all(path.exists() for path in mine) and not any(path.exists() for path in left)
    assert not list(to.glob("*.safetensors.part"))


class Plain(torch.nn.Module):
    """A model of one layer, as `PlainModel` has it inside."""

    def __init__(self):
        super().__init__()
        self.model = torch.nn.Linear(3, 1)

    def forward(self, x):
        return self.model(x)[:, 0]


def test_a_program_of_pytorch_takes_other_parameters_and_stays_as_it_is(tmp_path):
    first, second, x = Plain(), Plain(), torch.randn(5, 3)
    torch.export.save(torch.export.export(first, (x,)), tmp_path / "model.pt2")
    inputs = (SimpleNamespace(name="dense"),)
    bundle = SimpleNamespace(format="pt2", path=tmp_path, program="model.pt2", inputs=inputs)
    before = programs.open_program(bundle, trust=True)
    values = {name: value.numpy() for name, value in second.state_dict().items()}
    after = before.with_parameters(values)
    assert set(after.parameter_names()) == set(values)
    (tmp_path / "model.pt2").write_bytes(after.content())
    again = programs.open_program(bundle, trust=True)
    with torch.no_grad():
        for compute, model in ((before, first), (after, second), (again, second)):
            assert (compute({"dense": x.numpy()}) == model(x).numpy()).all()
    with pytest.raises(ValueError, match=r"expected 4 bytes of parameter 'model.bias', found none"):
        before.with_parameters({"model.weight": values["model.weight"]})


# ---- runs that are interrupted, and disks that fail


@pytest.mark.parametrize("last, saved", [(3, 2), (5, 4)])
def test_publishing_changes_no_bit_and_a_resumed_run_goes_on_with_its_versions(
    clicks_encoded, published, tmp_path, last, saved
):
    """The last version has step 3, and the last checkpoint fewer or more."""
    _, states, _ = published
    run, to = tmp_path / "run", tmp_path / "to"
    of_run = config(checkpoint_every=2, background_checkpoints=False)
    killed = States(last)
    with pytest.raises(KeyboardInterrupt):
        Trainer(clicks_encoded, of_run, run).fit(callbacks=[Publisher(to, "3b"), killed])
    assert chain.look(to).newest == 2 and version_at(to).head.step == 3
    resumed = States()
    trainer = Trainer(clicks_encoded, of_run, run, resume=True)
    assert trainer.state.step == saved
    trainer.fit(callbacks=[Publisher(to, "3b"), resumed])
    for name, weights in states.tables[STEPS].items():
        assert resumed.tables[STEPS][name].tobytes() == weights.tobytes()
        version = version_at(to)
        assert version.head.step == STEPS
        assert version.tables[name].stored(np.arange(len(weights))).tobytes() == weights.tobytes()
    with pytest.raises(ValueError, match="has the versions of another run, up to step 8"):
        Trainer(clicks_encoded, of_run, tmp_path / "other").fit(callbacks=[Publisher(to, "3b")])


def test_what_could_not_be_written_comes_with_the_next_delta(
    clicks_encoded, published, tmp_path, monkeypatch, caplog
):
    states = published[1]
    write, failures = publisher_module.write_delta, [1, 2, 3]

    def fails(path, delta):
        if failures:
            failures.pop()
            raise OSError(28, "No space left on device")
        return write(path, delta)

    monkeypatch.setattr(publisher_module, "write_delta", fails)
    publisher = Publisher(tmp_path / "to", "1b", table_dtype="float16")
    Trainer(clicks_encoded, config(), tmp_path / "run").fit(callbacks=[publisher, Paced(publisher)])
    found = chain.look(tmp_path / "to")
    assert (
        found.deltas == tuple(range(2, 2 + STEPS - 3)) and version_at(tmp_path / "to").head.step == STEPS
    )
    assert sum("could not be published" in line for line in caplog.messages) == 1
    for name, weights in states.tables[STEPS].items():
        served = version_at(tmp_path / "to").tables[name].stored(np.arange(len(weights)))
        assert served.tobytes() == weights.astype(served.dtype).tobytes()


@pytest.mark.parametrize("dtype", ["int8", "int4"])
def test_versions_of_a_run_of_integers_have_its_very_rows(clicks_encoded, tmp_path, dtype):
    publisher, states = Publisher(tmp_path / "to", "2b", table_dtype=dtype), States()
    callbacks = [states, publisher, Paced(publisher)]
    Trainer(clicks_encoded, config(table_dtype=dtype), tmp_path / "run").fit(callbacks=callbacks)
    version = version_at(tmp_path / "to")
    assert version.head.step == STEPS and dtype in {table.dtype for table in version.tables.values()}
    for name, weights in states.tables[STEPS].items():
        np.testing.assert_array_equal(version.tables[name][np.arange(len(weights))], weights)


def test_what_no_delta_can_say_is_refused(clicks_encoded, tmp_path):
    dense = config(row_optimizer=DenseAdam())
    with pytest.raises(ValueError, match="changes all rows in every step"):
        Trainer(clicks_encoded, dense, tmp_path / "run").fit(callbacks=[Publisher(tmp_path / "to", "1b")])
    for every in ("5", "0b", "-1s", "5m"):
        with pytest.raises(ValueError, match="a number of seconds or batches"):
            Publisher(tmp_path / "to", every)
