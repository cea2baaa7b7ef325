"""FileSpeed: which part of a step behind a file store decides how long it takes."""

import dataclasses

import pytest

from hotrows.tools.tuning.advice import advise
from hotrows.tools.tuning.cache_simulation import PolicyResult
from hotrows.tools.tuning.file_replay import FileCounts
from hotrows.tools.tuning.file_speed import CacheCost, FileSpeed
from hotrows.train.costs.measure_disk import DiskRates
from tests.support.simulations import curve

FREE = DiskRates(1e12, 1e18, 1e18, 1e18, 0, 0, 0, 0, 0, 0)
MS = 1e-3


def result(**counts):
    """A batch that misses 1,000 rows, 200 of which were never written, and evicts as many."""
    empty = PolicyResult("lookahead", 1 << 20, (1,), 0, 0, 0, 1000, 200, 800, 1000, 0, 128_000, None)
    return dataclasses.replace(empty, in_file=FileCounts(**counts))


def speed(disk=None, **options):
    disk = dataclasses.replace(FREE, **(disk or {}))
    return FileSpeed(disk, cores=2, busy_seconds=2 * MS, **options)


def test_with_a_disk_and_processors_that_are_free_a_step_takes_what_it_does_in_memory():
    counts = {
        "requests": 800,
        "bytes_fetched": 1e6,
        "checkpoints": 0.1,
        "bytes_flushed": 1e6,
        "bytes_merged": 1e6,
    }
    assert speed().step(result(**counts), MS) == pytest.approx(MS, rel=1e-3)


def test_the_disk_reads_appends_and_merges_one_after_the_other():
    rates = {
        "reads_per_second": 1e6,
        "bytes_read_per_second": 1e9,
        "bytes_per_second": 128e6,
        "merged_per_second": 1e9,
    }
    counts = {"requests": 2000, "bytes_merged": 1e6, "checkpoints": 0.01}
    step = speed(rates).step(result(bytes_fetched=1e6, **counts), MS)
    assert step == pytest.approx((2 + 1 + 1) * MS)
    step = speed(rates).step(result(bytes_fetched=4e6, **counts), MS)  # long requests: their bytes count
    assert step == pytest.approx((4 + 1 + 1) * MS)


def test_reads_take_longer_beside_training():
    """Of 3 ms of reads, 1 ms of training leaves time for half a millisecond of them."""
    slow = speed({"reads_per_second": 1e6, "beside": 2.0})
    assert slow.step(result(requests=3000), MS) == pytest.approx((1 + 2.5) * MS)
    assert slow.step(result(requests=400), MS) == pytest.approx(MS)


def test_a_cache_makes_a_step_longer_as_it_did_with_a_store_in_memory():
    """1 ms longer for 500 rows and 3 ms for 2,500: 1.5 ms for 1,000."""
    costs = CacheCost(1 * MS, 500), CacheCost(3 * MS, 2500)
    assert speed(costs=costs).step(result(), 2 * MS) == pytest.approx((2 + 1.5) * MS)
    same = CacheCost(3 * MS, 500), CacheCost(1 * MS, 2500)  # measured so by chance
    assert speed(costs=same).step(result(), 2 * MS) == pytest.approx((2 + 2) * MS)


def test_work_of_the_store_makes_a_step_longer_where_no_core_is_idle():
    disk = {
        "request_seconds": 1e-6,
        "row_seconds": 1e-6,
        "write_seconds": 1e-6,
        "merge_seconds": 1e-9,
        "merge_row_seconds": 1e-6,
    }
    slow = speed(disk, new_row_seconds=5e-6)
    counts = result(requests=500, rows_merged=300, bytes_merged=5e5)
    requests, others = 500e-6, (800 + 5 * 200 + 1000 + 300 + 500) * 1e-6
    assert slow.work(counts) == pytest.approx(requests + others)
    assert slow.step(counts, 1 * MS) == pytest.approx(1 * MS + requests + others)
    three_quarters = dataclasses.replace(slow, busy_seconds=7 * MS)
    assert three_quarters.step(counts, 4 * MS) == pytest.approx(4 * MS + requests + 0.75 * others)
    measured = dataclasses.replace(slow, request_hinders=3e-6)
    assert measured.step(counts, 4 * MS) == pytest.approx(4 * MS + 3 * requests)
    busy = dataclasses.replace(slow, cores=1)  # a processor does no more than it can
    assert busy.step(counts, 1 * MS) == pytest.approx(2 * MS + requests + others)


def test_training_is_hindered_only_while_it_goes_on():
    """8 ms of reads hinder 1 ms of training by 4 ms at most: training takes twice as long beside them."""
    slow = speed({"reads_per_second": 1e6}, request_hinders=0.5e-6)
    slow = dataclasses.replace(slow, disk=dataclasses.replace(slow.disk, beside=2.0))
    step = slow.step(result(requests=8000), MS)
    trained = step - 8 * MS + (step - 8 * MS)  # step = 8 + trained / 2
    assert trained == pytest.approx(MS + 4 * MS * trained / step)


def test_a_log_is_not_filled_again_before_it_is_merged():
    """A cycle of 20 steps, 5 of which the checkpoint is late; four batches go on while writes wait."""
    counts = result(checkpoints=1 / 20, closing=1 / 4, bytes_merged=30e6 / 20)
    slow = speed({"merged_per_second": 1e9})
    assert slow.step(counts, MS) == pytest.approx((30 + 0.4 * 15 + 5) / 24 * MS)
    synced = speed({"merged_per_second": 1e9, "sync_seconds": 2 * MS})
    assert synced.step(counts, MS) == pytest.approx((2 + 30 + 0.4 * 15 + 5) / 24 * MS)
    fewer = dataclasses.replace(
        counts, in_file=dataclasses.replace(counts.in_file, bytes_merged=13e6 / 20)
    )
    assert slow.step(fewer, MS) == pytest.approx(MS)  # 13 + 6 of 19 ms


def test_a_merge_that_is_late_delays_the_next_one():
    """Of 10 ms reads a step: a log fills in 5 steps, is merged in 50 + 20 ms and closed 5 steps later."""
    counts = result(requests=10_000, checkpoints=1 / 10, closing=1 / 2, bytes_merged=50e6 / 10)
    slow = speed({"reads_per_second": 1e6, "merged_per_second": 1e9})
    assert slow.step(counts, MS) == pytest.approx((10 + 50 / (7 + 5)) * MS)


def test_batches_that_wait_for_one_another_read_and_train_in_turn():
    slow = speed({"reads_per_second": 1e6})
    drained = dataclasses.replace(result(requests=800), drained=0.5)
    assert slow.step(drained, MS) == pytest.approx((0.5 * 1 + 0.5 * 1.8) * MS)


def test_a_checkpoint_pauses_training_while_the_cache_is_written():
    counts = result(checkpoints=1 / 10, bytes_flushed=128e3, rows_flushed=1000)
    slow = speed({"bytes_per_second": 128e6}, flush_seconds=2e-6)
    waits = 1 / 10 * MS / 2  # until a batch has moved, half way in the mean
    assert slow.step(counts, 3 * MS) == pytest.approx((3 + max(1, 2)) * MS + waits)


def test_advice_is_by_the_speed_of_a_file():
    simulation = curve((1 << 20, 800))
    results = tuple(
        dataclasses.replace(r, in_file=FileCounts(requests=2000)) for r in simulation.measured
    )
    simulation = dataclasses.replace(simulation, measured=results)
    advice = advise(simulation, samples_per_second=100_000, slow=speed({"reads_per_second": 1e6}))
    assert advice.speeds == {1 << 20: pytest.approx(0.5)}
