"""Increments, checkpoints written in the background, and the last few that stay."""

import dataclasses
import json
import logging
import os
import shutil
import threading

import pytest
import torch

from hotrows.data import prepare
from hotrows.engine import checkpoint
from hotrows.engine.caching import Caching
from hotrows.engine.checkpoint import Writer, files, writer
from hotrows.engine.distributed.in_process import run
from hotrows.engine.embedding import Embedding
from hotrows.optim import Adagrad
from hotrows.train import Interrupted, Trainer
from hotrows.train.telling import pictures
from tests.support import forked
from tests.support.checkpoints import TABLES, dense, state
from tests.support.embeddings import batches_of, mixed_tables, placements, train
from tests.support.processes_of_checkpoints import batches, trained
from tests.support.processes_of_checkpoints import work as work_of_a_rank
from tests.support.runs import CONFIG, interrupt_after, schema, write_rows
from tests.support.sharded import assert_same_rows, present_weights, whole_rows

NAMES_AND_RANKS = [("rows", 1), ("rows", 2), ("mixed", 3), ("columns", 3), ("replicated", 2)]


def names_in(path):
    return sorted(folder.name for folder in (path / "checkpoints").iterdir())


def manifest_of(path, name):
    return json.loads((path / "checkpoints" / name / "manifest.json").read_text())


def copies(embedding):
    """What the stores of this rank hold, to be compared later."""
    if embedding.cached_tables:
        embedding.cached_tables.flush()
    twin = Embedding(embedding.tables, ranks=embedding.ranks, sharding=_sharding(embedding))
    for copy, store in zip(twin.stores, embedding.stores, strict=True):
        copy.records.copy_(store.records)
    return twin


def _sharding(embedding):
    return {
        table.name: placement
        for pack in embedding.packs
        for table, placement in zip(pack.tables, pack.placements, strict=False)
    }


def loaded(path, name, num_ranks=1, sharding="rows"):
    def work(ranks):
        embedding = Embedding(TABLES, seed=8, ranks=ranks, sharding=sharding)
        checkpoint.load(path / "checkpoints" / name, embedding, dense())
        return embedding

    return whole_rows(run(work, num_ranks))


def written(path, num_ranks=1, sharding="rows", num_steps=4, size=6, caching=None, **options):
    """Trains and saves after every step; what all ranks held at each of them."""
    batches = batches_of("single", num_steps, size)

    def work(ranks):
        embedding = Embedding(TABLES, seed=3, ranks=ranks, sharding=sharding, caching=caching)
        of_run = Writer(path, embedding, dense(), **options)
        seen = []
        for step, batch in enumerate(batches):
            seen.append(copies(embedding))
            of_run.save(state(step))
            train(embedding, [batch])  # right after the copy was taken
        of_run.wait()
        return seen

    return [whole_rows(shards) for shards in zip(*run(work, num_ranks), strict=True)]


@pytest.mark.pairs
@pytest.mark.parametrize(("name", "num_ranks"), NAMES_AND_RANKS)
@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize("full_every", [1, 3])
def test_every_checkpoint_holds_the_rows_of_its_step(tmp_path, full_every, background, name, num_ranks):
    seen = written(
        tmp_path, num_ranks, placements(name, num_ranks), keep_last=9, full_every=full_every,
        background=background,
    )  # fmt: skip
    for step, rows in enumerate(seen):
        assert_same_rows(loaded(tmp_path, f"step-{step}"), rows)
        assert_same_rows(loaded(tmp_path, f"step-{step}", 3, "columns"), rows)
        base = f"step-{step - 1}" if full_every == 3 and step % 3 else None
        assert manifest_of(tmp_path, f"step-{step}")["base"] == base


def test_increments_behind_a_cache_hold_what_was_trained(tmp_path):
    seen = written(tmp_path, 2, keep_last=9, full_every=9, caching=Caching(fast_memory=3000))
    for step, rows in enumerate(seen):
        assert_same_rows(loaded(tmp_path, f"step-{step}"), rows)
    assert manifest_of(tmp_path, "step-3")["base"] == "step-2"


