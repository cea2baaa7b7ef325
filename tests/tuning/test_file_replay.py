"""FileReplay counts what a file store does: requests of reads, checkpoints, and what merges rewrite."""

import pytest
import torch

from hotrows.engine.storage.file_store import FileStore
from hotrows.tools.tuning.file_replay import FileReplay

ROWS, STRIDE = 200_000, 64
NONE = torch.empty(0, dtype=torch.int64)


def rows_at_random(num, generator):
    return torch.randint(0, ROWS, (num,), generator=generator).unique()


def test_requests_and_merges_are_those_of_a_file_store(tmp_path):
    chance = torch.Generator().manual_seed(0)
    replay = FileReplay(ROWS, STRIDE, log_rows=1000)
    with FileStore.create(tmp_path / "store", ROWS, STRIDE, lambda rows, out: None, {}) as store:
        write(store, leaving := rows_at_random(150_000, chance))
        replay.add(NONE, NONE, leaving)
        counted = replay.per_batch()
        merged = store.counters["bytes_written"] - written(leaving)
        bits = -(-ROWS // 32768) * 4096  # of rows ever written
        assert counted.bytes_merged == pytest.approx(merged - bits, rel=0.01)
        write(store, others := torch.arange(0, ROWS, 100))  # by then the first log is merged
        replay.add(NONE, NONE, others)
        missing = torch.cat([leaving[::400], rows_at_random(100, chance)]).unique()
        missing = missing[missing % 100 > 0]
        replay.begin()
        replay.add(missing, missing, NONE)
        before = store.counters
        store.read(missing, torch.empty(len(missing), STRIDE, dtype=torch.uint8))
        counted, requests = replay.per_batch(), store.counters["requests"] - before["requests"]
        assert requests > 150
        assert counted.requests == pytest.approx(
            requests, rel=0.15
        )  # those of 64 KiB are cut by rule of thumb


def write(store, rows):
    """Writes rows, and merges them."""
    store.write(rows, torch.zeros(len(rows), STRIDE, dtype=torch.uint8))
    store.retain([store.checkpoint()])
    store.merge_now()


def written(rows):
    """Bytes of a log with so many rows in one segment."""
    return -(-(64 + len(rows) * (STRIDE + 8)) // 4096) * 4096


def test_a_full_log_is_closed_with_the_changed_rows_of_the_cache():
    replay = FileReplay(ROWS, STRIDE, log_rows=10)
    rows = torch.arange(100)
    replay.add(rows, rows, NONE)  # 100 rows come into the cache
    replay.add(rows[50:], NONE, rows[:5])
    assert replay.per_batch().checkpoints == 5 / 10 / 2  # half full: one in four batches
    replay = FileReplay(ROWS, STRIDE, log_rows=10)
    replay.add(rows, rows, NONE)
    replay.add(rows[50:], NONE, rows[:20])
    counted = replay.per_batch()
    assert counted.checkpoints == 1 / 2
    assert counted.rows_flushed == 80 / 2
    assert counted.bytes_flushed == 80 * STRIDE / 2
    assert counted.rows_merged == 100 / 2
    assert counted.bytes_merged == 100 * STRIDE / 2


def test_rows_that_were_never_written_are_not_read():
    replay = FileReplay(ROWS, STRIDE)
    rows = torch.arange(0, 1000, 10)
    replay.add(rows, rows, NONE)
    assert replay.per_batch().requests == 0
    replay.begin()
    replay.add(NONE, NONE, rows[:50])
    replay.begin()
    replay.add(rows, rows, NONE)
    counted = replay.per_batch()
    assert counted.bytes_fetched == -(-50 * STRIDE // 512) * 512  # neighbours in the log
    assert counted.requests == 1


def test_rows_are_read_from_the_logs_until_these_are_merged():
    replay = FileReplay(ROWS, STRIDE, log_rows=10)
    rows = torch.arange(0, ROWS, 10_000)
    replay.add(NONE, NONE, torch.arange(ROWS))  # a log that is full: `rows` are far from one another

    def requests():
        replay.begin()
        replay.add(NONE, rows, NONE)
        return replay.per_batch().requests

    replay.add(NONE, NONE, rows)
    assert requests() == 1
    replay.add(NONE, NONE, rows + 1)  # the next one is: the first was merged before that
    assert requests() == len(rows)
