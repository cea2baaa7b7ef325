"""Changed rows: every reader has those since it read last, ascending, at any number of changes."""

import numpy as np
import pytest
import torch

from hotrows.engine.changed_rows import ChangedRows, spans_of


def listed(rows):
    return [of_group.tolist() for of_group in rows]


def test_readers_have_the_rows_since_each_read_last():
    changed = ChangedRows([8, 100])
    early = changed.reader("increments")
    changed.add(0, torch.tensor([5, 2]))
    late = changed.reader("deltas")
    changed.add(0, torch.tensor([2, 7]))
    changed.add(1, torch.tensor([99]))
    assert early.counts() == [3, 1] and late.counts() == [2, 1]
    assert listed(early.take()) == [[2, 5, 7], [99]] and listed(late.take()) == [[2, 7], [99]]
    assert listed(early.take()) == [[], []]
    changed.add(1, torch.tensor([99, 3]))
    late.forget()
    changed.readers.remove(late)
    changed.add(1, torch.tensor([4]))
    assert listed(early.take()) == [[], [3, 4, 99]] and listed(late.take()) == [[], []]


@pytest.mark.parametrize("num_rows", [10, 300, 100_000])  # most of them change, and few
def test_rows_are_distinct_and_ascending_however_many_change(num_rows):
    random = np.random.default_rng(num_rows)
    reader = ChangedRows([num_rows]).reader("all")
    for _ in range(2):
        batches = [np.unique(random.integers(0, num_rows, 40)) for _ in range(20)]
        for batch in batches:
            reader.add(0, torch.from_numpy(random.permutation(batch)))
        assert listed(reader.take()) == [np.unique(np.concatenate(batches)).tolist()]


def test_rows_are_split_into_tables_by_their_bounds():
    rows = torch.tensor([0, 3, 4, 9, 12])
    parts = [rows[span].tolist() for span in spans_of(rows, [(0, 4), (4, 4), (4, 10), (11, 20)])]
    assert parts == [[0, 3], [], [4, 9], [12]]
    assert spans_of(rows, []) == []
