"""The disk of a file store: what is measured of it, and what is said of a slow one."""

import dataclasses
import os

import pytest

from hotrows.costs.measure_disk import SLOW_BYTES, SLOW_READS, DiskRates, measure_disk

FAST = DiskRates(
    reads_per_second=1e5,
    bytes_per_second=1e9,
    merged_per_second=1e9,
    read_seconds=1e-6,
    write_seconds=1e-6,
)


def test_a_disk_is_measured_and_nothing_is_left(tmp_path):
    disk = measure_disk(tmp_path, seconds=0.1, size=4 << 20)
    assert not os.listdir(tmp_path)
    assert all(rate > 0 for rate in dataclasses.astuple(disk))
    assert disk.read_seconds < 1e-2 and disk.write_seconds < 1e-2


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