def test_an_increment_has_only_the_rows_that_were_updated(tmp_path):
    embedding = Embedding(TABLES, seed=3)
    of_run = Writer(tmp_path, embedding, dense(), keep_last=3, full_every=9)
    of_run.save(state(0))
    batch = batches_of("single", 1, 4)[0]
    train(embedding, [batch])
    of_run.save(state(1))
    of_run.save(state(2))
    ids = batch.ids.view(4, 4)
    pieces = {piece["table"]: piece for piece in manifest_of(tmp_path, "step-1")["pieces"]}
    assert pieces["user"]["num_ids"] == len(set(ids[0].tolist()))
    assert pieces["item"]["num_ids"] == len(set(ids[[1, 3]].flatten().tolist()))
    assert manifest_of(tmp_path, "step-2")["pieces"] == []
    assert_same_rows(loaded(tmp_path, "step-2"), whole_rows([embedding]))


def test_where_most_rows_were_touched_a_checkpoint_is_full(tmp_path):
    written(tmp_path, 2, num_steps=2, size=400, keep_last=3, full_every=9)
    assert manifest_of(tmp_path, "step-1")["base"] is None


def test_the_last_few_stay_with_all_that_they_are_made_on(tmp_path):
    seen = written(tmp_path, num_steps=7, keep_last=2, full_every=3)
    assert names_in(tmp_path) == ["step-3", "step-4", "step-5", "step-6"]
    assert checkpoint.pointed(tmp_path) == checkpoint.Pointer("step-6", "step-6", ("step-5",))
    for step in (5, 6):
        assert_same_rows(loaded(tmp_path, f"step-{step}"), seen[step])


def test_the_best_stays_with_all_that_it_is_made_on(tmp_path):
    embedding = Embedding(TABLES, seed=3)
    of_run = Writer(tmp_path, embedding, dense(), full_every=3)
    for step, batch in enumerate(batches_of("single", 9, 4)):
        train(embedding, [batch])
        of_run.save(state(step), is_best=step == 4)
        if step == 4:
            best = whole_rows([copies(embedding)])
    assert names_in(tmp_path) == ["step-3", "step-4", "step-6", "step-7", "step-8"]
    assert_same_rows(loaded(tmp_path, "step-4"), best)


def test_after_going_on_from_a_checkpoint_the_next_is_an_increment_on_it(tmp_path):
    seen = written(tmp_path, 3, num_steps=2, full_every=4, keep_last=9)
    folder = tmp_path / "checkpoints" / "step-1"
    batch = batches_of("single", 1, 4)[0]

    def work(ranks):
        embedding = Embedding(TABLES, seed=3, ranks=ranks)
        of_run = Writer(tmp_path, embedding, dense(), full_every=4, keep_last=9)
        checkpoint.load(folder, embedding, dense())
        of_run.went_to(folder)
        train(embedding, [batch])
        for step in (5, 6, 7):
            of_run.save(state(step))
        return embedding

    expected = whole_rows(run(work, 2))
    bases = [manifest_of(tmp_path, f"step-{step}")["base"] for step in (5, 6, 7)]
    assert bases == ["step-1", "step-5", None]
    assert_same_rows(loaded(tmp_path, "step-6"), expected)
    assert_same_rows(loaded(tmp_path, "step-1"), seen[1])


# ---- in the background


class Gate:
    """Holds what is written until it is opened."""

    def __init__(self, monkeypatch):
        self.opened, self.came = threading.Event(), threading.Event()
        real = files.write_file

        def write_file(path, parts):
            self.came.set()
            assert self.opened.wait(30)
            return real(path, parts)

        monkeypatch.setattr(files, "write_file", write_file)


def test_training_goes_on_while_a_checkpoint_is_written(tmp_path, monkeypatch):
    embedding, gate = Embedding(TABLES, seed=3), Gate(monkeypatch)
    of_run = Writer(tmp_path, embedding, dense(), background=True)
    then = whole_rows([copies(embedding)])
    of_run.save(state(0))
    assert gate.came.wait(30)
    train(embedding, batches_of("single", 2))  # while nothing is on disk yet
    assert checkpoint.pointed(tmp_path) is None
    gate.opened.set()
    of_run.wait()
    assert_same_rows(loaded(tmp_path, "step-0"), then)


