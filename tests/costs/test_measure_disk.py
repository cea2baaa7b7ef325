"""The disk of a file store: what is measured of it, and what is said of a slow one."""

import dataclasses
import os

import pytest

from hotrows.costs.measure_disk import SLOW_BYTES, SLOW_READS, DiskRates, measure_disk

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
