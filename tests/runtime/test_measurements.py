"""What was measured once is what later runs read."""

import json
import logging
import multiprocessing
from pathlib import Path

import pytest
import torch

from hotrows.runtime import measurements
from hotrows.runtime.measurements import Measurement


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "hotrows" / "measurements"


def test_what_was_measured_first_is_read_ever_after(cache, caplog):
    caplog.set_level(logging.INFO, "hotrows")
    paths = Measurement("links", {"batch_size": 64})
    assert paths.read() is None
    assert paths.write({"forward": "onednn"}) == {"forward": "onednn"}
    assert Measurement("links", {"batch_size": 64}).read() == {"forward": "onednn"}
    (file,) = cache.iterdir()
    measured, read = caplog.messages
    assert measured == f"links: measured, and kept in {file} for later runs"
    assert read.startswith("links: as measured on 20") and "hotrows doctor --renew" in read


def test_of_two_that_measure_at_once_the_first_to_write_decides_for_both():
    one, other = (Measurement("machine", {"ranks": 2}) for _ in range(2))
    assert one.read() is None and other.read() is None
    assert one.write({"flops": 1.5}) == {"flops": 1.5}
    assert other.write({"flops": 2.5}) == {"flops": 1.5}
    assert other.read() == {"flops": 1.5}


def _measure(barrier, number, answers):
    measurement = Measurement("machine", {"ranks": 2})
    barrier.wait()
    answers.put(measurement.write({"number": number, "filling": "x" * 100_000}))


def test_processes_that_write_at_once_read_one_answer(cache):
    context = multiprocessing.get_context("fork")
    barrier, answers = context.Barrier(4), context.Queue()
    processes = [context.Process(target=_measure, args=(barrier, n, answers)) for n in range(4)]
    for process in processes:
        process.start()
    numbers = {answers.get()["number"] for _ in processes}
    for process in processes:
        process.join()
    assert len(numbers) == 1 and len(list(cache.iterdir())) == 1


def test_other_conditions_threads_and_versions_have_answers_of_their_own(monkeypatch, threads):
    threads(1)
    Measurement("links", {"batch_size": 64}).write("first")
    assert Measurement("links", {"batch_size": 128}).read() is None
    assert Measurement("machine", {"batch_size": 64}).read() is None
    threads(2)
    assert Measurement("links", {"batch_size": 64}).read() is None
    threads(1)
    monkeypatch.setattr(torch, "__version__", "9.9")
    assert Measurement("links", {"batch_size": 64}).read() is None


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b'{"of": 1}', b"\xff\xfe", b"[" * 100_000])
def test_a_damaged_file_counts_as_none_and_is_replaced(cache, damage):
    Measurement("machine", {}).write("before")
    (file,) = cache.iterdir()
    file.write_bytes(damage)
    assert Measurement("machine", {}).read() is None
    assert Measurement("machine", {}).write("after") == "after"
    assert Measurement("machine", {}).read() == "after" and json.loads(file.read_text())


def test_where_nothing_can_be_kept_runs_measure_and_are_told_once(tmp_path, caplog, monkeypatch):
    def no_home():
        raise RuntimeError("Could not determine home directory.")

    measurements._warn_once.cache_clear()
    (tmp_path / "cache").write_text("a file where the folder should be")
    for name in ("machine", "links"):
        assert Measurement(name, {}).read() is None
        assert Measurement(name, {}).write((1, 2)) == [1, 2]
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.setattr(Path, "home", no_home)
    assert Measurement("machine", {}).read() is None and Measurement("machine", {}).write(1) == 1
    said, of_home = caplog.messages
    assert "there is no home for a cache folder" in of_home
    assert "cannot be kept" in said and "XDG_CACHE_HOME" in said


def test_the_folder_is_the_users_cache_unless_another_is_named(monkeypatch, tmp_path):
    for unset in ("", "not/absolute"):
        monkeypatch.setenv("XDG_CACHE_HOME", unset)
        monkeypatch.setenv("HOME", str(tmp_path))
        assert measurements.folder() == tmp_path / ".cache" / "hotrows" / "measurements"


def test_forgetting_has_all_measured_anew(cache):
    measurements.forget()
    Measurement("machine", {}).write("before")
    measurements.forget()
    assert not cache.exists() and Measurement("machine", {}).read() is None