@pytest.mark.parametrize("num_ranks", [1, 3])
def test_what_went_wrong_in_the_background_is_raised_by_the_next_call(tmp_path, monkeypatch, num_ranks):
    real, batches = files.write_file, batches_of("single", 2, 4)

    def full(path, parts):
        if "step-1" in str(path) and ("rank-2" in str(path) or num_ranks == 1):
            raise OSError(28, "No space left on device")
        return real(path, parts)

    def work(ranks):
        embedding = Embedding(TABLES, seed=3, ranks=ranks)
        of_run = Writer(tmp_path, embedding, dense(), background=True, full_every=9)
        of_run.save(state(0))
        train(embedding, batches[:1])
        of_run.save(state(1))
        train(embedding, batches[1:])
        with pytest.raises(OSError, match=r"step-1: .*No space left on device; earlier"):
            of_run.save(state(2))
        of_run.save(state(2))  # there is room again: a full one
        of_run.wait()
        return embedding

    monkeypatch.setattr(files, "write_file", full)
    shards = run(work, num_ranks)
    assert names_in(tmp_path) == ["step-2"]
    assert manifest_of(tmp_path, "step-2")["base"] is None
    assert_same_rows(loaded(tmp_path, "step-2"), whole_rows(shards))


def test_without_memory_for_a_copy_training_waits_and_it_is_said_once(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(writer, "available_memory", lambda: 1000)
    with caplog.at_level(logging.WARNING, "hotrows"):
        seen = written(tmp_path, 2, background=True, keep_last=9)
    assert [record.message for record in caplog.records] == [
        "a copy of the rows takes 0.0 GiB and 0.0 GiB of memory are available: training waits while "
        "checkpoints are written"
    ]
    for step, rows in enumerate(seen):
        assert_same_rows(loaded(tmp_path, f"step-{step}"), rows)


def test_file_stores_keep_what_kept_checkpoints_name(tmp_path):
    caching = Caching(fast_memory=3000, store=f"file:{tmp_path / 'store'}")
    batches = batches_of("single", 5)

    def work(ranks):
        options = {"seed": 3, "ranks": ranks, "sharding": "rows"}
        embedding = Embedding(TABLES, caching=caching, **options)
        plain = Embedding(TABLES, **{**options, "ranks": ranks.channel("plain")})
        of_run = Writer(tmp_path, embedding, dense(), keep_last=3, full_every=3, background=True)
        for step, batch in enumerate(batches):
            train(embedding, [batch])
            of_run.save(state(step))
        train(plain, batches[:3])
        checkpoint.load(tmp_path / "checkpoints" / "step-2", embedding, dense())
        for p in range(len(embedding.packs)):
            assert torch.equal(present_weights(embedding, p), present_weights(plain, p))
        embedding.close()

    run(work, 2)
    assert names_in(tmp_path) == ["step-2", "step-3", "step-4"]


# ---- crashes


class Crash(BaseException):
    """The process is gone."""


def crash_at(monkeypatch, number):
    """From the number-th change of the disk on, nothing changes any more; how many there were."""
    done = [0]

    def falling(real):
        def change(*arguments, **options):
            done[0] += 1
            if done[0] > number:
                raise Crash
            return real(*arguments, **options)

        return change

    for module, name in (
        (os, "replace"), (os, "fsync"), (shutil, "rmtree"), (files, "write_file"), (os, "mkdir"),
        (os, "unlink"),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, falling(getattr(module, name)))
    return done


@pytest.mark.parametrize("full_every", [pytest.param(1, marks=pytest.mark.slow), 4])
def test_a_crash_between_any_two_steps_leaves_the_last_checkpoint_whole(tmp_path, full_every):
    crashes = 0
    for number in range(1000):
        path = tmp_path / str(number)
        embedding = Embedding(TABLES, seed=3)
        of_run = Writer(path, embedding, dense(), full_every=full_every, keep_last=2)
        seen = {}
        for step, batch in enumerate(batches_of("single", 3, 4)):
            seen[f"step-{step}"] = whole_rows([copies(embedding)])
            of_run.save(state(step))
            train(embedding, [batch])
        seen["step-3"] = whole_rows([copies(embedding)])
        with pytest.MonkeyPatch.context() as patch:
            done = crash_at(patch, number)
            try:
                of_run.save(state(3))
            except Crash:
                crashes += 1
        of_run.close()
        now = checkpoint.pointed(path)
        assert now.last in ("step-2", "step-3")
        for name in now.names:
            assert_same_rows(loaded(path, name), seen[name])
        again = Writer(path, embedding, dense(), full_every=full_every, keep_last=2)
        again.save(state(3))  # what the crash left is in nobody's way
        assert not list(path.rglob("*.part"))
        last = checkpoint.pointed(path).last
        assert_same_rows(loaded(path, last), seen["step-3"])
        if done[0] <= number:
            break
    assert crashes >= 10


def test_a_base_that_is_gone_or_another_is_named(tmp_path):
    written(tmp_path, num_steps=3, keep_last=9, full_every=9)
    base = tmp_path / "checkpoints" / "step-1"
    text = (base / "manifest.json").read_text()
    (base / "manifest.json").write_text(text.replace('"step": 1', '"step": 9'))
    with pytest.raises(ValueError, match="is damaged: it is not the manifest of step-2's base"):
        loaded(tmp_path, "step-2")
    shutil.rmtree(base)
    with pytest.raises(ValueError, match="only what changed since step-1, which is not in"):
        loaded(tmp_path, "step-2")


@pytest.mark.parametrize("suffix", ["records", "ids"])
def test_a_flipped_bit_in_an_increment_is_noticed(tmp_path, suffix):
    written(tmp_path, 2, num_steps=3, keep_last=9, full_every=9)
    path = tmp_path / "checkpoints" / "step-1" / "rank-1" / f"pack-1.{suffix}"
    content = bytearray(path.read_bytes())
    content[5] ^= 4
    path.write_bytes(content)
    with pytest.raises(ValueError, match=f"pack-1.{suffix} is damaged: its checksum is wrong"):
        loaded(tmp_path, "step-2")


def test_counts_below_one_are_refused(tmp_path):
    embedding = Embedding(mixed_tables(Adagrad()))
    with pytest.raises(ValueError, match="keep_last must be at least 1, not 0"):
        Writer(tmp_path, embedding, dense(), keep_last=0)


def in_processes(path, num_ranks, mode):
    """Runs `processes_of_checkpoints` as so many processes."""
    started = [forked.Forked(work_of_a_rank, path, rank, num_ranks, mode) for rank in range(num_ranks)]
    ends = [rank.end() for rank in started]
    assert ends == [0] * num_ranks, [rank.error for rank in started]


def test_processes_write_in_the_background_and_others_read(tmp_path):
    in_processes(tmp_path, 2, "write")
    assert manifest_of(tmp_path, "step-2")["base"] == "step-1"
    rows = loaded(tmp_path, "step-3")
    same = batches()

    def work(ranks):
        embedding = Embedding(TABLES, seed=3, ranks=ranks)
        trained(embedding, same)
        return embedding

    expected = run(work, 2)
    assert_same_rows(rows, whole_rows(expected))
    in_processes(tmp_path, 3, "read")
    assert manifest_of(tmp_path, "step-9")["num_ranks"] == 3
    assert_same_rows(loaded(tmp_path, "step-9"), rows)


@pytest.mark.parametrize("after", [5, 7])
def test_a_run_with_increments_goes_on_to_the_same_bits(tmp_path, monkeypatch, after):
    monkeypatch.setattr(pictures, "draw_run", lambda run: None)
    monkeypatch.setattr(writer, "_MOST", 9.0)  # every batch reads most of so few rows
    raw = write_rows(tmp_path / "raw.csv", 600)
    encoded = prepare([raw], schema(), tmp_path / "enc", split="position:0.6,0.2,0.2")
    config = dataclasses.replace(
        CONFIG, batch_size=10, steps=14, epochs=9, checkpoint_every=2, keep_last=3, full_every=4
    )
    uninterrupted = tmp_path / "whole"
    Trainer(encoded, config, uninterrupted).fit()
    interrupted = Trainer(encoded, config, tmp_path / "run", progress=interrupt_after(after))
    with pytest.raises(Interrupted):
        interrupted.fit()
    last = checkpoint.folder_of(tmp_path / "run", "last")
    assert checkpoint.read_manifest(last).base is not None
    Trainer(encoded, config, tmp_path / "run", resume=True).fit()
    pairs = []
    for path in (uninterrupted, tmp_path / "run"):
        folder = checkpoint.folder_of(path, "last")
        merged = checkpoint.merge(folder, tmp_path / f"merged-{path.name}")
        pairs.append({file.name: file.read_bytes() for file in merged.iterdir()})
    assert pairs[0].keys() == pairs[1].keys()
    assert all(pairs[0][name] == pairs[1][name] for name in pairs[0])
