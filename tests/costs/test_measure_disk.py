"""The disk of a file store: what is measured of it, and what is said of a slow one."""

import dataclasses
import os

import pytest

from hotrows.train.costs.measure_disk import SLOW_BYTES, SLOW_READS, DiskRates, measure_disk

FAST = DiskRates(
    reads_per_second=1e5,
    bytes_read_per_second=1e9,
    bytes_per_second=1e9,
    merged_per_second=1e9,
    request_seconds=1e-6,
    row_seconds=1e-7,
    write_seconds=1e-7,
    merge_seconds=1e-9,
    merge_row_seconds=1e-7,
    sync_seconds=0.01,
)


def test_a_disk_is_measured_and_nothing_is_left(tmp_path):
    disk = measure_disk(tmp_path, seconds=0.1, size=4 << 20)
    assert not os.listdir(tmp_path)
    seconds = {name: value for name, value in dataclasses.asdict(disk).items() if "seconds" in name}
    assert len(seconds) == 6 and all(0 <= value < 1 for value in seconds.values())
    assert all(value > 0 for name, value in dataclasses.asdict(disk).items() if name not in seconds)


def test_rows_are_read_beside_training(tmp_path):
    trained = []
    disk = measure_disk(tmp_path, seconds=0.1, size=4 << 20, train=lambda: trained.append(1))
    assert trained == [1]
    assert disk.beside > 0


def test_a_folder_without_room_is_refused(tmp_path):
    with pytest.raises(OSError, match="no room for"):
        measure_disk(tmp_path, size=1 << 60)


def test_a_slow_disk_is_warned_of():
    assert FAST.warning is None
    slow = dataclasses.replace(FAST, reads_per_second=SLOW_READS / 100)
    assert "reads 100 rows a second" in slow.warning
    assert "MB" not in slow.warning
    slower = dataclasses.replace(slow, bytes_per_second=SLOW_BYTES / 10)
    assert "writes 5 MB a second" in slower.warning


def test_the_mean_of_two_measurements():
    mean = FAST.mean(dataclasses.replace(FAST, reads_per_second=4e5, sync_seconds=0.04))
    assert mean.reads_per_second == pytest.approx(2e5) and mean.sync_seconds == pytest.approx(0.02)
    assert mean.bytes_per_second == pytest.approx(1e9)


@pytest.mark.parametrize("reads", [FAST.reads_per_second, 100])
def test_doctor_warns_of_a_slow_disk_alone(hotrows, tmp_path, monkeypatch, reads):
    disk = dataclasses.replace(FAST, reads_per_second=reads)
    monkeypatch.setattr("hotrows.train.costs.measure_disk.measure_disk", lambda folder: disk)
    run = hotrows("doctor", "--store", tmp_path / "to" / "be")
    assert run.code == 0, run.err
    assert f"disk of {tmp_path}, measured:" in run.out
    assert ("warning: this disk is slow for tables: it reads 100 rows a second" in run.out) == (
        reads == 100
    )
