"""Overlay: rows as of any version, whatever is written meanwhile; what no later base has, and no more."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hotrows.serving.overlay import Overlay

ROWS, WIDTH = 40, 3
FILE = np.arange(ROWS * WIDTH, dtype=np.uint8).reshape(ROWS, WIDTH)
EACH = np.arange(ROWS)
changes = st.lists(st.sets(st.integers(0, ROWS - 1), max_size=12), max_size=12)


def written(overlay, expected, ids, number):
    """The overlay, and the rows of all ids, after other rows of some; rows differ by version."""
    ids = np.array(sorted(ids), np.int64)
    rows = np.full((len(ids), WIDTH), 100 + number, np.uint8)
    expected = expected.copy()
    expected[ids] = rows
    return overlay.write(ids, rows, number), expected


@given(changes)
def test_each_version_reads_its_rows_whatever_comes_later(all_ids):
    overlay, expected = Overlay(ROWS, WIDTH, capacity=16), FILE
    versions = [(overlay, FILE)]
    for number, ids in enumerate(all_ids, 1):
        overlay, expected = written(overlay, expected, ids, number)
        versions.append((overlay, expected))
    for number, (of_version, rows) in enumerate(versions):
        assert (of_version.read(EACH, number, lambda ids: FILE[ids]) == rows).all()


@given(changes, st.integers(0, 12))
def test_over_a_later_base_only_later_rows_remain(all_ids, base):
    overlay, expected = Overlay(ROWS, WIDTH, capacity=16), FILE
    bases, later = [FILE], set()
    for number, ids in enumerate(all_ids, 1):
        overlay, expected = written(overlay, expected, ids, number)
        bases.append(expected)
        later |= ids if number > base else set()
    base = min(base, len(all_ids))
    short = overlay.since(base, len(all_ids), ROWS)
    assert (short.read(EACH, len(all_ids), lambda ids: bases[base][ids]) == expected).all()
    assert set(short.changed_ids(len(all_ids))) == later


@given(changes)
def test_a_version_that_was_begun_and_given_up_leaves_no_trace(all_ids):
    overlay, expected = Overlay(ROWS, WIDTH, capacity=16), FILE
    for number, ids in enumerate(all_ids, 1):
        given_up, _ = written(overlay, expected, {0, 1, *ids}, number)
        assert (given_up.read(EACH, number - 1, lambda ids: FILE[ids]) == expected).all()
        overlay = overlay.since(0, number - 1, ROWS)
        overlay, expected = written(overlay, expected, ids, number)
    assert (overlay.read(EACH, len(all_ids), lambda ids: FILE[ids]) == expected).all()


@given(changes, st.integers(1, 12), st.booleans())
def test_rows_of_later_versions_that_were_given_up_are_not_those_of_the_next(
    all_ids, num_given_up, copies
):
    """A damaged delta ends an attempt, and its versions are begun again, perhaps only the first, as it is
    pinned. The rows that the attempt had written under a later number were read."""
    overlay, expected = Overlay(ROWS, WIDTH, capacity=16), FILE
    versions = [(overlay, FILE)]
    for number, ids in enumerate(all_ids, 1):
        attempt = overlay
        for later in range(number, number + num_given_up):
            attempt, _ = written(attempt, expected, {0, 1, later, *ids}, later)
        if copies:
            overlay = overlay.since(0, number - 1, ROWS)
        overlay, expected = written(overlay, expected, ids, number)
        versions.append((overlay, expected))
    for number, (of_version, rows) in enumerate(versions):
        assert (of_version.read(EACH, number, lambda ids: FILE[ids]) == rows).all()


def test_a_copy_is_read_as_of_its_version_while_the_next_one_is_written():
    overlay, expected = written(Overlay(ROWS, WIDTH, capacity=16), FILE, {0, 1}, 1)
    overlay, expected = written(overlay, expected, {1, 2}, 2)
    copy = overlay.since(1, 2, ROWS)
    file = overlay.read(EACH, 1, lambda ids: FILE[ids])
    later, _ = written(copy, expected, {2, 3}, 3)
    assert later is copy
    assert (copy.read(EACH, 2, lambda ids: file[ids]) == expected).all()
    assert (copy.changed_ids(2) == [1, 2]).all()


def test_memory_is_that_of_the_rows_that_changed_not_of_how_often():
    overlay, rows = Overlay(ROWS, WIDTH, capacity=64), np.zeros((8, WIDTH), np.uint8)
    for number in range(1, 2000):
        overlay = overlay.write(np.arange(8), rows + number % 250, number)
    assert overlay.num_bytes < 100_000
    assert (overlay.read(np.arange(8), 1999, lambda ids: FILE[ids]) == 1999 % 250).all()
