"""Synthetic rows have Criteo's layout and statistics, are reproducible, and can be learned from."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from hotrows.data.datasets.synthetic import BLOCK, FIELDS, GAPS, Skew, id_of, place_at, synth_criteo
from hotrows.data.datasets.synthetic_labels import hashed_uniform, key

ROWS = 60_000


@dataclass(frozen=True)
class Table:
    """Parsed rows: labels [M] and text cells [M, 39], I1 to I13 then C1 to C26."""

    labels: NDArray[np.int64]
    cells: NDArray[np.str_]

    def column(self, name: str) -> NDArray[np.str_]:
        return self.cells[:, int(name[1:]) - 1 + (13 if name[0] == "C" else 0)]

    def present(self, name: str) -> NDArray[np.str_]:
        column = self.column(name)
        return column[column != ""]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return synth_criteo(ROWS, tmp_path_factory.mktemp("synth"), seed=1)


@pytest.fixture(scope="module")
def table(path: Path) -> Table:
    lines = np.array([line.split("\t") for line in path.read_text().splitlines()])
    return Table(lines[:, 0].astype(np.int64), lines[:, 1:])


def test_equal_seeds_write_equal_bytes_and_others_other_ones(tmp_path: Path) -> None:
    first = synth_criteo(500, tmp_path / "a", seed=3).read_bytes()
    assert synth_criteo(500, tmp_path / "b", seed=3).read_bytes() == first
    other = synth_criteo(500, tmp_path / "c", seed=4).read_bytes()
    assert not set(first.splitlines()) & set(other.splitlines())


def test_fewer_rows_are_the_first_of_more(path: Path, tmp_path: Path) -> None:
    rows = BLOCK + 100
    fewer = synth_criteo(rows, tmp_path, seed=1).read_bytes()
    assert fewer.count(b"\n") == rows
    assert path.read_bytes().startswith(fewer)


def test_every_row_has_criteos_layout(path: Path) -> None:
    text = path.read_bytes()
    assert text.endswith(b"\n") and b"\r" not in text and text.count(b"\n") == ROWS
    row = re.compile(rb"[01](\t(0|-?[1-9][0-9]*)?){13}(\t([0-9a-f]{8})?){26}")
    assert all(row.fullmatch(line) for line in text.splitlines()[:5_000])


def test_integers_have_criteos_range(table: Table) -> None:
    for number in range(1, 14):
        values = table.present(f"I{number}").astype(np.int64)
        assert values.min() >= (-2 if number == 2 else 0)
    assert (table.column("I2").astype(np.int64) < 0).mean() == pytest.approx(0.10, abs=0.03)
    assert np.median(table.present("I5").astype(np.int64)) == pytest.approx(2_480, rel=0.15)
    assert np.median(table.present("I9").astype(np.int64)) == pytest.approx(41, rel=0.15)


def test_click_rate_is_criteos(table: Table) -> None:
    assert table.labels.mean() == pytest.approx(0.256, abs=0.015)


def test_columns_go_missing_in_groups_as_often_as_in_criteo(table: Table) -> None:
    for gap in GAPS:
        missing = [table.column(name) == "" for name in gap.columns]
        assert missing[0].mean() == pytest.approx(gap.rate, abs=0.03), gap.columns
        assert all((other == missing[0]).all() for other in missing)


@pytest.mark.parametrize(
    ("name", "share"),
    [
        ("C1", 0.50),
        ("C3", 0.049),
        ("C5", 0.67),
        ("C6", 0.53),
        ("C7", 0.0105),
        ("C8", 0.59),
        ("C12", 0.049),
        ("C15", 0.0195),
        ("C17", 0.43),
        ("C22", 0.53),
        ("C23", 0.45),
    ],
)
def test_the_most_frequent_value_is_as_frequent_as_in_criteo(
    table: Table, name: str, share: float
) -> None:
    _, counts = np.unique(table.present(name), return_counts=True)
    assert counts.max() / counts.sum() == pytest.approx(share, rel=0.15)


@pytest.mark.parametrize(("name", "distinct"), [("C3", 5_520), ("C21", 5_036), ("C4", 4_032)])
def test_ten_thousand_rows_have_as_many_values_as_criteos_first(
    table: Table, name: str, distinct: int
) -> None:
    first = table.column(name)[:10_000]
    assert len(np.unique(first[first != ""])) == pytest.approx(distinct, rel=0.12)


@pytest.mark.parametrize(("name", "source"), [("C24", "C3"), ("C2", "C15"), ("C9", "C7")])
def test_a_field_is_a_function_of_its_source(table: Table, name: str, source: str) -> None:
    pairs = np.unique(np.stack([table.column(source), table.column(name)], axis=1), axis=0)
    assert len(pairs) == len(np.unique(pairs[:, 0]))


def test_ids_of_different_places_differ() -> None:
    places = np.arange(200_000)
    assert len(np.unique(id_of(key(0, "id"), places))) == len(places)


def test_place_at_inverts_the_shares() -> None:
    """Zipf with a = 2, q = 1 over two places after a head: F(x) = 1.5 · (1 - 1 / (1 + x))."""
    skew = Skew(num_places=3, exponent=2.0, offset=1.0, head=(0.2,))
    shares = np.array([0.0, 0.19, 0.21, 0.2 + 0.8 * 0.74, 0.2 + 0.8 * 0.76, 0.999])
    assert place_at(skew, shares).tolist() == [0, 0, 1, 1, 2, 2]


def test_scaling_changes_how_many_values_there_are(tmp_path: Path) -> None:
    def values_of_c3(scale: float) -> int:
        path = synth_criteo(3_000, tmp_path / str(scale), cardinality_scale=scale)
        return len({line.split("\t")[16] for line in path.read_text().splitlines()})

    assert values_of_c3(1e-8) < 60 < 1_000 < values_of_c3(1.0)


def test_the_click_depends_on_the_ids(table: Table) -> None:
    """A sum of per-value log odds, learned on 50,000 rows, ranks the others far better than chance."""
    train = np.arange(len(table.labels)) < 50_000
    score = sum(_log_odds(table.column(name), table.labels, train) for name in ("C2", "C3", "C14", "C17"))
    assert _auc(score[~train], table.labels[~train]) > 0.62


def test_the_click_can_be_learned(table: Table) -> None:
    """Logistic regression on hashed cells, the integers by their logarithm, reaches AUC 0.73."""
    buckets = 1 << 18
    features = np.empty(table.cells.shape, np.int64)
    for column in range(39):
        _, codes = np.unique(_coarse(table.cells[:, column], column < 13), return_inverse=True)
        features[:, column] = hashed_uniform(key(0, column), codes) * buckets
    weights = _fit(features[:50_000], table.labels[:50_000], buckets)
    scores = weights[features[50_000:]].sum(axis=1)
    assert _auc(scores, table.labels[50_000:]) > 0.73


def test_an_interrupt_leaves_no_file(tmp_path: Path) -> None:
    def interrupt(done: int, total: int) -> None:
        assert list(tmp_path.iterdir())
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        synth_criteo(100, tmp_path, progress=interrupt)
    assert not list(tmp_path.iterdir())


def test_progress_counts_rows(tmp_path: Path) -> None:
    calls: list[tuple[int, int]] = []
    synth_criteo(BLOCK + 1, tmp_path, progress=lambda done, total: calls.append((done, total)))
    assert calls == [(BLOCK, BLOCK + 1), (BLOCK + 1, BLOCK + 1)]


@pytest.mark.parametrize(("rows", "scale"), [(0, 1.0), (10, 0.0)])
def test_senseless_sizes_are_refused(tmp_path: Path, rows: int, scale: float) -> None:
    with pytest.raises(ValueError, match="rows of 1 or more"):
        synth_criteo(rows, tmp_path, cardinality_scale=scale)


def test_sources_stand_before_their_dependents() -> None:
    names = list(FIELDS)
    assert all(
        field.source is None or names.index(field.source) < names.index(name)
        for name, field in FIELDS.items()
    )
    assert sorted(names) == sorted(f"C{i}" for i in range(1, 27))


def _coarse(cells: NDArray[np.str_], is_integer: bool) -> NDArray[np.str_]:
    if not is_integer:
        return cells
    values = np.array([int(cell) if cell else -9 for cell in cells])
    return np.where(values > 2, (np.log(np.maximum(values, 1)) ** 2).astype(int), values)


def _fit(features: NDArray[np.int64], labels: NDArray[np.int64], buckets: int) -> NDArray[np.float64]:
    """One pass of Adagrad in batches of 500."""
    weights, squares = np.zeros(buckets), np.full(buckets, 1e-4)
    for start in range(0, len(labels), 500):
        batch = features[start : start + 500]
        error = 1 / (1 + np.exp(1.2 - weights[batch].sum(axis=1))) - labels[start : start + 500]
        gradient = np.bincount(batch.ravel(), np.repeat(error / 500, 39), minlength=buckets)
        squares += gradient**2
        weights -= 0.02 * gradient / np.sqrt(squares)
    return weights


def _log_odds(
    cells: NDArray[np.str_], labels: NDArray[np.int64], train: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """Smoothed log odds of the value's click rate among the training rows."""
    _, codes = np.unique(cells, return_inverse=True)
    shown = np.bincount(codes[train], minlength=codes.max() + 1)
    clicked = np.bincount(codes[train], labels[train], minlength=codes.max() + 1)
    rate = (clicked + 20 * 0.256) / (shown + 20)
    return np.log(rate / (1 - rate))[codes]


def _auc(scores: NDArray[np.float64], labels: NDArray[np.int64]) -> float:
    ranks = np.empty(len(scores))
    ranks[np.argsort(scores)] = np.arange(1, len(scores) + 1)
    clicks = labels.sum()
    return (ranks[labels == 1].sum() - clicks * (clicks + 1) / 2) / (clicks * (len(labels) - clicks))
